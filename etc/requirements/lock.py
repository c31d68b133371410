"""Lock files: the exact versions of all dependencies, with hashes, made from the lists in setup.py.

    lock.py [--upgrade]   write the lock files (`make lock`); needs the package index
    lock.py --check       exit 1 and name the lock files that do not fit setup.py; offline

Without --upgrade a version stays as it is while setup.py allows it. One lock file serves Linux with
every Python from 3.11 on. It names no package index: pip's own configuration selects that.
"""

import argparse
import ast
import hashlib
import os
import pathlib
import subprocess
import sys
import venv
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def _lists() -> dict[str, Any]:
    """Return the constants of setup.py without running it: a bare Python has no setuptools."""
    body = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


SETUP = _lists()
_EXTRAS = SETUP["EXTRAS"]
_PRODUCT = SETUP["AGENT"] + SETUP["SERVER"]
#: Requirements of each lock file. The first one constrains all others to its versions.
LOCKS: dict[str, list[str]] = {
    "development": _PRODUCT + _EXTRAS["test"] + _EXTRAS["check"] + _EXTRAS["docs"],
    "server": _PRODUCT
    + _EXTRAS["docker"]
    + _EXTRAS["gpu"]
    + _EXTRAS["oidc"]
    + _EXTRAS["pam"]
    + _EXTRAS["postgres"]
    + _EXTRAS["sbatch"],
    "agent": SETUP["AGENT"],
    "bench": _EXTRAS["bench"],
    "snakemake": _PRODUCT + _EXTRAS["snakemake"],
}
#: Lock files of environments that need other versions than the first one has.
_FREE = frozenset({"snakemake"})
_MARK = "# sha256 of its requirements in setup.py: "
_LEAST_PYTHON = "3.11"


def path(name: str) -> pathlib.Path:
    return HERE / f"{name}.lock"


def digest(name: str) -> str:
    return hashlib.sha256("\n".join(sorted(LOCKS[name])).encode()).hexdigest()


def stale() -> list[str]:
    """Return the names of the lock files that are missing or were made from other requirements."""
    return [
        name
        for name in LOCKS
        if not path(name).is_file()
        or f"{_MARK}{digest(name)}\n" not in path(name).read_text(encoding="utf-8")
    ]


def write(upgrade: bool) -> None:
    uv = tool("uv", "uv>=0.8")
    for name, requirements in LOCKS.items():
        command = [
            *(uv, "pip", "compile", "-", "--quiet", "--output-file", str(path(name))),
            *("--universal", "--python-version", _LEAST_PYTHON, "--generate-hashes"),
            *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
        ]
        if upgrade:
            command.append("--upgrade")
        first = next(iter(LOCKS))
        if name != first and name not in _FREE:
            command += ["--constraint", str(path(first))]
        text = "".join(f"{line}\n" for line in requirements)
        subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)
        pinned = path(name).read_text(encoding="utf-8")
        path(name).write_text(
            f"# Made by `make lock`. Do not edit.\n{_MARK}{digest(name)}\n{pinned}",
            encoding="utf-8",
        )
        sys.stdout.write(f"{path(name).relative_to(ROOT)}: {pinned.count('==')} versions\n")


def tool(name: str, requirement: str) -> str:
    """Return a program of the package index, installed below build/ if it is not there yet."""
    place = ROOT / "build" / "tools" / name
    program = place / "bin" / name
    if not program.exists():
        venv.create(place, with_pip=True)
        subprocess.run(
            [place / "bin" / "python", "-m", "pip", "install", "--quiet", requirement],
            check=True,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    return str(program)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write or check the lock files.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("--check", action="store_true", help="only compare them with setup.py")
    given = parser.parse_args()
    if not given.check:
        write(given.upgrade)
    if names := stale():
        files = ", ".join(str(path(name).relative_to(ROOT)) for name in names)
        sys.stderr.write(f"setup.py was changed after {files}: run `make lock`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
