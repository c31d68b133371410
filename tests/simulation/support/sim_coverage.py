"""Events that must happen over the seeds of a run: a fault that never struck was not tested.

Besides the faults, these are the coincidences for which guarantees are easily written and seldom
kept.
"""

from collections import Counter

import sim_site
from sim_faults import DISASTERS, KEEPER_POINTS, SHARES, SUPERVISOR_POINTS

#: Faults that are counted by their consequences.
_ARMED = frozenset(
    {"a crash point of the supervisor was armed", "a crash point of a keeper was armed"}
)
#: Too rare to expect within few seeds.
_RARE = frozenset({"a stop of the driver was never answered"})

COINCIDENCES = (
    *(f"the supervisor died at {point}" for point in SUPERVISOR_POINTS),
    *(f"a keeper died at {point}" for point in KEEPER_POINTS),
    "the supervisor died before a commit",
    "the supervisor went on after its disk was well again",
    "the store failed for good, and the supervisor stopped",
    "the machine was rebooted while jobs ran",
    "a power cut took what was not synced",
    "a task was placed before a reboot, and nobody knows whether it started",
    "a keeper took over what an earlier one had started",
    "an end was taken from its evidence",
    "a start found a keeper that lived",
    "two agents of one key lived at once",
    "a front end dropped the status of a running run",
    "a newer connection of an agent ended the older one",
    "counted: agentReplaced",
    "an idle agent was sent home",
    "an order changed nothing, and was answered with what is",
    "an order came for what was forgotten",
    "a first snapshot missed what had started, and was asked for again",
    "a message went in pieces",
    "a task was launched again, for nobody knew whether it had been",
    "a task was stopped before it started",
    "a cancel met a task that was being started",
    "a queued run was canceled",
    "a run was canceled by its queue limit",
    "a run was ended by its time limit, by the keeper",
    "a deferred end was decided with the next inputs",
    "a run ended with the reason lost",
    "a run ended with the reason agentStartFailed",
    "a run was joined, or a finished one reused",
    "a run was forced",
    "a run directory was purged",
    "a repeated request got the same answer",
    "refused: anotherRun",
    "refused: storageUnavailable",
    "a gang of several tasks was placed",
    "a gang was placed on two hosts",
    "a probe found somebody on a port",
    "somebody listened on a port of a task that was to start",
    "a stranger listened on a port",
    "an attempt was decided while tasks of it ran: failed",
    "an attempt was decided while tasks of it ran: succeeded",
    "an attempt succeeded although tasks of it had failed",
    "a run was tried again: transient",
    "a run was tried again: conflict",
    "a run was tried again: unknown",
    "a run was not tried again: permanent",
    "a run was not tried again: no retry left",
    "a run was canceled between two attempts",
    "a task was kept for debugging",
    "a hold ended at its deadline",
    "a hold was released",
    "a hold outlived the supervisor",
    "a run was canceled while a task of it was kept for debugging",
    "a run was canceled while it waited for another one",
    "a run began after what it had waited for",
    "a run was canceled, for what it waited for ended otherwise",
    "a run of an array began",
    "a run waited with its agent for a slot",
    "a run was stopped that waited with its agent for a slot",
    "a run was started in the slot of an ended one",
    "users took turns",
    "a run waited for hours of its user",
    "refused: hoursUsedUp",
    "a user waited for the limit of running runs",
    "a user waited for the limit of all cores",
    "a keeper died while runs waited with it for a slot",
    *(
        f"it was told: {why}"
        for why in (
            "agent",
            "array_slot",
            "user_limit",
            "cpu_slot",
            "agent_memory",
            "debug_hold",
            "dependency",
            "host_down",
            "op_slot",
            "ports",
            "resources",
            "retry_wait",
        )
    ),
    "refused: resourceExceeded",
    "refused: dependencyNever",
    "it was told: slurm",
    "it was told: sign_in",
    "a user signed in",
    "a driver could do nothing before a sign-in",
    "a scheduler did not answer for a while",
    "it was not known, for a scheduler did not answer",
    "somebody canceled a job in Slurm",
    "a node of a cluster failed",
    "a batch job was canceled in its queue",
    "a batch job found that its fence was taken",
    "a stop of a batch job was withdrawn, for it had just exited",
    "a stop came when only children of a job were left",
    "an exit was told while children of the job were left",
    "a stop was withdrawn, for the job had just exited",
    "a keeper died after the step: record stop",
    "a keeper died after the step: record signal",
    "a keeper died after the step: terminate",
    "a batch job is on record",
    "an agent found batch jobs that an earlier one had submitted",
    "a scheduler took its time to complete a batch job",
    "an exit was on record before the end",
    "an exit was on record before the end, of a run that was canceled",
    "a run was canceled after its command had ended",
    "a stop came when a batch job had ended by itself",
    "a call was refused: signInNeeded",
    "a host could not be asked for a while",
    "a queued run went to another host",
    "an agent that nobody needed was dismissed",
    "an agent was needed again while it left",
    "an agent had to wait for memory",
    "an agent that was to be dismissed was busy",
    "a gang with a network of its own was placed",
    "an agent was ready before anybody needed it",
    "a call was over: answered",
    "a call was over: deadline",
    "a call was over: agentUnavailable",
    "a call was given up by the supervisor",
    "a call was refused: storageUnavailable",
)

MUST_HAPPEN: tuple[str, ...] = (
    *(w for w in (*SHARES, *DISASTERS) if w not in _ARMED | _RARE),
    *COINCIDENCES,
    *sim_site.COINCIDENCES,
)


def never_happened(happened: Counter[str]) -> list[str]:
    return [what for what in MUST_HAPPEN if not happened[what]]
