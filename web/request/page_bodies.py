"""Bodies of the requests of pages: the supervisor's own request types without the fields that a
page may not set.
"""

from typing import Any

import msgspec

from ...protocol.api import requests, site_requests

#: uid: comes from the sign-in. logs: log lines need the scope `debug`, which a signed-in user does
#: not have (docs/site.md). wait_secs: a request that waits holds a worker; pages follow `/live`.
#: active_plan: comes from the hook `plan` of the site. program: terminals of pages are shells.
_NOT_FOR_PAGES = frozenset({"uid", "logs", "wait_secs", "active_plan", "program"})


def _body(type_: type[msgspec.Struct], left_out: frozenset[str]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in msgspec.structs.fields(type_):
        if field.name in left_out:
            continue
        if field.required:
            fields.append((field.name, field.type))
        elif field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
            fields.append((field.name, field.type, default))
        else:
            fields.append((field.name, field.type, field.default))
    return msgspec.defstruct(
        ("Page" if "uid" in left_out else "SitePage") + type_.__name__,
        fields,
        namespace={"__doc__": type_.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        rename="camel",
    )


#: The body for each request of the supervisor that pages may send.
BODIES: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    type_: _body(type_, _NOT_FOR_PAGES)
    for type_ in (
        requests.DiskReport,
        requests.JobCheck,
        requests.JobLog,
        requests.JobMetrics,
        requests.JobOptions,
        requests.JobSearch,
        requests.JobStory,
        requests.JobTag,
        requests.JobTasks,
        requests.RunCancel,
        requests.RunFilePart,
        requests.RunFiles,
        requests.RunRelease,
        requests.RunStatusRequest,
        requests.RunText,
        requests.TokenCreate,
        requests.TokenList,
        requests.TokenRevoke,
        requests.Trace,
        requests.UsageReport,
    )
}

#: The same for requests that may be about other users: with `uid`, for which the supervisor looks at
#: the role of the signed-in user.
SITE_BODIES: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    type_: _body(type_, _NOT_FOR_PAGES - {"uid"})
    for type_ in (
        requests.AgentList,
        requests.AgentLogs,
        requests.AuditPage,
        requests.ClusterList,
        requests.DebugList,
        requests.JobLog,
        requests.JobMetrics,
        requests.JobSearch,
        requests.JobStory,
        requests.JobTag,
        requests.JobTasks,
        requests.QueueReport,
        requests.RunCancel,
        requests.RunFiles,
        requests.RunRelease,
        requests.RunStatusRequest,
        requests.ShellOpen,
        requests.ShellUse,
        requests.TokenRevoke,
        requests.Trace,
        site_requests.DrainChange,
        site_requests.Sweep,
        site_requests.TargetName,
        site_requests.TokenFilter,
    )
}


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that the supervisor takes as a GET."""
