"""Runs that a batch scheduler (Slurm) starts: requested resources, the state of a Slurm job, and
the resources of a cluster.

Shapes only. `agent/slurm` queries Slurm and interprets its answers; `cluster` describes the
configured clusters. Memory is MiB (2**20 bytes), durations are seconds, points in time are unix
seconds.
"""

import enum
from typing import Annotated, Literal

import msgspec

from ..fields import Form

#: A name defined in Slurm: a partition, an account or a QOS.
SlurmName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}\Z")]
#: The name of a configured cluster. It is also the host in agent keys.
ClusterName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}\Z"),
    Form("the name of a cluster: letters, digits and -, at most 63"),
]
#: `feature&feature`, `[a|b]*2`: what sbatch accepts, without characters that could form a shell
#: command or another directive.
Expression = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.,:|&()\[\]*=@+-]{1,256}\Z")]
#: An environment module: `gcc/12.2`.
Module = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./+-]{0,127}\Z"),
    Form("the name of a module, such as gcc/12.2"),
]
#: One further sbatch option without its dashes: `exclusive`, `reservation=maint`. The cluster
#: configuration lists the allowed ones. It contains no blank, so no second option can follow.
Directive = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9-]{0,63}(=[A-Za-z0-9_.,:;@%+/=\[\](){}*?&|!~<>^-]{1,256})?\Z"
    ),
    Form("an option of sbatch without its dashes, such as exclusive or reservation=maint"),
]
#: A Slurm job id, with the task of an array or the component of a heterogeneous job.
SlurmJobId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}([_+][0-9]{1,10})?\Z")]
#: Unix seconds, without NaN and infinity, which JSON does not have.
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Sentence = Annotated[str, msgspec.Meta(max_length=2048)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Mib = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class SlurmState(enum.StrEnum):
    """Slurm's words for the states of jobs that jobscribe treats specially. A job may have others,
    which are passed on unchanged.
    """

    PENDING = "PENDING"
    REQUEUED = "REQUEUED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all parts share; no fields."""


class BatchRequest(_Part, frozen=True, kw_only=True):
    """The resources that one run requests from its cluster. Unset fields take the cluster's
    defaults, then Slurm's own.

    tasks: processes that `srun` starts (ranks). cores: per process. memory_mb, gpus: per node.
    setup: lines of sh that run before the command, on the node. signal_secs: the job gets SIGUSR1
    this long before its time limit. cluster `None`: the first one. The time limit is a field of the
    run.
    """

    cluster: Annotated[ClusterName, Form(aliases=("clusters", "host"))] | None = None
    partition: (
        Annotated[SlurmName, Form("the name of a partition, without blanks", aliases=("queue",))]
        | None
    ) = None
    account: (
        Annotated[
            SlurmName,
            Form("the name of an account, without blanks", aliases=("project", "charge")),
        ]
        | None
    ) = None
    qos: (
        Annotated[
            SlurmName, Form("the name of a QOS, without blanks", aliases=("qualityOfService",))
        ]
        | None
    ) = None
    constraint: (
        Annotated[
            Expression,
            Form(
                "features as sbatch takes them, without blanks, such as 'cpu&amd'",
                aliases=("features",),
            ),
        ]
        | None
    ) = None
    licenses: (
        Annotated[
            Expression,
            Form("licences as sbatch takes them, such as matlab:2", aliases=("licences",)),
        ]
        | None
    ) = None
    nodes: Annotated[_Count, Form(aliases=("nodeCount", "sbatchNodes"))] | None = None
    tasks: Annotated[_Count, Form(aliases=("ntasks", "ranks", "processes"))] | None = None
    tasks_per_node: Annotated[_Count, Form(aliases=("ntasksPerNode", "ppn"))] | None = None
    cores: Annotated[_Count, Form(aliases=("cpusPerTask", "cpus", "sbatchCores"))] | None = None
    memory_mb: Annotated[_Mib, Form("a whole number of MiB", aliases=("mem", "memory"))] | None = (
        None
    )
    gpus: (
        Annotated[int, msgspec.Meta(ge=0, le=1_000), Form(aliases=("gpu", "gpusPerNode"))] | None
    ) = None
    modules: Annotated[
        tuple[Module, ...], msgspec.Meta(max_length=50), Form(aliases=("module",), unique=True)
    ] = ()
    setup: Annotated[
        str,
        msgspec.Meta(max_length=8192),
        Form("lines of sh", aliases=("prolog", "init")),
    ] = ""
    directives: Annotated[
        tuple[Directive, ...], msgspec.Meta(max_length=20), Form(aliases=("options", "extra"))
    ] = ()
    signal_secs: (
        Annotated[
            int,
            msgspec.Meta(ge=1, le=65_535),
            Form("a whole number of seconds", aliases=("signal",)),
        ]
        | None
    ) = None


class BatchState(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """The last known state of one Slurm job. job_id `None`: Slurm has not accepted it yet.

    state: Slurm's state (`PENDING`, `RUNNING`, `NODE_FAIL`...). reason: Slurm's reason, unchanged.
    sentence: the reason explained for people. nodes: in Slurm's notation (`n[1-3]`). starts_at:
    Slurm's estimate. unknown_since: Slurm has not answered since then. restarts: how often Slurm
    has requeued and started the job again. run_dir: the run directory, if it differs from the
    supervisor's. node: the node of this task, if the job has several tasks.
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
    #: the unix user (name or number) who canceled the job, according to Slurm's accounting
    canceled_by: Word = ""
    run_dir: Sentence = ""
    node: Word = ""

    @property
    def queued(self) -> bool:
        """Return whether the job waits in Slurm's queue, including a requeued job that ran
        before.
        """
        return self.state in (SlurmState.PENDING, SlurmState.REQUEUED, SlurmState.REQUEUE_HOLD)


class NodeGroup(_Part, frozen=True, kw_only=True):
    """The nodes of a partition with one state. state: in Slurm's word, such as `idle` or `drained*`.
    reason: why an operator or Slurm took them out of use.
    """

    state: Word
    nodes: int
    reason: Sentence = ""


class Partition(_Part, frozen=True, kw_only=True):
    """The limits of a partition as Slurm reports them. None: no limit, or not reported.

    time_limit_secs: the maximum. default_secs: the limit of jobs that request none. state: Slurm's
    word if it is not UP, such as DRAIN. node_groups: unset if Slurm does not tell them.
    """

    name: Word
    default: bool = False
    up: bool = True
    state: Word | msgspec.UnsetType = msgspec.UNSET
    node_groups: tuple[NodeGroup, ...] | msgspec.UnsetType = msgspec.UNSET
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
    """The state of a cluster as one of its agents knows it. partitions: empty if Slurm does not
    answer or has none.

    accounts, qos: names that this user may use, according to Slurm's accounting; None: the
    accounting cannot be queried.
    """

    cluster: ClusterName
    at: Moment
    scheduler: Literal["up", "unreachable"]
    detail: Sentence = ""
    version: Word = ""
    partitions: tuple[Partition, ...] = ()
    accounts: tuple[Word, ...] | None = None
    qos: tuple[Word, ...] | None = None
