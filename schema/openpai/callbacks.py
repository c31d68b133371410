"""Commands of prerequisites with OpenPAI's plugin `cmd`: they run before and after those of a role.
Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...protocol.fields import InvalidForm
from ..fields import element, member
from .values import scalar
from .version2_keys import PrerequisiteKeys

#: The only plugin of prerequisites.
PLUGIN = "com.microsoft.pai.runtimeplugin.cmd"


class Around(NamedTuple):
    """Commands before and after those of a role, each with its path in the configuration."""

    before: dict[str, str]
    after: dict[str, str]


def around(
    names: Sequence[str],
    known: Mapping[str, tuple[PrerequisiteKeys, str]],
    rendered: Callable[[str, str], str],
) -> Around:
    """Return the commands of these prerequisites, each after those that it requires. known: by name,
    with their paths. rendered: returns a command with the values of its templates.
    """
    out = Around({}, {})
    for each, path in _ordered(names, known):
        ended: dict[str, str] = {}
        for n, callback in enumerate(each.callbacks):
            at = element(member(path, "callbacks"), n)
            commands = member(at, "commands")
            lines = [rendered(c, element(commands, m)) for m, c in enumerate(callback.commands)]
            text = "\n".join(lines)
            if each.failure_policy == "ignore":
                text = f"(\n{text}\n) || true"
            (out.before if callback.event == "taskStarts" else ended)[at] = text
        last = dict(out.after)
        out.after.clear()
        out.after.update(ended | last)  # in reverse order, as documented
    return out


def texts(each: PrerequisiteKeys) -> dict[str, str]:
    """Return the values of a prerequisite for templates, without its addresses."""
    out = {"name": each.name, "version": "latest"}
    for key, value in (
        ("version", each.version),
        ("contributor", each.contributor),
        ("description", each.description),
    ):
        try:
            out |= {} if value is None else {key: scalar(value)}
        except InvalidForm:
            continue
    return out


def _ordered(
    names: Sequence[str], known: Mapping[str, tuple[PrerequisiteKeys, str]]
) -> list[tuple[PrerequisiteKeys, str]]:
    """Return prerequisites once each, after those that they require. A cycle is cut."""
    out: dict[str, tuple[PrerequisiteKeys, str]] = {}

    def add(name: str, above: frozenset[str]) -> None:
        if name not in known or name in out or name in above:
            return
        for other in known[name][0].require:
            add(other, above | {name})
        out[name] = known[name]

    for name in names:
        add(name, frozenset())
    return list(out.values())
