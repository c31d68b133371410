"""A login node as one user sees it: our folder, the Python, the code sent there, and requests to
`agent/login_node`.

A request is one line of JSON through stdin, and the answer is one line. Other output of a login is
ignored.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ....protocol.clusters.cluster import Cluster
from ....protocol.errors import Refusal
from ....protocol.ids import printable
from ...contracts import FoundState
from .channel import Channel, CommandResult
from .code_archive import LEAST_PYTHON, PROBE, Code, build_code
from .wheel_tags import Python

MARK = "@@jobscribe@@ "
_PACKAGE = __name__.split(".")[0]
#: Time limit for a login profile (seconds). A profile that hangs on a lock or a file system is
#: skipped.
_PROFILE_SECS = 12
#: Prints the environment of a login shell. Not every shell accepts both options together.
_LOGIN = f"""
s=${{SHELL:-/bin/sh}}; ask='echo; echo "{MARK}"; env -0'
t=; command -v timeout >/dev/null 2>&1 && t='timeout -k 1 {_PROFILE_SECS}'
$t "$s" -l -c "$ask" </dev/null 2>/dev/null || $t "$s" -c "$ask" </dev/null 2>/dev/null || /bin/sh -c "$ask" </dev/null
"""
_UNPACKING = Path(__file__).resolve().parents[3] / "agent" / "login_node" / "code_unpacker.py"
#: Reads the text of agent/login_node/code_unpacker.py from stdin and executes it. The code unpacker
#: reads the rest of stdin.
_FEEDER = (
    "import sys;n=int(sys.stdin.buffer.readline());"
    "exec(compile(sys.stdin.buffer.read(n),'code_unpacker.py','exec'),{'__name__':'__main__'})"
)
_NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
#: Variables of the login environment that keeper and agent get.
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SLURM_CONF")
#: Time limit for sending code, which is long for slow connections (seconds).
_SEND_SECS = 300.0
#: Maximum length of a sentence from the login node (characters).
_ERROR_CHARS = 500
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=256)]
T = TypeVar("T")


class StartResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A keeper that was started or already ran. An answer of another form is refused before it is
    recorded.
    """

    number: _Number
    pid: _Number
    start_ticks: _Number
    boot_id: _Name
    host: _Name
    started: bool


class StartLogs(msgspec.Struct, frozen=True, kw_only=True):
    """Logs of a start: the previous agent log, and the output of the start."""

    before: bytes = b""
    output: bytes = b""


class FindResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `find`."""

    state: FoundState
    detail: str


class FileChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `tail`: bytes of a file and its size (bytes)."""

    data: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class LoginNode(msgspec.Struct, frozen=True, kw_only=True):
    """One login node. base: our folder on it. code: digest of the sent code; None: the supervisor's
    own installation is used.
    """

    base: str
    python: str
    environment: dict[str, str]
    code: str | None = None

    def folder(self, key: object) -> str:
        return f"{self.base}/agent/{key}"


class CodeCache:
    """Built code archives by interpreter. tried: combinations that were probed successfully, valid
    for all users.
    """

    def __init__(self) -> None:
        self.tried: set[tuple[str, str, str, str]] = set()
        self._made: dict[tuple[object, ...], Code] = {}

    async def code(self, python: Python, cluster: Cluster) -> Code:
        key = (python.implementation, python.version, python.machine, python.libc, cluster.wheels)
        if key not in self._made:
            self._made[key] = await asyncio.to_thread(build_code, python, cluster)
        return self._made[key]


async def prepare(
    channel: Channel, cluster: Cluster, deployment: str, codes: CodeCache
) -> LoginNode:
    """Prepare a login node: find our folder and a Python, and send the code if it is missing.
    Raises Refusal("agentUnavailable"), ChannelError.
    """
    login = await _login_environment(channel, cluster)
    base = f"{expand_folder(cluster, login).rstrip('/')}/jobscribe-{deployment}"
    environment = {k: login[k] for k in _KEPT_VARIABLES if k in login} | cluster.environment
    if cluster.access == "account":
        own = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        return LoginNode(base=base, python=sys.executable, environment=environment | own)
    python = await _find_python(channel, cluster, environment)
    code = await _send_code(channel, cluster, python, base, await codes.code(python, cluster))
    own = {"PYTHONPATH": f"{base}/code/{code}"}
    site = LoginNode(base=base, python=python.executable, environment=environment | own, code=code)
    if (probe_key := (cluster.name, channel.host, python.executable, code)) not in codes.tried:
        probe = await call(channel, cluster, site, "probe", {"base": base})
        if probe["missing"] is not None:
            raise Refusal("agentUnavailable", f"cluster {cluster.name}: {probe['missing']}")
        codes.tried.add(probe_key)
    return site


def expand_folder(cluster: Cluster, login: Mapping[str, str]) -> str:
    """Expand `~` and variables in the cluster's folder like a shell on the login node, without
    executing anything. Raises Refusal("agentUnavailable").
    """
    folder = cluster.folder
    if folder == "~" or folder.startswith("~/"):
        folder = "$HOME" + folder[1:]
    for match in _NAME.finditer(folder):
        name = match[1] or match[2]
        if not login.get(name):
            raise Refusal(
                "agentUnavailable",
                f"cluster {cluster.name}: its folder is {cluster.folder}, "
                f"but a login shell there does not set {name}",
            )
    path = os.path.normpath(_NAME.sub(lambda m: login[m[1] or m[2]], folder))
    if not path.startswith("/") or "\n" in path or "\0" in path:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: its folder {cluster.folder} expands to {path!r} there, "
            "which is not an absolute path",
        )
    return path


async def call(
    channel: Channel,
    cluster: Cluster,
    site: LoginNode,
    verb: str,
    request: dict[str, Any],
    secs: float | None = None,
) -> dict[str, Any]:
    """Call one verb of agent/login_node. `start` returns an answer with `error`; for other verbs an
    error is raised.

    Raises Refusal("agentUnavailable"), ChannelError.
    """
    argv = [*_env(site.environment), site.python, "-P", "-m", f"{_PACKAGE}.agent.login_node", verb]
    result = await channel.run(
        argv, json.dumps(request).encode() + b"\n", secs or cluster.call_secs
    )
    answer = _answer(result)
    if answer is None:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: {verb} by {site.python} failed there: {_last_line(result)}",
        )
    if "error" in answer:
        answer["error"] = error_text(answer["error"])
        if verb != "start":
            raise Refusal("agentUnavailable", f"cluster {cluster.name}: {answer['error']}")
    return answer


def error_text(text: object) -> str:
    """Return a remote sentence for people: printable and shortened. The account's owner controls
    the text.
    """
    return printable(str(text))[:_ERROR_CHARS]


def parse_answer(kind: type[T], answer: dict[str, Any], cluster: Cluster) -> T:
    """Convert an answer to its type. Raises Refusal("agentUnavailable")."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as e:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: invalid answer from the login node: {e}",
        ) from None


async def _login_environment(channel: Channel, cluster: Cluster) -> dict[str, str]:
    result = await channel.run(["/bin/sh", "-c", _LOGIN], secs=cluster.call_secs)
    _, mark, after = result.out.rpartition(MARK.encode())
    if not mark:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: {_no_access(cluster, channel)}{_last_line(result)}",
        )
    pairs = (
        entry.partition("=")
        for entry in after.lstrip(b"\n").decode("utf-8", "surrogateescape").split("\0")
    )
    return {name: value for name, is_set, value in pairs if is_set}


def _no_access(cluster: Cluster, channel: Channel) -> str:
    match cluster.access:
        case "sudo":
            return (
                f"sudo does not let the supervisor's user become {channel.user} "
                "(the operator adds a rule with NOPASSWD): "
            )
        case "runuser":
            return f"runuser does not become {channel.user}: "
        case _:
            return f"cannot run commands there as {channel.user}: "


async def _find_python(
    channel: Channel, cluster: Cluster, environment: Mapping[str, str]
) -> Python:
    """Return the first configured Python that is new enough. Each is executed, because a name alone
    does not show the version.
    """
    tried = []
    for name in cluster.pythons:
        result = await channel.run(
            [*_env(environment), name, "-I", "-c", PROBE], secs=cluster.call_secs
        )
        lines = [
            line
            for line in result.out.decode("utf-8", "replace").splitlines()
            if line.startswith("{")
        ]
        try:
            python = msgspec.json.decode(lines[-1] if lines else "", type=Python)
        except msgspec.DecodeError:
            tried.append(
                f"{name}: {_last_line(result)}"
                if result.code not in (126, 127)
                else f"{name}: not found"
            )
            continue
        if python.version >= LEAST_PYTHON and python.executable:
            return python
        tried.append(f"{name}: version {'.'.join(map(str, python.version))}")
    raise Refusal(
        "agentUnavailable",
        (
            f"cluster {cluster.name}: there is no Python {'.'.join(map(str, LEAST_PYTHON))} "
            f"or later for {channel.user} ({'; '.join(tried)}); "
            "the operator names one in `pythons` of the cluster"
        ),
    )


async def _send_code(
    channel: Channel, cluster: Cluster, python: Python, base: str, code: Code
) -> str:
    """Ensure that the code is on the login node, and return its digest."""
    for archive in (None, code.archive):
        request = {
            "base": base,
            "digest": code.digest,
            "sizes": code.sizes,
            "sent": archive is not None,
        }
        text = await asyncio.to_thread(_UNPACKING.read_bytes)
        stdin = b"%d\n%s%s\n%s" % (len(text), text, json.dumps(request).encode(), archive or b"")
        result = await channel.run(
            [python.executable, "-I", "-c", _FEEDER],
            stdin,
            max(cluster.call_secs, _SEND_SECS if archive else 0.0),
        )
        answer = _answer(result)
        if answer is None or "error" in answer:
            raise Refusal(
                "agentUnavailable",
                f"cluster {cluster.name}: {_last_line(result) if answer is None else error_text(answer['error'])}",
            )
        if answer.get("have"):
            return code.digest
    raise Refusal("agentUnavailable", f"cluster {cluster.name}: the code was sent but is missing")


def _env(environment: Mapping[str, str]) -> list[str]:
    return ["env", "-u", "PYTHONHOME", *(f"{name}={value}" for name, value in environment.items())]


def _answer(result: CommandResult) -> dict[str, Any] | None:
    for line in reversed(result.out.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            try:
                answer = json.loads(line[len(MARK) :])
            except (ValueError, RecursionError):
                return None
            return answer if isinstance(answer, dict) else None
    return None


def _last_line(result: CommandResult) -> str:
    """Return the last line of output, for a person."""
    lines = [
        line.strip()
        for line in (result.err or result.out).decode("utf-8", "replace").splitlines()
        if line.strip()
    ]
    return lines[-1][:500] if lines else f"exit code {result.code}"
