"""A job description that is made from a configuration of OpenPAI, with the origin of each part.

Problems that the checks of `schema.jobs` find in the description are reported at their origins, in
the words of the configuration.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..fields import Findings, Problem, above, member

_QUOTED_KEY = re.compile(r"`([A-Za-z]+)")


class Options(NamedTuple):
    """Options given beside the file. user: for `$PAI_USER_NAME`. containers: False to run the
    tasks without their images. driver: "" for the site's.
    """

    user: str
    containers: bool = True
    driver: str = ""


class LocalPath(NamedTuple):
    """A folder or file of tasks that the configuration names. path: of its value in the
    configuration. use: `dataDir`, `outputDir`, `codeDir` or `secret`.
    """

    path: str
    use: str
    value: str


class LoginSource(NamedTuple):
    """Credentials for a registry. path: of their value in the configuration. name: in `registryAuth`.
    file: with the credentials (no username here), or with the password; "": password has it.
    """

    path: str
    name: str
    file: str
    registry: str = ""
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"LoginSource({self.path})"


class Draft:
    """words: the configuration's names for keys of a job description."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.data: dict[str, Any] = {}
        self.paths: list[LocalPath] = []
        self.logins: list[LoginSource] = []
        self._words = words
        self._origins: dict[str, str] = {}

    def put(self, keys: Sequence[str], value: Any, origin: str) -> None:
        """Set the value of a key, given with the keys above it. origin: the path of its value in the
        configuration.
        """
        table, path = self.data, ""
        for key in keys[:-1]:
            path = member(path, key)
            table = table.setdefault(key, {})
        table[keys[-1]] = value
        self._origins[member(path, keys[-1])] = origin

    def put_common(
        self, name: str, options: "Options", retries: tuple[int, str], queue: str, at: str
    ) -> None:
        """Set the keys that both versions have. retries: number and key. at: path of the queue."""
        self.put(["name"], name, self._words.get("name", "name"))
        self.put(["unique"], True, self._words.get("name", "name"))
        if options.driver:
            self.put(["driver"], options.driver, "")
        self.put(["retry", "count"], *retries)
        self.put(["virtualCluster"], queue or "default", at)
        if queue not in ("", "default"):
            self.put(["queue"], queue, at)

    def put_logins(self) -> None:
        """Set the references to the credentials for registries."""
        if self.logins:
            files = [{"file": login.name} for login in self.logins]
            self.put(["registryAuth"], files, self.logins[0].path)

    def begin(self, keys: Sequence[str], origin: str) -> None:
        """Set the origin of an object whose keys follow."""
        path = ""
        for key in keys:
            path = member(path, key)
        self._origins[path] = origin

    def origin(self, path: str) -> str:
        """Return the path in the configuration for a path in the description."""
        while path and path not in self._origins:
            path = above(path)
        return self._origins.get(path, "")

    def translated(self, problem: Problem) -> Problem:
        """Return a problem of the description as one of the configuration."""
        return replace(
            problem,
            path=self.origin(problem.path),
            problem=self._worded(problem.problem),
            right=self._worded(problem.right),
        )

    def _worded(self, text: str) -> str:
        return _QUOTED_KEY.sub(lambda m: f"`{self._words.get(m[1], m[1])}", text)


def merged(
    own: Findings, draft: Draft, problems: Sequence[Problem], warnings: Sequence[Problem]
) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Return the problems and warnings of a configuration: those of its keys, and those of its
    description that do not follow from them.
    """
    more = list(dict.fromkeys(map(draft.translated, problems)))
    more = [p for p in more if not (own.problems if p.path == "" else own.has_error(p.path))]
    noted = [draft.translated(w) for w in warnings]
    return (*own.problems, *more), (*own.warnings, *noted)
