"""Runs that a batch scheduler (Slurm) starts: what can be asked of it, what it says of one job of
its own, what a cluster offers.

Shapes only. How Slurm is asked and what its words mean stands in `agent/slurm`; which clusters
there are in `clusters`. Memory is counted in MiB (2**20 bytes), times in seconds, moments in unix
seconds.
"""

from typing import Annotated, Literal

import msgspec

#: A name that Slurm gives: of a partition, an account, a QOS.
SlurmName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}\Z")]
#: A name as in the pool of clusters; it is the host of agent keys.
ClusterName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}\Z")]
#: `feature&feature`, `[a|b]*2`: what sbatch takes, and nothing that a shell or another directive
#: could be made of.
Expression = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.,:|&()\[\]*=@+-]{1,256}\Z")]
#: An environment module: `gcc/12.2`.
Module = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./+-]{0,127}\Z")]
#: One more option of sbatch, without its dashes: `exclusive`, `reservation=maint`. Which are
#: allowed the cluster says. No blank is in it, behind which another option could stand.
Directive = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9-]{0,63}(=[A-Za-z0-9_.,:;@%+/=\[\](){}*?&|!~<>^-]{1,256})?\Z"
    ),
]
#: A job id of Slurm's, with the task of an array or the part of a heterogeneous job.
SlurmJobId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}([_+][0-9]{1,10})?\Z")]
#: Unix seconds, without NaN and infinity, which JSON does not have.
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Sentence = Annotated[str, msgspec.Meta(max_length=2048)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Mib = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What all share: nothing but their form."""


class BatchRequest(_Part, frozen=True, kw_only=True):
    """What one run asks of its cluster. Where it does not say, the cluster's defaults count, then
    Slurm's own.

    tasks: processes that `srun` starts (ranks); cores: of each of them. memory_mb: of each node.
    gpus: of each node. The time limit is the run's. setup: lines of sh that come before the
    command, on the node. signal_secs: so long before the time limit the job gets SIGUSR1. cluster
    `None`: the first one.
    """

    cluster: ClusterName | None = None
    partition: SlurmName | None = None
    account: SlurmName | None = None
    qos: SlurmName | None = None
    constraint: Expression | None = None
    licenses: Expression | None = None
    nodes: _Count | None = None
    tasks: _Count | None = None
    tasks_per_node: _Count | None = None
    cores: _Count | None = None
    memory_mb: _Mib | None = None
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    modules: Annotated[tuple[Module, ...], msgspec.Meta(max_length=50)] = ()
    setup: Annotated[str, msgspec.Meta(max_length=8192)] = ""
    directives: Annotated[tuple[Directive, ...], msgspec.Meta(max_length=20)] = ()
    signal_secs: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None


class BatchState(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """One job of Slurm's, as it was told last. job_id `None`: it was not accepted yet.

    state: Slurm's word (`PENDING`, `RUNNING`, `NODE_FAIL`...); reason: its reason, as it says it;
    sentence: what that means, for a person. nodes: as Slurm writes them (`n[1-3]`). starts_at: what
    it expects. unknown_since: nobody could be asked since then. restarts: how often Slurm has
    started it again. run_dir: where it runs, if not where the supervisor thinks. node: of these the
    one where this task is, if it is one of several.
    """

    cluster: ClusterName
    job_id: SlurmJobId | None = None
    state: Word = ""
    reason: Word = ""
    sentence: Sentence = ""
    partition: Word = ""
    account: Word = ""
    nodes: Sentence = ""
    submitted_at: Moment | None = None
    starts_at: Moment | None = None
    unknown_since: Moment | None = None
    restarts: int = 0
    #: who canceled it, by Slurm's accounting: a unix user's name or number
    canceled_by: Word = ""
    run_dir: Sentence = ""
    node: Word = ""

    @property
    def queued(self) -> bool:
        """It waits in Slurm's queue, by Slurm's word; also where it was said to run before."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD")


class Partition(_Part, frozen=True, kw_only=True):
    """What a partition allows, by Slurm's word. None: no limit, or it is not said.

    time_limit_secs: the longest; default_secs: where none is asked for.
    """

    name: Word
    default: bool = False
    up: bool = True
    nodes: int | None = None
    max_nodes: int | None = None
    min_nodes: int | None = None
    cores_per_node: int | None = None
    memory_mb_per_node: int | None = None
    gpus_per_node: int | None = None
    time_limit_secs: float | None = None
    default_secs: float | None = None
    accounts: tuple[Word, ...] = ()
    qos: tuple[Word, ...] = ()


class ClusterStatus(_Part, frozen=True, kw_only=True):
    """What an agent has found out about its cluster. partitions: empty while Slurm cannot be asked,
    or has none.

    accounts, qos: what this user may charge to and ask for, by Slurm's accounting; None: it cannot
    be asked.
    """

    cluster: ClusterName
    at: Moment
    scheduler: Literal["up", "unreachable"]
    detail: Sentence = ""
    version: Word = ""
    partitions: tuple[Partition, ...] = ()
    accounts: tuple[Word, ...] | None = None
    qos: tuple[Word, ...] | None = None
