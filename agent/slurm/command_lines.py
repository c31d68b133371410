"""Command lines of Slurm's programs, in formats of our own, independent of the user's login
profile.

Times are requested as unix seconds. The field separator is a character that users do not type.
Fields that users choose (names, comments) come last, so that no name can shift another field.
"""

from collections.abc import Sequence

#: Field separator. sacct takes it as its delimiter, squeue and sinfo as part of their format.
SEPARATOR = "\x1f"
#: Variables of a login profile that would change the output of these programs.
_SQUEUE_UNSET = tuple(
    f"SQUEUE_{n}"
    for n in (
        "ACCOUNT",
        "ALL",
        "ARRAY",
        "FORMAT",
        "FORMAT2",
        "LICENSES",
        "NAMES",
        "PARTITION",
        "PRIORITY",
        "QOS",
        "SORT",
        "STATES",
        "USERS",
    )
)
_SACCT_UNSET = ("SACCT_FEDERATION", "SACCT_LOCAL", "SACCT_FORMAT")
_SINFO_UNSET = (
    "SINFO_ALL",
    "SINFO_FEDERATION",
    "SINFO_FORMAT",
    "SINFO_LOCAL",
    "SINFO_PARTITION",
    "SINFO_SORT",
)
#: These variables would override the options in the script.
_SBATCH_OPTIONS = tuple(
    f"SBATCH_{n}"
    for n in (
        "ACCOUNT",
        "ARRAY_INX",
        "BATCH",
        "CLUSTERS",
        "COMMENT",
        "CONSTRAINT",
        "CONTAINER",
        "CONTAINER_ID",
        "CORE_SPEC",
        "CPUS_PER_GPU",
        "DEBUG",
        "DELAY_BOOT",
        "DISTRIBUTION",
        "ERROR",
        "EXCLUSIVE",
        "EXPORT",
        "GET_USER_ENV",
        "GPUS",
        "GPUS_PER_NODE",
        "GPUS_PER_TASK",
        "GRES",
        "GRES_FLAGS",
        "HINT",
        "IGNORE_PBS",
        "INPUT",
        "JOB_NAME",
        "MEM_BIND",
        "MEM_PER_CPU",
        "MEM_PER_GPU",
        "MEM_PER_NODE",
        "NETWORK",
        "NO_KILL",
        "NO_REQUEUE",
        "OPEN_MODE",
        "OUTPUT",
        "OVERCOMMIT",
        "PARTITION",
        "POWER",
        "PROFILE",
        "QOS",
        "REQ_SWITCH",
        "REQUEUE",
        "RESERVATION",
        "SIGNAL",
        "SPREAD_JOB",
        "THREAD_SPEC",
        "TIMELIMIT",
        "TRES_PER_TASK",
        "USE_MIN_NODES",
        "WAIT",
        "WAIT4SWITCH",
        "WAIT_ALL_NODES",
        "WCKEY",
    )
)
_SBATCH_UNSET = (
    *_SBATCH_OPTIONS,
    "SLURM_EXIT_ERROR",
    "SLURM_HINT",
    "SLURM_UMASK",
    "SLURM_EXPORT_ENV",
)

#: Fields: id, user, state; times of submission, (expected) start and end, time limit; partition,
#: account, nodes, reason; name, comment.
_ROW = SEPARATOR.join(
    ("%i", "%u", "%T", "%V", "%S", "%e", "%l", "%P", "%a", "%N", "%r", "%j", "%k")
)
ROW_FIELDS = _ROW.count(SEPARATOR) + 1
ACCOUNT_NAMES = (
    "JobID",
    "User",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "MaxRSS",
    "Partition",
    "Account",
    "NodeList",
    "Reason",
    "JobName",
    "Comment",
)
#: Fields of a query for usage alone; steps have a line each.
USAGE_NAMES = ("JobID", "UserCPU", "SystemCPU", "MaxRSS", "JobName")
#: Fields: partition; number of nodes, cores, memory, GPUs; availability. One line per kind of node.
_NODES = SEPARATOR.join(("%P", "%D", "%c", "%m", "%G", "%a"))
NODE_FIELDS = _NODES.count(SEPARATOR) + 1
#: Fields: partition, number of nodes, their state, the reason for it.
_NODE_STATES = SEPARATOR.join(("%P", "%D", "%T", "%E"))
NODE_STATE_FIELDS = _NODE_STATES.count(SEPARATOR) + 1


def _with_plain_output(unset: Sequence[str], *command: str) -> list[str]:
    """Prefix a command with an environment for unix seconds and English output, and without the
    variables in `unset`.
    """
    return [
        "env",
        *(word for name in unset for word in ("-u", name)),
        "SLURM_TIME_FORMAT=%s",
        "LC_ALL=C",
        *command,
    ]


def squeue(user: str | None, ids: Sequence[str] = ()) -> list[str]:
    """Return the command that queries all jobs of this user in slurmctld (or only these ids), ended
    jobs included.

    Slurm fails for a single unknown id (see `command_errors.unknown_job_error`). With several ids,
    it leaves the unknown ones out.
    """
    return [
        *_with_plain_output(
            _SQUEUE_UNSET, "squeue", "--noheader", "--array", "--states=all", f"--format={_ROW}"
        ),
        *_user(user),
        *([f"--jobs={','.join(ids)}"] if ids else []),
    ]


def sacct(user: str | None, ids: Sequence[str] = (), since: float | None = None) -> list[str]:
    """Query accounting: jobs with their steps, and every start of a requeued job.

    since: unix time; only jobs that existed after it. Without `since` and `ids`, sacct covers only
    the time since midnight. Without `ids`, sacct omits jobs that could never have started (held or
    dependent since submission), even when they are over.
    """
    return [
        *_sacct(ACCOUNT_NAMES),
        "--duplicates",
        *(_user(user) if user is not None else ["--allusers"]),
        *([f"--jobs={','.join(ids)}"] if ids else []),
        *([f"--starttime=uts{max(0, int(since))}"] if since is not None else []),
    ]


def sacct_usage(ids: Sequence[str]) -> list[str]:
    """Query accounting for processor time and memory: of the newest start of each job, with its
    steps.
    """
    return [*_sacct(USAGE_NAMES), "--allusers", f"--jobs={','.join(ids)}"]


def _sacct(names: Sequence[str]) -> list[str]:
    return [
        *_with_plain_output(
            _SACCT_UNSET,
            "sacct",
            "--noheader",
            "--parsable2",
            f"--delimiter={SEPARATOR}",
            "--noconvert",
        ),
        f"--format={','.join(names)}",
    ]


def _user(user: str | None) -> list[str]:
    return [] if user is None else [f"--user={user}"]


def submit(path: str, *, test_only: bool = False) -> list[str]:
    """Submit this script. Slurm prints the job id (see `output_parser.parse_submitted`).

    test_only: print only the expected start time.
    """
    return _with_plain_output(
        _SBATCH_UNSET, "sbatch", *(["--test-only"] if test_only else ["--parsable"]), path
    )


def cancel(
    job_id: str,
    step: str | None = None,
    signal: str | None = None,
    *,
    batch: bool = False,
    full: bool = False,
) -> list[str]:
    """Cancel a job or one step of a job. signal: send only this signal (`USR1`).

    full: signal the steps, the batch script and its children. Without `full`, Slurm signals the
    batch script and its children only with SIGKILL. batch: signal only the batch script and its
    children, no step.
    """
    to = job_id if step is None else f"{job_id}.{step}"
    more = [
        *([f"--signal={signal}"] if signal else []),
        *(["--batch"] if batch else []),
        *(["--full"] if full else []),
    ]
    return _with_plain_output((), "scancel", *more, to)


def enter(job_id: str, node: str, *, terminal: bool) -> list[str]:
    """Return the beginning of a command that runs on a node of a running job, beside its processes.

    node: "" for the first one. terminal: it gets a pseudo terminal there.
    """
    return [
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        "--ntasks=1",
        "--nodes=1",
        *([f"--nodelist={node}"] if node else []),
        "--pty" if terminal else "--unbuffered",
    ]


def show_job(job_id: str) -> list[str]:
    """Show one job. Without accounting, this is the only other source of an exit code, as long as
    slurmctld remembers the job.
    """
    return _with_plain_output((), "scontrol", "--oneliner", "show", "job", job_id)


def partitions() -> list[str]:
    return _with_plain_output((), "scontrol", "--oneliner", "show", "partition")


def nodes() -> list[str]:
    """List the partitions that this user may see, with the resources of their nodes."""
    return _with_plain_output(_SINFO_UNSET, "sinfo", "--noheader", "--exact", f"--format={_NODES}")


def node_states() -> list[str]:
    """List how many nodes of each partition are in which state, and why."""
    return _with_plain_output(
        _SINFO_UNSET, "sinfo", "--noheader", "--exact", f"--format={_NODE_STATES}"
    )


def associations(user: str) -> list[str]:
    return _with_plain_output(
        (),
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "associations",
        f"user={user}",
        "format=Cluster,Account,QOS",
    )


def slurm_version() -> list[str]:
    return _with_plain_output(_SINFO_UNSET, "sinfo", "--version")
