"""The file of notification targets (YAML, `notify.file`): fields, their forms, and rules. All
problems are reported together, with their lines.

Only this file decides where notifications go; users and jobs have no influence. Secrets are in
separate files that it names. docs/notifications.md describes all fields.
"""

import os
import re
import ssl
import stat
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar, get_args
from urllib.parse import SplitResult, urlsplit

import msgspec

from ...protocol.errors import Refusal
from ...protocol.fields import SECONDS, Form, word
from ...protocol.ids import SimulationType, Uid
from ...schema.fields import shown
from ...schema.structs import Place
from . import site_file
from .secret_files import FileProblem, file_problems, is_loopback, is_weak

MAX_HEADERS = 30
#: An event to which a target can subscribe.
Event = Literal[
    "pending",
    "running",
    "held",
    "completed",
    "error",
    "canceled",
    "ended",
    "attemptEnded",
    "signInNeeded",
    "purged",
]
WORDS: tuple[Event, ...] = get_args(Event)
#: Headers that jobscribe sets itself.
_RESERVED_HEADERS = frozenset(
    {
        "content-type",
        "content-length",
        "host",
        "connection",
        "transfer-encoding",
        "idempotency-key",
        "user-agent",
    }
)
_RESERVED_PREFIX = "x-jobscribe-"
_MOST_BYTES = 64 * 1024


_URL_FORM = "an address such as https://host/path, at most 2000 characters"
_Url = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]{1,2000}\Z"), Form(_URL_FORM)]
_Argument = Annotated[str, msgspec.Meta(pattern=r"^[^\0]{0,4000}\Z"), Form("a text", word)]
_UserId = Annotated[Uid, Form("a user id: 8 letters or digits")]
_Type = Annotated[SimulationType, Form("a simulation type")]
_SecretFile = Annotated[str, Form("a file that only its owner can read", path=True)]

T = TypeVar("T")


class Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A notification target: a webhook (url) or a command. Empty filters match everything."""

    name: Annotated[
        str,
        msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z"),
        Form("lower-case letters, digits, _ and -, at most 40"),
    ]
    url: _Url | None = None
    command: Annotated[
        tuple[_Argument, ...],
        msgspec.Meta(min_length=1, max_length=100),
        Form("a list of 1 to 100 texts, the first one the absolute path of a program"),
    ] = ()
    on: Annotated[tuple[Event, ...], msgspec.Meta(min_length=1), Form(unique=True)] = ("ended",)
    users: Annotated[tuple[_UserId, ...], msgspec.Meta(max_length=1_000), Form(unique=True)] = ()
    simulation_types: Annotated[
        tuple[_Type, ...], msgspec.Meta(max_length=100), Form(unique=True)
    ] = ()
    drivers: Annotated[tuple[Literal["local", "docker", "sbatch"], ...], Form(unique=True)] = ()
    secret_file: _SecretFile | None = None
    headers_file: _SecretFile | None = None
    ca_file: Annotated[str, Form("a file with certificates (PEM)", path=True)] | None = None
    allow_http: bool = False
    timeout_secs: Annotated[float, msgspec.Meta(gt=0, le=600), SECONDS] = 10.0
    give_up_secs: Annotated[float, msgspec.Meta(gt=0, le=30 * 86_400), SECONDS] = 86_400.0
    max_parallel: Annotated[int, msgspec.Meta(ge=1, le=32)] = 4

    @property
    def kind(self) -> str:
        return "webhook" if self.url is not None else "command"

    @property
    def shown(self) -> str:
        """The destination for people and logs. A URL without its path, which may be a secret; or
        the program of a command.
        """
        if self.url is None:
            return self.command[0]
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


class _Targets(msgspec.Struct, frozen=True, kw_only=True):
    targets: Annotated[tuple[Target, ...], msgspec.Meta(min_length=1, max_length=50)]


def load(path: str) -> tuple[Target, ...]:
    """Return the targets in this file. Raises Refusal with all problems."""
    targets, found = read(path)
    if targets is None:
        raise site_file.combined(path, found)
    return targets


def read(path: str) -> tuple[tuple[Target, ...] | None, list[Refusal]]:
    """Return the targets, or all problems of the file."""

    def check(file: _Targets, place: Place) -> _Targets:
        # it names commands to execute, and receivers of notifications about all users' runs
        site_file.check_owner(path, place, "execute commands")
        names: dict[str, Place] = {}
        for target, at in zip(file.targets, place.each("targets"), strict=False):
            _check_target(target, at)
            if target.name and (first := names.setdefault(target.name, at)) is not at:
                at.error("name", f"it is also that of {first.path}", "each target has its own name")
        return file

    file, found = site_file.read(path, "notify.file", _Targets, check)
    return (None if file is None else file.targets), found


def secret_of(target: Target) -> str | None:
    """Return the signing key of a target. Raises Refusal."""
    path = target.secret_file
    return None if path is None else _content("secretFile", path, _secret)


def headers_of(target: Target) -> dict[str, str]:
    """Return the additional headers of a target. Raises Refusal."""
    path = target.headers_file
    return {} if path is None else _content("headersFile", path, _headers)


# ---- rules


def _check_target(target: Target, at: Place) -> None:
    if isinstance(at.data, dict) and at.given("url") == at.given("command"):
        at.error("", "it has both url and command, or neither", "either `url` or `command`")
    if target.url is not None:
        _check_url(target.url, target.allow_http, at)
    if target.command:
        _check_program(target.command[0], at)
        for key in ("secretFile", "headersFile", "caFile", "allowHttp"):
            if at.given(key):
                at.error(key, "it is only for targets with url", "remove this field")
    _check_content("secretFile", target.secret_file, _secret, at)
    _check_content("headersFile", target.headers_file, _headers, at)
    if target.ca_file is not None:
        try:
            ssl.create_default_context(cafile=target.ca_file)
        except (OSError, ssl.SSLError) as e:
            why = getattr(e, "strerror", None) or "it has no certificates"
            at.error("caFile", f"{target.ca_file}: {why}", "a file with certificates (PEM)")


def _check_content(key: str, path: str | None, parse: Callable[[str], object], at: Place) -> None:
    """Check a file with a secret. Skip its content if others could read it."""
    if path is None:
        return
    found = list(file_problems(path))
    if not found and isinstance(content := parse(path), FileProblem):
        found = [content]
    for problem in found:
        at.error(key, problem.problem, problem.right, unsafe=problem.unsafe)


def _check_url(text: str, allow_http: bool, at: Place) -> None:
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, SplitResult("", "", "", "", "")
    if not host or url.scheme not in ("http", "https"):
        at.error("url", f"it is {shown(text)}", _URL_FORM)
    elif url.username is not None or url.password is not None:
        at.error(
            "url",
            "it contains a user or password",
            "a file with the header, whose path is in headersFile",
            unsafe=True,
        )
    elif url.scheme == "http" and not is_loopback(host) and not allow_http:
        at.error(
            "url",
            "http can be read and changed in transit",
            "https (with caFile for your own certificate authority), or allowHttp: true in a trusted network",
            unsafe=True,
        )


def _check_program(program: str, at: Place) -> None:
    if not os.path.isabs(program):
        at.error("command", f"it begins with {shown(program)}", "the absolute path of a program")
        return
    try:
        found = os.stat(program)
    except OSError as e:
        why = e.strerror or "it cannot be opened"
        at.error("command", f"{program} cannot be used: {why}", "an existing program")
        return
    if not stat.S_ISREG(found.st_mode) or not os.access(program, os.X_OK):
        at.error("command", f"{program} cannot be executed", f"run: chmod +x {program}")
    elif found.st_mode & stat.S_IWOTH:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        at.error(
            "command",
            f"{program} can be changed by everybody (mode {mode})",
            f"run: chmod o-w {program}",
            unsafe=True,
        )


# ---- files with secrets


def _content(key: str, path: str, parse: Callable[[str], T | FileProblem]) -> T:
    """Return the content of a file that a field names. Raises Refusal."""
    for problem in file_problems(path):
        raise problem.refusal(key)
    content = parse(path)
    if isinstance(content, FileProblem):
        raise content.refusal(key)
    return content


def _secret(path: str) -> str | FileProblem:
    text = _text(path)
    if isinstance(text, FileProblem) or not is_weak(text.strip()):
        return text if isinstance(text, FileProblem) else text.strip()
    return FileProblem(
        f"the secret in {path} is easily guessed", "a strong one, as 'openssl rand -hex 32' creates"
    )


def _headers(path: str) -> dict[str, str] | FileProblem:
    """Parse lines `Name: value`. Errors do not contain the value, which may be a secret."""
    text = _text(path)
    if isinstance(text, FileProblem):
        return text
    right = "a header, as in 'Authorization: Bearer ...'"
    out: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if (
            not colon
            or not re.fullmatch(r"[A-Za-z0-9-]{1,100}", name)
            or not re.fullmatch(r"[\x20-\x7e\t]{1,4000}", value.strip())
        ):
            return FileProblem(f"{path}:{number}: it is not a header", right, False)
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIX):
            what = f"{path}:{number}: jobscribe sets {name} itself"
            return FileProblem(what, "remove this line", False)
        out[name] = value.strip()
    if not 0 < len(out) <= MAX_HEADERS:
        what = f"{path} has {len(out)} headers"
        return FileProblem(what, f"1 to {MAX_HEADERS}, one a line, each {right}", False)
    return out


def _text(path: str) -> str | FileProblem:
    try:
        with open(path, "rb") as f:
            return f.read(_MOST_BYTES).decode("ascii")
    except OSError as e:
        return FileProblem(f"{path} cannot be read: {e.strerror}", "a readable file", False)
    except UnicodeDecodeError:
        return FileProblem(f"{path} has other characters than ASCII", "a text in ASCII", False)
