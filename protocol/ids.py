"""Ids and names: their shapes, how they are parsed, and how they are shortened for people.

An id is parsed once, at the edge of the system, and trusted afterwards. All shapes are plain ASCII,
so this module rejects NUL, slashes, `..` and look-alikes from other alphabets.
"""

import enum
import functools
import re
from typing import Annotated, Any, get_args

import msgspec

from .errors import Refusal
from .fields import Form
from .redaction import AGENT_SHORT, OP_SHORT, UID_SHORT

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
OP_ID_LENGTH = 32

Uid = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{8}\Z"), Form("8 letters or digits")]
Sid = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{8}\Z"), Form("8 letters or digits")]
SimulationType = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,31}\Z"),
    Form("a small letter, then small letters, digits or _, at most 32"),
]
ComputeModel = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}\Z"),
    Form("a letter, then letters, digits or _, at most 64"),
]
ComputeJid = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}\Z"),
    Form("uid-simulationId-computeModel"),
]
OpId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{32}\Z"), Form("32 letters or digits")]
AgentId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{32}\Z"), Form("32 letters or digits")]
ReqId = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{8,64}\Z"),
    Form("8 to 64 letters, digits or _ . : -"),
]
Role = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}\Z"),
    Form("a letter, then letters, digits or _, at most 32"),
]
#: A file of a library: no separator, no control character, no blank at either end, and no non-ASCII
#: look-alike.
LibName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_](?:[A-Za-z0-9_.+=@(), -]{0,126}[A-Za-z0-9_.+=@)-])?\Z"),
    Form(
        "letters, digits, blanks and _ . + = @ ( ) , - (at most 128), beginning with a letter, digit or _"
    ),
]
Driver = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z][a-z0-9]{0,15}\Z"),
    Form("a small letter, then small letters or digits, at most 16"),
]
Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}\Z")]
#: A command argument or the value of an environment variable; `EnvName` is the name of a variable.
Arg = Annotated[
    str,
    msgspec.Meta(pattern=r"^[^\0]*\Z", max_length=128 * 1024),
    Form("a text without NUL"),
]
EnvName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z"),
    Form("letters, digits and _, not a digit first, at most 128"),
    Form("the name of a variable: letters, digits and _, not a digit first, at most 128"),
]
Serial = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Ordinal = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Index = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]

#: A word that a user attaches to a job, by which lists are filtered.
Tag = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9._:@/+=-]{1,64}\Z"),
    Form("1 to 64 letters, digits or . _ : @ / + = -"),
]

_SHAPES: dict[str, Any] = {
    "uid": Uid,
    "simulationId": Sid,
    "simulationType": SimulationType,
    "computeModel": ComputeModel,
    "computeJid": ComputeJid,
    "opId": OpId,
    "agentId": AgentId,
    "name": LibName,
    "reqId": ReqId,
    "tag": Tag,
    "role": Role,
}
#: The queue that every site has.
DEFAULT_QUEUE = "default"


class Token(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The fencing token: identifies one execution of one task. An agent starts a token at most
    once.

    `str()` gives `<computeJid>/<serial>/<attempt>/<role>/<index>`; `name` is the same as one file
    name.
    """

    jid: ComputeJid
    serial: Serial
    attempt: Ordinal
    role: Role
    index: Index

    def __str__(self) -> str:
        return f"{self.jid}/{self.serial}/{self.attempt}/{self.role}/{self.index}"

    @property
    def name(self) -> str:
        return f"{self.jid}-{self.serial}-{self.attempt}-{self.role}-{self.index}"


class AgentKind(enum.StrEnum):
    """Kind of work of an agent: runs of one kind, or the containers of a user's tasks."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    CONTAINER = "container"


class AgentKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Identifies an agent: one user and kind on one driver and host. `str()` gives
    `<driver>.<kind>.<uid>@<host>`.

    Kind `container` has no agent process: it stands for the containers of a user's tasks on that
    host, and their driver reports for it.
    """

    driver: Driver
    kind: AgentKind
    uid: Uid
    host: Host

    def __str__(self) -> str:
        return f"{self.driver}.{self.kind}.{self.uid}@{self.host}"


def parse(kind: str, value: Any) -> str:
    """Return `value` if it has the shape of `kind` (a key such as "uid"). Raises
    Refusal("badRequest") otherwise.
    """
    shape = _SHAPES[kind]
    try:
        return str(msgspec.convert(value, shape))
    except msgspec.ValidationError:
        right = next(each.right for each in get_args(shape) if isinstance(each, Form))
        raise Refusal("badRequest", f"{kind} must be {right}; got {_quoted(value)}") from None


def parse_token(text: str) -> Token:
    """Parse the text that `str(token)` gave. Raises Refusal("badRequest")."""
    try:
        jid, serial, attempt, role, index = text.split("/")
        return msgspec.convert(
            [jid, _number(serial), _number(attempt), role, _number(index)], Token
        )
    except (ValueError, msgspec.ValidationError):
        raise Refusal(
            "badRequest",
            f"a task is named computeJid/serial/attempt/role/index; got {_quoted(text)}",
        ) from None


def _number(text: str) -> int:
    """Parse plain digits only: `int` also accepts signs, blanks, underscores and digits of other
    alphabets.
    """
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text[:20])


def parse_agent_key(text: str) -> AgentKey:
    """Parse the text that `str(key)` gave. Raises Refusal("badRequest")."""
    try:
        driver, kind, rest = text.split(".", 2)
        uid, host = rest.split("@", 1)
        return msgspec.convert([driver, kind, uid, host], AgentKey)
    except (ValueError, msgspec.ValidationError):
        raise Refusal(
            "badRequest", f"an agent is named driver.kind.uid@host; got {_quoted(text)}"
        ) from None


def compute_jid(uid: str, sid: str, model: str) -> str:
    return parse("computeJid", f"{uid}-{sid}-{model}")


def split_jid(jid: str) -> tuple[str, str, str]:
    """Split a valid computeJid into (uid, simulationId, computeModel)."""
    uid, sid, model = jid.split("-", 2)
    return uid, sid, model


@functools.lru_cache(maxsize=4096)
def op_id(token: Token, op: str, number: int = 0) -> str:
    """Return the opId of an op about one execution. It is derived from its arguments, so a repeated
    op has the same id. Cached, because messages, effects and log lines of an execution need it.
    """
    return derived_id(f"{token}|{op}|{number}".encode(), key=b"jobscribe op")


def execution_log_ids(token: Token) -> dict[str, str]:
    """Return the ids that a log line about an execution carries: the job, the op that runs it, and
    the attempt.
    """
    return {"jid": token.jid, "op": short_op(op_id(token, "run")), "attempt": str(token.attempt)}


def agent_log_ids(key: AgentKey) -> dict[str, str]:
    """Return the ids that a log line about an agent carries."""
    return {"uid": key.uid, "driver": key.driver, "host": key.host}


def derived_id(data: bytes, *, key: bytes) -> str:
    """Return a keyed digest of `data` as 32 letters or digits."""
    from hashlib import blake2b  # loads OpenSSL, which an app's job command does not need

    number = int.from_bytes(blake2b(data, digest_size=32, key=key[:64]).digest(), "big")
    out = []
    for _ in range(OP_ID_LENGTH):
        number, digit = divmod(number, 62)
        out.append(_BASE62[digit])
    return "".join(out)


def base62(raw: bytes, length: int) -> str:
    """Convert random bytes to `length` letters or digits. Pass at least `length` bytes."""
    return "".join(_BASE62[b % 62] for b in raw[:length])


def short_agent(agent_id: str) -> str:
    return agent_id[:AGENT_SHORT]


def short_op(op_id_: str | None) -> str:
    return "None" if op_id_ is None else op_id_[:OP_SHORT]


def short_uid(uid: str) -> str:
    return uid[:UID_SHORT]


def _quoted(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


_PRINTABLE = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """Replace control and non-ASCII characters by `?`, so that names from untrusted sources can be
    printed to a terminal.
    """
    return _PRINTABLE.sub("?", text)
