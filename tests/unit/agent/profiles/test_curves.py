"""Curves from the agent's samples: their format, their bounds, and what is said without one."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jobscribe.agent.profiles import curves as module
from jobscribe.agent.profiles.curves import Curves
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.profiling import plain_stacks
from jobscribe.protocol.launch.job_script import export_lines
from jobscribe.protocol.wire.messages import Sample, TaskSpec

TOKEN = Token("SystemU1-s1-command", 17, 1, "main", 0)


@pytest.fixture
def place(tmp_path: Path) -> SimpleNamespace:
    (tmp_path / "run" / TOKEN.name).mkdir(parents=True)
    curves = Curves(tmp_path / "run", MagicMock())
    folder = tmp_path / "work" / "jobscribe-profiles" / "17-1-main-0"
    return SimpleNamespace(curves=curves, folder=folder, evidence=tmp_path / "run" / TOKEN.name)


def start(place: SimpleNamespace, profile: str) -> None:
    run_dir = str(place.folder.parent.parent)
    spec = TaskSpec(command=("x",), run_dir=run_dir, profile=profile)
    place.curves.launch(TOKEN, spec)
    place.curves.running(TOKEN, 1)


def sample(at: float, **fields: float) -> Sample:
    none = dict.fromkeys(f for f in Sample.__struct_fields__ if f not in ("token", "at"))
    return Sample(**{**none, "token": TOKEN, "at": at, **fields})  # type: ignore[arg-type]


def test_memory_is_a_file_of_mprof_and_goes_on_after_a_restart(place: SimpleNamespace) -> None:
    start(place, "mem")
    place.curves.sampled([sample(5.0, memory_bytes=2**20), sample(6.0)])
    assert (place.evidence / "profiled").exists()
    again = Curves(place.evidence.parent, MagicMock())
    variables = {"JOBSCRIBE_PROFILE": "mem=samples", "JOBSCRIBE_PROFILE_DIR": str(place.folder)}
    (place.evidence / "script.sh").write_text("#!/bin/sh\n" + export_lines(variables))
    (place.evidence / "profiled").unlink()  # the earlier agent ended between start and mark
    again.recover(TOKEN)
    assert (place.evidence / "profiled").exists()
    again.sampled([sample(10.0, memory_bytes=3 * 2**20)])
    again.ended(TOKEN)
    file = place.folder / "mem-samples.dat"
    assert file.read_text() == (f"CMDLINE {TOKEN.jid}\nMEM 1.000000 5.0000\nMEM 3.000000 10.0000\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in place.folder.iterdir()] == [file.name]


def test_a_missing_curve_has_a_reason(place: SimpleNamespace) -> None:
    start(place, "gpu")
    place.curves.sampled([sample(5.0, memory_bytes=1)])
    place.curves.ended(TOKEN)
    (note,) = place.folder.iterdir()
    assert "no GPU usage of the job is known" in note.read_text()
    start(place, "mem")
    place.curves.ended(TOKEN)
    text = (place.folder / "unavailable-mem-samples.txt").read_text()
    assert "before its first sample" in text


def test_gpus_are_recorded_and_a_file_is_bounded(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.profiling, "FILE_BYTES", 100)
    start(place, "gpu")
    for at in range(100):
        place.curves.sampled([sample(at, gpu_percent=50.0, gpu_memory_bytes=2**30)])
    lines = (place.folder / "gpu-samples.dat").read_text().splitlines()
    assert lines[1] == "GPU 50.0 1024.000 0.0000" and len(lines) == 3
    place.curves.ended(TOKEN)


def test_the_script_of_an_unprofiled_job_and_hostile_ones_mean_no_profile(
    place: SimpleNamespace,
) -> None:
    for text in ("", "export JOBSCRIBE_PROFILE='mem=x'\nexport JOBSCRIBE_PROFILE_DIR='/x'\n"):
        (place.evidence / "script.sh").write_text(text)
        place.curves.recover(TOKEN)
        place.curves.sampled([sample(5.0, memory_bytes=1)])
        place.curves.ended(TOKEN)
    assert not place.folder.exists()


def test_py_spys_command_lines_are_left_out() -> None:
    raw = b'process 7:"python -c x = 1\npassword 2";main (x.py:1);f (x.py:3) 12\nprocess 7:"a";g 3\n\n'
    assert plain_stacks(raw) == b"process 7;main (x.py:1);f (x.py:3) 12\nprocess 7;g 3\n"


@pytest.mark.process
def test_files_and_messages_of_py_spy_are_bounded(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = place.evidence / "py-spy"
    flood.write_text(
        "#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' 'm' >&2\n"
        'n=0; while [ $((n += 1)) -lt 999 ]; do echo "main (x.py:1) 7" || exit; done >>"${11}"\n'
    )
    flood.chmod(0o700)
    monkeypatch.setattr(module.profiling, "FILE_BYTES", 1000)
    monkeypatch.setattr(module.shutil, "which", lambda name: str(flood))
    sizes: list[int] = []

    def plain_stacks(raw: bytes) -> bytes:
        sizes.extend((len(raw), *(p.stat().st_size for p in place.folder.glob("*.collapsed"))))
        return b""

    monkeypatch.setattr(module.profiling, "plain_stacks", plain_stacks)
    curve = module._Curve(module.Profile("cpu", "py-spy"), str(place.folder))
    module._spy(curve, 1, MagicMock())
    assert sizes == [1000, 1000]
    note = (place.folder / "unavailable-cpu-py-spy.txt").read_text()
    assert "recorded nothing: mmm" in note and len(note) < 700
