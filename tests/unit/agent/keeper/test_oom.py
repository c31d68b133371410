"""Out-of-memory kills by the real kernel: reported for the job they hit, denied for other jobs, and
unknown without evidence.

The keeper runs in a memory cgroup with a small limit. `tail /dev/zero` keeps its whole input in
memory, so it reaches the limit.
"""

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobscribe.agent.keeper.linux import cgroup_mounts, oom_detection
from jobscribe.protocol.jobs.exit_info import FAULTS, ExitInfo

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

LIMIT = 128 << 20
EATS = "tail /dev/zero"


def _own(version: int, controller: str) -> Path | None:
    """Return this process's own cgroup folder in the hierarchy, or None if it is not visible."""
    path = cgroup_mounts.own_paths().get(controller if version == 1 else "")
    found = (
        m.folder(path)
        for m in cgroup_mounts.mounts()
        if m.version == version and (version == 2 or controller in m.controllers)
    )
    return next((Path(f) for f in found if f is not None), None)


def _made(name: str) -> tuple[Path, str] | None:
    """Create a memory cgroup with the limit. Return its folder and the name of the file that moves
    a process into it, or None if the kernel refuses.
    """
    v1, v2 = _own(1, "memory"), _own(2, "memory")
    with contextlib.suppress(OSError):
        if v1 is not None:
            (v1 / name).mkdir()
            (v1 / name / "memory.limit_in_bytes").write_text(str(LIMIT))
            return v1 / name, "cgroup.procs"
    with contextlib.suppress(OSError):
        if v2 is not None and "memory" in (v2 / "cgroup.subtree_control").read_text():
            (v2 / name).mkdir()
            (v2 / name / "memory.max").write_text(str(LIMIT))
            return v2 / name, "cgroup.procs"
    return None


@pytest.fixture
def who() -> int:
    return -1


@pytest.fixture
def small() -> Iterator[tuple[str, ...]]:
    """Yield a command prefix that runs its arguments in the limited cgroup."""
    made = _made(f"jobscribe-test-{os.getpid()}")
    if made is None:
        pytest.skip(
            "no memory cgroup with a limit can be made here: run the tests as root where cgroups may be written (or under Delegate=yes)"
        )
    folder, file = made
    yield ("/bin/sh", "-c", f'echo 0 >{folder}/{file} || exit 9; exec "$@"', "sh")

    def removed() -> bool:
        for below in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                below.rmdir()
        with contextlib.suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    until(removed)


@pytest.fixture(params=["auto", "off"])
def keeper(
    request: pytest.FixtureRequest, small: tuple[str, ...], new_keeper: Callable[..., Keeper]
) -> Keeper:
    keeper = new_keeper(through=small, cgroups={"use": request.param})
    if request.param == "auto" and not _has_own(keeper):
        pytest.skip(
            f"a keeper can make no memory cgroups of its own here: {keeper.hello['cgroups']}"
        )
    return keeper


def _has_own(keeper: Keeper) -> bool:
    return str(keeper.hello["cgroups"]) in ("v1", "v2")


def test_the_main_process_is_killed(keeper: Keeper) -> None:
    exit_ = keeper.run(f"exec {EATS}")
    assert (exit_.signal, exit_.stop_reason, exit_.out_of_memory) == (signal.SIGKILL, None, True)
    assert (
        exit_.sentence()
        == "ended by signal 9 (SIGKILL); memory ran out, so the kernel killed one of its processes"
    )


def test_a_child_is_killed_and_its_code_is_handed_on(keeper: Keeper) -> None:
    exit_ = keeper.run(f"sh -c '{EATS}'; exit $?")
    assert (exit_.code, exit_.out_of_memory) == (137, True)


def test_an_exit_0_stays_one_and_the_child_that_was_killed_is_told(keeper: Keeper) -> None:
    exit_ = keeper.run(f"{EATS}; exit 0")
    assert (exit_.ok, exit_.signal) == (True, None)
    # without its own counter, the kill could be another process in the shared cgroup
    assert exit_.out_of_memory is (True if _has_own(keeper) else None)
    if _has_own(keeper):
        assert "memory ran out" in exit_.sentence()


def test_a_grandchild_that_shed_everything_is_counted(keeper: Keeper) -> None:
    exit_ = keeper.run(
        f"setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; {EATS}; exit 0'; exit 3"
    )
    assert exit_.code == 3 and exit_.out_of_memory is (True if _has_own(keeper) else None)


def test_other_ends_have_nothing_to_do_with_memory(keeper: Keeper) -> None:
    for shell, code in (("exit 0", 0), ("exit 3", 3), ("exit 137", 137), ("kill -KILL $$", None)):
        exit_ = keeper.run(shell)
        assert (exit_.code, exit_.out_of_memory) == (code, False), shell
    token = keeper.started("trap '' TERM; sleep NAP; sleep NAP")
    keeper.stop(token, grace=0)
    assert keeper.end_of(token).out_of_memory is False


def test_what_happens_to_a_neighbour_is_not_taken_for_ones_own(keeper: Keeper) -> None:
    """One job sleeps while another is killed, then exits by itself. A third starts after the kill."""
    sleeps = keeper.started("sleep NAP; exit 4")
    assert keeper.run(f"exec {EATS}").out_of_memory is True
    keeper.wake()
    exit_ = keeper.end_of(sleeps)
    assert exit_.code == 4 and exit_.out_of_memory is (False if _has_own(keeper) else None)
    assert keeper.run("kill -KILL $$").out_of_memory is False


def test_the_next_keeper_tells_it_too(
    small: tuple[str, ...], new_keeper: Callable[..., Keeper]
) -> None:
    """The cgroup's counter, or the counts stored at the start, survive the keeper."""
    for use, signalled in (("auto", True), ("off", True), ("auto", False)):
        first = new_keeper(through=small, cgroups={"use": use})
        token = first.started(
            f"while [ ! -e go ]; do sleep 0.02; done; {EATS}; exit 137"
            if signalled
            else "sleep NAP; exit 5"
        )
        until(lambda k=first, t=token: k.run_dir(t).exists())
        first.kill()
        time.sleep(0.1)
        if signalled:
            (first.run_dir(token) / "go").touch()
            until(lambda k=first, t=token: (k.evidence(t) / "wait-status.json").exists())
        else:
            first.wake()
        following = new_keeper(through=small, cgroups={"use": use})
        exit_ = (
            following.end_of(token)
            if following.hello["executions"][-1]["state"] == "running"
            else None
        )
        said = following.evidence(token) / "exit.json"
        until(said.exists)
        text = said.read_text()
        assert ('"outOfMemory": true' in text) is signalled, (use, text, exit_)
        following.send(do="forget", names=[token.name])
        following.close()


def test_the_memory_of_a_job_is_its_own_to_count_only_while_it_lives(keeper: Keeper) -> None:
    """The cgroup is removed after the report, and the next one starts its count at 0."""
    assert keeper.run(f"{EATS}; exit 0").ok
    assert keeper.run("exit 0").out_of_memory is False
    families = json.loads((keeper.folder / "keeper.json").read_text())["cgroups"]
    assert bool(families) is _has_own(keeper)
    until(lambda: not [c for f in families for c in os.listdir(f) if c.startswith("job-")])


# ---- the decision function

SAME = ({"machine": 4, "around": 2}, {"machine": 4, "around": 2})
ROSE = ({"machine": 4, "around": 2}, {"machine": 5, "around": 3})
UNKNOWN: tuple[dict[str, int], dict[str, int]] = ({}, {})


@pytest.mark.parametrize(
    ("counters", "own", "killed", "said"),
    [
        (SAME, None, True, False),
        (SAME, 0, True, False),
        (SAME, None, False, False),
        (ROSE, None, True, True),
        (ROSE, None, False, None),
        (ROSE, 0, True, False),
        (ROSE, 1, False, True),
        (ROSE, 2, True, True),
        (
            ({"machine": 4, "around": 2}, {"machine": 5, "around": 2}),
            None,
            True,
            False,
        ),  # the kill was elsewhere on the machine
        (({"machine": 4, "around": None}, {"machine": 5, "around": None}), None, True, None),
        (({"machine": 4, "around": None}, {"machine": 4, "around": None}), None, True, False),
        (({"machine": None, "around": 2}, {"machine": None, "around": 3}), None, True, True),
        (({"machine": None, "around": 2}, {"machine": None, "around": 2}), None, True, False),
        (UNKNOWN, None, True, None),
        ((None, {"machine": 5, "around": 3}), None, True, None),
        (({"machine": "4"}, {"machine": 4}), None, True, None),
    ],
)
def test_what_the_counters_say(
    counters: tuple[Any, Any], own: int | None, killed: bool, said: bool | None
) -> None:
    assert oom_detection.out_of_memory(*counters, own, killed=killed) is said


@pytest.mark.parametrize(
    ("exit_", "by_us", "said"),
    [
        ({"signal": 9}, False, True),
        ({"signal": 9}, True, False),
        ({"code": 137}, False, True),
        ({"code": 0}, False, False),
        ({"signal": 15}, False, False),
        ({"source": "lost"}, False, False),
    ],
)
def test_whose_end_was_a_kill(exit_: dict[str, Any], by_us: bool, said: bool) -> None:
    assert oom_detection.was_killed(exit_, by_us=by_us) is said


def test_what_an_older_version_wrote_is_not_known() -> None:
    assert msgspec.convert({"source": "keeper", "signal": 9}, ExitInfo).out_of_memory is None
    assert (
        msgspec.json.decode(b'{"source": "keeper", "code": 0}', type=ExitInfo).sentence()
        == "exit code 0"
    )


@pytest.mark.parametrize(
    ("exit_", "sentence"),
    [
        (
            ExitInfo(code=0, out_of_memory=True),
            "exit code 0; memory ran out, so the kernel killed one of its processes",
        ),
        (ExitInfo(code=0, out_of_memory=False), "exit code 0"),
        (ExitInfo(signal=9), "ended by signal 9 (SIGKILL)"),
        (
            ExitInfo(source="lost", detail="nobody saw it", out_of_memory=True),
            "exit status unknown: nobody saw it; memory ran out, so the kernel killed one of its processes",
        ),
    ],
)
def test_the_sentence(exit_: ExitInfo, sentence: str) -> None:
    assert exit_.sentence() == sentence


@pytest.mark.parametrize(
    ("number", "spawning", "shell", "word", "said"),
    [
        (errno.EAGAIN, True, True, "noProcesses", "cannot create another process"),
        (errno.EMFILE, True, True, "noDescriptors", "Too many open files"),
        (errno.ENFILE, False, True, "noDescriptors", "this machine has no file descriptor left"),
        (errno.ENOMEM, True, True, "noMemory", "Cannot allocate memory"),
        (errno.ENOSPC, False, True, "diskFull", "No space left on device: /x"),
        (errno.EDQUOT, False, True, "diskFull", "quota"),
        (errno.EROFS, False, True, "notWritable", "read-only"),
        (errno.EACCES, False, True, "notWritable", "Permission denied: /x"),
        (errno.ENOENT, True, False, "noShell", "the shell for its script cannot be run"),
        (errno.ENOENT, True, True, None, "No such file or directory: /x"),
        (errno.EIO, False, True, None, "Input/output error: /x"),
    ],
)
def test_a_start_that_fails_has_a_word_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    spawning: bool,
    shell: bool,
    word: str | None,
    said: str,
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: shell or path != "/bin/sh")
    found, sentence = oom_detection.describe_fault(
        OSError(number, os.strerror(number), "/x"), spawning=spawning
    )
    assert found == word and said in sentence
    assert word is None or FAULTS[word]
