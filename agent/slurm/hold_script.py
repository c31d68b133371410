"""The part of a batch script that holds the allocation of a failed task for debugging. Pure."""

import math

from .script_markers import HELD, RELEASE

#: How the shell that may hold notes SIGTERM, from before the command on.
TERM = "trap ended=1 TERM"
#: Steps whose holds together look as often as one does, so that a node has no load of them.
_STEPS = 100
#: `hold FOLDER SECS PAUSE`: keep the allocation of a command that failed by itself. Not after SIGKILL,
#: because only Slurm knows whether memory ran out, and only at the end of the job; nor after a stop.
#: Ends 10 s before the job's time limit, so that the script's own exit is Slurm's last word. A new
#: list of the folder asks a network file system again, where a test of one name may be answered from
#: memory.
FUNCTION = (
    "ended=",
    "hold() {",
    '  c=; read -r c 2>/dev/null <"$1/exit-code"',
    '  case $c in ""|*[!0-9]*|0|137) return 0 ;; esac',
    '  [ -z "$ended" ] && [ ! -e "$1/stop.json" ] || return 0',
    "  until=$(($(date +%s) + $2))",
    '  limit=$(SLURM_TIME_FORMAT=%s scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null'
    " | sed -n 's/.* EndTime=\\([0-9]*\\).*/\\1/p')",
    '  case $limit in ""|*[!0-9]*) ;; *) limit=$((limit - 10)); [ "$limit" -ge "$until" ] || until=$limit ;; esac',
    '  [ "$(date +%s)" -lt "$until" ] || return 0',
    f'  {{ printf \'%s\\n\' "until $until" end >"$1/{HELD}.new" && sync "$1/{HELD}.new" && '
    f'mv "$1/{HELD}.new" "$1/{HELD}"; }} 2>/dev/null || return 0',
    '  while [ -z "$ended" ] && [ "$(date +%s)" -lt "$until" ]; do',
    f'    for f in "$1"/{RELEASE}*; do [ ! -e "$1/{RELEASE}" ] || return 0; done',
    '    sleep "$3" & wait $!',
    "  done",
    "}",
)


def call(folder: str, secs: float, steps: int = 1) -> str:
    """Return the call of the function. folder: a quoted word. steps: of the job, each with a hold of
    its own. The variable `c` keeps its value.
    """
    return f"code=$c; hold {folder} {math.ceil(secs)} {math.ceil(steps / _STEPS)}; c=$code"


def pass_on_term(count: int) -> str:
    """Tell the parts of this shell that hold the allocation of a failed task."""
    return f"trap 'kill {' '.join(f'$pid_{n}' for n in range(count))} 2>/dev/null' TERM"
