"""The `#SBATCH` lines of a script. Every value is validated again here, so that it stays one value.

sbatch reads a line up to a `#`, removes quotes and backslashes, and splits at blanks. File name
patterns use `%`. An ambiguous value is refused, never repaired.
"""

import math
import re

import msgspec

from ...protocol.clusters.batch import BatchRequest, Directive
from ...protocol.errors import Refusal
from ...protocol.ids import printable

#: Values that need no quotes for sbatch.
_BARE = re.compile(r"[A-Za-z0-9_.,:|&()\[\]*=@/+-]*\Z")
#: Values that may stand between quotes: no end of line or quote, no escape of sbatch.
_QUOTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\"'`$\\]*\Z")
_OPTION = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")
_LONGEST = 4096
#: Options that jobscribe sets: a run may not use them, even if its cluster allows them. sbatch also
#: accepts abbreviated options.
OWN_OPTIONS = (
    "array",
    "batch",
    "bb",
    "bbf",
    "chdir",
    "clusters",
    "comment",
    "dependency",
    "error",
    "export",
    "export-file",
    "get-user-env",
    "gid",
    "help",
    "hold",
    "ignore-pbs",
    "input",
    "job-name",
    "kill-on-invalid-dep",
    "no-requeue",
    "open-mode",
    "output",
    "parsable",
    "quiet",
    "requeue",
    "script",
    "signal",
    "test-only",
    "time",
    "uid",
    "umask",
    "usage",
    "verbose",
    "version",
    "wait",
    "wrap",
)


def line(option: str, value: str | int | None = None) -> str:
    """Return one `#SBATCH` line. Raises Refusal("batchRefused") for an ambiguous value."""
    if _OPTION.match(option) is None:
        raise _refused("an option of sbatch", option)
    if value is None:
        return f"#SBATCH --{option}"
    text = str(value)
    if (
        len(text.encode("utf-8", "replace")) > _LONGEST
        or _QUOTABLE.match(text) is None
        or (text and not text.isprintable())
    ):
        raise _refused(f"a value of --{option}", text)
    return (
        f"#SBATCH --{option}={text}"
        if text and _BARE.match(text)
        else f'#SBATCH --{option}="{text}"'
    )


def _refused(noun: str, text: str) -> Refusal:
    shown = printable(text)
    return Refusal(
        "batchRefused",
        f"{noun} cannot be written into a batch script: {shown if len(shown) <= 80 else shown[:77] + '...'!r}",
    )


def file_name(path: str) -> str:
    """Escape a path for --output, where `%` starts a pattern. Raises Refusal."""
    if not path.startswith("/") or "\n" in path:
        raise _refused("the path of its log", path)
    return path.replace("%", "%%")


def validate_request(request: BatchRequest) -> BatchRequest:
    """Validate a request against its message type. Raises Refusal: the caller may have built it
    without validation.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(request), BatchRequest)
    except (msgspec.ValidationError, TypeError, ValueError, UnicodeError) as e:
        allows = printable(str(e))[:300]
        raise Refusal(
            "batchRefused",
            f"the run's batch request cannot be written into a batch script: {allows}",
        ) from None


def request_lines(
    request: BatchRequest,
    *,
    allowed: tuple[Directive, ...],
    time_limit_secs: float | None,
    least_tasks: int = 0,
    least_cores: int = 0,
) -> list[str]:
    """Return the lines for a run's request. least_tasks, least_cores: defaults for a gang without
    its own number of processes and cores.
    """
    tasks = request.tasks if request.tasks is not None else least_tasks or None
    cores = request.cores if request.cores is not None else least_cores or None
    pairs: list[tuple[str, str | int | None]] = [
        ("partition", request.partition),
        ("account", request.account),
        ("qos", request.qos),
        ("constraint", request.constraint),
        ("licenses", request.licenses),
        ("nodes", request.nodes),
        ("ntasks", tasks),
        ("ntasks-per-node", request.tasks_per_node),
        ("cpus-per-task", cores),
        ("mem", f"{request.memory_mb}M" if request.memory_mb is not None else None),
        ("gres", f"gpu:{request.gpus}" if request.gpus else None),
        ("time", minutes(time_limit_secs)),
        ("signal", f"B:USR1@{request.signal_secs}" if request.signal_secs is not None else None),
    ]
    return [line(option, value) for option, value in pairs if value is not None] + [
        _directive(d, allowed) for d in request.directives
    ]


def minutes(secs: float | None) -> int | None:
    """Convert seconds to Slurm's minutes, rounded up. Raises Refusal."""
    if secs is None:
        return None
    if not math.isfinite(secs) or secs <= 0:
        raise Refusal("batchRefused", "the time limit must be a positive number of seconds")
    return max(1, math.ceil(secs / 60))


def _directive(text: str, allowed: tuple[Directive, ...]) -> str:
    option, equals, value = text.partition("=")
    names = {a.partition("=")[0] for a in allowed}
    if option not in names or any(ours.startswith(option) for ours in OWN_OPTIONS):
        allows = f"it allows {', '.join(sorted(names))}" if names else "it allows none"
        raise Refusal(
            "batchRefused",
            f"the cluster does not allow the sbatch option {printable(option)[:64]!r}; {allows}",
        )
    return line(option, value if equals else None)
