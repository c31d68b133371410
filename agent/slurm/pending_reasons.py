"""Sentences for Slurm's pending reasons, and the reasons for which a job can never start."""

import re

#: Reasons for which the job can never start as requested.
IMPOSSIBLE: dict[str, str] = {
    "PartitionConfig": (
        "the partition's configuration does not allow its request (nodes, time or kind of node)"
    ),
    "PartitionNodeLimit": "it requests more or fewer nodes than the partition allows per job",
    "PartitionTimeLimit": "its time limit is longer than the partition's",
    "BadConstraints": "no node satisfies its request (features, cores, memory and GPUs together)",
    "DependencyNeverSatisfied": "its dependency can never be satisfied",
    "AccountNotAllowed": "its account may not use that partition",
    "InvalidAccount": "its account is not one of the cluster's",
    "InvalidQOS": "its QOS is not one of the cluster's",
    "QOSNotAllowed": "its QOS may not be used in that partition or by that account",
}
#: The same as a sentence with the names of account and partition.
_NOT_PERMITTED = re.compile(r"Job's (?P<what>account|QOS) not permitted to use this partition")
#: Limits per job or per node. The end of another job does not help. `QOSMaxCpuPerJobLimit`,
#: `AssocMaxWallDurationPerJobLimit`...
_PER_JOB_LIMIT = re.compile(
    r"(?:(?:QOS|Assoc)?(?:Max|Min)[A-Za-z]*Per(?:Job|Node)(?:Limit)?|QOSMin[A-Za-z]*|MaxMemPerLimit)\Z"
)

#: (reason or its prefix, sentence) for temporary reasons. The longest match counts.
_WAITS: tuple[tuple[str, str], ...] = (
    ("Priority", "other jobs are before it in the queue"),
    ("Resources", "it is next and waits until enough nodes are free"),
    ("Dependency", "it waits for another job"),
    ("BeginTime", "its begin time has not come"),
    (
        "JobHeldUser",
        "it is held on behalf of its user ('scontrol release' lets it go on)",
    ),
    ("JobHeldAdmin", "it is held by an administrator of the cluster"),
    ("job requeued in held state", "it was requeued and is held"),
    ("JobHoldMaxRequeue", "it was requeued too often, and an administrator has to release it"),
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
    ("Cleaning", "its previous start is being cleaned up"),
    ("SystemFailure", "Slurm, or its file system, has failed"),
    ("InactiveLimit", "it was inactive for too long"),
    ("MaxRequeue", "it was requeued too often"),
    ("AssociationJobLimit", "its account runs as many jobs as it may"),
    ("AssociationResourceLimit", "its account uses all resources that it may"),
    ("AssociationTimeLimit", "the hours of its account are used up"),
    ("QOSJobLimit", "its QOS runs as many jobs as it may"),
    ("QOSResourceLimit", "its QOS uses all resources that it may"),
    ("QOSTimeLimit", "the hours of its QOS are used up"),
    ("QOSUsageThreshold", "the usage of its QOS is over its threshold"),
    ("BurstBuffer", "its burst buffer is not ready"),
    ("FrontEndDown", "no front end node is up"),
    ("NodesNotAvail", "nodes that it needs are not available"),
)
_HOURS = re.compile(r"(?:Assoc|QOS)Grp[A-Za-z]*(?:Minutes|RunMinutes)\w*\Z")
_GROUP = re.compile(r"(?P<who>Assoc|QOS)(?:Grp|Max)[A-Za-z]*\Z")
_PER = re.compile(r"Max[A-Za-z]*Per(?:Account|User)(?:Limit)?\Z")


def impossible_reason(reason: str) -> str | None:
    """Return why a job with this pending reason can never start, or None if it may start."""
    word = reason.split(",")[0].strip().strip("()")
    if word in IMPOSSIBLE:
        return IMPOSSIBLE[word]
    if match := _NOT_PERMITTED.match(reason):
        return (
            IMPOSSIBLE["AccountNotAllowed"]
            if match["what"] == "account"
            else IMPOSSIBLE["QOSNotAllowed"]
        )
    if _PER_JOB_LIMIT.match(word):
        return "its request is outside the limits of its account or QOS for one job"
    return None


def describe_wait(reason: str) -> str:
    """Return a sentence for a pending reason."""
    word = reason.strip().strip("()").replace("_", " ")
    if not word:
        return "Slurm has not considered it yet"
    for known, sentence in sorted(_WAITS, key=lambda pair: -len(pair[0])):
        if word == known or re.match(re.escape(known) + r"[^A-Za-z]", word):
            return f"{sentence}{_nodes(word)}"
    if _HOURS.match(word):
        return "the hours of its account or QOS are used up, or reserved by running jobs"
    if match := _GROUP.match(word):
        return (
            f"its {'account' if match['who'] == 'Assoc' else 'QOS'} uses all resources that it may"
        )
    if _PER.match(word):
        return "its user or account uses all resources that its QOS allows"
    return "it waits for a reason that jobscribe does not know"


def _nodes(word: str) -> str:
    """Return the unavailable nodes in `ReqNodeNotAvail, UnavailableNodes:n[1-3]` as a suffix."""
    match = re.search(r"UnavailableNodes:\s*(\S{1,500})", word)
    return f": {match[1]}" if match else ""
