"""Classification of failed Slurm commands: Slurm refused the request for good, or Slurm was
unreachable. An outage is never an error of a job.
"""

import re

from ...protocol.ids import printable

#: Maximum length of Slurm's own message in a sentence (characters).
_WORDS = 600
_PREFIX = re.compile(
    r"^(?:sbatch|squeue|sacct|scontrol|sinfo|sacctmgr|scancel|slurm_\w+):? ?(?:error|fatal|warning)?: ?",
    re.IGNORECASE,
)
_BATCH_FAILED = re.compile(r"Batch job submission failed: ?|allocation failure: ?", re.IGNORECASE)

#: (pattern in Slurm's message, meaning) for refusals. The first match counts.
_REFUSED: tuple[tuple[str, str], ...] = (
    (
        r"invalid partition|partition .{0,80}(?:not valid|does not exist|invalid)",
        "the cluster has no such partition",
    ),
    (
        r"account.{0,20}partition combination|Invalid account|AccountNotAllowed",
        "this user may not charge this account there",
    ),
    (r"Invalid qos|QOS.{0,20}(?:not permitted|invalid)", "this user may not use this QOS there"),
    (
        r"MaxSubmitJob|SubmitJobs?Limit",
        "this user, account or QOS has reached its limit of queued jobs",
    ),
    (
        r"(?:Grp|Max).{0,20}(?:Minutes|RunMins)|insufficient (?:balance|hours|credit)",
        "the hours of the account or QOS are used up",
    ),
    (
        r"accounting/QOS policy|(?:Assoc|QOS)(?:Max|Grp|Min)",
        "the request exceeds a limit of the account or the QOS",
    ),
    (
        r"Requested time limit is invalid|time limit.{0,40}(?:exceed|invalid|too)",
        "the partition does not allow this time limit",
    ),
    (
        r"Memory (?:specification|required).{0,60}|--mem",
        "no node of the partition has enough memory",
    ),
    (
        r"More processors requested|CPU count.{0,60}|Unable to satisfy cpu",
        "no node of the partition has enough cores",
    ),
    (
        r"Node count specification invalid|node count",
        "the partition does not allow this number of nodes",
    ),
    (
        r"Invalid feature|feature specification|constraint",
        "no node has the requested features",
    ),
    (r"Invalid generic resource|gres|gpu", "no node of the partition has such GPUs"),
    (
        r"Invalid license|licen[sc]e",
        "the cluster does not have these licences, or not enough of them",
    ),
    (
        r"Requested (?:node|partition) configuration is not available",
        "no node of the partition satisfies the request",
    ),
    (
        r"(?:reservation).{0,60}(?:invalid|not|access)",
        "the reservation does not exist, or is not for this user",
    ),
    (
        r"unrecogni[sz]ed option|invalid option|Invalid argument|Invalid directive",
        "this Slurm does not know an option of its script",
    ),
    (
        r"(?:Access/permission|Permission) denied|User not found|Invalid user",
        "this user may not submit jobs there",
    ),
    (r"Job dependency", "its dependency does not exist"),
    (
        r"Pathname of a file.{0,40}too long|script.{0,40}(?:too large|exceeds)",
        "its script is larger than this Slurm allows",
    ),
)
#: (pattern in Slurm's message, meaning) for outages. It may be unknown whether Slurm got the
#: request.
_OUTAGE: tuple[tuple[str, str], ...] = (
    (
        r"Unable to contact slurm controller|Unable to establish control",
        "Slurm's controller cannot be reached",
    ),
    (
        r"Zero Bytes were transmitted|Socket timed out|Transport endpoint|Connection timed out|timed out on send",
        "Slurm's controller did not answer in time",
    ),
    (
        r"process configuration file|s_p_parse_file|establish (?:a )?configuration|Unable to determine this slurm",
        "Slurm's configuration cannot be read",
    ),
    (
        r"Slurm accounting storage is disabled|accounting storage is not",
        "Slurm keeps no accounting here",
    ),
    (
        r"slurmdbd|slurm_persist_conn_open|persistent connection|Problem (?:talking to|with) the database|Unable to connect to database",
        "Slurm's accounting cannot be reached",
    ),
    (
        r"munge|authentication (?:error|failure|credential)|Unspecified error.{0,10}auth|credential (?:expired|rewound|replayed)",
        "Slurm's authentication (munge) does not work",
    ),
    (
        r"Connection refused|Connection reset|No route to host|Network is unreachable|Name or service not known|connection failure",
        "Slurm cannot be reached",
    ),
    (
        r"temporarily unable to accept job|Resource temporarily unavailable|in (?:standby|backup) mode|is in the process of",
        "Slurm does not accept requests at the moment",
    ),
    (
        r"Cannot allocate memory|Too many open files|fork: |unable to fork",
        "this machine lacks resources for Slurm's programs (memory, files or processes)",
    ),
    (
        r"Incompatible versions|Protocol (?:version|authentication)|unsupported version",
        "Slurm's programs and its controller have incompatible versions",
    ),
    (
        r"command not found|env: .{0,20}(?:squeue|sacct|sbatch|scancel|scontrol|sinfo|sacctmgr).{0,20}No such file",
        "Slurm's programs were not found there",
    ),
)
_UNKNOWN_JOB = re.compile(
    r"Invalid job id specified|Invalid job id|Job/step already completing or completed",
    re.IGNORECASE,
)


def unknown_job_error(code: int, err: str) -> bool:
    """Return whether the command failed only because slurmctld knows none of the given job ids.
    Such a failure is an empty answer.
    """
    return code != 0 and _UNKNOWN_JOB.search(err) is not None


def outage(code: int, err: str) -> str | None:
    """Return a sentence if scheduler or accounting was unreachable. None: Slurm answered (code 0)
    or refused the request.

    Callers of squeue, sacct and other queries use `query_error` instead: for them every unknown
    failure is an outage. `submission_error` classifies failures of sbatch for which this function
    returns None.
    """
    if code == 0 or unknown_job_error(code, err):
        return None
    meaning = _first(_OUTAGE, err)
    if meaning is not None:
        return _sentence(meaning, err)
    if code in (-9, -15, 124, 126, 127, 137, 143):
        return _sentence(
            "Slurm's program was killed or timed out"
            if code not in (126, 127)
            else "Slurm's programs cannot be run there",
            err,
        )
    return None


def query_error(code: int, err: str) -> str | None:
    """Return a sentence if squeue, sacct, scontrol or sinfo gave no answer, for any reason. None:
    there is an answer.
    """
    if code == 0 or unknown_job_error(code, err):
        return None
    return outage(code, err) or _sentence(f"a query of Slurm failed (exit code {code})", err)


def submission_error(err: str) -> tuple[str, str]:
    """Return (fault, sentence) of a submission that Slurm did not accept. Nothing was submitted."""
    down = _first(_OUTAGE, err)
    meaning = _first(_REFUSED, err)
    if down is not None and meaning is None:
        return "schedulerUnreachable", _sentence(down, err)
    return "batchRefused", _sentence(
        f"Slurm refused the job: {meaning}" if meaning else "Slurm refused the job", err
    )


def _first(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next(
        (meaning for rule, meaning in table if re.search(rule, text[:20_000], re.IGNORECASE)), None
    )


def _sentence(meaning: str, err: str) -> str:
    words = slurm_message(err)
    return f"{meaning}; Slurm says: {words}" if words else meaning


def slurm_message(err: str) -> str:
    """Return the distinct lines of a command's error output on one line, without program names."""
    lines = []
    for line in err[:20_000].split("\n"):
        line = printable(_BATCH_FAILED.sub("", _PREFIX.sub("", line.strip()))).strip()
        if line and line not in lines:
            lines.append(line)
    text = "; ".join(lines)
    return text if len(text) <= _WORDS else text[: _WORDS - 3] + "..."
