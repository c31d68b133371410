"""The class of an exit depends first on who stopped it, then on facts, its signal and its code.
Output decides nothing, and exit 0 is a success.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobscribe.diagnosis.exit_table import (
    BUILT_IN,
    EXCERPT_BYTES,
    EXCERPT_LINES,
    LINE_CHARS,
    SEEN_CHARS,
    Row,
    Table,
    When,
    diagnose,
    excerpt,
)
from jobscribe.protocol.jobs.exit_info import FAULTS, ExitFacts, ExitInfo

PLAIN = Table()
SHELL = ExitFacts(via_shell=True)
#: A site table that would reclassify every exit if its rows were applied first.
GREEDY = Table(
    rows=(
        Row(
            code=90_000,
            phrase="permanent by its output",
            type="user",
            behavior="permanent",
            reason="R",
            solutions=("S",),
            when=When(log=("e",)),
        ),
    )
)


def row(code: int, phrase: str, *log: str, **when: object) -> Row:
    return Row(
        code=code,
        phrase=phrase,
        type="user",
        behavior="unknown",
        reason="R",
        solutions=(f"solve {phrase}",),
        when=When(log=log, **when),
    )  # type: ignore[arg-type]


def said(exit_: ExitInfo, table: Table = PLAIN) -> tuple[str, str, str]:
    found = diagnose(exit_, table)
    assert found is not None
    return found.phrase, found.type, found.behavior


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        # stopped by jobscribe, whatever its exit status
        (ExitInfo(signal=15, stop_reason="cancel"), ("canceled", "user", "permanent")),
        (ExitInfo(code=0, stop_reason="timeLimit"), ("time limit reached", "user", "permanent")),
        (
            ExitInfo(signal=9, stop_reason="timeLimit", out_of_memory=True),
            ("time limit reached", "user", "permanent"),
        ),
        (
            ExitInfo(source="start", stop_reason="queueLimit"),
            ("queue limit reached", "resource", "permanent"),
        ),
        (ExitInfo(signal=15, stop_reason="shutdown"), ("shut down", "platform", "transient")),
        (ExitInfo(signal=9, stop_reason="lost"), ("unknown to the log", "platform", "transient")),
        (ExitInfo(code=1, stop_reason="decided"), ("attempt decided", "user", "permanent")),
        (ExitInfo(source="lost", stop_reason="decided"), ("attempt decided", "user", "permanent")),
        (
            ExitInfo(signal=15, stop_reason="a word of a newer version"),
            ("canceled", "user", "permanent"),
        ),
        # facts
        (ExitInfo(source="start", fault="portTaken"), ("port taken", "platform", "transient")),
        (ExitInfo(source="start", fault="noProcesses"), ("machine short", "platform", "conflict")),
        (ExitInfo(source="start", fault="noShell"), ("not to be had", "user", "permanent")),
        (
            ExitInfo(source="start", fault="notWritable"),
            ("machine not fit", "platform", "permanent"),
        ),
        # no container: bad request, error that will recur, error that another attempt may avoid
        (ExitInfo(source="start", fault="imageMissing"), ("not to be had", "user", "permanent")),
        (ExitInfo(source="start", fault="pullDenied"), ("not to be had", "user", "permanent")),
        (ExitInfo(source="start", fault="volumeRefused"), ("not to be had", "user", "permanent")),
        (
            ExitInfo(source="start", fault="registryUnreachable"),
            ("image not here yet", "platform", "conflict"),
        ),
        (
            ExitInfo(source="start", fault="pullTimeout"),
            ("image not here yet", "platform", "conflict"),
        ),
        (
            ExitInfo(source="start", fault="engineRefused"),
            ("refused there", "platform", "transient"),
        ),
        (ExitInfo(source="start", fault="subnetTaken"), ("refused there", "platform", "transient")),
        (ExitInfo(source="start", detail="no directory"), ("not started", "platform", "unknown")),
        (
            ExitInfo(source="start", fault="a word of a newer version"),
            ("not started", "platform", "unknown"),
        ),
        (ExitInfo(source="start", code=127), ("not started", "platform", "unknown")),
        (ExitInfo(source="lost"), ("lost", "platform", "transient")),
        (ExitInfo(source="lost", out_of_memory=True), ("out of memory", "user", "permanent")),
        (ExitInfo(signal=9, out_of_memory=True), ("out of memory", "user", "permanent")),
        (ExitInfo(code=3, out_of_memory=True), ("out of memory", "user", "permanent")),
        (ExitInfo(code=200, out_of_memory=True), ("out of memory", "user", "permanent")),
        # signals
        (ExitInfo(signal=9, out_of_memory=False), ("killed from outside", "platform", "transient")),
        (ExitInfo(signal=9), ("killed from outside", "platform", "transient")),
        (ExitInfo(signal=15), ("killed from outside", "platform", "transient")),
        (ExitInfo(signal=8), ("program error", "user", "permanent")),
        (ExitInfo(signal=7), ("program error", "user", "permanent")),
        (ExitInfo(signal=11), ("crashed", "user", "unknown")),
        (ExitInfo(signal=6, core_dumped=True), ("crashed", "user", "unknown")),
        (ExitInfo(signal=10), ("ended by a signal", "unknown", "unknown")),
        (ExitInfo(signal=64), ("ended by a signal", "unknown", "unknown")),
        # codes
        (ExitInfo(code=126), ("command cannot be executed", "user", "permanent")),
        (ExitInfo(code=127), ("command not found", "user", "permanent")),
        (ExitInfo(code=137, facts=SHELL), ("child killed from outside", "platform", "transient")),
        (ExitInfo(code=143, facts=SHELL), ("child killed from outside", "platform", "transient")),
        # without a fact about the signal, 128+n is an ordinary code
        *(
            (ExitInfo(code=code), ("failed", "unknown", "unknown"))
            for code in (129, 130, 131, 137, 141, 143)
        ),
        (ExitInfo(code=139, facts=ExitFacts(via_shell=False)), ("failed", "unknown", "unknown")),
        (ExitInfo(code=136), ("error in a child's program", "user", "permanent")),
        (ExitInfo(code=139), ("child crashed", "user", "unknown")),
        (ExitInfo(code=200), ("try again", "user", "transient")),
        (ExitInfo(code=201), ("try again later", "user", "conflict")),
        (ExitInfo(code=210), ("do not try again", "user", "permanent")),
        # no rule matches
        (ExitInfo(code=1), ("failed", "unknown", "unknown")),
        (ExitInfo(code=255), ("failed", "unknown", "unknown")),
        (ExitInfo(code=128), ("failed", "unknown", "unknown")),
        (ExitInfo(source="script", code=2), ("failed", "unknown", "unknown")),
        (ExitInfo(), ("failed", "unknown", "unknown")),
    ],
)
def test_without_any_table_an_exit_is_what_the_first_of_these_says(
    exit_: ExitInfo, expected: tuple[str, str, str]
) -> None:
    assert said(exit_) == expected


def test_of_each_kind_the_order_is_stop_fact_signal_code() -> None:
    """Remove the known facts of the same exit one by one: each rule applies only if none before it
    matches.
    """
    known = {
        "stop_reason": "cancel",
        "out_of_memory": True,
        "signal": 9,
        "code": 137,
        "facts": SHELL,
    }
    phrases = []
    for without in (
        (),
        ("stop_reason",),
        ("stop_reason", "out_of_memory"),
        ("stop_reason", "out_of_memory", "signal"),
    ):
        phrases.append(said(ExitInfo(**{k: v for k, v in known.items() if k not in without}))[0])  # type: ignore[arg-type]
    assert phrases == [
        "canceled",
        "out of memory",
        "killed from outside",
        "child killed from outside",
    ]


@pytest.mark.parametrize("table", [Table(), GREEDY])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"out_of_memory": True},
        {"last_lines": "Segmentation fault\ne"},
        {"termination_message": "ImportError: e"},
        {"survivors_killed": 3},
        {"source": "script"},
        {"dropped_bytes": 9},
        {"core_dumped": True},
        {"detail": "e"},
    ],
)
def test_exit_0_that_nobody_stopped_is_a_success_whatever_else_is_known(
    table: Table, more: dict[str, object]
) -> None:
    assert diagnose(ExitInfo(code=0, **more), table) is None  # type: ignore[arg-type]


EXITS = st.one_of(
    st.builds(lambda c: ExitInfo(code=c), st.integers(1, 255)),
    st.builds(lambda n: ExitInfo(signal=n), st.integers(1, 64)),
    st.builds(lambda f: ExitInfo(source="start", fault=f), st.sampled_from([None, *FAULTS])),
    st.just(ExitInfo(source="lost")),
    st.builds(lambda c: ExitInfo(code=c, out_of_memory=True), st.integers(1, 255)),
)


@given(EXITS)
def test_a_line_of_output_is_a_hint_and_changes_neither_type_nor_behavior(exit_: ExitInfo) -> None:
    import msgspec

    without = diagnose(exit_, GREEDY)
    found = diagnose(msgspec.structs.replace(exit_, last_lines="one\nerror of mine\nx"), GREEDY)
    assert without is not None and found is not None
    assert (found.hint, found.matched, found.excerpt) == (
        "permanent by its output",
        "error of mine",
        "one\nerror of mine\nx",
    )
    assert found.solutions == ("S", *without.solutions)
    assert (
        msgspec.structs.replace(
            found, hint=None, matched=None, excerpt=None, solutions=without.solutions
        )
        == without
    )


def test_what_we_stopped_gets_no_hint() -> None:
    found = diagnose(ExitInfo(signal=15, stop_reason="cancel", last_lines="error"), GREEDY)
    assert found is not None and found.hint is None and found.solutions == ()


def test_the_newest_line_counts_and_for_one_line_the_first_row() -> None:
    table = Table(
        rows=(
            row(5000, "old", "alpha"),
            row(5001, "first", "gamma"),
            row(5002, "second", "gam"),
            row(5003, "own words", "beta"),
        )
    )
    found = diagnose(ExitInfo(code=1, last_lines="alpha\n  beta\n\n\tgamma ray \n\nend"), table)
    assert found is not None
    assert (found.hint, found.matched, found.solutions) == ("first", "gamma ray", ("solve first",))
    found = diagnose(ExitInfo(code=1, last_lines="gamma", termination_message="x beta"), table)
    assert found is not None
    assert (found.hint, found.matched, found.excerpt) == ("own words", "x beta", "x beta")
    found = diagnose(
        ExitInfo(code=1, last_lines="gamma", termination_message="nothing known"), table
    )
    assert found is not None
    assert (found.hint, found.excerpt) == ("first", "gamma")


def test_a_hint_may_be_for_some_exits_only() -> None:
    table = Table(
        rows=(
            row(5000, "for 3", "x", codes=(3,)),
            row(5001, "for segv", "x", signals=(11,)),
            row(5002, "for the lost", "x", source=("lost",)),
        )
    )
    hints = {}
    for exit_ in (
        ExitInfo(code=3, last_lines="x"),
        ExitInfo(signal=11, last_lines="x"),
        ExitInfo(source="lost", last_lines="x"),
        ExitInfo(code=4, last_lines="x"),
    ):
        found = diagnose(exit_, table)
        assert found is not None
        hints[exit_.sentence()] = found.hint
    assert list(hints.values()) == ["for 3", "for segv", "for the lost", None]


def test_a_progress_bar_has_lines_too_and_a_line_that_is_cut_is_none() -> None:
    table = Table(rows=(row(5000, "percent", "^99 %$"), row(5001, "tail", "^b+$")))
    found = diagnose(ExitInfo(code=1, last_lines="10 %\r50 %\r99 %\r"), table)
    assert found is not None and found.matched == "99 %"
    cut = diagnose(ExitInfo(code=1, last_lines="a" + "b" * SEEN_CHARS + "\nend"), table)
    assert cut is not None and cut.hint is None


def test_of_a_long_line_the_beginning_is_seen() -> None:
    table = Table(rows=(row(5000, "near", "needle"),))
    for at, hint in ((LINE_CHARS - 6, "near"), (LINE_CHARS - 5, None)):
        found = diagnose(ExitInfo(code=1, last_lines="x" * at + "needle" + "y" * 1000), table)
        assert found is not None
        assert (found.hint, found.matched and len(found.matched)) == (
            hint,
            LINE_CHARS if hint else None,
        )


LINES = st.builds(
    lambda letter, n: letter * n,
    st.characters(codec="utf-8", exclude_characters="\n"),
    st.integers(0, 700),
)


@given(st.lists(LINES, min_size=1, max_size=40), st.integers(0, 39))
@example(["ü" * 700] * 40, 20)
@example(["x" * 292] * 15, 0)
def test_an_excerpt_is_bounded_has_the_match_and_leaves_out_no_line_between(
    lines: list[str], at: int
) -> None:
    at %= len(lines)
    text = excerpt(lines, at)
    kept = text.split("\n")
    assert len(text.encode()) <= EXCERPT_BYTES
    assert lines[at] in kept
    assert any(
        lines[n : n + len(kept)] == kept and n <= at < n + len(kept) for n in range(len(lines))
    )
    assert len(kept) <= EXCERPT_LINES
    if len("\n".join(lines).encode()) <= EXCERPT_BYTES:
        assert len(kept) == min(len(lines), EXCERPT_LINES)


def test_an_excerpt_of_one_line_that_is_too_long_is_its_beginning() -> None:
    text = excerpt(["before", "ü" * EXCERPT_BYTES, "after"], 1)
    assert text == "ü" * (EXCERPT_BYTES // 2)


def test_a_row_of_the_table_comes_before_what_is_built_in_and_before_later_rows() -> None:
    rows = (
        Row(
            code=70_000,
            phrase="licence",
            type="resource",
            behavior="conflict",
            reason="R",
            when=When(codes=(42, 137)),
        ),
        Row(
            code=70_001,
            phrase="never reached",
            type="user",
            behavior="permanent",
            reason="R",
            when=When(codes=(42,)),
        ),
        Row(
            code=70_002,
            phrase="big jobs",
            type="user",
            behavior="permanent",
            reason="R",
            when=When(memory=True, codes=(3,)),
        ),
    )
    table = Table(rows=rows)
    assert said(ExitInfo(code=42), table)[0] == "licence"
    assert said(ExitInfo(code=137), table) == ("licence", "resource", "conflict")
    # a site's row of a later step does not precede an earlier built-in step
    assert said(ExitInfo(code=42, out_of_memory=True), table)[0] == "out of memory"
    assert said(ExitInfo(code=3, out_of_memory=True), table)[0] == "big jobs"
    assert said(ExitInfo(code=3), table)[0] == "failed"


def test_codes_of_rows_can_never_be_taken_for_exit_codes() -> None:
    assert min(r.code for r in BUILT_IN) >= 1000
    assert len({r.code for r in BUILT_IN}) == len({r.phrase for r in BUILT_IN}) == len(BUILT_IN)
    found = diagnose(ExitInfo(code=255), Table())
    assert found is not None and found.code == 9000
