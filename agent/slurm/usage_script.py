"""The part of a batch script that samples the usage of its task on the node, and the parser of its
file. Pure.

Slurm's own sampler can only be asked by `sstat`, which starts a request to each node of the job. The
script reads /proc instead, with awk, and appends a line to a file of the evidence.
"""

import re
from typing import NamedTuple

#: In the evidence folder: a line for each sample.
USAGE_LOG = "usage.log"
#: Pause between two samples, and after the first `_OFTEN` samples; a killed script is noticed, and a
#: sleep that outlives it ends, within `_STEP_SECS`.
EVERY_SECS, LATER_SECS = 10, 60
_OFTEN, _STEP_SECS = 60, 2
#: At most this much of the file is read: the file is the user's.
READ_BYTES = 16 * 1024
_LINE = re.compile(
    rb"([0-9]{1,12}) ([0-9]{1,12}\.[0-9]{2}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,7})\n"
)

#: Sums up the processes below the daemons of all steps of `job` on this node, because `srun` starts
#: steps beside the script; without such daemons, those below `root`. Those below `own`, the sampler,
#: are left out. A name in /proc/PID/stat
#: may have blanks and parentheses, so the fields begin after the last one. CPU time and traffic have
#: those of ended children. Resident memory counts shared pages for each process, as Slurm does.
_AWK = r"""
{ pid = $1 + 0; daemon = $0 ~ /^[0-9]+ \(slurmstepd\) /; if (!sub(/^[0-9]+ \(.*\) /, "") || NF < 22) next
  if (daemon && job) {
    file = "/proc/" pid "/cmdline"
    if ((getline line < file) > 0 && index(line, "slurmstepd: [" job ".") == 1) { roots[pid]; found = 1 }
    close(file)
  }
  parent[pid] = $2 + 0; cpu[pid] = $12 + $13 + $14 + $15; pages[pid] = $22 }
END {
  if (!found) roots[root]
  for (p in parent) {
    q = p
    for (d = 0; d < 200 && (q in parent) && !(q in roots) && q != own; d++) q = parent[q]
    if (!(q in roots) || p == q) continue
    n++; c += cpu[p]; m += pages[p]; file = "/proc/" p "/io"
    while ((getline line < file) > 0) {
      if (line ~ /^read_bytes: [0-9]+$/) r += substr(line, 13)
      if (line ~ /^write_bytes: [0-9]+$/) w += substr(line, 14)
    }
    close(file)
  }
  if (n) printf "%.0f %.2f %.0f %.0f %.0f %.0f\n", at, c / ticks, m * page, r, w, n
}"""

#: `usage FOLDER PID JOB`: sample the processes of all steps of the job on this node, or with "" those
#: below PID, until PID ends.
FUNCTION = (
    "usage() {",
    "  # the warning signal of the job is for its processes",
    "  trap '' USR1",
    "  own=$(exec /bin/sh -c 'echo $PPID')",
    "  ticks=$(getconf CLK_TCK) || ticks=100",
    "  page=$(getconf PAGESIZE) || page=4096",
    f"  count=0; left={_STEP_SECS}",
    f'  while sleep {_STEP_SECS}; kill -0 "$2"; do',
    f"    left=$((left - {_STEP_SECS})); [ $left -le 0 ] || continue",
    '    cat /proc/[0-9]*/stat | LC_ALL=C awk -v root="$2" -v own="$own" -v job="$3" -v at="$(date +%s)"'
    f' -v ticks="$ticks" -v page="$page" \'{_AWK}\' >>"$1/{USAGE_LOG}"',
    f"    count=$((count + 1)); left={EVERY_SECS}; [ $count -lt {_OFTEN} ] || left={LATER_SECS}",
    "  done",
    "}",
)


def start(folder: str, *, steps: bool) -> tuple[str, ...]:
    """Return lines that sample until this shell exits. folder: a quoted word. steps: all steps of the
    job on this node, not only this shell's processes. A job on several nodes is not sampled, because
    only one of them is visible here.
    """
    job = '"${SLURM_JOB_ID-}"' if steps else '""'
    return (
        "u=",
        f'[ "${{SLURM_STEP_NUM_NODES:-${{SLURM_JOB_NUM_NODES:-1}}}}" -gt 1 ] || '
        # with `exec`: otherwise the shell keeps copies of the output open
        f'{{ (exec </dev/null >/dev/null 2>&1; usage {folder} "$$" {job}) & u=$!; }}',
        # a new process may miss SIGTERM, before it has replaced the traps of its parent
        'trap \'[ -z "$u" ] || kill -KILL "$u" 2>/dev/null\' EXIT',
    )


class Usage(NamedTuple):
    """A sample. at: unix seconds. The others are since the start, or now: memory (bytes) and number of
    processes.
    """

    at: float
    cpu_secs: float
    memory: int
    read: int
    written: int
    processes: int


def parse(content: bytes) -> list[Usage]:
    """Return the samples in a part of the file, oldest first. Other lines are ignored."""
    return [
        Usage(float(m[1]), float(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6]))
        for line in content.splitlines(keepends=True)
        if (m := _LINE.fullmatch(line)) is not None
    ]
