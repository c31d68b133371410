"""What tests of agent/slurm share: the golden texts, and rows to judge."""

from pathlib import Path

from jobscribe.agent.slurm.output_parser import Account, Row, parse_sacct, parse_squeue

TEXTS = Path(__file__).parents[1] / "slurm" / "slurm_texts"
RECORDED = "22.05"
VERSIONS = sorted(d.name for d in TEXTS.iterdir())


def golden(name: str, version: str = RECORDED) -> str:
    """The text of a file, without the line that says where it is from."""
    first, _, rest = (TEXTS / version / f"{name}.txt").read_bytes().decode().partition("\n")
    assert first.startswith((f"recorded {version}", f"constructed {version}")), first
    return rest


def failed(name: str, version: str = RECORDED) -> tuple[int, str]:
    """(exit code, what was printed as an error) of a recorded failure."""
    first, _, rest = golden(name, version).partition("\n")
    return int(first.removeprefix("exit code ")), rest


def pair(name: str, version: str = RECORDED) -> tuple[Row | None, Account | None]:
    """The job of squeue_NAME and of sacct_NAME."""
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
