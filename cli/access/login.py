"""`jobscribe auth login`, `auth logout` and `auth whoami`."""

import getpass
import sys
from typing import Any
from urllib.parse import urlsplit

import click

from ...protocol.api.tokens import MAX_SECS, SCOPES
from ..session import site_credentials
from ..session.session import BRIEF_SECS, Session, command, session
from ..terminal.quantities import Secs, moment
from . import device_login

#: Longest line that is read as a token.
_MAX_CHARS = 4096


@command()
@click.argument("address", metavar="URL")
@click.option(
    "--with-token",
    "how",
    flag_value="token",
    default=None,
    help="Read an API token from the terminal or from one line of standard input.",
)
@click.option(
    "--device",
    "how",
    flag_value="device",
    help="Approve the login in a browser (default at a terminal).",
)
@click.option(
    "--name", help="Name of the API token that --device creates (default: the name of this host)."
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    default=("read", "control"),
    show_default=True,
    help="What this token may do; may be repeated.",
)
@click.option("--expires", type=Secs(MAX_SECS), metavar="TIME", help="Its lifetime, as in 30d.")
def login(
    address: str, how: str | None, name: str | None, scopes: tuple[str, ...], expires: float | None
) -> None:
    """Log in at the site with this URL: store an API token for it. Other commands then use the site,
    unless a root or another site is given.

    At a terminal it prints an address and a code, which a signed-in person enters in a browser on
    any machine; this creates a token. Otherwise one line of standard input is the token. It is
    checked, then stored in $XDG_CONFIG_HOME/jobscribe/credentials.json, which only you can read.
    Another login at the same site replaces it.
    """
    from ...client.sync_client import Client
    from ...protocol.api.tokens import parse

    s, site = session(), _site(address)
    text = None
    if how == "device" or (how is None and sys.stdin.isatty()):
        text = device_login.token(s, site, name, scopes, expires, must=how == "device")
    if text is None:
        text = _token(s, site)
    parse(text)
    with Client(site, text, budget_secs=s.options.get("patience", BRIEF_SECS)) as client:
        me = client.whoami()
    token = me["token"]
    site_credentials.store(
        site,
        site_credentials.Site(
            token=text,
            uid=me["uid"],
            id=token["id"],
            name=token["name"],
            expires_at=token["expiresAt"],
        ),
    )
    _report(s, "jobscribe.auth.login/1", site, me)


@command()
@click.argument("address", metavar="[URL]", required=False)
def logout(address: str | None) -> None:
    """Remove the stored API token of a site (default: the site in use).

    The token itself remains valid until it expires or is revoked ('jobscribe auth token revoke').
    """
    s = session()
    site = _site(address) if address else s.site
    if site is None:
        raise click.UsageError("you are not logged in at any site")
    found = site_credentials.forget(site)
    if s.screen.json:
        s.screen.value("jobscribe.auth.logout/1", {"site": site, "loggedOut": found})
    else:
        s.screen.message(f"logged out of {site}" if found else f"you were not logged in at {site}")


@command()
def whoami() -> None:
    """Show for whom the supervisor takes you: user, role, scopes and token."""
    s = session()
    client = s.client()
    me = client.whoami()
    _report(s, "jobscribe.auth.whoami/1", client.url, {**me, "uid": client.uid})


def _report(s: Session, schema: str, site: str, me: dict[str, Any]) -> None:
    token = me["token"]
    if s.screen.json:
        s.screen.value(schema, {"site": site, **{k: v for k, v in me.items() if k != "state"}})
        return
    how = "the server secret" if token is None else f"token {token['id']} ({token['name']})"
    s.screen.line(f"{me['uid']} at {site}, role {me['role']}, with {how}")
    s.screen.line(f"scopes: {', '.join(me['scopes'])}")
    if token is not None:
        s.screen.line(f"expires: {moment(token['expiresAt'])}")


def _site(url: str) -> str:
    """Return scheme, host and port of a site. Raises click.UsageError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query:
        raise click.UsageError("a site is named https://host or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise click.UsageError("the address of a site contains no user and no password")
    from ...service.site.secret_files import is_loopback

    if parts.scheme == "http" and not is_loopback(host):
        raise click.UsageError(
            "over http to another machine others can read the token; use https, or an ssh tunnel"
            " to the supervisor's machine"
        )
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port else "")


def _token(s: Session, site: str) -> str:
    if sys.stdin.isatty():
        try:
            text = getpass.getpass(f"API token for {site}: ", stream=sys.stderr)
        except EOFError:
            raise click.Abort from None
    else:
        text = sys.stdin.readline(_MAX_CHARS)
    text = text.strip()
    if not text:
        raise click.UsageError(
            "no API token on standard input; --device logs in with a browser instead"
        )
    s.typed.append(text)
    return text
