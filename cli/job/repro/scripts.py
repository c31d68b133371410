"""The scripts of a repro folder: `script.sh` as a driver makes it, and `run.sh`, which prepares
directories and asks for withheld values. Pure: text from records.

Texts contain no path of the folder, so it can be moved: paths begin with HERE, which becomes a
variable of the script.
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from ....agent.jobs.job_input import import_roots, input_json, with_job_command
from ....protocol.launch import job_script
from ....protocol.wire.messages import AppInput
from ....runtime.execution import folder as evidence_folder
from ....schema.jobs.withheld import with_references
from ...submission.simulation import Task, docker_words, plain_task, role_task
from .record import Record

#: Stands for the path of the folder.
HERE = "/@JOBSCRIBE-REPRO@"
WORK, EVIDENCE = "work", "evidence"
#: Programs and files that run.sh provides, as references.
_PYTHON, _INPUT = "repro_python", "repro_input"
_WRAPPER = 'exec 3>&2\ncd / && exec /bin/sh "$(dirname "$0")/../script.sh" "$@"\n'
_PREPARE_INPUT = '''"""Write the input file of the job command: paths of this folder, and the withheld values."""
import json, os, re, sys

here, source, target = sys.argv[1:]
HERE = "/@JOBSCRIBE-REPRO@"


def filled(value):
    if isinstance(value, dict):
        return {key: filled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    if not isinstance(value, str):
        return value
    value = re.sub("@WITHHELD:([A-Za-z0-9_]+)@", lambda m: os.environ[m[1]], value)
    return here + value[len(HERE):] if value.startswith(HERE) else value


with open(source) as file:
    data = filled(json.load(file))
with open(target, "w") as file:
    json.dump(data, file)
'''


def make_task(record: Record) -> Task:
    """Return the task, with its paths below HERE."""
    root = f"{HERE}/{WORK}"
    spec = record.spec
    if record.role is None:
        return plain_task(spec, root, record.serial, record.attempt)
    place = next(p for p in record.places if (p.role, p.index) == (record.role.name, record.index))
    return role_task(
        spec,
        record.role,
        place,
        record.places,
        root,
        record.serial,
        record.attempt,
        containers=True,
    )


def script_files(record: Record, task: Task, python: str) -> dict[str, str]:
    """Return the scripts and their input files, by name. python: for an app's run."""
    spec = task.spec
    files: dict[str, str] = {}
    if record.spec.data is not None:
        spec = _job_command(spec)
        files["input.json"] = _app_input(record)
        files["prepare_input.py"] = _PREPARE_INPUT
    text = job_script.script(task.token, spec, {}, f"{HERE}/{EVIDENCE}")
    first, rest = text.split("\n", 1)
    files["script.sh"] = f"{first}\n{_HERE_LINE}\n{_in_quotes(rest)}"
    if task.job is not None:
        files[evidence_folder.JOB] = task.job
    if task.image:
        files["wrapper.sh"] = _WRAPPER
    files["run.sh"] = _run_script(record, task, python)
    return files


def docker_line(record: Record, task: Task) -> str:
    """Return the `docker run` line of the task, for the variables of run.sh."""
    # the script is in the folder itself
    words = docker_words(task._replace(root=HERE), "", f"{HERE}/{EVIDENCE}")
    # the Docker and the unix user of the person who runs it
    for option in ("--host", "--name", "--user"):
        at = words.index(option)
        del words[at : at + 2]
    run = words.index("run") + 1
    image = len(words) - 1 - words[::-1].index(str(task.image))
    variables = [w for each in record.withheld for w in ("--env", each.name)]
    options = _line([*words[run:image], *variables])
    begin = f'{_line(words[:run])} --rm ${{shell:+-it}} --user "$(id -u):$(id -g)"'
    return f"{begin} {options} {_line(words[image:])} $shell"


def _line(words: Sequence[str]) -> str:
    return " ".join(_in_quotes(_single_quoted(w)) if HERE in w else shlex.quote(w) for w in words)


_HERE_LINE = 'here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 125'


def _single_quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _in_quotes(text: str) -> str:
    """Replace HERE and references, which stand in single quotes, by variables."""
    text = text.replace(HERE, "'\"$here\"'")
    return with_references(text, lambda name: f"'\"${name}\"'")


# ---- an app's run


def _job_command(spec: Any) -> Any:
    with_input = with_job_command(spec, f"{HERE}/{EVIDENCE}", import_roots())
    command = (_reference(_PYTHON), *with_input.command[1:-1], _reference(_INPUT))
    return msgspec.structs.replace(with_input, command=command)


def _reference(name: str) -> str:
    return f"@WITHHELD:{name}@"


def _app_input(record: Record) -> str:
    spec = record.spec
    app = AppInput(
        simulation_type=spec.simulation_type,
        compute_model=spec.compute_model,
        data=spec.data or {},
    )
    data = json.loads(input_json(app, f"{HERE}/{WORK}", ()))
    return json.dumps({**data, "lib": f"{HERE}/lib"}, indent=1) + "\n"


# ---- run.sh


def _run_script(record: Record, task: Task, python: str) -> str:
    directory = _in_quotes(_single_quoted(task.directory))
    lines = [
        "#!/bin/sh",
        f"# Runs task {record.task} of {record.jid} again, in a new directory {WORK}. See README.md.",
        "#   --shell: open a shell in the directory and environment of the task instead",
        *(["#   --no-image: run without the image"] if task.image else []),
        "set -u",
        _HERE_LINE,
        "umask 077",
        "shell= image=yes",
        "for option; do",
        "  case $option in",
        "    --shell) shell=--shell ;;",
        *(["    --no-image) image= ;;"] if task.image else []),
        '    *) echo "run.sh: unknown option $option; see README.md" >&2; exit 2 ;;',
        "  esac",
        "done",
        *_asking(record),
        "for name in $(env | sed -n 's/^\\(JOBSCRIBE_[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset \"$name\"; done",
        f'if [ -z "$shell" ] || [ ! -d "$here/{WORK}" ]; then',
        f'  rm -rf "$here/{WORK}"',
        f'  mkdir -p "$here/{WORK}" && cp -R "$here/inputs/." "$here/{WORK}/" || exit 125',
        "fi",
        f'rm -rf "$here/{EVIDENCE}"',
        f'mkdir -p "$here/{EVIDENCE}" {directory} || exit 125',
        *([f'cp "$here/{evidence_folder.JOB}" {directory}/ || exit 125'] if task.job else []),
        *_input_lines(record, python),
        *_running(record, task),
        "c=$?",
        f'echo "run.sh: exit code $c; recorded: "{_single_quoted(record.said)} >&2',
        'exit "$c"',
    ]
    return "\n".join(lines) + "\n"


def _asking(record: Record) -> list[str]:
    """Return lines that ask for the withheld values."""
    if not record.withheld:
        return []
    out = ["missing="]
    for each in record.withheld:
        out.append(
            f'[ -n "${{{each.name}+x}}" ] || missing="$missing\n  {each.name}"{_single_quoted(": " + each.where)}'
        )
    return [
        *out,
        'if [ -n "$missing" ]; then',
        '  echo "run.sh: this folder has no secrets. Set these variables to the values and run it again:$missing" >&2',
        "  exit 2",
        "fi",
        "export " + " ".join(each.name for each in record.withheld),
    ]


def _input_lines(record: Record, python: str) -> list[str]:
    if record.spec.data is None:
        return []
    return [
        f"repro_python=${{PYTHON:-{shlex.quote(python)}}}",
        'command -v "$repro_python" >/dev/null 2>&1 || repro_python=python3',
        "repro_input=$(mktemp) || exit 125",
        "trap 'rm -f \"$repro_input\"' EXIT",
        'mkdir -p "$here/lib"',
        '"$repro_python" "$here/prepare_input.py" "$here" "$here/input.json" "$repro_input" || exit 125',
        "export repro_python repro_input",
    ]


def _running(record: Record, task: Task) -> list[str]:
    """Return the lines that run the script, in the image if there is one, within the time limit."""
    limit, grace = task.spec.time_limit_secs, task.spec.grace_secs
    out = ["limit="]
    if limit is not None:
        out.append(
            f'command -v timeout >/dev/null 2>&1 && [ -z "$shell" ] && limit="timeout -k {grace:g} {limit:g}"'
        )
    plain = '$limit /bin/sh "$here/script.sh" $shell'
    if not task.image:
        return [*out, plain]
    return [
        *out,
        'if [ -n "$image" ]; then',
        f'  cp "$here/wrapper.sh" "$here/{EVIDENCE}/wrapper.sh" || exit 125',
        f"  $limit {docker_line(record, task)}",
        "else",
        f"  {plain}",
        "fi",
    ]
