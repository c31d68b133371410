"""Start the recorder of `jobscribe_profiler` in a Python process of a job, then run the
`sitecustomize` that this file hides. Python 3.8 or later, standard library only.
"""

import contextlib
import os
import sys


def _run_hidden() -> None:
    """Import the next `sitecustomize` of the search path in place of this one, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.abspath(p or ".") for p in sys.path]
    behind = sys.path[paths.index(here) + 1 :] if here in paths else []
    spec = PathFinder.find_spec("sitecustomize", behind)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


with contextlib.suppress(Exception):  # a job must run without its profile, too
    import jobscribe_profiler  # type: ignore[import-not-found]

    jobscribe_profiler.install()
_run_hidden()
