"""`heat`: the 2-D heat equation. A parallel model with frames; `__main__` is the program, `plugin`
all that the system asks of it.
"""

from .plugin import app

__all__ = ["app"]
