"""Plant each bug of mutants.toml alone in a copy of the tree, and check that the named test fails.

`python tests/chaos/mutants.py` plants all bugs and writes MUTANTS.md. `--only WORD` plants those
with the word in guarantee, name, file or test, and updates their rows in MUTANTS.md; the option may
be repeated. `--jobs N` plants N bugs in parallel. The exit status is 1 if a test missed a bug.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
PAGE = Path(__file__).with_name("MUTANTS.md")
#: Timeout in seconds. A test that hangs because of the bug has caught it.
SECS = 600
#: pytest's exit codes
FAILED, PASSED = 1, 0


class Mutant(NamedTuple):
    """One planted bug. `old` occurs exactly once in the file and is replaced by `new`; `test` is
    the pytest name of the test that must fail.
    """

    guarantee: str
    name: str
    file: str
    old: str
    new: str
    test: str


class Outcome(NamedTuple):
    mutant: Mutant
    caught: bool
    secs: float
    said: str


def read() -> list[Mutant]:
    return [Mutant(**m) for m in tomllib.loads(LIST.read_text())["mutant"]]


def misfit(mutant: Mutant) -> str | None:
    """Return why the bug cannot be planted any more, or None."""
    path = TREE / mutant.file
    if not path.is_file():
        return f"{mutant.file} is not there"
    text = path.read_text()
    if (n := text.count(mutant.old)) != 1:
        return f"its old text stands {n} times in {mutant.file}"
    if path.suffix == ".py":
        try:
            ast.parse(text.replace(mutant.old, mutant.new))
        except SyntaxError as e:
            return f"with it, {mutant.file} is no Python: {e}"
    if not (TREE / mutant.test.partition("::")[0]).is_file():
        return f"{mutant.test.partition('::')[0]} is not there"
    return None


def plant(mutant: Mutant) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        tree = Path(place) / "tree"
        _copy(tree)
        path = tree / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        began = time.monotonic()
        code, said = _pytest(tree, mutant.test)
        return Outcome(mutant, code == FAILED, time.monotonic() - began, said)


def _copy(to: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=TREE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, listed):
        if (TREE / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, to / name)
    (to / ".types").mkdir()
    (to / ".types" / "jobscribe").symlink_to("..")


def _pytest(tree: Path, test: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *test.split()],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=SECS,
            env={**os.environ, "PYTHONPATH": str(tree / ".types"), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"not over within {SECS} s"
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    ] or done.stdout.splitlines()[-3:]
    return done.returncode, " ".join(lines)[:300]


def row(o: Outcome) -> str:
    caught = "yes" if o.caught else "**no**"
    return f"| {o.mutant.guarantee} | {o.mutant.name} | `{o.mutant.file}` | `{o.mutant.test.split()[0]}` | {caught} | {o.secs:.0f} |"


def page(old: str, outcomes: list[Outcome]) -> str:
    """Return the text of MUTANTS.md: the rows of these outcomes, and those of the old page for the
    other bugs of mutants.toml, in its order.
    """
    found = {_key(o.mutant): row(o) for o in outcomes}
    rows = []
    for key in map(_key, read()):
        earlier = [line for line in old.splitlines() if line.startswith(key)]
        rows += [found[key]] if key in found else earlier
    caught = sum(line.split(" | ")[-2] == "yes" for line in rows)
    return "\n".join(
        [
            "# Bugs that were planted",
            "",
            "Written by `python tests/chaos/mutants.py`; the bugs are in mutants.toml. Each was planted alone in a copy of the tree.",
            "",
            f"{caught} of {len(rows)} were caught.",
            "",
            "| guarantee | bug | in | test | caught | seconds |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _key(mutant: Mutant) -> str:
    """Return the start of the bug's row."""
    return f"| {mutant.guarantee} | {mutant.name} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    words = args.only or [""]
    mutants = [
        m for m in read() if any(w in f"{m.guarantee} {m.name} {m.file} {m.test}" for w in words)
    ]
    outcomes = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for n, o in enumerate(pool.map(plant, mutants), 1):
            print(
                f"{n}/{len(mutants)} {'caught' if o.caught else 'NOT CAUGHT'} in {o.secs:.0f} s: {o.mutant.guarantee} {o.mutant.name}",
                flush=True,
            )
            if not o.caught:
                print(f"    {o.said}", flush=True)
            outcomes.append(o)
    PAGE.write_text(page(PAGE.read_text() if args.only else "", outcomes))
    return 0 if all(o.caught for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
