"""The shape of the product: no import cycles, and few modules per folder."""

import ast
import pathlib
from collections import Counter
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = sorted(p.parent.name for p in ROOT.glob("*/__init__.py"))
#: Limit of modules in one folder, without `__init__`.
MAX_MODULES = 15

Graph = dict[str, set[str]]


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return every module of the product by its dotted name below `jobscribe`."""
    found = {}
    for path in (p for name in PRODUCT for p in (root / name).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: pathlib.Path, known: dict[str, pathlib.Path]) -> Iterator[str]:
    """Yield the product modules that a module imports anywhere in its text, for types or at run
    time.
    """
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            prefix = ".".join(part for part in base if part)
            for alias in node.names:
                full = f"{prefix}.{alias.name}".strip(".")
                yield full if full in known else prefix


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def graph_of(root: pathlib.Path) -> Graph:
    known = modules(root)
    return {
        name: {t for t in imports(name, path, known) if t in known and t != name}
        for name, path in known.items()
    }


def test_no_modules_import_each_other() -> None:
    graph = graph_of(ROOT)
    assert len(graph) > 500
    assert cycles(graph) == []


@pytest.mark.parametrize("line", ["from . import second", "def f():\n    from .second import x"])
def test_a_planted_cycle_is_found(tmp_path: pathlib.Path, line: str) -> None:
    folder = tmp_path / PRODUCT[0]
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text(line + "\n")
    (folder / "second.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .first import f\n"
    )
    assert cycles(graph_of(tmp_path)) == [[f"{PRODUCT[0]}.first", f"{PRODUCT[0]}.second"]]


def test_folders_are_small() -> None:
    count = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in modules(ROOT).values()
        if path.name != "__init__.py"
    )
    assert {folder: n for folder, n in count.items() if n > MAX_MODULES} == {}
