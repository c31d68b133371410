"""The wheel installs the whole product and nothing else, under one package name. An agent runs with
three packages.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

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
    "router",
    "runtime",
    "schema",
    "service",
    "supervisor",
    "web",
)
AGENT_PACKAGES = {"tornado", "msgpack", "msgspec"}
VERSION = next(
    line.split('"')[1]
    for line in (ROOT / "protocol/version.py").read_text(encoding="utf-8").splitlines()
    if line.startswith("VERSION = ")
)


def run(*args: str | pathlib.Path, code: int = 0, **env: str) -> str:
    """Return the stdout of a command run in `/` with a minimal environment."""
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        list(map(str, args)), cwd="/", env=kept | env, capture_output=True, text=True, timeout=220
    )
    assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_every_module_of_the_product_and_nothing_else(built: Any) -> None:
    product = {
        "__init__.py",
        "py.typed",
        "service/site/exit_table.yml",
        *(n for n in built.tree if n.endswith(".py") and n.split("/")[0] in PRODUCT),
    }
    product |= {n for n in built.tree if n.startswith(("web/static/", "etc/systemd/"))}
    product |= {n for n in built.tree if re.fullmatch(r"docs/[^/]+\.md", n)}
    info = f"jobscribe-{VERSION}.dist-info/"
    packed = {n for n in built.names if not n.startswith(info)}
    assert packed == {f"jobscribe/{n}" for n in product}
    assert {n.removeprefix(info) for n in built.names} >= {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
    }


def test_every_python_file_of_the_tree_is_product_test_or_tooling(built: Any) -> None:
    homes = {*PRODUCT, "tests", "etc", "docs"}
    assert [
        n
        for n in built.tree
        if n.endswith(".py")
        and n.split("/")[0] not in homes
        and n not in ("__init__.py", "setup.py")
    ] == []
    assert not any(n in ("conftest.py", "tests/__init__.py") for n in built.tree)


def test_no_folder_or_root_module_is_named_like_one_of_the_standard_library(built: Any) -> None:
    names = {n.split("/")[0].removesuffix(".py") for n in built.tree if not n.startswith(".")}
    assert names & set(sys.stdlib_module_names) == set()
    assert set(PRODUCT) <= names


def test_the_source_archive_can_be_built_and_tested_from(built: Any) -> None:
    wanted = {
        n
        for n in built.tree
        if n.split("/")[0] in {*PRODUCT, "tests", "etc", "docs"}
        or n in ("setup.py", "pyproject.toml", "Makefile", "README.md")
    }
    assert wanted - set(built.source_names) == set()
    assert [n for n in built.source_names if "__pycache__" in n or n.startswith(".venv")] == []


def test_an_agents_environment_has_three_packages_and_jobscribe(agent_python: pathlib.Path) -> None:
    listed = run(
        agent_python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"
    )
    assert {line.partition("=")[0] for line in listed.splitlines()} - {
        "pip",
        "setuptools",
    } == AGENT_PACKAGES | {"jobscribe"}


@pytest.mark.parametrize("module", PRODUCT)
def test_none_of_our_folders_is_importable_by_its_own_name(
    agent_python: pathlib.Path, module: str
) -> None:
    """The product must neither hide nor overwrite a user's own `db` or PyPI's `supervisor`."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is not None)"
    run(agent_python, "-c", code)
    run(agent_python, "-c", f"import jobscribe.{module}")


def modules_after(python: pathlib.Path, code: str) -> set[str]:
    """Return the top-level modules outside the standard library that are loaded after this code."""
    tail = "import sys; print(*sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'__main__', 'cython_runtime'}))"
    return {
        m
        for m in run(python, "-c", f"{code}\n{tail}").split()
        if not m.startswith(("_", "sitecustomize"))
    }


def test_all_that_an_agent_is_made_of_loads_with_its_three_packages(
    agent_python: pathlib.Path,
) -> None:
    code = (
        "import importlib, pkgutil\n"
        "for top in ('agent', 'apps', 'protocol', 'runtime'):\n"
        "    package = importlib.import_module('jobscribe.' + top)\n"
        "    for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not (m.name.endswith('__main__') or '.staged.' in m.name):\n"
        "            importlib.import_module(m.name)\n"
    )
    loaded = modules_after(agent_python, code)
    assert {"jobscribe", "tornado"} <= loaded <= AGENT_PACKAGES | {"jobscribe"}


def test_a_keeper_loads_the_standard_library_only(agent_python: pathlib.Path) -> None:
    assert modules_after(agent_python, "import jobscribe.agent.keeper") == {"jobscribe"}


@pytest.mark.parametrize("module", ["jobscribe.agent", "jobscribe.agent.keeper"])
def test_agent_and_keeper_explain_themselves(agent_python: pathlib.Path, module: str) -> None:
    assert "usage" in run(agent_python, "-m", module, "--help").lower()


@pytest.fixture(scope="session")
def server_python(built: Any, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the interpreter of a clean environment with the wheel and the dependencies of the test
    environment, without its editable jobscribe.
    """
    place = tmp_path_factory.mktemp("server")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    python = place / "bin/python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        built.wheel,
    )
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    pathlib.Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_installed_command_runs_from_anywhere(
    server_python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    where = run(server_python, "-c", "import jobscribe; print(jobscribe.__file__)").strip()
    assert where.startswith(str(server_python.parent.parent)), "this is not the installed one"
    command = server_python.parent / "jobscribe"
    assert "submit" in run(command, "job", "--help")
    assert "supervisor.port" in run(command, "config", "show", "--root", str(tmp_path))


def test_the_metadata_says_what_is_needed(server_python: pathlib.Path) -> None:
    code = "from importlib.metadata import metadata; m = metadata('jobscribe'); print(m['Version']); print(*m.get_all('Requires-Dist'), sep='\\n')"
    version, *needs = run(server_python, "-c", code).splitlines()
    assert version == VERSION
    base = {re.split("[<>=]", n)[0] for n in needs if "extra ==" not in n}
    assert base == AGENT_PACKAGES | {
        "aiofiles",
        "click",
        "flask",
        "google-re2",
        "httpcore[asyncio]",
        "itsdangerous",
        "packaging",
        "prometheus-client",
        "psutil",
        "pykern",
        "pyyaml",
        "rich",
        "waitress",
    }


def test_the_installed_package_is_typed(
    server_python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    site = run(
        server_python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).strip()
    cache = tmp_path / "cache"
    if (ROOT / ".mypy_cache").is_dir():  # reuse the type cache of `make lint` for other packages
        shutil.copytree(ROOT / ".mypy_cache", cache)
    run(
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        ROOT / "pyproject.toml",
        "--cache-dir",
        cache,
        "-p",
        "jobscribe",
        MYPYPATH=site,
    )
