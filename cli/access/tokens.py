"""`jobscribe auth token`: create, list and revoke API tokens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...protocol.api.tokens import DAY_SECS, DEFAULT_SECS, MAX_SECS, SCOPES
from ..session.session import Session, command, session
from ..terminal.quantities import Secs, moment

if TYPE_CHECKING:
    from ...client.sync_client import Client

_HEADS = ("ID", "NAME", "STATUS", "SCOPES", "CREATED", "EXPIRES", "CREATED BY")

F = TypeVar("F", bound=Callable[..., Any])


def _for_user(function: F) -> F:
    about = "Tokens of this user, for administrators."
    return click.option("--for", "user", metavar="UID", help=about)(function)


@command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    default=("read", "control"),
    show_default=True,
    help="What the token may do; may be repeated. No scope includes another one.",
)
@click.option(
    "--expires",
    type=Secs(MAX_SECS),
    metavar="TIME",
    help=f"Lifetime, as in 30d; at most {MAX_SECS / DAY_SECS:g} days (default: {DEFAULT_SECS / DAY_SECS:g} days).",
)
@_for_user
def create(name: str, scopes: tuple[str, ...], expires: float | None, user: str | None) -> None:
    """Create an API token with this NAME and print it, once: the supervisor stores only a digest.

    \b
    read     states, output and files of the user's runs
    control  submit and cancel runs, change files, create and revoke tokens
    debug    agents with their logs, log lines of a run
    admin    use the user's role: other users, hosts, notifications, audit
    """
    s = session()
    made = _client(s, user).create_token(name, scopes, expires_secs=expires)
    if s.screen.json:
        s.screen.value(
            "jobscribe.auth.token.create/1", {k: v for k, v in made.items() if k != "state"}
        )
        return
    s.screen.line(made["secret"])
    s.screen.message(
        f"token {made['id']} of user {made['uid']} expires {moment(made['expiresAt'])};"
        f" it is not shown again. Give it to 'jobscribe auth login'"
    )


@command(name="list")
@_for_user
def list_tokens(user: str | None) -> None:
    """List your API tokens, oldest first, without their secrets."""
    s = session()
    rows = _client(s, user).tokens()
    if s.screen.json:
        s.screen.value("jobscribe.auth.token.list/1", {"items": rows})
        return
    s.screen.table(
        _HEADS,
        [
            [
                r["id"],
                r["name"],
                r["status"],
                ",".join(r["scopes"]),
                moment(r["createdAt"]),
                moment(r["expiresAt"]),
                r["createdBy"],
            ]
            for r in rows
        ],
    )


@command()
@click.argument("token_id", metavar="ID")
@click.option("--reason", default="", help="Recorded with the revocation.")
@_for_user
def revoke(token_id: str, reason: str, user: str | None) -> None:
    """Revoke the API token with this ID and the tokens that it created: they are invalid at once.
    Their runs continue.
    """
    s = session()
    done = _client(s, user).revoke_token(token_id, reason=reason)
    if s.screen.json:
        s.screen.value(
            "jobscribe.auth.token.revoke/1", {k: v for k, v in done.items() if k != "state"}
        )
    else:
        s.screen.message(f"token {done['id']} ({done['name']}) of user {done['uid']} is revoked")
        if also := done["alsoRevoked"]:
            s.screen.message(f"also the tokens that it created: {', '.join(also)}")


def _client(s: Session, user: str | None) -> "Client":
    return s.client() if user is None else s.client_for(user)
