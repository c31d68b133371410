"""A page of commands and log lines as data: its blocks, and what of a line of it must be found in a
real one.

What differs from site to site is recognised by few patterns. Ids are unified: the same example id
stands for the same real one on the whole page, and two for two. Everything else is compared letter
by letter.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[3] / "docs"
#: What stands in a line for anything, and on a line of its own for any lines.
CUT, MORE = "…", "..."
ROOT, HOST = "/srv/jobscribe", "node1"

#: What else may differ, and in which form.
VOLATILE = (
    r"[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d +\d+ +\d+ ",
    r"\.py:\d+:",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{3})?(?:Z| UTC)",
    r" +\+\d+\.\d{3}s ",
    r"\bpid \d+",
    r"\bseconds=\d+\.\d{4}",
    r"\d+ MiB",
    r"\d+\.\d+ s\b",
    r" {2,}",
)
_STAMP = re.compile(VOLATILE[0])
#: How the groups of ids in a pattern begin.
_GROUP = "id_"


class Block(NamedTuple):
    """section: the heading that it stands under. kind: what is written behind the three ticks."""

    section: str
    kind: str
    line: int
    lines: tuple[str, ...]


class Page:
    """One page of docs/. ids: its example ids, with the form that a real one has.

    deep: parts of a section are sections of their own, named "section: part".
    """

    def __init__(self, name: str, ids: Mapping[str, str], *, deep: bool = False) -> None:
        self.path, self.ids, self._deep = DOCS / name, dict(ids), deep
        self.parts = re.compile(
            "|".join(
                [
                    r"(?P<id>(?<![A-Za-z0-9])(?:" + "|".join(self.ids) + r")(?![A-Za-z0-9]))",
                    f"(?P<cut>{CUT})",
                    *(f"(?P<v{n}>{p})" for n, p in enumerate(VOLATILE)),
                ]
            )
        )

    def blocks(self) -> list[Block]:
        return list(_blocks(self.path.read_text(encoding="utf-8").splitlines(), deep=self._deep))


def _blocks(lines: Sequence[str], *, deep: bool) -> Iterator[Block]:
    section, kind, begin = "", None, 0
    for n, line in enumerate(lines, 1):
        if line.startswith("```") and kind is None:
            kind, begin = line.removeprefix("```"), n
        elif line == "```" and kind is not None:
            yield Block(section, kind, begin + 1, tuple(lines[begin : n - 1]))
            kind = None
        elif kind is None and line.startswith("## "):
            section = line.removeprefix("## ")
        elif kind is None and deep and line.startswith("### "):
            section = f"{section.partition(': ')[0]}: {line.removeprefix('### ')}"
    assert kind is None, f"the block of line {begin} has no end"


def stamped(line: str) -> bool:
    return _STAMP.match(line) is not None


class Reality:
    """What the examples of a page are on one site. root, host: of that site. also: further places
    of the page, and where they are here.
    """

    def __init__(self, page: Page, root: str, host: str, also: Mapping[str, str] = {}) -> None:
        self._page, self._host, self._also = page, host, {ROOT: root, **also}
        self.bound: dict[str, str] = {}

    def text(self, text: str) -> str:
        """A command of the page, for this site, with the ids that it has here."""
        return self._page.parts.sub(
            lambda part: self.bound[part[0]] if part.lastgroup == "id" else part[0],
            self._places(text),
        )

    def matches(self, example: str, real: str) -> bool:
        """Is this the line? If so, from now on its ids stand for the ones of the example."""
        found = re.fullmatch(self._pattern(self._places(example)), real)
        if found is None:
            return False
        new = {name.removeprefix(_GROUP): value for name, value in found.groupdict().items()}
        # serials of two jobs may be the same: they are times
        values = [v for v in (*self.bound.values(), *new.values()) if not v.isdigit()]
        if len(set(values)) != len(values):
            return False
        self.bound = self.bound | new
        return True

    def _places(self, text: str) -> str:
        for place, here in self._also.items():
            text = text.replace(place, here)
        return re.sub(rf"\b{HOST}\b", self._host, text)

    def _pattern(self, example: str) -> str:
        out, at = [], 0
        here: set[str] = set()
        for part in self._page.parts.finditer(example):
            out.append(re.escape(example[at : part.start()]))
            at = part.end()
            match part.lastgroup:
                case "id":
                    out.append(self._id(part[0], here))
                case "cut":
                    out.append(".*")
                case name:
                    assert name is not None
                    out.append(VOLATILE[int(name[1:])])
        return "".join([*out, re.escape(example[at:])])

    def _id(self, example: str, here: set[str]) -> str:
        if example in self.bound:
            return re.escape(self.bound[example])
        if example in here:
            return f"(?P={_group(example)})"
        here.add(example)
        return f"(?P<{_group(example)}>{self._page.ids[example]})"


def _group(example: str) -> str:
    return _GROUP + example
