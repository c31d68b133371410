"""In any history, the world folded from the log has the same pending work and makes the same
decisions as the live world.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.protocol.wire.messages import RunStatusUpdate, Snapshot
from jobscribe.supervisor.core.decide import decide, outstanding
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    FramesLost,
    Restarted,
)

ACTIONS = (
    "submit",
    "force",
    "other",
    "cancel",
    "connect",
    "disconnect",
    "step",
    "step",
    "step",
    "driver",
    "timer",
    "gap",
    "time",
    "lose",
)


class Play:
    """A stage with simple simulated machines: a task that they are told to start goes on to start
    and end.
    """

    def __init__(self, kit):
        self.kit = kit
        self.stage = kit.Stage(
            cpu_slots={("local", "sequential"): 2}, op_run_slots={("local", "sequential"): 2}
        )
        self.keys = [kit.key_of(kit.UID), kit.key_of(kit.OTHER_UID)]
        self.machines = {k: {} for k in self.keys}
        self.stopped = set()
        self.timers = {}
        self.owed = []

    def act(self, what, n, m):
        """Perform one action. An action that makes no sense now is skipped."""
        stage, kit = self.stage, self.kit
        uid = (kit.UID, kit.OTHER_UID)[n % 2]
        key = self.keys[n % 2]
        up = stage.world.agent(key).phase == "up"
        match what:
            case "submit" | "force":
                stage.submit(m % 3, uid=uid, force=what == "force")
            case "other":
                stage.submit(m % 3, uid=uid, command=("other",), queue_limit_secs=5.0)
            case "cancel":
                stage.cancel(m % 3, uid=uid) if kit.jid_of(m % 3, uid) in stage.world.jobs else None
            case "connect":
                stage.open(key)
                self.obey()
                stage.snapshot(key, *self.machines[key].values())
            case "disconnect" if up:
                stage.disconnect(key)
            case "gap" if up:
                stage.tell(FramesLost(key, stage.epochs[key]))
            case "step" if self.machines[key]:
                self.step(key, m, up)
            case "lose" if self.machines[key] and not up:
                self.machines[key].pop(
                    sorted(self.machines[key], key=str)[m % len(self.machines[key])]
                )
            case "driver" if self.owed:
                stage.tell(self.answer(self.owed.pop(0), m))
            case "timer" if self.timers:
                stage.fire(list(self.timers)[m % len(self.timers)])
            case "time":
                stage.pass_time(m / 3)
        self.obey()

    def step(self, key, m, up):
        """Advance one execution by one state, and report it if its agent is up."""
        token = sorted(self.machines[key], key=str)[m % len(self.machines[key])]
        e = self.machines[key][token]
        if e.state == "starting" and token not in self.stopped:
            e = self.kit.running(token, pid=50 + m)
        elif e.state != "ended":
            e = self.kit.ended(
                token, m % 2, pid=e.pid, stop_reason="cancel" if token in self.stopped else None
            )
        self.machines[key][token] = e
        if up:
            self.stage.reports(e, key=key)

    def answer(self, asked, m):
        match asked:
            case fx.StartAgent():
                return (
                    DriverStarted(asked.key, asked.attempt, {"pid": 9}),
                    DriverFailed(asked.key, asked.attempt, "no"),
                )[m % 3 == 0]
            case fx.FindAgent():
                return DriverFound(asked.key, ("alive", "gone", "unknown")[m % 3], "x")
            case fx.StopAgent():
                return DriverStopped(asked.key)

    def obey(self):
        for e in self.stage.effects:
            match e:
                case fx.SetTimer():
                    self.timers[e.timer] = e.secs
                case fx.ClearTimer():
                    self.timers.pop(e.timer, None)
                case fx.StartAgent() | fx.FindAgent() | fx.StopAgent():
                    self.owed.append(e)
                case fx.LaunchTask():
                    self.machines[e.key].setdefault(e.token, self.kit.starting(e.token))
                case fx.StopTask():
                    self.stopped.add(e.token)
                    self.machines[e.key].setdefault(e.token, self.kit.starting(e.token))
                case fx.AcknowledgeTasks():
                    for token in e.tokens:
                        self.machines[e.key].pop(token, None)
        self.stage.effects = []


PLAY = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.integers(0, 5)), max_size=40
)


def queue(world):
    return {
        k: [t for t, _ in sorted(v.queued.items(), key=lambda p: p[1])]
        for k, v in world.agents.items()
        if v.queued
    }


def placed(world):
    return {k: v.placed for k, v in world.agents.items() if v.placed}


def held(world, tokens):
    """Return the slots held by runs whose tasks may be live."""
    tickets = {(t.jid, t.serial) for t in tokens}
    return {t: c.pools[: c.held] for t, c in world.slots.claims.items() if t in tickets}


def same_when_folded_anew(play):
    live, folded = play.stage.world, play.stage.restored()
    assert {j: job for j, job in live.jobs.items() if job.busy} == folded.jobs
    assert queue(folded) == queue(live)
    assert placed(folded) == placed(live)
    tokens = {t for v in live.agents.values() for t in v.placed}
    assert held(folded, tokens) == held(live, tokens)
    for key, view in live.agents.items():
        assert folded.agent(key).record == view.record


@settings(max_examples=100, deadline=None)
@given(PLAY)
def test_folded_anew_it_is_the_same_world(kit, actions):
    play = Play(kit)
    for action in actions:
        play.act(*action)
        same_when_folded_anew(play)


def reconnected(stage, world, play, first):
    """Let every agent connect and report its executions, then end all tasks one by one. Return the
    jobs' events.
    """
    events, mono = [], [0]

    def tell(*inputs):
        decision = decide(world, inputs, stage.now())
        events.extend(
            (w.stream, w.expected_version, e)
            for w in decision.writes
            if w.stream.startswith("job/")
            for e in w.events
        )
        return decision

    tell(*first)
    for key in play.keys:
        tell(AgentConnected(key, 1000, play.kit.alive(key)))
    for key in play.keys:
        for number in (1000, 1001):  # the second is for tasks that are missing in the first
            tell(
                AgentMessage(
                    key,
                    1000,
                    Snapshot(
                        number=number,
                        page=0,
                        last=True,
                        executions=tuple(play.machines[key].values()),
                    ),
                )
            )
    while live := sorted({t for v in world.agents.values() for t in v.placed}, key=str):
        mono[0] += 1
        assert mono[0] < 200, "it comes to an end"
        token = live[0]
        key = world.task(token).agent_key
        tell(AgentMessage(key, 1000, RunStatusUpdate(execution=play.kit.ended(token))))
    return events


def goes_on_the_same(play):
    """Check that the live and the folded world decide the same until the end when they meet the
    same agents. Nothing is pending or held then.
    """
    stage = play.stage
    folded = stage.restored()
    for jid in {s[4:] for s, _ in stage.log if s.startswith("job/")}:
        folded.jobs.setdefault(jid, stage.folded(jid))
    gone = [AgentDisconnected(k, stage.epochs.get(k, 0)) for k in play.keys]
    # only the live world turns an agent away that is being stopped; a new supervisor does not know
    # about the stop
    gone += [DriverStopped(k) for k, v in stage.world.agents.items() if v.phase == "stopping"]
    live_goes_on = reconnected(stage, stage.world, play, gone)
    assert reconnected(stage, folded, play, [Restarted()]) == live_goes_on
    for world in (stage.world, folded):
        assert not any(job.busy for job in world.jobs.values())
        assert (world.slots.pools, world.slots.claims) == ({}, {})
        assert queue(world) == placed(world) == {}


@settings(max_examples=100, deadline=None)
@given(PLAY)
def test_restarted_it_goes_on_as_the_live_one_does(kit, actions):
    play = Play(kit)
    for action in actions:
        play.act(*action)
    goes_on_the_same(play)


def test_long_plays(kit):
    """The scenarios are long enough to reach every state; the test asserts that they do."""
    seen = set()
    for seed in range(25):
        random, play = Random(seed), Play(kit)
        for _ in range(200):
            play.act(random.choice(ACTIONS), random.randrange(2), random.randrange(6))
            seen |= {v.phase for v in play.stage.world.agents.values()}
        same_when_folded_anew(play)
        goes_on_the_same(play)
        for job in play.stage.world.jobs.values():
            runs = [*job.history, *([job.run] if job.run else [])]
            seen |= {(r.status, r.reason) for r in runs}
            assert [r.serial for r in runs] == sorted({r.serial for r in runs})
            assert not {r.status for r in runs} & {"pending", "running"}
    assert seen >= {
        "absent",
        "finding",
        "starting",
        "away",
        "stopping",
        "up",
        ("completed", "exit"),
        ("error", "exit"),
        ("canceled", "cancel"),
        ("canceled", "queueLimit"),
        ("error", "agentStartFailed"),
        ("error", "lost"),
    }


@settings(max_examples=60, deadline=None)
@given(PLAY)
def test_what_is_owed_can_be_asked_for_again(kit, actions):
    """The second call only sets timers again, because all other effects are under way."""
    play = Play(kit)
    for action in actions:
        play.act(*action)
    one, two = play.stage.restored(), play.stage.restored()
    now = play.stage.now()
    owed = outstanding(one, now)
    assert owed == decide(two, [Restarted()], now).effects
    kinds = {type(e) for e in owed}
    assert kinds <= {fx.FindAgent, fx.StartAgent, fx.SetTimer}
    needed = {k for k, v in one.agents.items() if v.needed}
    assert {e.key for e in owed if isinstance(e, fx.FindAgent | fx.StartAgent)} == needed
    assert {
        (e.timer.jid, e.timer.serial)
        for e in owed
        if isinstance(e, fx.SetTimer) and isinstance(e.timer, timers.QueueLimit)
    } == {
        (j.jid, j.run.serial)
        for j in one.jobs.values()
        if j.run.active and not j.run.attempts and j.run.spec.queue_limit_secs
    }
    again = outstanding(one, now)
    assert {type(e) for e in again} <= {fx.SetTimer}
    assert all(e in owed for e in again)
