"""Known vulnerabilities of the locked versions, from the advisories of PyPI or OSV (`make audit`).

    audit.py [LOCK...]    names of lock files (server, development)

Exit status: 0 if every version was looked up and none has an advisory; 1 if one has; 2 if a version
could not be looked up. Without a source of advisories nothing is known, so that is never 0.
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

import lock

#: Sources of advisories, in the order in which they are asked.
SOURCES = ("pypi", "osv")


def audit(program: str, name: str) -> int:
    skipped: list[str] = []
    for source in SOURCES:
        rows = _ask(program, name, source)
        if rows is None:
            continue
        skipped = [row["name"] for row in rows if "skip_reason" in row]
        bad = [row for row in rows if row.get("vulns")]
        for row in bad:
            for found in row["vulns"]:
                fixed = ", ".join(found["fix_versions"]) or "no version yet"
                _say(f"{name}: {row['name']} {row['version']} has {found['id']}; fixed in {fixed}")
        if bad:
            _say(f"{name}: raise these versions with `make lock UPGRADE=1`")
            return 1
        if rows and not skipped:
            _say(f"{name}: none of its {len(rows)} versions has an advisory in {source}")
            return 0
    what = f"no advisories for {len(skipped)} versions" if skipped else "no advisories at all"
    _say(
        f"{name}: not audited: {what} could be fetched from {' or '.join(SOURCES)}. "
        "This says nothing about vulnerabilities: run `make audit` where one of them can be reached"
    )
    return 2


def _ask(program: str, name: str, source: str) -> list[dict[str, Any]] | None:
    """Return a row for each version, or None if the source gives no answer."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [program, "--requirement", str(lock.path(name)), "--no-deps", "--disable-pip"]
        command += ["--vulnerability-service", source, "--progress-spinner", "off"]
        command += ["--format", "json", "--output", out.name]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        try:
            rows: list[dict[str, Any]] = json.load(out)["dependencies"]
        except (ValueError, KeyError):
            return None
    return rows


def _say(sentence: str) -> None:
    sys.stdout.write(f"audit: {sentence}\n")


if __name__ == "__main__":
    tool = lock.tool("pip-audit", "pip-audit>=2.7")
    results = [audit(tool, name) for name in sys.argv[1:] or ("server", "development")]
    sys.exit(1 if 1 in results else max(results))
