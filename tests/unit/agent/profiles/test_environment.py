"""The environment of a job with a profile, alone and together with the debugger."""

from pathlib import Path

import msgspec

from jobscribe.agent.breakpoints import environment as breakpoints
from jobscribe.agent.profiles import environment
from jobscribe.agent.profiles.environment import STAGED, stage, with_profiler
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.messages import TaskSpec

TOKEN = Token("SystemU1-s1-command", 17, 2, "main", 0)
BELOW = {"PYTHONPATH": "/site"}


def spec(profile: str | msgspec.UnsetType, **fields: object) -> TaskSpec:
    given = {"command": ("python", "x.py"), "run_dir": "/run", "profile": profile, **fields}
    return TaskSpec(**given)  # type: ignore[arg-type]


def test_only_processes_that_record_themselves_get_the_modules() -> None:
    folder = "/run/jobscribe-profiles/17-2-main-0"
    for text, path in (
        ("cpu", f"{STAGED}:/site"),
        ("mem=memray", f"{STAGED}:/site"),
        ("mem", None),
    ):
        env = with_profiler(TOKEN, spec(text), BELOW).env
        assert env.get("PYTHONPATH") == path
        assert env["JOBSCRIBE_PROFILE_DIR"] == folder
    assert with_profiler(TOKEN, spec("cpu"), {}).env["JOBSCRIBE_PROFILE"] == "cpu=sampler"
    plain = spec(msgspec.UNSET, env={"A": "b"})
    assert with_profiler(TOKEN, plain, BELOW) is plain


def test_the_debugger_keeps_its_modules() -> None:
    both = spec("cpu", env={"JOBSCRIBE_DEBUG": "on-error", "PYTHONPATH": "/own"})
    found = with_profiler(TOKEN, breakpoints.with_debugger(both, BELOW, "/ev"), BELOW)
    hook = breakpoints.STAGED
    assert found.env["PYTHONPATH"] == f"{STAGED}:{hook / 'on_error'}:{hook}:/own"


def test_a_batch_job_gets_copies_and_samples_itself(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    found = stage(TOKEN, spec("mem", run_dir=run_dir), str(tmp_path))
    assert found.env["JOBSCRIBE_PROFILE"] == "mem=process"
    assert found.wrap[:2] == ("/bin/sh", "-c") and found.wrap[3] == str(tmp_path / "profiler")
    assert {p.name for p in (tmp_path / "profiler").iterdir()} == set(environment._MODULES)
    gpu = spec("gpu", run_dir=run_dir)
    assert stage(TOKEN, gpu, str(tmp_path)) is gpu
    (note,) = Path(run_dir).rglob("*.txt")
    assert note.name == "unavailable-gpu-samples.txt" and "use --profile cpu" in note.read_text()
    assert note.stat().st_mode & 0o777 == 0o600
