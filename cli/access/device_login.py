"""Login of this machine with a browser elsewhere (RFC 8628): prints a code, and polls until a person
has answered it.
"""

import re
import socket
import time
from typing import TYPE_CHECKING, Any

from ...client.api.errors import ClientError
from ..session.session import BRIEF_SECS, Session

if TYPE_CHECKING:
    from ...client.sync_client import Client

_OTHERS = re.compile(r"[^A-Za-z0-9_. @-]", re.ASCII)
#: Longest name of a token.
_MAX_NAME = 64


def token(
    s: Session,
    site: str,
    name: str | None,
    scopes: tuple[str, ...],
    expires: float | None,
    *,
    must: bool,
) -> str | None:
    """Return a new API token that a person approved. must: False returns None for a site without a
    page for it. Raises ClientError.
    """
    from ...client.sync_client import Client

    patience = s.options.get("patience", BRIEF_SECS)
    try:
        with Client(site, "", budget_secs=patience) as client:
            begun = client.begin_device_login(name or host_name(), scopes, expires_secs=expires)
    except ClientError as e:
        if must or e.code != "notFound":
            raise
        s.screen.message(f"{site} has no page for a login with a browser")
        return None
    s.typed.append(begun["deviceCode"])
    _show(s, begun)
    with Client(site, begun["deviceCode"], budget_secs=0.0) as client:
        text = _approved(s, client, begun)
    s.typed.append(text)
    return text


def host_name() -> str:
    """Return the name of this host as a name of a token."""
    name = _OTHERS.sub("-", socket.gethostname()).strip("-._ @")[:_MAX_NAME]
    return name or "a machine"


def _show(s: Session, begun: dict[str, Any]) -> None:
    if s.screen.json:
        shown = {k: v for k, v in begun.items() if k not in ("state", "deviceCode")}
        s.screen.value("jobscribe.auth.device/1", shown)
        return
    s.screen.message(
        f"Open {begun['verificationUri']} in a browser, sign in, and enter the code"
        f" {begun['userCode']}\n(or open {begun['verificationUriComplete']})"
    )


def _approved(s: Session, client: "Client", begun: dict[str, Any]) -> str:
    """Return the API token as soon as there is one."""
    began, interval = time.monotonic(), float(begun["interval"])
    while True:
        time.sleep(interval)
        secs = time.monotonic() - began
        try:
            answer = client.poll_device_login()
        except ClientError as e:
            # a restarted supervisor does not know the code, and says so
            if not e.retry or secs > begun["expiresIn"]:
                raise
            s.screen.progress(f"{e.sentence}; trying again", secs)
            continue
        if answer["state"] == "ok":
            return str(answer["secret"])
        interval = float(answer["interval"])
        s.screen.progress(
            f"waiting for the approval of {begun['userCode']};"
            f" the code expires in {max(0.0, begun['expiresIn'] - secs):.0f} s",
            secs,
        )
