"""Executions through a real Slurm, by the agent's part alone: what Slurm says of them is asked past
it.
"""

import asyncio
import os
import pwd
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_scripts import CALL_SECS
from slurm_cluster import Slurm

from jobscribe.agent.batch.controller import BatchController
from jobscribe.agent.files.output_reader import Evidence
from jobscribe.agent.host.login_environment import LoginEnvironment
from jobscribe.protocol.clusters.batch import BatchRequest, BatchState
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.messages import Execution, Shared, TaskSpec

WISHES = BatchRequest(partition="batch", memory_mb=50)


class Ground:
    """One agent's folder, and the agents that come and go."""

    def __init__(self, root: Path, slurm: Slurm) -> None:
        self.root, self.slurm = root, slurm
        self.folder = root / "agent" / "sbatch.parallel.user1234@lab"
        self.folder.mkdir(parents=True)
        self.said: list[Execution] = []
        self.agents: list[BatchController] = []
        self.cluster = Cluster(
            name="lab", poll_secs=0.3, poll_max_secs=1.0, environment=dict(slurm.env)
        )
        self.serial = int(time.time())

    async def agent(self) -> BatchController:
        batch = BatchController(
            self.folder,
            Evidence(self.folder / "run"),
            LoginEnvironment(self.root),
            (),
            self.cluster,
            "test",
            lambda *a, **k: None,  # type: ignore[arg-type]
            self.said.append,
            base=self.root,
        )
        self.agents.append(batch)
        self.said += await batch.start()
        return batch

    async def kill(self, batch: BatchController) -> None:
        batch._say = lambda e: None
        await batch.close()
        self.agents.remove(batch)

    def token(self, role: str = "main", index: int = 0) -> Token:
        self.serial += index == 0 and role == "main"
        return Token("user1234-sim12345-command", self.serial, 1, role, index)

    def spec(self, shell: str, wishes: BatchRequest = WISHES, **more: Any) -> TaskSpec:
        return TaskSpec(
            command=("/bin/sh", "-c", shell), run_dir=str(self.root / "run"), batch=wishes, **more
        )

    def evidence(self, token: Token, file: str) -> Path:
        return self.folder / "run" / token.name / file

    def of(self, token: Token) -> list[Execution]:
        return [e for e in self.said if e.token == token]

    async def until(self, condition: Callable[[], Any], secs: float = CALL_SECS) -> Any:
        deadline = time.monotonic() + secs
        while not (value := condition()):
            assert time.monotonic() < deadline, self.said[-4:]
            await asyncio.sleep(0.02)
        return value

    async def ended(self, token: Token) -> Execution:
        return await self.until(
            lambda: next((e for e in self.of(token) if e.state == "ended"), None)
        )  # type: ignore[no-any-return]

    async def running(self, token: Token) -> Execution:
        return await self.until(
            lambda: next((e for e in self.of(token) if e.state == "running" and e.pid), None)
        )  # type: ignore[no-any-return]

    def over(self, state: BatchState | msgspec.UnsetType) -> str:
        """What Slurm itself says of the job now."""
        assert isinstance(state, BatchState) and state.job_id is not None
        return self.slurm.state(state.job_id)


@pytest.fixture
async def ground(tmp_path: Path, slurm: Slurm) -> AsyncIterator[Ground]:
    made = Ground(tmp_path, slurm)
    yield made
    for batch in list(made.agents):
        await batch.close()


async def test_runs_end_with_their_codes_and_slurm_calls_them_over_by_then(ground: Ground) -> None:
    batch = await ground.agent()
    good, bad = ground.token(), ground.token()
    batch.launch(good, ground.spec("echo hello; echo $SLURM_JOB_ID"))
    batch.launch(bad, ground.spec("echo oops >&2; exit 7"))
    one, two = await ground.ended(good), await ground.ended(bad)
    assert one.exit is not None and two.exit is not None
    assert (one.exit.code, one.exit.source, two.exit.code, two.exit.last_lines) == (
        0,
        "script",
        7,
        "oops",
    )
    assert (ground.over(one.batch), ground.over(two.batch)) == ("COMPLETED", "FAILED")
    assert ground.evidence(good, "stdout.log").read_text() == f"hello\n{one.batch.job_id}\n"  # type: ignore[union-attr]
    assert {j.comment for j in ground.slurm.queued(active=False) if j.id == one.batch.job_id} == {
        f"jobscribe test {good}"
    }  # type: ignore[union-attr]


async def test_canceled_from_outside_it_is_told_by_whom(ground: Ground) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec("exec sleep 4321"))
    e = await ground.running(token)
    ground.slurm.cancel(e.batch.job_id)  # type: ignore[union-attr, arg-type]
    end = await ground.ended(token)
    assert end.exit is not None and end.exit.code != 0 and end.exit.stop_reason is None
    assert (end.batch.state, end.batch.canceled_by) == (
        "CANCELLED",
        pwd.getpwuid(os.getuid()).pw_name,
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "announced", [False, True], ids=["plain", "with a signal before its limit"]
)
async def test_a_stop_leaves_nothing_of_it(ground: Ground, announced: bool) -> None:
    batch = await ground.agent()
    soft, hard = ground.token(), ground.token()
    early = BatchRequest(partition="batch", memory_mb=50, signal_secs=10)
    own = "n=0; trap 'n=$((n + 1))' TERM; while [ $n = 0 ]; do sleep 0.1; done; sleep 1; exit $((n + 4))"
    batch.launch(soft, ground.spec(own, early if announced else WISHES))
    batch.launch(
        hard,
        ground.spec(
            "trap '' TERM; srun -n1 sh -c 'trap \"\" TERM; sleep 4322 & sleep 4322' & sleep 4322"
        ),
    )
    await ground.running(soft), await ground.running(hard)
    await asyncio.sleep(0.5)
    batch.stop(soft, "cancel", 10.0)
    batch.stop(hard, "cancel", 1.0)
    one, two = await ground.ended(soft), await ground.ended(hard)
    assert one.exit is not None and two.exit is not None
    assert (one.exit.code, one.exit.stop_reason, two.exit.stop_reason) == (5, "cancel", "cancel")
    assert two.exit.code is None or two.exit.code > 128
    assert ground.over(two.batch) == "CANCELLED"
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"4322" in _read(p)]


async def test_the_next_agent_takes_over_what_slurm_runs(ground: Ground) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(
        token,
        ground.spec(
            f"echo $JOBSCRIBE_TOKEN >>{ground.root}/stamps; until [ -e {ground.root}/go ]; do sleep 0.1; done; exit 4"
        ),
    )
    await ground.running(token)
    await ground.kill(batch)
    (ground.root / "go").touch()
    await ground.until(lambda: not ground.slurm.queued())
    ground.said.clear()
    await ground.agent()
    end = await ground.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (4, "script")
    assert (ground.root / "stamps").read_text() == f"{token}\n"


async def test_a_gang_over_two_nodes_whose_servers_are_stopped_when_the_workers_are_done(
    ground: Ground,
) -> None:
    batch = await ground.agent()
    ground.serial += 1
    wishes = BatchRequest(partition="batch", memory_mb=50, nodes=2, tasks=4, cores=1)
    servers = [ground.token("ps", n) for n in range(2)]
    workers = [ground.token("worker", n) for n in range(2)]
    tasks = [
        (
            t,
            ground.spec(
                "echo $PEER $(hostname); trap 'exit 3' TERM; while :; do sleep 0.1; done",
                wishes,
                grace_secs=5,
            ),
        )
        for t in servers
    ]
    tasks += [(t, ground.spec("echo $PEER; exit 0", wishes)) for t in workers]
    batch.launch_gang(Shared(env={"PEER": "@worker-1@"}, job='{"peer": "@ps-0@"}'), tasks)
    for token in workers:
        end = await ground.ended(token)
        assert end.exit is not None and end.exit.code == 0, end
    for token in servers:
        assert (await ground.running(token)).batch.nodes  # type: ignore[union-attr]
        assert ground.of(token)[-1].state == "running"
    batch.stop(servers[0], "roleDone", 5.0)
    first = await ground.ended(servers[0])
    assert first.exit is not None and (first.exit.code, first.exit.stop_reason) == (
        3,
        "roleDone",
    ), first
    assert ground.of(servers[1])[-1].state == "running"
    batch.stop(servers[1], "roleDone", 5.0)
    second = await ground.ended(servers[1])
    assert second.exit is not None and (second.exit.code, second.exit.stop_reason) == (
        3,
        "roleDone",
    ), second
    assert "@" not in ground.evidence(workers[0], "stdout.log").read_text()
    assert "@" not in (ground.root / "run" / "job.json").read_text()
    assert len({e.batch.job_id for t in (*servers, *workers) for e in ground.of(t)[-1:]}) == 1  # type: ignore[union-attr]
    assert not ground.slurm.queued()


async def test_a_controller_that_is_away_is_no_end(ground: Ground) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec(f"until [ -e {ground.root}/go ]; do sleep 0.1; done; exit 8"))
    await ground.running(token)
    await asyncio.to_thread(ground.slurm.kill, "slurmctld")
    await ground.until(lambda: ground.of(token)[-1].batch.unknown_since)  # type: ignore[union-attr]
    (ground.root / "go").touch()
    await ground.until(ground.evidence(token, "exit-code").exists)
    assert ground.of(token)[-1].state == "running"
    await asyncio.to_thread(ground.slurm.start, "slurmctld")
    end = await ground.ended(token)
    assert end.exit is not None and end.exit.code == 8


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
