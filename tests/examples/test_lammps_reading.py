"""Reading dumps and logs in the LAMMPS plug-in while they are being written, and when they are
large, malformed or missing.
"""

from pathlib import Path

import pytest
from lammps_runs import REPLY_BYTES, frame, run_of, sent

from jobscribe.apps.app import App, AppError


def _dump(atoms: int, frames: int) -> bytes:
    out = []
    for n in range(frames):
        rows = "".join(
            f"{i} 1 {100 + i % 400:.4f} {(i + n) % 300:.4f} 0.0000 0.0000 -{i % 90}.1234\n"
            for i in range(1, atoms + 1)
        )
        out.append(
            f"ITEM: TIMESTEP\n{100 * n}\nITEM: NUMBER OF ATOMS\n{atoms}\nITEM: BOX BOUNDS ss ss pp\n"
            f"0.0 400.0\n0.0 300.0\n-0.2 0.2\nITEM: ATOMS id type x y vx vy c_watched\n{rows}"
        )
    return "".join(out).encode()


def _log(last: int) -> str:
    return "Step Temp E_pair TotEng Press Pxx Pyy Volume\n" + "".join(
        f"{n} 1 2 3 4 5 6 7\n" for n in range(0, last + 1, 100)
    )


def test_a_frame_is_there_when_it_is_whole_and_not_before(app: App, tmp_path: Path) -> None:
    run, text = run_of(tmp_path, steps=400), _dump(3, 4)
    (tmp_path / "log.lammps").write_text(_log(300))
    size = len(text) // 4
    starts = [text.index(b"ITEM: TIMESTEP", n * size - 20 if n else 0) for n in range(4)] + [
        len(text)
    ]
    for at in range(len(text) + 1):
        (tmp_path / "atoms.dump").write_bytes(text[:at])
        whole = sum(1 for end in starts[1:] if end <= at)
        # every third time, so that readers meet an outdated index
        if at % 3 == 0:
            assert app.progress(run)["frameCount"] == whole, at
        if whole:
            assert frame(app, run, "crackAnimation", whole - 1)["y"] == [
                float(i + whole - 1) for i in (1, 2, 3)
            ], at
        with pytest.raises(AppError, match=f": there are {whole} frames"):
            frame(app, run, "crackAnimation", whole)


def test_a_frame_waits_for_its_row_of_the_log(app: App, tmp_path: Path) -> None:
    """LAMMPS writes the positions first. Browsers would cache a curve that lacks its last point."""
    run = run_of(tmp_path, steps=400)
    (tmp_path / "atoms.dump").write_bytes(_dump(3, 3))
    for last, frames in ((-1, 2), (100, 2), (200, 3)):
        (tmp_path / "log.lammps").write_text(_log(last))
        assert app.progress(run)["frameCount"] == frames
    (tmp_path / "log.lammps").write_text(_log(200)[:-1])
    assert app.progress(run)["frameCount"] == 2
    with pytest.raises(AppError):
        frame(app, run, "crackEnergyCurveAnimation", 2)


def test_the_largest_plate_is_shown_with_fewer_atoms_and_says_so(app: App, tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=100, width=400, height=200)
    (tmp_path / "atoms.dump").write_bytes(_dump(161_000, 1))
    (tmp_path / "log.lammps").write_text(_log(0))
    got = frame(app, run, "crackEnergyAnimation", 0)
    assert len(got["x"]) > 10_000 and "(1 of 15 atoms shown)" in got["title"]
    assert 150_000 < sent(got) < REPLY_BYTES


def test_numbers_that_are_none_are_left_out_and_said(app: App, tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=100)
    (tmp_path / "atoms.dump").write_bytes(
        _dump(5, 1).replace(b"-2.1234", b"nan").replace(b"-3.1234", b"-inf")
    )
    (tmp_path / "log.lammps").write_text(_log(200).replace("100 1 2", "100 1 -nan"))
    got = frame(app, run, "crackEnergyAnimation", 0)
    assert (
        len(got["value"]) == len(got["x"]) == 3
        and "2 atoms without a number left out" in got["title"]
    )
    curve = app.analysis["thermodynamics"](run, {"columns": ["epair"]})
    assert curve["x"] == [0, 200] and "1 row without a number left out" in curve["title"]
    assert sent([got, curve]) > 0, "JSON has no NaN"


def test_a_dump_that_is_none_is_said_and_not_guessed(app: App, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (tmp_path / "atoms.dump").write_bytes(b"garbage\n" * 20)
    with pytest.raises(AppError, match=r"atoms\.dump does not have the expected format"):
        app.progress(run)
