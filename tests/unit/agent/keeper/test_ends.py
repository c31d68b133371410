"""Exit and stop: the first one decides the outcome, and the end time is right even if the keeper
notices the end late.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobscribe.agent.files.output_reader import Evidence
from jobscribe.protocol.ids import op_id
from jobscribe.protocol.wire.messages import Execution
from jobscribe.runtime import processes

from ..conftest import Keeper, until

#: A job of JOB_SECS ends while its keeper is frozen for FROZEN_SECS. The reported duration may be
#: wrong by ROOM_SECS.
JOB_SECS, FROZEN_SECS, ROOM_SECS = 0.5, 2.5, 1.0

#: The users of its keepers without SOAK=1.
USERS = ("same user",)
pytestmark = [pytest.mark.process, pytest.mark.parametrize("who", ["same user"], indirect=True)]


@pytest.fixture
def undying(new_keeper: Callable[..., Keeper], place: Path) -> tuple[Keeper, Path]:
    """Return a keeper whose jobs leave processes that survive until a file exists, and the file's
    path.
    """
    file = place / "die"
    return new_keeper(env={"JOBSCRIBE_TEST_SPARES": str(file)}), file


def test_it_answers_pings(keeper: Keeper) -> None:
    assert keeper.hello["pings"]
    keeper.send(do="ping", n=7)
    assert keeper.next("pong")["n"] == 7


def test_the_exit_is_told_while_something_is_left_and_neither_limit_nor_cancel_changes_it(
    undying: tuple[Keeper, Path],
) -> None:
    keeper, file = undying
    token = keeper.started("setsid sleep NAP & sleep 0.2; exit 3", limit=0.5)
    said = keeper.next("started", token)
    assert said["state"] == "running" and (said["exit"]["code"], said["exit"]["stopReason"]) == (
        3,
        None,
    )
    assert said["exit"]["endedAt"] - said["startedAt"] < 0.2 + ROOM_SECS
    time.sleep(0.5)  # the job's time limit passes
    keeper.stop(token, grace=0.0)
    keeper.send(do="ping", n=1)
    keeper.next("pong")  # the keeper answers after it has handled the stop
    keeper.kill_agent()
    keeper.accept()
    (known,) = keeper.hello["executions"]
    assert known["state"] == "running" and known["exit"] == said["exit"], (
        "a snapshot has it as well"
    )
    file.touch()
    exit_ = keeper.end_of(token)
    assert (exit_.code, exit_.stop_reason, exit_.survivors_killed) == (3, None, 1)
    assert exit_.ended_at == said["exit"]["endedAt"]
    assert not (keeper.evidence(token) / "stop.json").exists()


def test_what_outlives_a_stop_for_the_rest_of_its_grace_does_not_hide_the_exit(
    keeper: Keeper,
) -> None:
    token = keeper.started(
        "trap 'exit 5' TERM; sh -c \"trap '' TERM; echo deaf; sleep NAP; sleep NAP\" & wait"
    )
    until(lambda: keeper.text(token) == "deaf\n")
    keeper.stop(token, "cancel", grace=1.0)
    said = keeper.next("started", token)
    assert said["state"] == "running" and (said["exit"]["code"], said["exit"]["stopReason"]) == (
        5,
        "cancel",
    )
    exit_ = keeper.end_of(token)
    assert (exit_.code, exit_.stop_reason) == (5, "cancel")


def test_what_ended_while_the_keeper_was_frozen_ended_then_and_by_itself(keeper: Keeper) -> None:
    """A time limit or a cancel that takes effect before the keeper wakes does not change the
    outcome.
    """
    plain, limited, canceled = (
        keeper.started(f"sleep {JOB_SECS}; exit 4", limit=limit)
        for limit in (None, JOB_SECS + 1, None)
    )
    os.kill(keeper.process.pid, signal.SIGSTOP)
    until(
        lambda: all(
            (keeper.evidence(t) / "wait-status.json").exists() for t in (plain, limited, canceled)
        )
    )
    keeper.stop(canceled)
    time.sleep(FROZEN_SECS)
    os.kill(keeper.process.pid, signal.SIGCONT)
    for token in (plain, limited, canceled):
        exit_ = keeper.end_of(token)
        assert (exit_.code, exit_.stop_reason, exit_.source) == (4, None, "keeper")
        assert exit_.started_at is not None and exit_.ended_at is not None
        assert JOB_SECS - 0.1 < exit_.ended_at - exit_.started_at < JOB_SECS + ROOM_SECS


def test_what_ended_while_there_was_no_keeper_took_as_long_as_it_ran(
    keeper: Keeper, new_keeper: Callable[..., Keeper]
) -> None:
    token = keeper.started(f"sleep {JOB_SECS}; exit 4")
    keeper.kill()
    until((keeper.evidence(token) / "wait-status.json").exists)
    time.sleep(FROZEN_SECS)
    following = new_keeper()
    exit_ = (
        following.next("ended", token)
        if not following.hello["executions"]
        else following.hello["executions"][0]
    )
    assert exit_["exit"]["code"] == 4 and JOB_SECS - 0.1 < exit_["elapsed"] < JOB_SECS + ROOM_SECS


def test_a_stop_that_was_noted_and_never_signaled_does_not_decide_an_exit(
    new_keeper: Callable[..., Keeper], place: Path
) -> None:
    keeper = new_keeper(env={"JOBSCRIBE_CRASHPOINT": f"keeper.stopping:1:{place}/struck"})
    token = keeper.started(f"sleep {JOB_SECS}; exit 6")
    keeper.stop(token)
    keeper.process.wait(60)
    keeper.kill()
    assert json.loads(keeper.text(token, "stop.json"))["signaled"] is False
    until((keeper.evidence(token) / "wait-status.json").exists)
    exit_ = new_keeper().hello["executions"][0]["exit"]
    assert (exit_["code"], exit_["stopReason"]) == (6, None)


#: Shell text of a job that writes the record of its own exit while it runs: exit code 4.
_FORGE_RECORD = (
    'read mono _ </proc/uptime; ticks=$(cut -d" " -f22 /proc/$$/stat); '
    'record="${JOBSCRIBE_TERMINATION_MESSAGE%/*}/wait-status.json"; '
    """printf '{"pid": %s, "startTicks": %s, "status": 1024, "userSecs": 0, "systemSecs": 0, """
    """"at": %s, "mono": %s}' $$ "$ticks" "$(date +%s)" "$mono" >"$record.new"; """
    'mv "$record.new" "$record"'
)


def test_without_a_keeper_an_exit_is_known_when_it_is_written_and_its_process_is_gone(
    keeper: Keeper,
) -> None:
    token = keeper.launch(f"{_FORGE_RECORD}; sleep {2 * JOB_SECS}; exit 4")
    said = keeper.next("started", token)
    evidence = Evidence(keeper.folder / "run")
    execution = Execution(
        token=token,
        state="running",
        op_id=op_id(token, "run"),
        pid=said["pid"],
        start_ticks=said["startTicks"],
        started_at=said["startedAt"],
    )
    os.kill(keeper.process.pid, signal.SIGSTOP)
    until((keeper.evidence(token) / "wait-status.json").exists)
    assert evidence.exits([execution]) == [], "a job that runs may have written this itself"
    until(lambda: not processes.alive(said["pid"], said["startTicks"]))
    ((known,),) = [evidence.exits([execution])]
    assert (
        known.ending
        and known.exit is not None
        and (known.exit.code, known.exit.source, known.exit.stop_reason) == (4, "keeper", None)
    )
    assert evidence.exits([known]) == []
    os.kill(keeper.process.pid, signal.SIGCONT)
    keeper.end_of(token)


def test_an_exit_is_kept_by_the_agent_if_neither_keeper_nor_reaper_can(
    new_keeper: Callable[..., Keeper],
) -> None:
    """The keeper hangs, its reaper is gone, and then the keeper is killed."""
    keeper = new_keeper()
    token = keeper.launch("while [ ! -e go ]; do sleep 0.02; done; exit 4")
    said = keeper.next("started", token)
    keeper.process.reaper.kill()
    os.kill(keeper.process.pid, signal.SIGSTOP)
    (keeper.run_dir(token) / "go").touch()
    until(lambda: not processes.alive(said["pid"], said["startTicks"]))
    evidence = Evidence(keeper.folder / "run")
    execution = Execution(
        token=token,
        state="running",
        op_id=op_id(token, "run"),
        pid=said["pid"],
        start_ticks=said["startTicks"],
        started_at=said["startedAt"],
    )
    evidence.note_ends([execution])
    assert not (keeper.evidence(token) / "wait-status.json").exists(), "its keeper may yet reap it"
    evidence.note_ends([execution])
    keeper.kill()
    (known,) = [e for e in new_keeper().hello["executions"] if e["token"] == str(token)]
    assert (known["exit"]["code"], known["exit"]["source"]) == (4, "keeper")


def test_an_order_that_comes_again_after_a_keeper_was_killed_starts_nothing(
    new_keeper: Callable[..., Keeper], place: Path
) -> None:
    """This covers an execution that was started but not reported, and one that was forgotten."""
    keeper = new_keeper(env={"JOBSCRIBE_CRASHPOINT": f"keeper.noted:2:{place}/struck"})
    over = keeper.launch("echo begun; exit 6")
    assert keeper.end_of(over).code == 6
    keeper.send(do="forget", names=[over.name])
    token = keeper.launch("echo begun; sleep NAP; exit 7")
    keeper.process.wait(60)
    keeper.kill()
    until(lambda: keeper.text(token) == "begun\n")
    following = new_keeper()
    assert [e["token"] for e in following.hello["executions"]] == [str(token)]
    for again in (over, token):
        following.send(**following.order(again, "echo begun; sleep NAP; exit 7"))
    assert (
        following.end_of(over).code == 6 and following.next("started", token)["state"] == "running"
    )
    following.wake()
    assert following.end_of(token).code == 7
    assert {following.text(t) for t in (over, token)} == {"begun\n"}
