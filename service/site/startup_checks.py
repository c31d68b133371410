"""Checks before the start of a supervisor or front end: secrets, keys, addresses of listeners, and
the site's own files.

Both `problems` and `check` report all problems together.
"""

import importlib.util
import os
import time
from collections.abc import Iterator

from ...protocol.clusters.cluster import Clusters
from ...protocol.clusters.container_pool import Pool
from ...protocol.clusters.queues import Queues
from ...protocol.errors import Refusal
from ...runtime import store_address
from ..settings.settings import Settings
from . import (
    cluster_file,
    exit_table_file,
    notification_file,
    pool_file,
    queue_file,
    secret_rotation,
    shards,
    sign_in_checks,
    users_file,
)
from .certificates import expiry_warnings
from .secret_files import file_problems, is_loopback, sends_in_clear, unsafe
from .site_file import combined


def check(settings: Settings) -> None:
    """Raise Refusal("unsafe") or Refusal("badConfig") with all problems unless a supervisor may
    start with these settings.
    """
    if found := list(problems(settings)):
        raise combined("the configuration", found)


def problems(settings: Settings) -> Iterator[Refusal]:
    """Yield everything that prevents a supervisor from starting with these settings."""
    yield from _setting_problems(settings)
    yield from shards.problems(settings)
    yield from sign_in_checks.problems(settings)
    if settings.exits.table is not None:
        yield from exit_table_file.read(settings.exits.table)[1]
    if settings.docker.pool is not None:
        pool, found = pool_file.read(settings.docker.pool, _own_folders(settings))
        yield from found
        if pool is not None:
            yield from _pool_problems(settings.docker.pool, pool)
    if settings.sbatch.clusters is not None:
        clusters, found = cluster_file.read(settings.sbatch.clusters)
        yield from found
        if clusters is not None:
            yield from _cluster_problems(settings.sbatch.clusters, clusters, settings)
    if settings.queues.file is not None:
        queues, found = queue_file.read(settings.queues.file)
        yield from found
        if queues is not None:
            yield from _queue_problems(settings.queues.file, queues, settings)
    if settings.notify.file is not None:
        yield from notification_file.read(settings.notify.file)[1]
    if settings.auth.users is not None:
        yield from users_file.read(settings.auth.users)[1]


def warnings(settings: Settings) -> Iterator[str]:
    """Yield warnings for the operator. Requires settings without problems."""
    yield from expiry_warnings(settings, time.time())
    if os.geteuid() != 0:
        return
    pool, clusters = settings.docker.pool, settings.sbatch.clusters
    if pool is not None and pool_file.load(pool, _own_folders(settings)).unix_users is None:
        yield (
            f"{pool} has no unixUsers, and this supervisor runs as root: users' containers run as root too"
            " and can access each other's files in shared folders; set unixUsers"
        )
    if clusters is not None:
        for cluster in cluster_file.load(clusters).clusters:
            if cluster.access == "account":
                yield (
                    f"{clusters}: cluster {cluster.name} has access account, and this supervisor runs as root:"
                    " all users' jobs there run as root; start the supervisor as another unix user, or use"
                    " access runuser"
                )


def check_server(settings: Settings) -> None:
    """Raise Refusal("unsafe") or Refusal("badConfig") unless a separate front end may start with these settings."""
    if not sign_in_checks.ways(settings):
        raise unsafe(
            "nothing identifies the users of the front end: set server.oidc_issuer, server.pam_service,"
            " server.user_header (of a proxy) or server.user_hook (module:function)"
            " (for development use 'jobscribe up')"
        )
    found = [
        *sign_in_checks.problems(settings),
        *sign_in_checks.secret_problems(settings),
        *front_end_problems(settings),
    ]
    if found:
        raise found[0] if len(found) == 1 else combined("the configuration", found)


def front_end_problems(settings: Settings) -> Iterator[Refusal]:
    """Yield why a front end would send secrets or pages in clear to other machines."""
    s = settings.server
    if not is_loopback(s.ip):
        yield unsafe(
            f"server.ip is {s.ip}, but the front end has no TLS: keep it on loopback, behind a proxy with TLS"
        )
    if s.supervisor_url is not None and any(map(sends_in_clear, s.supervisor_url.split(","))):
        yield unsafe(
            f"server.supervisor_url is {s.supervisor_url}: over http to another machine others can read the server"
            " secret; use https (supervisor.tls_cert there), or an ssh tunnel"
        )


def _queue_problems(path: str, queues: Queues, settings: Settings) -> Iterator[Refusal]:
    """Yield where the default time limit contradicts the limits of users."""
    name = "limits.time_limit_secs"
    default, origin = settings.limits.time_limit_secs, settings.origins.get(name, "the default")
    for where, limits in (
        ("limits", queues.limits),
        *((f"plans.{name}", queues.limits_of(name)) for name in queues.plans),
        *((f"users.{uid}", queues.limits_of(None, uid)) for uid in queues.users),
    ):
        for kind in ("sequential", "parallel"):
            limit = getattr(limits, kind)
            if default is not None and limit is not None and default > limit:
                yield Refusal(
                    "badConfig",
                    f"{name} is {default:g} s ({origin}), and {where}.{kind} in {path} allows {limit:g} s: lower one or raise the other",
                )


def _own_folders(settings: Settings) -> tuple[str, str]:
    """Return the supervisor's folders, which no volume may contain."""
    return settings.root, settings.user_root


def _setting_problems(settings: Settings) -> Iterator[Refusal]:
    s = settings.supervisor
    if not is_loopback(s.ip):
        yield unsafe(
            f"supervisor.ip is {s.ip}, but the HTTP interface has no TLS: keep it on loopback; for other machines"
            " set supervisor.tls_cert and supervisor.tls_key, or use a proxy with TLS"
        )
    if not is_loopback(s.agents_ip) and s.agents_tls_cert is None:
        yield unsafe(
            f"supervisor.agents_ip is {s.agents_ip}: off loopback agents need TLS;"
            " set supervisor.agents_tls_cert, _key and _ca"
        )
    if s.server_secret_file is not None:
        yield from _secret_problems(s.server_secret_file, "supervisor.server_secret_file")
    elif not s.development:
        yield unsafe(
            "there is no server secret; set supervisor.server_secret_file (or supervisor.development)"
        )
    if s.metrics_secret_file is not None:
        yield from _secret_problems(s.metrics_secret_file, "supervisor.metrics_secret_file")
    yield from _store_problems(settings)
    keys = {"agents_tls_key": s.agents_tls_key, "tls_key": s.tls_key}
    for setting, key in keys.items():
        for problem in () if key is None else file_problems(key):
            yield problem.refusal(f"supervisor.{setting}")


def _store_problems(settings: Settings) -> Iterator[Refusal]:
    s = settings.store
    if s.url is None:
        return
    try:
        store_address.parsed(s.url)
    except Refusal as problem:
        yield problem
    if importlib.util.find_spec("psycopg") is None:
        yield Refusal(
            "badConfig",
            "store.url needs the Python package psycopg: pip install 'jobscribe[postgres]'",
        )
    if s.password_file is not None:
        for found in file_problems(s.password_file):
            yield found.refusal("store.password_file")


def _secret_problems(path: str, setting: str) -> Iterator[Refusal]:
    try:
        secret_rotation.read(path, setting)
    except Refusal as problem:
        yield problem


def _pool_problems(path: str, pool: Pool) -> Iterator[Refusal]:
    """Yield problems of a valid pool with this process."""
    if pool.unix_users is not None and os.geteuid() != 0:
        yield unsafe(
            f"{path} has unixUsers, but this supervisor does not run as root (uid {os.geteuid()}) and cannot give"
            " files to other unix users: start it as root, or remove unixUsers (containers then run as this user)"
        )


def _cluster_problems(path: str, clusters: Clusters, settings: Settings) -> Iterator[Refusal]:
    """Yield problems of valid clusters with this process and its settings."""
    for cluster in clusters.clusters:
        if cluster.access == "runuser" and os.geteuid() != 0:
            yield unsafe(
                f"{path}: cluster {cluster.name} has access runuser, but this supervisor does not run as root"
                f" (uid {os.geteuid()}) and cannot become other unix users: use access sudo with a sudo rule, or"
                " start it as root"
            )
        if cluster.link == "tls" and settings.supervisor.agents_tls_cert is None:
            yield Refusal(
                "badConfig",
                f"{path}: cluster {cluster.name} has link tls, but the listener for agents has no certificate:"
                " set supervisor.agents_tls_cert, _key and _ca, or use link ssh",
            )
