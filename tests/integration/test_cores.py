"""`--core` on a real site: a Python program that crashes in native code, and what its user reads,
copies and prints afterwards. Another user gets the answer for a job that does not exist.
"""

import hashlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from shell_user import client_of
from supervisor_process import UID, SupervisorProcess, jid_of, spec

from jobscribe.client.api.errors import ClientError
from jobscribe.protocol.jobs.core_report import CoreFile
from jobscribe.runtime.cores import core_pattern

_target = core_pattern.parse(Path(core_pattern.PATTERN).read_text(), False)
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        _target.kind != "file"
        or _target.absolute
        or 0 <= resource.getrlimit(resource.RLIMIT_CORE)[1] < 1 << 26,
        reason="this machine writes no core files into working directories",
    ),
]
OTHER = "Fgtr5tyH"
PROGRAM = """import ctypes
SECRET = "canary-of-the-memory"
def solve(mesh):
    return ctypes.string_at(0)
solve(SECRET)
"""


def test_a_crash_in_native_code_is_explained_by_its_frames_and_its_core_can_be_copied(
    shared: SupervisorProcess,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from jobscribe.cli.main import call

    program = tmp_path / "solver.py"
    program.write_text(PROGRAM)
    run = spec([sys.executable, "-u", str(program)], coreBytes=1 << 28)
    said = shared.finished(run)
    assert said["exit"]["signal"] == 11
    report = said["exit"]["core"]
    assert (report["state"], report["tool"]) == ("kept", "pystack"), report
    assert "canary" not in json.dumps(said)
    why = shared.post("job-why", uid=UID, computeJid=jid_of(run))
    assert "called from __init__.py" in why["sentence"] or "solver.py:4" in why["sentence"]
    assert any("solver.py:4" in json.dumps(f) or f["function"] == "solve" for f in report["frames"])

    with client_of(shared, UID) as mine, client_of(shared, OTHER) as other:
        (task,) = mine.tasks(jid_of(run))["tasks"]
        file = CoreFile(name=task["exit"]["core"]["files"][0]["name"], size=1)
        with pytest.raises(ClientError) as theirs:
            other.get_core(jid_of(run), file, tmp_path / "no")
        with pytest.raises(ClientError) as missing:
            other.get_core(f"{UID}-missing1-command", file, tmp_path / "no")
        assert theirs.value.code == missing.value.code
        for name in ("../exit.json", "core.0", "cores.json"):
            with pytest.raises(ClientError, match="no core file"):
                mine.get_core(jid_of(run), CoreFile(name=name, size=1), tmp_path / "no")
    monkeypatch.setenv("JOBSCRIBE_URL", shared.url)
    monkeypatch.setenv("JOBSCRIBE_SECRET", shared.token)
    monkeypatch.setenv("HOME", str(tmp_path))

    def typed(*words: str) -> Any:
        capfd.readouterr()
        code = call([*words, "--json", "--uid", UID])
        out, err = capfd.readouterr()
        assert code == 0, err
        return json.loads(out)

    (item,) = typed("core", "list", jid_of(run))["items"]
    local = tmp_path / "core"
    part = tmp_path / "parts"
    part.mkdir()
    typed("core", "fetch", jid_of(run), "-o", str(local))
    assert hashlib.sha256(local.read_bytes()).hexdigest() == item["sha256"]
    assert local.stat().st_mode & 0o777 == 0o600
    assert typed("core", "fetch", jid_of(run), "1", "-o", str(local))["note"]
    stack = typed("core", "stack", jid_of(run))
    assert [f["function"] for f in stack["frames"]][1:] == ["solve", "<module>"]
