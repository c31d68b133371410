"""Facts that a keeper collects about an exit: memory use, kernel messages, and whether a shell
produced the exit code.

The tests tell four ends with 137 apart: out of memory, a foreign `kill -9`, `exit 137`, and our own
stop.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from jobscribe.agent.keeper.executions import exit_facts as keeping_facts
from jobscribe.agent.keeper.executions import process_sampler
from jobscribe.agent.keeper.executions.state import Execution
from jobscribe.agent.keeper.linux import cgroup_memory
from jobscribe.agent.keeper.linux.kernel_log import ABSENT, FORBIDDEN, KernelLogReader
from jobscribe.agent.keeper.linux.priority import Priorities
from jobscribe.diagnosis.classification import classify_by_facts
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import KERNEL_SIGNALS, ExitFacts, ExitInfo
from jobscribe.protocol.launch.job_script import script
from jobscribe.protocol.wire.messages import TaskSpec
from jobscribe.runtime.execution.folder import command_facts, from_code, via_shell

from ..conftest import NOBODY, Keeper, until
from .test_oom import EATS, LIMIT, small
from .test_oom import keeper as limited_keeper

pytestmark = pytest.mark.process

__all__ = ["limited_keeper", "small"]
#: A faulthandler catches the signal and sends its own, so the kernel logs nothing.
CRASHES = ("env", "-u", "PYTHONFAULTHANDLER", "python3", "-c")
NULL_POINTER = "import ctypes; ctypes.string_at(0)"


def facts_of(exit_: ExitInfo) -> ExitFacts:
    assert isinstance(exit_.facts, ExitFacts), exit_
    return exit_.facts


def readable() -> bool:
    return KernelLogReader().unread is None


# ---- out of memory


@pytest.fixture
def who(request: pytest.FixtureRequest) -> int:
    """Run as the current user unless the test sets another uid."""
    return int(getattr(request, "param", -1))


def test_memory_that_ran_out_is_told_with_its_peak_its_limit_and_what_the_kernel_wrote(
    limited_keeper: Keeper,
) -> None:
    keeper = limited_keeper
    own = keeper.hello["cgroups"] in ("v1", "v2")
    # the sleep lets the keeper see the process before the kill: the kernel always logs the pid, but
    # not always the cgroup
    token = keeper.launch(f"sleep 0.6; exec {EATS}")
    exit_ = keeper.end_of(token)
    found = facts_of(exit_)
    assert (exit_.signal, exit_.out_of_memory, found.memory_limit_bytes) == (
        signal.SIGKILL,
        True,
        LIMIT,
    )
    assert found.memory_kills == (1 if own else None)
    assert found.memory_peak_bytes is not None and 0.5 * LIMIT < found.memory_peak_bytes <= LIMIT
    if own:  # the keeper in the same cgroup uses the rest
        assert found.memory_peak_bytes > 0.85 * LIMIT
    if readable():
        assert found.kernel_unread is None
        assert any("Killed process" in line and "(tail)" in line for line in found.kernel), found
    else:
        assert found.kernel_unread in (FORBIDDEN, ABSENT)


def test_a_shell_whose_command_was_killed_hands_on_the_code_and_that_is_known(
    limited_keeper: Keeper,
) -> None:
    exit_ = limited_keeper.run(f"sh -c 'sleep 0.1; exec {EATS}'; exit $?")
    assert (exit_.code, exit_.out_of_memory, facts_of(exit_).via_shell) == (137, True, True)


# ---- other ends with 137


@pytest.mark.parametrize("who", [-1, NOBODY], indirect=True)
def test_the_other_three_kinds_of_137_have_nothing_to_do_with_memory(
    keeper: Keeper, who: int
) -> None:
    if who >= 0 and os.getuid() != 0:
        pytest.skip(
            "the tests do not run as root, so the half that runs as another user is left out; run it as root"
        )
    killed, alone = keeper.run("kill -KILL $$"), keeper.run("exit 137")
    through = keeper.run("sh -c 'kill -KILL $$'; exit $?")
    token = keeper.started("trap '' TERM; sleep NAP; sleep NAP")
    keeper.stop(token, grace=0)
    stopped = keeper.end_of(token)
    assert [(e.signal, e.code, e.stop_reason) for e in (killed, alone, through, stopped)] == [
        (9, None, None),
        (None, 137, None),
        (None, 137, None),
        (9, None, "cancel"),
    ]
    assert [facts_of(e).via_shell for e in (killed, alone, through, stopped)] == [
        None,
        None,
        True,
        None,
    ]
    for exit_ in (killed, alone, through):
        assert facts_of(exit_).kernel == () and facts_of(exit_).memory_kills in (0, None)
        if who >= 0:
            assert facts_of(exit_).kernel_unread in (None, FORBIDDEN, ABSENT)
    # our own stop: the kernel log is not read
    assert facts_of(stopped).kernel == () and facts_of(stopped).kernel_unread is None


def test_a_success_needs_no_facts_and_a_plain_failure_has_few(keeper: Keeper) -> None:
    assert keeper.run("exit 0").facts is msgspec.UNSET
    found = facts_of(keeper.run("exit 3"))
    assert found.memory_peak_bytes is not None and found.memory_peak_bytes > 50_000
    assert (found.kernel, found.kernel_unread, found.via_shell) == ((), None, None)


def test_a_program_that_is_no_shell_made_its_code_itself(keeper: Keeper) -> None:
    exit_ = keeper.run(command=("python3", "-c", "import sys; sys.exit(143)"))
    assert (exit_.code, facts_of(exit_).via_shell) == (143, False)


def test_limits_of_one_process_are_known_from_the_text_and_from_its_processes(
    keeper: Keeper, tmp_path: Path
) -> None:
    """The keeper reads limits from the command's text. For limits that a script sets, it inspects
    the processes.
    """
    assert facts_of(keeper.run("ulimit -S -v 300000; ulimit -f 9; exit 3")).ulimits == (
        "ulimit -S -v 300000",
        "ulimit -f 9",
    )
    script = tmp_path / "burn.sh"
    script.write_text("ulimit -t 1\nwhile :; do :; done\n")
    exit_ = keeper.run(command=("/bin/sh", str(script)))
    assert exit_.signal == signal.SIGKILL and facts_of(exit_).ulimits == ("ulimit -t 1",)
    assert classify_by_facts(exit_).cause == "cpuLimit"


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        (("sh", "-c", "timeout 5 x; exit 3"), True),
        (("timeout", "-k", "1", "0.1", "sleep", "9"), True),
        (("sh", "-c", "echo timeout; exit 3"), False),
        (("sh", "-c", "a && timeout -s INT 9 b; exit 3"), True),
        (("sh", "-c", "mytimeout 5; exit 3"), False),
    ],
)
def test_whether_a_text_calls_timeout(
    tmp_path: Path, command: tuple[str, ...], calls: bool
) -> None:
    text = script(
        Token("user0001-sim00001-command", 1, 1, "main", 0),
        TaskSpec(command=command, run_dir="/r"),
        {},
        tmp_path,
    )
    (tmp_path / "script.sh").write_text(text)
    assert command_facts(str(tmp_path)) == ({"callsTimeout": True} if calls else {})


@pytest.mark.parametrize("use", ["auto", "v2", "off"])
def test_a_crash_is_found_in_the_kernels_log_a_threads_too(
    new_keeper: Callable[..., Keeper], use: str
) -> None:
    if not readable():
        pytest.skip(
            "the kernel's log may not be read here: run the tests as root, on a machine and not in a container, or set kernel.dmesg_restrict=0"
        )
    if Path("/proc/sys/debug/exception-trace").read_text().strip() != "1":
        pytest.skip(
            "this kernel does not write crashes of programs down: set debug.exception-trace=1"
        )
    keeper = new_keeper(cgroups={"use": use})
    if use == "v2" and not str(keeper.hello["cgroups"]).startswith("v2"):
        pytest.skip(f"a keeper can make no cgroups of version 2 here: {keeper.hello['cgroups']}")
    thread = f"import threading, time; t = threading.Thread(target=lambda: (time.sleep(0.8), exec({NULL_POINTER!r}))); t.start(); t.join()"
    tokens = [
        keeper.launch(command=(*CRASHES, text))
        for text in (f"import time; time.sleep(0.7); {NULL_POINTER}", thread)
    ]
    for token in tokens:
        exit_ = keeper.end_of(token)
        lines = facts_of(exit_).kernel
        assert exit_.signal == signal.SIGSEGV
        assert len(lines) == 1 and "segfault at 0 ip" in lines[0], lines


def test_memory_without_a_count_is_what_was_seen(new_keeper: Callable[..., Keeper]) -> None:
    """Several processes together use more than the largest one."""
    # until all have it, and until the next sample
    eats = "import os, time; a = bytearray(40 << 20); os.mkfifo(os.environ['n']); time.sleep(0.1)\nwhile len(os.listdir()) < 3: time.sleep(0.1)\ntime.sleep(2.2)"
    exit_ = new_keeper(cgroups={"use": "off"}).run(
        f'mkdir eaten; cd eaten; for n in 1 2 3; do n=$n python3 -c "{eats}" & done; wait; exit 3'
    )
    assert exit_.max_rss_bytes is not None and exit_.max_rss_bytes < 70 << 20
    peak = facts_of(exit_).memory_peak_bytes
    assert peak is not None and 110 << 20 < peak < 200 << 20


def test_a_limit_of_the_process_is_one_too(new_keeper: Callable[..., Keeper]) -> None:
    keeper = new_keeper(through=("/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh"))
    found = facts_of(keeper.run("exit 3"))
    assert found.memory_limit_bytes is not None and found.memory_limit_bytes <= 4_000_000 * 1024


def test_the_next_keeper_finds_what_was_written_while_none_was_there(
    new_keeper: Callable[..., Keeper],
) -> None:
    if not readable():
        pytest.skip(
            "the kernel's log may not be read here: run the tests as root, on a machine and not in a container, or set kernel.dmesg_restrict=0"
        )
    first = new_keeper()
    token = first.started(
        command=(
            *CRASHES,
            f"import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)\n{NULL_POINTER}",
        )
    )
    seen = until(lambda: [p for p in _children(first.process.pid) if b"python3" in _command(p)])
    first.kill()
    following = new_keeper()
    time.sleep(0.5)  # the keeper samples the process and learns its pid
    (following.run_dir(token) / "go").touch()
    exit_ = following.end_of(token)
    assert exit_.signal == signal.SIGSEGV
    assert any(f"[{seen[0]}]: segfault at 0" in line for line in facts_of(exit_).kernel), exit_


def _children(pid: int) -> list[int]:
    out = [pid]
    for p in out:
        for task in Path(f"/proc/{p}/task").glob("*/children"):
            out += [int(c) for c in task.read_text().split()]
    return out[1:]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return b""


# ---- single functions


def test_the_keeper_knows_the_same_signals_as_the_protocol() -> None:
    assert keeping_facts._KERNEL_SIGNALS == KERNEL_SIGNALS


@pytest.mark.parametrize(
    ("files", "limit", "peak"),
    [
        ({"memory.max": "max\n", "memory.peak": "123\n"}, None, 123),
        ({"memory.max": "1048576\n", "memory.current": "7\n"}, 1 << 20, None),
        (
            {
                "memory.limit_in_bytes": "9223372036854771712\n",
                "memory.max_usage_in_bytes": "5\n",
                "memory.stat": "cache 0\nhierarchical_memory_limit 4096\n",
            },
            4096,
            5,
        ),
        ({"memory.stat": "cache 0\nhierarchical_memory_limit 9223372036854771712\n"}, None, None),
        ({}, None, None),
    ],
)
def test_both_versions_of_cgroups_are_read(
    tmp_path: Path, files: dict[str, str], limit: int | None, peak: int | None
) -> None:
    for name, text in (files | {"cgroup.procs": ""}).items():
        (tmp_path / name).write_text(text)
    assert (cgroup_memory.limit(str(tmp_path)), cgroup_memory.peak(str(tmp_path))) == (limit, peak)


def test_the_least_limit_above_counts_in_version_2(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for folder, most in ((tmp_path, "5000"), (tmp_path / "a", "max"), (below, "9000")):
        (folder / "cgroup.procs").write_text("")
        (folder / "memory.max").write_text(f"{most}\n")
    assert cgroup_memory.limit(str(below)) == 5000 and cgroup_memory.limit(None) is None


@pytest.mark.parametrize(
    ("words", "code", "number"),
    [
        ("Killed\n", 137, 9),
        ("", 137, None),
        ("SIGINT\n", 130, 2),
        ("SIGINT\n", 137, None),
        ("", 130, None),
        ("Killed\n", 130, None),
        ("Broken pipe\n", 141, None),
        ("/bin/sh: warning: setlocale: LC_ALL: cannot change locale (xx)\n", 137, None),
        ("SIGINT\nTerminated\n", 143, 15),
        ("its script was ended by a signal\n", 137, 9),
    ],
)
def test_what_the_shell_of_the_script_says_tells_a_signal_from_a_code(
    tmp_path: Path, words: str, code: int, number: int | None
) -> None:
    (tmp_path / "signal").write_text(words)
    found = from_code(str(tmp_path), code)
    assert (found.get("code"), found.get("signal")) == (
        (code, None) if number is None else (None, number)
    )


@pytest.mark.parametrize(
    ("code", "stderr", "command", "said"),
    [
        (
            137,
            "/bin/bash: line 1: 12345 Killed                  sim\n",
            "'/bin/bash' '-c' 'x' ",
            True,
        ),
        (137, "working\nKilled\n", "'sh' 'x' ", True),
        (
            139,
            "run.sh: line 7:   881 Segmentation fault      (core dumped) ./sim < in\n",
            "'./run.sh' ",
            True,
        ),
        (139, "Segmentation fault (core dumped)\n", "'./run.sh' ", True),
        (143, "run.sh: line 7: 881 Killed sim\n", "'./run.sh' ", None),
        (137, "Killed by the user\n", "'./run.sh' ", None),
        (137, "it said: Killed\n", "'./run.sh' ", None),
        (137, "", "'python3.11' '-m' 'x' ", False),
        (137, "", "'/usr/bin/python' 'x' ", False),
        (137, "", "'./python-run.sh' ", None),
        (130, "", "'python3' 'x' ", None),
        (141, "", "'python3' 'x' ", None),
        (137, "", "\"$3\" '-c' 'x' ", None),
        (3, "Killed\n", "'sh' ", None),
        (255, "Killed\n", "'sh' ", None),
        (0, "", "'python3' 'x' ", None),
    ],
)
def test_whether_a_shell_made_a_code(
    tmp_path: Path, code: int, stderr: str, command: str, said: bool | None
) -> None:
    (tmp_path / "stderr.log").write_text(stderr)
    (tmp_path / "script.sh").write_text(f"#!/bin/sh\n( exec {command}2>&3 3>&- )\n")
    assert via_shell(str(tmp_path), code) is said


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "999"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def test_looking_is_bounded_and_takes_turns(sleeper: int) -> None:
    many = [Execution(f"n{n}", "t", "/nowhere") for n in range(50)]
    for e in many:
        e.pid = sleeper
    for _ in range(200):
        process_sampler.sample_executions(many, Priorities())
        if all(e.samples.ids for e in many):
            break
    assert all(sleeper in e.samples.ids for e in many)
    paused = [e.samples.next_at for e in many]
    process_sampler.sample_executions(many, Priorities())
    assert [e.samples.next_at for e in many] == paused or min(paused) <= time.monotonic()
    process_sampler._record_ids(many[0], list(range(10_000, 12_000)))
    assert (
        len(many[0].samples.ids) == process_sampler._REMEMBERED
        and 11_999 in many[0].samples.ids
        and 10_000 not in many[0].samples.ids
    )
