"""Process deaths around a batch job: the job continues, the stamps that it wrote decide its result,
and nothing is started twice.

Also cancels: nothing of a canceled job is left, even if it ignores signals or other processes die
meanwhile.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from login_nodes import Users
from observed_runs import (
    ALICE,
    BOB,
    CAROL,
    CODE,
    GONE_SECS,
    TRUE_SECS,
    ObservedRun,
    ObservedSupervisor,
    ended,
    houses,
    true_again,
    well_ended,
)
from site_locations import dice, share
from slurm_cluster import OVER, Slurm
from supervisor_process import fresh_nap, naps, req_id, until

#: Kills of the supervisor with active jobs.
KILLS = share(2, 40)
#: Rounds with every kind of death of agents and keepers.
ROUNDS = share(1, 8)
#: Cancels that race with the submission.
RACES = share(12, 400)
GRACE_SECS = 0.5
#: Slurm waits this long before it kills a job: KillWait is 3 s on this cluster, and slurmd waits at
#: least 5 s.
KILL_WAIT_SECS = 5.0
ALL_LICENSES = {"licenses": "solver:2"}


@pytest.fixture(scope="module")
def whole(_cluster: tuple[Slurm, Users]) -> Iterator[ObservedSupervisor]:
    with houses(*_cluster) as observed:
        yield observed


@pytest.fixture
def observed(whole: ObservedSupervisor) -> Iterator[ObservedSupervisor]:
    """Supervisor shared by the tests. After each test, records and job stamps are checked and the
    cluster is restored.
    """
    yield whole
    print(whole.check())
    whole.slurm.well()


class Crowd:
    """Active runs: some wait at their gates, and one waits for licenses that another run holds."""

    def __init__(self, observed: ObservedSupervisor, each: int = 1) -> None:
        self.running = [ObservedRun(observed, uid=uid) for uid in (ALICE, BOB) for _ in range(each)]
        self.holds = ObservedRun(observed, uid=ALICE, batch=ALL_LICENSES)
        self.waits = ObservedRun(observed, uid=BOB, batch=ALL_LICENSES)
        for case in (*self.running, self.holds):
            case.submit()
        for case in (*self.running, self.holds):
            case.started()
        self.waits.submit().queued()
        #: its task has failed and is held on its allocation
        self.held = ObservedRun(observed, uid=ALICE, debugSecs=3600.0)
        observed.oracle.submit(self.held.run, req_id())
        self.held.started().go()
        self.still_held()

    def still_held(self) -> str:
        """Check that the failed task is held; return its Slurm job."""
        observed = self.held.observed
        until(lambda: self.held.status()["queueState"] == "debug_hold", "it is held", 60, 0.05)
        job = str(self.held.status()["batch"]["jobId"])
        assert observed.slurm.state(job) == "RUNNING"
        return job

    def true_again(self) -> float:
        """Check that no status is ever false. Return the seconds until all are known."""
        begun = time.monotonic()
        true_again([*self.running, self.holds])
        true_again([self.waits], "pending")
        assert all(case.alive for case in (*self.running, self.holds)) and not self.waits.starts
        self.still_held()
        return time.monotonic() - begun

    def end(self) -> None:
        well_ended(ended([*self.running, self.holds, self.waits]))
        observed, job = self.held.observed, self.still_held()
        observed.site.post("run-release", uid=ALICE, computeJid=self.held.jid)
        said = observed.oracle.heard(observed.site.wait(self.held.run))
        assert (said["state"], said["exit"]["code"]) == ("error", CODE), said
        observed.slurm.until_state(job, "FAILED")


@pytest.mark.timeout(200 + KILLS * 20)
def test_kills_of_the_supervisor_touch_no_job(observed: ObservedSupervisor) -> None:
    crowd, slowest, chance = Crowd(observed, share(1, 5)), 0.0, dice("slurm/kills")
    for n in range(KILLS):
        short = ObservedRun(observed, "sleep 0.1", uid=(ALICE, BOB)[n % 2]).submit()
        time.sleep(chance.choice((0.0, chance.random(), 2 * chance.random())))
        observed.restart()
        slowest = max(slowest, crowd.true_again())
        well_ended(ended([short]), 0)
    print(
        f"{KILLS} kills of the supervisor under {len(crowd.running) + 2} jobs: all kept, true again within {slowest:.1f} s"
    )
    crowd.end()


#: Pids to kill in each scenario, of each of the two users.
DEATHS: dict[str, Callable[[ObservedSupervisor], list[int]]] = {
    "an agent, and another one's keeper": lambda observed: [
        observed.agent(ALICE),
        observed.keeper(BOB),
    ],
    "agent and keeper at once": lambda observed: [
        pid for uid in (ALICE, BOB) for pid in (observed.agent(uid), observed.keeper(uid))
    ],
}


@pytest.mark.timeout(300 * ROUNDS)
def test_agents_and_keepers_die_and_their_jobs_are_adopted(observed: ObservedSupervisor) -> None:
    """One job ends while its agent is stopped, and the agent is then killed. At the end everything
    is killed, as in a power cut of the machine.
    """
    for _ in range(ROUNDS):
        crowd = Crowd(observed)
        for who, deed in (*DEATHS.items(), ("a reboot of the supervisor's machine", None)):
            unseen = [ObservedRun(observed, uid=uid).submit() for uid in (ALICE, BOB)]
            for case in unseen:
                case.started()
            victims = deed(observed) if deed else []
            for uid in (ALICE, BOB):
                os.kill(observed.agent(uid), signal.SIGSTOP)

            def over(unseen: list[ObservedRun] = unseen) -> bool:
                for case in unseen:
                    case.go()
                return not any(case.alive for case in unseen)

            until(over, "they have ended")
            begun = observed.reboot() if deed is None else time.monotonic()
            observed.kill(*victims)
            for uid in (ALICE, BOB):  # an agent whose keeper died runs on
                for pid in observed.agents(uid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            well_ended(ended(unseen))
            told, true = time.monotonic() - begun, crowd.true_again()
            print(
                f"{who}: what ended meanwhile was told after {told:.1f} s, {true:.1f} s later all was known"
            )
        crowd.end()


#: The first ones wait for time limits in an agent that lives, while others are killed.
TRICKS = (
    "answer lost",
    "taken twice",
    "no answer",
    "taken late",
    "killed before",
    "killed after",
    "both killed after",
    "killed while it waits",
)


@pytest.mark.timeout(400)
def test_deaths_and_lost_answers_between_sbatch_and_its_job_id(
    observed: ObservedSupervisor,
) -> None:
    """Whether Slurm has the job once or twice, each token starts once and its end is reported."""
    begun, cases = (
        time.monotonic(),
        {
            what: ObservedRun(observed, uid=(ALICE, BOB)[n % 2] if "killed" in what else CAROL)
            for n, what in enumerate(TRICKS)
        },
    )
    for what, case in cases.items():
        agents = observed.agents(case.uid)
        observed.trick(case, what)
        case.submit()
        if "killed" in what:  # its keeper must not end the next case's sbatch too
            until(lambda case=case: observed.played(case), what, TRUE_SECS)  # type: ignore[misc]
            until(
                lambda uid=case.uid, agents=agents: not {*agents} & {*observed.agents(uid)},  # type: ignore[misc]
                f"the agent is gone: {what}",
                TRUE_SECS,
            )
    for what, case in cases.items():
        until(lambda case=case: observed.played(case), what, TRUE_SECS)  # type: ignore[misc]
    for case in cases.values():
        case.started(100)
    well_ended(ended(cases.values()))
    until(
        lambda: all(j.state in OVER for case in cases.values() for j in case.jobs),
        "Slurm has ended all that it took",
        60,
        0.2,
    )
    had = {what: len(case.jobs) for what, case in cases.items()}
    print(
        f"{len(cases)} tricks in {time.monotonic() - begun:.1f} s; jobs that Slurm had of each: {had}"
    )
    assert (
        had["taken twice"] == 2 and had["killed after"] == 1 and all(n <= 2 for n in had.values())
    ), had


# ---- Slurm's own nodes


@pytest.mark.timeout(300)
def test_a_node_that_is_lost_ends_what_ran_there_and_nothing_else(
    observed: ObservedSupervisor,
) -> None:
    """Its slurmd is first killed and restarted, which must end nothing."""
    old, new = (
        ObservedRun(observed, batch={"constraint": "old"}),
        ObservedRun(observed, uid=BOB, batch={"constraint": "new"}),
    )
    for case in (old, new):
        case.submit()
    for case in (old, new):
        case.started()
    node = old.jobs[0].nodes
    assert node != new.jobs[0].nodes
    observed.slurm.kill(node)
    observed.slurm.start(node)
    true_again([old, new])
    observed.slurm.crash(node)
    observed.slurm.set_down(node)
    observed.killed.add(old.jid)
    begun = time.monotonic()
    (status,) = ended([old], go=False).values()
    print(
        f"the loss of a node was told {time.monotonic() - begun:.1f} s after Slurm knew of it: {status['error']}"
    )
    assert (status["state"], status["batch"]["state"]) == ("error", "NODE_FAIL") and node in status[
        "error"
    ], status
    observed.slurm.boot(node)
    observed.slurm.resume(node)
    true_again([new])
    well_ended(ended([new, ObservedRun(observed, batch={"constraint": "old"}).submit()]))


# ---- cancels

ZOO = {
    "deaf": "sleep NAP & while :; do sleep NAP; done",
    "setsid": "( setsid sh -c 'sleep NAP & exec sleep NAP' & ) ; sleep NAP & wait",
    "forks twice": "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&-; /bin/sleep NAP & exec /bin/sleep NAP' & ) ; sleep NAP & wait",
    "stopped": "setsid sh -c 'sleep NAP & kill -STOP $! $$; sleep NAP' x NAP & sleep NAP & kill -STOP $$; wait",
    "a step": "srun -n1 sh -c 'trap \"\" TERM; setsid sleep NAP & sleep NAP' & sleep NAP & wait",
}


@pytest.mark.timeout(200)
def test_nothing_of_what_is_canceled_is_left_also_when_the_supervisor_dies_after_the_answer(
    observed: ObservedSupervisor,
) -> None:
    own = {name: fresh_nap() for name in ZOO}
    zoo = {
        name: ObservedRun(
            observed,
            text.replace("NAP", own[name]),
            uid=(ALICE, BOB)[n % 2],
            graceSecs=GRACE_SECS,
            deaf=True,
        )
        for n, (name, text) in enumerate(ZOO.items())
    }
    for case in zoo.values():
        case.submit()
    for case in zoo.values():
        case.started()
    until(lambda: all(len(naps(nap)) >= 2 for nap in own.values()), "all of them are there")
    holds, waits = (
        ObservedRun(observed, batch=ALL_LICENSES).submit().started(),
        ObservedRun(observed, batch=ALL_LICENSES).submit().queued(),
    )
    half = len(zoo) // 2
    _gone(observed, {name: zoo[name] for name in list(zoo)[:half]}, own, None)
    assert waits.cancel()["state"] == "canceled"
    _gone(observed, {name: zoo[name] for name in list(zoo)[half:]}, own, observed.restart)
    for case, said in ended([*zoo.values(), waits], go=False).items():
        assert (said["state"], said["reason"], said["exit"]["stopReason"]) == (
            "canceled",
            "cancel",
            "cancel",
        ), (str(case), said)
    assert not waits.starts and {j.state for case in (*zoo.values(), waits) for j in case.jobs} == {
        "CANCELLED"
    }
    well_ended(ended([holds]))


def _gone(
    observed: ObservedSupervisor,
    zoo: dict[str, ObservedRun],
    own: dict[str, str],
    besides: Callable[[], float] | None,
) -> None:
    """Cancel the runs and wait until nothing is left of them. besides: called after the answers."""
    begun, gone = time.monotonic(), dict[str, float]()
    for case in zoo.values():
        assert case.cancel()["state"] == "canceled"
    if besides is not None:
        besides()

    def look() -> bool:
        for name in zoo:
            if name not in gone and not naps(own[name]):
                gone[name] = time.monotonic() - begun
        return len(gone) == len(zoo)

    until(
        look,
        "nothing of any is left",
        GRACE_SECS + KILL_WAIT_SECS + GONE_SECS + (0 if besides is None else TRUE_SECS),
    )
    print(
        f"gone after the first answer{'' if besides is None else ', a restart of the supervisor included'} (seconds): "
        + ", ".join(f"{name} {secs:.1f}" for name, secs in gone.items())
    )


@pytest.mark.timeout(200 + RACES * 8)
def test_cancels_that_race_with_the_submission(observed: ObservedSupervisor) -> None:
    chance, nap, last = dice("slurm/races"), fresh_nap(), 0.0
    cases: list[ObservedRun] = []
    while len(cases) < RACES:
        batch = [
            ObservedRun(
                observed,
                f"setsid sleep {nap} & sleep {nap}",
                uid=(ALICE, BOB)[n % 2],
                graceSecs=GRACE_SECS,
                deaf=True,
            )
            for n in range(6)
        ]
        for case in batch:
            case.submit()
            time.sleep(
                chance.choice((0, chance.random() * 0.1, chance.random() * 0.5, chance.random()))
            )
            assert case.cancel()["state"] == "canceled"
        begun = time.monotonic()
        match len(cases) // len(batch) % 3:
            case 0:
                observed.restart()
            case 1:
                observed.kill(observed.agent(ALICE), observed.agent(BOB))
        for case, said in ended(batch, go=False).items():
            assert (said["state"], said["reason"]) == ("canceled", "cancel"), (str(case), said)
        assert naps(nap) == [], "nothing of any is left"
        last = max(last, time.monotonic() - begun)
        cases += batch
    until(
        lambda: all(j.state in OVER for case in cases for j in case.jobs),
        "Slurm has ended all that it took",
        60,
        0.2,
    )
    print(
        f"{len(cases)} races, {sum(bool(c.starts) for c in cases)} had started; over after {last:.1f} s at the latest, deaths included"
    )
    well_ended(ended([ObservedRun(observed, f"exit {CODE}").submit()]))
