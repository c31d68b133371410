"""Fixtures for sites on failing disks, like those of tests/integration."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor_process import SupervisorProcess, ended


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """Return `make_site(*settings, **options)`: a new root without a supervisor. At the end, stop
    everything that ran on it.
    """
    with ended() as sites:

        def make(*sets: str, **options: object) -> SupervisorProcess:
            sites.append(SupervisorProcess(sets, disk=True, **options))  # type: ignore[arg-type]
            return sites[-1]

        yield make


@pytest.fixture
def image() -> Iterator[Path]:
    """An empty folder, in memory if possible, so that syncs there need no disk."""
    memory = Path("/dev/shm")
    folder = Path(
        tempfile.mkdtemp(prefix="disk-", dir=memory if os.access(memory, os.W_OK) else None)
    )
    yield folder
    shutil.rmtree(folder)
