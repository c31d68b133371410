"""Fixture for the fake supervisor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_supervisor import FakeSupervisor


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Any]:
    supervisor = FakeSupervisor(tmp_path)
    yield supervisor
    supervisor.close()
