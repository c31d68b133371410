"""The script for sbatch. On a node, no other jobscribe code runs before the command's own script.

The script first creates the mark of its token, which is possible only once: a second job of the
token, or a second start of the job, exits with FENCED and runs nothing. Then it loads modules, runs
the set-up, and runs `script.sh` as a keeper would: stdout.log, stderr.log and the shell's own
messages are beside it. The tasks of a gang are steps of one job.

If the run asks for a debug hold, the script of a failed command keeps the allocation: it leaves the
mark `held` and waits for the file `release`, the deadline, or SIGTERM (`hold_script`).

The command gets the node's environment (login, modules, set-up), not the environment of the login
node. In scripts and job files of a gang, `@<role>-<index>@` becomes the address of that task's
node.
"""

import re

import msgspec

from ...protocol.clusters.batch import BatchRequest
from ...protocol.clusters.cluster import Cluster
from ...protocol.errors import Refusal
from ...protocol.ids import Token
from ...protocol.launch.job_script import CORE_MARKER
from . import hold_script, sbatch_directives, usage_script
from .output_parser import Account, Row
from .script_markers import (
    BATCH_LOG,
    FENCED,
    GANG,
    NO_MARK,
    NO_SETUP,
    OVER,
    SETUP,
    STARTED,
)
from .shell_quoting import quoted

#: Prefix of the comments of jobscribe's jobs.
COMMENT = "jobscribe"
_DEPLOYMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One task. folder: its evidence, with its script.sh. job_file: a second file whose addresses
    are filled in.
    """

    token: Token
    folder: str
    cores: int = 1
    gpus: int = 0
    job_file: str | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: an execution, or the gang of an attempt. request: the request with the
    cluster's defaults applied. debug_secs: how long the allocation of a failed task is held.
    core_bytes: limit of core files; 0 without them.
    """

    steps: tuple[Step, ...]
    request: BatchRequest
    cluster: Cluster
    deployment: str
    time_limit_secs: float | None = None
    debug_secs: float | None = None
    core_bytes: int = 0

    @property
    def token(self) -> Token:
        """Return the token in the job's name and comment."""
        return self.steps[0].token

    @property
    def is_gang(self) -> bool:
        """Return whether addresses are filled in. A gang of one task needs them as well."""
        return len(self.steps) > 1 or self.steps[0].job_file is not None

    @property
    def log(self) -> str:
        """Return the path of Slurm's output file. For several steps, it is beside the first one's
        evidence.
        """
        return f"{self.steps[0].folder}/{BATCH_LOG}"


def job_name(token: Token) -> str:
    """Return the job's name, unique per attempt, for an accounting without comments. At most 110
    characters.
    """
    return f"js-{token.jid}-{token.serial}-{token.attempt}"


def comment(deployment: str, token: Token) -> str:
    """Return the comment by which a job is found again if its id was never recorded."""
    return f"{COMMENT} {deployment} {token}"


def matches_token(row: Row | Account, deployment: str, token: Token) -> bool:
    """Return whether this job was submitted for this token. Uses the name if accounting keeps no
    comments (AccountingStoreFlags).
    """
    return row.comment == comment(deployment, token) if row.comment else row.name == job_name(token)


def batch_script(submission: Submission) -> str:
    """Return the text of the script. Raises Refusal("batchRefused") for a value that cannot be
    written into it.
    """
    if not submission.steps:
        raise Refusal("batchRefused", "the submission has no tasks")
    request = sbatch_directives.validate_request(submission.request)
    _check(submission)
    gang = submission.is_gang
    lines = [
        "#!/bin/sh",
        *_header(submission, request, gang=gang),
        ":",
        "umask 0077",
        "# so that srun passes on the environment and knows the number of cores per process",
        "unset SLURM_EXPORT_ENV",
        '[ -z "${SLURM_CPUS_PER_TASK-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        f"first={quoted(submission.steps[0].folder)}",
        "# the mark consumes the token: it is complete and created only once",
        *_MARK,
        f'mark "$first" {GANG if gang else STARTED}',
        "trap : TERM HUP",
        *_setup(submission.cluster.setup, request, submission.steps),
        *(() if submission.debug_secs is None else hold_script.FUNCTION),
        *(() if gang else (*usage_script.FUNCTION, *usage_script.start('"$first"', steps=True))),
        *(
            _gang(submission.steps, request, submission.debug_secs)
            if gang
            else (
                *_core_markers(request, submission.core_bytes),
                *_single(request, submission.debug_secs),
            )
        ),
    ]
    text = "\n".join(lines) + "\n"
    if "\0" in text:
        raise Refusal("batchRefused", "a NUL character cannot be part of a batch script")
    return text


def _check(submission: Submission) -> None:
    if _DEPLOYMENT.match(submission.deployment) is None:
        raise Refusal(
            "batchRefused", "the name of the deployment cannot be written into a batch script"
        )
    for step in submission.steps:
        _token(step.token)
        for path in (step.folder, step.job_file):
            if path is not None and (
                not path.startswith("/") or re.search(r"[\x00-\x1f\x7f]", path)
            ):
                raise Refusal(
                    "batchRefused", "a path of its evidence cannot be written into a batch script"
                )
        if not 0 <= step.gpus <= 1_000 or not 1 <= step.cores <= 1_000_000:
            raise Refusal(
                "batchRefused", f"{step.token} cannot have {step.cores} cores and {step.gpus} GPUs"
            )


def _token(token: Token) -> None:
    try:
        msgspec.convert(msgspec.to_builtins(token), Token)
    except (msgspec.ValidationError, TypeError, UnicodeError):
        raise Refusal(
            "batchRefused", "the token of its execution cannot be written into a batch script"
        ) from None


def _header(submission: Submission, request: BatchRequest, *, gang: bool) -> list[str]:
    steps = submission.steps
    return [
        sbatch_directives.line("job-name", job_name(submission.token)),
        sbatch_directives.line("comment", comment(submission.deployment, submission.token)),
        sbatch_directives.line("output", sbatch_directives.file_name(submission.log)),
        sbatch_directives.line("open-mode", "append"),
        sbatch_directives.line("chdir", "/"),
        sbatch_directives.line("export", "NONE"),
        sbatch_directives.line("no-requeue"),
        *sbatch_directives.request_lines(
            request,
            allowed=submission.cluster.directives,
            time_limit_secs=submission.time_limit_secs,
            least_tasks=len(steps) if gang else 0,
            least_cores=max(s.cores for s in steps) if gang else 0,
        ),
    ]


#: `mark FOLDER NAME [STEP]`: the file is complete before it gets its name, so that readers see only
#: complete files. Without hard links it is created exclusively and then filled. The `-ef` test
#: recognises the script's own mark if a network file system lost the answer to its creation.
_MARK = (
    "mark() {",
    '  mine="$1/$2.${SLURM_JOB_ID:-0}.${SLURM_RESTART_COUNT:-0}.$$"',
    '  { printf \'%s\\n\' "job ${SLURM_JOB_ID:-0}" "restart ${SLURM_RESTART_COUNT:-0}" "host $(hostname)" "pid $$" '
    '"at $(date +%s)" "step ${3-}" "nodes ${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST-}}" "end" >"$mine"; } || exit '
    + str(NO_MARK),
    '  if ln "$mine" "$1/$2" 2>/dev/null || [ "$mine" -ef "$1/$2" ]; then rm -f "$mine"; return 0; fi',
    '  if [ ! -e "$1/$2" ] && [ ! -h "$1/$2" ] && ( set -C; cat "$mine" >"$1/$2" ) 2>/dev/null; then rm -f "$mine"; return 0; fi',
    '  rm -f "$mine"',
    '  [ -e "$1/$2" ] || [ -h "$1/$2" ] || { echo "jobscribe: cannot create a mark in $1" >&2; exit '
    + str(NO_MARK)
    + "; }",
    '  echo "jobscribe: this was started before; nothing is run again" >&2',
    f"  exit {FENCED}",
    "}",
)
#: Init files that define `module` if the login does not.
_MODULES = (
    '"${LMOD_PKG:-/nonexistent}/init/sh"',
    '"${MODULESHOME:-/nonexistent}/init/sh"',
    "/etc/profile.d/modules.sh",
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/z00_lmod.sh",
    "/usr/share/lmod/lmod/init/sh",
    "/usr/share/modules/init/sh",
)
_READ = '  [ ! -r "$f" ] || { . "$f"; break; }'
_NO_MODULE = "jobscribe: this module cannot be loaded"


def _setup(cluster_setup: str, request: BatchRequest, steps: tuple[Step, ...]) -> list[str]:
    """Load modules and run set-up in this shell, so that the command sees their exports. Their
    output goes to stderr.log.

    Set-up lines are arguments of `eval`: an open quote in them ends only them.
    """
    if not cluster_setup.strip() and not request.modules and not request.setup.strip():
        return []
    folders = " ".join(quoted(s.folder) for s in steps)
    lines = [
        "# modules and set-up; if they end this shell, the command is not run",
        f'early() {{ c=$?; for f in {folders}; do echo "$c" >"$f/exit-code"; '
        'echo "jobscribe: the set-up on the node ended with $c" >>"$f/stderr.log"; done; exit "$c"; }',
        "trap early EXIT",
        f': >"$first/{SETUP}"',
        'exec 8>&1 9>&2 >>"$first/stderr.log" 2>&1',
    ]
    if cluster_setup.strip():
        lines.append(f"eval {quoted(cluster_setup)}")
    if request.modules:
        lines += [
            f"if ! command -v module >/dev/null 2>&1; then for f in {' '.join(_MODULES)}; do",
            _READ,
            "done; fi",
        ]
        lines += [
            f"module load {quoted(m)} || {{ echo {quoted(f'{_NO_MODULE}: {m}')}; exit {NO_SETUP}; }}"
            for m in request.modules
        ]
    if request.setup.strip():
        lines.append(f"eval {quoted(request.setup)}")
    return [
        *lines,
        "exec 1>&8 2>&9 8>&- 9>&-",
        f'rm -f "$first/{SETUP}"',
        "trap - EXIT",
        "trap : TERM HUP",
    ]


#: Output files as a keeper lays them out. The shell's own messages, which name a signal, are
#: separate.
_RUN_SCRIPT = (
    '/bin/sh "$1/script.sh" </dev/null >>"$1/stdout.log" 2>>"$1/signal" 3>>"$1/stderr.log"'
)


#: Each node records where its kernel puts core files: a process may crash on any of them.
_CORE_MARKER = f"""\
{{ IFS= read -r p </proc/sys/kernel/core_pattern; read -r u </proc/sys/kernel/core_uses_pid; }} 2>/dev/null
printf "%s\\n" "$2" "$(ulimit -H -c)" "${{u:-0}}" "${{p-}}" >"$1/{CORE_MARKER}.${{SLURMD_NODENAME:-$(hostname)}}"
"""
_CORE_MARKER_SECS = 20


def _core_markers(request: BatchRequest, core_bytes: int) -> list[str]:
    if not core_bytes:
        return []
    gres = " --gres=none" if request.gpus else ""
    return [
        'if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] 2>/dev/null; then',
        f'timeout {_CORE_MARKER_SECS} srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES"'
        f" --ntasks-per-node=1 --cpus-per-task=1 --mem=0{gres} --input=none --output=none --error=none"
        f' --job-name=core-pattern /bin/sh -c {quoted(_CORE_MARKER)} sh "$first" {core_bytes} >/dev/null 2>&1',
        "fi",
    ]


def _single(request: BatchRequest, debug_secs: float | None) -> list[str]:
    run = _RUN_SCRIPT.replace("$1", "$first")
    held = (
        []
        if debug_secs is None
        else [
            "trap : USR1",
            hold_script.call('"$first"', debug_secs),
        ]
    )
    if request.signal_secs is None and debug_secs is None:
        return ["cd /", run, "exit $?"]
    if request.signal_secs is None:
        return ["cd /", hold_script.TERM, run, "c=$?", *held, 'exit "$c"']
    return [
        "cd /",
        *([] if debug_secs is None else [hold_script.TERM]),
        "# in its own process group, if the shell can: all of it gets the signal before the time limit",
        "ring() {",
        '  kill -s USR1 -- "-$p" 2>/dev/null && return',
        "  trap '' USR1; kill -s USR1 0; trap ring USR1",
        "}",
        "trap : USR1",
        "set -m 2>/dev/null",
        f"{run} &",
        "p=$!",
        "trap ring USR1",
        *_wait('"$p"'),
        _code("$first"),
        *held,
        'exit "$c"',
    ]


def _wait(pid: str) -> list[str]:
    """Wait for a process. A signal interrupts `wait`, so wait again."""
    return [f"while :; do wait {pid}; c=$?; kill -0 {pid} 2>/dev/null || break; done"]


def _code(folder: str) -> str:
    """Read the exit code from its file. If a signal interrupts `wait` at the end of the script,
    `$?` is wrong.
    """
    return f'[ ! -s "{folder}/exit-code" ] || read -r c <"{folder}/exit-code"'


# ---- gangs


#: One step: its own mark, then its script. $1 is its folder. Slurm signals only the first process
#: of a step (except SIGKILL), so this shell forwards signals to the process group of the script.
_STEP = (
    *_MARK,
    f'mark "$1" {STARTED} "${{SLURM_STEP_ID-}}"',
    *usage_script.FUNCTION,
    *usage_script.start('"$1"', steps=False),
    "trap : TERM HUP USR1",
    "cd /",
    'ring() { kill -s "$1" -- "-$p" 2>/dev/null && return; trap "" "$1"; kill -s "$1" 0; trap "ring $1" "$1"; }',
    "set -m 2>/dev/null",
    f"{_RUN_SCRIPT} &",
    "p=$!",
    "trap 'ring TERM' TERM",
    "trap 'ring USR1' USR1",
    *_wait('"$p"'),
    _code("$1"),
    'exit "$c"',
)


def _gang(steps: tuple[Step, ...], request: BatchRequest, debug_secs: float | None) -> list[str]:
    """Assign a node to every task, if possible with enough cores; write all addresses; then start
    all tasks.
    """
    return [
        'fail() { echo "jobscribe: $1" >&2; '
        + "; ".join(f'echo "jobscribe: $1" >>{quoted(s.folder)}/stderr.log' for s in steps)
        + f"; exit {NO_MARK}; }}",
        *_NODES,
        *(f"place {n} {step.cores}" for n, step in enumerate(steps)),
        'table="$first/addresses.sed"',
        ': >"$table" || fail "no table of addresses can be written"',
        *(
            f"address {n} {quoted(f'@{s.token.role}-{s.token.index}@')}"
            for n, s in enumerate(steps)
        ),
        *(
            f"fill {quoted(f)}"
            for s in steps
            for f in (f"{s.folder}/script.sh", s.job_file)
            if f is not None
        ),
        f"step={quoted(chr(10).join(_STEP))}",
        "trap 'scancel --signal=USR1 \"$SLURM_JOB_ID\"' USR1",
        *(
            _start_step(n, s, len(steps), gpus=request.gpus, debug_secs=debug_secs)
            for n, s in enumerate(steps)
        ),
        *([] if debug_secs is None else [hold_script.pass_on_term(len(steps))]),
        "r=0",
        *(
            line
            for n in range(len(steps))
            for line in (*_wait(f'"$pid_{n}"'), '[ "$c" -le "$r" ] || r=$c')
        ),
        'exit "$r"',
    ]


def _start_step(
    n: int, step: Step, count: int, *, gpus: int | None, debug_secs: float | None
) -> str:
    gres = f" --gres=gpu:{step.gpus}" if step.gpus else " --gres=none" if gpus else ""
    term, hold = "trap : TERM HUP", ""
    if debug_secs is not None:
        term = f"{hold_script.TERM}; trap : HUP"
        hold = f"{hold_script.call(quoted(step.folder), debug_secs, count)}; "
    return (
        f'{{ {term}; srun $share --nodes=1 --ntasks=1 --cpus-per-task={step.cores} --mem=0{gres} --nodelist="$host_{n}" '
        f"--input=none --kill-on-bad-exit=0 --job-name={quoted(f'{step.token.role}-{step.token.index}')} "
        f'/bin/sh -c "$step" sh {quoted(step.folder)}; c=$?; {hold}'
        f'echo "$c" >{quoted(f"{step.folder}/{OVER}")}; exit "$c"; }} & pid_{n}=$!'
    )


#: place N CORES: host_N is the first node with enough free cores, or else the node with the most.
#: In the second case, steps share cores.
_NODES = (
    "count=0; share=--exact",
    'for h in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
    '  case $h in *[!A-Za-z0-9._-]*) fail "a node has a name that is none" ;; esac',
    '  eval "node_$count=\\$h free_$count=0"; count=$((count + 1))',
    "done",
    '[ "$count" -gt 0 ] || fail "Slurm does not say which nodes it has"',
    "at=0",
    'for group in $(echo "${SLURM_JOB_CPUS_PER_NODE-}" | tr , " "); do',
    "  cores=${group%%(*}; times=1",
    "  case $group in *'(x'*) times=${group##*x}; times=${times%)} ;; esac",
    "  case $cores$times in *[!0-9]*|'') continue ;; esac",
    '  while [ "$times" -gt 0 ] && [ "$at" -lt "$count" ]; do eval "free_$at=\\$cores"; at=$((at + 1)); times=$((times - 1)); done',
    "done",
    "place() {",
    "  at=0; best=0; most=",
    '  while [ "$at" -lt "$count" ]; do',
    '    eval "have=\\$free_$at"',
    '    if [ -z "$most" ] || [ "$have" -gt "$most" ]; then most=$have; best=$at; fi',
    '    if [ "$have" -ge "$2" ]; then best=$at; most=$have; break; fi',
    "    at=$((at + 1))",
    "  done",
    '  [ "$most" -ge "$2" ] || share=--overlap',
    '  eval "host_$1=\\$node_$best free_$best=$((most - $2))"',
    "}",
    "# address N PLACE: in scripts and job files PLACE becomes the address of the node of task N",
    "address() {",
    '  eval "h=\\$host_$1"',
    "  a=$(scontrol --oneliner show node \"$h\" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p'); a=${a:-$h}",
    "  n=$(getent hosts \"$a\" | sed -n '1s/ .*//p'); a=${n:-$a}",
    '  case $a in *[!A-Za-z0-9.:_-]*|"") fail "the address of node $h is not known" ;; esac',
    '  printf \'s/%s/%s/g\\n\' "$2" "$a" >>"$table"',
    "}",
    'fill() { sed -f "$table" "$1" >"$1.new" && mv "$1.new" "$1" || fail "$1 cannot be written"; }',
)
