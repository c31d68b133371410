"""The fake Docker daemon for the tests of this folder, under its plain name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_docker import FakeDocker, fake_docker


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDocker]:
    """A daemon on a unix socket."""
    with fake_docker(tmp_path) as daemon:
        yield daemon
