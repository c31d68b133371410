"""The lock files pin what setup.py requires, with hashes, for every Python and index; the audit never
takes silence for good news.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "etc/requirements").glob("*.lock"))
#: Writes `rows.json` of the source as the real program does; writes nothing without that file.
STUB = """#!{python}
import pathlib, sys
source = sys.argv[sys.argv.index("--vulnerability-service") + 1]
rows = pathlib.Path(__file__).with_name(source + ".json")
if not rows.exists():
    sys.exit("cannot connect")
pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).write_text(rows.read_text())
"""


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copy(ROOT / "setup.py", tmp_path)
    shutil.copytree(
        ROOT / "etc/requirements",
        tmp_path / "etc/requirements",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path


def run(tree: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a Python that has no packages."""
    program, *rest = arguments
    return subprocess.run(
        [sys.executable, "-S", tree / "etc/requirements" / program, *rest],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_lock_files_fit_setup_py(tree: pathlib.Path) -> None:
    done = run(tree, "lock.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_changed_requirement_is_noticed_for_each_file_that_has_it(tree: pathlib.Path) -> None:
    text = (tree / "setup.py").read_text()
    (tree / "setup.py").write_text(text.replace('"docker>=7.1"', '"docker>=7.2"'))
    done = run(tree, "lock.py", "--check")
    assert done.returncode == 1 and "make lock" in done.stderr
    assert [n for n in ("development", "server", "agent", "bench") if n in done.stderr] == [
        "development",
        "server",
    ]


def test_every_version_has_a_hash_and_no_file_names_an_index() -> None:
    assert len(LOCKS) == 5
    for path in LOCKS:
        text = path.read_text(encoding="utf-8")
        assert "://" not in text and "--index" not in text, path
        pins = re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE)[1:]
        assert pins and not [p for p in pins if "==" not in p or "--hash=sha256:" not in p], path


def test_the_lock_files_agree_about_each_version() -> None:
    """Snakemake has an environment of its own, because it needs other versions."""
    seen: dict[str, set[str]] = {}
    for path in LOCKS:
        if path.stem == "snakemake":
            continue
        found: dict[str, list[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"([A-Za-z][\w.-]*)==(\S+)", line):
                found.setdefault(match[1], []).append(match[2])
        for name, versions in found.items():
            assert seen.setdefault(name, set(versions)) == set(versions), (name, path)


FINE = {"name": "tornado", "version": "6.6", "vulns": []}
BAD = FINE | {"vulns": [{"id": "PYSEC-1", "fix_versions": ["6.7"]}]}
SKIPPED = {"name": "tornado", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("pypi", "osv", "code", "sentence"),
    [
        ([FINE], None, 0, "none of its 1 versions has an advisory in pypi"),
        ([BAD], [FINE], 1, "tornado 6.6 has PYSEC-1; fixed in 6.7"),
        ([FINE, SKIPPED], [FINE, FINE], 0, "none of its 2 versions has an advisory in osv"),
        ([SKIPPED], [BAD], 1, "PYSEC-1"),
        ([SKIPPED], None, 2, "says nothing about vulnerabilities"),
        (None, [SKIPPED, FINE], 2, "no advisories for 1 versions"),
        (None, None, 2, "no advisories at all"),
        ([], [], 2, "no advisories at all"),
    ],
)
def test_an_audit_without_answers_is_no_good_news(
    tree: pathlib.Path, pypi: object, osv: object, code: int, sentence: str
) -> None:
    program = tree / "build/tools/pip-audit/bin/pip-audit"
    program.parent.mkdir(parents=True)
    program.write_text(STUB.format(python=sys.executable))
    program.chmod(0o755)
    for name, rows in (("pypi", pypi), ("osv", osv)):
        if rows is not None:
            program.with_name(f"{name}.json").write_text(json.dumps({"dependencies": rows}))
    done = run(tree, "audit.py", "agent")
    assert done.returncode == code and sentence in done.stdout, done.stdout + done.stderr


def test_known_vulnerabilities_outweigh_what_is_not_known(tree: pathlib.Path) -> None:
    program = tree / "build/tools/pip-audit/bin/pip-audit"
    program.parent.mkdir(parents=True)
    program.write_text(
        STUB.format(python=sys.executable).replace(
            "if not rows.exists()", "if 'agent.lock' not in ' '.join(sys.argv)"
        )
    )
    program.chmod(0o755)
    program.with_name("pypi.json").write_text(json.dumps({"dependencies": [BAD]}))
    assert run(tree, "audit.py", "agent", "bench").returncode == 1
