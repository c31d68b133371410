"""Executions through a real Slurm with only the agent's part of the driver. Slurm's own view of the
jobs is queried directly.
"""

import asyncio
import json
import os
import pwd
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_scripts import CALL_SECS
from slurm_cluster import Slurm

from jobscribe.agent.batch.controller import BatchController
from jobscribe.agent.breakpoints.sessions import Sessions
from jobscribe.agent.files.output_reader import Evidence
from jobscribe.agent.host.login_environment import LoginEnvironment
from jobscribe.protocol.clusters.batch import BatchRequest, BatchState
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.ids import Token
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import (
    AttachDebugger,
    DebuggerIo,
    Execution,
    ListStops,
    Sample,
    Shared,
    Stops,
    TaskSpec,
)
from jobscribe.runtime.log.logger import Direct, Log

WISHES = BatchRequest(partition="batch", memory_mb=50)


class Ground:
    """The folder of one agent, and the batch controllers that use it in turn."""

    def __init__(self, root: Path, slurm: Slurm) -> None:
        self.root, self.slurm = root, slurm
        self.folder = root / "agent" / "sbatch.parallel.user1234@lab"
        self.folder.mkdir(parents=True)
        self.said: list[Execution] = []
        self.samples: list[Sample] = []
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
            Log("agent", Redactor(), Direct()),
            self.said.append,
            base=self.root,
            on_samples=lambda message: self.samples.extend(message.samples),
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
        """Return Slurm's own state of the job."""
        assert isinstance(state, BatchState) and state.job_id is not None
        return self.slurm.state(state.job_id)


@pytest.fixture
async def batch_site(tmp_path: Path, slurm: Slurm) -> AsyncIterator[Ground]:
    made = Ground(tmp_path, slurm)
    yield made
    for batch in list(made.agents):
        await batch.close()


async def test_runs_end_with_their_codes_and_slurm_calls_them_over_by_then(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    good, bad = batch_site.token(), batch_site.token()
    work = "n=0; while [ $n -lt 50000 ]; do n=$((n + 1)); done"
    batch.launch(good, batch_site.spec(f"{work}; echo hello; echo $SLURM_JOB_ID"))
    batch.launch(bad, batch_site.spec("echo oops >&2; exit 7"))
    one, two = await batch_site.ended(good), await batch_site.ended(bad)
    assert one.exit is not None and two.exit is not None
    assert one.exit.user_secs is not None and 0.001 <= one.exit.user_secs < 60
    assert (one.exit.code, one.exit.source, two.exit.code, two.exit.last_lines) == (
        0,
        "script",
        7,
        "oops",
    )
    assert (batch_site.over(one.batch), batch_site.over(two.batch)) == ("COMPLETED", "FAILED")
    assert batch_site.evidence(good, "stdout.log").read_text() == f"hello\n{one.batch.job_id}\n"  # type: ignore[union-attr]
    assert {
        j.comment for j in batch_site.slurm.queued(active=False) if j.id == one.batch.job_id
    } == {f"jobscribe test {good}"}  # type: ignore[union-attr]


async def test_canceled_from_outside_it_is_told_by_whom(batch_site: Ground) -> None:
    """And what was held for debugging keeps its exit, also when Slurm ends it at its time limit."""
    batch = await batch_site.agent()
    token, held, limited = (batch_site.token() for _ in range(3))
    early = BatchRequest(partition="batch", memory_mb=50, signal_secs=5)
    batch.launch(held, batch_site.spec("exit 3", early, debug_secs=600.0))
    batch.launch(limited, batch_site.spec("exit 4", debug_secs=600.0, time_limit_secs=120.0))
    batch.launch(token, batch_site.spec("exec sleep 4321"))
    for each, code in ((held, 3), (limited, 4)):
        e = await batch_site.until(
            lambda each=each: next((e for e in batch_site.of(each) if e.held_until), None)
        )
        assert isinstance(e.batch, BatchState) and e.batch.job_id is not None
        assert (e.exit.code, batch_site.over(e.batch)) == (code, "RUNNING")
        lasts = e.held_until - e.started_at
        # 10 s before the time limit, which the partition sets for the first one
        assert 540 <= lasts <= 590 if each is held else 60 < lasts <= 110, lasts
        (batch_site.slurm.cancel if each is held else batch_site.slurm.time_out)(e.batch.job_id)
    for each, code, word in ((held, 3, "CANCELLED"), (limited, 4, "TIMEOUT")):
        end = await batch_site.ended(each)
        assert (end.exit.code, end.exit.stop_reason, end.exit.source) == (code, None, "script")
        assert end.batch.state == word and [n.code for n in end.exit.notices] == ["holdEnded"]
    e = await batch_site.running(token)
    batch_site.slurm.cancel(e.batch.job_id)  # type: ignore[union-attr, arg-type]
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code != 0 and end.exit.stop_reason is None
    assert (end.batch.state, end.batch.canceled_by) == (
        "CANCELLED",
        pwd.getpwuid(os.getuid()).pw_name,
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "announced", [False, True], ids=["plain", "with a signal before its limit"]
)
async def test_a_stop_leaves_nothing_of_it(batch_site: Ground, announced: bool) -> None:
    batch = await batch_site.agent()
    soft, hard = batch_site.token(), batch_site.token()
    early = BatchRequest(partition="batch", memory_mb=50, signal_secs=10)
    trapped = batch_site.root / "trapped"
    own = (
        f"n=0; trap 'n=$((n + 1))' TERM; : >{trapped}; "
        "while [ $n = 0 ]; do sleep 0.1; done; sleep 1; exit $((n + 4))"
    )
    batch.launch(soft, batch_site.spec(own, early if announced else WISHES))
    batch.launch(
        hard,
        batch_site.spec(
            "trap '' TERM; srun -n1 sh -c 'trap \"\" TERM; sleep 4322 & sleep 4322' & sleep 4322"
        ),
    )
    await batch_site.running(soft), await batch_site.running(hard)
    await batch_site.until(trapped.exists)
    batch.stop(soft, "cancel", 10.0)
    batch.stop(hard, "cancel", 1.0)
    one, two = await batch_site.ended(soft), await batch_site.ended(hard)
    assert one.exit is not None and two.exit is not None
    assert (one.exit.code, one.exit.stop_reason, two.exit.stop_reason) == (5, "cancel", "cancel")
    assert two.exit.code is None or two.exit.code > 128
    assert batch_site.over(two.batch) == "CANCELLED"
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"4322" in _read(p)]


async def test_the_next_agent_takes_over_what_slurm_runs(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        batch_site.spec(
            f"echo $JOBSCRIBE_TOKEN >>{batch_site.root}/stamps; until [ -e {batch_site.root}/go ]; do sleep 0.1; done; exit 4"
        ),
    )
    await batch_site.running(token)
    await batch_site.kill(batch)
    (batch_site.root / "go").touch()
    await batch_site.until(lambda: not batch_site.slurm.queued())
    batch_site.said.clear()
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (4, "script")
    assert (batch_site.root / "stamps").read_text() == f"{token}\n"


async def test_steps_that_a_job_begins_are_sampled_while_they_run(batch_site: Ground) -> None:
    """A step is no child of the script, and would be missed below it."""
    batch = await batch_site.agent()
    token = batch_site.token()
    hold = "import time; held = b'x' * 30_000_000; time.sleep(600)"
    text = f'srun --overlap --mem=0 python3 -c "{hold}"'
    batch.launch(token, batch_site.spec(text))
    sample = await batch_site.until(lambda: batch_site.samples and batch_site.samples[-1])
    assert sample.token == token and sample.processes >= 3, "script, srun, and the program"
    assert 30e6 < sample.memory_bytes < 200e6, sample
    batch.stop(token, "cancel", 1.0)
    await batch_site.ended(token)


async def test_all_nodes_of_a_job_are_sampled_and_its_steps_wait_for_no_sampler(
    batch_site: Ground,
) -> None:
    """Its own steps are exclusive, with all GPUs; one nvidia-smi serves all nodes of this machine."""
    programs = batch_site.root / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 40, 1000\n")
    (programs / "nvidia-smi").chmod(0o755)
    batch_site.cluster = msgspec.structs.replace(
        batch_site.cluster, setup=f'export PATH="{programs}:$PATH"'
    )
    batch = await batch_site.agent()
    token = batch_site.token()
    hold = "import time; held = b'x' * 30_000_000; print(0); time.sleep(600)"
    text = f'srun --exact --ntasks-per-node=1 --gres=gpu:1 python3 -uc "{hold}"'
    wishes = BatchRequest(partition="batch", memory_mb=100, nodes=2, tasks=2, cores=1, gpus=1)
    batch.launch(token, batch_site.spec(text, wishes))
    sample = await batch_site.until(lambda: batch_site.samples and batch_site.samples[-1])
    assert sample.token == token and sample.memory_bytes > 0
    assert sample.gpu_percent == 40 and sample.gpu_memory_bytes == 2 * 1000 * 2**20, sample
    await batch_site.until(
        lambda: batch_site.evidence(token, "stdout.log").read_bytes() == b"0\n0\n"
    )
    began = time.monotonic()
    batch.stop(token, "cancel", 1.0)
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.stop_reason == "cancel"
    assert time.monotonic() - began < 30, "no sampler holds the job"
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"jobscribe-usage" in _read(p)]


async def test_a_gang_over_two_nodes_whose_servers_are_stopped_when_the_workers_are_done(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    batch_site.serial += 1
    wishes = BatchRequest(partition="batch", memory_mb=50, nodes=2, tasks=4, cores=1)
    servers = [batch_site.token("ps", n) for n in range(2)]
    workers = [batch_site.token("worker", n) for n in range(2)]
    tasks = [
        (
            t,
            batch_site.spec(
                "echo $PEER $(hostname); trap 'exit 3' TERM; while :; do sleep 0.1; done",
                wishes,
                grace_secs=5,
            ),
        )
        for t in servers
    ]
    tasks += [(t, batch_site.spec("echo $PEER; exit 0", wishes)) for t in workers]
    batch.launch_gang(Shared(env={"PEER": "@worker-1@"}, job='{"peer": "@ps-0@"}'), tasks)
    for token in workers:
        end = await batch_site.ended(token)
        assert end.exit is not None and end.exit.code == 0, end
        assert end.exit.user_secs is not None, "the step of a task has usage of its own"
    for token in servers:
        assert (await batch_site.running(token)).batch.nodes  # type: ignore[union-attr]
        assert batch_site.of(token)[-1].state == "running"
    batch.stop(servers[0], "roleDone", 5.0)
    first = await batch_site.ended(servers[0])
    assert first.exit is not None and (first.exit.code, first.exit.stop_reason) == (
        3,
        "roleDone",
    ), first
    assert batch_site.of(servers[1])[-1].state == "running"
    batch.stop(servers[1], "roleDone", 5.0)
    second = await batch_site.ended(servers[1])
    assert second.exit is not None and (second.exit.code, second.exit.stop_reason) == (
        3,
        "roleDone",
    ), second
    assert "@" not in batch_site.evidence(workers[0], "stdout.log").read_text()
    assert "@" not in (batch_site.root / "run" / "job.json").read_text()
    assert len({e.batch.job_id for t in (*servers, *workers) for e in batch_site.of(t)[-1:]}) == 1  # type: ignore[union-attr]
    assert not batch_site.slurm.queued()


async def test_a_controller_that_is_away_is_no_end(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token, batch_site.spec(f"until [ -e {batch_site.root}/go ]; do sleep 0.1; done; exit 8")
    )
    await batch_site.running(token)
    await asyncio.to_thread(batch_site.slurm.kill, "slurmctld")
    await batch_site.until(lambda: batch_site.of(token)[-1].batch.unknown_since)  # type: ignore[union-attr]
    (batch_site.root / "go").touch()
    await batch_site.until(batch_site.evidence(token, "exit-code").exists)
    assert batch_site.of(token)[-1].state == "running"
    await asyncio.to_thread(batch_site.slurm.start, "slurmctld")
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 8


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_a_breakpoint_on_a_node_is_reached_by_a_step_of_its_job(batch_site: Ground) -> None:
    """The socket is on the node; the agent, on the login node, is not. The job has a profile, too."""
    batch = await batch_site.agent()
    token = batch_site.token()
    program = (
        "y = 6\nbreakpoint()\nfor _ in range(5): sum(range(10**6))\nprint('result', y, flush=True)"
    )
    batch.launch(
        token,
        batch_site.spec(
            f'exec {sys.executable} -c "{program}"',
            env={"JOBSCRIBE_DEBUG": "breakpoint"},
            profile="cpu",
        ),
    )
    log = Log("agent", Redactor(), Direct())
    sessions = Sessions(batch_site.folder / "run", log, batch.command_environment)
    asked = ListStops(op_id="o" * 32, tokens=(token,))

    async def look() -> tuple[Stops, ...]:
        found = await sessions.answer(asked)
        assert isinstance(found, Stops)
        return (found,) if found.found else ()

    deadline = time.monotonic() + CALL_SECS
    while not (stops := await look()):
        assert time.monotonic() < deadline, batch_site.said[-4:]
        await asyncio.sleep(0.05)
    _, stop = stops[0].found[0]
    assert (stop.kind, stop.line) == ("breakpoint", 2)
    await sessions.answer(
        AttachDebugger(op_id="o" * 32, token=token, name=stop.name, session="s" * 32)
    )
    for line in ("y = 7", "c"):
        await sessions.answer(
            DebuggerIo(
                op_id="o" * 32,
                session="s" * 32,
                data=json.dumps({"line": line}).encode() + b"\n",
            )
        )
    end = await batch_site.ended(token)
    sessions.close("the test ends")
    assert end.exit is not None and end.exit.code == 0
    assert batch_site.evidence(token, "stdout.log").read_text() == "result 7\n"
    (profile,) = batch_site.root.rglob("run/jobscribe-profiles/*/cpu-sampler-*.collapsed")
    assert "<module> (<string>:1) " in profile.read_text()
