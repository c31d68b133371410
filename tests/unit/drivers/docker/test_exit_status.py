"""The exit status of a container, as truth tables over the engine's state, memory events, the init
script's record and our stop.
"""

from typing import Any

import msgspec
import pytest

from jobscribe.drivers.docker.containers import exit_status
from jobscribe.drivers.docker.containers.exit_status import RecordedExit
from jobscribe.protocol.jobs.exit_info import OUT_OF_MEMORY

STARTED, FINISHED = "2026-11-21T10:00:00.123456789Z", "2026-11-21T10:00:02.5Z"
AT = 1795255200.0
NO_FILE = 'OCI runtime create failed: container_linux.go:380: starting container process caused: exec: "/bin/sh": stat /bin/sh: no such file'


def state(
    code: int = 0, *, oom: bool = False, status: str = "exited", error: str = "", **more: Any
) -> dict[str, Any]:
    began = status != "created"
    return {
        "Status": status,
        "Running": status in ("running", "paused"),
        "Paused": status == "paused",
        "Restarting": status == "restarting",
        "Dead": status == "dead",
        "OOMKilled": oom,
        "ExitCode": code,
        "Error": error,
        "Pid": 0,
        "StartedAt": STARTED if began else "0001-01-01T00:00:00Z",
        "FinishedAt": FINISHED if began else "0001-01-01T00:00:00Z",
        **more,
    }


KILLED = "its container was killed from outside by signal 9 (SIGKILL) (docker kill, docker stop or an administrator)"
TOLD = "its container was killed from outside by signal 15 (SIGTERM) (docker kill, docker stop or an administrator)"

#: state, memory events, the init script's record, our stop -> (source, code, signal, out_of_memory,
#: detail)
TASKS: list[
    tuple[str, dict[str, Any] | None, int, RecordedExit | None, str | None, tuple[Any, ...]]
] = [
    ("success", state(0), 0, RecordedExit(code=0), None, ("script", 0, None, False, None)),
    ("its own failure", state(3), 0, RecordedExit(code=3), None, ("script", 3, None, False, None)),
    (
        "main process out of memory",
        state(137, oom=True),
        1,
        RecordedExit(signal=9),
        None,
        ("script", None, 9, True, None),
    ),
    (
        "the whole container out of memory",
        state(137, oom=True),
        1,
        None,
        None,
        ("engine", None, 9, True, None),
    ),
    (
        "the engine alone says so",
        state(137, oom=True),
        0,
        None,
        None,
        ("engine", None, 9, True, None),
    ),
    ("the events alone say so", state(137), 2, None, None, ("engine", None, 9, True, None)),
    (
        "a child out of memory, success all the same",
        state(0, oom=True),
        1,
        RecordedExit(code=0),
        None,
        ("script", 0, None, True, None),
    ),
    (
        "a child out of memory, and it noticed",
        state(3, oom=True),
        1,
        RecordedExit(code=3),
        None,
        ("script", 3, None, True, None),
    ),
    ("docker kill", state(137), 0, None, None, ("engine", None, 9, False, KILLED)),
    ("docker stop", state(143), 0, None, None, ("engine", None, 15, False, TOLD)),
    (
        "another signal",
        state(139),
        0,
        None,
        None,
        ("engine", None, 11, False, "its container was killed from outside by signal 11 (SIGSEGV)"),
    ),
    (
        "a code that no signal of process 1 can be",
        state(141),
        0,
        None,
        None,
        ("engine", 141, None, False, None),
    ),
    ("another one", state(130), 0, None, None, ("engine", 130, None, False, None)),
    (
        "our stop, with SIGTERM",
        state(143),
        0,
        RecordedExit(signal=15),
        "cancel",
        ("script", None, 15, False, None),
    ),
    ("our stop, with SIGKILL", state(137), 0, None, "cancel", ("engine", None, 9, False, None)),
    (
        "our stop, and it exited 0",
        state(0),
        0,
        RecordedExit(code=0),
        "timeout",
        ("script", 0, None, False, None),
    ),
    (
        "killed when the command was over",
        state(137),
        0,
        RecordedExit(code=0),
        None,
        ("script", 0, None, False, None),
    ),
    (
        "exit 137 of its own",
        state(137),
        0,
        RecordedExit(code=137),
        None,
        ("script", 137, None, False, None),
    ),
    ("the wrapper could not write", state(2), 0, None, None, ("engine", 2, None, False, None)),
    (
        "no shell: missing",
        state(127, status="created", error=NO_FILE),
        0,
        None,
        None,
        (
            "start",
            None,
            None,
            None,
            f"its image has no shell: /bin/sh cannot be executed there ({NO_FILE})",
        ),
    ),
    (
        "no shell: not executable",
        state(126, status="created", error="permission denied"),
        0,
        None,
        None,
        (
            "start",
            None,
            None,
            None,
            "its image has no shell: /bin/sh cannot be executed there (permission denied)",
        ),
    ),
    (
        "another start failure",
        state(128, status="created", error="no\ndevice  driver"),
        0,
        None,
        None,
        ("start", None, None, None, "its container could not be started: no device driver"),
    ),
    (
        "never started",
        state(0, status="created"),
        0,
        None,
        "cancel",
        ("start", None, None, None, "its container was created, but never started"),
    ),
    (
        "the host went down",
        state(255),
        0,
        None,
        None,
        (
            "lost",
            None,
            None,
            False,
            "its engine or host went down while it ran, so its exit was not recorded",
        ),
    ),
    (
        "the host went down when it was over",
        state(255),
        0,
        RecordedExit(code=0),
        None,
        ("script", 0, None, False, None),
    ),
    (
        "dead",
        state(0, status="dead", error="device busy"),
        0,
        None,
        None,
        (
            "lost",
            None,
            None,
            False,
            "its engine could not remove its container cleanly: device busy",
        ),
    ),
    (
        "removed from outside",
        None,
        0,
        None,
        None,
        ("lost", None, None, None, "its container was removed from outside"),
    ),
    (
        "removed from outside when memory ran out",
        None,
        1,
        None,
        None,
        ("lost", None, None, True, "its container was removed from outside"),
    ),
    (
        "being removed",
        state(137, status="removing", Dead=True),
        0,
        None,
        None,
        ("lost", None, None, None, "its container was removed from outside"),
    ),
    (
        "removed from outside when it was over",
        None,
        0,
        RecordedExit(code=7),
        None,
        ("script", 7, None, None, None),
    ),
]


@pytest.mark.parametrize(
    ("said", "ooms", "recorded", "stop", "expected"),
    [row[1:] for row in TASKS],
    ids=[row[0] for row in TASKS],
)
def test_how_a_task_ended(
    said: dict[str, Any] | None,
    ooms: int,
    recorded: RecordedExit | None,
    stop: str | None,
    expected: tuple[Any, ...],
) -> None:
    out = exit_status.task_exit(said, ooms=ooms, recorded=recorded, stop_reason=stop)
    assert (out.source, out.code, out.signal, out.out_of_memory, out.detail) == expected
    assert out.stop_reason == stop
    assert out.fault == ("noShell" if out.detail is not None and "no shell" in out.detail else None)


def test_what_was_seen_around_an_end() -> None:
    def seen(
        said: dict[str, Any] | None,
        *,
        ooms: int = 0,
        recorded: RecordedExit | None = None,
        stop: str | None = None,
    ) -> Any:
        exit_ = exit_status.task_exit(said, ooms=ooms, recorded=recorded, stop_reason=stop)
        return exit_status.exit_facts(exit_, peak=70, limit=100, ooms=ooms, reported={})

    assert (
        seen(state(0), recorded=RecordedExit(code=0)) is msgspec.UNSET
        and seen(state(status="created")) is msgspec.UNSET
    )
    killed = seen(state(137, oom=True), ooms=2)
    assert (
        killed.memory_peak_bytes,
        killed.memory_limit_bytes,
        killed.memory_kills,
        killed.kernel_unread,
    ) == (70, 100, 2, exit_status.KERNEL_LOG_UNREADABLE)
    # the engine reports out of memory, but no kill count is available
    assert seen(state(137, oom=True)).memory_kills is None and seen(state(137)).memory_kills == 0
    assert seen(state(3), recorded=RecordedExit(code=3)).kernel_unread is None
    assert seen(state(137), stop="cancel").kernel_unread is None
    assert (
        seen(state(137), recorded=RecordedExit(code=137)).kernel_unread
        == exit_status.KERNEL_LOG_UNREADABLE
    )


def test_a_child_out_of_memory_is_a_warning_where_the_run_succeeded() -> None:
    out = exit_status.task_exit(state(0, oom=True), ooms=1, recorded=RecordedExit(code=0))
    assert out.succeeded and OUT_OF_MEMORY in out.sentence()


def test_times_are_the_engines() -> None:
    out = exit_status.task_exit(state(0), recorded=RecordedExit(code=0))
    assert (out.started_at, out.ended_at) == (AT + 0.123456, AT + 2.5)
    for text, expected in (
        ("2026-11-21T10:00:00Z", AT),
        ("2026-11-21T12:00:00.25+02:00", AT + 0.25),
        ("", None),
        ("yesterday", None),
        (None, None),
    ):
        assert (
            exit_status.task_exit(
                state(0, StartedAt=text), recorded=RecordedExit(code=0)
            ).started_at
            == expected
        )
    never = exit_status.task_exit(state(127, status="created", error="x"))
    assert (never.started_at, never.ended_at) == (None, None)


@pytest.mark.parametrize("status", ["running", "paused", "restarting"])
def test_what_runs_has_no_end(status: str) -> None:
    assert exit_status.running(state(status=status))
    with pytest.raises(ValueError, match="not ended"):
        exit_status.task_exit(state(status=status))
    with pytest.raises(ValueError, match="not ended"):
        exit_status.agent_exit_reason(state(status=status))


@pytest.mark.parametrize("status", ["exited", "created", "dead", "removing"])
def test_what_is_over_is_not_running(status: str) -> None:
    assert not exit_status.running(state(status=status))


AGENTS: list[tuple[dict[str, Any] | None, dict[str, Any], str]] = [
    (state(0), {}, "its keeper ended by itself (exit code 0)"),
    (
        state(2),
        {"last_line": "jobscribe keeper: no JSON"},
        "its keeper received an invalid configuration (exit code 2); its last line: jobscribe keeper: no JSON",
    ),
    (state(3), {}, "another keeper uses its folder (exit code 3)"),
    (
        state(137),
        {"last_line": "agent/process.py: what it happened to do"},
        "its container was killed from outside by signal 9 (SIGKILL) (docker kill, docker stop or an administrator)",
    ),
    (state(4), {}, "its keeper could not start an agent (exit code 4)"),
    (state(5), {}, "its keeper could not use its folder (exit code 5)"),
    (state(77), {}, "its keeper ended (exit code 77)"),
    (state(137, oom=True), {}, f"{OUT_OF_MEMORY}: the keeper"),
    (state(137), {"ooms": 3}, f"{OUT_OF_MEMORY}: the keeper"),
    (state(0, oom=True), {}, f"its keeper ended by itself (exit code 0); {OUT_OF_MEMORY}"),
    (state(137), {}, KILLED),
    (state(143), {}, TOLD),
    (state(137), {"stopped": True}, "it was stopped, by signal 9 (SIGKILL)"),
    (state(0), {"stopped": True, "last_line": "bye"}, "it was stopped"),
    (state(255), {}, "its engine or host went down while it ran, so its exit was not recorded"),
    (
        state(0, status="dead", error="busy"),
        {},
        "its engine could not remove its container cleanly: busy",
    ),
    (
        state(127, status="created", error="exec: no such file"),
        {},
        "its container could not be started: exec: no such file",
    ),
    (state(status="created"), {}, "its container was created, but never started"),
    (None, {}, "its container was removed from outside"),
    (None, {"ooms": 1}, f"its container was removed from outside; {OUT_OF_MEMORY}"),
    (None, {"stopped": True}, "its container was stopped and removed"),
    (state(137, status="removing", Dead=True), {}, "its container was removed from outside"),
    (
        state(137, status="removing", oom=True),
        {},
        f"its container was removed from outside; {OUT_OF_MEMORY}",
    ),
]


@pytest.mark.parametrize(("said", "more", "expected"), AGENTS)
def test_why_an_agent_is_gone(
    said: dict[str, Any] | None, more: dict[str, Any], expected: str
) -> None:
    assert exit_status.agent_exit_reason(said, **more) == expected


def test_an_engine_that_talks_much_is_cut_short() -> None:
    out = exit_status.agent_exit_reason(state(1, error="x" * 10_000), last_line="y" * 10_000)
    assert len(out) < 1000 and "\n" not in out


@pytest.mark.parametrize(
    ("code", "error", "failed"),
    [
        (
            128,
            "OCI runtime create failed: error during container init: write init-p: broken pipe",
            True,
        ),
        (127, 'OCI runtime create failed: exec: "/bin/sh": no such file or directory', False),
        (126, "OCI runtime create failed: permission denied", False),
        (128, "driver failed programming external connectivity", False),
        (0, "", False),
    ],
)
def test_a_runtime_that_failed_is_told_from_a_command_that_is_not_there(
    code: int, error: str, failed: bool
) -> None:
    assert (
        exit_status.runtime_failed({"Status": "created", "ExitCode": code, "Error": error})
        == failed
    )
