"""Selection of kernel log lines about a job: real lines of several kernels, and forged or unrelated
lines.
"""

import errno
import itertools
import os
import time
from pathlib import Path

import pytest

from jobscribe.agent.keeper.linux import kernel_log as reading
from jobscribe.agent.keeper.linux import kernel_log_parser
from jobscribe.agent.keeper.linux.kernel_log import ABSENT, FORBIDDEN, TOO_LONG, KernelLogReader
from jobscribe.protocol.jobs.exit_info import KERNEL_CHARS, KERNEL_LINES

JOB = "/jobscribe-fe00-325175/job-user1234-sim12345-command-1870-1-main-0"
OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/process_api/9{0},"
    "task_memcg=/process_api/9{0},task=tail,pid={1},uid=0"
)
KILLED = (
    "Memory cgroup out of memory: Killed process {} (tail) total-vm:123584kB, anon-rss:121088kB, file-rss:1168kB, shmem-rss:0kB, UID:0 "
    "pgtables:284kB oom_score_adj:500"
)

#: a line, and the pid in it
LINES = [
    (KILLED.format(24816), 24816),
    (OOM.format(JOB, 24741), 24741),
    (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,mems_allowed=0-1,global_oom,task_memcg=/user.slice/session-3.scope,"
        "task=python3,pid=7788,uid=1000",
        7788,
    ),
    (
        "Out of memory: Killed process 7788 (python3) total-vm:66123904kB, anon-rss:65012340kB, file-rss:2048kB, shmem-rss:0kB, UID:1000 "
        "pgtables:127456kB oom_score_adj:0",
        7788,
    ),
    (
        "Memory cgroup out of memory: Kill process 1234 (a.out) score 905 or sacrifice child",
        1234,
    ),  # Linux 3.10, 4.18
    (
        "Killed process 1234 (a.out), UID 1000, total-vm:8392708kB, anon-rss:8388300kB, file-rss:4kB, shmem-rss:0kB",
        1234,
    ),
    (
        "oom_reaper: reaped process 24816 (tail), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        24816,
    ),
    (
        "python3[27143]: segfault at 0 ip 00007f3477585ad8 sp 00007ffeb42dbdc8 error 4 in libc.so.6[167ad8,7f3477444000+156000] likely on CPU 1 "
        "(core 1, socket 0)",
        27143,
    ),
    (
        "a.out[991]: segfault at 7ffd0f8b4ff8 ip 0000000000401136 sp 00007ffd0f8b5000 error 6 in a.out[401000+1000]",
        991,
    ),
    (
        "traps: a.out[4711] trap divide error ip:55d0c0f9a13d sp:7ffe1cd5d6c0 error:0 in a.out[55d0c0f9a000+1000]",
        4711,
    ),
    (
        "traps: sim[4712] trap invalid opcode ip:401126 sp:7ffd5a7a9dc0 error:0 in sim[401000+1000]",
        4712,
    ),
    (
        "traps: python3.11[4713] general protection fault ip:5a2c1f sp:7ffc1d0f3f50 error:0 in python3.11[420000+2b3000]",
        4713,
    ),
    (
        "sim[812]: unhandled level 2 translation fault (11) at 0x00000000, esr 0x92000006, in sim[400000+1000]",
        812,
    ),
    ("Memory failure: 0x1f3b2c: Killing python3:5120 due to hardware memory corruption", 5120),
    ("mce: Killing qemu-kvm:3322 due to hardware memory corruption fault at 7f36a0000000", 3322),
    ("usb 1-1: new high-speed USB device number 24816 using xhci_hcd", None),
    ("[  24816]     0 24816    30896    30272   290816        0           500 tail", None),
    ("tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=500", None),
]


def raw(text: str, at: float = 100.0, priority: int = 6) -> bytes:
    return f"{priority},92634,{int(at * 1e6)},-;{text}\n SUBSYSTEM=x\n".encode()


def records(*lines: str, at: float = 100.0) -> list[kernel_log_parser.Record]:
    return [
        r
        for r in (kernel_log_parser.parse_record(raw(line, at)) for line in lines)
        if r is not None
    ]


@pytest.mark.parametrize(("line", "pid"), LINES, ids=[line[:30] for line, _ in LINES])
def test_whose_end_a_line_tells_of(line: str, pid: int | None) -> None:
    assert kernel_log_parser.pid_of(line) == pid
    if pid is not None:
        assert (
            kernel_log_parser.lines_about(records(line), {pid}, None, 90, 110)[0][:100]
            == line[:100]
        )
        assert kernel_log_parser.lines_about(records(line), {pid + 1}, None, 90, 110) == ()


def test_the_limits_are_those_of_the_protocol() -> None:
    assert (kernel_log_parser.MOST_LINES, kernel_log_parser.MOST_CHARS) == (
        KERNEL_LINES,
        KERNEL_CHARS,
    )


def test_who_was_killed_in_its_cgroup_is_one_of_it_and_his_other_lines_count_too() -> None:
    there = records(OOM.format(JOB, 24741), KILLED.format(24741), KILLED.format(24742))
    lines = kernel_log_parser.lines_about(there, (), JOB, 90, 110)
    assert [line[:20] for line in lines] == ["oom-kill:constraint=", "Memory cgroup out of"]
    assert lines[0].endswith("task=tail,pid=24741,uid=0") and "24741" in lines[1]
    below = f"Task in /docker/ab{JOB}/inner killed as a result of limit of /docker/ab"
    assert kernel_log_parser.lines_about(records(below), (), JOB, 90, 110) == (below,)


@pytest.mark.parametrize(
    "line",
    [
        OOM.format(JOB + "0", 5),
        OOM.format("/other" + JOB.replace("job-", "job-x"), 5),
        # another job was killed at a limit that both share
        f"oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a{JOB},task_memcg=/a/other,task=tail,pid=5,uid=0",
        f"Task in /a/other killed as a result of limit of /a{JOB}",
    ],
)
def test_what_happened_beside_it_is_not_about_it(line: str) -> None:
    assert kernel_log_parser.lines_about(records(line), (), JOB, 90, 110) == ()


@pytest.mark.parametrize(
    "line",
    [
        "z[123]: segfaul[456]: segfault at 0 ip 00 sp 00 error 4",
        "traps: z[123] trap [456] trap divide error ip:1 sp:2 error:0 in a",
        "traps: z[456] trap divide error ip:55d0c0f9a13d sp:7ffe1cd5d6c0 error:0 in z[123] trap x[0+1]",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task_memcg=/,task=z,pid=123,uid=0,pid=456,uid=0",
        "Killed process 456 (Killed process 123 (), UID 0",
    ],
)
def test_a_name_does_not_make_a_process_another(line: str) -> None:
    assert kernel_log_parser.pid_of(line) == 456


def test_only_the_kernel_speaks() -> None:
    assert kernel_log_parser.parse_record(raw(KILLED.format(1), priority=6)) is not None
    assert (
        kernel_log_parser.parse_record(raw(KILLED.format(1), priority=14)) is None
    )  # a user process wrote the line
    for junk in (
        b"",
        b";",
        b"6,1;x",
        b"x,1,2,-;Killed process 1 (x)",
        b"6,1,x,-;Killed process 1 (x)",
        b"\xff" * 50,
    ):
        assert kernel_log_parser.parse_record(junk) is None
    odd = kernel_log_parser.parse_record(b"6,1,2,-;Killed process 7 (\xff\\x0a) total\n")
    assert odd is not None and odd.pid == 7 and odd.text.isascii()


def test_other_times_do_not_count_and_the_newest_few_do() -> None:
    line = KILLED.format(9)
    for at, found in ((50.0, False), (89.0, True), (100.0, True), (111.5, True), (150.0, False)):
        assert (
            bool(kernel_log_parser.lines_about(records(line, at=at), {9}, None, 90, 110)) is found
        ), at
    # the kernel log's clock drifts, so on a machine with a long uptime its timestamps may be off
    assert kernel_log_parser.lines_about(
        records(line, at=1_000_050), {9}, None, 1_000_000, 1_000_010
    ) == (line,)
    many = records(*(f"Killed process 9 (n{n})" for n in range(9)))
    assert kernel_log_parser.lines_about(many, {9}, None, 90, 110) == tuple(
        f"Killed process 9 (n{n})" for n in range(4, 9)
    )


def test_a_long_line_keeps_its_ends() -> None:
    long = OOM.format("/x" * 400 + JOB, 24741)
    line = kernel_log_parser.lines_about(records(long), (), JOB, 90, 110)[0]
    assert (
        len(line) == KERNEL_CHARS
        and line.startswith("oom-kill:constraint=")
        and line.endswith("pid=24741,uid=0")
    )


# ---- the reader


class Pipe:
    """A fake /dev/kmsg: every read returns one record, until none is left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[bytes | OSError] = []
        self.kernel = KernelLogReader("/dev/null", os.makedev(1, 3))
        assert self.kernel.unread is None
        self.kernel._same_pids = True
        monkeypatch.setattr(reading.os, "read", self._read)

    def _read(self, fd: int, size: int) -> bytes:
        if not self.given:
            raise BlockingIOError
        said = self.given.pop(0)
        if isinstance(said, OSError):
            raise said
        return said


def test_lines_are_read_beside_the_rest_and_found_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, now = Pipe(monkeypatch), time.monotonic()
    pipe.given = [raw("eth0: link up", now), raw(KILLED.format(77), now)]
    assert pipe.kernel.read()
    pipe.given = [raw(KILLED.format(78), now)]
    assert pipe.kernel.lines_about({77, 78}, None, now, expected=True) == (
        (KILLED.format(77), KILLED.format(78)),
        None,
    )


def test_what_was_overrun_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, now = Pipe(monkeypatch), time.monotonic()
    pipe.given = [OSError(errno.EPIPE, "overrun"), raw(KILLED.format(78), now)]
    assert pipe.kernel.lines_about({78}, None, now, expected=False) == ((KILLED.format(78),), None)


def test_a_line_that_comes_a_moment_after_the_death_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, now = Pipe(monkeypatch), time.monotonic()
    slept: list[float] = []

    def sleep(secs: float) -> None:
        slept.append(secs)
        pipe.given = [raw(KILLED.format(78), now)]

    monkeypatch.setattr(reading.time, "sleep", sleep)
    assert pipe.kernel.lines_about({78}, None, now, expected=False) == ((), None) and slept == []
    assert pipe.kernel.lines_about({78}, None, now, expected=True) == ((KILLED.format(78),), None)
    assert len(slept) == 1 and slept[0] <= 0.005


def test_an_endless_log_does_not_keep_an_end_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, now = Pipe(monkeypatch), time.monotonic()
    monkeypatch.setattr(reading.os, "read", lambda fd, size: raw(KILLED.format(78), now))
    assert reading.AT_END_SECS + reading.BESIDE_SECS + reading._LATE_SECS <= 0.02
    began = time.process_time()  # CPU time, because other processes may keep the machine busy
    lines, unread = pipe.kernel.lines_about({78}, None, now, expected=True)
    assert time.process_time() - began < 5 * 0.02
    assert len(lines) == KERNEL_LINES and unread == TOO_LONG


def test_a_busy_machine_does_not_make_the_log_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes may run for longer than the limit between two records."""
    pipe, now = Pipe(monkeypatch), time.monotonic()
    pipe.given = [raw("eth0: link up", now)] * 100 + [raw(KILLED.format(78), now)]
    passed = itertools.count(now)
    monkeypatch.setattr(reading.time, "monotonic", lambda: next(passed))
    lines, unread = pipe.kernel.lines_about({78}, None, now, expected=True)
    assert (lines, unread) == ((KILLED.format(78),), None)


def test_elsewhere_numbers_of_processes_mean_nothing_and_cgroups_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, now = Pipe(monkeypatch), time.monotonic()
    pipe.kernel._same_pids = False
    pipe.given = [raw(KILLED.format(78), now), raw(OOM.format(JOB, 79), now)]
    lines, _ = pipe.kernel.lines_about({78}, JOB, now, expected=False)
    assert len(lines) == 1 and lines[0].endswith("pid=79,uid=0")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.EPERM, FORBIDDEN),
        (errno.EACCES, FORBIDDEN),
        (errno.ENOENT, ABSENT),
        (errno.ENXIO, ABSENT),
        (errno.EMFILE, "cannot read the kernel log: Too many open files"),
    ],
)
def test_why_it_cannot_be_read_is_said(
    monkeypatch: pytest.MonkeyPatch, error: int, said: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(reading.os, "open", refuse)
    kernel = KernelLogReader()
    kernel.skip()
    assert kernel.lines_about({1}, None, 0.0, expected=True) == ((), said)


def test_what_is_no_kernel_log_is_not_read(tmp_path: Path) -> None:
    """In a container, the path may be its console, a pipe or a file."""
    (tmp_path / "file").write_text("6,1,1,-;Killed process 1 (x)\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("file", "pipe", "link", "none"):
        assert KernelLogReader(str(tmp_path / name)).unread == ABSENT
    assert KernelLogReader("/dev/null").unread == ABSENT
