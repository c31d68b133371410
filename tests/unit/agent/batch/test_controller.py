"""Executions through a fake Slurm, while Slurm, the machine or the agent fails."""

import asyncio
import fcntl
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_slurm import USER, FakeJob, FakeSlurm

from jobscribe.agent.batch import (
    controller,
    holds,
    observer,
    poll_loop,
    reconciliation,
    scheduler_queries,
    start,
)
from jobscribe.agent.batch import stop as stopping
from jobscribe.agent.batch.controller import BatchController
from jobscribe.agent.files.output_reader import Evidence
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.clusters.cluster import Cluster, fallback_secs
from jobscribe.protocol.ids import Token, execution_log_ids
from jobscribe.protocol.jobs.exit_info import ExitFacts
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import Execution, TaskSpec
from jobscribe.runtime.log.logger import Log, Record
from jobscribe.supervisor.diagnosis import batch_jobs as batch_words

pytestmark = pytest.mark.process

SECS = 20.0


class Login:
    known: dict[str, str] = {"PATH": "/usr/bin:/bin"}
    umask, sentence = "0077", None

    async def load(self) -> None:
        """Do nothing: the environment is known."""


class Told:
    """A sink of a log. failures: the last lines of tracebacks."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.failures: list[str] = []

    def write(self, record: Record) -> None:
        self.records.append(record)
        if record.traceback:
            self.failures.append(record.traceback.strip().splitlines()[-1].partition(": ")[2])


class Ground:
    """One agent's folder, its fake Slurm, and its successive agents."""

    def __init__(self, root: Path, slurm: FakeSlurm) -> None:
        self.root, self.slurm = root, slurm
        self.folder = root / "agent" / "sbatch.parallel.user1234@lab"
        self.folder.mkdir(parents=True)
        self.said: list[Execution] = []
        self.news: list[Any] = []
        self.agents: list[BatchController] = []
        self.serial = 100
        self.cluster = Cluster(name="lab", poll_secs=0.1, poll_max_secs=0.5, call_secs=1.0)

    async def agent(
        self, *, base: bool = False, told: Told | None = None, **more: Any
    ) -> BatchController:
        batch = BatchController(
            self.folder,
            Evidence(self.folder / "run"),
            Login(),
            (),
            self.cluster,
            "test",
            Log("agent", Redactor(), told or Told()),
            self.said.append,
            run=self.slurm,
            user=USER,
            on_cluster_status=self.news.append,
            base=self.root if base else None,
            **more,
        )
        self.agents.append(batch)
        self.said += await batch.start()
        return batch

    async def kill(self, batch: BatchController) -> None:
        """Simulate kill -9: stop reports and writes. Slurm commands that already started go on."""
        batch._say = lambda e: None
        await batch.close()
        self.agents.remove(batch)

    def token(self, index: int = 0) -> Token:
        self.serial += 1
        return Token("user1234-sim12345-command", self.serial, 1, "main", index)

    def spec(self, shell: str, **more: Any) -> TaskSpec:
        return TaskSpec(
            command=("/bin/sh", "-c", shell),
            run_dir=str(self.root / "run"),
            batch=BatchRequest(),
            **more,
        )

    def evidence(self, token: Token, file: str) -> Path:
        return self.folder / "run" / token.name / file

    def of(self, token: Token) -> list[Execution]:
        return [e for e in self.said if e.token == token]

    async def until(self, condition: Callable[[], Any], secs: float = SECS) -> Any:
        deadline = time.monotonic() + secs
        while not (value := condition()):
            assert time.monotonic() < deadline, (self.said[-3:], self.slurm.calls[-10:])
            await asyncio.sleep(0.01)
        return value

    async def ended(self, token: Token) -> Execution:
        return await self.until(
            lambda: next((e for e in self.of(token) if e.state == "ended"), None)
        )  # type: ignore[no-any-return]

    async def running(self, token: Token) -> Execution:
        return await self.until(
            lambda: next((e for e in self.of(token) if e.state == "running" and e.pid), None)
        )  # type: ignore[no-any-return]

    async def ending(self, token: Token) -> Execution:
        return await self.until(lambda: next((e for e in self.of(token) if e.ending), None))  # type: ignore[no-any-return]

    async def job(self, number: int = 1) -> FakeJob:
        """Wait for the n-th job that Slurm accepted, and return it."""
        await self.until(lambda: len(self.slurm.jobs) >= number)
        return list(self.slurm.jobs.values())[number - 1]

    def starts(self) -> list[str]:
        """Return the stamps that jobs wrote when they started."""
        stamps = self.root / "stamps"
        return stamps.read_text().split() if stamps.exists() else []

    def stamping(self, then: str = "true") -> str:
        return f"echo $JOBSCRIBE_TOKEN >>{self.root}/stamps; {then}"


@pytest.fixture
async def batch_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    """Return the ground, with the delays of Slurm and of file systems that the fake does not have
    shortened.
    """
    monkeypatch.setattr(start, "SETTLED_SECS", 0.6)
    monkeypatch.setattr(reconciliation, "SETTLED_SECS", 0.6)
    monkeypatch.setattr(reconciliation, "ABSENT_SECS", 0.3)
    monkeypatch.setattr(observer, "SHORTEST_SECS", 0.03)
    monkeypatch.setattr(observer, "LONGEST_SECS", 0.2)
    monkeypatch.setattr(poll_loop, "_AFTER_CODE_SECS", 0.1)
    monkeypatch.setattr(poll_loop, "_VISIBLE_SECS", 0.4)
    slurm = FakeSlurm()
    made = Ground(tmp_path, slurm)
    yield made
    for batch in list(made.agents):
        await batch.close()
    await slurm.close()


async def test_a_plain_run_goes_its_way(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("echo hello; echo oops >&2; exit 7"))
    end = await batch_site.ended(token)
    assert end.exit is not None and end.batch is not msgspec.UNSET
    assert (end.exit.code, end.exit.source, end.exit.last_lines) == (7, "script", "oops")
    assert (end.batch.state, end.batch.job_id, end.batch.cluster) == ("FAILED", "11", "lab")
    assert batch_site.evidence(token, "stdout.log").read_text() == "hello\n"
    assert batch_site.evidence(token, "batch.sh").read_text().startswith("#!/bin/sh\n#SBATCH ")
    states = [e.state for e in batch_site.of(token)]
    assert states == sorted(states, key=["starting", "running", "ended"].index)
    assert msgspec.json.decode(batch_site.evidence(token, "exit.json").read_bytes())["code"] == 7


async def test_lines_about_a_task_carry_its_ids(batch_site: Ground) -> None:
    told = Told()
    batch = await batch_site.agent(told=told)
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 7"))
    await batch_site.ended(token)
    found = [r for r in told.records if token.jid in r.message]
    assert len(found) >= 2
    for record in found:
        assert execution_log_ids(token).items() <= record.ids.items(), record


async def test_a_token_is_launched_once_however_often_it_is_asked_for(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    for _ in range(3):
        batch.launch(token, batch_site.spec(batch_site.stamping()))
    await batch_site.ended(token)
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    batch.forget([token])
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    last = batch_site.of(token)[-1]
    assert last.exit is not None and (last.exit.code, last.exit.source) == (0, "script")
    assert batch_site.slurm.count("sbatch") == 1 and batch_site.starts() == [str(token)]


async def test_an_end_is_there_until_it_is_acknowledged(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 3"))
    await batch_site.ended(token)
    for _ in range(2):
        await batch_site.kill(batch)
        batch_site.said.clear()
        batch = await batch_site.agent()
        (known,) = batch_site.said
        assert (
            (known.token, known.state) == (token, "ended")
            and known.exit is not None
            and known.exit.code == 3
        )
    batch.forget([token])
    await batch_site.kill(batch)
    batch_site.said.clear()
    await batch_site.agent()
    assert batch_site.said == []


async def test_a_stop_of_what_was_not_launched_is_remembered(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.stop(token, "cancel", 1.0)
    await batch_site.kill(batch)
    batch = await batch_site.agent()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.source, end.exit.stop_reason) == ("start", "cancel")
    assert batch_site.slurm.count("sbatch") == 0 and batch_site.starts() == []


async def test_what_waits_in_the_queue_is_stopped_before_it_starts_for_good(
    batch_site: Ground,
) -> None:
    batch_site.slurm.hold = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    job = await batch_site.job()
    await batch_site.until(lambda: batch_site.of(token)[-1].batch.job_id)  # type: ignore[union-attr]
    batch.stop(token, "cancel", 1.0)
    await batch_site.until(lambda: batch_site.evidence(token, "started").exists())
    if not job.over:  # Slurm may start the job just before the cancel
        batch_site.slurm.begin(job)
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.source, end.exit.stop_reason) == (
        "start",
        "cancel",
    ), end
    assert batch_site.starts() == [] and job.over


@pytest.mark.parametrize(
    ("shell", "code", "number"),
    [
        ("trap 'exit 5' TERM; touch up; while :; do sleep 0.02; done", 5, None),
        ("trap '' TERM; touch up; while :; do sleep 0.02; done", None, 9),
    ],
)
async def test_a_stop_is_sigterm_then_grace_then_sigkill(
    batch_site: Ground, shell: str, code: int | None, number: int | None
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(shell))
    await batch_site.until((batch_site.root / "run" / "up").exists)
    batch.stop(token, "cancel", 0.5)
    assert (
        msgspec.json.decode(batch_site.evidence(token, "stop.json").read_bytes())["reason"]
        == "cancel"
    )
    assert batch_site.slurm.count("scancel") == 0, (
        "the reason has to be there before the first signal"
    )
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.stop_reason == "cancel" and end.exit.code == code
    assert number is None or end.exit.signal in (None, number)


async def test_the_agent_ends_what_slurm_has_not_ended_at_its_limit(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[float, float]] = []
    monkeypatch.setattr(poll_loop, "fallback_secs", lambda *limit: limits.append(limit) or limit[0])
    batch = await batch_site.agent()
    token = batch_site.token()
    began = time.monotonic()
    batch.launch(
        token,
        batch_site.spec(
            "trap 'exit 1' TERM; while :; do sleep 0.02; done", time_limit_secs=1.2, grace_secs=1.0
        ),
    )
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.stop_reason == "timeLimit"
        and time.monotonic() - began >= 0.2
    )
    assert "#SBATCH --time=1\n" in batch_site.evidence(token, "batch.sh").read_text()
    assert set(limits) == {(1.2, 90.0)} and (fallback_secs(1.2), fallback_secs(60, 7)) == (
        150,
        67,
    ), "Slurm's own limit comes first"


@pytest.mark.parametrize("code", [0, 3])
async def test_what_ends_at_slurm_s_own_limit_was_ended_by_its_time_limit(
    batch_site: Ground, code: int
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        batch_site.spec(
            f"trap 'exit {code}' TERM; touch up; while :; do sleep 0.02; done", time_limit_secs=60.0
        ),
    )
    await batch_site.until((batch_site.root / "run" / "up").exists)
    batch_site.slurm.time_out(await batch_site.job())
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.stop_reason) == (code, "timeLimit")
    assert batch_site.slurm.count("scancel") == 0


async def test_it_is_not_over_while_slurm_is_completing_it(batch_site: Ground) -> None:
    batch_site.slurm.completing = 0.8
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("true"))
    job = await batch_site.job()
    await batch_site.until(lambda: job.state == "COMPLETING")
    await batch_site.until(lambda: batch_site.of(token)[-1].batch.state == "COMPLETING")  # type: ignore[union-attr]
    assert batch_site.of(token)[-1].state == "running"
    await batch_site.ended(token)
    assert job.state == "COMPLETED"


# ---- the exit is known, but Slurm has not finished the job


async def test_its_own_exit_is_told_while_slurm_completes_it_and_nothing_stops_it_then(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_loop, "fallback_secs", lambda limit, slack: limit)
    batch_site.slurm.completing = 2.0
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 3", time_limit_secs=1.0))
    ending = await batch_site.ending(token)
    assert ending.exit is not None and (
        ending.exit.code,
        ending.exit.source,
        ending.exit.stop_reason,
    ) == (3, "script", None)
    batch.stop(token, "cancel", 0.1)
    assert batch_site.of(token)[-1].ending
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.stop_reason) == (3, None)
    assert (
        batch_site.slurm.count("scancel") == 0
        and not batch_site.evidence(token, "stop.json").exists()
    )


async def test_a_failed_task_holds_its_allocation_until_it_is_released(batch_site: Ground) -> None:
    """Across a killed agent. Without a wish, a failure or a deadline in the future, nothing is held."""
    batch = await batch_site.agent()
    token, stopped, canceled = (batch_site.token() for _ in range(3))
    others = {batch_site.token(): n for n in (0, 137)}
    fails = batch_site.spec("exit 3", debug_secs=600.0)
    for each in (token, stopped, canceled):
        batch.launch(each, fails)
    for each, code in others.items():
        batch.launch(each, batch_site.spec(f"exit {code}", debug_secs=600.0))

    def held(of: Token) -> Any:
        return next((e for e in batch_site.of(of) if e.held_until is not msgspec.UNSET), None)

    for each in (token, stopped, canceled):
        e = await batch_site.until(lambda each=each: held(each))
        assert (e.state, e.exit.code, e.exit.source) == ("running", 3, "script")
        assert 500 < e.held_until - time.time() <= 601
    for each, code in others.items():
        assert (await batch_site.ended(each)).exit.code == code and held(each) is None
    await batch_site.kill(batch)
    batch_site.said.clear()
    batch = await batch_site.agent()
    assert (await batch_site.until(lambda: held(token))).exit.code == 3
    batch.release(token)
    batch.stop(stopped, "lost", 0.0)
    for each in (token, stopped):
        exit_ = (await batch_site.ended(each)).exit
        assert (exit_.code, exit_.stop_reason, exit_.notices) == (3, None, msgspec.UNSET)
    job = next(j for j in batch_site.slurm.jobs.values() if str(canceled) in j.comment)
    assert not job.over, "the others are not affected"
    batch_site.slurm.end(job, "CANCELLED")
    exit_ = (await batch_site.ended(canceled)).exit
    assert (exit_.code, exit_.ended_by_scheduler, exit_.stop_reason) == (3, None, None), exit_
    assert [n.code for n in exit_.notices] == ["holdEnded"] and "canceled" in exit_.notices[0].text


async def test_a_hold_ends_at_its_deadline_and_a_script_that_does_not_end_it_is_canceled(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await batch_site.agent()
    token, deaf = batch_site.token(), batch_site.token()
    batch.launch(token, batch_site.spec("exit 3", debug_secs=1.0))
    assert (await batch_site.ended(token)).exit.code == 3
    assert not batch_site.slurm.count("scancel")
    monkeypatch.setattr(holds, "_RELEASE_SECS", 0.2)
    batch.launch(deaf, batch_site.spec("exit 4", debug_secs=600.0))
    await batch_site.until(lambda: [e for e in batch_site.of(deaf) if e.held_until])
    job = next(j for j in batch_site.slurm.jobs.values() if str(deaf) in j.comment)
    assert job.process is not None
    job.process.send_signal(signal.SIGSTOP)
    batch.release(deaf)
    exit_ = (await batch_site.ended(deaf)).exit
    assert (exit_.code, exit_.stop_reason) == (4, None) and batch_site.slurm.count("scancel")


async def test_what_slurm_completes_without_an_exit_of_its_own_has_no_known_end_yet(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    await batch_site.running(token)
    job = await batch_site.job()
    job.state = "COMPLETING"
    await batch_site.until(lambda: batch_site.of(token)[-1].batch.state == "COMPLETING")  # type: ignore[union-attr]
    assert not batch_site.of(token)[-1].ending
    batch_site.slurm.end(job, "CANCELLED")
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.ended_by_scheduler == "CANCELLED"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_stop_that_is_on_record_and_finds_an_exit_sends_no_signal(
    batch_site: Ground,
    monkeypatch: pytest.MonkeyPatch,
    restarted: bool,
) -> None:
    monkeypatch.setattr(stopping, "_COLLECT_SECS", 1.0)
    batch_site.slurm.completing = 1.3
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(f"until [ -e {batch_site.root}/go ]; do sleep 0.02; done"))
    await batch_site.running(token)
    batch.stop(token, "cancel", 0.1)
    stop = batch_site.evidence(token, "stop.json")
    assert msgspec.json.decode(stop.read_bytes())["signaled"] is False
    if restarted:
        await batch_site.kill(batch)
    (batch_site.root / "go").touch()
    await batch_site.until(batch_site.evidence(token, "exit-code").exists)
    if restarted:
        await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.stop_reason) == (0, None)
    assert (
        batch_site.slurm.count("scancel") == 0
        and msgspec.json.decode(stop.read_bytes())["signaled"] is False
    )


@pytest.mark.parametrize("by_itself", [True, False], ids=["by itself", "by its node"])
async def test_a_stop_that_sent_no_signal_is_not_why_a_job_ended_that_is_over_before_it(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch, by_itself: bool
) -> None:
    monkeypatch.setattr(stopping, "_COLLECT_SECS", SECS)
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(f"until [ -e {batch_site.root}/go ]; do sleep 0.02; done"))
    await batch_site.running(token)
    batch.stop(token, "cancel", 0.1)
    if by_itself:
        (batch_site.root / "go").touch()
    else:
        batch_site.slurm.end(await batch_site.job(), "NODE_FAIL", "0:0", "NodeDown")
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.source == ("script" if by_itself else "scheduler")
    assert end.exit.code == (0 if by_itself else None) and end.exit.stop_reason is None
    assert all(e.exit is None or e.exit.stop_reason is None for e in batch_site.of(token))
    assert batch_site.slurm.count("scancel") == 0


async def test_a_signal_that_was_sent_by_an_earlier_agent_is_why_it_ended(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        batch_site.spec(
            "trap 'touch stopped; until [ -e done ]; do sleep 0.02; done; exit 5' TERM; touch up; while :; do sleep 0.02; done"
        ),
    )
    await batch_site.until((batch_site.root / "run" / "up").exists)
    batch.stop(token, "cancel", 60.0)
    await batch_site.until((batch_site.root / "run" / "stopped").exists)
    assert (
        msgspec.json.decode(batch_site.evidence(token, "stop.json").read_bytes())["signaled"]
        is True
    )
    await batch_site.kill(batch)
    (batch_site.root / "run" / "done").touch()
    await batch_site.until(batch_site.evidence(token, "exit-code").exists)
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.stop_reason) == (5, "cancel")


@pytest.mark.parametrize(
    ("state", "by"), [("TIMEOUT", ""), ("CANCELLED", "1001"), ("NODE_FAIL", "")]
)
async def test_an_exit_that_slurm_did_not_see_for_long_is_no_end_by_slurm(
    batch_site: Ground, state: str, by: str
) -> None:
    batch_site.slurm.hung = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 3"))
    await batch_site.ending(token)
    asked = batch_site.slurm.count("squeue")
    await batch_site.until(lambda: batch_site.slurm.count("squeue") > asked + 1)
    job = await batch_site.job()
    assert job.state == "RUNNING"
    batch_site.slurm.end(job, state)
    job.by = by
    end = await batch_site.ended(token)
    assert end.exit is not None and (
        end.exit.code,
        end.exit.stop_reason,
        end.exit.ended_by_scheduler,
    ) == (3, None, None)
    assert end.exit.detail is None and end.batch.state == state  # type: ignore[union-attr]
    assert (
        batch_words.exit_evidence(end.exit)[-1]
        == "its command ended by itself before Slurm ended the job, so its own exit counts"
    )


# ---- the agent is killed at any moment


async def test_the_next_agent_takes_over_what_runs_and_what_ended_meanwhile(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    runs, ends = batch_site.token(), batch_site.token()
    batch.launch(
        runs,
        batch_site.spec(
            batch_site.stamping(f"until [ -e {batch_site.root}/go ]; do sleep 0.02; done; exit 4")
        ),
    )
    batch.launch(
        ends,
        batch_site.spec(
            batch_site.stamping(f"until [ -e {batch_site.root}/end ]; do sleep 0.02; done; exit 9")
        ),
    )
    await batch_site.running(runs), await batch_site.running(ends)
    await batch_site.kill(batch)
    (batch_site.root / "end").touch()
    await batch_site.until(lambda: any(j.over for j in batch_site.slurm.jobs.values()))
    batch_site.said.clear()
    await batch_site.agent()
    one = await batch_site.ended(ends)
    assert one.exit is not None and one.exit.code == 9 and (await batch_site.running(runs)).pid
    (batch_site.root / "go").touch()
    two = await batch_site.ended(runs)
    assert two.exit is not None and two.exit.code == 4
    assert sorted(batch_site.starts()) == [str(runs), str(ends)]


async def test_killed_between_sbatch_and_its_answer_it_is_found_by_its_comment(
    batch_site: Ground,
) -> None:
    batch_site.slurm.answer.clear()
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping("exit 6")))
    await batch_site.slurm.taken.wait()
    await batch_site.kill(batch)
    batch_site.slurm.answer.set()
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 6 and end.batch.job_id == "11"  # type: ignore[union-attr]
    assert batch_site.slurm.count("sbatch") == 1 and batch_site.starts() == [str(token)]


@pytest.mark.parametrize("comments", [True, False])
async def test_an_accounting_without_comments_will_do(batch_site: Ground, comments: bool) -> None:
    batch_site.slurm.answer.clear()
    batch_site.slurm.accounting_comments = comments
    batch_site.slurm.hold = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    await batch_site.slurm.taken.wait()
    await batch_site.kill(batch)
    job = await batch_site.job()
    batch_site.slurm.end(job, "CANCELLED")
    job.in_queue = False
    batch_site.slurm.answer.set()
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert (
        batch_site.slurm.count("sbatch") == 1 and end.batch.job_id == "11" and end.exit.code is None
    )  # type: ignore[union-attr]


async def test_killed_before_anything_was_submitted_it_never_started(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch._preparation.write_files = lambda *a: time.sleep(0.2)  # type: ignore[method-assign]
    batch._submitter.submit = lambda job: None  # type: ignore[method-assign]
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    await batch_site.kill(batch)
    batch = await batch_site.agent()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.source == "start"
        and batch_site.slurm.count("sbatch") == 0
        and batch_site.starts() == []
    )


async def test_killed_between_the_note_and_sbatch_it_is_submitted_by_the_next(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch._submitter.submit = lambda job: None  # type: ignore[method-assign]
    batch.launch(token, batch_site.spec(batch_site.stamping("exit 2")))
    await batch_site.until(lambda: batch_site.evidence(token, "batch.json").exists())
    await batch_site.kill(batch)
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 2 and batch_site.starts() == [str(token)]


async def test_a_stop_is_taken_up_by_the_next_agent(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("trap 'exit 5' TERM; while :; do sleep 0.02; done"))
    await batch_site.running(token)
    batch.stop(token, "cancel", 0.4)
    await batch_site.kill(batch)
    assert batch_site.slurm.count("scancel") == 0
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.stop_reason) == (5, "cancel")


async def test_a_stop_that_has_sent_sigterm_goes_on_with_sigkill_in_the_next_agent(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("trap '' TERM; touch up; while :; do sleep 0.02; done"))
    await batch_site.until((batch_site.root / "run" / "up").exists)
    batch.stop(token, "cancel", 1.0)
    await batch_site.until(lambda: batch_site.slurm.count("scancel"))
    await batch_site.kill(batch)
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.stop_reason) == (None, "cancel")


# ---- missing answers


async def test_a_lost_answer_of_sbatch_is_looked_for(batch_site: Ground) -> None:
    batch_site.slurm.lost_answers = 1
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping("exit 6")))
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 6 and batch_site.slurm.count("sbatch") == 1


async def test_a_lost_request_is_made_again_when_it_is_surely_not_there(batch_site: Ground) -> None:
    batch_site.slurm.lost_requests = 1
    batch_site.slurm.accounting_down = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping("exit 6")))
    await batch_site.until(
        lambda: batch_site.of(token) and batch_site.of(token)[-1].batch.unknown_since
    )  # type: ignore[union-attr]
    await asyncio.sleep(1.0)  # longer than the agent waits before it treats a job as lost
    assert batch_site.slurm.count("sbatch") == 1, "accounting could not be asked"
    batch_site.slurm.accounting_down = False
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.code == 6
        and batch_site.slurm.count("sbatch") == 2
        and batch_site.starts() == [str(token)]
    )


async def test_of_two_that_slurm_has_one_runs_and_is_followed(batch_site: Ground) -> None:
    batch_site.slurm.lost_answers = 1
    batch_site.slurm.hold = batch_site.slurm.hidden = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        batch_site.spec(
            batch_site.stamping(f"until [ -e {batch_site.root}/go ]; do sleep 0.02; done; exit 6")
        ),
    )
    first = await batch_site.job()
    batch_site.slurm.hidden = False
    second = await batch_site.job(2)
    await batch_site.until(lambda: batch_site.of(token)[-1].batch.job_id == second.job_id)  # type: ignore[union-attr]
    first.in_queue = first.in_accounting = True
    batch_site.slurm.begin(first)
    await batch_site.running(token)
    batch_site.slurm.begin(second)
    await batch_site.until(lambda: second.over)
    assert second.exit == "97:0"
    (batch_site.root / "go").touch()
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 6 and end.batch.job_id == first.job_id  # type: ignore[union-attr]
    assert batch_site.starts() == [str(token)]


async def test_a_scheduler_that_is_away_is_no_end(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token, later = batch_site.token(), batch_site.token()
    batch.launch(
        token, batch_site.spec(f"until [ -e {batch_site.root}/go ]; do sleep 0.02; done; exit 8")
    )
    await batch_site.running(token)
    batch_site.slurm.down = batch_site.slurm.accounting_down = True
    batch.launch(later, batch_site.spec(batch_site.stamping()))
    await batch_site.until(
        lambda: all(
            batch_site.of(t)[-1:] and batch_site.of(t)[-1].batch.unknown_since
            for t in (token, later)
        )
    )  # type: ignore[union-attr]
    (batch_site.root / "go").touch()
    await asyncio.sleep(1.5)
    assert [batch_site.of(t)[-1].state for t in (token, later)] == ["running", "starting"]
    assert "Unable to contact" in batch_site.of(token)[-1].batch.sentence  # type: ignore[union-attr]
    batch_site.slurm.down = batch_site.slurm.accounting_down = False
    one, two = await batch_site.ended(token), await batch_site.ended(later)
    assert (
        one.exit is not None and two.exit is not None and (one.exit.code, two.exit.code) == (8, 0)
    )
    assert one.batch.unknown_since is None and batch_site.starts() == [str(later)]  # type: ignore[union-attr]


async def test_its_nodes_and_run_directory_are_known_from_its_script_before_slurm_tells_them(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent(run_dirs=True)
    batch_site.slurm.hold = True
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    job = await batch_site.job()
    await batch_site.until(
        lambda: batch_site.of(token)[-1:] and batch_site.of(token)[-1].batch.job_id
    )
    batch_site.slurm.down = batch_site.slurm.accounting_down = True
    batch_site.slurm.begin(job)
    await batch_site.running(token)
    state = batch_site.of(token)[-1].batch
    assert state is not None
    assert (state.nodes, state.run_dir) == ("n1", str(batch_site.root / "run"))
    batch_site.slurm.down = batch_site.slurm.accounting_down = False
    batch.stop(token, "cancel", 0.1)
    await batch_site.ended(token)


async def test_a_stop_that_slurm_did_not_hear_is_not_the_cause_of_an_earlier_end(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    await batch_site.running(token)
    job = await batch_site.job()
    batch_site.slurm.down = batch_site.slurm.accounting_down = True
    job.by = "3000001002"
    batch_site.slurm.end(job, "CANCELLED")
    job.ended_at = time.time() - 60
    batch.stop(token, "cancel", 0.1)
    record = batch_site.evidence(token, "stop.json")
    await batch_site.until(
        lambda: record.exists() and msgspec.json.decode(record.read_bytes())["signaled"]
    )
    batch_site.slurm.down = batch_site.slurm.accounting_down = False
    end = await batch_site.ended(token)
    assert end.exit is not None
    assert (end.exit.stop_reason, end.exit.ended_by_scheduler) == (None, "CANCELLED")
    assert end.batch.canceled_by == "3000001002"  # type: ignore[union-attr]


@pytest.mark.parametrize("away", ["queue", "accounting"])
async def test_forgotten_by_both_it_is_lost_and_by_one_it_is_not(
    batch_site: Ground, away: str
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    await batch_site.running(token)
    job = await batch_site.job()
    job.in_queue = False
    if away == "queue":
        batch_site.slurm.down = True
    else:
        batch_site.slurm.accounting_down = True
    job.in_accounting = False
    program = "squeue" if away == "queue" else "sacct"
    asked, long_enough = (
        batch_site.slurm.count(program),
        time.monotonic() + 6 * reconciliation.ABSENT_SECS,
    )
    await batch_site.until(
        lambda: batch_site.slurm.count(program) >= asked + 4 and time.monotonic() > long_enough
    )
    assert batch_site.of(token)[-1].state == "running"
    batch_site.slurm.down = batch_site.slurm.accounting_down = False
    end = await batch_site.ended(token)
    assert (
        end.exit is not None and end.exit.source == "lost" and "accounting" in str(end.exit.detail)
    )


async def test_forgotten_by_both_the_scripts_own_hand_counts(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch_site.slurm.completing = 30
    batch.launch(token, batch_site.spec("exit 12"))
    job = await batch_site.job()
    await batch_site.until(lambda: job.state == "COMPLETING")
    job.in_queue = job.in_accounting = False
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (12, "script")
    batch_site.slurm.completing = 0


async def test_late_answers_are_waited_for_and_too_late_ones_are_outages(
    batch_site: Ground,
) -> None:
    batch_site.slurm.late = 0.3
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 1"))
    await batch_site.ended(token)
    batch_site.slurm.late = 5.0
    other = batch_site.token()
    batch.launch(other, batch_site.spec("exit 1"))
    await batch_site.until(
        lambda: batch_site.of(other) and batch_site.of(other)[-1].batch.unknown_since
    )  # type: ignore[union-attr]
    batch_site.slurm.late = 0.0
    await batch_site.ended(other)


# ---- ends that Slurm causes


@pytest.mark.parametrize(
    ("state", "exit_", "reason", "expected"),
    [
        ("TIMEOUT", "0:0", "TimeLimit", {"stop_reason": "timeLimit"}),
        ("OUT_OF_MEMORY", "0:125", "OutOfMemory", {"out_of_memory": True}),
        ("NODE_FAIL", "0:0", "NodeDown", {"source": "scheduler", "code": None}),
        ("PREEMPTED", "0:0", "", {"source": "scheduler", "code": None}),
        ("FAILED", "0:11", "JobLaunchFailure", {"signal": 11}),
        ("CANCELLED", "0:0", "", {"source": "scheduler", "code": None}),
    ],
)
async def test_what_slurm_ended_is_told_as_what_it_is(
    batch_site: Ground, state: str, exit_: str, reason: str, expected: dict[str, Any]
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    await batch_site.running(token)
    job = await batch_site.job()
    job.by = "3000001002" if state == "CANCELLED" else ""
    batch_site.slurm.end(job, state, exit_, reason)
    end = await batch_site.ended(token)
    assert end.exit is not None and {k: getattr(end.exit, k) for k in expected} == expected
    assert end.batch.state == state and (
        state != "CANCELLED" or end.batch.canceled_by == "3000001002"
    )  # type: ignore[union-attr]
    assert end.exit.code != 0 and isinstance(end.exit.facts, ExitFacts)


async def test_what_accounting_says_of_memory_is_beside_what_was_asked_for(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        msgspec.structs.replace(batch_site.spec("sleep 60"), batch=BatchRequest(memory_mb=64)),
    )
    await batch_site.running(token)
    job = await batch_site.job()
    job.max_rss = "65000K"
    batch_site.slurm.end(job, "OUT_OF_MEMORY", "0:9", "OutOfMemory")
    exit_ = (await batch_site.ended(token)).exit
    assert (
        exit_ is not None
        and isinstance(exit_.facts, ExitFacts)
        and (exit_.signal, exit_.out_of_memory) == (9, True)
    )
    assert (exit_.facts.memory_peak_bytes, exit_.facts.memory_limit_bytes) == (
        65_000 << 10,
        64 << 20,
    )
    assert exit_.facts.kernel_unread == "the agent cannot read the kernel log of the node"
    fine = batch_site.token()
    batch.launch(fine, batch_site.spec("true"))
    exit_ = (await batch_site.ended(fine)).exit
    assert exit_ is not None and exit_.facts is msgspec.UNSET


async def test_processor_time_and_memory_of_a_success_are_those_of_accounting(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token, other = batch_site.token(), batch_site.token()
    batch_site.slurm.used = ("00:01.250", "00:00.250", "65000K")
    batch.launch(token, batch_site.spec("true"))
    exit_ = (await batch_site.ended(token)).exit
    assert exit_ is not None and (exit_.code, exit_.source) == (0, "script")
    assert (exit_.user_secs, exit_.system_secs, exit_.max_rss_bytes) == (1.25, 0.25, 65_000 << 10)
    # what another job of this number used is not that of this one
    batch_site.slurm.used_name = "js-another"
    batch.launch(other, batch_site.spec("true"))
    exit_ = (await batch_site.ended(other)).exit
    assert exit_ is not None and (exit_.user_secs, exit_.max_rss_bytes) == (None, None)


async def test_accounting_that_is_away_is_waited_for_only_so_long(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "ACCOUNT_SECS", 0.5)
    batch_site.slurm.accounting_down = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    await batch_site.running(token)
    batch_site.slurm.end(await batch_site.job(), "NODE_FAIL", "0:0", "NodeDown")
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.source == "scheduler"


async def test_a_refused_submission_ends_with_slurms_words_and_nothing_is_left(
    batch_site: Ground,
) -> None:
    batch_site.slurm.refuse = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.source, end.exit.fault) == ("start", "batchRefused")
    assert (
        "Invalid account or account/partition combination specified" in str(end.exit.detail)
        and batch_site.slurm.jobs == {}
    )


async def test_a_job_that_would_wait_for_ever_ends_with_the_reason(batch_site: Ground) -> None:
    batch_site.slurm.hold = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    job = await batch_site.job()
    job.reason = "PartitionTimeLimit"
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.source, end.exit.fault) == ("start", "neverPossible")
    assert "time limit is longer" in str(end.exit.detail) and job.state == "CANCELLED"


async def test_started_again_by_slurm_it_runs_nothing_and_its_end_is_not_known(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping("sleep 60")))
    await batch_site.running(token)
    job = await batch_site.job()
    await batch_site.until(batch_site.starts)
    job.state = "REQUEUED"
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    job.restarts = 1
    batch_site.slurm.begin(job)
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.source == "lost"
        and "a second time" in str(end.exit.detail)
    )
    assert batch_site.starts() == [str(token)]


# ---- how often Slurm is queried


async def test_many_jobs_are_asked_for_at_once_and_seldom_while_nothing_happens(
    batch_site: Ground,
) -> None:
    batch_site.cluster = msgspec.structs.replace(
        batch_site.cluster, poll_secs=0.1, poll_max_secs=1.0
    )
    batch_site.slurm.hold = True
    batch = await batch_site.agent()
    tokens = [batch_site.token() for _ in range(30)]
    for token in tokens:
        batch.launch(token, batch_site.spec("true"))
    await batch_site.until(lambda: len(batch_site.slurm.jobs) == 30)
    await asyncio.sleep(0.5)
    before = batch_site.slurm.count("squeue")
    for n in range(30):  # a new reason or start time in the queue is not reported
        for job in batch_site.slurm.jobs.values():
            job.reason, job.started_at = ("Priority", "Resources")[n % 2], time.time() + 1000 * n
        await asyncio.sleep(0.05)
    assert batch_site.slurm.count("squeue") - before <= 4, "the pause grows to 1 s"
    assert batch_site.slurm.count("sacct") == 0
    began, count = time.monotonic(), batch_site.slurm.count("squeue")
    for job in list(batch_site.slurm.jobs.values()):
        batch_site.slurm.begin(job)
    for token in tokens:
        await batch_site.ended(token)
    assert batch_site.slurm.count("squeue") - count <= (time.monotonic() - began) / 0.1 + 2


async def test_short_jobs_are_asked_for_when_they_are_over(batch_site: Ground) -> None:
    """A query at the start of a job would delay the next query, and so the report of the end, by
    the poll interval.
    """
    batch_site.cluster = msgspec.structs.replace(batch_site.cluster, poll_secs=2.0)
    batch = await batch_site.agent()
    for count in (1, 2):
        token = batch_site.token()
        batch.launch(token, batch_site.spec("true"))
        await batch_site.ended(token)
        assert batch_site.slurm.count("squeue") == count, batch_site.slurm.calls
        await asyncio.sleep(2.0 * (count == 1))


async def test_agents_of_one_unix_user_share_what_squeue_says(
    batch_site: Ground, tmp_path: Path
) -> None:
    batch_site.slurm.hold = True
    batch_site.cluster = msgspec.structs.replace(
        batch_site.cluster, poll_secs=0.4, poll_max_secs=0.4
    )
    others = [Ground(tmp_path / str(n), batch_site.slurm) for n in range(4)]
    for other in others:
        other.cluster = batch_site.cluster
        other.root, root = tmp_path, other.root
        batch = await other.agent(base=True)
        batch.launch(other.token(), other.spec("true"))
        other.root = root
    began = time.monotonic()
    await asyncio.sleep(2.5)
    asked = batch_site.slurm.count("squeue")
    assert 3 <= asked <= (time.monotonic() - began) / 0.4 + 4, "one for all of them"
    for job in list(batch_site.slurm.jobs.values()):
        batch_site.slurm.begin(job)
    for other in others:
        await other.ended(Token("user1234-sim12345-command", other.serial, 1, "main", 0))
        for batch in other.agents:
            await batch.close()


async def test_a_turn_that_never_ends_holds_nobody_up_for_long(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine that held the lock died, and its file server keeps the lock."""
    monkeypatch.setattr(scheduler_queries, "_PATIENCE_SECS", 0.2)
    (batch_site.root / "poll").mkdir()
    with (batch_site.root / "poll" / "lab.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        batch = await batch_site.agent(base=True)
        token = batch_site.token()
        batch.launch(token, batch_site.spec("exit 4"))
        end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 4


async def test_one_that_cannot_be_looked_after_is_told_once_and_the_others_end(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    batch = await batch_site.agent(told=told)
    bad, good = batch_site.token(), batch_site.token()
    exit_of, tries = poll_loop.build_exit_info, []

    def failing(job: Any, task: Any, *more: Any) -> Any:
        if task.token == bad and len(tries) < 3:
            tries.append(task)
            raise RuntimeError("planted")
        return exit_of(job, task, *more)

    monkeypatch.setattr(poll_loop, "build_exit_info", failing)
    for token in (bad, good):
        batch.launch(token, batch_site.spec("exit 6"))
    for token in (good, bad):
        end = await batch_site.ended(token)
        assert end.exit is not None and end.exit.code == 6
    assert len(tries) == 3 and told.failures == ["planted"]


async def test_a_watch_that_fails_goes_on(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_RESTART_SECS", 0.05)
    told, look, times = Told(), poll_loop.observe, []

    def failing(*given: Any) -> Any:
        times.append(given)
        if len(times) in (2, 4):
            raise OSError(5, "planted")
        return look(*given)

    monkeypatch.setattr(poll_loop, "observe", failing)
    batch = await batch_site.agent(told=told)
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 5"))
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.code == 5
        and len(times) > 4
        and told.failures == ["[Errno 5] planted"] * 2
    )


async def test_a_new_agent_is_there_before_its_logins_profile_is_through(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    through = asyncio.Event()

    async def load(login: Login) -> None:
        await through.wait()

    monkeypatch.setattr(Login, "load", load)
    batch = await asyncio.wait_for(batch_site.agent(), SECS)
    token = batch_site.token()
    batch.launch(token, batch_site.spec("true"))
    await asyncio.sleep(0.3)
    assert batch_site.slurm.calls == [], "its commands are asked for in the login's environment"
    through.set()
    await batch_site.ended(token)
    await batch_site.until(batch.cluster_status)
    # an agent with jobs to adopt loads its environment before it queries them
    batch_site.slurm.hold = True
    batch.launch(later := batch_site.token(), batch_site.spec("true"))
    job = await batch_site.job(2)
    await batch_site.until(lambda: batch_site.of(later)[-1].batch.job_id)  # type: ignore[union-attr]
    await batch_site.kill(batch)
    through.clear()
    batch_site.slurm.calls.clear()
    starting = asyncio.create_task(batch_site.agent())
    await asyncio.sleep(0.3)
    assert not starting.done() and batch_site.slurm.calls == []
    through.set()
    await starting
    batch_site.slurm.begin(job)
    await batch_site.ended(later)


async def test_what_the_cluster_has_is_told(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    news = await batch_site.until(batch.cluster_status)
    assert (news.scheduler, news.version, news.accounts) == ("up", "22.05.8", ("acct",))
    assert [(p.name, p.nodes, p.time_limit_secs) for p in news.partitions] == [("debug", 3, 3600.0)]
    await batch_site.kill(batch)
    batch_site.slurm.down = True
    news = await batch_site.until((await batch_site.agent()).cluster_status)
    assert news.scheduler == "unreachable" and "Unable to contact" in news.detail
