"""The file of notification targets (YAML, `notify.file`): the parser and all checks. All mistakes
are reported together, with their lines.

Only this file decides where notifications go; users and jobs have no influence. Secrets are in
separate files that it names. Relative paths are relative to the file. docs/notifications.md
describes all fields.
"""

import os
import re
import ssl
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from ...protocol.errors import Refusal
from ...schema.fields import InvalidValue
from ...schema.text.yaml_structs import (
    Fields,
    Notes,
    Part,
    Wrong,
    combined_refusal,
    matching,
    read_mapping,
)
from ...schema.text.yaml_subset import LocatedMapping
from ..settings.value_parsers import seconds
from .secret_files import file_problems, is_loopback, is_weak

MAX_TARGETS, MAX_ARGUMENTS, MAX_HEADERS = 50, 100, 30
#: Events to which a target can subscribe.
WORDS = (
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
)
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


class Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A notification target: a webhook (url) or a command. Empty filters match everything."""

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    on: tuple[str, ...] = ("ended",)
    users: tuple[str, ...] = ()
    simulation_types: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    secret_file: str | None = None
    headers_file: str | None = None
    ca_file: str | None = None
    allow_http: bool = False
    timeout_secs: float = 10.0
    give_up_secs: float = 86_400.0
    max_parallel: int = 4

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


class _TargetsFile(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[Target, ...]


_TIME = "more than 0 seconds and at most 10 minutes, as in 10 or 1:30"
#: The expected form of each field, for error messages.
FORMS = {
    "targets": f"a list of 1 to {MAX_TARGETS} targets, each a mapping with name, and url or command",
    "name": "lower-case letters, digits, _ and -, at most 40",
    "url": "an address such as https://host/path, at most 2000 characters",
    "command": f"a list of 1 to {MAX_ARGUMENTS} texts, the first one the absolute path of a program",
    "on": f"a list of some of {', '.join(WORDS)}, each once",
    "users": "a list of user ids, each 8 letters or digits",
    "simulationTypes": "a list of simulation types",
    "drivers": "a list of drivers, such as [local, sbatch]",
    "secretFile": "the path of a file that only its owner can read",
    "headersFile": "the path of a file that only its owner can read",
    "caFile": "the path of a file with certificates (PEM)",
    "allowHttp": "true or false",
    "timeoutSecs": _TIME,
    "giveUpSecs": "more than 0 seconds and at most 30 days, as in 3600 or 1d00:00:00",
    "maxParallel": "a whole number from 1 to 32",
}


def load(path: str) -> tuple[Target, ...]:
    """Return the targets in this file. Raises Refusal with all mistakes."""
    targets, found = read(path)
    if targets is not None:
        return targets
    raise combined_refusal(f"the file of notifications {path}", found)


def read(path: str) -> tuple[tuple[Target, ...] | None, list[Refusal]]:
    """Return the targets, or all mistakes of the file."""
    try:
        given = read_mapping(path, "notify.file", "targets; etc/notifications.example.yml is one")
        _check_owner(path)
    except Refusal as e:
        return None, [e]
    notes = Notes(path)
    parts = _parts(path, given, notes.wrong)
    names: dict[str, Part] = {}
    for part in parts:
        _check_target(part, notes.wrong)
        name = part.values.get("name", "")
        if name and names.setdefault(name, part) is not part:
            first = names[name].line("name")
            notes.wrong(
                part,
                "name",
                f"{name} is also the name of the target in line {first}; each target needs its own name",
            )
    found = notes.found()
    return (None, found) if found else (tuple(Target(**part.values) for part in parts), [])


def secret_of(target: Target) -> str | None:
    """Return the signing key of a target. Raises Refusal."""
    if target.secret_file is None:
        return None
    for problem in (
        *(p.refusal("secretFile") for p in file_problems(target.secret_file)),
        *_weak_secret_problems(target.secret_file),
    ):
        raise problem
    return _read_text(target.secret_file).strip()


def headers_of(target: Target) -> dict[str, str]:
    """Return the additional headers of a target. Raises Refusal."""
    if target.headers_file is None:
        return {}
    for problem in file_problems(target.headers_file):
        raise problem.refusal("headersFile")
    return _read_headers(target.headers_file)


def _parts(path: str, given: LocatedMapping, wrong: Wrong) -> list[Part]:
    fields = Fields(
        path, wrong, forms=FORMS, read=_READ, paths=("secretFile", "headersFile", "caFile")
    )
    whole = fields.part(_TargetsFile, given, "", left=("targets",))
    if "targets" not in given:
        return []
    value = given["targets"]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TARGETS:
        fields.unfit(whole, "targets", value)
        return []
    return fields.each(
        whole, Target, {f"targets[{n}]": each for n, each in enumerate(value)}, "targets"
    )


# ---- checks of combinations


def _check_target(part: Part, wrong: Wrong) -> None:
    given, values = part.given, part.values
    if ("url" in given) == ("command" in given):
        wrong(part, "", "a target needs either url or command, not both", "badConfig")
    if "url" in values:
        _check_url(part, wrong)
    if "command" in values:
        for what, code in _program_problems(values["command"][0]):
            wrong(part, "command", what, code)
        for name in ("secretFile", "headersFile", "caFile", "allowHttp"):
            if name in given:
                wrong(
                    part,
                    name,
                    "is only for targets with url; remove it",
                    "badConfig",
                )
    for field, name, check in (
        ("secretFile", "secret_file", _weak_secret_problems),
        ("headersFile", "headers_file", _header_problems),
    ):
        if values.get(name) is not None:
            for problem in _file_or_content_problems(
                (p.refusal(field) for p in file_problems(values[name])), check, values[name]
            ):
                wrong(part, "", problem.sentence, problem.code)
    if values.get("ca_file") is not None:
        for problem in _ca_problems(values["ca_file"]):
            wrong(part, "caFile", problem.sentence, problem.code)


def _file_or_content_problems(
    first: Iterator[Refusal], then: Callable[[str], Iterator[Refusal]], path: str
) -> list[Refusal]:
    """Skip content checks if the file itself has problems, such as being readable by others."""
    return list(first) or list(then(path))


def _check_url(part: Part, wrong: Wrong) -> None:
    try:
        url = urlsplit(part.values["url"])
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, SplitResult("", "", "", "", "")
    if not host or url.scheme not in ("http", "https"):
        wrong(part, "url", f"must be {FORMS['url']}", "badConfig")
    elif url.username is not None or url.password is not None:
        wrong(
            part,
            "url",
            "must not contain a user or password; put the header into a file and name that file in headersFile",
            "unsafe",
        )
    elif url.scheme == "http" and not is_loopback(host) and not part.values.get("allow_http"):
        what = "http can be read and changed in transit: use https (with caFile for your own certificate authority), or"
        wrong(part, "url", f"{what} set allowHttp: true in a trusted network", "unsafe")


def _program_problems(program: str) -> Iterator[tuple[str, str]]:
    """Yield (problem, error code)."""
    try:
        found = os.stat(program)
    except OSError as e:
        yield f"{program} cannot be used: {e.strerror}; name an existing program", "badConfig"
        return
    if not stat.S_ISREG(found.st_mode) or not os.access(program, os.X_OK):
        yield f"{program} cannot be executed; run: chmod +x {program}", "badConfig"
    elif found.st_mode & stat.S_IWOTH:
        yield (
            f"{program} can be changed by everybody (mode {stat.S_IMODE(found.st_mode):04o}); run: chmod o-w {program}",
            "unsafe",
        )


def _check_owner(path: str) -> None:
    """Check that only this user can write the file: it names commands to execute and receivers of
    notifications about all users' runs.
    """
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()):
        raise Refusal(
            "unsafe",
            f"notify.file: {path} belongs to another user (uid {found.st_uid}), who could execute commands",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise Refusal(
            "unsafe",
            f"notify.file: {path} can be changed by others (mode {mode}); run: chmod go-w {path}",
        )


def _weak_secret_problems(path: str) -> Iterator[Refusal]:
    try:
        secret = _read_text(path).strip()
    except Refusal as problem:
        yield problem
        return
    if is_weak(secret):
        yield Refusal(
            "unsafe",
            f"secretFile: the secret in {path} is easily guessed; 'openssl rand -hex 32' creates a strong one",
        )


def _header_problems(path: str) -> Iterator[Refusal]:
    try:
        _read_headers(path)
    except Refusal as problem:
        yield problem


def _read_headers(path: str) -> dict[str, str]:
    """Parse lines `Name: value`. Errors do not contain the value, which may be a secret."""
    out: dict[str, str] = {}
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if (
            not colon
            or not re.fullmatch(r"[A-Za-z0-9-]{1,100}", name)
            or not re.fullmatch(r"[\x20-\x7e\t]{1,4000}", value.strip())
        ):
            raise Refusal(
                "badConfig",
                f"headersFile: {path}:{number}: must be a header, as in 'Authorization: Bearer ...'",
            )
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIX):
            raise Refusal(
                "badConfig",
                f"headersFile: {path}:{number}: jobscribe sets {name} itself; remove it",
            )
        out[name] = value.strip()
    if not 0 < len(out) <= MAX_HEADERS:
        what = (
            f"must have 1 to {MAX_HEADERS} headers, one a line, as in 'Authorization: Bearer ...'"
        )
        raise Refusal("badConfig", f"headersFile: {path} {what}")
    return out


def _ca_problems(path: str) -> Iterator[Refusal]:
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as e:
        yield Refusal(
            "badConfig",
            f"{path} cannot be read as certificates (PEM): {getattr(e, 'strerror', None) or 'it has no certificates'}",
        )


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as f:
            return f.read(_MOST_BYTES).decode("ascii")
    except OSError as e:
        raise Refusal("badConfig", f"{path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise Refusal("badConfig", f"{path} must contain only ASCII characters") from None


# ---- values


def _span(most: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        secs = seconds(value)
        if not 0 < secs <= most:
            raise InvalidValue("")
        return secs

    return read


def _each(pattern: str, most: int) -> Callable[[Any], list[str]]:
    """Return a reader of a list of different texts of this form, with at least one item."""
    form = re.compile(pattern, re.ASCII)

    def read(value: Any) -> list[str]:
        if (
            not isinstance(value, list)
            or not 0 < len(value) <= most
            or not all(isinstance(v, str) and form.fullmatch(v) for v in value)
        ):
            raise InvalidValue("")
        if len(set(value)) != len(value):
            raise InvalidValue("")
        return value

    return read


def _argv(value: Any) -> Sequence[str]:
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= MAX_ARGUMENTS
        or not all(isinstance(v, str | int) for v in value)
    ):
        raise InvalidValue("")
    out = [str(v) for v in value]
    if not os.path.isabs(out[0]) or any("\0" in v or len(v) > 4_000 for v in out):
        raise InvalidValue("")
    return out


def _few(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 32:
        raise InvalidValue("")
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "name": matching(r"[a-z0-9][a-z0-9_-]{0,39}"),
    "url": matching(r"[\x21-\x7e]{1,2000}"),
    "command": _argv,
    "on": _each("|".join(WORDS), len(WORDS)),
    "users": _each(r"[A-Za-z0-9]{8}", 1_000),
    "simulationTypes": _each(r"[a-z][a-z0-9_]{0,31}", 100),
    "drivers": _each("local|docker|sbatch", 3),
    "timeoutSecs": _span(600.0),
    "giveUpSecs": _span(30 * 86_400.0),
    "maxParallel": _few,
}
