"""Bodies of the requests of pages: the supervisor's own request types without their user, who comes
from the sign-in.
"""

from typing import Any

import msgspec

from ...protocol.api import requests


def _without_user(type_: type[msgspec.Struct]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in msgspec.structs.fields(type_):
        if field.name == "uid":
            continue
        if field.required:
            fields.append((field.name, field.type))
        elif field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
            fields.append((field.name, field.type, default))
        else:
            fields.append((field.name, field.type, field.default))
    return msgspec.defstruct(
        "Page" + type_.__name__,
        fields,
        namespace={"__doc__": type_.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        rename="camel",
    )


#: The body for each request of the supervisor that pages may send.
BODIES: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    type_: _without_user(type_)
    for type_ in (
        requests.JobLog,
        requests.JobMetrics,
        requests.JobSearch,
        requests.JobStory,
        requests.JobTag,
        requests.JobTasks,
        requests.RunCancel,
        requests.RunFiles,
        requests.RunRelease,
        requests.RunStatusRequest,
        requests.Trace,
    )
}
