"""Sign-in credentials for clusters: read from files, standard input or the terminal. They are sent
once and never stored.
"""

import base64
import binascii
import getpass
import sys
from pathlib import Path

import click

from .session import Session

#: Limit in characters for a line and a key file. A key with its certificate is much shorter.
_MAX_CHARS = 64 * 1024
_OPENSSH = b"openssh-key-v1\0"


def credentials(
    s: Session,
    host: str,
    user: str | None,
    password_stdin: bool,
    key: str | None,
    certificate: str | None,
) -> dict[str, str | None]:
    """Return the keyword arguments of `Client.sign_in`. Raises click.UsageError."""
    given: dict[str, str | None] = {"username": user}
    if key is not None:
        given["private_key"] = _remember(s, _read_file(key))
        given["certificate"] = None if certificate is None else _read_file(certificate)
    if password_stdin:
        given["password"], given["otp"] = _remember(s, _read_line()), _remember(s, _read_line())
        if key is not None and _is_encrypted(given["private_key"] or ""):
            given["passphrase"], given["password"], given["otp"] = (
                given["password"],
                given["otp"],
                None,
            )
        return {**given, "username": user or getpass.getuser()}
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal: use --password-stdin")
    given["username"] = user or click.prompt(f"User at {host}", default=getpass.getuser(), err=True)
    if key is not None and _is_encrypted(given["private_key"] or ""):
        given["passphrase"] = _remember(s, _ask(f"Passphrase of {key}"))
    given["password"] = _remember(
        s, _ask(f"Password of {given['username']} at {host}" + (" (empty: none)" if key else ""))
    )
    given["otp"] = _remember(s, _ask("One-time code (empty: none)"))
    return given


def _ask(question: str) -> str:
    try:
        return getpass.getpass(f"{question}: ", stream=sys.stderr)
    except EOFError:
        raise click.Abort from None


def _read_line() -> str:
    return sys.stdin.readline(_MAX_CHARS).rstrip("\r\n")


def _remember(s: Session, typed: str) -> str:
    """Register a secret with the session, so that crash reports mask it."""
    if typed:
        s.typed.append(typed)
    return typed


def _read_file(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            text = file.read(_MAX_CHARS + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise click.UsageError(
            f"{path} cannot be read: {getattr(e, 'strerror', None) or 'not a key'}"
        ) from None
    if len(text) > _MAX_CHARS:
        raise click.UsageError(f"{path} is too long for a key")
    return text


def _is_encrypted(key: str) -> bool:
    """Return whether this private key needs a passphrase."""
    if "ENCRYPTED" in key:
        return True
    lines = [
        line
        for line in key.splitlines()
        if line and not line.startswith("-----") and ":" not in line
    ]
    try:
        raw = base64.b64decode("".join(lines), validate=True)
    except (binascii.Error, ValueError):
        return False
    cipher = raw[len(_OPENSSH) + 4 : len(_OPENSSH) + 8]
    return raw.startswith(_OPENSSH) and cipher != b"none"
