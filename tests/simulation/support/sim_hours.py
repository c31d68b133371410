"""Limits of core and GPU hours in a month: the configuration of such lives, the ends of months, and
checks that use the events and the machine only.
"""

import datetime
from collections import defaultdict
from typing import TYPE_CHECKING

from jobscribe.db.events.events import RunRequested, TaskEnded, TaskPlaced
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.clusters.queues import Queues, UserLimits
from jobscribe.protocol.ids import Token, parse_token
from jobscribe.supervisor.core.state.configuration import CoreConfig

if TYPE_CHECKING:
    from sim_clients import Clients
    from sim_supervisor import Supervisor
    from simulator import Simulator

#: The hours of a user in a month, as seconds: some runs of a life use them up.
CORE_SECS, GPU_SECS = 30.0, 12.0
#: The plan of the runs that must start at once.
UNLIMITED = "unlimited"
SITE = Queues(
    limits=UserLimits(core_hours=CORE_SECS / 3600, gpu_hours=GPU_SECS / 3600),
    plans={UNLIMITED: UserLimits(core_hours=1e6, gpu_hours=1e6)},
)
#: Without faults a month ends in each of these periods, until every run has ended.
MONTH_SECS, MONTHS = 10.0, 24
#: Interval of looks at runs that wait for hours, in such a life.
LOOK_SECS = 7.0
#: Inaccuracy of a duration.
ROOM_SECS = 0.1


def months(sim: "Simulator", storm_secs: float) -> None:
    """Let months end during the faults and after them."""
    if sim.policy.queues is SITE:
        r, time = sim.time.random, sim.time
        for _ in range(r.choice((0, 1, 2))):
            time.after(r.random() * storm_secs, lambda: _next_month(sim))
        for n in range(1, MONTHS):
            time.after(storm_secs + n * MONTH_SECS, lambda: _next_month(sim))


def _next_month(sim: "Simulator") -> None:
    """Set the wall clock to just before the next month."""
    now = datetime.datetime.fromtimestamp(sim.time.wall, datetime.UTC)
    end = (now.replace(day=1) + datetime.timedelta(days=32)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    sim.time.wall_offset += end.timestamp() - sim.time.wall - 0.5


def limited(policy: CoreConfig) -> bool:
    """Return whether this life checks the hours of users."""
    return policy.queues is SITE and not policy.batch


def refused_for_nothing(clients: "Clients", supervisor: "Supervisor", uid: str) -> bool:
    """Return whether all processes of a user together took less time than the limits. A process
    whose end the supervisor does not know counts as one that runs; after a restart of the
    supervisor, it may count from the request of its run.
    """
    if supervisor.engine.paused or supervisor.engine._suspect:
        return False  # it decides after it has folded its log again
    cores = gpus = 0.0
    world, home = supervisor.engine.world, supervisor.machine.home
    live = {str(t.token): job.run for job in world.jobs.values() for t in job.live_tasks()}
    specs = {(a.jid, a.serial): a.request.run for a in clients.runs}
    for text, p in supervisor.machine.by_token.items():
        token = parse_token(text)
        if not token.jid.startswith(uid):
            continue
        spec, secs = specs.get((token.jid, token.serial)), (p.ended or 0.0) - p.started
        if text in live:
            run, secs = live[text], supervisor.time.now - p.started
            if token not in world.began and run is not None and run.queued_mono is not None:
                if run.queued_boot_id != home.boot_id or run.serial != token.serial:
                    return False  # no clock goes on over a reboot, or is known of an earlier run
                secs = home.mono - run.queued_mono
        if spec is None or supervisor.policy.batch:
            return False
        role = next((r for r in spec.roles if r.name == token.role), None)
        cores += (secs + ROOM_SECS) * (1 if role is None else role.cpu)
        gpus += (secs + ROOM_SECS) * (0 if role is None else role.gpu)
    return cores < CORE_SECS and gpus < GPU_SECS


def reckon(sim: "Simulator") -> None:
    """Check that nothing was placed for a user after the ends of runs that had used up the month."""
    if sim.policy.queues is not SITE or sim.policy.batch:
        return
    specs: dict[tuple[str, int], RunSpec] = {}
    used: defaultdict[tuple[str, str], float] = defaultdict(float)
    gpus: dict[Token, int] = {}
    for stored in sim.supervisor.store.read_all(0, 1_000_000):
        event, jid = stored.event, stored.stream.removeprefix("job/")
        uid, month = jid.split("-")[0], _month(event.at)
        match event:
            case RunRequested(serial=serial, spec=spec):
                specs[jid, serial] = spec
            case TaskPlaced(token=token):
                gpus[token] = len(event.gpus)
                limited = specs[jid, token.serial].active_plan != UNLIMITED
                if limited and used[uid, month] >= CORE_SECS:
                    sim.broken(
                        f"{token} was placed at {event.at:.1f}, and {uid} had used {used[uid, month]:.1f} core-seconds of {CORE_SECS} in {month}"
                    )
            case TaskEnded(token=token, exit=exit_) if (
                (p := sim.machine.by_token.get(str(token))) is not None
                and p.ended is not None
                and exit_.started_at is not None
                and exit_.ended_at is not None
                and _month(exit_.ended_at) == month
            ):
                secs = min(p.ended - p.started, exit_.ended_at - exit_.started_at) - ROOM_SECS
                cores = next(
                    (r.cpu for r in specs[jid, token.serial].roles if r.name == token.role), 1
                )
                used[uid, month] += max(0.0, secs) * cores


def _month(at: float) -> str:
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m}"
