"""What a login node is like for one user: where our folder is, which Python there is, and that our
code lies there; and how it is asked.

A line of JSON goes to `agent/remote` by stdin and one comes back. What a login prints besides is
passed over.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ....protocol.clusters.cluster import Cluster
from ....protocol.errors import Refusal
from ....protocol.ids import printable
from .channel import Channel, Ran
from .code_archive import LEAST_PYTHON, PROBE, Code, made_for
from .wheel_tags import Python

MARK = "@@jobscribe@@ "
_PACKAGE = __name__.split(".")[0]
#: A profile may take so long; of one that hangs (on a lock that somebody left, on a file system)
#: nothing is taken.
_PROFILE_SECS = 12
#: What a login shell has set, however it has to be asked: not every shell takes both options
#: together.
_LOGIN = f"""
s=${{SHELL:-/bin/sh}}; ask='echo; echo "{MARK}"; env -0'
t=; command -v timeout >/dev/null 2>&1 && t='timeout -k 1 {_PROFILE_SECS}'
$t "$s" -l -c "$ask" </dev/null 2>/dev/null || $t "$s" -c "$ask" </dev/null 2>/dev/null || /bin/sh -c "$ask" </dev/null
"""
_UNPACKING = Path(__file__).resolve().parents[3] / "agent" / "login_node" / "code_unpacker.py"
#: Reads the text of agent/login_node/code_unpacker.py and executes it; the rest of stdin is what
#: that wants.
_FEEDER = (
    "import sys;n=int(sys.stdin.buffer.readline());"
    "exec(compile(sys.stdin.buffer.read(n),'code_unpacker.py','exec'),{'__name__':'__main__'})"
)
_NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
#: Of the login's own environment keeper and agent get these.
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SLURM_CONF")
#: Code for a slow connection may take longer than a question.
_SEND_SECS = 300.0
#: More of a sentence from there is not told.
_TOLD = 500
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=256)]
T = TypeVar("T")


class Started(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A keeper that was started, or was there. started: neither is on record before it is of this
    form.
    """

    number: _Number
    pid: _Number
    start_ticks: _Number
    boot_id: _Name
    host: _Name
    started: bool


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """Of a start: the log as it was before, and what was said meanwhile."""

    before: bytes = b""
    output: bytes = b""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    state: Literal["alive", "gone", "unknown"]
    detail: str


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    data: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class LoginNode(msgspec.Struct, frozen=True, kw_only=True):
    """base: our folder there. code: the digest of what was sent; None: the supervisor's own
    installation is used.
    """

    base: str
    python: str
    environment: dict[str, str]
    code: str | None = None

    def folder(self, key: object) -> str:
        return f"{self.base}/agent/{key}"


class CodeCache:
    """What is sent, by the Python that it is for: made once. tried: where it was seen to work; one
    user's try shows that for all.
    """

    def __init__(self) -> None:
        self.tried: set[tuple[str, str, str, str]] = set()
        self._made: dict[tuple[object, ...], Code] = {}

    async def code(self, python: Python, cluster: Cluster) -> Code:
        key = (python.implementation, python.version, python.machine, python.libc, cluster.wheels)
        if key not in self._made:
            self._made[key] = await asyncio.to_thread(made_for, python, cluster)
        return self._made[key]


async def look(channel: Channel, cluster: Cluster, deployment: str, codes: CodeCache) -> LoginNode:
    """Raises Refusal("agentUnavailable"), ChannelError."""
    login = await _login(channel, cluster)
    base = f"{expanded(cluster, login).rstrip('/')}/jobscribe-{deployment}"
    environment = {k: login[k] for k in _KEPT if k in login} | cluster.environment
    if cluster.access == "account":
        own = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        return LoginNode(base=base, python=sys.executable, environment=environment | own)
    python = await _python(channel, cluster, environment)
    code = await _sent(channel, cluster, python, base, await codes.code(python, cluster))
    own = {"PYTHONPATH": f"{base}/code/{code}"}
    site = LoginNode(base=base, python=python.executable, environment=environment | own, code=code)
    if (way := (cluster.name, channel.host, python.executable, code)) not in codes.tried:
        there = await ask(channel, cluster, site, "probe", {"base": base})
        if there["missing"] is not None:
            raise Refusal("agentUnavailable", f"cluster {cluster.name}: {there['missing']}")
        codes.tried.add(way)
    return site


def expanded(cluster: Cluster, login: Mapping[str, str]) -> str:
    """The cluster's folder, as a shell would read it there; nothing is executed for it. Raises
    Refusal("agentUnavailable").
    """
    folder = cluster.folder
    if folder == "~" or folder.startswith("~/"):
        folder = "$HOME" + folder[1:]
    for match in _NAME.finditer(folder):
        name = match[1] or match[2]
        if not login.get(name):
            sentence = f"cluster {cluster.name}: its folder is {cluster.folder}, and a login shell there does not set {name}"
            raise Refusal("agentUnavailable", sentence)
    path = os.path.normpath(_NAME.sub(lambda m: login[m[1] or m[2]], folder))
    if not path.startswith("/") or "\n" in path or "\0" in path:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: its folder {cluster.folder} is {path!r} there, no absolute path",
        )
    return path


async def ask(
    channel: Channel,
    cluster: Cluster,
    site: LoginNode,
    verb: str,
    request: dict[str, Any],
    secs: float | None = None,
) -> dict[str, Any]:
    """One verb of agent/remote; an answer with `error` is one that has it. Raises
    Refusal("agentUnavailable"), ChannelError.
    """
    argv = [*_env(site.environment), site.python, "-P", "-m", f"{_PACKAGE}.agent.login_node", verb]
    ran = await channel.run(argv, json.dumps(request).encode() + b"\n", secs or cluster.call_secs)
    answer = _answer(ran)
    if answer is None:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: {verb} by {site.python} failed there: {_words(ran)}",
        )
    if "error" in answer:
        answer["error"] = told(answer["error"])
        if verb != "start":
            raise Refusal("agentUnavailable", f"cluster {cluster.name}: {answer['error']}")
    return answer


def told(said: object) -> str:
    """A sentence from there, for people. Whoever controls the account there may have said anything,
    at any length.
    """
    return printable(str(said))[:_TOLD]


def read_as(kind: type[T], answer: dict[str, Any], cluster: Cluster) -> T:
    """An answer in the form that it must have. Raises Refusal("agentUnavailable")."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as e:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: what answers there is not what was sent there: {e}",
        ) from None


async def _login(channel: Channel, cluster: Cluster) -> dict[str, str]:
    ran = await channel.run(["/bin/sh", "-c", _LOGIN], secs=cluster.call_secs)
    _, mark, after = ran.out.rpartition(MARK.encode())
    if not mark:
        raise Refusal(
            "agentUnavailable",
            f"cluster {cluster.name}: {_no_entry(cluster, channel)}{_words(ran)}",
        )
    pairs = (
        entry.partition("=")
        for entry in after.lstrip(b"\n").decode("utf-8", "surrogateescape").split("\0")
    )
    return {name: value for name, is_set, value in pairs if is_set}


def _no_entry(cluster: Cluster, channel: Channel) -> str:
    match cluster.access:
        case "sudo":
            return f"sudo does not let the supervisor's user become {channel.user} (the operator adds a rule with NOPASSWD): "
        case "runuser":
            return f"runuser does not become {channel.user}: "
        case _:
            return f"no command can be executed there as {channel.user}: "


async def _python(channel: Channel, cluster: Cluster, environment: Mapping[str, str]) -> Python:
    """The first one that is new enough. Found by executing it: what a name leads to is only known
    then.
    """
    tried = []
    for name in cluster.pythons:
        ran = await channel.run(
            [*_env(environment), name, "-I", "-c", PROBE], secs=cluster.call_secs
        )
        lines = [
            line for line in ran.out.decode("utf-8", "replace").splitlines() if line.startswith("{")
        ]
        try:
            python = msgspec.json.decode(lines[-1] if lines else "", type=Python)
        except msgspec.DecodeError:
            tried.append(
                f"{name}: {_words(ran)}" if ran.code not in (126, 127) else f"{name}: not there"
            )
            continue
        if python.version >= LEAST_PYTHON and python.executable:
            return python
        tried.append(f"{name}: it is {'.'.join(map(str, python.version))}")
    raise Refusal(
        "agentUnavailable",
        (
            f"cluster {cluster.name}: there is no Python {'.'.join(map(str, LEAST_PYTHON))} or later for {channel.user} ({'; '.join(tried)}); "
            "the operator names one in `pythons` of the cluster"
        ),
    )


async def _sent(channel: Channel, cluster: Cluster, python: Python, base: str, code: Code) -> str:
    """The digest, when the code lies there."""
    for archive in (None, code.archive):
        request = {
            "base": base,
            "digest": code.digest,
            "sizes": code.sizes,
            "sent": archive is not None,
        }
        text = await asyncio.to_thread(_UNPACKING.read_bytes)
        stdin = b"%d\n%s%s\n%s" % (len(text), text, json.dumps(request).encode(), archive or b"")
        ran = await channel.run(
            [python.executable, "-I", "-c", _FEEDER],
            stdin,
            max(cluster.call_secs, _SEND_SECS if archive else 0.0),
        )
        answer = _answer(ran)
        if answer is None or "error" in answer:
            raise Refusal(
                "agentUnavailable",
                f"cluster {cluster.name}: {_words(ran) if answer is None else told(answer['error'])}",
            )
        if answer.get("have"):
            return code.digest
    raise Refusal("agentUnavailable", f"cluster {cluster.name}: the code was sent and is not there")


def _env(environment: Mapping[str, str]) -> list[str]:
    return ["env", "-u", "PYTHONHOME", *(f"{name}={value}" for name, value in environment.items())]


def _answer(ran: Ran) -> dict[str, Any] | None:
    for line in reversed(ran.out.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            try:
                said = json.loads(line[len(MARK) :])
            except (ValueError, RecursionError):
                return None
            return said if isinstance(said, dict) else None
    return None


def _words(ran: Ran) -> str:
    """The last that it said, for a person."""
    lines = [
        line.strip()
        for line in (ran.err or ran.out).decode("utf-8", "replace").splitlines()
        if line.strip()
    ]
    return lines[-1][:500] if lines else f"exit code {ran.code}"
