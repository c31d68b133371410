"""Shared by the tests of agent/slurm: recorded Slurm texts, and their parsed rows."""

from pathlib import Path

from jobscribe.agent.slurm.output_parser import Account, Row, parse_sacct, parse_squeue

TEXTS = Path(__file__).parents[1] / "slurm" / "slurm_texts"
RECORDED = "22.05"
VERSIONS = sorted(d.name for d in TEXTS.iterdir())


def golden(name: str, version: str = RECORDED) -> str:
    """Return a recorded text without its first line, which names its source."""
    first, _, rest = (TEXTS / version / f"{name}.txt").read_bytes().decode().partition("\n")
    assert first.startswith((f"recorded {version}", f"constructed {version}")), first
    return rest


def failed(name: str, version: str = RECORDED) -> tuple[int, str]:
    """Return the exit code and error text of a recorded failure."""
    first, _, rest = golden(name, version).partition("\n")
    return int(first.removeprefix("exit code ")), rest


def pair(name: str, version: str = RECORDED) -> tuple[Row | None, Account | None]:
    """Return the first job of squeue_NAME and of sacct_NAME; None where a file is missing or empty."""
    rows = (
        parse_squeue(golden(f"squeue_{name}", version))
        if (TEXTS / version / f"squeue_{name}.txt").exists()
        else []
    )
    accounts = (
        parse_sacct(golden(f"sacct_{name}", version))
        if (TEXTS / version / f"sacct_{name}.txt").exists()
        else []
    )
    return next(iter(rows), None), next(iter(accounts), None)
