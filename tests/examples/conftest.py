"""Fixture for the LAMMPS plug-in's app, imported from its source folder."""

import sys

import pytest
from lammps_runs import PACKAGE

from jobscribe.apps.app import App


@pytest.fixture(scope="session")
def app() -> App:
    """Return the plug-in's app. The plug-in is not installed, and leaves no files beside its
    source.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(PACKAGE))
            import jobscribe_lammps
    finally:
        sys.dont_write_bytecode = before
    found: App = jobscribe_lammps.app
    return found
