"""Commands that run before and after those of a role: of prerequisites with OpenPAI's plugin `cmd`, and
of this plugin in `extras`. Pure.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...protocol.fields import InvalidForm
from ..fields import element, member
from ..structs import Place, convert
from .values import PLUGINS, scalar
from .version2_keys import ENDS, STARTS, CallbackKeys, PluginKeys, PrerequisiteKeys

#: The only plugin of prerequisites.
PLUGIN = "com.microsoft.pai.runtimeplugin.cmd"


class Block(NamedTuple):
    """Commands at one place of the configuration. starts: they run before those of the role."""

    path: str
    commands: Sequence[str]
    starts: bool
    may_fail: bool


class Around(NamedTuple):
    """Texts before and after the commands of a role, each with its path in the configuration."""

    before: dict[str, str]
    after: dict[str, str]


def around(blocks: Iterable[Block], rendered: Callable[[str, str], str]) -> Around:
    """Return the texts of these blocks; those after the role in reverse order, as documented.
    rendered: returns a command with the values of its templates.
    """
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for block in blocks:
        lines = [rendered(c, element(block.path, n)) for n, c in enumerate(block.commands)]
        text = "\n".join(lines)
        if block.may_fail:
            text = f"(\n{text}\n) || true"
        if block.starts:
            before[block.path] = text
        else:
            after = {block.path: text} | after
    return Around(before, after)


def of_prerequisites(
    names: Sequence[str], known: Mapping[str, tuple[PrerequisiteKeys, str]]
) -> list[Block]:
    """Return the blocks of these prerequisites, each after those that it requires. A cycle is cut.
    known: by name, with their paths.
    """
    out: dict[str, list[Block]] = {}

    def add(name: str, above: frozenset[str]) -> None:
        if name not in known or name in out or name in above:
            return
        each, path = known[name]
        for other in each.require:
            add(other, above | {name})
        out[name] = _blocks(each.callbacks, path, each.failure_policy)

    for name in names:
        add(name, frozenset())
    return [block for blocks in out.values() for block in blocks]


def command_plugins(extras: Place, roles: Container[str]) -> list[tuple[PluginKeys, str]]:
    """Return the plugins `cmd` of `extras`, each with its path. Record their problems."""
    out = []
    for here in extras.each(PLUGINS):
        if isinstance(here.data, dict) and here.data.get("plugin") == "cmd":
            plugin = convert(PluginKeys, here.data, here.findings, here.path)
            for n, name in enumerate(plugin.taskroles):
                if name not in roles:
                    path = element(member(here.path, "taskroles"), n)
                    here.findings.error(path, "there is no such role", "a key of `taskRoles`")
            out.append((plugin, here.path))
    return out


def of_plugin(plugin: PluginKeys, path: str) -> list[Block]:
    """Return the blocks of the plugin `cmd` in `extras`."""
    keys, here = plugin.parameters, member(path, "parameters")
    may_fail = plugin.failure_policy == "ignore"
    own = [
        Block(member(here, name), commands, name == "preCommands", may_fail)
        for name, commands in (
            ("preCommands", keys.pre_commands),
            ("postCommands", keys.post_commands),
        )
        if commands
    ]
    return _blocks(keys.callbacks, here, plugin.failure_policy) + own


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


def _blocks(callbacks: Sequence[CallbackKeys], path: str, policy: str) -> list[Block]:
    """path: of the object with `callbacks`."""
    return [
        Block(
            member(element(member(path, "callbacks"), n), "commands"),
            callback.commands,
            callback.event in STARTS,
            policy == "ignore",
        )
        for n, callback in enumerate(callbacks)
        if callback.event in (*STARTS, *ENDS)
    ]
