"""What must be in order before a supervisor may start: secrets, keys, who can reach its listeners, and a site's own exit table.

`problems` finds everything at once, for a person; `check` is the door: the first problem is a Refusal.
"""

import ipaddress
import os
import stat
from collections.abc import Iterator

from ..protocol.errors import Refusal
from .settings import Settings

MIN_SECRET_LENGTH = 20
_DEFAULTS = ("secret", "password", "changeme", "change-me", "example", "default", "development", "jobscribe")


def check(settings: Settings) -> None:
    """Raises Refusal("unsafe") or Refusal("badConfig") with the reason unless a supervisor may start with these settings."""
    for problem in problems(settings):
        raise problem


def problems(settings: Settings) -> Iterator[Refusal]:
    """Everything that keeps a supervisor from starting with these settings."""
    s = settings.supervisor
    if not is_loopback(s.ip):
        yield _unsafe(f"supervisor.ip is {s.ip}, but the HTTP interface speaks no TLS: keep it on loopback, behind a proxy that does")
    if not is_loopback(s.agents_ip) and s.agents_tls_cert is None:
        yield _unsafe(f"supervisor.agents_ip is {s.agents_ip}: off loopback agents need TLS; set supervisor.agents_tls_cert, _key, _ca")
    if s.server_secret_file is None:
        if not s.development:
            yield _unsafe("there is no server secret; name its file in supervisor.server_secret_file (or set supervisor.development)")
    else:
        yield from _attempt(s.server_secret_file)
    if s.agents_tls_key is not None:
        yield from _private("supervisor.agents_tls_key", s.agents_tls_key)
    if settings.exits.table is not None:
        yield from _table(settings.exits.table)


def check_server(settings: Settings) -> None:
    """Raises Refusal("unsafe") with the reason unless a front end may start by itself with these settings."""
    s = settings.server
    if s.user_hook is None:
        raise _unsafe("nobody says who the users are; name a module:function in server.user_hook (for development there is 'jobscribe up')")
    if not is_loopback(s.ip):
        raise _unsafe(f"server.ip is {s.ip}, but the front end speaks no TLS: keep it on loopback, behind a proxy that does")


def read_secret(path: str) -> str:
    """The server secret in this file. Raises Refusal("unsafe") when others can read it, or it is too easily guessed."""
    for problem in _private("supervisor.server_secret_file", path):
        raise problem
    try:
        with open(path, encoding="utf-8") as f:
            secret = f.read().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise Refusal("badConfig", f"the secret in {path} cannot be read: {e}") from None
    if len(secret) < MIN_SECRET_LENGTH or len(set(secret)) < 8:
        raise _unsafe(f"the secret in {path} is too easily guessed; 'openssl rand -hex 32' makes a good one")
    if any(word in secret.lower() for word in _DEFAULTS):
        raise _unsafe(f"the secret in {path} is one from an example; 'openssl rand -hex 32' makes a good one")
    return secret


def is_loopback(ip: str) -> bool:
    """Does this address stay on this machine?"""
    if ip == "localhost":
        return True
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def _unsafe(sentence: str) -> Refusal:
    return Refusal("unsafe", sentence)


def _attempt(path: str) -> Iterator[Refusal]:
    try:
        read_secret(path)
    except Refusal as problem:
        yield problem


def _table(path: str) -> Iterator[Refusal]:
    from .exit_table import load

    try:
        load(path)
    except Refusal as problem:
        yield problem


def _private(name: str, path: str) -> Iterator[Refusal]:
    try:
        found = os.stat(path)
    except OSError as e:
        yield Refusal("badConfig", f"{name}: {path} cannot be read: {e.strerror}")
        return
    if not stat.S_ISREG(found.st_mode):
        yield _unsafe(f"{name}: {path} is not a plain file")
    if found.st_mode & 0o077:
        yield _unsafe(f"{name}: {path} can be reached by others (mode {stat.S_IMODE(found.st_mode):04o}); run: chmod 600 {path}")
    if found.st_uid not in (0, os.geteuid()):
        yield _unsafe(f"{name}: {path} belongs to another user (uid {found.st_uid})")
