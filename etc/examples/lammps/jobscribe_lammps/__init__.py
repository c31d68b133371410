"""LAMMPS as a simulation type of jobscribe. From jobscribe it needs only the app contract,
`jobscribe.apps.app`.
"""

from .plugin import app

__all__ = ["app"]
