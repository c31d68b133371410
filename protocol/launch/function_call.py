"""The packed call of a Python function: a variable of the run, and a file for its process.

Whoever starts the process writes the file, so that no environment has the arguments and the limit
of the kernel for a variable does not matter. Standard library only: keepers import it.
"""

from collections.abc import Mapping

#: The variable of the run with the call; the variable of the process with the path of the file; the
#: name of the file in the evidence. client/functions/runner.py, which ships with calls, reads them.
VARIABLE, PATH_VARIABLE, FILE = "FUNCTION_CALL", "FUNCTION_CALL_FILE", "function-call"


def with_path(env: Mapping[str, str], evidence: object) -> dict[str, str]:
    """Return the environment of the process: with the path of the file instead of the call."""
    if VARIABLE not in env:
        return dict(env)
    rest = {name: value for name, value in env.items() if name != VARIABLE}
    return {**rest, PATH_VARIABLE: f"{evidence}/{FILE}"}
