"""Pages of profiles show all time, escape what a job wrote, and need no network."""

import re

from jobscribe.cli.profile.curve_plot import curve_page
from jobscribe.cli.profile.flame_graph import flame_page, tree

EVIL = '<script>alert(1)</script> (x".py:1)'


def test_stacks_are_merged_and_other_lines_are_left_out() -> None:
    root = tree(
        ["a;b 3", "a;c 000000000000004", "a 1", "no number", "a;b -1", "x " + "9" * 99, " 5"]
    )
    assert root.total == 8
    a = root.callees["a"]
    assert (a.total, a.callees["b"].total, a.callees["c"].total) == (8, 3, 4)


def test_a_flame_graph_shows_shares_and_escapes_names() -> None:
    page = flame_page([f"main;{EVIL} 750000", "main;idle 250000"], EVIL, seconds_per_unit=1e-6)
    assert "1.000 s CPU time" in page and "75.0 %" in page and "25.0 %" in page
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "http" not in re.sub(r'xmlns="http://www.w3.org/2000/svg"|http-equiv', "", page)
    assert "default-src 'none'" in page
    widths = [float(w) for w in re.findall(r'data-w="([0-9.]+)"', page)]
    assert widths == [1200.0, 1200.0, 300.0, 900.0]
    assert "3 samples" in flame_page(["a 3"], "t")
    assert "used no CPU time" in flame_page([], "t")


def test_a_deep_or_wide_profile_makes_a_page_of_a_bounded_size() -> None:
    deep = ";".join(f"f{n}" for n in range(5000)) + " 1"
    wide = [f"f{n} 1" for n in range(50_000)]
    assert len(flame_page([deep], "t")) < 200_000
    assert len(flame_page(wide, "t")) < 200_000


def test_curves_show_their_largest_value_and_drop_other_lines() -> None:
    lines = [
        "CMDLINE <b>",
        "MEM 10.5 100.0",
        "MEM 20.25 105.0",
        "MEM nan 106",
        "MEM x y",
        "",
        "MEM 1",
    ]
    page = curve_page([line for line in lines if line], "t")
    assert "memory, MiB: at most 20.2" in page and "2 samples" in page and "<b>" not in page
    gpus = curve_page(["GPU 50.0 1024.0 100.0"], "t")
    assert "GPU utilisation, %: at most 50.0" in gpus and "GPU memory, MiB: at most 1024.0" in gpus
    assert "no sample" in curve_page(["CMDLINE x"], "t")
    many = [f"MEM {n} {n}" for n in range(100_000)]
    assert len(curve_page(many, "t")) < 100_000
