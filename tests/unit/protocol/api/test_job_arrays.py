"""The text form of an array's indices, the run of each index, and how array runs are distinguished
from other runs.
"""

import pytest

from jobscribe.protocol.api.job_arrays import (
    Indices,
    expand,
    format_indices,
    group_prefix,
    index_model,
    parse_index,
    parse_indices,
)
from jobscribe.protocol.api.requests import MAX_BULK, RunSpec
from jobscribe.protocol.errors import Refusal


def spec(**fields: object) -> RunSpec:
    return RunSpec(
        **{"uid": "user0001", "simulation_id": "simarr01", "command": ("true",), **fields}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "numbers", "at_once"),
    [
        ("0", (0,), None),
        ("0-3", (0, 1, 2, 3), None),
        ("0-9,20,30-40:2%5", (*range(10), 20, 30, 32, 34, 36, 38, 40), 5),
        ("7,3,5", (3, 5, 7), None),
        ("1-3,2-4,3", (1, 2, 3, 4), None),
        ("5-5", (5,), None),
        ("0-10:100", (0,), None),
        ("007-09", (7, 8, 9), None),
        ("999999%100000", (999_999,), 100_000),
        ("0-9999", tuple(range(10_000)), None),
        ("0-999999:100", tuple(range(0, 1_000_000, 100)), None),
    ],
)
def test_a_text_says_which_indices(
    text: str, numbers: tuple[int, ...], at_once: int | None
) -> None:
    assert parse_indices(text) == Indices(numbers, at_once)
    assert parse_indices(format_indices(parse_indices(text))) == Indices(numbers, at_once)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("1,", "empty"),
        (",1", "empty"),
        ("%5", "empty"),
        ("a", "'a' is neither"),
        ("1-", "'1-' is neither"),
        ("-1", "'-1' is neither"),
        ("1-2-3", "neither"),
        ("1:2", "neither"),
        ("1 ", "neither"),
        ("1.5", "neither"),
        ("+1", "neither"),
        ("\u0663", "neither"),
        ("1\n", "neither"),
        ("1_0", "neither"),
        ("9-3", "is reversed"),
        ("1-9:0", "step 0"),
        ("1000000", "0 to 999999"),
        ("0-1000000:500000", "0 to 999999"),
        ("1%", "number of concurrent runs"),
        ("1%0", "number of concurrent runs"),
        ("1%-1", "number of concurrent runs"),
        ("1%100001", "number of concurrent runs"),
        ("1%2%3", "number of concurrent runs"),
        ("1%x", "number of concurrent runs"),
        ("0-10000", "at most 10000"),
        ("0-999999", "at most 10000"),
        ("0-9999,10000", "at most 10000"),
        ("9999999999999999999", "neither"),
        ("1," * 50_000 + "1", "80000 characters"),
    ],
)
def test_what_says_no_indices_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(Refusal) as e:
        parse_indices(text)
    assert e.value.code == "badRequest"
    assert said in e.value.sentence
    assert e.value.sentence.isprintable() and len(e.value.sentence) < 300


def test_a_huge_range_is_refused_before_it_is_counted_out() -> None:
    with pytest.raises(Refusal, match="alone has 1000000"):
        parse_indices(",".join(["0-999999"] * 5000))


def test_each_run_has_its_index_and_all_have_the_rest_in_common() -> None:
    runs = expand(spec(env={"A": "b"}), parse_indices("3,7-9:2,20%2"))
    assert [r.compute_model for r in runs] == ["command_3", "command_7", "command_9", "command_20"]
    assert {(r.uid, r.simulation_id, r.command, r.at_once) for r in runs} == {
        ("user0001", "simarr01", ("true",), 2)
    }
    assert runs[1].env == {
        "A": "b",
        "ARRAY_INDEX": "7",
        "ARRAY_COUNT": "4",
        "ARRAY_MIN": "3",
        "ARRAY_MAX": "20",
        "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_ARRAY_TASK_COUNT": "4",
        "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_MAX": "20",
        "SLURM_ARRAY_JOB_ID": "simarr01",
    }
    assert [r.env["ARRAY_INDEX"] for r in runs] == ["3", "7", "9", "20"]
    assert not any(name.startswith("JOBSCRIBE_") for r in runs for name in r.env)


def test_without_a_number_at_once_that_of_the_run_counts() -> None:
    assert expand(spec(at_once=7), parse_indices("0"))[0].at_once == 7
    assert expand(spec(at_once=7), parse_indices("0%3"))[0].at_once == 3
    assert expand(spec(), parse_indices("0"))[0].at_once is None


@pytest.mark.parametrize(
    ("run", "indices", "said"),
    [
        (spec(env={"ARRAY_INDEX": "1"}), Indices((0,)), "sets ARRAY_INDEX"),
        (spec(env={"SLURM_ARRAY_TASK_ID": "1"}), Indices((0,)), "sets SLURM_ARRAY_TASK_ID"),
        (spec(), Indices(()), "1 to 10000"),
        (spec(), Indices(tuple(range(MAX_BULK + 1))), "1 to 10000"),
        (spec(), Indices((-1, 3)), "got -1"),
        (spec(), Indices((3, 1_000_000)), "got 1000000"),
        (spec(compute_model="m" * 60), Indices((1, 99_999)), "too long"),
    ],
)
def test_an_array_that_cannot_be_is_refused(run: RunSpec, indices: Indices, said: str) -> None:
    with pytest.raises(Refusal, match=said) as e:
        expand(run, indices)
    assert e.value.code == "badRequest"


def test_a_name_that_just_fits_is_taken() -> None:
    assert len(expand(spec(compute_model="m" * 58), Indices((1, 99_999)))[1].compute_model) == 64


@pytest.mark.parametrize(
    ("model", "index"),
    [
        ("command_0", ("command", 0)),
        ("command_999999", ("command", 999_999)),
        ("a_b_12", ("a_b", 12)),
        ("command", ("command", None)),
        ("command_", ("command_", None)),
        ("command_007", ("command_007", None)),
        ("command_1234567", ("command_1234567", None)),
        ("command1", ("command1", None)),
        ("a_1_2", ("a_1", 2)),
    ],
)
def test_the_index_is_read_back_from_a_name_that_was_made_of_one(
    model: str, index: tuple[str, int | None]
) -> None:
    assert parse_index(f"user0001-simarr01-{model}") == index
    if index[1] is not None:
        assert index_model(index[0], index[1]) == model


def test_a_group_is_told_from_another_that_begins_like_it() -> None:
    assert group_prefix("user0001", "simarr01") == "user0001-simarr01-"
