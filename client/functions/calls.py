"""Builds the command of a function call: pickles the function and its arguments within a limit, and
chooses between a variable of the run and a library file. Sends nothing.
"""

import base64
import functools
import inspect
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...protocol.redaction import is_secret
from ...schema.jobs.withheld import is_function_call
from ..api.errors import ClientError, own
from . import runner
from .inspection import inspect_call
from .pickling import TooLarge, load_cloudpickle, pickled
from .worker import call_files, call_process, journal, loop, process

#: Bytes of a pickle that are sent in a variable of the run, and their highest value: a variable has
#: at most 128 KiB.
INLINE_BYTES, MAX_INLINE_BYTES = 48 * 1024, 90 * 1024
#: Largest pickle of one call.
MAX_BYTES = 100 * 1024 * 1024
#: Options of `resources` besides those of a run.
PYTHON = "python"
#: Options of a run that the executor sets itself.
_OWN = ("simulation_id", "compute_model", "simulation_type", "at_once", "data")
#: Starts the first Python of a list, one per line, that exists on the machine of the job.
_START = """boot=$1 pythons=$2; shift 2; IFS='
'
for python in $pythons; do command -v "$python" >/dev/null 2>&1 && exec "$python" -c "$boot" "$@"; done
echo "jobscribe: no Python for the call on $(uname -n), tried:" $pythons >&2
exit 127"""

#: Modules that ship with a warm worker, each after those that it imports.
_WORKER_MODULES = (
    runner,
    call_files,
    call_process,
    journal,
    process,
    loop,
)

_Calls = Sequence[tuple[Sequence[Any], Mapping[str, Any]]]


class Payload(msgspec.Struct, frozen=True):
    """A packed call. inline: it goes into a variable of the run."""

    data: bytes
    inline: bool


def payload(
    function: Callable[..., Any], calls: _Calls, *, many: bool, inline_bytes: int, max_bytes: int
) -> Payload:
    """Pack a function and the arguments of its calls. many: the result is a list.

    Raises ClientError: notSerializable, tooLarge.
    """
    python, cloudpickle = _versions()
    check_function(function)
    body = pickled_call((function, calls), function, max_bytes)
    header = {"python": python, "cloudpickle": cloudpickle, "many": many}
    # variables are stored in the event log, so arguments that sound secret go into a file
    named_secret = any(is_secret(name) for _, options in calls for name in options)
    return Payload(runner.pack(header, body), len(body) <= inline_bytes and not named_secret)


def command(packed: Payload, file: str, pythons: Sequence[str]) -> list[str]:
    """Return the command of the run. file: name of the library file for a payload that is not inline."""
    words = ["inline"] if packed.inline else ["file", file]
    return ["/bin/sh", "-c", _START, "function-call", _boot(), "\n".join(pythons), *words]


def with_call(options: Mapping[str, Any], packed: Payload) -> dict[str, Any]:
    """Return the options of the run with the variable that has an inline payload."""
    if not packed.inline:
        return dict(options)
    text = base64.b64encode(zlib.compress(packed.data)).decode()
    return {**options, "env": {**(options.get("env") or {}), runner.CALL: text}}


def split_resources(resources: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the run, and the Pythons to try in order. Raises ClientError."""
    options = dict(resources or {})
    python = options.pop(PYTHON, None)
    if wrong := [name for name in options if name in _OWN]:
        raise ClientError(
            "badRequest", f"resources cannot have {wrong[0]!r}, which jobscribe sets for functions"
        )
    task = options.get("task") or {}
    if options.get("roles") or {"name", "tasks", "command"} & {*task}:
        raise ClientError(
            "badRequest",
            "a function runs in one task; leave out `roles`, and `name`, `tasks` and `command` of `task`",
        )
    if python is not None:
        return options, [str(python)]
    return options, [sys.executable, "python{}.{}".format(*sys.version_info), "python3"]


def check_function(function: object) -> None:
    """Raise ClientError for objects that cannot be called in a job."""
    if not callable(function):
        raise ClientError(
            "badRequest",
            f"{type(function).__name__} is no function; pass a function and its arguments",
        )
    if inspect.iscoroutinefunction(function):
        raise ClientError(
            "badRequest",
            f"{getattr(function, '__name__', 'the function')} is asynchronous; send a function that calls asyncio.run",
        )
    if inspect.isgeneratorfunction(function):
        raise ClientError(
            "badRequest",
            f"{getattr(function, '__name__', 'the function')} is a generator, which cannot leave its process;"
            " send a function that returns a list",
        )


def pickled_call(value: object, function: Callable[..., Any], limit: int) -> bytes:
    """Pickle a part of a call. Raises ClientError: notSerializable, tooLarge."""
    try:
        return pickled(value, limit)
    except TooLarge:
        raise ClientError(
            "tooLarge",
            f"the function and its arguments take more than {limit / 1024**2:g} MiB, the limit of a call",
            "pass the names of files and read them in the function, or split the data into more calls",
        ) from None
    except Exception as e:
        raise not_serializable(function, value, e) from None


def not_serializable(function: object, value: object, error: Exception) -> ClientError:
    """Return the error with all values that cannot be sent."""
    found = inspect_call(function, value)
    if not found.offenders:
        kind = type(error).__name__
        return own("notSerializable", f"the call cannot be pickled: {kind}: {error!s:.300}")
    lines = "".join(f"\n  {offender.sentence()}" for offender in found.offenders)
    raised = own("notSerializable", f"the call cannot be pickled:{lines}")
    raised.more["offenders"] = [msgspec.to_builtins(offender) for offender in found.offenders]
    return raised


def worker_command(pythons: Sequence[str], idle_secs: float) -> list[str]:
    """Return the command of a warm worker. It has no arguments of calls."""
    words = [*_versions(), f"{idle_secs:g}"]
    script = [_START, "function-worker", _worker_boot(), "\n".join(pythons)]
    return ["/bin/sh", "-c", *script, "loop", *words]


def _versions() -> tuple[str, str]:
    return "{}.{}".format(*sys.version_info), load_cloudpickle().__version__


@functools.cache
def _worker_boot() -> str:
    """Return Python text that runs the module of a worker that its first argument names. The
    packages above the modules are empty.
    """
    above = __package__ + "."
    texts = [("", ""), ("worker", "")]
    texts += [(m.__name__.removeprefix(above), _packed_text(m)) for m in _WORKER_MODULES]
    return f"""import base64,sys,types,zlib
s=sys.modules
for n,t in {texts!r}:
 m=types.ModuleType('jobscribe_call'+('.'+n if n else ''));u,_,k=m.__name__.rpartition('.')
 s[m.__name__]=m;m.__package__=u
 if u:setattr(s[u],k,m)
 if t:exec(compile(zlib.decompress(base64.b85decode(t)),'<jobscribe function '+n+'>','exec'),m.__dict__)
 else:m.__path__=[];m.__package__=m.__name__
sys.exit(getattr(s['jobscribe_call.worker'],sys.argv[1]).main(sys.argv[2:]))"""


def _packed_text(module: types.ModuleType) -> str:
    return base64.b85encode(zlib.compress(inspect.getsource(module).encode(), 9)).decode()


@functools.cache
def _boot() -> str:
    """Return Python text that runs `runner`, whose text it contains."""
    text = _packed_text(runner)
    return (
        f"import base64,zlib;exec(compile(zlib.decompress(base64.b85decode('{text}')),"
        "'<jobscribe function runner>','exec'))"
    )


def payload_of(words: Sequence[str], env: Mapping[str, str]) -> tuple[str, bytes]:
    """Return how a command sends its call (`inline` or `file`), and an inline payload. Empty if it
    is not the command of a function.
    """
    if not is_function_call(words):
        return "", b""
    if words[6] != "inline":
        return words[6], b""
    text = "".join(words[7:]) or env.get(runner.CALL, "")
    return words[6], zlib.decompress(base64.b64decode(text))
