"""Lets the tests of this folder start real sites, as those in tests/integration do, and use the LAMMPS
plug-in where it lies.
"""

import sys

import pytest
from lammps_runs import PACKAGE

from jobscribe.apps.app import App


@pytest.fixture(scope="session")
def app() -> App:
    """The plug-in's; it is not installed, and leaves nothing beside its source."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(PACKAGE))
            import jobscribe_lammps
    finally:
        sys.dont_write_bytecode = before
    found: App = jobscribe_lammps.app
    return found
