"""Gangs: all or nothing, on one host or two. Any failure on the way releases all resources."""

import time

import pytest
from decision_time import DECISION_SECS, longest

from jobscribe.db.events.events import TaskPlaced
from jobscribe.protocol.wire.messages import PortsProbed
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import DriverFailed
from jobscribe.supervisor.core.resources.gang_allocator import AVOID_SECS
from jobscribe.supervisor.core.resources.limit_pools import ArrayPool, RunDirPool
from jobscribe.supervisor.core.status.run_status import status


@pytest.fixture
def here(kit):
    return kit.key_of(kind="parallel")


@pytest.fixture
def there(kit):
    return kit.key_of(kind="parallel", host="node2")


@pytest.fixture
def stage(kit):
    """Two hosts of four cores and ten ports each."""
    nodes = tuple(kit.node(h, first_port=30_000, last_port=30_011) for h in ("localhost", "node2"))
    return kit.Stage(nodes={"local": nodes}, op_run_slots={("local", "parallel"): 4})


def said(stage, n=1):
    reply = status(stage.world, stage.job(n), 1, stage.now())
    return reply["queueState"], reply["jobStatusMessage"]


def cores(stage):
    return {host: books.cpu for host, books in stage.world.node_pools["local"].usage.items()}


def placements(stage):
    return [e for _, e in stage.log if isinstance(e, TaskPlaced)]


def wide(kit, **fields):
    return (kit.role("a", 3, **fields), kit.role("b", 3, **fields))


# ---- two hosts


def test_the_agents_of_both_hosts_are_started_and_asked_and_then_all_is_placed_at_once(
    kit, stage, here, there
):
    stage.gang(*wide(kit))
    assert [e.key for e in stage.asked(fx.StartAgent)] == [here]
    stage.up(here)
    assert [e.key for e in stage.asked(fx.StartAgent)] == [there]
    assert [p.key for p in stage.probes] == [here]
    assert said(stage) == ("agent", f"it holds all its resources and waits for {there}")
    stage.up(there)
    assert [p.key for p in stage.probes] == [here, there]
    first, second = stage.probes
    assert len(first.ports) == 8 and len(second.ports) == 4, "http and ssh of each task"
    assert said(stage)[0] == "ports"
    stage.answer()
    events = placements(stage)
    assert [(e.agent_key.host, e.token.role, e.token.index) for e in events] == [
        *(("localhost", "a", n) for n in range(3)),
        ("localhost", "b", 0),
        ("node2", "b", 1),
        ("node2", "b", 2),
    ]
    launched = {e.key: e for e in stage.asked(fx.LaunchGang)}
    assert {k: [t.token for t in e.tasks] for k, e in launched.items()} == {
        k: [e.token for e in events if e.agent_key == k] for k in (here, there)
    }
    assert launched[here].shared is launched[there].shared, (
        "made once, however many hosts there are"
    )
    ports = {(e.token.role, e.token.index): (e.address, e.ports["http"][0]) for e in events}
    assert launched[here].shared.env["PAI_TASK_ROLE_b_HOST_LIST"] == ",".join(
        f"{address}:{port}" for address, port in (ports["b", n] for n in range(3))
    )
    assert {address for address, _ in ports.values()} == {"localhost.example", "node2.example"}
    for e in events:
        task = next(t for t in launched[e.agent_key].tasks if t.token == e.token)
        assert task.op_id == e.op_id == stage.world.task(e.token).op_id
        assert set(task.spec.ports) == {p for numbers in e.ports.values() for p in numbers}
        assert task.spec.run_dir.endswith(f"/{e.token.role}/{e.token.index}")


def test_one_agent_cannot_be_started_everything_is_given_back_and_asked_for_again(
    kit, stage, here, there
):
    stage.gang(*wide(kit))
    stage.up(here)
    stage.gang(kit.role("small", 4), n=2)
    assert said(stage, 2)[0] == "resources"
    for attempt in (1, 2, 3):
        stage.tell(DriverFailed(there, attempt, "no such machine"))
        if attempt < 3:
            assert cores(stage) == {"localhost": 4, "node2": 2}
            stage.fire(timers.AgentStartRetry(there, attempt))
    # the other gang, which waited for cores, has them now
    stage.answer()
    assert {t.role for t in stage.tokens(2)} == {"small"} and not stage.tokens()
    state, sentence = said(stage)
    assert state == "resources" and sentence == (
        f"its agent {there} could not be started: no such machine; it tries again, at 2023-11-14 22:13:50 UTC"
    )
    assert (
        stage.state() == ("pending", None)
        and stage.clock[timers.ReservationRetry(*ticket(stage))] == 30.0
    )
    stage.pass_time(30.0)
    stage.fire(timers.ReservationRetry(*ticket(stage)))
    assert said(stage)[0] == "resources" and stage.world.node_pools["local"].queue, (
        "it stands in line like all others"
    )
    started = []
    for token in stage.tokens(2):
        stage.end(token)
        started += stage.asked(fx.StartAgent)
    assert [e.key for e in started] == [there], "and tries again"
    stage.up(there)
    stage.answer()
    assert len(stage.tokens()) == 6


def ticket(stage, n=1):
    job = stage.job(n)
    return job.jid, job.run.serial


def test_its_own_agent_cannot_be_started_and_it_ends_as_every_run_does(kit, stage, here):
    stage.gang(*wide(kit))
    for attempt in (1, 2, 3):
        stage.tell(DriverFailed(here, attempt, "no"))
        if attempt < 3:
            stage.fire(timers.AgentStartRetry(here, attempt))
    assert stage.state() == ("error", "agentStartFailed") and not stage.left()


def test_an_agent_that_goes_away_has_to_look_again(kit, stage, here, there):
    stage.gang(*wide(kit))
    stage.up(here)
    stage.up(there)
    first, second = stage.probes
    stage.probes.clear()
    stage.says(PortsProbed(op_id=second.op_id, busy=()), there)
    stage.disconnect(there)
    assert [e.key for e in stage.asked(fx.FindAgent)] == [there]
    stage.says(PortsProbed(op_id=first.op_id, busy=()), here)
    assert not placements(stage), "what the other one said of its ports is old"
    assert said(stage) == ("agent", f"it holds all its resources and waits for {there}")
    stage.connect(there)
    (again,) = stage.probes
    assert again.key == there and again.op_id != second.op_id and again.ports == second.ports
    stage.says(PortsProbed(op_id=second.op_id, busy=()), there)
    assert not placements(stage), "nor is an old answer a new one"
    stage.answer()
    assert len(stage.tokens()) == 6


def test_its_own_agent_goes_away_everything_is_given_back(kit, stage, here, there):
    stage.gang(*wide(kit))
    stage.up(here)
    stage.up(there)
    stage.probes.clear()
    stage.disconnect(here)
    assert (
        cores(stage) == {"localhost": 0, "node2": 0}
        and not stage.world.holds
        and not stage.world.slots.claims
    )
    assert timers.ReservationDeadline(*ticket(stage)) not in stage.clock
    stage.connect(here)
    assert len(stage.probes) == 2
    stage.answer()
    assert len(stage.tokens()) == 6


def test_who_does_not_answer_is_asked_again_and_then_everything_is_given_back(
    kit, stage, here, there
):
    stage.gang(*wide(kit))
    stage.up(here)
    stage.up(there)
    first, second = stage.probes
    stage.says(PortsProbed(op_id=first.op_id, busy=()), here)
    stage.pass_time(30.0)
    stage.fire(timers.ReservationDeadline(*ticket(stage)))
    (asked,) = stage.asked(fx.CheckPorts)
    assert asked.key == there and asked.op_id != second.op_id
    stage.pass_time(30.0)
    stage.fire(timers.ReservationDeadline(*ticket(stage)))
    assert cores(stage) == {"localhost": 0, "node2": 0}
    state, sentence = said(stage)
    assert state == "resources" and sentence.startswith(
        f"it held all its resources, but {there} did not answer within 60 s; it tries again"
    )
    # a late answer
    stage.says(PortsProbed(op_id=asked.op_id, busy=()), there)
    stage.fire(timers.ReservationDeadline(*ticket(stage)))
    assert not placements(stage) and not stage.world.holds
    stage.probes.clear()
    stage.fire(timers.ReservationRetry(*ticket(stage)))
    stage.fire(timers.ReservationRetry(*ticket(stage)))
    assert len(stage.probes) == 2
    stage.answer()
    assert len(stage.tokens()) == 6


def test_a_supervisor_that_is_killed_while_all_is_held_holds_it_anew(kit, stage, here, there):
    stage.gang(*wide(kit))
    stage.up(here)
    stage.up(there)
    old = list(stage.probes)
    stage.restarted()
    assert not stage.world.holds and cores(stage) == {"localhost": 0, "node2": 0}
    stage.connect(here)
    stage.connect(there)
    for probe in old:
        stage.says(PortsProbed(op_id=probe.op_id, busy=()), probe.key)
    assert not placements(stage), "the probes of the one before are nobody's"
    stage.answer()
    assert len(stage.tokens()) == 6


def test_after_a_restart_what_runs_is_counted_and_nothing_is_placed_twice(kit, stage, here, there):
    stage.placed(*wide(kit), hosts=("localhost", "node2"))
    live = stage.tokens()
    held = cores(stage)
    stage.restarted()
    assert cores(stage) == held == {"localhost": 4, "node2": 2}
    stage.connect(here, *(kit.running(t) for t in live if stage.world.task(t).agent_key == here))
    stage.gang(kit.role("c", 3), n=2)
    assert said(stage, 2)[0] == "resources"
    # the state of the other host is unknown: its tasks never arrived, so the same tasks are
    # launched again
    stage.connect(there)
    assert {t.token for e in stage.asked(fx.LaunchGang) for t in e.tasks} == {
        t for t in live if stage.world.task(t).agent_key == there
    }
    assert stage.tokens() == live
    for token in live:
        stage.end(token)
    stage.answer()
    assert len(stage.tokens(2)) == 3


def test_its_directory_may_be_read_from_the_first_start_on_also_after_a_restart(kit, stage, here):
    first, second = stage.placed(kit.role("a", 2, min_failed=None))
    directory = RunDirPool(kit.jid_of())
    assert directory in stage.world.slots.pools
    stage.reports(kit.running(first), key=here)
    stage.end(first)
    assert directory not in stage.world.slots.pools and stage.tokens() == [second]
    stage.restarted()
    assert directory not in stage.world.slots.pools


# ---- ports


def test_ports_that_strangers_have_are_changed_for_others(kit, stage, here):
    stage.gang(kit.role("a", 2))
    stage.up(here)
    (probe,) = stage.probes
    taken = probe.ports[1]
    stage.answer(taken)
    (task, other) = placements(stage)
    given = {p for e in (task, other) for ports in e.ports.values() for p in ports}
    assert taken not in given and len(given) == 4
    assert said(stage)[0] == "starting"


def test_who_has_no_ports_left_waits_until_they_are_looked_at_again(kit, stage, here, there):
    stage.gang(kit.role("a", 2))
    stage.up(here)
    (probe,) = stage.probes
    stage.probes.clear()
    stage.says(PortsProbed(op_id=probe.op_id, busy=probe.ports), here)
    stage.answer(*range(30_000, 30_012))
    # this host has no free ports left; the gang gets ports of the other host, whose agent must be
    # up
    assert stage.world.holds and [e.key for e in stage.asked(fx.StartAgent)] == [there]
    stage.up(there)
    stage.answer(*range(30_000, 30_012))
    assert not stage.world.holds and said(stage)[0] == "ports"
    assert stage.clock[timers.NodePoolRetry("local")] > AVOID_SECS
    stage.pass_time(10.0)
    stage.fire(timers.NodePoolRetry("local"))
    assert (
        said(stage)[0] == "ports" and stage.clock[timers.NodePoolRetry("local")] > AVOID_SECS - 10.0
    ), "too early, so once more"
    stage.pass_time(AVOID_SECS)
    stage.fire(timers.NodePoolRetry("local"))
    assert stage.world.holds
    stage.answer()
    assert len(stage.tokens()) == 2 and timers.NodePoolRetry("local") not in stage.clock


def test_one_that_waits_for_ports_that_others_found_taken_is_not_forgotten(kit, stage, here):
    """The gang that found the ports taken got others. The next gang has none, and only the retry
    timer helps it.
    """
    stage = kit.Stage(
        nodes={"local": (kit.node(first_port=30_000, last_port=30_005),)},
        op_run_slots={("local", "parallel"): 4},
    )
    stage.gang(kit.role("a"))
    stage.up(here)
    (probe,) = stage.probes
    stage.answer(probe.ports[0])
    assert len(stage.tokens()) == 1, "it has another one"
    stage.gang(kit.role("b", 2), n=2)
    assert said(stage, 2)[0] == "ports"
    stage.pass_time(stage.clock[timers.NodePoolRetry("local")])
    stage.fire(timers.NodePoolRetry("local"))
    stage.answer()
    assert len(stage.tokens(2)) == 2


def test_an_answer_to_nobodys_question_changes_nothing(kit, stage, here):
    stage.gang(kit.role("a"))
    stage.up(here)
    (probe,) = stage.probes
    for op in ("x" * 32, probe.op_id[::-1]):
        stage.says(PortsProbed(op_id=op, busy=()), here)
    assert not placements(stage)
    stage.probes.clear()
    other = kit.key_of(kind="parallel", host="node2")
    stage.open(other)
    stage.snapshot(other)
    stage.says(PortsProbed(op_id=probe.op_id, busy=()), other)
    assert not placements(stage), "another agent cannot answer for it"
    stage.says(PortsProbed(op_id=probe.op_id, busy=(1, 2, 3)), here)
    assert len(placements(stage)) == 1, "ports that are not its own are no matter of its"
    stage.says(PortsProbed(op_id=probe.op_id, busy=()), here)
    assert len(placements(stage)) == 1


# ---- why a gang waits


def test_the_first_one_that_cannot_have_everything_holds_up_those_behind_it(
    kit, stage, here, there
):
    stage.placed(kit.role("a", 2))
    stage.gang(kit.role("big", 8), n=2)
    stage.gang(kit.role("small"), n=3)
    assert said(stage, 2)[0] == said(stage, 3)[0] == "resources"
    stage.cancel(2)
    stage.answer()
    assert len(stage.tokens(3)) == 1 and not stage.world.node_pools["local"].queue


def test_plain_runs_do_not_wait_for_rooms_and_gangs_not_for_cpu_slots(kit, stage, here):
    stage.placed(kit.role("a", 4))
    stage.submit(2)
    stage.up()
    assert len(stage.tokens(2)) == 1
    stage.gang(kit.role("b", 4), n=3)
    stage.up(kit.key_of(kind="parallel", host="node2"))
    stage.answer()
    assert len(stage.tokens(3)) == 4


def test_of_an_array_so_many_are_placed_at_once_also_after_a_restart(kit, here):
    stage = kit.Stage(nodes={"local": (kit.node(cpu=16),)}, op_run_slots={("local", "parallel"): 8})
    runs = [
        kit.spec(
            1,
            compute_model=f"command{n}",
            command=(),
            roles=(kit.role("a", 2),),
            job_run_mode="parallel",
            at_once=2,
        )
        for n in range(4)
    ]
    for n, run in enumerate(runs):
        stage.tell(kit.replace(stage.submission(run), run_dir=f"/r/{n}"))
    stage.up(here)
    stage.answer()

    def live():
        return {t.token.jid for job in stage.world.jobs.values() for t in job.live_tasks()}

    assert len(live()) == 2
    waits = [j for j in stage.world.jobs.values() if not j.live_tasks()]
    reply = status(stage.world, waits[0], 1, stage.now())
    assert reply["queueState"] == "array_slot" and "2 run at once" in reply["jobStatusMessage"]
    stage.restarted()
    stage.up(here)
    stage.answer()
    assert len(live()) == 2
    first = sorted(live())[0]
    for task in stage.world.jobs[first].live_tasks():
        stage.end(task.token)
    stage.answer()
    assert len(live()) == 2 and first not in live()


def test_a_leftover_of_an_array_keeps_its_place_until_it_is_over(kit, here):
    stage = kit.Stage(nodes={"local": (kit.node(cpu=16),)}, op_run_slots={("local", "parallel"): 8})
    token = stage.placed(kit.role("a"), at_once=1)[0]
    stage.cancel()
    stage.gang(kit.role("a"), at_once=1, force=True)
    stage.restarted()
    assert any(isinstance(p, ArrayPool) for p in stage.world.slots.pools)
    stage.up(here)
    stage.answer()
    assert stage.tokens() == [token]
    stage.end(token)
    stage.answer()
    assert len(stage.tokens()) == 1 and stage.tokens() != [token]


def test_an_agent_that_leaves_with_many_in_line_places_none_of_them(kit, stage, here):
    for n in range(1, 7):
        stage.gang(kit.role("a", 2 * (n % 3) + 1), n=n)
    stage.up(here)
    stage.probes.clear()
    stage.disconnect(here)
    assert not placements(stage) and cores(stage) == {"localhost": 0, "node2": 0}
    assert not stage.world.holds and stage.world.node_pools["local"].claims == {}


# ---- a thousand tasks


class Clocked:
    """Measure the duration of each decision, without the stage's checks."""

    def __init__(self, stage):
        self.longest = {}
        self._stage, self._tell = stage, stage.tell
        stage._keep = stage._check = lambda decision: None
        stage._check_notices = lambda: None
        self.what = ""
        stage.tell = self

    def __call__(self, *inputs):
        started = time.process_time()
        decision = self._tell(*inputs)
        self.longest[self.what] = max(
            self.longest.get(self.what, 0.0), time.process_time() - started
        )
        self._stage.probes += [e for e in decision.effects if isinstance(e, fx.CheckPorts)]
        return decision


@pytest.mark.usefixtures("own_heap")
@pytest.mark.parametrize("hosts", [1, 20])
def test_a_gang_of_a_thousand_tasks_makes_no_decision_long(kit, hosts):
    assert longest(lambda: a_gang_of_a_thousand_tasks(kit, hosts)) < DECISION_SECS


def a_gang_of_a_thousand_tasks(kit, hosts):
    """Return the duration of its longest decision in seconds."""
    names = ["localhost", *(f"node{n}" for n in range(2, hosts + 1))]
    nodes = tuple(
        kit.node(h, cpu=1000 // hosts, memory_mb=10**6, first_port=20_000, last_port=30_000)
        for h in names
    )
    keys = [kit.key_of(kind="parallel", host=h) for h in names]
    stage = kit.Stage(nodes={"local": nodes}, op_run_slots={("local", "parallel"): 4})
    clock = Clocked(stage)

    def phase(what):
        clock.what = what

    def placed(n, **more):
        phase("placed")
        stage.gang(
            kit.role("a", 500, **more),
            kit.role("b", 500, min_failed=None),
            n=n,
            debug_secs=9.0 if n == 4 else None,
        )
        for key in keys:
            if stage.world.agent(key).phase != "up":
                stage.up(key)
        stage.answer()
        tasks = stage.job(n).live_tasks()
        assert len(tasks) == 1000
        return [(t.token, t.agent_key) for t in tasks]

    def at_once(tasks, make):
        for key in keys:
            stage.snapshot(key, *(make(t) for t, k in tasks if k == key))

    tasks = placed(1)
    stage.gang(kit.role("a", 1000), n=9)  # another gang waits for all resources
    phase("one after the other")
    for token, key in tasks[:300]:
        stage.reports(kit.running(token), key=key)
    for token, key in tasks[:300]:
        stage.reports(kit.ended(token), key=key)
    phase("all start at once")
    at_once(tasks[300:], kit.running)
    phase("all end at once")
    at_once(tasks[300:], kit.ended)
    assert stage.state(1) == ("completed", "exit")
    stage.cancel(9)
    stage.probes.clear()

    tasks = placed(2)
    phase("canceled")
    stage.cancel(2)
    at_once(tasks, lambda t: kit.ended(t, None, signal=15, stop_reason="cancel"))
    tasks = placed(3, min_failed=250)
    phase("decided")
    for token, key in tasks[:250]:
        stage.reports(kit.ended(token, 1), key=key)
    at_once(tasks[250:], lambda t: kit.ended(t, None, signal=15, stop_reason="decided"))
    assert stage.state(3) == ("error", "exit")
    tasks = placed(4)
    phase("kept")
    at_once(tasks, lambda t: kit.ended(t, 1))
    phase("let go")
    stage.cancel(4)
    assert (
        stage.state(4) == ("error", "exit")
        and not stage.world.task_counts
        and not any(r.claims for r in stage.world.node_pools.values())
    )
    print(clock.longest)
    return max(clock.longest.values())
