"""The lines of sh before the command of a task: they provide the folders that OpenPAI documents.
Pure text.

jobscribe passes these lines with the command, so `job submit --dry-run` shows them. They need a
POSIX shell, `mkdir`, `cp`, `du`, `find` and `tar`. A folder that cannot be provided ends the task
with 210, which is never retried.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..fields import quoted

#: The documented limit of a code folder, in bytes.
MAX_CODE = 200_000_000
#: Exit code of a failure that a retry cannot fix.
_PERMANENT = 210
_FILE = "file://"
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)", re.ASCII)
_OTHER_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz|tar\.bz2|tar\.xz|tar\.zst)\Z")
#: Folder of the outputs of a run without `outputDir`, in its run directory.
OUTPUT = "Output"


class Folders(NamedTuple):
    """Folders of a task, as absolute paths or as URIs that jobscribe does not read; "" for none."""

    data: str = ""
    output: str = ""
    code: str = ""


def is_local(folder: str) -> bool:
    return folder.startswith("/")


def local_path(value: str, variables: Mapping[str, str]) -> str:
    """Return the folder that a value names: an absolute path if it is on a file system of the tasks'
    hosts, else the value.

    variables: `$NAME` in the value, which OpenPAI replaces at submission.
    """
    value = _VARIABLE.sub(lambda m: variables.get(m[1] or m[2], m[0]), value)
    if value.startswith(_FILE):
        value = value[len(_FILE) :]
    return "/" + value.lstrip("/") if value.startswith("/") else value


def folder_problem(folder: str) -> str | None:
    """Return why tasks cannot use this folder; None if they may."""
    if is_local(folder):
        if ".." in folder.split("/"):
            return "it contains `..`"
        return None if folder.isprintable() else "it contains an unprintable character"
    return None if _OTHER_URI.match(folder) else f"{quoted(folder)} is not an absolute path"


def code_name(code: str) -> str:
    """Return the name of the code folder in the directory of a task."""
    return _ARCHIVE.sub("", code.rstrip("/").rpartition("/")[2])


def lines(folders: Folders, secrets: Mapping[str, str] = {}) -> str:
    """Return the lines. secrets: files of secrets, by shell variable."""
    out = [*_output_lines(folders.output), *_data_lines(folders.data), *_code_lines(folders.code)]
    for name, path in secrets.items():
        said = f"the secret file {path} cannot be read in this task"
        out.append(f"{name}=$(cat -- {shell_quoted(path)}) || {_fail(said)}")
    return "".join(f"{line}\n" for line in out)


def _output_lines(output: str) -> Iterable[str]:
    if output and not is_local(output):
        return [f"export PAI_OUTPUT_DIR={shell_quoted(output)}"]
    value = shell_quoted(output) if output else f'"${{PAI_WORK_DIR%/*/*}}/{OUTPUT}/$PAI_JOB_NAME"'
    return [
        f"export PAI_OUTPUT_DIR={value}",
        f'mkdir -p -- "$PAI_OUTPUT_DIR" || {_fail("the output folder $PAI_OUTPUT_DIR cannot be created")}',
    ]


def _data_lines(data: str) -> Iterable[str]:
    if not data:
        return []
    check = (
        f'[ -r "$PAI_DATA_DIR" ] || {_fail("the data $PAI_DATA_DIR cannot be read in this task")}'
    )
    return [f"export PAI_DATA_DIR={shell_quoted(data)}", *([check] if is_local(data) else [])]


def _code_lines(code: str) -> Iterable[str]:
    """Copy the code into the directory of the task. An earlier attempt may have left a copy."""
    if not code:
        return []
    name = shell_quoted(f"./{code_name(code)}")
    too_large = f"the code $PAI_CODE_DIR is larger than {MAX_CODE // 1_000_000} MB"
    export = f"export PAI_CODE_DIR={shell_quoted(code)}"
    if not is_local(code):
        return [export]
    return [
        export,
        f'[ -r "$PAI_CODE_DIR" ] || {_fail("the code $PAI_CODE_DIR cannot be read in this task")}',
        f'[ "$(du -skL -- "$PAI_CODE_DIR" | cut -f1)" -le {MAX_CODE // 1024} ] || {_fail(too_large)}',
        # `/.`: a link to the folder is followed
        f'rm -rf -- {name} && mkdir {name} && if [ -d "$PAI_CODE_DIR" ]; '
        f'then cp -R -- "$PAI_CODE_DIR/." {name}; else tar -xf "$PAI_CODE_DIR" -C {name}; fi '
        f"&& find {name} -type f -exec chmod a-w {{}} + || {_fail('the code $PAI_CODE_DIR cannot be copied')}",
    ]


def _fail(sentence: str) -> str:
    """Return a command that ends the task. `$NAME` in the sentence is expanded."""
    text = re.sub(r'(["`\\]|\$(?!PAI_))', r"\\\1", sentence)
    return f'{{ echo "jobscribe: {text}" >&2; exit {_PERMANENT}; }}'


def shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
