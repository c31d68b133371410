"""Parse a page of commands and log lines into blocks, and match example lines with real lines.

A few patterns match the parts that differ between sites. Ids are unified: one example id stands for
one real id on the whole page, and different example ids for different real ids. All other text must
match exactly.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[3] / "docs"
#: In a line, CUT stands for any text. On a line of its own, MORE stands for any lines.
CUT, MORE = "…", "..."
ROOT, HOST = "/srv/jobscribe", "node1"

#: Other variable parts and their formats.
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
#: Prefix of the id groups in a pattern.
_GROUP = "id_"


class Block(NamedTuple):
    """section: the heading above the block. kind: the language after the three backticks."""

    section: str
    kind: str
    line: int
    lines: tuple[str, ...]


class Page:
    """One page of docs/. ids: its example ids, with the format of real ids.

    deep: subsections are separate sections, named "section: part".
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
    """The real values of a page's examples on one site. root, host: of that site. also: further
    paths of the page, with the real paths.
    """

    def __init__(self, page: Page, root: str, host: str, also: Mapping[str, str] = {}) -> None:
        self._page, self._host, self._also = page, host, {ROOT: root, **also}
        self.bound: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return a command of the page with the paths and ids of this site."""
        return self._page.parts.sub(
            lambda part: self.bound[part[0]] if part.lastgroup == "id" else part[0],
            self._places(text),
        )

    def matches(self, example: str, real: str) -> bool:
        """Return whether the real line matches the example. After a match, the example ids stand
        for the ids of the real line.
        """
        found = re.fullmatch(self._pattern(self._places(example)), real)
        if found is None:
            return False
        new = {name.removeprefix(_GROUP): value for name, value in found.groupdict().items()}
        # serials are times, so two jobs may have the same serial
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
