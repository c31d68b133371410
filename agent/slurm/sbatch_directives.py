"""The `#SBATCH` lines of a script. Every value is looked at once more here, whoever has looked at
it before: it stays one value.

sbatch reads a line up to a `#`, takes quotes and backslashes away, and splits at blanks; patterns
of file names have `%`. What could be read as anything else is refused, never mended.
"""

import math
import re

import msgspec

from ...protocol.clusters.batch import BatchRequest, Directive
from ...protocol.errors import Refusal
from ...protocol.ids import printable

#: What needs no quotes for sbatch.
_BARE = re.compile(r"[A-Za-z0-9_.,:|&()\[\]*=@/+-]*\Z")
#: What may stand between quotes: nothing that ends a line or the quotes, nothing that sbatch reads
#: as an escape.
_QUOTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\"'`$\\]*\Z")
_OPTION = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")
_LONGEST = 4096
#: Options that are ours: a run may not ask for them, whatever its cluster allows. Slurm takes an
#: option by its first letters, too.
OURS = (
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
    """One `#SBATCH` line. Raises Refusal("batchRefused") for a value that could be read as anything
    else.
    """
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


def _refused(what: str, text: str) -> Refusal:
    shown = printable(text)
    return Refusal(
        "batchRefused",
        f"{what} cannot be written into a batch script: {shown if len(shown) <= 80 else shown[:77] + '...'!r}",
    )


def file_name(path: str) -> str:
    """A path for --output, in which `%` means itself. Raises Refusal."""
    if not path.startswith("/") or "\n" in path:
        raise _refused("the path of its log", path)
    return path.replace("%", "%%")


def checked(wishes: BatchRequest) -> BatchRequest:
    """The same, by the shapes that messages have. Raises Refusal: whoever made it may have gone
    round them.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(wishes), BatchRequest)
    except (msgspec.ValidationError, TypeError, ValueError, UnicodeError) as e:
        told = printable(str(e))[:300]
        raise Refusal(
            "batchRefused",
            f"what the run asks of its cluster cannot be written into a batch script: {told}",
        ) from None


def of_wishes(
    wishes: BatchRequest,
    *,
    allowed: tuple[Directive, ...],
    time_limit_secs: float | None,
    least_tasks: int = 0,
    least_cores: int = 0,
) -> list[str]:
    """What the run asks for. least_tasks, least_cores: of a gang that does not say itself how many
    processes it has, and how large.
    """
    tasks = wishes.tasks if wishes.tasks is not None else least_tasks or None
    cores = wishes.cores if wishes.cores is not None else least_cores or None
    pairs: list[tuple[str, str | int | None]] = [
        ("partition", wishes.partition),
        ("account", wishes.account),
        ("qos", wishes.qos),
        ("constraint", wishes.constraint),
        ("licenses", wishes.licenses),
        ("nodes", wishes.nodes),
        ("ntasks", tasks),
        ("ntasks-per-node", wishes.tasks_per_node),
        ("cpus-per-task", cores),
        ("mem", f"{wishes.memory_mb}M" if wishes.memory_mb is not None else None),
        ("gres", f"gpu:{wishes.gpus}" if wishes.gpus else None),
        ("time", minutes(time_limit_secs)),
        ("signal", f"B:USR1@{wishes.signal_secs}" if wishes.signal_secs is not None else None),
    ]
    return [line(option, value) for option, value in pairs if value is not None] + [
        _directive(d, allowed) for d in wishes.directives
    ]


def minutes(secs: float | None) -> int | None:
    """Slurm counts in minutes; never less than was asked for."""
    if secs is None:
        return None
    if not math.isfinite(secs) or secs <= 0:
        raise Refusal("batchRefused", "the time limit must be a positive number of seconds")
    return max(1, math.ceil(secs / 60))


def _directive(text: str, allowed: tuple[Directive, ...]) -> str:
    option, equals, value = text.partition("=")
    names = {a.partition("=")[0] for a in allowed}
    if option not in names or any(ours.startswith(option) for ours in OURS):
        told = f"it allows {', '.join(sorted(names))}" if names else "it allows none"
        raise Refusal(
            "batchRefused",
            f"the cluster does not let runs use the option {printable(option)[:64]!r} of sbatch; {told}",
        )
    return line(option, value if equals else None)
