"""The command line of the program for stacks and profiles. Pure, except that it reads the program's
modules once.
"""

import base64
import functools
import json
import sys
import zlib
from pathlib import Path

from ...protocol.ids import Token
from ...protocol.jobs.inspection import Program

#: Modules of the program, after those that they import.
_MODULES = ("processes", "output", "tools", "stacks", "recording", "main")
#: Makes a package of the modules and calls its entry.
_LOAD = """\
import base64, json, sys, types, zlib
p = "jobscribe_inspection"
m = sys.modules[p] = types.ModuleType(p)
m.__path__ = []
for n, s in json.loads(zlib.decompress(base64.b64decode(sys.argv[1]))):
    m = sys.modules[p + "." + n] = types.ModuleType(p + "." + n)
    m.__package__ = p
    exec(compile(s, n + ".py", "exec"), m.__dict__)
sys.exit(m.main(sys.argv[2]))
"""
#: Finds a Python: this one, on the PATH, or that of a process of the same user.
_FIND = """\
load=$1 code=$2 options=$3; shift 3; exec 3>&2
for p in "$@" python3 python /proc/[0-9]*/exe; do
  case $p in /proc/*) p=$(readlink "$p"); case ${p##*/} in python*) ;; *) continue ;; esac ;; esac
  "$p" -I -c 'import sys; sys.exit(sys.version_info < (3, 8))' || continue
  exec "$p" -I -c "$load" "$code" "$options" 2>&3 3>&-
done 2>/dev/null
echo "jobscribe: there is no Python 3.8 or later where the task runs" >&2
exit 127
"""
#: Exit code without a Python.
NO_PYTHON = 127


def command_line(program: Program, token: Token, *, here: bool) -> list[str]:
    """Return the command line. here: it may run with the Python of this process."""
    options = {
        "token": str(token),
        "name": program.name,
        "native": program.native,
        "secs": program.secs,
        "rate": program.rate,
    }
    pythons = [sys.executable] if here and sys.executable else []
    return ["/bin/sh", "-c", _FIND, "sh", _LOAD, _code(), json.dumps(options), *pythons]


@functools.cache
def _code() -> str:
    folder = Path(__file__).parent / "program"
    modules = [(name, (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES]
    return base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode("ascii")
