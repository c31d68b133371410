"""States are types: the product compares no attribute `state`, `status` or `phase`, and no kind of
an agent, with a bare string.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = sorted(p.parent for p in ROOT.glob("*/__init__.py"))
ATTRIBUTES = frozenset({"state", "status", "phase"})
#: Names of variables and attributes that hold an `AgentKey`, whose `kind` is an `AgentKind`.
AGENT_KEYS = frozenset({"key", "agent_key", "place"})
#: (path, word): the reason for the bare string.
ALLOWED: dict[tuple[str, str], str] = {
    ("supervisor/runs/groups.py", "failed"): "a filter of requests (GroupStatus), no status",
}


def bare_comparisons(source: str) -> list[tuple[int, str]]:
    """Return line and word of each comparison of a state with a string literal."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare():
                sides, words = [node.left, *node.comparators], [node]
                if any(map(is_state, sides)):
                    found += [(node.lineno, w) for side in sides for w in literals(side)]
            case ast.Match(subject=subject) if is_state(subject):
                words = [n for case in node.cases for n in ast.walk(case.pattern)]
                found += [(n.lineno, w) for n in words for w in literals(n)]
    return found


def is_state(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="kind", value=ast.Name(id=of) | ast.Attribute(attr=of)):
            return of in AGENT_KEYS
        case ast.Attribute(attr=name):
            return name in ATTRIBUTES
        case _:
            return False


def literals(node: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str(word)):
            return [word]
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return [w for part in parts for w in literals(part)]
        case _:
            return []


def test_no_state_is_compared_with_a_bare_string() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), word): line
        for folder in PRODUCT
        if folder.name != "tests"
        for path in sorted(folder.rglob("*.py"))
        for line, word in bare_comparisons(path.read_text(encoding="utf-8"))
    }
    assert {
        f"{path}:{line}: {word}"
        for (path, word), line in found.items()
        if (path, word) not in ALLOWED
    } == set()
    assert set(ALLOWED) <= set(found), "an exception that is no longer needed"


@pytest.mark.parametrize(
    "line",
    [
        "run.status == 'pending'",
        "'up' != view.state",
        "e.state in ('running', Ended)",
        "e.state not in ['ended']",
        "view.phase != 'up'",
        "key.kind == 'container'",
        "task.agent_key.kind in ('sequential', 'parallel')",
        "match e.state:\n    case 'starting' | 'running': pass",
    ],
)
def test_a_planted_comparison_is_found(line: str) -> None:
    assert bare_comparisons(line)


@pytest.mark.parametrize(
    "line",
    [
        "run.status == Status.PENDING",
        "answer['state'] == 'up'",
        "e.state in STATES",
        "model.kind == 'parallel'",
    ],
)
def test_other_comparisons_are_not_found(line: str) -> None:
    assert bare_comparisons(line) == []
