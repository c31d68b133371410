"""`myapp`: its computation, the files it keeps for its user, and its refusals."""

import json
import multiprocessing
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobscribe.apps.app import AppError, Run
from jobscribe.apps.myapp import growth_program, plugin

pytestmark = pytest.mark.process


def prepared(tmp_path: Path, **fields: Any) -> Run:
    (tmp_path / "run").mkdir(exist_ok=True)
    return Run(
        run_dir=tmp_path / "run",
        lib=tmp_path / "lib",
        model="heightWeightReport",
        data={"models": {"heightWeightReport": fields}},
    )


def ran(tmp_path: Path, **fields: Any) -> Run:
    run = prepared(tmp_path, **fields)
    command = plugin.app.prepare(run).command
    subprocess.run(
        command, cwd=run.run_dir, env={"PATH": "/usr/bin:/bin"}, check=True, capture_output=True
    )
    return run


def test_the_result_is_two_curves_over_the_years(tmp_path: Path) -> None:
    result = plugin.result(ran(tmp_path, breed="Great Dane", years=3.0))
    assert result["xRange"] == [0.0, 3.0] and len(result["x"]) == 3 * 52 + 1
    height, weight = (p["points"] for p in result["plots"])
    assert (
        height == sorted(height)
        and weight == sorted(weight)
        and len(height) == len(weight) == len(result["x"])
    )
    assert 75 < height[-1] <= 80 and 60 < weight[-1] <= 65


def test_the_same_input_gives_the_same_result(tmp_path: Path) -> None:
    assert plugin.result(ran(tmp_path)) == plugin.result(ran(tmp_path))


@pytest.mark.parametrize("adult", [1.0, 31.0, 65.0])
def test_growth_reaches_95_percent_when_it_should(adult: float) -> None:
    for curve in (growth_program.height, growth_program.weight):
        assert curve(40, adult, 40) == pytest.approx(0.95 * adult)
        assert curve(0, adult, 40) < 0.25 * adult


def test_ones_own_dog_is_taken_from_the_library(tmp_path: Path) -> None:
    plugin.add_dog(tmp_path / "lib", {"name": "Rex", "height": 50, "weight": 25})
    result = plugin.result(ran(tmp_path, dog="Rex"))
    assert 45 < result["plots"][0]["points"][-1] <= 50
    assert plugin.lib_files(prepared(tmp_path, dog="Rex").data) == ("dogs.json",)
    with pytest.raises(AppError, match="no dog named 'Tom'"):
        plugin.prepare(prepared(tmp_path, dog="Tom"))


def test_own_numbers_count_only_without_a_breed(tmp_path: Path) -> None:
    plugin.prepare(prepared(tmp_path, breed="own numbers", adultHeight=42.0))
    assert json.loads((tmp_path / "run" / "in.json").read_text())["adultHeight"] == 42.0
    plugin.prepare(prepared(tmp_path, adultHeight=42.0))
    assert json.loads((tmp_path / "run" / "in.json").read_text())["adultHeight"] == 58.0


def test_the_downloads(tmp_path: Path) -> None:
    run = ran(tmp_path, years=0.5)
    assert (run.run_dir / plugin.download(run, "")).read_text().splitlines()[:2] == [
        "week,height [cm],weight [kg]",
        "0,11.6,0.465",
    ]
    assert (
        plugin.download(run, "csv") == "heightWeight.csv"
        and plugin.download(run, "json") == "growth.json"
    )
    for offered in plugin.app.downloads(run):
        assert plugin.download(run, offered) == offered and (run.run_dir / offered).exists()
    assert plugin.app.downloads(prepared(tmp_path / "run")) == ()
    with pytest.raises(AppError, match="the downloads are: csv, json"):
        plugin.download(run, "exe")


def test_the_analysis(tmp_path: Path) -> None:
    ages = plugin.age_at(ran(tmp_path), {})
    assert set(ages) == {"height", "weight"} and 30 < ages["height"] < 60
    with pytest.raises(AppError, match="no result yet"):
        plugin.age_at(prepared(tmp_path / "run"), {})


def test_the_stateless_method() -> None:
    assert plugin.ideal_weight({"height": 58}) == {"weight": 30.95}
    for bad in ({}, {"height": "58"}, {"height": True}, {"height": float("nan")}, {"height": 1e9}):
        with pytest.raises(AppError, match="height must be a number between 5 and 120"):
            plugin.ideal_weight(bad)


def test_dogs_are_listed_added_replaced_and_deleted(tmp_path: Path) -> None:
    lib = tmp_path / "new" / "lib"
    assert plugin.list_dogs(lib, {}) == {"dogs": []}
    plugin.add_dog(lib, {"name": "Rex", "height": 50, "weight": 25})
    plugin.add_dog(lib, {"name": "Ada", "height": 30, "weight": 8.5})
    assert (
        plugin.add_dog(lib, {"name": "Rex", "height": 51, "weight": 26})
        == plugin.list_dogs(lib, {})
        == {
            "dogs": [
                {"name": "Ada", "height": 30.0, "weight": 8.5},
                {"name": "Rex", "height": 51.0, "weight": 26.0},
            ],
        }
    )
    assert plugin.delete_dog(lib, {"name": "Ada"}) == {
        "dogs": [{"name": "Rex", "height": 51.0, "weight": 26.0}]
    }
    with pytest.raises(AppError, match="no dog named 'Ada'"):
        plugin.delete_dog(lib, {"name": "Ada"})


@pytest.mark.parametrize(
    "dog",
    [
        {},
        {"name": ""},
        {"name": 1},
        {"name": "x" * 65},
        {"name": "a\nb"},
        {"name": "a"},
        {"name": "a", "height": 1},
    ],
)
def test_what_is_no_dog_is_not_added(tmp_path: Path, dog: dict[str, Any]) -> None:
    with pytest.raises(AppError):
        plugin.add_dog(tmp_path, {"height": 50.0, **dog})
    assert plugin.list_dogs(tmp_path, {}) == {"dogs": []}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '[{"name": "a"}]', '[{"name": "a", "height": "tall", "weight": 1}]', "\x00"],
)
def test_an_uploaded_file_may_be_anything(tmp_path: Path, text: str) -> None:
    (tmp_path / "dogs.json").write_text(text)
    with pytest.raises(AppError, match=r"dogs.json in your library is not"):
        plugin.list_dogs(tmp_path, {})


def _add_many(lib: Path, first: int) -> None:
    for n in range(first, first + 20):
        plugin.add_dog(lib, {"name": f"dog{n}", "height": 50, "weight": 25})


def test_calls_side_by_side_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add_many, args=(tmp_path, 100 * n)) for n in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(30)
    assert len(plugin.list_dogs(tmp_path, {})["dogs"]) == 80
