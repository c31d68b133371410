"""The sh script of one execution: environment, run directory, core limit, the command, and a file
with its exit code. Pure; others write and run the script.

Running the file by hand repeats the execution. A keeper does not run it: it starts the command
itself. In a container of its own or under Slurm, descriptor 3 is the command's stderr, and the
script's own stderr goes to a file. There the shell reports the signal that killed the command,
which distinguishes a SIGKILL from `exit 137`. The command runs in a subshell that `exec`s it, for
two reasons: dash would write that report to the command's stderr otherwise, and shell builtins
differ from the programs of the same names. The script starts no process but the shell and the
command.
"""

from collections.abc import Mapping, Sequence
from re import compile as _compile

from ..errors import Refusal
from ..ids import Token
from ..wire.messages import TaskSpec
from . import function_call

_NAME = _compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UMASK = _compile(r"[0-7]{1,4}\Z")
#: Variables that some shells refuse to set, or that change how a shell works. The script passes
#: them to the command with `env`.
_SHELL_VARIABLES = frozenset(
    (
        "BASHOPTS",
        "BASH_VERSINFO",
        "EUID",
        "IFS",
        "LINENO",
        "OLDPWD",
        "OPTIND",
        "POSIXLY_CORRECT",
        "PPID",
        "PWD",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "UID",
    )
)
#: Start of the command of a script text.
TEXT = ("/bin/bash", "-c")
#: The script of a run with core files writes this file in its evidence.
CORE_MARKER = "core-pattern"
#: The error of coredumpctl in its evidence; tries to get a core from systemd-coredump, one a second.
CORE_ERROR, _SYSTEMD_TRIES = "core-error", 8
#: The unit of `ulimit -c` in bytes, as POSIX defines it.
_BLOCK = 512
#: When memory runs out, the kernel kills a job before the keeper, the agent and other processes.
#: Child processes inherit the score.
_RAISE_OOM_SCORE = "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null"
_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def identity_variables(token: Token, run_dir: str, evidence: object) -> dict[str, str]:
    """Return the variables that describe an execution to its own process."""
    return {
        "JOBSCRIBE_TOKEN": str(token),
        "JOBSCRIBE_COMPUTE_JID": token.jid,
        "JOBSCRIBE_SERIAL": str(token.serial),
        "JOBSCRIBE_ATTEMPT": str(token.attempt),
        "JOBSCRIBE_TASK_ROLE": token.role,
        "JOBSCRIBE_TASK_INDEX": str(token.index),
        "JOBSCRIBE_RUN_DIR": run_dir,
        "JOBSCRIBE_TERMINATION_MESSAGE": f"{evidence}/termination-message",
        "JOBSCRIBE_REPORT": f"{evidence}/report.jsonl",
    }


def export_lines(env: Mapping[str, str]) -> str:
    """Return lines that export these variables, for a part that many scripts share. All names must
    be plain.
    """
    return "".join(f"export {k}={_quoted(v)}\n" for k, v in env.items())


def job_environment(login: Mapping[str, str]) -> dict[str, str]:
    """Return the environment below that of a task: that of the login profile, and Python's."""
    return {**login, **_PYTHON}


def environment_lines(env: Mapping[str, str]) -> str:
    """Return lines that export the variables that a shell can export; the command gets all."""
    return export_lines(_plain(env))


def script(
    token: Token,
    spec: TaskSpec,
    env: Mapping[str, str],
    evidence: object,
    *,
    umask: str = "0077",
    shared: str = "",
) -> str:
    """Return the text of the script.

    env: the environment of the login profile. `shared` (export lines) overrides it, `spec.env`
    overrides both, and the identity variables override all.

    evidence: absolute path (or its text) of the folder for the exit code. Raises
    Refusal("badRequest") for values that no process can have. With the argument --shell, the script
    starts a shell in the directory and environment of the command instead of the command.
    """
    below = job_environment(env)
    before, after = script_parts(token, spec, below, evidence, umask=umask, shared=shared)
    own = _own(token, spec, evidence)
    return before + environment_lines({k: v for k, v in below.items() if k not in own}) + after


def script_parts(
    token: Token,
    spec: TaskSpec,
    below: Mapping[str, str],
    evidence: object,
    *,
    umask: str = "0077",
    shared: str = "",
) -> tuple[str, str]:
    """Return the text before and after the `environment_lines` of `below`, which many scripts
    share. For the rest see `script`.
    """
    _check(spec, umask)
    own = _own(token, spec, evidence)
    plain = _plain(own)
    odd = [f"{k}={v}" for k, v in {**below, **own}.items() if not _is_plain(k)]
    command, through = [*spec.wrap, *spec.command], ["/usr/bin/env", "--", *odd] if odd else []
    if odd or command[0].startswith("-"):
        command = ["/usr/bin/env", "--", *odd, *command]
    run_dir, words = _quoted(spec.run_dir), _words(command)
    shell = []
    if spec.command[:2] == TEXT:  # script text of a job file; some images have no bash
        shell = [f'[ -x {TEXT[0]} ] && set -- "$1" "$2" {TEXT[0]} || set -- "$1" "$2" /bin/sh']
        words = _words(command[: -len(spec.command)]) + '"$3" ' + _words(spec.command[1:])
    before = [
        "#!/bin/sh",
        f"# {token}",
        "# Run this file to repeat the job. The exit code is recorded only if an engine runs it.",
        "# With the argument --shell: start a shell in the environment and directory of the command.",
        'case "${1-}" in --shell) set -- shell ;; *) set -- run ;; esac',
        f'set -- "$1" {_quoted(f"{evidence}/exit-code")}',
        'if ! { true >&3; } 2>/dev/null; then exec 3>&2; set -- "$1" /dev/null; fi',
        _RAISE_OOM_SCORE,
        f"umask {umask}",
    ]
    after = [
        shared + export_lines(plain).rstrip("\n"),
        *_call(spec, evidence, umask),
        f'[ -d {run_dir} ] || mkdir -p {run_dir} 2>&3 || {{ echo 126 >"$2"; exit 126; }}',
        f'cd {run_dir} 2>&3 || {{ echo 126 >"$2"; exit 126; }}',
        f'if [ "$1" = shell ]; then exec 3>&-; exec {_words(through)}"${{SHELL:-/bin/sh}}"; fi',
        _core_limit(spec.core_bytes),
        *shell,
        "# the command gets the signals; this shell must live until it has recorded the exit code",
        "trap : HUP QUIT TERM USR1 USR2",
        "# no shell reports that SIGINT killed its command; a SIGINT to this shell is the only evidence",
        "trap 'echo SIGINT >&2' INT",
        f"( exec {words}2>&3 3>&- )",
        "c=$?",
        '{ echo "$c" >"$2"; } 2>/dev/null',
        *_systemd_core(spec.core_bytes),
        'exit "$c"',
    ]
    return "\n".join(before) + "\n", "\n".join(after) + "\n"


def _own(token: Token, spec: TaskSpec, evidence: object) -> dict[str, str]:
    """Return the variables of the execution itself."""
    env = function_call.with_path(spec.env, evidence)
    return {**env, **identity_variables(token, spec.run_dir, evidence)}


def _call(spec: TaskSpec, evidence: object, umask: str) -> list[str]:
    """Return the line that writes the packed call of a function for its process. `printf` is a
    builtin of the shell, so no process has the call as an argument.
    """
    call = spec.env.get(function_call.VARIABLE)
    if call is None:
        return []
    path = _quoted(f"{evidence}/{function_call.FILE}")
    failed = '{ echo 126 >"$2"; exit 126; }'
    return [f"umask 077; printf %s {_quoted(call)} 2>&3 >{path} || {failed}; umask {umask}"]


def _is_plain(name: str) -> bool:
    return _NAME.match(name) is not None and name not in _SHELL_VARIABLES


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a shell can export."""
    return {k: v for k, v in env.items() if _is_plain(k)}


def _core_limit(size: int) -> str:
    """Set the requested limit, or the highest that the machine allows. With a limit, record for the
    collection of core files where the kernel of this machine puts them (`runtime.cores.marker`).
    """
    line = f'ulimit -c {size // _BLOCK} 2>/dev/null || ulimit -S -c "$(ulimit -H -c)" 2>/dev/null'
    if not size:
        return line
    kernel = "/proc/sys/kernel/core_"
    return (
        f'{line}\nif [ "$2" != /dev/null ]; then\n  t=$(date +%s)\n'
        f"  {{ IFS= read -r p <{kernel}pattern; read -r u <{kernel}uses_pid; }} 2>/dev/null\n"
        f'  printf "%s\\n" {size} "$(ulimit -H -c)" "${{u:-0}}" "${{p-}}" >"${{2%/*}}/{CORE_MARKER}"\n'
        "fi 2>/dev/null"
    )


def _systemd_core(size: int) -> list[str]:
    """Copy the core of a crash from systemd-coredump of this machine, which needs a moment to store
    it. Only this machine has it. The collection describes the copy, and tells the error of the last
    try if there is none.
    """
    if not size:
        return []
    part = '"$e/cores/.core.part"'
    match = 'COREDUMP_UID="$(id -u)" COREDUMP_CWD="$(pwd -P)"'
    return [
        'case "$2 ${p-}" in /dev/null*) ;; *" |"*systemd-coredump*) if [ "$c" -gt 128 ] && command -v coredumpctl >&2; then',
        '  e=${2%/*}; mkdir -m 700 "$e/cores"',
        f"  for n in {' '.join(map(str, range(1, _SYSTEMD_TRIES + 1)))}; do",
        f'    ( ulimit -f {size // _BLOCK}; exec coredumpctl --quiet --since="@$t" --output={part}'
        f' dump {match} ) >/dev/null 2>"$e/{CORE_ERROR}" && mv {part} "$e/cores/core.0" && break',
        f"    rm -f {part}; sleep 1",
        "  done",
        "fi ;; esac 2>/dev/null",
    ]


def _check(spec: TaskSpec, umask: str) -> None:
    texts = [*spec.wrap, *spec.command, spec.run_dir, *spec.env, *spec.env.values()]
    if any("\0" in t for t in texts):
        raise Refusal(
            "badRequest", "a command, an environment or a path must not contain a NUL character"
        )
    if not spec.command or not (*spec.wrap, *spec.command)[0]:
        raise Refusal("badRequest", "the command is empty")
    if not spec.run_dir.startswith("/"):
        raise Refusal(
            "badRequest", f"the run directory must be an absolute path, not {spec.run_dir!a}"
        )
    bad = next((n for n in spec.env if not n or "=" in n), None)
    if bad is not None:
        raise Refusal("badRequest", f"{bad!a} is not a valid name of an environment variable")
    if not _UMASK.match(umask):
        raise Refusal("badRequest", f"{umask!a} is not a valid umask")


def _words(texts: Sequence[str]) -> str:
    return "".join(_quoted(t) + " " for t in texts)


def _quoted(text: str) -> str:
    """Return the text as one word of a shell line. It may contain any character but NUL."""
    return "'" + text.replace("'", "'\\''") + "'"
