"""Stops of batch jobs without a poll loop: the stopper itself looks for an exit before a signal."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobscribe.agent.batch import stop
from jobscribe.agent.batch.command_runner import CommandResult
from jobscribe.agent.batch.ledger import BatchLedger
from jobscribe.agent.batch.observer import read_fence, take_fence, taken_by_agent
from jobscribe.agent.batch.state import BatchJob, Task
from jobscribe.agent.slurm.script_markers import STARTED, Started
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.ids import Token
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.execution.folder import EXIT_CODE, STOP
from jobscribe.runtime.log.logger import Direct, Log


class Stops:
    """A batch job of some tasks in a folder, its stopper, and the scancel commands it ran."""

    def __init__(self, root: Path, tasks: int, *, running: bool) -> None:
        log = Log("agent", Redactor(), Direct())
        self.ledger = BatchLedger(str(root), log)
        self.ledger.make()
        self.calls: list[list[str]] = []
        self.changed = asyncio.Event()
        self.tasks = []
        for index in range(tasks):
            token = Token("user1234-sim12345-command", 1, 1, "main", index)
            self.ledger.consume(token, token.name)
            task = Task(token, self.ledger.evidence(token.name), "/r", None, 1.0, log)
            task.life.claimed()
            if running:
                task.started = Started("7", 0, "n1", 1, 1000.0, str(index))
                task.life.started(1000.0, 0.0)
            self.tasks.append(task)
        self.job = BatchJob(
            self.tasks, "name", "comment", BatchState(cluster="lab"), gang=tasks > 1
        )
        self.job.job_id = "7"
        self.stopper = stop.BatchStopper(
            Cluster(name="lab"), self.ledger, self.run, log, lambda job: self.changed.set()
        )

    async def run(self, argv: Any, *_: Any) -> CommandResult:
        self.calls.append(list(argv))
        return CommandResult(0, "", "")

    async def stop(self, task: Task, grace: float) -> None:
        """Stop the task, and wait until the first step is over."""
        assert self.stopper.stop(self.job, task, "cancel", grace)
        await asyncio.wait_for(self.changed.wait(), 10.0)
        self.stopper.close()

    def recorded(self, task: Task) -> dict[str, Any]:
        return msgspec.json.decode(Path(task.folder, STOP).read_bytes())  # type: ignore[no-any-return]


async def test_a_script_that_has_written_its_exit_gets_no_signal(tmp_path: Path) -> None:
    stops = Stops(tmp_path, 1, running=True)
    (task,) = stops.tasks
    Path(task.folder, EXIT_CODE).write_text("0\n")
    await stops.stop(task, 5.0)
    assert stops.calls == [] and stops.recorded(task)["signaled"] is False
    assert task.life.exiting and not task.life.stopping and task.life.stop_reason is None
    assert not stops.stopper.stop(stops.job, task, "cancel", 5.0)


@pytest.mark.parametrize(("grace", "signal"), [(5.0, "TERM"), (0.0, "KILL")])
async def test_a_signal_is_sent_after_its_record_to_the_step_of_the_task(
    tmp_path: Path, grace: float, signal: str
) -> None:
    stops = Stops(tmp_path, 2, running=True)
    stopped, other = stops.tasks
    await stops.stop(stopped, grace)
    assert stops.recorded(stopped) | {"at": 0} == {
        "reason": "cancel",
        "grace": grace,
        "at": 0,
        "signaled": True,
    }
    (call,) = stops.calls
    assert f"--signal={signal}" in call and call[-1] == "7.0", call
    assert stopped.life.stop_reason == "cancel" and not other.life.stopping
    assert not Path(other.folder, STOP).exists()


async def test_a_job_that_slurm_may_have_under_an_unknown_id_is_barred_and_gets_no_signal(
    tmp_path: Path,
) -> None:
    stops = Stops(tmp_path, 2, running=False)
    stops.job.job_id = None
    barred, begun = stops.tasks
    Path(begun.folder, STARTED).write_text("job 9\nend\n")
    for task in stops.tasks:
        assert stops.stopper.stop(stops.job, task, "cancel", 5.0)
    await asyncio.wait_for(stops.changed.wait(), 10.0)
    stops.stopper.close()
    started = read_fence(barred.folder)
    assert started is not None and taken_by_agent(started) and barred.life.barred
    assert not take_fence(begun.folder) and not begun.life.barred
    assert stops.calls == [] and begun.life.stop_reason is None
    assert [stops.recorded(t)["signaled"] for t in stops.tasks] == [False, False]
