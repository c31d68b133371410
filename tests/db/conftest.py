"""Lets the tests of this folder import what they share (`db_histories`, `db_stores`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
