"""The supervisor's address for agents on a cluster, derived from its agents.json for each kind of
link. Pure.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ...protocol.clusters.cluster import Cluster
from ...protocol.errors import Refusal


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Link between an agent and the supervisor. address: content of the agent's address file. ca:
    path of a local certificate file, sent to the agent. through: local host and port to which a
    socket on the login node is forwarded.
    """

    address: dict[str, Any]
    ca: str | None = None
    through: bool = False
    host: str = ""
    port: int = 0


def link(cluster: Cluster, address: Mapping[str, Any]) -> Link:
    """Return the link. Raises Refusal("agentUnavailable")."""
    copy, ca = dict(address), address.get("agentsCa")
    copy["agentsCa"] = None
    parts = urlsplit(copy["agentsUrl"])
    match cluster.link:
        case "direct":
            return Link(address=copy, ca=ca)
        case "tls":
            if parts.scheme != "wss":
                raise Refusal(
                    "agentUnavailable",
                    f"cluster {cluster.name} has the link `tls`, but the supervisor's listener "
                    "for agents has no TLS: give it a certificate, or choose the link `ssh`",
                )
            if cluster.supervisor is not None:
                copy["agentsUrl"] = parts._replace(netloc=cluster.supervisor).geturl()
            return Link(address=copy, ca=ca)
        case "ssh":
            copy.pop("agentsOthers", None)  # the tunnel leads to one supervisor
            return Link(
                address=copy,
                ca=ca,
                through=True,
                host=parts.hostname or "127.0.0.1",
                port=parts.port or 443,
            )
