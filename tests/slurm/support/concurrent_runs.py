"""Many cases at once on one cluster and one supervisor: each runs in its own thread, while another
thread reads the runs' records continuously.
"""

import contextlib
import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import explanation_quality
from login_nodes import Users
from slurm_cluster import OVER, Job, Slurm
from supervisor_process import SupervisorProcess, fresh_nap, jid_of, naps, shell, until

from jobscribe.cli.job.why import lines as why_lines

ALICE, BOB = "AliceAAA", "BobBBBBB"
PEOPLE = {ALICE: "alice", BOB: "bob"}
OURS = ("pending", "running", "completed", "canceled", "error")
#: Expected `job why` cause of an end, by jobscribe's reason and Slurm's state. Tests name other
#: causes themselves.
WHY = {
    ("exit", "COMPLETED"): ("completed", "certain"),
    ("exit", "FAILED"): ("exit", "certain"),
    ("scheduler", "OUT_OF_MEMORY"): ("outOfMemory", "certain"),
    ("timeLimit", "CANCELLED"): ("timeLimit", "certain"),
    ("timeLimit", "TIMEOUT"): ("timeLimit", "certain"),
    ("cancel", "CANCELLED"): ("canceled", "certain"),
    ("cancel", "FAILED"): ("canceled", "certain"),
    ("scheduler", "CANCELLED"): ("slurmCanceled", "certain"),
    ("startFailed", "CANCELLED"): ("startFailed", "certain"),
    ("startFailed", "FAILED"): ("startFailed", "certain"),
    ("scheduler", "PREEMPTED"): ("preempted", "certain"),
    ("scheduler", "NODE_FAIL"): ("nodeFail", "certain"),
    ("signal", "FAILED"): ("crash", "certain"),
}
#: Five times the slowest step on a busy machine.
SECS = 150.0


class ConcurrentRuns:
    """One supervisor and one cluster for all cases. partition: has capacity for many small jobs at
    once.
    """

    def __init__(self, site: SupervisorProcess, slurm: Slurm, users: Users, partition: str) -> None:
        self.slurm, self.users, self.partition = slurm, users, partition
        self.root, self._site, self._mine = site.root, site, threading.local()
        self.records = Records(self)
        self._asking, self._connected = threading.Lock(), list[SupervisorProcess]()
        self._rows: tuple[float, list[Job]] = (0.0, [])

    @property
    def site(self) -> SupervisorProcess:
        """The supervisor, with a connection of this thread's own."""
        if not hasattr(self._mine, "site"):
            self._mine.site = copy.copy(self._site)
            self._mine.site._connection = None
            self._connected.append(self._mine.site)
        found: SupervisorProcess = self._mine.site
        return found

    def close(self) -> None:
        for site in self._connected:
            site._disconnect()

    # ---- runs

    def run(
        self, text: str, *, uid: str = ALICE, batch: Mapping[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Return an unsubmitted run of this shell text."""
        return shell(
            text,
            uid,
            **{
                "graceSecs": 1.0,
                "batch": {"partition": self.partition, "memoryMb": 20, **(batch or {})},
                **fields,
            },
        )

    def naps(self, text: str = "exec sleep NAP", **fields: Any) -> tuple[dict[str, Any], str]:
        """Submit a run that sleeps until it is ended. Return it with the mark of its processes."""
        nap = fresh_nap()
        run = self.run(text.replace("NAP", nap), **fields)
        self.site.submit(run)
        return run, nap

    def said(self, run: Mapping[str, Any]) -> dict[str, Any]:
        return self.site.status(dict(run))

    def job(self, run: Mapping[str, Any]) -> str:
        """Return its Slurm id as soon as it has one."""
        return str(
            self.until(run, lambda said: said.get("batch", {}).get("jobId"), "Slurm has taken it")
        )

    def until(
        self, run: Mapping[str, Any], true: Callable[[dict[str, Any]], Any], what: str
    ) -> Any:
        """Return the first true result of `true` for its status; the run must not end before."""

        def look() -> Any:
            said = self.said(run)
            found = true(said)
            assert found or not said["over"], (what, said)
            return found

        try:
            return until(look, what, SECS, 0.3)
        except BaseException as e:
            raise AssertionError(f"{what}: {e}: {self.said(run)}") from None

    def running(self, run: Mapping[str, Any]) -> str:
        """Wait until jobscribe and Slurm report it as running; return its Slurm job."""
        self.until(run, lambda said: said["state"] == "running" and said["known"], "it runs")
        return self.job(run)

    def waits_for(self, run: Mapping[str, Any], *reasons: str) -> dict[str, Any]:
        """Return its status once Slurm reports one of these reasons for waiting."""

        def waits(said: dict[str, Any]) -> dict[str, Any] | None:
            batch = said.get("batch", {})
            return (
                said
                if said["queueState"] == "slurm" and batch.get("reason", "").startswith(reasons)
                else None
            )

        found: dict[str, Any] = self.until(run, waits, f"it waits for {' or '.join(reasons)}")
        assert (found["state"], found["known"]) == ("pending", True)
        why = self.why(run)
        assert (why["cause"], why["confidence"], why["not"]) == (
            "slurm",
            "certain",
            ["a fault of the job: it waits"],
        ), why
        # the reason may have changed meanwhile
        assert re.search(r"PENDING \([^)]+\)", why["evidence"][0]) and not [
            t for t in why["try"] if t.startswith("it waits")
        ], why
        return found

    def why(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer; check that its printed text says what to do."""
        said: dict[str, Any] = self.site.post(
            "job-why", uid=run["uid"], computeJid=jid_of(dict(run))
        )
        explanation_quality.check(said, "\n".join(why_lines(said["computeJid"], said)))
        return said

    def record(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record; empty before it is written, which may be after the end of a run."""
        path = self.root / "supervisor-job" / f"{jid_of(dict(run))}.json"
        said: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return said

    def evidence(self, run: Mapping[str, Any]) -> Path:
        tasks = self.site.post("job-tasks", uid=run["uid"], computeJid=jid_of(dict(run)))["tasks"]
        return Path(tasks[0]["evidence"])

    # ---- Slurm's state

    def rows(self) -> list[Job]:
        """Return all jobs of squeue, not older than this call."""
        began = time.monotonic()
        with self._asking:
            if self._rows[0] < began:
                now = time.monotonic()
                self._rows = (now, self.slurm.queued(active=False))
            return self._rows[1]

    def state(self, job: str) -> str:
        return next((r.state for r in self.rows() if r.id == job), "") or self.slurm.state(job)

    def until_state(self, job: str, *states: str) -> None:
        until(
            lambda: self.state(job) in (states or OVER),
            f"job {job} is {' or '.join(states)}",
            SECS,
            0.2,
        )

    def processes(self) -> list[bytes]:
        """Return the command lines of all processes of these users, on all nodes."""
        return [_line(pid) for who in PEOPLE.values() for pid in self.users.processes(who)]

    # ---- ends

    def over(
        self,
        run: Mapping[str, Any],
        status: str,
        reason: str,
        slurm: str,
        *,
        last: str = "",
        exit: tuple[str, int | None, int | None] | None = None,
        why: tuple[str, str] | None = None,
        nap: str = "",
        sentence: Sequence[str] = (),
        evidence: Sequence[str] = (),
        tries: Sequence[str] = (),
        never: Sequence[str] = (),
        ran: bool = True,
    ) -> dict[str, Any]:
        """Wait for the end, and check that status, record, `job why` and trace agree. Return its
        status. exit: source, code, signal.

        slurm: its state there. last: the state on record, if different. why: cause and confidence.
        sentence, evidence, tries: words that `job why` must have there. never: words that it must
        not have. ran: whether its command began.
        """
        last = last or slurm
        said = self.site.wait(dict(run), SECS)
        assert {"jobId", "state"} <= set(said["batch"]), (said, self.why(run))
        job = said["batch"]["jobId"]
        assert (said["state"], said["reason"], said["known"]) == (status, reason, True), said
        assert (self.state(job), said["batch"]["state"]) == (slurm, last), (
            self.slurm.job(job),
            said,
        )
        if exit is not None:
            assert (said["exit"]["source"], said["exit"]["code"], said["exit"]["signal"]) == exit, (
                said["exit"]
            )
        assert said["exit"]["batch"] == said["batch"] and "unknownSince" not in said["batch"]
        usual = WHY.get((reason, slurm))
        if (reason, slurm) == ("scheduler", "CANCELLED") and (
            by := said["batch"].get("canceledBy")
        ):
            usual = (
                f"slurmCanceledBy{'User' if by == self.users[PEOPLE[run['uid']]] else 'Other'}",
                "certain",
            )
        self._explained(run, said, why or usual, sentence, evidence, tries, never)
        self._traced(run, job, said)
        on_file = until(
            lambda: (
                (r := self.record(run)).get("status") == status
                and "state" in r.get("batch", {})
                and r
            ),
            "its record is written",
            SECS,
        )
        assert (on_file["reason"], on_file["batch"]["jobId"], on_file["batch"]["state"]) == (
            reason,
            job,
            last,
        ), on_file
        history = self.records.of(run)
        assert history[-1] == status and (ran or "running" not in history), history
        assert not nap or naps(nap) == [], "a process of it lives"
        assert [
            r
            for r in self.rows()
            if r.comment.endswith(f"{jid_of(dict(run))}/{said['computeJobSerial']}")
            and r.state not in OVER
        ] == []
        return said

    def _explained(
        self,
        run: Mapping[str, Any],
        said: dict[str, Any],
        cause: tuple[str, str] | None,
        sentence: Sequence[str],
        evidence: Sequence[str],
        tries: Sequence[str],
        never: Sequence[str],
    ) -> None:
        why = self.why(run)
        assert (why["state"], why["reason"]) == (said["state"], said["reason"]), why
        assert (why["cause"], why["confidence"]) == cause, (cause, why)
        for words, text in (
            (sentence, why["sentence"]),
            (evidence, "\n".join(why["evidence"])),
            (tries, "\n".join(why["try"])),
        ):
            for word in words:
                assert word in text, (word, why)
        assert not [w for w in never if w in json.dumps(why)], why
        assert any(f"Slurm job {said['batch']['jobId']}" in line for line in why["evidence"]), why
        if said["state"] == "error":
            assert why["try"] and f"sacct -j {said['batch']['jobId']}" in "\n".join(why["try"]), why

    def _traced(self, run: Mapping[str, Any], job: str, said: dict[str, Any]) -> None:
        trace = self.site.post("trace", id=job)
        assert trace["job"]["jid"] == jid_of(dict(run)), trace
        lines = [item["text"] for item in trace["items"]]
        assert any(f"Slurm job {job}" in line and "submitted to" in line for line in lines), lines
        assert any(f"Slurm job {job}: {said['batch']['state']}" in line for line in lines), lines


class Records(threading.Thread):
    """Reads the JSON record of every run while it exists, and compares each change with Slurm's
    state. lies: the false records.
    """

    def __init__(self, stage: ConcurrentRuns) -> None:
        super().__init__(daemon=True)
        self._stage, self._ended = stage, threading.Event()
        self._said: dict[str, list[str]] = {}
        self._whole: dict[str, bytes] = {}
        self._jobs: dict[str, str] = {}
        self.lies: list[str] = []
        self.read = 0

    def of(self, run: Mapping[str, Any]) -> list[str]:
        """Return every status that its record had, in order. (A short step may be missing.)"""
        self.look()
        return self._said.get(jid_of(dict(run)), [])

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            self.look()

    _looking = threading.Lock()

    def look(self) -> None:
        with self._looking:
            for path in (self._stage.root / "supervisor-job").glob("*.json"):
                with contextlib.suppress(FileNotFoundError):
                    data = path.read_bytes()
                    if self._whole.get(path.stem) != data:
                        self._whole[path.stem] = data
                        self._changed(path.stem, json.loads(data))

    def _changed(self, jid: str, record: dict[str, Any]) -> None:
        self.read += 1
        batch, status = record.get("batch") or {}, record["status"]
        job = batch.get("jobId")
        state = self._stage.state(job) if job else ""
        history = self._said.setdefault(jid, [])
        if (
            history
            and (OURS.index(status) < OURS.index(history[-1]) or history[-1] in OURS[2:])
            and status != history[-1]
        ):
            self.lies.append(f"{jid} was {history[-1]}, and is {status} now")
        ending = (
            status == "canceled" and "state" not in batch
        )  # a cancel is reported when it is requested, as everywhere
        if status in OURS[2:] and job and state not in OVER and not ending:
            self.lies.append(f"{jid} is {status}, and Slurm says {state} of its job {job}")
        if status == "running" and (job is None or state in ("", "PENDING", "CONFIGURING")):
            self.lies.append(f"{jid} runs, and Slurm says {state!r} of its job {job}")
        if job and self._jobs.setdefault(jid, job) != job:
            self.lies.append(f"{jid} was Slurm's job {self._jobs[jid]}, and is {job}")
        if job and batch.get("state") in OVER and state != batch["state"]:
            self.lies.append(f"{jid} says {batch['state']} of Slurm's job {job}, which is {state}")
        if not history or history[-1] != status:
            history.append(status)


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


Play = Callable[[ConcurrentRuns], None]


@contextlib.contextmanager
def played(stage: ConcurrentRuns, plays: Mapping[str, Play]) -> Iterator[dict[str, Future[None]]]:
    """Run all cases at once; yield their futures by name."""
    stage.records.start()
    try:
        with ThreadPoolExecutor(max(1, len(plays))) as pool:
            yield {name: pool.submit(play, stage) for name, play in plays.items()}
    finally:
        stage.records.end()
        stage.close()
