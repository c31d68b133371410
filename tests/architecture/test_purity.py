"""Pure modules: modules that decide import no clock, randomness, machine or network, open no files
and print nothing.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PURE = (
    "protocol/**/*.py",
    "diagnosis/*.py",
    "schema/fields.py",
    "schema/messages.py",
    "schema/structs.py",
    "schema/jobs/*.py",
    "schema/openpai/*.py",
    "schema/text/document.py",
    "db/events/*.py",
    "db/store/contract.py",
    "db/store/job_index.py",
    "db/store/name_index.py",
    "db/store/checksum_chain.py",
    "db/maintenance/checkpoints.py",
    "db/records/job_record.py",
    "db/records/event_text.py",
    "db/records/resource_usage.py",
    "supervisor/core/**/*.py",
    "supervisor/runs/job_options.py",
    "supervisor/diagnosis/*.py",
    "supervisor/usage/accounting.py",
    "supervisor/usage/summary.py",
    "supervisor/usage/time_series.py",
    "agent/session/state_machine.py",
    "agent/session/backoff.py",
    "agent/session/keeper_reports.py",
    "agent/session/path_mapping.py",
    "agent/slurm/*.py",
    "service/tickets.py",
)
#: Contracts and plain data that pure modules may import from impure folders.
SHAPES = ("drivers/contracts.py", "__init__.py")
FORBIDDEN = frozenset(
    {
        "aiofiles",
        "asyncio",
        "concurrent",
        "docker",
        "fcntl",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "psutil",
        "pykern",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "tornado",
        "urllib.request",
        "uuid",
    }
)
FORBIDDEN_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})


def pure_files(root: pathlib.Path) -> list[pathlib.Path]:
    return sorted(f for pattern in PURE for f in root.glob(pattern))


def impurities(path: pathlib.Path, root: pathlib.Path) -> list[str]:
    """Return the impure operations of this module, as `path:line: what`."""
    allowed = {f.relative_to(root).as_posix() for f in pure_files(root)} | set(SHAPES)
    here = path.relative_to(root)
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Import():
                found += [(line, f"imports {a.name}") for a in node.names if forbidden(a.name)]
            case ast.ImportFrom(level=0, module=str(module)):
                found += [
                    (line, f"imports {module}.{a.name}")
                    for a in node.names
                    if forbidden(module) or forbidden(f"{module}.{a.name}")
                ]
            case ast.ImportFrom():
                found += [
                    (line, f"imports {target}, which is not pure")
                    for target in own_targets(node, here, root)
                    if target not in allowed
                ]
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append((line, f"calls {name}()"))
            case ast.AsyncFunctionDef() if not is_contract(node):
                found.append((line, "is async"))
            case ast.Await():
                found.append((line, "awaits"))
    return [f"{here}:{line}: {what}" for line, what in sorted(found)]


def forbidden(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:n]) in FORBIDDEN for n in range(1, len(parts) + 1))


def own_targets(node: ast.ImportFrom, here: pathlib.Path, root: pathlib.Path) -> list[str]:
    """Return the files that a relative import reads."""
    base = here.parents[node.level - 1] if node.level else here.parent
    folder = base.joinpath(*(node.module or "").split("."))
    if (root / folder.with_suffix(".py")).is_file() and node.module:
        return [folder.with_suffix(".py").as_posix()]
    names = [(folder / a.name).with_suffix(".py") for a in node.names]
    return [
        n.as_posix() if (root / n).is_file() else (folder / "__init__.py").as_posix() for n in names
    ]


def is_contract(node: ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a signature with only a docstring, as in a Protocol."""
    return (
        len(node.body) == 1
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    )


def test_pure_modules_are_pure() -> None:
    files = pure_files(ROOT)
    names = {f.relative_to(ROOT).as_posix() for f in files}
    assert {
        "protocol/wire/codec.py",
        "db/events/job_fold.py",
        "supervisor/core/decide.py",
        "agent/session/state_machine.py",
    } <= names
    assert [line for f in files for line in impurities(f, ROOT)] == []


@pytest.mark.parametrize(
    "place", ["protocol/ids.py", "db/events/job_fold.py", "supervisor/core/decide.py"]
)
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import time", "imports time"),
        ("import os.path as p", "imports os.path"),
        ("from random import choice", "imports random.choice"),
        ("from urllib import request", "imports urllib.request"),
        ("def f():\n    import socket", "imports socket"),
        ("def f(p):\n    return open(p).read()", "calls open()"),
        ("def f():\n    print(1)", "calls print()"),
        ("async def f():\n    await f()", "awaits"),
    ],
)
def test_a_planted_impurity_is_found(
    tmp_path: pathlib.Path, place: str, line: str, what: str
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(
        (ROOT / place).read_text(encoding="utf-8") + "\n" + line + "\n", encoding="utf-8"
    )
    assert any(found.endswith(what) for found in impurities(path, tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        "from ...runtime.clock import SystemClock",
        "from ...runtime import clock",
        "from .. import hub",
    ],
)
def test_reaching_an_impure_module_of_ours_is_found(tmp_path: pathlib.Path, line: str) -> None:
    for name in ("runtime/clock.py", "supervisor/connections/hub.py", "supervisor/core/planted.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    path = tmp_path / "supervisor/core/planted.py"
    path.write_text(line + "\n")
    assert len(impurities(path, tmp_path)) == 1
