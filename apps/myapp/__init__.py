"""`myapp`: a small example app, written as a user would write one. `growth_program` is the program
that a run executes.
"""

from .plugin import app

__all__ = ["app"]
