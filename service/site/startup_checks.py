"""What must be in order before a supervisor may start: secrets, keys, who can reach its listeners,
a site's own files.

`problems` finds everything at once, for a person; `check` is the door: the first problem is a
Refusal.
"""

import ipaddress
import os
import stat
from collections.abc import Iterator

from ...protocol.errors import Refusal
from ..settings.settings import Settings

MIN_SECRET_LENGTH = 20
_DEFAULTS = (
    "secret",
    "password",
    "changeme",
    "change-me",
    "example",
    "default",
    "development",
    "jobscribe",
)


def check(settings: Settings) -> None:
    """Raises Refusal("unsafe") or Refusal("badConfig") with the reason unless a supervisor may
    start with these settings.
    """
    for problem in problems(settings):
        if settings.docker.pool is not None and problem.sentence.startswith(
            f"{settings.docker.pool}:"
        ):
            from .pool_file import load

            # a pool is mended in one go: with everything that is wrong with it
            load(settings.docker.pool, (settings.root, settings.user_root))
        if settings.sbatch.clusters is not None and problem.sentence.startswith(
            f"{settings.sbatch.clusters}:"
        ):
            from .cluster_file import load as load_clusters

            load_clusters(settings.sbatch.clusters)
        if settings.notify.file is not None and problem.sentence.startswith(
            f"{settings.notify.file}:"
        ):
            from .notification_file import load as load_targets

            load_targets(settings.notify.file)
        raise problem


def problems(settings: Settings) -> Iterator[Refusal]:
    """Everything that keeps a supervisor from starting with these settings."""
    s = settings.supervisor
    if not is_loopback(s.ip):
        yield _unsafe(
            f"supervisor.ip is {s.ip}, but the HTTP interface speaks no TLS: keep it on loopback, behind a proxy that does"
        )
    if not is_loopback(s.agents_ip) and s.agents_tls_cert is None:
        yield _unsafe(
            f"supervisor.agents_ip is {s.agents_ip}: off loopback agents need TLS; set supervisor.agents_tls_cert, _key, _ca"
        )
    if s.server_secret_file is None:
        if not s.development:
            yield _unsafe(
                "there is no server secret; name its file in supervisor.server_secret_file (or set supervisor.development)"
            )
    else:
        yield from _attempt(s.server_secret_file)
    if s.metrics_secret_file is not None:
        yield from _attempt(s.metrics_secret_file, "supervisor.metrics_secret_file")
    if s.agents_tls_key is not None:
        yield from private("supervisor.agents_tls_key", s.agents_tls_key)
    if settings.exits.table is not None:
        yield from _table(settings.exits.table)
    if settings.docker.pool is not None:
        yield from _pool(settings.docker.pool, (settings.root, settings.user_root))
    if settings.sbatch.clusters is not None:
        yield from _clusters(settings.sbatch.clusters, settings)
    if settings.notify.file is not None:
        from .notification_file import read

        yield from read(settings.notify.file)[1]


def warnings(settings: Settings) -> Iterator[str]:
    """What a supervisor may start with, and an operator should know. The rest must be in order."""
    if os.geteuid() != 0:
        return
    if settings.docker.pool is not None:
        from .pool_file import load

        if load(settings.docker.pool, (settings.root, settings.user_root)).unix_users is None:
            yield (
                f"{settings.docker.pool} has no unixUsers, and this supervisor is root: users' containers run as root, too, "
                "and share one another's files as far as these are shown to them"
            )
    if settings.sbatch.clusters is not None:
        from .cluster_file import load as load_clusters

        for cluster in load_clusters(settings.sbatch.clusters).clusters:
            if cluster.access == "account":
                yield (
                    f"{settings.sbatch.clusters}: cluster {cluster.name} has access account, and this supervisor is root: all users' jobs "
                    "there are root's; start it as a unix user of its own, or take access runuser"
                )


def check_server(settings: Settings) -> None:
    """Raises Refusal("unsafe") with the reason unless a front end may start by itself with these
    settings.
    """
    s = settings.server
    if s.user_hook is None:
        raise _unsafe(
            "nobody says who the users are; name a module:function in server.user_hook (for development there is 'jobscribe up')"
        )
    if not is_loopback(s.ip):
        raise _unsafe(
            f"server.ip is {s.ip}, but the front end speaks no TLS: keep it on loopback, behind a proxy that does"
        )


def read_secret(path: str, setting: str = "supervisor.server_secret_file") -> str:
    """The secret in this file, which that setting names. Raises Refusal("unsafe") when others can
    read it, or it is too easily guessed.
    """
    for problem in private(setting, path):
        raise problem
    try:
        with open(path, encoding="utf-8") as f:
            secret = f.read().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise Refusal("badConfig", f"the secret in {path} cannot be read: {e}") from None
    if len(secret) < MIN_SECRET_LENGTH or len(set(secret)) < 8:
        raise _unsafe(
            f"the secret in {path} is too easily guessed; 'openssl rand -hex 32' makes a good one"
        )
    if any(word in secret.lower() for word in _DEFAULTS):
        raise _unsafe(
            f"the secret in {path} is one from an example; 'openssl rand -hex 32' makes a good one"
        )
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


def _attempt(path: str, setting: str = "supervisor.server_secret_file") -> Iterator[Refusal]:
    try:
        read_secret(path, setting)
    except Refusal as problem:
        yield problem


def _table(path: str) -> Iterator[Refusal]:
    from .exit_table_file import load

    try:
        load(path)
    except Refusal as problem:
        yield problem


def _pool(path: str, own: tuple[str, ...]) -> Iterator[Refusal]:
    from .pool_file import read

    pool, found = read(path, own)
    yield from found
    if pool is not None and pool.unix_users is not None and os.geteuid() != 0:
        what = f"{path} has unixUsers, but this supervisor is no root (it is uid {os.geteuid()}), and cannot give files to other unix users"
        yield _unsafe(
            f"{what}: start it as root, or take unixUsers away (containers then run as this user)"
        )


def _clusters(path: str, settings: Settings) -> Iterator[Refusal]:
    from .cluster_file import read

    clusters, found = read(path)
    yield from found
    for cluster in clusters.clusters if clusters is not None else ():
        if cluster.access == "runuser" and os.geteuid() != 0:
            what = f"{path}: cluster {cluster.name} has access runuser, but this supervisor is no root (it is uid {os.geteuid()})"
            yield _unsafe(
                f"{what}, and cannot become other unix users: take sudo with a rule for it, or start it as root"
            )
        if cluster.link == "tls" and settings.supervisor.agents_tls_cert is None:
            what = f"{path}: cluster {cluster.name} has link tls, but the listener for agents has no certificate"
            yield Refusal(
                "badConfig",
                f"{what}: set supervisor.agents_tls_cert, _key and _ca, or take link ssh",
            )


def private(name: str, path: str) -> Iterator[Refusal]:
    """What speaks against this file as a place for secrets."""
    try:
        found = os.stat(path)
    except OSError as e:
        yield Refusal("badConfig", f"{name}: {path} cannot be read: {e.strerror}")
        return
    if not stat.S_ISREG(found.st_mode):
        yield _unsafe(f"{name}: {path} is not a plain file")
    if found.st_mode & 0o077:
        yield _unsafe(
            f"{name}: {path} can be reached by others (mode {stat.S_IMODE(found.st_mode):04o}); run: chmod 600 {path}"
        )
    if found.st_uid not in (0, os.geteuid()):
        yield _unsafe(f"{name}: {path} belongs to another user (uid {found.st_uid})")
