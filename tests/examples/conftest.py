"""Lets the tests of this folder start real sites, as those in tests/system do, and use the LAMMPS
plug-in where it lies.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
sys.path.insert(0, str(Path(__file__).parent))

from lammps_runs import PACKAGE

from jobscribe.apps.app import App


@pytest.fixture(scope="session")
def app() -> App:
    """The plug-in's; it is not installed, and leaves nothing beside its source."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(PACKAGE))
    try:
        import jobscribe_lammps
    finally:
        sys.path.remove(str(PACKAGE))
        sys.dont_write_bytecode = before
    found: App = jobscribe_lammps.app
    return found
