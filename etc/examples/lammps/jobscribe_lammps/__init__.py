"""LAMMPS as a simulation type of jobscribe. All it needs of jobscribe is the contract,
`jobscribe.apps.app`.
"""

from .plugin import app

__all__ = ["app"]
