"""Build the wheel and the source archive once, from a copy of the files that git tracks."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Built(NamedTuple):
    wheel: pathlib.Path
    names: list[str]
    source_names: list[str]
    tree: list[str]


def run(*args: str | pathlib.Path, cwd: pathlib.Path, **env: str) -> str:
    """Return the stdout of a command that must succeed. Its environment is `env` plus the variables
    that pip needs to reach its index.
    """
    kept = {
        k: v
        for k, v in os.environ.items()
        if k in ("PATH", "HOME", "LANG")
        or k.startswith(("PIP_", "SSL_", "http", "HTTP", "no_proxy"))
    }
    done = subprocess.run(
        list(map(str, args)), cwd=cwd, env=kept | env, capture_output=True, text=True, timeout=220
    )
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def listed() -> list[str]:
    """Return the files that git tracks. In an unpacked source archive without git, return all files
    except those that tools create.
    """
    if (ROOT / ".git").exists():
        return run(
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            cwd=ROOT,
        ).splitlines()
    made = {"__pycache__", "build", "dist", "jobscribe.egg-info", "PKG-INFO", "setup.cfg"}
    paths = (p.relative_to(ROOT) for p in ROOT.rglob("*"))
    return [
        p.as_posix()
        for p in paths
        if not any(part.startswith(".") or part in made for part in p.parts)
    ]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("build")
    tree = sorted(name for name in listed() if (ROOT / name).is_file())
    for name in tree:
        (place / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "tree" / name)
    code = "import setuptools.build_meta as b; b.build_wheel('../out'); b.build_sdist('../out')"
    (place / "out").mkdir()
    run(sys.executable, "-c", code, cwd=place / "tree")
    (wheel,) = (place / "out").glob("*.whl")
    (source,) = (place / "out").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as z:
        names = sorted(z.namelist())
    with tarfile.open(source) as t:
        source_names = sorted(m.name.partition("/")[2] for m in t.getmembers() if m.isfile())
    return Built(wheel, names, source_names, tree)


@pytest.fixture(scope="session")
def agent_python(built: Built, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the interpreter of a clean environment, made with the commands of
    docs/agent-install.md, but with the wheel built here.
    """
    place = tmp_path_factory.mktemp("agent")
    text = (ROOT / "docs/agent-install.md").read_text(encoding="utf-8")
    recipe = text.split("```sh\n")[1].split("```")[0]
    assert recipe.count("--no-deps jobscribe\n") == 1
    script = recipe.replace("python3 ", f"{sys.executable} ").replace(
        "--no-deps jobscribe\n", f"--no-deps {built.wheel}\n"
    )
    run("sh", "-ec", script, cwd=place)
    return place / "jobscribe-agent/bin/python"
