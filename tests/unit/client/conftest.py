"""The fake supervisor as a fixture."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def _fake_module() -> Any:
    """The module beside this file, under a name of its own: tests are no package."""
    name = "jobscribe_fake_supervisor"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, Path(__file__).parent / "support" / "fake_supervisor.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Any]:
    supervisor = _fake_module().FakeSupervisor(tmp_path)
    yield supervisor
    supervisor.close()
