"""The part of a batch script that samples the usage of its task on the node, and the parser of its
file. Pure.

Slurm's own sampler can only be asked by `sstat`, which starts a request to each node of the job. The
script reads /proc instead, with awk, and appends a line to a file of the evidence; of GPUs it asks
`nvidia-smi`. On the other nodes of a job a step does the same, which shares the resources of the job.
"""

import re
from typing import NamedTuple

from .shell_quoting import quoted

#: In the evidence folder: a line for each sample.
USAGE_LOG = "usage.log"
#: The same for each node of a job on several: the number of the node from 0, and how many there are.
NODE_LOG = re.compile(r"usage\.([0-9]{1,4})\.([0-9]{1,4})\.log")
#: Jobs on more nodes are not sampled, because the agent reads a file for each.
MOST_NODES = 64
#: Name of the step. The first Slurm in which `srun --overlap` shares memory and GPUs is 21.08.
STEP_NAME, _LEAST_SLURM = "jobscribe-usage", 22
#: Pause between two samples, and after the first `_OFTEN` samples; a killed script is noticed, and a
#: sleep that outlives it ends, within `_STEP_SECS`.
EVERY_SECS, LATER_SECS = 10, 60
_OFTEN, _STEP_SECS = 60, 2
#: At most this much of the file is read: the file is the user's.
READ_BYTES = 16 * 1024
_LINE = re.compile(
    rb"([0-9]{1,12}) ([0-9]{1,12}\.[0-9]{2}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,7})"
    rb"(?: ([1-9][0-9]{0,3}) ([0-9]{1,7}) ([0-9]{1,9}))?\n"
)

#: Sums up the processes below the daemons of all steps of `job` on this node, because `srun` starts
#: steps beside the script; without such daemons, those below `root`. Those below `own`, the sampler,
#: and `other`, the `srun` of samplers, are left out. A name in /proc/PID/stat
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
    for (d = 0; d < 200 && (q in parent) && !(q in roots) && q != own && q != other; d++) q = parent[q]
    if (!(q in roots) || p == q) continue
    n++; c += cpu[p]; m += pages[p]; file = "/proc/" p "/io"
    while ((getline line < file) > 0) {
      if (line ~ /^read_bytes: [0-9]+$/) r += substr(line, 13)
      if (line ~ /^write_bytes: [0-9]+$/) w += substr(line, 14)
    }
    close(file)
  }
  if (n || root == "") printf "%.0f %.2f %.0f %.0f %.0f %.0f%s\n", at, c / ticks, m * page, r, w, n, gpus
}"""

#: Prints number, sum of use (percent) and used memory (MiB) of the GPUs that nvidia-smi lists.
_GPU_AWK = """
$1 ~ /^[0-9]+$/ && $2 ~ /^ *[0-9]+$/ { n++; u += $1; m += $2 }
END { if (n) printf " %.0f %.0f %.0f", n, u, m }"""

#: `usage FILE PID JOB OTHER`: sample the processes of all steps of the job on this node, or with ""
#: those below PID, until PID ends. With "" for PID: until the task has an exit code. Slurm sets
#: CUDA_VISIBLE_DEVICES: its numbers are those of nvidia-smi here, with and without constrained devices.
FUNCTION = (
    "gpus() {",
    "  case ${CUDA_VISIBLE_DEVICES-} in ''|*[!0-9,]*) return ;; esac",
    '  timeout 10 nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --query-gpu=utilization.gpu,memory.used'
    f" --format=csv,noheader,nounits | LC_ALL=C awk -F, '{_GPU_AWK}'",
    "}",
    "usage() {",
    "  # the warning signal of the job is for its processes",
    "  trap '' USR1",
    "  own=$(exec /bin/sh -c 'echo $PPID')",
    "  ticks=$(getconf CLK_TCK) || ticks=100",
    "  page=$(getconf PAGESIZE) || page=4096",
    f"  count=0; left={_STEP_SECS}",
    f'  while sleep {_STEP_SECS}; if [ "$2" ]; then kill -0 "$2"; else [ ! -e "${{1%/*}}/exit-code" ]; fi; do',
    f"    left=$((left - {_STEP_SECS})); [ $left -le 0 ] || continue",
    "    gpus=$(gpus)",
    '    cat /proc/[0-9]*/stat | LC_ALL=C awk -v root="$2" -v own="$own" -v job="$3" -v at="$(date +%s)"'
    f' -v ticks="$ticks" -v page="$page" -v other="$4" -v gpus="$gpus" \'{_AWK}\' >>"$1"',
    f"    count=$((count + 1)); left={EVERY_SECS}; [ $count -lt {_OFTEN} ] || left={LATER_SECS}",
    "  done",
    "}",
)


def start(folder: str, *, steps: bool) -> tuple[str, ...]:
    """Return lines that sample until this shell exits. folder: a quoted word. steps: all steps of the
    job, not only this shell's processes. The other nodes of the job are sampled by a step, if Slurm is
    not too old: an earlier `--overlap` holds memory or GPUs.
    """
    job = '"${SLURM_JOB_ID-}"' if steps else '""'
    return (
        'u=; v=; all_nodes="${SLURM_STEP_NUM_NODES:-${SLURM_JOB_NUM_NODES:-1}}"',
        # a new process may miss SIGTERM, before it has replaced the traps of its parent
        'trap \'[ -z "$v" ] || kill "$v" 2>/dev/null; [ -z "$u" ] || kill -KILL "$u" 2>/dev/null\' EXIT',
        f"usage_log={USAGE_LOG}",
        '[ "$all_nodes" -le 1 ] || {',
        '  usage_log="usage.0.$all_nodes.log"',
        # with `exec`: otherwise the shell keeps copies of the output open
        "  (exec </dev/null >/dev/null 2>&1; trap '' USR1; s=$(srun --version); s=${s#* }; "
        f'[ "$all_nodes" -le {MOST_NODES} ] && [ "${{s%%.*}}" -ge {_LEAST_SLURM} ] && '
        'exec srun --overlap --relative=1 --nodes="$((all_nodes - 1))" --ntasks="$((all_nodes - 1))"'
        " --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --cpu-bind=none --mpi=none --export=PATH"
        " --input=none --output=none --error=none --kill-on-bad-exit=0 --wait=0"
        f" --job-name={STEP_NAME} /bin/sh -c {_ON_NODES}"
        f' sh {folder} "$all_nodes" {job}) & v=$!',
        "}",
        f'(exec </dev/null >/dev/null 2>&1; usage {folder}/"$usage_log" "$$" {job} "$v") & u=$!',
    )


#: The script of the step on the other nodes. Arguments: folder, number of nodes, job.
_ON_NODES = quoted(
    "\n".join(
        (
            *FUNCTION,
            'usage "$1/usage.$((${SLURM_PROCID:-0} + 1)).$2.log" "" "$3" ""',
        )
    )
)


class Usage(NamedTuple):
    """A sample of a node. at: unix seconds. The others are since the start, or now: memory (bytes),
    number of processes, number of GPUs, the sum of their use (percent), their used memory (bytes).
    """

    at: float
    cpu_secs: float
    memory: int
    read: int
    written: int
    processes: int
    gpus: int = 0
    gpu_percents: float = 0.0
    gpu_memory: int = 0


def parse(content: bytes) -> list[Usage]:
    """Return the samples in a part of the file, oldest first. Other lines are ignored."""
    return [
        Usage(float(m[1]), float(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6]), *_gpus(m))
        for line in content.splitlines(keepends=True)
        if (m := _LINE.fullmatch(line)) is not None
    ]


def _gpus(m: re.Match[bytes]) -> tuple[int, float, int]:
    return (0, 0.0, 0) if m[7] is None else (int(m[7]), float(m[8]), int(m[9]) * 2**20)
