"""`heat`: the 2-D heat equation. A parallel model with frames. `__main__` is the program, `plugin`
the app's functions.
"""

from .plugin import app

__all__ = ["app"]
