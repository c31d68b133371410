"""The program that a job runs to call Python functions, and the format of its files.

The client ships the text of this module with each call, so the machine of the job needs Python and
cloudpickle but not jobscribe. Standard library and cloudpickle only; old Pythons must parse it, so
that they can report that they do not fit.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pickle
import sys
import traceback
import zlib
from collections.abc import Callable
from typing import Any

#: First bytes of a file of this format. The rest of the line: sha256 and size of what follows it.
MAGIC = b"jobscribe-function/1 "
#: The file with the results, in the run directory.
RESULT = "function-result.bin"
#: The variable of the run with a small call, packed; and the one of the process with the path of the
#: file that has it. Other users of the machine can read a command line.
CALL, CALL_FILE = "FUNCTION_CALL", "FUNCTION_CALL_FILE"
#: Characters of a traceback and of an error text in a result.
MAX_TRACEBACK, MAX_TEXT = 64 * 1024, 2000
#: Exit codes: a call failed; a call was refused; a forked child came back from the function.
FAILED, REFUSED, STRAY_CHILD = 1, 78, 70
#: Folders above the run directory that are searched for the library with the arguments.
_LEVELS = 6


def pack(header: dict[str, Any], body: bytes) -> bytes:
    """Return a file with a header (JSON) and a body, protected by size and checksum."""
    rest = json.dumps(header).encode() + b"\n" + body
    return b"%s%s %d\n" % (MAGIC, hashlib.sha256(rest).hexdigest().encode(), len(rest)) + rest


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and body. Raises ValueError with a sentence if the file is damaged."""
    first, _, rest = data.partition(b"\n")
    words = first[len(MAGIC) :].split()
    if not first.startswith(MAGIC) or len(words) != 2 or not words[1].isdigit():
        raise ValueError("it is not a file of a function call")
    if len(rest) != int(words[1]):
        raise ValueError(f"it has {len(rest)} of {int(words[1])} bytes")
    if hashlib.sha256(rest).hexdigest().encode() != words[0]:
        raise ValueError("its checksum is wrong")
    head, _, body = rest.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    return header, body


def main(words: list[str]) -> int:
    """Perform the calls, write the result file, and return the exit code.

    words: `inline`, for a call in the file that `CALL_FILE` names or in the variable `CALL` (by a
    keeper of an earlier version, or in the process of the client), or `file` and the name of a
    library file.
    """
    place = os.environ.get("JOBSCRIBE_RUN_DIR") or os.getcwd()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(place, RESULT))  # of an earlier run or attempt
    source = None
    try:
        source = None if words[0] == "inline" else _library_file(place, words[1])
        header, function, calls = load_call(_read(source, words[1:]))
    except (ValueError, OSError, ImportError) as e:
        sentence = f"{e}"
        say(f"jobscribe: {sentence}")
        _write(place, {"refused": sentence}, b"")
        return REFUSED
    outcomes, results = [], []
    for args, options in calls:
        outcome, result = perform(function, args, options)
        outcomes.append({**outcome, "size": len(result)})
        results.append(result)
    _write(place, {"outcomes": outcomes, "many": header.get("many", False)}, b"".join(results))
    code = next((o["code"] for o in outcomes if o["code"]), 0)
    if source is not None and code == 0:
        with contextlib.suppress(OSError):
            os.unlink(source)  # a run that failed may be retried with it
    return code


def load_call(data: bytes) -> tuple[dict[str, Any], Any, Any]:
    """Return header, function and calls of a file. Raises ValueError with a sentence."""
    header, body = unpack(data)
    check(header)
    function, calls = loaded(body)
    return header, function, calls


def _library_file(place: str, name: str) -> str:
    folder = place
    for _ in range(_LEVELS):
        folder = os.path.dirname(folder)
        if os.path.isfile(path := os.path.join(folder, "lib", name)):
            return path
    raise ValueError(
        f"the file with the arguments ({name}) is not on this machine ({os.uname().nodename}); either"
        " it was removed, or this machine does not share the user's files with the supervisor: then"
        " keep the pickled call below inline_bytes (48 KiB, at most 90 KiB), or pass the name of a"
        " file that exists there"
    )


def _read(source: str | None, words: list[str]) -> bytes:
    if source is None:
        path, text = os.environ.pop(CALL_FILE, ""), os.environ.pop(CALL, "")
        if path:
            with open(path) as file:
                text = file.read()
            os.unlink(path)
        # a command of an earlier client has it in its words
        return zlib.decompress(base64.b64decode("".join(words) or text))
    with open(source, "rb") as file:
        return file.read()


def check(header: dict[str, Any]) -> None:
    """Raise ValueError if this Python or its cloudpickle cannot read the call."""
    python = "{}.{}".format(*sys.version_info)
    here = f"{sys.executable} on {os.uname().nodename}"
    if python != header["python"]:
        raise ValueError(
            f"the call comes from Python {header['python']}, but {here} is Python {python};"
            f" name a Python {header['python']} there with resources={{'python': PATH}}"
        )
    try:
        import cloudpickle
    except ImportError:
        raise ValueError(
            f"{here} has no cloudpickle; install it there: {sys.executable} -m pip install"
            f" cloudpickle=={header['cloudpickle']}"
        ) from None
    if cloudpickle.__version__ != header["cloudpickle"]:
        raise ValueError(
            f"the call comes from cloudpickle {header['cloudpickle']}, but {here} has"
            f" {cloudpickle.__version__}; install the same version on both sides"
        )


def loaded(body: bytes) -> Any:
    """Return function and calls. Raises ValueError with a sentence."""
    try:
        return pickle.loads(body)
    except ImportError as e:
        raise ValueError(
            f"{sys.executable} on {os.uname().nodename} cannot import a module of the function: {e};"
            " install it there, or send the module with cloudpickle.register_pickle_by_value(MODULE)"
        ) from None
    except BaseException as e:
        raise ValueError(
            f"the function or its arguments cannot be read here: {type(e).__name__}: {e}"
        ) from None


def perform(function: Callable[..., Any], args: Any, options: Any) -> tuple[dict[str, Any], bytes]:
    """Return the outcome of one call for the header, and the pickled result or exception."""
    process = os.getpid()
    try:
        value = function(*args, **options)
    except SystemExit as e:
        outcome = _exited(e), b""
    except BaseException as e:
        outcome = _raised(e)
    else:
        outcome = _returned(value)
    if os.getpid() != process:
        # a child that the function forked: only its parent reports the result
        os._exit(STRAY_CHILD)
    return outcome


def _returned(value: object) -> tuple[dict[str, Any], bytes]:
    import cloudpickle

    try:
        return {"kind": "value", "code": 0}, cloudpickle.dumps(value)
    except BaseException as e:
        kind = type(value).__name__
        if kind in ("generator", "map", "filter", "zip"):
            advice = "return list(...) of it"
        elif kind in ("coroutine", "async_generator"):
            advice = "send a function that calls asyncio.run"
        else:
            advice = (
                "return plain data, or write files into the run directory and return their names"
            )
        text = f"the result of type {kind} cannot be pickled ({type(e).__name__}: {e}); {advice}"
        say(f"jobscribe: {text[:MAX_TEXT]}")
        return {"kind": "unpicklable", "code": FAILED, "text": text[:MAX_TEXT]}, b""


def _exited(error: SystemExit) -> dict[str, Any]:
    code = error.code if isinstance(error.code, int) else int(error.code is not None)
    text = (
        f"the function called sys.exit({error.code!r:.100}); return a value or raise an exception"
    )
    say(f"jobscribe: {text}")
    # the exit code of a process has eight bits
    return {"kind": "exit", "code": code & 255 or FAILED, "text": text}


def _raised(error: BaseException) -> tuple[dict[str, Any], bytes]:
    import cloudpickle

    frames = error.__traceback__.tb_next if error.__traceback__ else None
    trace = "".join(traceback.format_exception(type(error), error, frames))
    say(trace[-MAX_TRACEBACK:].rstrip())
    outcome = {
        "kind": "raised",
        "code": FAILED,
        "type": type(error).__name__,
        "text": text_of(error),
        "traceback": trace[-MAX_TRACEBACK:],
    }
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # some exceptions can be pickled and not read again
    except BaseException:
        data = b""
    return outcome, data


def say(text: str) -> None:
    """Write to the output of the job; the result does not depend on it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a function may replace it
        sys.stderr.write(text + "\n")


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except Exception:
        return "(no text)"


def _write(place: str, header: dict[str, Any], body: bytes) -> None:
    """Write the result file, complete or not at all."""
    header = {
        **header,
        "serial": int(os.environ.get("JOBSCRIBE_SERIAL", "0")),
        "attempt": int(os.environ.get("JOBSCRIBE_ATTEMPT", "0")),
    }
    path = os.path.join(place, RESULT)
    with open(path + ".new", "wb") as file:
        file.write(pack(header, body))
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
