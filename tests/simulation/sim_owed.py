"""Nothing waits for ever: whatever is not over must have somebody who will move it, a timer or a verb on its way.

Told apart from the reckoning at the end, because a hang shows here at the step where it begins.
"""

from typing import TYPE_CHECKING

from jobscribe.db.state import Job, Task
from jobscribe.protocol.ids import AgentKey
from jobscribe.supervisor.core import placement
from jobscribe.supervisor.core.world import AgentView, dir_pool

if TYPE_CHECKING:
    from sim_supervisor import Supervisor


def owed(supervisor: "Supervisor", job: Job) -> str | None:
    """What is wrong with the books of this job, as a sentence. Only when nothing is on its way to the disk."""
    world, run = supervisor.engine.world, job.run
    if run is not None and run.active and not run.attempts:
        key, ticket = world.key_of(run), (job.jid, run.serial)
        view = world.agents.get(key)
        if view is None or ticket not in view.queued:
            return f"{ticket} waits, and is in no queue"
        if run.spec.queue_limit_secs and ("queue", *ticket) not in supervisor.timers:
            return f"{ticket} has a queue limit, and no timer"
        return _asking(supervisor, key, view) or moved(supervisor, key, view)
    for task in job.live_tasks():
        if why := _task(supervisor, job, task):
            return why
    return None


def _asking(supervisor: "Supervisor", key: AgentKey, view: AgentView) -> str | None:
    """The oldest ones ask for slots, when their agent is up: all, or more than half of as many as may."""
    claims = supervisor.engine.world.slots.claims
    oldest = set(list(view.queued)[: len(view.asking)])
    if view.asking != oldest or not all(t in claims for t in view.asking):
        return f"{view.asking} of {key} ask for slots, {oldest} are the oldest, and {list(claims)} hold or wait"
    if view.phase == "up" and view.synced and len(view.asking) < min(len(view.queued), placement.ASKING // 2 + 1):
        return f"{len(view.asking)} of {len(view.queued)} runs of {key} ask for slots, and it is up"
    return None


def _task(supervisor: "Supervisor", job: Job, task: Task) -> str | None:
    world, token = supervisor.engine.world, task.token
    view = world.agents.get(task.agent_key)
    ticket = (token.jid, token.serial)
    if view is None or token not in view.placed:
        return f"{token} may live, and its agent does not have it"
    claim = world.slots.claims.get(ticket)
    if claim is None or claim.held != len(claim.pools):
        return f"{token} may live, and holds {claim}"
    if (dir_pool(token.jid) in claim.pools) != (task.pid is None):
        return f"{token} with pid {task.pid} holds {claim.pools}"
    if why := moved(supervisor, task.agent_key, view):
        return why
    if view.phase != "up" or not view.synced:
        return None
    run = job.run
    wanted = run is not None and run.serial == token.serial and run.stop is None
    if not wanted and ("stop", token) not in supervisor.timers:
        return f"{token} is to be stopped, and nobody asks for it again"
    if wanted and task.pid is None and ("op", token) not in supervisor.timers:
        return f"{token} is to start, and nobody asks what became of it"
    if wanted and task.pid is not None and run is not None and run.spec.time_limit_secs and ("limit", token) not in supervisor.timers:
        return f"{token} has a time limit, and no timer"
    return None


def moved(supervisor: "Supervisor", key: AgentKey, view: AgentView) -> str | None:
    """Somebody needs this agent: what will bring it up?"""
    timers, attempt = supervisor.timers, view.record.attempt
    match view.phase:
        case "up":
            link = supervisor.links.get(key)
            if link is None or link.epoch != view.epoch:
                return f"{key} is up on connection {view.epoch:x}, and the live one is {link.epoch if link else None}"
            if not view.synced and ("sync", key, view.epoch) not in timers:
                return f"{key} is connected, and nobody asks for its snapshot"
        case "finding" if not supervisor.driver.busy.get(key):
            return f"{key} is being looked for, by nobody"
        case "starting" if ("agent-start", key, attempt) not in timers and ("agent-retry", key, attempt) not in timers:
            return f"{key} is being started, and nothing comes of it"
        case "stopping" if ("agent-start", key, attempt) not in timers:
            return f"{key} is being ended, and nothing comes of it"
        case "away" if ("agent-return", key) not in timers:
            return f"{key} is away, and nobody looks for it"
        case "absent":
            return f"{key} is needed, and nobody sees to it"
    return None
