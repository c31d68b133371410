"""What one command line works with: the supervisor it talks to, the root it looks into, and the
screen it answers on.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..terminal.screen import Screen
from .common_options import common_options, given

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: For how long requests are repeated while the supervisor is away, unless --patience or
#: JOBSCRIBE_PATIENCE says otherwise.
PATIENCE_SECS = 60.0
#: The same where no supervisor was ever started in the root, and for commands that ask how the
#: supervisor is.
NEVER_SECS, BRIEF_SECS = 10.0, 3.0

_UID = re.compile(r"[A-Za-z0-9]{8}\Z", re.ASCII)

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """One per process. Nothing is opened before it is needed."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.screen = Screen(json=bool(options.get("json")))
        self._clients: dict[str, Client] = {}
        self._secret: str | None = None
        self._brief = ""
        #: what was typed, as long as it is needed
        self.typed: list[str] = []

    @property
    def root(self) -> str:
        """Where the supervisor of this user keeps everything."""
        root = self.options.get("root") or os.environ.get("JOBSCRIBE_ROOT")
        if not root and os.environ.get("JOBSCRIBE_CONFIG"):
            from ...service.settings.loader import load

            return load().root
        return os.path.abspath(root or os.path.expanduser("~/.jobscribe"))

    @property
    def url(self) -> str | None:
        """The address that was given in place of a root, if one was."""
        return self.options.get("url") or (
            None if self.options.get("root") else os.environ.get("JOBSCRIBE_URL")
        )

    def answer_at_once(self, why: str) -> None:
        """Wait for an absent supervisor briefly only, because of `why` (a sentence); --patience and
        JOBSCRIBE_PATIENCE still count.
        """
        self._brief = why

    def client(self) -> "Client":
        """A client as the user of this command line."""
        if "" not in self._clients:
            self._clients[""] = self._made()
        return self._clients[""]

    def client_for(self, jid: str) -> "Client":
        """A client as the owner of this job: who holds the secret may act for everybody, and says
        so by naming the job in full.
        """
        uid = jid.split("-", 1)[0]
        own = self.client()
        if uid == own.uid:
            return own
        if uid not in self._clients:
            self._clients[uid] = own.copy(uid=uid)
        return self._clients[uid]

    def close(self) -> None:
        """Give connections back, and forget what was typed."""
        self.typed.clear()
        for client in self._clients.values():
            client.close()

    def secrets(self) -> list[str]:
        """What must not be written anywhere."""
        return [*([self._secret] if self._secret else []), *self.typed]

    def here(self) -> str:
        """The options that name this supervisor again, for commands that are shown to a person."""
        if self.url:
            parts = ["--url", self.url, "--uid", str(self.options.get("uid"))]
            parts += (
                ["--token-file", self.options["token_file"]]
                if self.options.get("token_file")
                else []
            )
            return " " + " ".join(parts)
        return f" --root {self.root}" if self.options.get("root") else ""

    def _made(self) -> "Client":
        from ...client.sync_client import Client
        from ...client.transport.address import fixed, in_root

        if self.url:
            uid = self.options.get("uid")
            if not uid:
                raise click.UsageError("--url needs --uid, the user to act as")
            source = fixed(self.url, self.token(), uid)
        else:
            if self.options.get("token_file"):
                raise click.UsageError(
                    "--token-file goes with --url; with a root the secret is read from <root>/client.json"
                )
            source = in_root(self.root)

        def remembered() -> Any:
            address = source()
            self._secret = address.token
            return address

        uid = self.options.get("uid")
        if uid is not None and not _UID.match(uid):
            raise click.UsageError(
                f"--uid is eight letters or digits, as computeJids begin, not the name of a unix user; got {ascii(uid)[:60]}. "
                "Leave it out to act as yourself"
            )
        secs, why = self._patience()

        def trouble(error: Any, lasts: float) -> None:
            self.screen.progress(f"{error.sentence}; trying again for up to {secs:g} s{why}", lasts)

        return Client.from_source(remembered, uid=uid, budget_secs=secs, on_trouble=trouble)

    def _patience(self) -> tuple[float, str]:
        """For how many seconds an absent supervisor is waited for, and why no longer."""
        from ...client.transport.address import CLIENT_FILE
        from ...client.transport.retry_time import budget

        given = self.options.get("patience")
        secs = budget(given, -1.0)
        if secs >= 0:
            return secs, ""
        if self._brief:
            return BRIEF_SECS, f" ({self._brief}; --patience waits longer)"
        if not self.url and not any(
            os.path.lexists(os.path.join(self.root, name)) for name in (CLIENT_FILE, "db")
        ):
            return NEVER_SECS, " (--patience waits longer)"
        return PATIENCE_SECS, " (--patience 0 does not wait)"

    def token(self) -> str:
        """The secret that goes with --url."""
        path = self.options.get("token_file")
        token = os.environ.get("JOBSCRIBE_SECRET", "")
        if path:
            try:
                token = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as e:
                raise click.UsageError(f"the token file {path} cannot be read: {e}") from None
        if not token.strip():
            raise click.UsageError(
                "--url needs --token-file FILE (or JOBSCRIBE_SECRET in the environment)"
            )
        return token.strip()


def session() -> Session:
    """The session of the command that runs."""
    ctx = click.get_current_context()
    return session_of(ctx)


def session_of(ctx: click.Context) -> Session:
    root = ctx.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session(given(ctx))
    return root.obj


def command(**attributes: Any) -> Callable[[F], click.Command]:
    """A click command with the common options."""

    def decorate(function: F) -> click.Command:
        made: click.Command = click.command(**attributes)(function)
        return common_options(made)

    return decorate
