"""The command lines that Slurm is asked with, in formats of our own, whatever the user's login
profile has set.

Times are asked for as unix seconds. Fields are separated by a character that nobody types, and what
users choose (names, comments) comes last, so that no name can move another field.
"""

from collections.abc import Sequence

#: Between two fields of a line. sacct takes it as its delimiter, squeue and sinfo as part of their
#: format.
SEPARATOR = "\x1f"
#: Variables of a login profile by which these programs would show less, or something else.
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
#: They would win over what stands in the script.
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

#: Id, user, state; submitted, started or expected, over, limit; partition, account, nodes, reason;
#: name, comment.
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
#: Partition; how many nodes, cores, memory, GPUs; is it up: a line per kind of node.
_NODES = SEPARATOR.join(("%P", "%D", "%c", "%m", "%G", "%a"))
NODE_FIELDS = _NODES.count(SEPARATOR) + 1


def _plain(unset: Sequence[str], *command: str) -> list[str]:
    """With unix seconds, in English, and without these variables."""
    return [
        "env",
        *(word for name in unset for word in ("-u", name)),
        "SLURM_TIME_FORMAT=%s",
        "LC_ALL=C",
        *command,
    ]


def squeue(user: str | None, ids: Sequence[str] = ()) -> list[str]:
    """All jobs that slurmctld knows of this user (of these ids, where there are any), the ended
    ones too.

    One id alone that it does not know is an error to Slurm (see refusals.unknown_job); of several,
    the unknown ones are left out.
    """
    return [
        *_plain(
            _SQUEUE_UNSET, "squeue", "--noheader", "--array", "--states=all", f"--format={_ROW}"
        ),
        *_user(user),
        *([f"--jobs={','.join(ids)}"] if ids else []),
    ]


def sacct(user: str | None, ids: Sequence[str] = (), since: float | None = None) -> list[str]:
    """What the accounting has: jobs with their steps, and every start of a job that was started
    again.

    since: of jobs that were there after this moment; without it and without ids sacct goes back to
    midnight only. Without ids it leaves out what could never have started (held back from its first
    moment, waiting for another job), also when that is over.
    """
    return [
        *_plain(
            _SACCT_UNSET,
            "sacct",
            "--noheader",
            "--parsable2",
            f"--delimiter={SEPARATOR}",
            "--duplicates",
            "--noconvert",
        ),
        f"--format={','.join(ACCOUNT_NAMES)}",
        *(_user(user) if user is not None else ["--allusers"]),
        *([f"--jobs={','.join(ids)}"] if ids else []),
        *([f"--starttime=uts{max(0, int(since))}"] if since is not None else []),
    ]


def _user(user: str | None) -> list[str]:
    return [] if user is None else [f"--user={user}"]


def submit(path: str, *, test_only: bool = False) -> list[str]:
    """Hand this script to Slurm; its id comes back (see text.parse_submitted). test_only: it only
    says when it would start.
    """
    return _plain(
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
    """End a job, or one step of it. signal: send only this (`USR1`).

    full: to the steps, the batch script and what it has started; without it Slurm leaves these out,
    until it kills. batch: to the batch script and what it has started, and to no step.
    """
    to = job_id if step is None else f"{job_id}.{step}"
    more = [
        *([f"--signal={signal}"] if signal else []),
        *(["--batch"] if batch else []),
        *(["--full"] if full else []),
    ]
    return _plain((), "scancel", *more, to)


def show_job(job_id: str) -> list[str]:
    """Where there is no accounting: the one other place that has a job's exit code, as long as
    slurmctld remembers it.
    """
    return _plain((), "scontrol", "--oneliner", "show", "job", job_id)


def partitions() -> list[str]:
    return _plain((), "scontrol", "--oneliner", "show", "partition")


def nodes() -> list[str]:
    """Partitions that this user may see, with what their nodes have."""
    return _plain(_SINFO_UNSET, "sinfo", "--noheader", "--exact", f"--format={_NODES}")


def associations(user: str) -> list[str]:
    return _plain(
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
    return _plain(_SINFO_UNSET, "sinfo", "--version")
