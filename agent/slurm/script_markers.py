"""Marks that a batch script leaves beside the evidence, and the exit codes that are its own."""

from typing import NamedTuple

#: In the evidence folder: which start of which job of Slurm's has run the script. Made once, whole,
#: and never again.
STARTED = "started"
#: Of a gang: in the first folder, that the job as a whole has begun; in every folder, the code of
#: srun when that step was over.
GANG, OVER = "gang", "step-over"
#: In the first folder, while modules are loaded and set-up runs. Where it is left, they have taken
#: the place of what was to run.
SETUP = "setup"
#: What Slurm itself and the batch script print: not the run's own output.
BATCH_LOG = "batch.log"
BATCH_SCRIPT = "batch.sh"
#: Its fence had been passed before, by another job or an earlier start: nothing was run.
FENCED = 97
#: It could not make its mark, or not set up the environment: nothing was run.
NO_MARK, NO_SETUP = 96, 95


class Started(NamedTuple):
    """pid: of the batch script, or of the step's first process, on its host. step: of a task of a
    gang, whose node `nodes` is then.
    """

    job_id: str
    restart: int
    host: str
    pid: int
    at: float | None
    step: str = ""
    nodes: str = ""


def parse_started(text: str) -> Started | None:
    """What the mark says; None while it is not whole."""
    said = dict(line.partition(" ")[::2] for line in text.split("\n")[:20])
    if "end" not in said or not _digits(said.get("job", "")):
        return None
    return Started(
        said["job"],
        _number(said.get("restart", "")),
        said.get("host", "")[:256],
        _number(said.get("pid", "")),
        float(_number(said.get("at", ""))) or None,
        said.get("step", "")[:32],
        said.get("nodes", "")[:2048],
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
