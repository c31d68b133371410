"""Facts about one installation: configuration, root, supervisor, ports and drivers. Plain data
without secrets.
"""

import http.client
import json
import os
import re
import socket
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from . import machine_facts, port_facts
from .findings import Facts

if TYPE_CHECKING:
    from ...service.settings.settings import Settings

_REQUEST_SECS = 3.0
_BUILD = re.compile(r'build_info\{version="([^"]*)"\}')
_UNREACHED = (OSError, http.client.HTTPException, ValueError)


def _settings(given: Facts) -> "Settings":
    """Load the settings. Raises Refusal."""
    from ...service.settings import loader

    return loader.load({"root": given["rootOption"], **given["sets"]}, file=given["file"])


def config(given: Facts) -> Facts:
    from ...protocol.errors import Refusal
    from ...service.site import startup_checks

    try:
        settings = _settings(given)
        problems = [p.body() for p in startup_checks.problems(settings)]
        warnings = [] if problems else list(startup_checks.warnings(settings))
    except Refusal as e:
        return {"problems": [e.body()], "warnings": [], "file": given["file"]}
    # A supervisor without a configured secret is started by `up`, which creates one.
    development = (
        settings.supervisor.server_secret_file is None and not settings.supervisor.development
    )
    return {
        "problems": problems,
        "warnings": warnings,
        "development": development,
        "file": given["file"],
        "origins": sorted({o.rpartition(":")[0] or o for o in settings.origins.values()}),
    }


def root(given: Facts) -> Facts:
    from pathlib import Path

    from ...supervisor.process import root_identity

    path = given["root"]
    held = machine_facts.held(os.path.join(path, "supervisor.lock"))
    return {
        **machine_facts.folder(path),
        "held": held,
        "parts": root_identity.problems(Path(path).resolve()),
    }


def user_root(given: Facts) -> Facts:
    from ...protocol.errors import Refusal

    try:
        path = _settings(given).user_root
    except Refusal:
        path = os.path.join(given["root"], "user")
    return {**machine_facts.folder(path), "inRoot": path.startswith(given["root"] + "/")}


def supervisor(given: Facts) -> Facts:
    """Query the supervisor like a probe. The secret is only sent if this user can read it."""
    from ...client.api.errors import ClientError
    from ...protocol.version import VERSION

    facts: Facts = {
        "own": VERSION,
        "url": given["url"],
        "held": machine_facts.held(os.path.join(given["root"], "supervisor.lock")),
    }
    try:
        address = _address(given)
    except ClientError as e:
        return {**facts, "error": e.sentence}
    facts["url"] = address.url
    began = time.time()
    try:
        code, headers, _ = _get(address.url, "/livez")
    except _UNREACHED as e:
        return {**facts, "error": f"{address.url} does not answer: {e}"}
    date = headers.get("Date")
    facts["apart"] = (
        None
        if date is None
        else parsedate_to_datetime(date).timestamp() + 0.5 - (began + time.time()) / 2
    )
    facts["live"] = code == 200
    for key, path in (("ready", "/readyz"), ("health", "/health")):
        try:
            code, _, body = _get(address.url, path, address.token)
            facts[key] = {"code": code, "body": json.loads(body)}
        except _UNREACHED as e:
            facts[key] = {"code": 0, "body": {"error": str(e)}}
    facts["version"] = _version(address.url, address.token)
    return facts


def _version(url: str, token: str) -> str | None:
    """Return the version from the supervisor's metrics."""
    try:
        found = _BUILD.search(_get(url, "/metrics", token)[2].decode("utf-8", "replace"))
    except _UNREACHED:
        return None
    return found[1] if found else None


def _address(given: Facts) -> Any:
    from ...client.transport.address import fixed, in_root

    return (
        fixed(given["url"], given["token"], given["uid"])()
        if given["url"]
        else in_root(given["root"])()
    )


def _get(url: str, path: str, token: str | None = None) -> tuple[int, Any, bytes]:
    kind, _, rest = url.partition("://")
    host, _, prefix = rest.partition("/")
    connection = (http.client.HTTPSConnection if kind == "https" else http.client.HTTPConnection)(
        host, timeout=_REQUEST_SECS
    )
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", (f"/{prefix}" if prefix else "") + path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read(1 << 20)
    finally:
        connection.close()


def ports(given: Facts) -> Facts:
    from ...protocol.errors import Refusal

    try:
        settings = _settings(given)
    except Refusal as e:
        return {"error": e.sentence, "ports": []}
    s = settings.supervisor
    wanted = [
        ("supervisor", s.ip, s.port),
        ("agents", s.agents_ip, s.agents_port),
        ("server", settings.server.ip, settings.server.port),
    ]
    held = machine_facts.held(os.path.join(given["root"], "supervisor.lock"))
    listens = port_facts.published(given["root"]) if held else []
    return {
        "held": held,
        "listens": listens,
        "ports": [_port(given["root"], *place) for place in wanted if place[2]],
    }


def _port(root: str, name: str, ip: str, port: int) -> Facts:
    error = _listen_error(ip, port)
    held = port_facts.holder(ip, port, root) if error is not None else None
    return {"name": name, "ip": ip, "port": port, "error": error, "holder": held}


def _listen_error(ip: str, port: int) -> str | None:
    """Return None if the address is free, else the error. Binds it for a moment."""
    try:
        with socket.create_server(
            (ip, port), family=socket.AF_INET6 if ":" in ip else socket.AF_INET
        ):
            return None
    except OSError as e:
        return os.strerror(e.errno) if e.errno else str(e)


def engines(given: Facts) -> Facts:
    """Return facts about the drivers, each used as a run would."""
    from ...protocol.errors import Refusal

    try:
        settings = _settings(given)
    except Refusal as e:
        return {"error": e.sentence, "use": []}
    facts: Facts = {"use": list(settings.drivers.use)}
    if "docker" in settings.drivers.use:
        facts["docker"] = _pool(given)
    if "sbatch" in settings.drivers.use:
        facts["sbatch"] = _clusters(settings)
    return facts


def _pool(given: Facts) -> Facts:
    from ...client.api.errors import ClientError
    from ...client.sync_client import Client

    try:
        address = _address(given)
        with Client(address.url, address.token, address.uid, budget_secs=0.0) as client:
            return {
                "hosts": [
                    {k: h[k] for k in ("host", "state", "detail", "version")}
                    for h in client.operating.pool()
                ],
                "problems": client.operating.pool_check(),
            }
    except ClientError as e:
        return {"error": e.sentence}


def _clusters(settings: "Settings") -> list[Facts]:
    """Check the clusters without sign-in; mark the others."""
    import asyncio

    from ...protocol.errors import Refusal
    from ...service.site import cluster_file
    from ..driver import address, deployment

    try:
        clusters = cluster_file.load(settings.sbatch.clusters or "").clusters
    except Refusal as e:
        return [{"name": "clusters", "error": e.sentence}]
    found: list[Facts] = []
    for cluster in clusters:
        if cluster.access == "ssh":
            found.append({"name": cluster.name, "signIn": True})
            continue
        found.append(
            {
                "name": cluster.name,
                "lines": asyncio.run(
                    _lines(cluster, deployment(settings.root), address(settings.root))
                ),
            }
        )
    return found


async def _lines(cluster: Any, deployment: str, address: Any) -> list[Facts]:
    from ...drivers.sbatch.cluster_check import check_cluster
    from ...drivers.sbatch.login_node.channel import ChannelError, local_channel

    try:
        channel = local_channel(
            cluster, "" if cluster.access == "account" else next(iter(cluster.users))
        )
    except ChannelError as e:
        return [{"what": "user", "ok": False, "said": e.sentence, "advice": ""}]
    try:
        return [
            {"what": line.what, "ok": line.ok, "said": line.said, "advice": line.advice}
            async for line in check_cluster(cluster, channel, deployment, address)
        ]
    finally:
        await channel.close()
