"""Slurm's daemons down or silent: nothing is concluded from that, requests are carried out
afterwards, and every end is then reported.

So a query that fails, once or repeatedly, never gives a run a wrong state (RUN-12 of the
reference's list of checks).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import explanation_quality
import pytest
from login_nodes import Users
from observed_runs import (
    ALICE,
    BOB,
    CALL_SECS,
    POLL_SECS,
    TOLD_SECS,
    ObservedRun,
    ObservedSupervisor,
    ended,
    houses,
    true_again,
    well_ended,
)
from site_locations import SOAK, share
from slurm_cluster import OVER, Slurm
from supervisor_process import until

from jobscribe.cli.job.why import lines as why_lines

#: An outage is noticed within this time (seconds).
NOTICED_SECS = (POLL_SECS + 3 * CALL_SECS) * 5
#: A silent connection is closed after a few of these (seconds).
PING_SECS = 2.0
ROUNDS = share(1, 5)
ALL_LICENSES = {"licenses": "solver:2"}


@pytest.fixture(scope="module")
def whole(_cluster: tuple[Slurm, Users]) -> Iterator[ObservedSupervisor]:
    with houses(
        *_cluster, f"limits.ping_interval_secs={PING_SECS}", f"limits.ping_timeout_secs={PING_SECS}"
    ) as observed:
        yield observed


@pytest.fixture
def observed(whole: ObservedSupervisor) -> Iterator[ObservedSupervisor]:
    """Supervisor shared by the tests. After each test the cluster is restored, and records and job
    stamps are checked.
    """
    yield whole
    whole.slurm.well()
    print(whole.check())


class Scene:
    """Runs of both users in every state before an outage, and what happens to them during it."""

    def __init__(self, observed: ObservedSupervisor) -> None:
        self.observed = observed
        self.runs, self.ends = ObservedRun(observed, uid=ALICE), ObservedRun(observed, uid=BOB)
        self.canceled = ObservedRun(observed, uid=ALICE, deaf=True, graceSecs=0.5)
        self.holds = ObservedRun(observed, uid=BOB, batch=ALL_LICENSES)
        self.waits, self.never = (
            ObservedRun(observed, uid=ALICE, batch=ALL_LICENSES),
            ObservedRun(observed, uid=BOB, batch=ALL_LICENSES),
        )
        self.late, self.late_canceled = (
            ObservedRun(observed, uid=ALICE),
            ObservedRun(observed, uid=BOB),
        )
        for case in (self.runs, self.ends, self.canceled, self.holds):
            case.submit()
        for case in (self.runs, self.ends, self.canceled, self.holds):
            case.started()
        for case in (self.waits, self.never):
            case.submit().queued()
        self._saved()

    def _saved(self) -> None:
        """Wait until the controller has saved its state, which it does a few seconds after it
        reports a job. A crash before that loses the job (see the last test).
        """
        slurm, since = self.observed.slurm, time.time()
        slurm.ask("scontrol", "update", f"jobid={self.waits.jobs[0].id}", "nice=1")
        until(
            lambda: (slurm.place / "state" / "job_state").stat().st_mtime > since,
            "the controller has written down all jobs",
            60,
        )

    def meanwhile(self) -> None:
        """Let one run end, submit one, and cancel three: a running one, a waiting one, and one
        unknown to Slurm.
        """
        self.late.submit()
        self.late_canceled.submit()
        for case in (self.canceled, self.never, self.late_canceled):
            assert case.cancel()["state"] == "canceled"

        def over() -> bool:
            self.ends.go()
            return not self.ends.alive

        until(over, "it has ended")

    def unknown(self) -> float:
        """Check that each run is reported as unknown, with the time since when, and as nothing
        else. Return the seconds until then.
        """
        begun = time.monotonic()

        def said() -> bool:
            running, waiting = self.runs.status(), self.waits.status()
            assert (
                (running["state"], waiting["state"]) == ("running", "pending")
                and not running["over"]
                and not waiting["over"]
            ), (running, waiting)
            silent = [
                s
                for s in (running, waiting)
                if not s["known"] and s["since"] is not None and s["batch"].get("unknownSince")
            ]
            return len(silent) == 2

        until(said, "it says that nothing is known", NOTICED_SECS)
        took = time.monotonic() - begun
        for case, cause in ((self.runs, "running"), (self.waits, "slurm")):
            self._explained(case, cause)
        return took

    def _explained(self, case: ObservedRun, cause: str) -> None:
        """Check that `job why` gives this cause, says that contact is lost, and shows the last
        known state.
        """
        why = self.observed.site.post("job-why", uid=case.uid, computeJid=case.jid)
        explanation_quality.check(why, text := "\n".join(why_lines(case.jid, why)))
        assert why["cause"] == cause and "this answer shows the last known state" in text, text
        assert "is not in the queue" not in text and "env did not answer" not in text, text
        assert (
            "no contact with the scheduler of " in text
            or "no contact with its agent since " in text
        ), text

    def true_again(self) -> float:
        begun = time.monotonic()
        true_again([self.runs, self.holds], secs=TOLD_SECS)
        true_again([self.waits], "pending", secs=TOLD_SECS)
        return time.monotonic() - begun

    def afterwards(self) -> float:
        """Return the seconds until all ends are reported. Slurm repeats a request that was lost
        without munge only after a minute.
        """
        until(
            lambda: all(j.state in OVER for j in self.canceled.jobs),
            "Slurm has ended what was canceled",
            150,
            0.2,
        )
        begun = time.monotonic()
        well_ended(ended([self.ends]))
        canceled = ended([self.canceled, self.never, self.late_canceled], go=False)
        told = time.monotonic() - begun
        assert {(s["state"], s["reason"]) for s in canceled.values()} == {("canceled", "cancel")}, (
            canceled
        )
        assert not self.canceled.alive and not self.never.starts and not self.late_canceled.starts
        assert self.runs.alive and self.holds.alive
        self._late_begins()
        well_ended(ended([self.runs, self.holds, self.waits, self.late]))
        cases = (
            self.runs,
            self.ends,
            self.canceled,
            self.holds,
            self.waits,
            self.never,
            self.late,
            self.late_canceled,
        )
        until(
            lambda: all(j.state in OVER for c in cases for j in c.jobs),
            "Slurm has ended all that it took",
            60,
            0.2,
        )
        return told

    def _late_begins(self) -> None:
        """If Slurm could not hand a job to its node because munge was down, it holds the job back
        for two minutes. Meanwhile its status must say that it is in the queue.
        """
        until(
            lambda: all(j.state != "PENDING" or j.reason == "BeginTime" for j in self.late.jobs),
            "it has begun, or is held back",
            60,
            0.2,
        )
        if any(j.state == "PENDING" for j in self.late.jobs):
            until(
                lambda: "in the queue of lab" in (self.late.status()["jobStatusMessage"] or ""),
                "it says that it is in the queue",
                TOLD_SECS,
            )
            until(
                lambda: all(j.state != "PENDING" for j in self.late.jobs),
                "Slurm lets it begin",
                200,
                0.2,
            )


#: How an outage is caused, how it is ended, and whether Slurm cannot be queried meanwhile.
Outage = tuple[Callable[[Slurm], Any], Callable[[Slurm], Any], bool]
OUTAGES: dict[str, Outage] = {
    "slurmctld is killed": (lambda s: s.kill("slurmctld"), lambda s: s.start("slurmctld"), True),
    "slurmctld is frozen": (lambda s: s.freeze("slurmctld"), lambda s: s.thaw("slurmctld"), True),
    "munged is killed": (lambda s: s.kill("munged"), lambda s: s.start("munged"), True),
    "slurmdbd is frozen": (lambda s: s.freeze("slurmdbd"), lambda s: s.thaw("slurmdbd"), False),
    "slurmdbd is killed": (lambda s: s.kill("slurmdbd"), lambda s: s.start("slurmdbd"), False),
}
#: Processes killed during the outage.
ALSO: dict[str, Callable[[ObservedSupervisor], Any]] = {
    "slurmctld is frozen": lambda observed: observed.restart(),
    "slurmctld is killed": lambda observed: observed.kill(
        observed.agent(ALICE), observed.agent(BOB)
    ),
}


#: Combined outages, one after the other, with ends and cancels delayed by the first one. A soak
#: runs all of them, and each alone as well.
WAYS = (
    {"in a row": tuple(OUTAGES), **{what: (what,) for what in OUTAGES}}
    if SOAK
    else {"in a row": ("slurmctld is killed", "slurmdbd is killed")}
)


@pytest.mark.timeout(300 * ROUNDS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_concluded_from_silence(observed: ObservedSupervisor, way: str) -> None:
    for _ in range(ROUNDS):
        scene = Scene(observed)
        for n, what in enumerate(WAYS[way]):
            begin, end, silent = OUTAGES[what]
            began = time.monotonic()
            begin(observed.slurm)
            if n == 0:
                scene.meanwhile()
            if what in ALSO:
                ALSO[what](observed)
            if silent:
                noticed = f"said so after {scene.unknown():.1f} s, "
            else:
                noticed = ""
                true_again([scene.runs, scene.holds])
            lasted = time.monotonic() - began
            end(observed.slurm)
            print(
                f"{what} for {lasted:.1f} s: {noticed}true again after {scene.true_again():.1f} s"
            )
        print(f"all ends told {scene.afterwards():.1f} s after the last was over")


@pytest.mark.timeout(300)
def test_what_squeue_has_forgotten_is_asked_of_accounting_and_waited_for(
    observed: ObservedSupervisor,
) -> None:
    """The job ended while the agent was stopped; accounting is down when the agent queries
    again.
    """
    slurm = observed.slurm
    own, by_hand, runs = (ObservedRun(observed).submit().started() for _ in range(3))
    with slurm.forgetting():
        agent = observed.agent(ALICE)
        os.kill(agent, signal.SIGSTOP)
        slurm.cancel(by_hand.jobs[0].id)
        observed.killed.add(by_hand.jid)

        def over() -> bool:
            own.go()
            return not own.alive and not by_hand.alive

        until(over, "they have ended")
        until(lambda: not own.jobs and not by_hand.jobs, "squeue has forgotten them", 60, 0.2)
        slurm.kill("slurmdbd")
        os.kill(agent, signal.SIGCONT)
        until(lambda: not by_hand.status()["known"], "it says that nothing is known", NOTICED_SECS)
        assert by_hand.status()["state"] == "running" and runs.status()["state"] == "running"
        slurm.start("slurmdbd")
        begun = time.monotonic()
        said = ended([own, by_hand], go=False)
        print(
            f"what squeue had forgotten was told {time.monotonic() - begun:.1f} s after accounting was back"
        )
        well_ended({own: said[own]})
        status = said[by_hand]
        assert (status["state"], status["reason"], status["batch"]["state"]) == (
            "error",
            "scheduler",
            "CANCELLED",
        ), status
        well_ended(ended([runs]))


@contextlib.contextmanager
def _cut(port: int) -> Iterator[None]:
    """Drop all packets to this port, also those of open connections."""
    rules = [
        ["-i", "lo", "-p", "tcp", end, str(port), "-j", "DROP"] for end in ("--dport", "--sport")
    ]
    for rule in rules:
        subprocess.run(["iptables", "-w", "-I", "INPUT", *rule], check=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-D", "INPUT", *rule], check=True)


@pytest.mark.timeout(300)
def test_agents_that_are_cut_off_go_on_and_are_told_of_cancels_afterwards(
    observed: ObservedSupervisor,
) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("there is no iptables here: etc/engines/sshd.sh install")
    runs, ends, canceled = (
        ObservedRun(observed, uid=ALICE),
        ObservedRun(observed, uid=BOB),
        ObservedRun(observed, uid=ALICE, deaf=True, graceSecs=0.5),
    )
    for case in (runs, ends, canceled):
        case.submit()
    for case in (runs, ends, canceled):
        case.started()
    agents = observed.agents()
    port = urlsplit(json.loads((observed.site.root / "agents.json").read_text())["agentsUrl"]).port
    assert port
    with _cut(port):
        begun = time.monotonic()
        assert canceled.cancel()["state"] == "canceled"
        until(
            lambda: not runs.status()["known"] and not ends.status()["known"],
            "it says that nothing is known",
            10 * PING_SECS * 5,
        )
        noticed = time.monotonic() - begun

        def over() -> bool:
            ends.go()
            return not ends.alive

        until(over, "it has ended")
        assert (
            runs.status()["state"] == ends.status()["state"] == "running"
            and not canceled.status()["over"]
        )
    begun = time.monotonic()
    true_again([runs], secs=TOLD_SECS)
    true = time.monotonic() - begun
    well_ended(ended([ends]))
    assert {(s["state"], s["reason"]) for s in ended([canceled], go=False).values()} == {
        ("canceled", "cancel")
    } and not canceled.alive
    print(
        f"a link was cut: said so after {noticed:.1f} s; true again {true:.1f} s after it was mended, all told {time.monotonic() - begun:.1f} s"
    )
    assert sorted(agents) == sorted(observed.agents()), "the same agents"
    well_ended(ended([runs]))


@pytest.mark.skipif(
    not SOAK,
    reason="a soak's (SOAK=1); tests/unit/agent/batch/test_faults.py has the same without a real Slurm",
)
@pytest.mark.timeout(300)
def test_a_controller_that_lost_its_books_gives_ids_anew(observed: ObservedSupervisor) -> None:
    """Ids of the first jobs now belong to other jobs of the same user. Their states and cancels
    must not be confused.
    """
    slurm = observed.slurm
    state, before = slurm.place / "state", slurm.place / "state-before"
    slurm.stop("slurmctld")
    shutil.rmtree(before, ignore_errors=True)
    shutil.copytree(state, before)
    for path in (before, *before.rglob("*")):
        shutil.chown(path, "slurm", "slurm")
    slurm.start("slurmctld")
    # a node rejects an id that it was told to end
    first = [
        ObservedRun(observed, batch={"constraint": "old"}).submit().started() for _ in range(3)
    ]
    ids = [case.jobs[0].id for case in first]
    agent = observed.agent(ALICE)
    os.kill(agent, signal.SIGSTOP)
    slurm.kill("slurmctld")
    shutil.rmtree(state)
    before.rename(state)
    slurm.start("slurmctld")
    observed.killed |= {case.jid for case in first}
    until(
        lambda: not any(case.alive for case in first),
        "the nodes were told that nobody knows these jobs",
        120,
    )
    second = [ObservedRun(observed, batch={"constraint": "new"}).submit() for _ in range(3)]
    os.kill(agent, signal.SIGCONT)
    for case in second:
        case.started()
    assert sorted(case.jobs[0].id for case in second) == sorted(ids), "the same ids again"
    first[0].cancel()
    told = ended(first, go=False)
    assert [(s["state"], s["reason"]) for s in told.values()] == [
        ("canceled", "cancel"),
        ("error", "lost"),
        ("error", "lost"),
    ], told
    true_again(second)
    well_ended(ended(second))
