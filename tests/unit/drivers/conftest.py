"""The fake Docker daemon as the fixture `fake`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_docker import FakeDocker, fake_docker


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDocker]:
    """Yield a fake daemon on a unix socket."""
    with fake_docker(tmp_path) as daemon:
        yield daemon
