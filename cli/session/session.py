"""The session of one command line: supervisor clients, root and screen."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..terminal.screen import Screen
from .common_options import common_options, given

if TYPE_CHECKING:
    from ...client.async_client import AsyncClient
    from ...client.sync_client import Client

#: How long (seconds) requests are retried while the supervisor is unavailable, unless --patience or
#: JOBSCRIBE_PATIENCE is given.
PATIENCE_SECS = 60.0
#: The same for a root without an earlier supervisor, and for commands that report its health.
NEVER_SECS, BRIEF_SECS = 10.0, 3.0

_UID = re.compile(r"[A-Za-z0-9]{8}\Z", re.ASCII)

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """State of one command line. Opens connections on first use."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.screen = Screen(json=bool(options.get("json")))
        self._clients: dict[str, Client] = {}
        self._secret: str | None = None
        self._limit_reason = ""
        #: the user who really acts, if --uid names another one; for the audit trail
        self._actor: str | None = None
        #: The supervisor ends with this command.
        self.private = False
        #: A signal has canceled what this command does.
        self.interrupted = False
        #: Secrets typed by the user, until `close`.
        self.typed: list[str] = []

    @property
    def root(self) -> str:
        """The supervisor's data directory. Raises click.UsageError for a command line about a site,
        which is on another machine.
        """
        if self._named_site() or (self.site and not os.path.isdir(_default_root())):
            raise click.UsageError(
                f"this command reads files of the supervisor's root, which {self.site} does not give;"
                " run it on the supervisor's machine with --root DIR"
            )
        root = self.options.get("root") or os.environ.get("JOBSCRIBE_ROOT")
        if not root and os.environ.get("JOBSCRIBE_CONFIG"):
            from ...service.settings.loader import load

            return load().root
        return os.path.abspath(root or _default_root())

    @property
    def url(self) -> str | None:
        """The supervisor's address if the user gave one instead of a root."""
        return self.options.get("url") or (
            None if self.options.get("root") else os.environ.get("JOBSCRIBE_URL")
        )

    @property
    def site(self) -> str | None:
        """The site whose stored API token is used: it is named, or it is the site of the last login
        and no root and no address are named.
        """
        named = self._named_site()
        if named or self.url or self.options.get("root") or self.options.get("token_file"):
            return named
        if any(os.environ.get(f"JOBSCRIBE_{name}") for name in ("ROOT", "CONFIG")):
            return None
        from . import site_credentials

        return site_credentials.default_site()

    @property
    def remote(self) -> str | None:
        """The supervisor's address, if the command line is not about a root of this machine."""
        return self.url or self.site

    def _named_site(self) -> str | None:
        """Return the site in the options, else in the environment without a root or address."""
        site: str | None = self.options.get("site")
        others = [
            f"--{n.replace('_', '-')}" for n in ("root", "url", "token_file") if self.options.get(n)
        ]
        if site and others:
            raise click.UsageError(f"--site cannot be combined with {others[0]}")
        if (
            not site
            and not others
            and not any(os.environ.get(f"JOBSCRIBE_{name}") for name in ("ROOT", "URL", "CONFIG"))
        ):
            site = os.environ.get("JOBSCRIBE_SITE")
        return site.rstrip("/").lower() if site else None

    def limit_wait(self, reason: str) -> None:
        """If the supervisor is unavailable, retry for BRIEF_SECS only. --patience and
        JOBSCRIBE_PATIENCE take precedence. `reason` is shown to the user.
        """
        self._limit_reason = reason

    def client(self) -> "Client":
        """Return the client for the user of this command line."""
        if "" not in self._clients:
            self._clients[""] = self._create_client()
        return self._clients[""]

    def client_of_root(self, root: Path) -> "Client":
        """Return a client of the supervisor of this root, for example that of one shard."""
        from ...client.sync_client import Client
        from ...client.transport.address import in_root

        name = f"root {root}"
        if name not in self._clients:
            secs, _ = self._patience()
            self._clients[name] = Client.from_source(in_root(root), budget_secs=secs)
        return self._clients[name]

    def use_private(self, client: "Client") -> None:
        """Talk to this client's private supervisor. Raises click.UsageError if another one is named."""
        named = [n for n in ("root", "url", "site", "token_file", "uid") if self.options.get(n)]
        if named:
            option = named[0].replace("_", "-")
            raise click.UsageError(f"--local has a supervisor of its own; leave out --{option}")
        self.private = True
        self._clients[""] = client

    def client_for(self, jid: str) -> "Client":
        """Return a client that acts as the owner of this job. The supervisor decides whether the
        user of this command line may act for this owner.
        """
        uid = jid.split("-", 1)[0]
        own = self.client()
        if uid == own.uid:
            return own
        if uid not in self._clients:
            self._clients[uid] = own.copy(uid=uid, actor=self._actor or own.uid)
        return self._clients[uid]

    def async_client_for(self, jid: str, budget_secs: float) -> "AsyncClient":
        """Return the same as an asynchronous client. budget_secs: its retry time."""
        from ...client.async_client import asynchronous

        return asynchronous(self.client_for(jid), budget_secs)

    def close(self) -> None:
        """Close all connections and drop typed secrets."""
        self.typed.clear()
        for client in self._clients.values():
            client.close()

    def secrets(self) -> list[str]:
        """Return the secrets to mask in files."""
        return [*([self._secret] if self._secret else []), *self.typed]

    def supervisor_options(self) -> str:
        """Return the options that select this supervisor, for commands in messages."""
        if self.url:
            parts = ["--url", self.url]
            parts += ["--uid", self.options["uid"]] if self.options.get("uid") else []
            parts += (
                ["--token-file", self.options["token_file"]]
                if self.options.get("token_file")
                else []
            )
            return " " + " ".join(parts)
        if self.options.get("site"):
            return f" --site {self.site}"
        return f" --root {self.root}" if self.options.get("root") else ""

    def _create_client(self) -> "Client":
        from ...client.sync_client import Client
        from ...client.transport.address import fixed, in_root
        from ...protocol.api.tokens import PREFIX

        if self.url:
            from ...service.site.secret_files import sends_in_clear

            if any(sends_in_clear(url) for url in self.url.split(",")):
                raise click.UsageError(
                    "over http to another machine others can read the secret; use https, or an ssh tunnel"
                    " to the supervisor's machine"
                )
            uid, token = self.options.get("uid"), self.token()
            if not uid and not token.startswith(PREFIX):
                raise click.UsageError(
                    "--url with the server secret requires --uid, the user to act as"
                )
            # the file is read again after a rotation
            source = fixed(self.url, self.token, uid)
        elif (site := self.site) is not None:
            from .site_credentials import source as stored

            source = stored(site)
        else:
            if self.options.get("token_file"):
                raise click.UsageError(
                    "--token-file requires --url; with a root the secret is read from <root>/client.json"
                )
            source = in_root(self.root)

        def remember_secret() -> Any:
            address = source()
            self._secret = address.token
            return address

        uid = self.options.get("uid")
        if uid is not None and not _UID.match(uid):
            raise click.UsageError(
                f"--uid must be eight letters or digits, the beginning of a computeJid, not a unix user name; got {ascii(uid)[:60]}. "
                "Omit it to act as yourself"
            )
        secs, note = self._patience()

        def report_trouble(error: Any, lasts: float) -> None:
            self.screen.progress(f"{error.sentence}; retrying for up to {secs:g} s{note}", lasts)

        own = Client.from_source(
            remember_secret,
            uid=uid if self.remote else None,
            budget_secs=secs,
            on_trouble=report_trouble,
        )
        if uid is None or self.remote:
            return own
        with own:
            # the owner of the root acts for this user
            self._actor = own.uid
            return own.copy(uid=uid, actor=self._actor)

    def _patience(self) -> tuple[float, str]:
        """Return how long to retry (seconds), and a note on the duration for the user."""
        from ...client.transport.address import CLIENT_FILE
        from ...client.transport.retry_time import budget

        given = self.options.get("patience")
        secs = budget(given, -1.0)
        if secs >= 0:
            return secs, ""
        if self._limit_reason:
            return BRIEF_SECS, f" ({self._limit_reason}; --patience waits longer)"
        if not self.remote and not any(
            os.path.lexists(os.path.join(self.root, name)) for name in (CLIENT_FILE, "db")
        ):
            return NEVER_SECS, " (--patience waits longer)"
        return PATIENCE_SECS, " (--patience 0 does not wait)"

    def token(self) -> str:
        """Return the secret for --url."""
        path = self.options.get("token_file")
        token = os.environ.get("JOBSCRIBE_SECRET", "")
        if path:
            try:
                token = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as e:
                raise click.UsageError(f"the token file {path} cannot be read: {e}") from None
        if not token.strip():
            raise click.UsageError(
                "--url requires --token-file FILE (or JOBSCRIBE_SECRET in the environment)"
            )
        return token.strip()


def _default_root() -> str:
    return os.path.expanduser("~/.jobscribe")


def session() -> Session:
    """Return the session of the current command."""
    ctx = click.get_current_context()
    return session_of(ctx)


def session_of(ctx: click.Context) -> Session:
    root = ctx.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session(given(ctx))
    return root.obj


def command(**attributes: Any) -> Callable[[F], click.Command]:
    """Decorate a function as a click command with the common options."""

    def decorate(function: F) -> click.Command:
        decorated: click.Command = click.command(**attributes)(function)
        return common_options(decorated)

    return decorate
