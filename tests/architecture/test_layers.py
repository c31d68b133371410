"""Import layers: a module may import only from layers below its own. The import-linter contracts in
pyproject.toml define the layers.
"""

import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process  # import-linter is a program

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = (
    "agent",
    "apps",
    "cli",
    "client",
    "db",
    "diagnosis",
    "drivers",
    "protocol",
    "router",
    "runtime",
    "schema",
    "service",
    "supervisor",
    "web",
)


def lint(folder: pathlib.Path, config: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package `jobscribe` in `folder`."""
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--config", str(config)],
        cwd=config.parent,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
    )


PLANTED = [
    ("protocol", "from ..runtime import clock", "Floors"),
    ("runtime", "from ..service import settings", "Floors"),
    ("db", "from ..drivers import contracts", "Floors"),
    ("apps", "from ..agent import __doc__ as about", "Floors"),
    ("web", "from ..supervisor import __doc__ as about", "Floors"),
    ("supervisor", "from ..router import __doc__ as about", "Floors"),
    ("supervisor", "from ..cli import __doc__ as about", "Floors"),
    ("drivers", "from ..service import settings", "service is for the server processes only"),
    ("agent", "import click", "An agent needs"),
    ("agent", "import prometheus_client", "An agent needs"),
    ("agent", "import psutil", "An agent needs"),
    ("runtime", "import pykern.pkdebug", "An agent needs"),
    ("supervisor", "import pykern.pkdebug", "pykern is used in service only"),
    ("supervisor", "import pickle", "Only clients and jobs unpickle"),
    ("agent", "import cloudpickle", "Only clients and jobs unpickle"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Plant all wrong imports and an allowed one in a copy of the product. Return each broken
    contract with its report.
    """
    house = tmp_path_factory.mktemp("house")
    package = house / "jobscribe"
    package.mkdir()
    shutil.copy(ROOT / "__init__.py", package)
    shutil.copy(ROOT / "pyproject.toml", house)
    for name in PRODUCT:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for number, (place, line, _) in enumerate(PLANTED):
        (package / f"{place}/planted_{number}.py").write_text(line + "\n")
    (package / "agent/jobs/allowed.py").write_text(
        "from ... import apps\nfrom ...apps import __doc__ as about\n"
    )
    done = lint(house, house / "pyproject.toml")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = done.stdout.partition("Broken contracts")[2].splitlines()
    heads = [n for n, row in enumerate(rows[1:]) if row and set(row) == {"-"}]
    return [
        (rows[at], "\n".join(rows[at + 2 : end]))
        for at, end in zip(heads, [*(n - 1 for n in heads[1:]), len(rows)], strict=True)
    ]


def test_the_product_keeps_its_floors() -> None:
    done = lint(ROOT / ".types", ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_an_agent_may_import_apps_and_nothing_else_of_its_floor(
    found: list[tuple[str, str]],
) -> None:
    assert [report for _, report in found if "agent.jobs.allowed" in report] == []


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=lambda n: ": ".join(PLANTED[n][:2]))
def test_a_planted_import_is_found(found: list[tuple[str, str]], number: int) -> None:
    place, _, contract = PLANTED[number]
    reports = [report for name, report in found if name.startswith(contract)]
    assert any(f"jobscribe.{place}.planted_{number} " in report for report in reports), found
