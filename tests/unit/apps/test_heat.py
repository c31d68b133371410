"""`heat`: its physics is verifiable, the same seed gives the same result, and readers see only
complete frames.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobscribe.apps import heat
from jobscribe.apps.app import AppError, Frame, Run
from jobscribe.apps.heat import __main__ as program
from jobscribe.apps.heat import plugin
from jobscribe.apps.json_values import encode
from jobscribe.protocol.jobs import progress_report

pytestmark = pytest.mark.process

Runner = Callable[..., Run]


@pytest.fixture
def ran(tmp_path: Path) -> Runner:
    """Run the program to its end; its reports are in `reports` in the run directory's parent."""

    def run(name: str = "run", **fields: Any) -> Run:
        made = Run(
            run_dir=tmp_path / name,
            lib=tmp_path / "lib",
            model="heatAnimation",
            data={"models": {"heatAnimation": fields}},
        )
        made.run_dir.mkdir()
        prepared = heat.app.prepare(made)
        env = {
            "PATH": os.environ["PATH"],
            "JOBSCRIBE_REPORT": str(tmp_path / "reports"),
            **prepared.env,
        }
        subprocess.run(prepared.command, cwd=made.run_dir, env=env, check=True, capture_output=True)
        return made

    return run


def frame(run: Run, index: int, report: str = "heatAnimation") -> Any:
    return plugin.frame(run, Frame(report=report, index=index))


def test_an_insulated_plate_keeps_its_heat_and_a_cold_edge_takes_it() -> None:
    kept = lost = start = program.start(40, 3, 100.0, seed=7)
    for _ in range(200):
        kept, lost = program.step(kept, 0.225, cold=False), program.step(lost, 0.225, cold=True)
    assert kept.sum() == pytest.approx(start.sum()) and lost.sum() < 0.95 * start.sum()
    assert start.max() == 100.0 > kept.max() > kept.min() > 0


def test_a_wave_decays_as_the_equation_says() -> None:
    size, number = 50, 0.2
    x = (np.arange(size) + 0.5) / size
    plate = start = np.tile(np.cos(np.pi * x), (size, 1))
    for _ in range(400):
        plate = program.step(plate, number, cold=False)
    expected = np.exp(-number * 400 * (np.pi / size) ** 2)
    assert np.abs(plate - expected * start).max() < 1e-3


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_plate(ran: Runner) -> None:
    one, same, other = (
        ran("a", seed=5, frames=3),
        ran("b", seed=5, frames=3),
        ran("c", seed=6, frames=3),
    )
    for name in ("history.csv", "frames/00000.npy", "frames/00002.npy"):
        assert (
            (one.run_dir / name).read_bytes()
            == (same.run_dir / name).read_bytes()
            != (other.run_dir / name).read_bytes()
        )


def test_a_frame_is_what_numpy_wrote(ran: Runner) -> None:
    run = ran(size=30, frames=4)
    picture = frame(run, 2)
    assert (picture["frameIndex"], picture["frameCount"]) == (2, 4)
    assert picture["xRange"] == picture["yRange"] == [0.0, 10.0, 30]
    assert (
        np.abs(np.array(picture["zMatrix"]) - np.load(run.run_dir / "frames" / "00002.npy")).max()
        <= 0.0051
    )
    assert picture["zRange"] == frame(run, 0)["zRange"] == [0.0, 100.0]


def test_a_frame_of_the_usual_size_is_small_and_one_of_the_largest_not_large(ran: Runner) -> None:
    assert 40_000 < len(encode(frame(ran("a", frames=2), 1))) < 130_000
    large = frame(ran("b", frames=2, size=1000, steps=1), 1)
    assert len(large["zMatrix"]) == len(large["zMatrix"][0]) <= plugin.SHOWN
    assert len(encode(large)) < 400_000


def test_curves_lead_up_to_the_frame(ran: Runner) -> None:
    run = ran(frames=6, size=20)
    curves = frame(run, 3, "temperatureAnimation")
    assert len(curves["x"]) == 4 and [len(p["points"]) for p in curves["plots"]] == [4, 4]
    mean, maximum = (p["points"] for p in curves["plots"])
    assert maximum == sorted(maximum, reverse=True) and mean[0] == pytest.approx(mean[-1], rel=1e-4)
    assert (curves["frameIndex"], curves["frameCount"]) == (3, 6)


@pytest.mark.parametrize(
    ("index", "report", "said"),
    [
        (6, "heatAnimation", "there are 6 so far"),
        (-1, "heatAnimation", "frame -1 does not exist"),
        (0, "coldAnimation", "the reports are: heatAnimation, temperatureAnimation"),
    ],
)
def test_a_frame_that_is_not_there_is_refused(
    ran: Runner, index: int, report: str, said: str
) -> None:
    with pytest.raises(AppError, match=said):
        frame(ran(frames=6, size=10, steps=1), index, report)


def test_a_run_that_has_just_begun_has_no_frames(tmp_path: Path) -> None:
    run = Run(run_dir=tmp_path, lib=tmp_path, model="heatAnimation", data={})
    with pytest.raises(AppError, match="there are 0 so far"):
        frame(run, 0)
    (tmp_path / "history.csv").write_text("frame,time,mean,maximum\n0,0,1,2")
    with pytest.raises(AppError, match="there are 0 so far"):
        frame(run, 0)


def test_a_frame_is_there_as_a_whole_before_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frames").mkdir()
    run = Run(run_dir=tmp_path, lib=tmp_path, model="heatAnimation", data={})
    save, looks = np.save, []

    def half(file: Any, plate: Any) -> None:
        looks.append(
            (len(plugin._history(run)), [p.name for p in (tmp_path / "frames").glob("*.npy")])
        )
        save(file, plate)

    monkeypatch.setattr(program.np, "save", half)
    output = program.Output(2)
    for index in range(2):
        output.write(index, 0.5 * index, program.start(10, 1, 5.0, seed=1))
    assert looks == [(0, []), (1, ["00000.npy"])]
    assert frame(run, 1)["frameCount"] == 2
    output._history.close()


def test_a_frame_that_somebody_spoiled_is_said(ran: Runner) -> None:
    run = ran(frames=2, size=10)
    path = run.run_dir / "frames" / "00001.npy"
    for data in (b"", path.read_bytes()[:-1], b"\x80" * 500):
        path.write_bytes(data)
        with pytest.raises(AppError, match="not a frame that heat has written"):
            frame(run, 1)


def test_the_program_says_how_far_it_is(ran: Runner, tmp_path: Path) -> None:
    ran(frames=5, size=10, steps=1)
    said = [
        progress_report.parse(line) for line in (tmp_path / "reports").read_bytes().splitlines()
    ]
    assert said[0] == {"frameCount": 1, "frameTotal": 5, "percentComplete": 20.0}
    assert said[-1] == {"frameCount": 5, "frameTotal": 5, "percentComplete": 100.0}


def test_analysis_and_downloads(ran: Runner) -> None:
    run = ran(frames=5, size=20)
    assert plugin.hottest(run, {})["maximum"] == {"temperature": 100.0, "time": 0.0, "frame": 0}
    assert plugin.download(run, "") == "history.csv"
    assert (
        [plugin.download(run, name) for name in heat.app.downloads(run)]
        == list(heat.app.downloads(run))
        == ["history.csv"]
    )
    assert (run.run_dir / plugin.download(run, "npy")).name == "00004.npy"
    with pytest.raises(AppError, match="the downloads are: csv"):
        plugin.download(run, "exe")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"size": 9}, "between 10 and 1000"),
        ({"size": 10.5}, "of type int"),
        ({"diffusivity": float("nan")}, "between 0.001 and 20 cm2/s"),
        ({"edge": "hot"}, "one of insulated, cold"),
        ({"seed": True}, "of type int"),
        ({"paceSecs": 61}, "between 0 and 60 s"),
    ],
)
def test_what_cannot_be_computed_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said):
        heat.app.parameters({"models": {"heatAnimation": fields}}, "heatAnimation")


def test_without_numpy_the_user_is_told_what_to_install(
    ran: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AppError, match=r"pip install 'jobscribe\[heat\]'"):
        ran()


def test_the_parameters_are_complete_and_plain() -> None:
    given = heat.app.parameters(
        {"models": {"heatAnimation": {"size": 50, "diffusivity": 2}}}, "heatAnimation"
    )
    assert given == {f.name: f.default for f in plugin.MODEL.fields} | {
        "size": 50,
        "diffusivity": 2.0,
    }
    assert json.loads(encode(given)) == given
