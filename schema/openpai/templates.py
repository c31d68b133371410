"""Templates of OpenPAI's protocol: `<% $parameters.x %>` and its like in commands and addresses.

A value becomes part of a command text, so values that would run another command are refused.
"""

import re
from collections.abc import Mapping
from typing import Any

from ...protocol.fields import InvalidForm
from ..fields import quoted
from .values import scalar

_TEMPLATE = re.compile(r"<%(.*?)%>", re.DOTALL)
_PARAMETER = re.compile(r"\$parameters((?:\.[A-Za-z0-9_-]+)+)")
_SECRET = re.compile(r"\$secrets\.([A-Za-z_][A-Za-z0-9_]*)")
_PREREQUISITE = re.compile(r"\$(data|script|output)\.([A-Za-z]+(?:\[[0-9]+\])?)")
#: What ends a command of a shell, starts another one, or redirects its output.
_SHELL = re.compile(r"[;&|`<>\n\r\0]|\$\(")
_FORMS = "$parameters.NAME, $secrets.NAME, or $data.uri, $script.uri, $output.uri"


class Templates:
    """The values of one configuration. prerequisites: of a role, `data.uri` and its like. secrets:
    names of the configuration's secrets, with the shell variables that hold their values.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        secrets: Mapping[str, str],
        prerequisites: Mapping[str, str] = {},
    ) -> None:
        self._parameters, self._secrets, self._prerequisites = parameters, secrets, prerequisites
        self.used: set[str] = set()

    def rendered(self, text: str, *, shell: bool) -> str:
        """Return the text with the values of its templates. shell: it is a command. Raises
        InvalidForm.
        """
        return _TEMPLATE.sub(lambda m: self._value(text, m, shell), text)

    def _value(self, text: str, match: "re.Match[str]", shell: bool) -> str:
        inner = match[1].strip()
        if found := _SECRET.fullmatch(inner):
            return self._secret(found[1], text[: match.start()], shell)
        if found := _PARAMETER.fullmatch(inner):
            value = self._parameter(found[1][1:], ())
        elif found := _PREREQUISITE.fullmatch(inner):
            known = self._prerequisites.get(f"{found[1]}.{found[2]}")
            if known is None and f"{found[1]}.name" not in self._prerequisites:
                raise InvalidForm(
                    f"the role has no {found[1]} for {quoted(match[0])}",
                    f"`{found[1]}` of the role",
                )
            if known is None:
                raise InvalidForm(
                    f"the {found[1]} of the role has no {quoted(found[2])}",
                    "`name`, `uri`, `uri[0]`, `version`, `contributor` or `description`",
                )
            value = known
        else:
            raise InvalidForm(f"{quoted(match[0])} is not a template", _FORMS)
        if shell and (bad := _SHELL.search(value)):
            raise InvalidForm(
                f"the value of {quoted(match[0])} contains {quoted(bad[0])}, which a shell executes",
                "a value without it; write the command itself into `commands`",
            )
        return value

    def _parameter(self, name: str, above: tuple[str, ...]) -> str:
        """Return the value of a parameter, whose text may have templates."""
        if name in above:
            raise InvalidForm(
                f"parameters contain each other: {' -> '.join((*above, name))}",
                "parameters without a cycle",
            )
        value: Any = self._parameters
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                known = ", ".join(map(str, self._parameters)) or "none"
                raise InvalidForm(f"there is no parameter {quoted(name)}", f"one of: {known}")
            value = value[part]
        text = scalar(value)

        def inner(match: "re.Match[str]") -> str:
            found = _PARAMETER.fullmatch(match[1].strip())
            if found is None:
                raise InvalidForm(
                    f"the parameter {quoted(name)} contains {quoted(match[0])}",
                    "a value, or $parameters.NAME",
                )
            return self._parameter(found[1][1:], (*above, name))

        return _TEMPLATE.sub(inner, text)

    def _secret(self, name: str, before: str, shell: bool) -> str:
        """Return the variable of a secret. before: the text before it."""
        if name not in self._secrets:
            raise InvalidForm(f"there is no secret {quoted(name)}", "a key of `secrets`")
        if not shell:
            raise InvalidForm("a secret is for commands only", "a text without `$secrets`")
        if _in_single_quotes(before):
            raise InvalidForm(
                f"the secret {quoted(name)} is in single quotes, where shells expand no variables",
                "double quotes",
            )
        self.used.add(name)
        return f"${{{self._secrets[name]}}}"


def _in_single_quotes(text: str) -> bool:
    """Return whether a shell is in single quotes after this text."""
    quote = ""
    skip = False
    for c in text:
        if skip:
            skip = False
        elif c == "\\" and quote != "'":
            skip = True
        elif c in "'\"" and quote in ("", c):
            quote = "" if quote else c
    return quote == "'"
