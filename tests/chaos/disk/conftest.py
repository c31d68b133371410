"""Sites as those of tests/integration, for disks that fail: what they need besides is in the modules
beside this one.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor_process import SupervisorProcess, ended


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """`make_site(*settings, **options)`: a fresh root that no supervisor has yet. At the end
    nothing that ran on it is left.
    """
    with ended() as sites:

        def make(*sets: str, **options: object) -> SupervisorProcess:
            sites.append(SupervisorProcess(sets, **options))  # type: ignore[arg-type]
            return sites[-1]

        yield make


@pytest.fixture
def image() -> Iterator[Path]:
    """An empty folder that is in memory where possible: what is synced there needs no disk."""
    memory = Path("/dev/shm")
    folder = Path(
        tempfile.mkdtemp(prefix="disk-", dir=memory if os.access(memory, os.W_OK) else None)
    )
    yield folder
    shutil.rmtree(folder)
