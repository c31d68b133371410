"""Durations: seconds, a number with a unit, and every time format that sbatch(1) lists under
--time.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.durations import seconds


@pytest.mark.parametrize(
    ("text", "secs"),
    [
        ("0", 0),
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("15m", 900),
        ("1H", 3600),
        ("2d", 172_800),
        ("1.5 h", 5400),
        ("10:00", 600),
        ("90:00", 5400),
        ("0:05", 5),
        ("00:10:00", 600),
        ("36:00:00", 129_600),
        ("1-00:00:00", 86_400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("0-00:00:01", 1),
    ],
)
def test_each_form_is_read(text: str, secs: float) -> None:
    assert seconds(text) == secs


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "1x",
        "1e3",
        "nan",
        "inf",
        "\u0661",
        "10:",
        ":10",
        "10:60",
        "1:60:00",
        "1:2:3:4",
        "1-24",
        "1-00:60",
        "1-",
        "1.5:00",
        "1h30m",
        "UNLIMITED",
        "10:00\n",
    ],
)
def test_anything_else_is_no_duration(text: str) -> None:
    assert seconds(text) is None


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_the_parts_of_slurms_longest_form_add_up(
    days: int, hours: int, minutes: int, secs: int
) -> None:
    assert (
        seconds(f"{days}-{hours:02}:{minutes:02}:{secs:02}")
        == ((days * 24 + hours) * 60 + minutes) * 60 + secs
    )


@given(st.text())
def test_no_text_raises(text: str) -> None:
    found = seconds(text)
    assert found is None or found >= 0
