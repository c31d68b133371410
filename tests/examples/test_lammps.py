"""The LAMMPS plug-in depends only on the app contract, rewrites only numbers in Debian's decks, and
shows the results of the real LAMMPS. `test_lammps_reading` tests reading of partial files,
`test_lammps_served` the path through a supervisor.
"""

import ast
import math
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lammps_runs import PACKAGE, REPLY_BYTES, computed, frame, run_of, sent

from jobscribe.apps.app import App, AppError, Run

MODELS = ("crackAnimation", "frictionAnimation", "couetteAnimation", "poiseuilleAnimation")

needs_lammps = pytest.mark.skipif(
    shutil.which("lmp") is None or not os.path.exists("/usr/share/lammps/examples/crack/in.crack"),
    reason="LAMMPS is not here; etc/engines/lammps.sh installs it",
)


def commands(deck: str) -> list[list[str]]:
    return [words for line in deck.splitlines() if (words := line.partition("#")[0].split())]


# ---- the package


def test_the_package_imports_the_contract_and_the_standard_library_alone() -> None:
    foreign = set()
    for file in PACKAGE.glob("jobscribe_lammps/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                foreign |= {n.name for n in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                foreign.add(node.module or "")
    assert "jobscribe.apps.app" in foreign
    assert {n for n in foreign if n.partition(".")[0] not in sys.stdlib_module_names} == {
        "jobscribe.apps.app"
    }


def test_it_offers_itself_by_the_entry_point(app: App) -> None:
    said = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    assert said["project"]["entry-points"] == {"jobscribe.apps": {"lammps": "jobscribe_lammps:app"}}
    assert app.name == "lammps"
    assert tuple(m.name for m in app.models) == MODELS
    assert all(
        m.kind == "parallel" and {r.picture for r in m.reports} == {"points", "curves"}
        for m in app.models
    )


def test_every_report_belongs_to_one_model(app: App) -> None:
    reports = [r.name for m in app.models for r in m.reports]
    assert len(set(reports)) == len(reports)
    for model in app.models:
        assert all(app.model(r.name) == model for r in model.reports)


# ---- the decks


@needs_lammps
@pytest.mark.parametrize("model", MODELS)
def test_a_deck_with_its_own_numbers_is_debians_deck_and_what_is_recorded(
    app: App, model: str
) -> None:
    """Every field's default equals the deck's value, except the log interval."""
    from jobscribe_lammps.decks import DECKS
    from jobscribe_lammps.plugin import EXAMPLES

    deck = next(d for d in DECKS if d.model.name == model)
    theirs = commands((EXAMPLES / deck.path).read_text())
    row = next(words for words in theirs if words[0] == "thermo")
    ours = commands(
        app.stateless["deck"]({"report": model, "models": {model: {"thermoEvery": int(row[1])}}})[
            "deck"
        ]
    )
    added = [
        words
        for words in ours
        if words[0] in ("thermo_style", "compute", "dump", "dump_modify", "thermo_modify")
        and words not in theirs
    ]
    assert [words[0] for words in added] == [
        "thermo_style",
        "thermo_modify",
        "compute",
        "dump",
        "dump_modify",
    ]
    left = [words for words in ours if words not in added]

    def plain(words: list[str]) -> list[Any]:
        return [float(w) if w.lstrip("-").replace(".", "", 1).isdecimal() else w for w in words]

    assert [plain(words) for words in left] == [plain(words) for words in theirs]


@needs_lammps
def test_what_is_set_stands_in_the_deck_and_the_geometry_follows(app: App) -> None:
    fields = {
        "steps": 70,
        "dumpEvery": 35,
        "width": 60,
        "height": 20,
        "crackLength": 15,
        "pullVelocity": 0.5,
        "temperature": 0.02,
    }
    ours = commands(
        app.stateless["deck"]({"report": "crackAnimation", "models": {"crackAnimation": fields}})[
            "deck"
        ]
    )
    for line in (
        "run 70",
        "region box block 0 60 0 20 -0.25 0.25",
        "region 2 block INF INF 18.75 INF INF INF",
        "region leftupper block INF 15 10.0 INF INF INF",
        "region leftlower block INF 15 INF 10.0 INF INF",
        "velocity upper set 0.0 0.5 0.0",
        "velocity mobile ramp vy 0.0 0.5 y 1.25 18.75 sum yes",
        "velocity mobile create 0.02 887723 temp new",
    ):
        assert line.split() in ours
    assert next(words for words in ours if words[:1] == ["dump"])[4] == "35"


@pytest.mark.parametrize(
    "value",
    [
        "1\nshell touch /tmp/x",
        "0.3 & shell",
        "${x}",
        "$(1+1)",
        True,
        None,
        [1],
        {"a": 1},
        math.nan,
        math.inf,
        -1e300,
        10**40,
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_only_numbers_within_bounds_are_taken(app: App, model: str, value: Any) -> None:
    found = app.model(model)
    assert found is not None and len(found.fields) >= 8
    for field in found.fields:
        with pytest.raises(AppError, match=field.name):
            app.parameters({"models": {model: {field.name: value}}}, model)


def test_every_number_has_bounds(app: App) -> None:
    for field in (f for m in app.models for f in m.fields):
        assert type(field.default) in (int, float)
        assert field.minimum is not None and field.maximum is not None
        assert field.minimum <= field.default <= field.maximum


def test_what_would_fill_the_disk_is_refused_before_it_runs(app: App) -> None:
    fields = {"steps": 1_000_000, "dumpEvery": 1, "width": 400, "height": 200, "crackLength": 20}
    with pytest.raises(AppError, match=r"GB of positions.*dumpEvery"):
        app.parameters({"models": {"crackAnimation": fields}}, "crackAnimation")
    assert (
        app.parameters(
            {"models": {"crackAnimation": fields | {"dumpEvery": 10_000}}}, "crackAnimation"
        )["width"]
        == 400
    )


def test_a_cut_through_the_whole_plate_is_refused(app: App) -> None:
    with pytest.raises(AppError, match="crackLength"):
        app.parameters(
            {"models": {"crackAnimation": {"width": 20, "crackLength": 20}}}, "crackAnimation"
        )


def test_a_deck_that_is_another_one_is_not_edited_by_guess(app: App) -> None:
    from jobscribe_lammps.rewriting import Edit, number, rewritten

    edits = (Edit("run", 1, lambda v: 5),)
    assert rewritten("run 10 # run 3\n", edits, (), {}) == "run 5\n"
    for deck in ("", "# run 10\n", "run 10\nrun 20\n", "run\n"):
        with pytest.raises(AppError, match="a different deck"):
            rewritten(deck, edits, (), {})
    for value in (math.nan, math.inf, True, "1"):
        with pytest.raises(AppError, match="not a valid number"):
            number(value)  # type: ignore[arg-type]


# ---- missing values


def test_without_the_binary_the_user_is_told_the_packages(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jobscribe_lammps.plugin as plugin

    (tmp_path / "crack").mkdir()
    (tmp_path / "crack/in.crack").write_text(_DECK)
    monkeypatch.setattr(plugin, "EXAMPLES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AppError, match=r"lmp.*apt-get install lammps lammps-examples"):
        app.prepare(run_of(tmp_path / "run"))
    assert not list((tmp_path / "run").iterdir())


def test_without_the_decks_the_user_is_told_the_package(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jobscribe_lammps.plugin as plugin

    monkeypatch.setattr(plugin, "EXAMPLES", tmp_path)
    with pytest.raises(AppError, match=r"lammps-examples"):
        app.prepare(run_of(tmp_path / "run"))


#: The part of the deck that is edited.
_DECK = """lattice hex 1
region box block 0 1 0 1 -1 1
region 2 block INF INF 1 INF INF INF
region leftupper block INF 1 1 INF INF INF
region leftlower block INF 1 INF 1 INF INF
velocity mobile create 1 1 temp new
velocity upper set 0 1 0
velocity mobile ramp vy 0 1 y 1 1 sum yes
timestep 1
thermo 1
run 1
"""


# ---- the real LAMMPS


@pytest.fixture(scope="module")
def cracked(
    app: App, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[App, Run, list[dict[str, Any]]]]:
    """Run a shorter version of Debian's crack example, and poll it from start to end."""
    run = run_of(tmp_path_factory.mktemp("crack"), steps=1250, dumpEvery=50, thermoEvery=100)
    code, said = computed(app, run)
    assert code == 0, (run.run_dir / "stdout").read_text()[-2000:]
    yield app, run, said


Cracked = tuple[App, Run, list[dict[str, Any]]]


@needs_lammps
def test_progress_goes_up_with_the_run_to_its_end(cracked: Cracked) -> None:
    _, _, said = cracked
    for name in ("percentComplete", "frameCount", "step"):
        values = [s[name] for s in said]
        assert values == sorted(values)
    assert {0 < s["percentComplete"] < 100 for s in said} == {True, False}, (
        "it was never seen half done"
    )
    frames = {"frameCount": 26, "frameTotal": 26}
    assert said[-1] == {**frames, "percentComplete": 100.0, "step": 1250}


@needs_lammps
def test_the_atoms_of_a_frame_are_those_of_the_dump(cracked: Cracked) -> None:
    app, run, _ = cracked
    got = frame(app, run, "crackAnimation", 20)
    assert got["title"].endswith("type, step 1000") and (got["frameIndex"], got["frameCount"]) == (
        20,
        26,
    )
    blocks = (run.run_dir / "atoms.dump").read_text().split("ITEM: TIMESTEP\n")[1:]
    lines = blocks[20].splitlines()
    assert lines[0] == "1000"
    atoms = [line.split() for line in lines[8:]]
    assert len(atoms) == 8141
    assert got["value"] == [int(a[1]) for a in atoms]
    for n, name in ((2, "x"), (3, "y")):
        assert max(abs(float(a[n]) - v) for a, v in zip(atoms, got[name], strict=True)) <= 0.006
        low, high = got[name + "Range"]
        assert low <= min(got[name]) and max(got[name]) <= high
    energy = frame(app, run, "crackEnergyAnimation", 20)
    assert (
        energy["value"] != got["value"]
        and max(abs(float(a[6]) - v) for a, v in zip(atoms, energy["value"], strict=True)) <= 0.0006
    )


@needs_lammps
def test_the_crack_opens_from_frame_to_frame_and_the_picture_does_not_jump(
    cracked: Cracked,
) -> None:
    """Measure the gap between the two flanks of the cut (types 2 and 3), in the middle of the cut."""
    app, run, _ = cracked

    def gap(index: int) -> float:
        got = frame(app, run, "crackAnimation", index)
        flanks: dict[int, list[float]] = {2: [], 3: []}
        for x, y, kind in zip(got["x"], got["y"], got["value"], strict=True):
            if 5 < x < 10 and kind in flanks:
                flanks[kind].append(y)
        return min(flanks[2]) - max(flanks[3])

    gaps = [gap(n) for n in (0, 8, 16, 25)]
    assert gaps == sorted(gaps) and gaps[-1] > gaps[0] + 0.5
    assert len({tuple(frame(app, run, "crackAnimation", n)["yRange"]) for n in (0, 8, 16, 25)}) == 1


@needs_lammps
def test_replies_are_small_enough_to_be_watched(cracked: Cracked) -> None:
    app, run, _ = cracked
    for report in app.models[0].reports:
        size = sent(frame(app, run, report.name, 25))
        assert size < REPLY_BYTES
        assert report.picture == "curves" or size > 100_000


@needs_lammps
def test_the_curves_are_the_rows_of_the_log_up_to_the_frame(cracked: Cracked) -> None:
    app, run, _ = cracked
    got = frame(app, run, "crackEnergyCurveAnimation", 21)
    assert got["x"] == list(range(0, 1051, 100)) and got["xRange"] == [0, 1000]
    log = (run.run_dir / "log.lammps").read_text().splitlines()
    row = next(line.split() for line in log if line.split()[:1] == ["700"])
    assert [p["label"] for p in got["plots"]] == ["potential energy", "total energy"]
    assert [p["points"][7] for p in got["plots"]] == [float(row[2]), float(row[3])]
    everything = app.analysis["thermodynamics"](run, {"columns": ["temp", "vol"]})
    assert everything["x"][-1] == 1250 and [p["label"] for p in everything["plots"]] == [
        "temperature",
        "volume",
    ]
    other = frame(app, run, "crackEnergyCurveAnimation", 21, columns=["pyy"])
    assert [(p["label"], p["points"][7]) for p in other["plots"]] == [
        ("pressure along y", float(row[6]))
    ]
    for odd in (["nope"], [], "temp", [["temp"]], ["step"]):
        with pytest.raises(AppError, match="columns"):
            app.analysis["thermodynamics"](run, {"columns": odd})


@needs_lammps
def test_a_frame_that_is_not_there_is_refused_with_how_many_there_are(cracked: Cracked) -> None:
    app, run, _ = cracked
    for index in (26, 10**9, -1):
        with pytest.raises(AppError, match=f"frame {index} .*: there are 26 frames"):
            frame(app, run, "crackAnimation", index)


@needs_lammps
def test_files_are_offered_by_name_and_nothing_else(cracked: Cracked) -> None:
    app, run, _ = cracked
    assert app.downloads(run) == ("log.lammps", "atoms.dump", "in.crack")
    assert app.download is not None
    assert [app.download(run, s) for s in ("", "dump", "in.crack")] == [
        "log.lammps",
        "atoms.dump",
        "in.crack",
    ]
    for suffix in ("../x", "/etc/passwd", "stdout", "atoms.index"):
        with pytest.raises(AppError, match="no file"):
            app.download(run, suffix)


@needs_lammps
def test_one_frame_is_read_without_the_others(cracked: Cracked) -> None:
    """Compare against the kernel's count of bytes that this process has read."""
    app, run, _ = cracked
    size = (run.run_dir / "atoms.dump").stat().st_size
    before = _bytes_read()
    frame(app, run, "crackAnimation", 3)
    read = _bytes_read() - before
    assert 100_000 < read < size / 10


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@needs_lammps
@pytest.mark.parametrize("model", MODELS[1:])
def test_the_other_decks_run_to_their_end(app: App, tmp_path: Path, model: str) -> None:
    run = run_of(tmp_path, model, steps=200, dumpEvery=20, thermoEvery=20)
    code, said = computed(app, run)
    frames = {"frameCount": 11, "frameTotal": 11}
    assert code == 0 and said[-1] == {**frames, "percentComplete": 100.0, "step": 200}
    found = app.model(model)
    assert found is not None
    for report in found.reports:
        got = frame(app, run, report.name, 10)
        assert len(got["x"]) == (11 if report.picture == "curves" else len(got["y"])) > 0


@needs_lammps
def test_lammps_own_error_is_what_the_user_reads(app: App, tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=1000, timestep=0.4)
    code, _ = computed(app, run)
    assert code != 0
    said = app.outcome(run, code)
    assert (
        said is not None
        and said.startswith("LAMMPS stopped: ")
        and "(at the command 'run 1000'); a smaller time step" in said
    )
    log = (run.run_dir / "log.lammps").read_text()
    told = said.removeprefix("LAMMPS stopped: ").partition(" (at")[0]
    assert f"ERROR: {told} (" in log or f"ERROR on proc 0: {told} (" in log


def test_an_end_without_an_error_of_lammps_gets_the_usual_sentence(
    app: App, tmp_path: Path
) -> None:
    run = run_of(tmp_path)
    assert app.outcome(run, 1) is None
    (tmp_path / "log.lammps").write_text("ERROR: old (src/a.cpp:1)\n")
    assert app.outcome(run, 0) is None and app.outcome(run, -9) is None
    assert app.outcome(run, 1) == "LAMMPS stopped: old"
