"""Hostile jobs: no process is left after a job's end, and a stop ends a job within its grace period
plus one second.
"""

import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

#: Each command leaves a process when its main process ends. The test replaces NAP with its sleep.
LEAVES = {
    "a child in the background": "sleep NAP & exit 3",
    "a session of its own": "setsid sleep NAP & exit 3",
    "a daemon, forked twice": "( setsid sh -c 'sleep NAP & exec sleep NAP' & ); sleep 0.1; exit 3",
    "deaf to SIGTERM": "(trap '' TERM HUP INT; sleep NAP; sleep NAP) & exit 3",
    "all descriptors closed": "setsid sh -c 'exec 0<&- 1>&- 2>&- 3>&- 9>&-; sleep NAP' & exit 3",
    "a cleaned environment": "( setsid env -i /bin/sleep NAP & ); sleep 0.1; exit 3",
    "everything shed at once": "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; /bin/sleep NAP & /bin/sleep NAP' & ); sleep 0.1; exit 3",
    "many": "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do setsid sleep NAP & done; exit 3",
    "stopped": "setsid sh -c 'kill -STOP $$; sleep NAP' x NAP & sleep 0.1; exit 3",
}

#: Each command runs forever; some resist a stop.
STAYS = {
    "sleeps": "sleep NAP",
    "deaf to SIGTERM": "trap '' TERM HUP INT; while :; do sleep NAP; done",
    "a deaf child in its own session": "setsid sh -c \"trap '' TERM; sleep NAP; sleep NAP\" & sleep NAP",
    "a daemon, forked twice": "( setsid sh -c 'sleep NAP & exec sleep NAP' & ); sleep NAP",
    "everything shed at once": "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; /bin/sleep NAP; /bin/sleep NAP' & ); sleep NAP",
    "forks without end": "while :; do sleep NAP & n=$((n + 1)); [ $n -gt 40 ] && { wait; n=0; }; done",
    "stopped": "kill -STOP $$; sleep NAP",
    "parent ends at once": "sleep NAP & sleep NAP & wait",
}


@pytest.mark.parametrize("shell", LEAVES.values(), ids=LEAVES.keys())
def test_what_outlives_the_main_process_is_killed_before_the_end_is_told(
    keeper: Keeper, shell: str
) -> None:
    exit_ = keeper.run(shell)
    assert keeper.naps() == []
    assert (exit_.code, exit_.source, exit_.stop_reason) == (3, "keeper", None)
    assert exit_.survivors_killed >= 1
    assert "outlived its main process" in keeper.log()


@pytest.mark.parametrize("shell", STAYS.values(), ids=STAYS.keys())
def test_a_stop_ends_all_of_it(keeper: Keeper, shell: str) -> None:
    token = keeper.started(shell)
    until(lambda: len(keeper.naps()) >= (1 if "STOP" in shell else 2))
    begin = time.monotonic()
    keeper.stop(token, grace=0.3)
    exit_ = keeper.end_of(token)
    took = time.monotonic() - begin
    assert keeper.naps() == []
    assert exit_.stop_reason == "cancel" and not exit_.ok and exit_.source == "keeper"
    assert took < 5 * 1.3


def test_one_that_runs_away_by_forking_is_caught(keeper: Keeper) -> None:
    """Each process starts the next one in a new session and exits, so a pid is always outdated."""
    token = keeper.token()
    runner = keeper.place / "runner.sh"
    # the chain is bounded, in case it escapes
    runner.write_text(
        f"[ $(( $1 )) -lt 20000 ] && setsid sh {runner} $(($1 + 1)) {keeper.nap} & exit 0\n"
    )
    runner.chmod(0o755)
    keeper.send(**keeper.order(token, f"sh {runner} 0 NAP; sleep 0.2; exit 3"))
    exit_ = keeper.end_of(token)
    assert keeper.naps() == []
    assert (exit_.code, exit_.survivors_killed >= 1) == (3, True)


def test_a_job_that_ends_within_its_grace_tells_its_own_exit(keeper: Keeper) -> None:
    token = keeper.started("trap 'echo saved; exit 9' TERM; echo ready; sleep NAP & wait")
    until(lambda: "ready" in keeper.text(token))
    keeper.stop(token, grace=20)
    exit_ = keeper.end_of(token)
    assert (exit_.code, exit_.stop_reason) == (9, "cancel")
    assert keeper.text(token) == "ready\nsaved\n"


def test_a_child_has_its_grace_though_the_main_process_is_gone(keeper: Keeper) -> None:
    token = keeper.started(
        "(trap 'sleep 0.5; echo saved; exit 0' TERM; echo ready; sleep NAP & wait) & sleep NAP"
    )
    until(lambda: "ready" in keeper.text(token))
    keeper.stop(token, grace=20)
    exit_ = keeper.end_of(token)
    assert keeper.text(token) == "ready\nsaved\n" and exit_.stop_reason == "cancel"


def test_one_that_is_stopped_wakes_up_for_its_end(keeper: Keeper) -> None:
    token = keeper.started("trap 'echo woke; exit 9' TERM; echo ready; kill -STOP $$; sleep NAP")
    until(lambda: "ready" in keeper.text(token))
    until(lambda: any(p.status() == "stopped" for p in keeper.naps()))
    keeper.stop(token, grace=3000)
    assert keeper.end_of(token).code == 9
    assert keeper.text(token) == "ready\nwoke\n"


def test_sigterm_comes_once_to_each_process(keeper: Keeper) -> None:
    token = keeper.started(
        "n=0; trap 'n=$((n+1)); echo term $n' TERM; echo ready; while [ ! -e go ]; do sleep 0.02; done"
    )
    until(lambda: "ready" in keeper.text(token))
    keeper.stop(token, grace=30)
    until(lambda: "term" in keeper.text(token))
    time.sleep(0.5)  # the keeper checks for remaining processes several times
    (keeper.run_dir(token) / "go").touch()
    keeper.end_of(token)
    assert keeper.text(token) == "ready\nterm 1\n"


def test_the_reason_of_a_stop_is_written_down_before_the_first_signal(keeper: Keeper) -> None:
    token = keeper.started(
        "trap 'cat \"${JOBSCRIBE_TERMINATION_MESSAGE%/*}/stop.json\"; exit 0' TERM; echo ready; sleep NAP & wait"
    )
    until(lambda: "ready" in keeper.text(token))
    keeper.stop(token, reason="lost", grace=20)
    assert keeper.end_of(token).stop_reason == "lost"
    assert '"reason": "lost"' in keeper.text(token)


def test_the_first_reason_stays_and_the_shorter_grace_counts(keeper: Keeper) -> None:
    token = keeper.started("trap '' TERM; echo ready; while :; do sleep NAP; done")
    until(lambda: "ready" in keeper.text(token))
    keeper.stop(token, reason="cancel", grace=3000)
    keeper.stop(token, reason="shutdown", grace=0)
    assert keeper.end_of(token).stop_reason == "cancel"


def test_the_time_limit_is_kept(keeper: Keeper) -> None:
    begin = time.monotonic()
    exit_ = keeper.run("trap '' TERM; while :; do sleep NAP; done", limit=0.4, grace=0.2)
    assert exit_.stop_reason == "timeLimit" and exit_.signal == 9
    assert time.monotonic() - begin >= 0.6
    assert keeper.run("exit 0", limit=60).stop_reason is None


def test_what_belongs_to_nobody_lives_until_the_last_job_ends(
    new_keeper: Callable[..., Keeper],
) -> None:
    """The orphan has lost its environment, session, lock and parent. Without cgroups, it could
    belong to either job.
    """
    keeper = new_keeper(cgroups={"use": "off"})
    other = keeper.started("sleep NAP; exit 0")
    shed = keeper.launch(
        "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; exec /bin/sleep NAP' & ); sleep 0.2; exit 0"
    )
    assert keeper.end_of(shed).ok
    assert len([p for p in keeper.naps() if p.cmdline()[0] == "/bin/sleep"]) == 1
    keeper.wake()
    assert keeper.end_of(other).survivors_killed == 1
    assert keeper.naps() == []


def test_one_job_is_not_mistaken_for_another(keeper: Keeper) -> None:
    """Both jobs have orphans, but only those of the ended job are killed."""
    stays = keeper.started("( setsid sleep NAP & ); sleep NAP; exit 0")
    until(lambda: len(keeper.naps()) == 3)
    mine = {p.pid for p in keeper.naps()}
    ends = keeper.run("( setsid sleep NAP & ); sleep 0.1; exit 4")
    assert (ends.code, ends.survivors_killed) == (4, 1)
    assert {p.pid for p in keeper.naps()} == mine
    keeper.stop(stays, grace=0)
    keeper.end_of(stays)


def test_what_became_another_user_is_said_and_does_not_hold_up_the_end(
    keeper: Keeper, who: int
) -> None:
    if who < 0:
        pytest.skip(
            "a keeper that runs as root can kill a set-user-id program; this is about the half that runs as an ordinary user"
        )
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("there is no setpriv here to become root with")
    become_root = keeper.place / "become-root"
    shutil.copy(setpriv, become_root)
    become_root.chmod(stat.S_ISUID | 0o755)
    exit_ = keeper.run(
        f"( setsid {become_root} --reuid=0 --clear-groups sleep NAP & ); sleep 0.3; exit 3"
    )
    assert exit_.code == 3
    left = keeper.naps()
    assert [p.uids().real for p in left] == [0]
    assert "runs as another user" in keeper.log()
    left[0].kill()
    left[0].wait(5)


def test_zombies_are_no_survivors(keeper: Keeper) -> None:
    """A job leaves zombies when it ends, and the keeper reaps them."""
    exit_ = keeper.run("( setsid sh -c 'exit 0' & ) ; ( sleep 0.05 & ); sleep 0.2; exit 3")
    assert (exit_.code, exit_.survivors_killed) == (3, 0)
    pid = keeper.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert children == [str(keeper.agent_pid)]


def test_a_job_may_delete_its_run_directory(keeper: Keeper) -> None:
    token = keeper.launch('cd /; rm -r "$JOBSCRIBE_RUN_DIR"; echo done; exit 5')
    assert keeper.end_of(token).code == 5
    assert keeper.text(token) == "done\n" and not keeper.run_dir(token).exists()


def test_a_job_may_say_why_it_ended(keeper: Keeper) -> None:
    exit_ = keeper.run("echo 'ran out of luck' >\"$JOBSCRIBE_TERMINATION_MESSAGE\"; exit 1")
    assert exit_.termination_message == "ran out of luck\n"
    flood = keeper.run(
        "head -c 100000 /dev/zero | tr '\\0' x >\"$JOBSCRIBE_TERMINATION_MESSAGE\"; exit 1"
    )
    assert flood.termination_message == "x" * 4096


@pytest.mark.parametrize(
    "trick", ['mkfifo "$F"', 'ln -s /dev/zero "$F"', 'mkdir "$F"', 'ln -s /etc/passwd "$F"']
)
def test_what_is_no_message_is_not_read(keeper: Keeper, trick: str) -> None:
    exit_ = keeper.run(f"F=$JOBSCRIBE_TERMINATION_MESSAGE; {trick}; exit 1")
    assert (exit_.code, exit_.termination_message) == (1, None)


def test_a_job_that_spoils_its_evidence_spoils_nothing_else(keeper: Keeper) -> None:
    exit_ = keeper.run('D=${JOBSCRIBE_TERMINATION_MESSAGE%/*}; rm -rf "$D"; exit 6')
    assert exit_.code == 6
    assert keeper.run("exit 0").ok


def test_stops_that_race_starts_leave_nothing(keeper: Keeper) -> None:
    tokens = []
    for i in range(40):
        token = keeper.launch("trap '' TERM; sleep NAP; sleep NAP")
        if i % 3:
            time.sleep(i / 8000)
        keeper.stop(token, grace=0.05)
        tokens.append(token)
    exits = [keeper.end_of(t) for t in tokens]
    assert keeper.naps() == []
    assert {e.stop_reason for e in exits} == {"cancel"}
    assert not any(e.ok for e in exits)
    assert os.listdir(keeper.folder / "run")
