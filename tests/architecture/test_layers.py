"""Import layers: a module may import only from layers below its own. The import-linter contracts in
pyproject.toml define the layers.
"""

import pathlib
import shutil
import subprocess
import sys

import pytest

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


@pytest.fixture
def house(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the product without its tests, in which a test can plant a wrong import."""
    package = tmp_path / "jobscribe"
    package.mkdir()
    shutil.copy(ROOT / "__init__.py", package)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in PRODUCT:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_product_keeps_its_floors() -> None:
    done = lint(ROOT / ".types", ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_an_agent_may_import_apps_and_nothing_else_of_its_floor(house: pathlib.Path) -> None:
    (house / "jobscribe/agent/jobs/planted.py").write_text(
        "from ... import apps\nfrom ...apps import __doc__ as about\n"
    )
    done = lint(house, house / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("place", "line", "contract"),
    [
        ("protocol", "from ..runtime import clock", "Floors"),
        ("runtime", "from ..service import settings", "Floors"),
        ("db", "from ..drivers import contracts", "Floors"),
        ("apps", "from ..agent import __doc__ as about", "Floors"),
        ("web", "from ..supervisor import __doc__ as about", "Floors"),
        ("supervisor", "from ..cli import __doc__ as about", "Floors"),
        ("drivers", "from ..service import settings", "service is for the server processes only"),
        ("agent", "import click", "An agent needs"),
        ("agent", "import prometheus_client", "An agent needs"),
        ("agent", "import psutil", "An agent needs"),
        ("runtime", "import pykern.pkdebug", "An agent needs"),
        ("supervisor", "import pykern.pkdebug", "pykern is used in service only"),
    ],
)
def test_a_planted_import_is_found(
    house: pathlib.Path, place: str, line: str, contract: str
) -> None:
    (house / f"jobscribe/{place}/planted.py").write_text(line + "\n")
    done = lint(house, house / "pyproject.toml")
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [
        row for row in done.stdout.splitlines() if row.startswith(contract) and " BROKEN" in row
    ]
    assert broken, done.stdout
    assert f"jobscribe.{place}.planted" in done.stdout
