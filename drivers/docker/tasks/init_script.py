"""The sh script that is PID 1 of a task's container: it runs the task's script, forwards signals,
and kills leftover processes. Pure.

The kernel drops signals to PID 1 that have no handler. So the task runs in the background, and this
shell waits for it. A shell starts background processes with SIGINT and SIGQUIT ignored; if the
image has a suitable program, the script undoes that. It prints its start and exit to the
container's output and nothing else: the output of the task is in its evidence folder. It needs only
/bin/sh; without `sleep` the script has no time limit, and only the driver's applies.
"""

import math
import posixpath

from ....runtime.execution.folder import EXIT_CODE, JOB, SCRIPT, SIGNAL, STDERR, STDOUT
from ....runtime.execution.notices import NOTICES, notice_line
from ..containers.ssh_files import MOUNTED, SSHD_CONFIG

WRAPPER = "wrapper.sh"
#: This file tells the script to stop. It is created before the signal, because a signal before the
#: trap is dropped.
STOP_MARK = "stop"
STARTED_MARK = "started"
#: Files that the script writes: the time limit ended the task; number of processes that outlived
#: the main one.
LIMIT_MARK, SURVIVORS = "limit", "survivors"
#: Errors of sshd. It checks that it was started by an absolute path.
SSHD_LOG = "sshd.log"
SSHD_PATHS = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd")
NO_SSHD = (
    "there is no ssh, because its image has no sshd: use an image with OpenSSH (Debian: openssh-server,"
    " openssh-client), or enter the task with `jobscribe job shell`"
)
#: Seconds by which the script's time limit is later than the driver's. It applies only if the
#: driver does not run.
LIMIT_SLACK_SECS = 2
#: Python also ignores SIGPIPE and SIGXFSZ.
_BY_PYTHON = f'import os, signal as s; [s.signal(n, s.SIG_DFL) for n in (2, 3, 13, 25)]; os.execv("/bin/sh", ["/bin/sh", "./{SCRIPT}"])'
_BY_PERL = f'$SIG{{INT}} = $SIG{{QUIT}} = "DEFAULT"; exec "/bin/sh", "./{SCRIPT}"'
#: pass: send SIGTERM once to every process; a new process, or one that has executed a new program,
#: gets it again, because between fork and exec the shell may have received the signal. each: parse
#: one line of the process table. entered: whether it belongs to a session that `docker exec` began,
#: which has its parent outside, or that sshd began; but a stopped task waits for those. others: set
#: `n` to the number of remaining processes of the task.
_FUNCTIONS = (
    "each() {",
    "  pid=${1#/proc/}; parent=; line=",
    '  case "$pid" in 1 | "$self" | "$clock" | "$teller" | "$sshd") return 1 ;; esac',
    '  read -r line 2>/dev/null <"$1/stat" || return 1',
    "  set -- ${line##*) }",
    '  [ "$1" != Z ] && parent=$2 && session=$4 && image="$pid/${20}/${26}"',
    "}",
    "entered() {",
    '  while [ "$session" != 1 ] && read -r line 2>/dev/null <"/proc/$session/stat"; do',
    '    set -- ${line##*) }; [ "$2" = 0 ] && return',
    '    [ -n "$sshd" ] && [ -z "$told" ] || return 1',
    '    [ "$2" = "$sshd" ] && return',
    '    read -r line 2>/dev/null <"/proc/$2/stat" || return 1',
    "    set -- ${line##*) }; session=$4",
    "  done",
    "  return 1",
    "}",
    "others() {",
    "  n=0; self=",
    '  for p in /proc/[0-9]*; do each "$p" && case "$parent" in "$clock" | "$teller") ;; *) entered || n=$((n + 1)) ;; esac; done',
    "}",
    "tell() {",
    "  read -r self line </proc/self/stat; seen=",
    '  for p in /proc/[0-9]*; do each "$p" && seen="$seen $image "; done',
    "  kill -TERM -1; kill -CONT -1",
    "  while sleep 0.1 || sleep 1; do",
    "    for p in /proc/[0-9]*; do",
    '      each "$p" || continue',
    '      case "$seen" in *" $image "*) ;; *) seen="$seen $image "; kill -TERM "$pid"; kill -CONT "$pid" ;; esac',
    "    done",
    "  done",
    "}",
    "# without $main yet: a task that is stopped earlier never starts",
    'pass() { told=1; if [ -n "$main" ] && [ -z "$teller" ]; then tell 2>/dev/null & teller=$!; fi; }',
)


def init_script(
    evidence: str,
    run_dir: str,
    *,
    limit_secs: float | None,
    grace_secs: float,
    ssh: tuple[str, int] | None = None,
) -> str:
    """Return the text of the script. evidence, run_dir: absolute paths. ssh: address and port of the
    task's sshd.
    """
    limit = (
        []
        if limit_secs is None
        else _time_limit_lines(math.ceil(limit_secs) + LIMIT_SLACK_SECS, math.ceil(grace_secs))
    )
    lines = [
        "#!/bin/sh",
        "# Process 1 of a task's container. The task itself is script.sh; run that file to repeat the task.",
        "# This script sends signals to all processes, so it must only run as process 1 of a container.",
        '[ "$$" -eq 1 ] || { echo "this script must be process 1 of a container; to repeat the task, run script.sh" >&2; exit 125; }',
        f"cd {_quoted(evidence)} || exit 126",
        f"exec 4>&1 0</dev/null 1>>{STDOUT} 2>>{SIGNAL} 3>>{STDERR}",
        f"say() {{ printf '%s %s\\n' {_quoted(posixpath.basename(evidence))} \"$1\" >&4; }} 2>/dev/null",
        "# an engine can restart a container, but a task runs only once",
        f"( set -C; : >{STARTED_MARK} ) 2>/dev/null || exit 125",
        "main=; clock=; teller=; told=; sshd=",
        *_FUNCTIONS,
        "trap pass TERM INT HUP QUIT",
        f'if [ -e {STOP_MARK} ] || [ -n "$told" ]; then',
        f'  echo 143 >{EXIT_CODE}; echo stopped >&2; say "was stopped before it began"; exit 143',
        "fi",
        'say "begins"',
        *_run_directory_lines(run_dir),
        *(_sshd_lines(*ssh) if ssh is not None else ()),
        "if env --default-signal=INT,QUIT true 2>/dev/null; then",
        f"  env --default-signal=INT,QUIT /bin/sh ./{SCRIPT} 4>&- & main=$!",
        'elif [ -n "${BASH_VERSION-}" ] && set -m 2>/dev/null; then',
        f"  /bin/sh ./{SCRIPT} 4>&- & main=$!",
        "  set +m",
        "elif command -v python3 >/dev/null; then",
        f"  python3 -ISc '{_BY_PYTHON}' 4>&- & main=$!",
        "elif command -v perl >/dev/null; then",
        f"  perl -e '{_BY_PERL}' 4>&- & main=$!",
        "else",
        f"  /bin/sh ./{SCRIPT} 4>&- & main=$!",
        "fi",
        f'if [ -e {STOP_MARK} ] || [ -n "$told" ]; then pass; fi',
        *limit,
        "# a signal interrupts the wait, not the task",
        'while :; do wait "$main"; c=$?; kill -0 "$main" 2>/dev/null || break; done',
        "# the script was killed before it could write the exit code",
        f'if [ ! -s {EXIT_CODE} ]; then [ "$c" -le 128 ] || echo "its script was ended by a signal" >&2; echo "$c" >{EXIT_CODE}; fi',
        'if [ -n "$told" ]; then',
        "  # other processes have the rest of the grace period; then the driver or the clock kills them",
        '  others; while [ "$n" -gt 0 ]; do sleep 0.1 2>/dev/null || sleep 1 2>/dev/null || break; others; done',
        "else",
        '  if [ -n "$clock" ]; then kill -TERM "$clock" 2>/dev/null; wait "$clock"; clock=; fi',
        "  others",
        f'  [ "$n" -eq 0 ] || echo "$n" >{SURVIVORS}',
        "fi",
        'say "has ended with exit code $c"',
        "kill -KILL -1 2>/dev/null",
        'exit "$c"',
    ]
    return "\n".join(lines) + "\n"


def _run_directory_lines(run_dir: str) -> list[str]:
    """Lines that create files in the run directory as the task's user: job.json, and a link to the
    evidence folder.
    """
    to = _quoted(run_dir)
    return [
        f"if [ -e ./{JOB} ]; then",
        f"  rm -f {to}/{JOB}",
        f'  while IFS= read -r line; do printf "%s\\n" "$line"; done <./{JOB} >{to}/{JOB}',
        "fi 2>/dev/null",
        f'{{ mkdir -p {to}/.jobscribe && ln -sfn "$PWD" {to}/.jobscribe/latest; }} 2>/dev/null',
    ]


def _sshd_lines(address: str, port: int) -> list[str]:
    """Lines that start sshd, if the image has it. The job does not depend on it."""
    options = f"-D -e -f {MOUNTED}/{SSHD_CONFIG} -o ListenAddress={_quoted(address)} -p {port}"
    return [
        f'for p in "$(command -v sshd)" {" ".join(SSHD_PATHS)}; do',
        '  [ -x "$p" ] || continue',
        f'  "$p" {options} >/dev/null 2>{SSHD_LOG} 3>&- 4>&- & sshd=$!',
        "  break",
        "done",
        f'[ -n "$sshd" ] || echo {_quoted(notice_line("sshUnavailable", NO_SSHD))} >>{NOTICES}',
    ]


def _time_limit_lines(secs: int, grace: int) -> list[str]:
    return [
        "(",
        "  trap 'kill \"$s\"; exit' TERM",
        f'  sleep {secs} & s=$!; wait "$s" || exit',
        "  trap '' TERM",
        f"  [ -s {EXIT_CODE} ] || echo {secs - LIMIT_SLACK_SECS} >{LIMIT_MARK}",
        "  kill -TERM 1",
        f"  sleep {grace}",
        "  kill -KILL -1",
        ") 2>/dev/null & clock=$!",
    ]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
