"""Kill attribution: each rule, with the evidence of all earlier rules absent; and four exits that a
shell reports as 137.
"""

from typing import Any

import pytest

from jobscribe.diagnosis.classification import classify_by_facts, classify_exit, classify_run
from jobscribe.diagnosis.kill_attribution import NEAR, RULES, attribute_kill, killed_by, mib
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo

OOM = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB"
GIB = 2**30


def facts(**fields: Any) -> ExitFacts:
    return ExitFacts(**fields)


def slurm(state: str) -> BatchState:
    return BatchState(cluster="hpc", job_id="1", state=state)


def near(share: float = 0.99) -> dict[str, int]:
    return {"memory_peak_bytes": round(share * 10**9), "memory_limit_bytes": 10**9}


#: Evidence that each rule needs, in order: the first rule decides an exit by SIGKILL with all
#: evidence.
EVIDENCE: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("own_stop", "canceled", "certain", {"stop_reason": "cancel"}),
    ("slurm", "preempted", "certain", {"batch": slurm("PREEMPTED")}),
    ("kernel_count", "outOfMemory", "likely", {"facts": {"memory_kills": 1}}),
    ("engine_flag", "outOfMemory", "likely", {"out_of_memory": True}),
    ("kernel_line", "outOfMemory", "likely", {"facts": {"kernel": (OOM,)}}),
    (
        "cpu_limit",
        "cpuLimit",
        "likely",
        {"facts": {"ulimits": ("ulimit -t 1",)}, "user_secs": 0.9, "system_secs": 0.08},
    ),
    ("near_limit", "outOfMemory", "possible", {"facts": near()}),
    ("unknown_sender", "killed", "unknown", {}),
)


def end(n: int, **changes: Any) -> ExitInfo:
    """Return an exit by SIGKILL with the evidence of this rule and all later rules."""
    fields: dict[str, Any] = {"signal": 9, "source": "engine"}
    told: dict[str, Any] = {}
    for _, _, _, needs in EVIDENCE[n:]:
        told |= needs.get("facts", {})
        fields |= {name: value for name, value in needs.items() if name != "facts"}
    return ExitInfo(**fields | changes, facts=facts(**told))


@pytest.mark.parametrize("n", range(len(EVIDENCE)))
def test_each_rung_decides_where_those_above_it_have_nothing(n: int) -> None:
    name, cause, confidence, _ = EVIDENCE[n]
    assert RULES[n].__name__ == name and len(RULES) == len(EVIDENCE)
    exit_ = end(n)
    assert [r.__name__ for r in RULES[:n] if r(exit_) is not None] == []
    found = attribute_kill(exit_)
    # the kernel's log line makes the kernel's count certain
    assert found is not None and found == RULES[n](exit_) and found.evidence
    assert (found.cause, found.confidence) == (
        cause,
        "certain" if name == "kernel_count" else confidence,
    )


def test_four_ends_that_a_shell_calls_137() -> None:
    """Out of memory, `kill -9`, `exit 137`, and a cancel by jobscribe."""
    ends = [
        ExitInfo(code=137, facts=facts(memory_kills=1, via_shell=True)),
        ExitInfo(code=137, out_of_memory=False, facts=facts(memory_kills=0, via_shell=True)),
        ExitInfo(code=137, facts=facts(memory_kills=0, via_shell=False)),
        ExitInfo(code=137, stop_reason="cancel", facts=facts(via_shell=True)),
    ]
    found = [
        classify_run(
            "error" if e.stop_reason is None else "canceled",
            "cancel" if e.stop_reason else "exit",
            e,
        )
        for e in ends
    ]
    assert [(f.cause, f.confidence) for f in found] == [
        ("outOfMemory", "likely"),
        ("killed", "unknown"),
        ("exit", "certain"),
        ("canceled", "certain"),
    ]
    assert len({e.shell_code for e in ends}) == 1
    assert any("no signal ended it" in line for line in found[2].excluded) and any(
        "possible senders of SIGKILL" in line for line in found[1].evidence
    )


def test_where_nobody_knows_whether_a_shell_said_137_that_is_said() -> None:
    for code in (137, 143):
        found = classify_exit(ExitInfo(code=code))
        assert (found.cause, found.confidence) == (
            "exit",
            "possible",
        ) and "a program may also return it" in found.evidence[0]
    assert killed_by(ExitInfo(code=137)) == 9 and killed_by(ExitInfo(code=143)) == 15
    assert (
        killed_by(ExitInfo(code=137, facts=facts(via_shell=False))) is None
        and killed_by(ExitInfo(code=9)) is None
    )


@pytest.mark.parametrize(
    ("exit_", "confidence"),
    [
        (ExitInfo(signal=9, facts=facts(memory_kills=1, kernel=(OOM,))), "certain"),
        (ExitInfo(code=137, facts=facts(memory_kills=2, kernel=(OOM,))), "certain"),
        (ExitInfo(signal=9, facts=facts(memory_kills=1, **near())), "likely"),
        (
            ExitInfo(signal=9, facts=facts(memory_kills=1, kernel=("python[1]: segfault at 0",))),
            "likely",
        ),
        (ExitInfo(signal=9, out_of_memory=True), "likely"),
        (ExitInfo(signal=9, out_of_memory=True, facts=facts(kernel=(OOM,))), "likely"),
        (ExitInfo(code=3, facts=facts(memory_kills=1, kernel=(OOM,))), "likely"),
        (ExitInfo(signal=15, facts=facts(memory_kills=1, kernel=(OOM,))), "likely"),
        (ExitInfo(code=3, out_of_memory=True, source="engine"), "possible"),
        (ExitInfo(signal=9, out_of_memory=True, source="engine"), "likely"),
    ],
)
def test_how_sure_it_is_that_memory_ran_out(exit_: ExitInfo, confidence: str) -> None:
    found = attribute_kill(exit_)
    assert found is not None and (found.cause, found.confidence) == ("outOfMemory", confidence)


@pytest.mark.parametrize(
    "state",
    [
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "NODE_FAIL",
        "CANCELLED",
        "BOOT_FAIL",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "REVOKED",
        "DEADLINE",
    ],
)
def test_slurm_s_word_is_certain_and_our_own_comes_before_it(state: str) -> None:
    found = attribute_kill(ExitInfo(signal=9, batch=slurm(state), facts=facts(**near())))
    assert (
        found is not None
        and found.confidence == "certain"
        and found.cause not in ("killed", "exit")
        and state in found.evidence[0]
    )
    found = attribute_kill(ExitInfo(signal=9, batch=slurm(state), stop_reason="timeLimit"))
    assert found is not None and found.cause == "timeLimit"


@pytest.mark.parametrize(
    ("share", "cause"),
    [(NEAR, "outOfMemory"), (NEAR - 0.01, "killed"), (1.0, "outOfMemory"), (0.0, "killed")],
)
def test_a_peak_near_the_limit_is_possible_and_no_more(share: float, cause: str) -> None:
    found = attribute_kill(ExitInfo(signal=9, facts=facts(**near(share))))
    assert found is not None and found.cause == cause


def test_where_the_kernel_counted_nothing_a_high_peak_does_not_speak_for_a_sigkill() -> None:
    """A SIGTERM may still come from the machine's out-of-memory guard."""
    for fields in (
        {"out_of_memory": False, "facts": facts(**near())},
        {"facts": facts(memory_kills=0, **near())},
    ):
        killed, ended = (
            attribute_kill(ExitInfo(signal=9, **fields)),
            attribute_kill(ExitInfo(signal=15, **fields)),
        )
        assert killed is not None and killed.cause == "killed"
        assert ended is not None and (ended.cause, ended.confidence) == ("outOfMemory", "possible")


def test_a_line_of_the_kernel_that_tells_of_a_crash_or_stands_beside_a_sigterm_is_no_want_of_memory() -> (
    None
):
    crash = attribute_kill(
        ExitInfo(signal=9, facts=facts(kernel=("python[4711]: segfault at 0 ip 0",)))
    )
    term = attribute_kill(ExitInfo(signal=15, facts=facts(kernel=(OOM,))))
    assert (
        crash is not None
        and crash.cause == "killed"
        and term is not None
        and term.cause == "terminated"
    )


@pytest.mark.parametrize(("signal", "word"), [(9, "SIGKILL"), (15, "SIGTERM")])
def test_an_unknown_sender_is_said_to_be_one_with_those_that_it_can_have_been(
    signal: int, word: str
) -> None:
    found = attribute_kill(ExitInfo(signal=signal, out_of_memory=False))
    assert (
        found is not None
        and found.confidence == "unknown"
        and any(f"possible senders of {word}" in line and "root" in line for line in found.evidence)
    )


def test_what_no_such_signal_ended_climbs_nothing() -> None:
    for exit_ in (
        ExitInfo(code=1),
        ExitInfo(signal=11),
        ExitInfo(code=139),
        ExitInfo(code=1, facts=facts(**near(), kernel=(OOM,))),
    ):
        assert attribute_kill(exit_) is None


def test_an_older_end_has_no_facts_and_sizes_are_told_as_people_compare_them() -> None:
    assert attribute_kill(ExitInfo(signal=9)) is not None
    assert [mib(size) for size in (GIB, GIB // 2, 1536 * 2**20, 516_096)] == [
        "1.00 GiB",
        "512 MiB",
        "1.50 GiB",
        "504 KiB",
    ]
