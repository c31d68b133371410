"""Files that a batch script leaves beside the evidence, and the exit codes that it uses itself."""

from typing import NamedTuple

#: In the evidence folder: the start of the Slurm job that has run the script. Created once,
#: complete and never changed.
STARTED = "started"
#: For gangs. GANG: in the first folder, the whole job has begun. OVER: in every folder, srun's exit
#: code once the step is over.
GANG, OVER = "gang", "step-over"
#: In the first folder while modules load and set-up runs. If the file remains, modules or set-up
#: replaced the command.
SETUP = "setup"
#: In the evidence folder. HELD: the command failed, and the batch script keeps the allocation for
#: debugging. RELEASE: written by the agent, ends that.
HELD, RELEASE = "held", "release"
#: Output of Slurm and of the batch script, not of the run.
BATCH_LOG = "batch.log"
BATCH_SCRIPT = "batch.sh"
#: Exit code: another job or an earlier start took the fence. Nothing was run.
FENCED = 97
#: Exit codes: the mark could not be created, or the set-up failed. Nothing was run.
NO_MARK, NO_SETUP = 96, 95


class Started(NamedTuple):
    """Content of a mark. pid: of the batch script, or of the step's first process, on `host`. step:
    for a gang's task; `nodes` is then its node.
    """

    job_id: str
    restart: int
    host: str
    pid: int
    at: float | None
    step: str = ""
    nodes: str = ""


def parse_held(text: str) -> float | None:
    """Return until when the allocation is held (unix seconds), or None for another text."""
    pairs = dict(line.partition(" ")[::2] for line in text.split("\n")[:5])
    return float(_number(pairs.get("until", ""))) or None if "end" in pairs else None


def parse_started(text: str) -> Started | None:
    """Parse a mark. None while it is incomplete."""
    pairs = dict(line.partition(" ")[::2] for line in text.split("\n")[:20])
    if "end" not in pairs or not _digits(pairs.get("job", "")):
        return None
    return Started(
        pairs["job"],
        _number(pairs.get("restart", "")),
        pairs.get("host", "")[:256],
        _number(pairs.get("pid", "")),
        float(_number(pairs.get("at", ""))) or None,
        pairs.get("step", "")[:32],
        pairs.get("nodes", "")[:2048],
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
