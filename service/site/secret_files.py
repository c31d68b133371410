"""Checks of secret files and listener addresses that several site files share.

No site file is read here, so every module of this package may import this one.
"""

import ipaddress
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from ...protocol.errors import Refusal

MIN_SECRET_LENGTH = 20
_MIN_DIFFERENT_CHARACTERS = 8
_MAX_CHARS = 64 * 1024
_EXAMPLES = (
    "secret",
    "password",
    "changeme",
    "change-me",
    "example",
    "default",
    "development",
    "jobscribe",
)


def read_secret(
    path: str,
    setting: str = "supervisor.server_secret_file",
    *,
    several: bool = False,
    owner: int | None = None,
) -> str:
    """Return the secret in the file that a setting names. Raises Refusal("unsafe") if others can
    read the file, or if the secret is weak. several: the file has a secret at the start of each
    line; return the whole text. owner: another unix user who may own it.
    """
    for problem in file_problems(path, owner):
        raise problem.refusal(setting)
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read(_MAX_CHARS).strip()
    except OSError as e:
        raise Refusal(
            "badConfig", f"the secret in {path} cannot be read: {e.strerror or e}"
        ) from None
    except UnicodeDecodeError:
        raise Refusal("badConfig", f"the secret in {path} cannot be read: it is no text") from None
    for secret in [row.split(" ")[0] for row in text.splitlines()] if several else [text]:
        _check_strength(secret, path)
    return text


def _check_strength(secret: str, path: str) -> None:
    """Raise Refusal("unsafe") for a secret that can be guessed."""
    if is_weak(secret):
        raise unsafe(
            f"the secret in {path} is easily guessed; 'openssl rand -hex 32' creates a strong one"
        )
    if any(word in secret.lower() for word in _EXAMPLES):
        raise unsafe(
            f"the secret in {path} is from an example; 'openssl rand -hex 32' creates a strong one"
        )
    if not secret.isascii() or not secret.isprintable():
        raise unsafe(
            f"the secret in {path} must be one line of plain characters;"
            " 'openssl rand -hex 32' creates one"
        )


class FileProblem(NamedTuple):
    """A reason why a file must not contain a secret. right: a file that may."""

    problem: str
    right: str
    unsafe: bool = True

    def refusal(self, name: str) -> Refusal:
        """name: the setting or field that names the file."""
        code = "unsafe" if self.unsafe else "badConfig"
        return Refusal(code, f"{name}: {self.problem}; right: {self.right}")


def file_problems(path: str, owner: int | None = None) -> Iterator[FileProblem]:
    """Yield reasons why this file must not contain a secret. owner: another unix user who may own
    it.
    """
    try:
        found = os.stat(path)
    except OSError as e:
        why = e.strerror or "it cannot be opened"
        yield FileProblem(f"{path} cannot be read: {why}", "a readable file", False)
        return
    if not stat.S_ISREG(found.st_mode):
        yield FileProblem(f"{path} is not a regular file", "a regular file")
    if found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        yield FileProblem(
            f"{path} is accessible to others (mode {mode})",
            f"mode 0600 (run: chmod 600 {path})",
        )
    if found.st_uid not in (0, os.geteuid(), owner):
        yield FileProblem(
            f"{path} belongs to another user (uid {found.st_uid})", "a file of this user or of root"
        )


def is_weak(secret: str) -> bool:
    return len(secret) < MIN_SECRET_LENGTH or len(set(secret)) < _MIN_DIFFERENT_CHARACTERS


def is_loopback(ip: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    if ip == "localhost":
        return True
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def sends_in_clear(url: str) -> bool:
    """Return whether others on the network can read what is sent to this address."""
    try:
        parts = urlsplit(url)
        return parts.scheme != "https" and not is_loopback(parts.hostname or "")
    except ValueError:
        return True


def unsafe(sentence: str) -> Refusal:
    return Refusal("unsafe", sentence)
