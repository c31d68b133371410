"""A process is its pid and its start time; a zombie is not alive; a signal never reaches another
process with the same pid.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import jobscribe
from jobscribe.runtime import processes

pytestmark = pytest.mark.process

_PATH = str(Path(jobscribe.__file__).parent / ".types")  # laid by `make venv`


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "86400"], env={"MARK": "one", "OTHER": "x=y", "EMPTY": ""}, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _ticks(pid: int) -> int:
    ticks = processes.start_ticks(pid)
    assert ticks is not None
    return ticks


def test_a_living_process_and_its_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = _ticks(sleeper.pid)
    assert processes.alive(sleeper.pid, ticks)
    assert not processes.alive(sleeper.pid, ticks + 1)
    created = psutil.Process(sleeper.pid).create_time()
    assert abs(psutil.boot_time() + ticks / os.sysconf("SC_CLK_TCK") - created) < 1.5


def test_a_zombie_is_not_alive_but_still_found(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = _ticks(sleeper.pid)
    sleeper.kill()
    _until(lambda: not processes.alive(sleeper.pid, ticks))
    found = processes.find(sleeper.pid)
    assert found is not None and found.over and found.ticks == ticks
    sleeper.wait()
    assert processes.find(sleeper.pid) is None and processes.start_ticks(sleeper.pid) is None


def test_a_name_with_spaces_and_brackets_confuses_nobody() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from jobscribe.runtime import processes as p; import os\n"
        "p.set_title(') S 1 1 (', 'x'); f = p.find(os.getpid()); print(f.parent == os.getppid(), f.session == os.getsid(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, _PATH], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True\n"


def test_boot_id_is_the_kernels() -> None:
    assert processes.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(processes.boot_id()) == 36


def test_children_are_our_own_ones(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in processes.children()
    assert set(processes.children()) == {
        p.pid for p in processes.table().values() if p.parent == os.getpid()
    }


def test_descendants_come_after_their_parents() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 86400 & echo; wait' & wait"], stdout=subprocess.PIPE
    )
    try:
        assert shell.stdout is not None and shell.stdout.readline() == b"\n"
        family = processes.with_descendants([shell.pid], processes.table())
        assert len(family) == 3 and family[0] == shell.pid
        parents = [processes.table()[pid].parent for pid in family]
        assert parents == [os.getpid(), family[0], family[1]]
        assert processes.with_descendants([2**22 + 1], processes.table()) == []
    finally:
        assert shell.stdout is not None
        shell.stdout.close()
        for p in [*psutil.Process(shell.pid).children(recursive=True), psutil.Process(shell.pid)]:
            p.kill()
        shell.wait()


def test_the_environment_that_a_process_was_started_with(sleeper: subprocess.Popen[bytes]) -> None:
    _until(lambda: processes.environment(sleeper.pid, b"MARK")[0] is not None)
    assert processes.environment(sleeper.pid, b"MARK", b"OTHER", b"EMPTY", b"NONE", b"ARK") == [
        b"one",
        b"x=y",
        b"",
        None,
        None,
    ]
    assert processes.environment(2**22 + 1, b"MARK") == [None]


def test_a_large_environment_is_read_to_its_end() -> None:
    env = {f"V{n}": "x" * 100_000 for n in range(10)} | {"ZMARK": "end"}
    process = subprocess.Popen(["sleep", "86400"], env=env)
    try:
        _until(lambda: processes.environment(process.pid, b"ZMARK") == [b"end"])
        assert processes.environment(process.pid, b"V9") == [b"x" * 100_000]
    finally:
        process.kill()
        process.wait()


def test_marked_ones_have_all_entries_and_are_not_us(sleeper: subprocess.Popen[bytes]) -> None:
    _until(lambda: processes.environment(sleeper.pid, b"MARK")[0] is not None)
    everybody = list(processes.table().values())
    assert [p.pid for p in processes.marked([b"MARK=one", b"OTHER=x=y"], everybody)] == [
        sleeper.pid
    ]
    assert processes.marked([b"MARK=one", b"OTHER=z"], everybody) == []
    sleeper.kill()
    _until(lambda: processes.marked([b"MARK=one"], processes.table().values()) == [])


def test_which_file_a_process_has_open_as_a_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as f:
        fd = f.fileno()
        process = subprocess.Popen(["sleep", "86400"], pass_fds=(fd,))
    try:
        assert processes.opened(process.pid, fd) == str(path)
        assert processes.opened(process.pid, fd + 1) is None
    finally:
        process.kill()
        process.wait()
    assert processes.opened(process.pid, fd) is None


@pytest.mark.parametrize("by_pidfd", [True, False])
def test_a_signal_reaches_only_the_process_that_is_meant(
    sleeper: subprocess.Popen[bytes],
    by_pidfd: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not by_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    ticks = _ticks(sleeper.pid)
    assert not processes.send_signal(sleeper.pid, ticks + 1, signal.SIGKILL)
    assert not processes.send_signal(2**22 + 1, ticks, signal.SIGKILL)
    assert processes.send_signal(sleeper.pid, ticks, 0)
    assert sleeper.poll() is None
    assert processes.send_signal(sleeper.pid, ticks, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_killing_goes_on_until_nothing_is_found() -> None:
    mark = f"NAP={os.getpid()}.{time.monotonic_ns()}"
    script = "trap '' TERM; while :; do setsid sleep 86400 & sleep 0.01; done"
    process = subprocess.Popen(
        ["sh", "-c", script], env={"PATH": os.environ["PATH"], **dict([mark.split("=")])}
    )
    look = lambda: processes.marked([mark.encode()], processes.table().values())
    _until(lambda: len(look()) > 5)
    assert processes.kill_until_gone(look, 10) == 0
    assert look() == []
    process.wait()


def test_killing_gives_up_when_its_time_is_over(sleeper: subprocess.Popen[bytes]) -> None:
    other = processes.find(sleeper.pid)
    assert other is not None
    other.ticks += 1  # so that it cannot be killed
    assert processes.kill_until_gone(lambda: [other], 0.05) == 1
    assert sleeper.poll() is None


def test_shortage_of_descriptors_does_not_look_like_an_empty_machine() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom jobscribe.runtime import processes as p\nimport os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "for f in (lambda: p.find(1), lambda: p.children(), lambda: p.environment(os.getpid(), b'A')):\n"
        "    try: f(); print('nothing')\n    except OSError as e: print(e.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, _PATH], capture_output=True, text=True, check=True
    )
    assert done.stdout == "24\n" * 3


def test_the_title_is_shown_and_what_does_not_fit_is_cut() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom jobscribe.runtime import processes as p\n"
        "assert p.set_title('jobscribe keeper', sys.argv[2])\n"
        "print(open('/proc/self/cmdline', 'rb').read().rstrip(b'\\0').decode(), open('/proc/self/comm').read().strip(), sep='|')"
    )

    def shown(root: str, *padding: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, _PATH, root, *padding],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert shown("/a/root é") == "jobscribe keeper /a/root é|jobscribe keepe\n"
    # "python -c program path" has no space for a title that is longer than the whole command line
    program = program.replace("sys.argv[2]", "'/' + 'r' * 9000")
    assert shown("/").startswith("jobscribe keeper /rrrr") and len(shown("/")) < 9000


def test_a_subreaper_inherits_orphans_and_a_process_can_close_itself_up() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom jobscribe.runtime import processes as p\nimport os, time\n"
        "print(p.become_subreaper(), p.set_dumpable(False), os.stat('/proc/self/mem').st_uid)\n"
        "os.system('(sleep 86400 &) ; true')\n"
        "mine = p.children(); print(len(mine)); [os.kill(c, 9) for c in mine]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, _PATH],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stdout == "True True 0\n1\n"


def test_a_stopped_process_is_woken_with_its_children_of_that_title_and_nobody_else() -> None:
    """A child that a user's job has stopped must not be continued."""
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 86401 & sleep 86402 & wait"], start_new_session=True
    )
    try:
        _until(
            lambda: (
                len(
                    [
                        p
                        for p in processes.table().values()
                        if p.parent == parent.pid and _title(p.pid).startswith(b"sleep")
                    ]
                )
                == 2
            )
        )
        ours, other = sorted(
            (p.pid for p in processes.table().values() if p.parent == parent.pid), key=_title
        )
        ticks = _ticks(parent.pid)
        assert processes.wake(parent.pid, ticks, b"sleep\x0086401") == "", "it is not stopped"
        for pid in (ours, other, parent.pid):
            os.kill(pid, signal.SIGSTOP)
            _until(lambda pid=pid: processes.find(pid).state == processes.STOPPED)  # type: ignore[misc, union-attr]
        assert processes.wake(parent.pid, ticks + 1, b"sleep\x0086401") == "", (
            "another process with that pid"
        )
        assert (
            processes.wake(parent.pid, ticks, b"sleep\x0086401")
            == f"; SIGCONT sent to {parent.pid}, {ours}, which a signal had stopped"
        )
        _until(
            lambda: (
                [processes.find(pid).state for pid in (parent.pid, ours, other)]
                == ["S", "S", processes.STOPPED]
            )
        )  # type: ignore[union-attr]
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def _title(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
