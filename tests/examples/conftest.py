"""Lets the tests of this folder start real sites, as those in tests/system do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
