"""Slurm's reasons for jobs that wait, in sentences; and which of them mean that a job would wait
for ever.
"""

import re

#: It is never started as it was asked for.
IMPOSSIBLE: dict[str, str] = {
    "PartitionConfig": "the partition does not give what it asks for (nodes, time or kind of node), as it is configured",
    "PartitionNodeLimit": "it asks for more nodes, or fewer, than the partition gives to one job",
    "PartitionTimeLimit": "its time limit is longer than the partition's",
    "BadConstraints": "no node has what it asks for (features, cores, memory or GPUs together)",
    "DependencyNeverSatisfied": "what it depends on did not end as it had to",
    "AccountNotAllowed": "its account may not use that partition",
    "InvalidAccount": "its account is not one of the cluster's",
    "InvalidQOS": "its QOS is not one of the cluster's",
    "QOSNotAllowed": "its QOS may not be used in that partition or by that account",
}
#: The same in more words, with the names of both.
_NOT_TAKEN = re.compile(r"Job's (?P<what>account|QOS) not permitted to use this partition")
#: Limits of one job, one node of it: nothing that ends makes room for it. `QOSMaxCpuPerJobLimit`,
#: `AssocMaxWallDurationPerJobLimit`...
_OF_ONE_JOB = re.compile(
    r"(?:(?:QOS|Assoc)?(?:Max|Min)[A-Za-z]*Per(?:Job|Node)(?:Limit)?|QOSMin[A-Za-z]*|MaxMemPerLimit)\Z"
)

#: (reason, or how it begins: sentence) of those that pass. The first that fits counts.
_WAITS: tuple[tuple[str, str], ...] = (
    ("Priority", "others are before it in the queue"),
    ("Resources", "it is the next, and waits until enough nodes are free"),
    ("Dependency", "it waits for another job"),
    ("BeginTime", "its time to begin has not come"),
    (
        "JobHeldUser",
        "its user, or somebody for them, holds it back ('scontrol release' lets it go on)",
    ),
    ("JobHeldAdmin", "an administrator of the cluster holds it back"),
    ("job requeued in held state", "it was put into the queue again, and is held back there"),
    ("JobHoldMaxRequeue", "it was started again too often, and an administrator has to release it"),
    (
        "launch failed requeued held",
        "it could not be started on its node, and an administrator has to release it",
    ),
    ("JobLaunchFailure", "it could not be started on its node"),
    ("ReqNodeNotAvail", "nodes that it needs are down, drained or reserved"),
    ("Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved"),
    ("NodeDown", "a node that it needs is down"),
    ("Reservation", "it waits for its reservation to begin"),
    ("ReservationDeleted", "its reservation was deleted"),
    ("PartitionDown", "the partition is down"),
    ("PartitionInactive", "the partition is not active"),
    ("Licenses", "licences that it needs are in use"),
    ("JobArrayTaskLimit", "as many tasks of its array run as may run at once"),
    ("Prolog", "its nodes are being prepared"),
    ("Cleaning", "what it left when it ran before is being cleared away"),
    ("SystemFailure", "Slurm, or its file system, has failed"),
    ("InactiveLimit", "it was not active for too long"),
    ("MaxRequeue", "it was started again too often"),
    ("AssociationJobLimit", "its account has as many jobs running as it may"),
    ("AssociationResourceLimit", "its account has in use what it may"),
    ("AssociationTimeLimit", "the hours of its account are used up"),
    ("QOSJobLimit", "its QOS has as many jobs running as it may"),
    ("QOSResourceLimit", "its QOS has in use what it may"),
    ("QOSTimeLimit", "the hours of its QOS are used up"),
    ("QOSUsageThreshold", "the usage of its QOS is over its threshold"),
    ("BurstBuffer", "its burst buffer is not ready"),
    ("FrontEndDown", "no front end node is up"),
    ("NodesNotAvail", "nodes that it needs are not available"),
)
_HOURS = re.compile(r"(?:Assoc|QOS)Grp[A-Za-z]*(?:Minutes|RunMinutes)\w*\Z")
_GROUP = re.compile(r"(?P<who>Assoc|QOS)(?:Grp|Max)[A-Za-z]*\Z")
_PER = re.compile(r"Max[A-Za-z]*Per(?:Account|User)(?:Limit)?\Z")


def never(reason: str) -> str | None:
    """Why a job that waits for this reason never starts; None where it may."""
    word = reason.split(",")[0].strip().strip("()")
    if word in IMPOSSIBLE:
        return IMPOSSIBLE[word]
    if match := _NOT_TAKEN.match(reason):
        return (
            IMPOSSIBLE["AccountNotAllowed"]
            if match["what"] == "account"
            else IMPOSSIBLE["QOSNotAllowed"]
        )
    if _OF_ONE_JOB.match(word):
        return "it asks for more, or less, than its account or QOS may give to one job"
    return None


def waits_for(reason: str) -> str:
    """In words; Slurm's own where this knows none."""
    word = reason.strip().strip("()").replace("_", " ")
    if not word:
        return "Slurm has not looked at it yet"
    for known, sentence in sorted(_WAITS, key=lambda pair: -len(pair[0])):
        if word == known or re.match(re.escape(known) + r"[^A-Za-z]", word):
            return f"{sentence}{_nodes(word)}"
    if _HOURS.match(word):
        return "the hours of its account or QOS are used up, or would be by what runs"
    if match := _GROUP.match(word):
        return f"its {'account' if match['who'] == 'Assoc' else 'QOS'} has in use what it may"
    if _PER.match(word):
        return "its user or account has in use what its QOS allows"
    return "Slurm gives this reason only"


def _nodes(word: str) -> str:
    """Which nodes: `ReqNodeNotAvail, UnavailableNodes:n[1-3]`."""
    match = re.search(r"UnavailableNodes:\s*(\S{1,500})", word)
    return f": {match[1]}" if match else ""
