"""Modules beside these tests are imported by their names."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
