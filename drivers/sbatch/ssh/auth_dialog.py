"""The talk with one login host until it lets us in: each question is answered once, and after a
refusal nothing more is said.

asyncssh asks us for answers, one method after the other, as often as the server lets it. Here is
what ends that: whatever was sent has to be accepted, wholly or as a part, before anything else is
sent.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

import asyncssh

from ....protocol.errors import Refusal
from .host_keys import PinnedKeys
from .prompts import Meaning, asked, meaning, plain, quoted

#: All that we can do; those that a cluster does not name are not used. The last two only keep their
#: names in the list of what is offered.
METHODS = ("publickey", "keyboard-interactive", "password", "gssapi-with-mic", "hostbased")
#: messages without a question that a server may send, and what is kept of its words
_MAX_ROUNDS, _MAX_WORDS = 20, 4000
#: hiding anything shorter would spoil ordinary words, and show by that what it is
_MIN_HIDDEN = 4
_CANCELLED = 13  # SSH_DISCONNECT_AUTH_CANCELLED_BY_USER, RFC 4253 11.1
Step = Literal["connect", "handshake", "methods", "question", "answer", "in"]


class SecretRegistry:
    """What a person typed, for as long as a sign-in lasts. A code is given to one host only, a
    password to each host once.
    """

    __slots__ = ("_shown", "code", "had_code", "password")

    def __init__(self, password: str | None, code: str | None) -> None:
        self.password, self.code = password or None, code or None
        self.had_code = bool(code)
        self._shown = tuple(s for s in (password, code) if s and len(s) >= _MIN_HIDDEN)

    def __repr__(self) -> str:
        return "Secrets()"

    pkdebug_str = __repr__

    def hidden(self, text: str) -> str:
        """A server's words, should it repeat what it was told."""
        for secret in self._shown:
            text = text.replace(secret, "***")
        return text

    def forget(self) -> None:
        self.password = self.code = None
        self._shown = ()


class AuthDialog(asyncssh.SSHClient):
    """With one host. `refusal`: why we broke it off, if we did. `sent`: what has been answered and
    not been accepted yet, in words.
    """

    def __init__(
        self,
        place: str,
        user: str,
        methods: tuple[str, ...],
        secrets: SecretRegistry,
        key: asyncssh.SSHKeyPair | None,
        pinned: PinnedKeys,
        moved: Callable[[], None],
    ) -> None:
        """moved: called at every step; each has its own deadline."""
        self.place, self._user, self._methods = place, user, methods
        self._secrets, self._key, self._pinned, self._moved = secrets, key, pinned, moved
        self.step: Step = "connect"
        self.refusal: Refusal | None = None
        self.sent: list[str] = []
        self.accepted: list[str] = []
        self.offered: list[str] = []
        self.lost: Callable[[], None] = lambda: None
        self._used: set[str] = set()
        self._words: list[tuple[bool, str]] = []
        self._rounds = 0
        self._connection: asyncssh.SSHClientConnection | None = None

    # ---- what asyncssh tells

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn
        self._go("handshake")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection = None
        self.lost()

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        if self._pinned.is_known(key):
            return True
        self.refusal = Refusal("signInUnreachable", self._pinned.sentence(key))
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        return False

    def begin_auth(self, username: str) -> None:
        self._go("methods")

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self._hear(msg)

    def auth_completed(self) -> None:
        self._go("in")
        self.sent.clear()
        self._drop()

    # ---- what asyncssh asks: once for each try, and again after each failure

    def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        self._before_next()
        if self._key is None or "publickey" not in self._methods or not self._first("key"):
            return None
        kind = "certificate" if self._key.has_cert else "key"
        self._answering([f"the {kind} {_fingerprint(self._key)}"])
        return [self._key]

    def password_auth_requested(self) -> str | None:
        self._before_next()
        if (
            self._secrets.password is None
            or "password" not in self._methods
            or not self._first("password")
        ):
            return None
        self._answering(["the password"])
        return self._secrets.password

    def password_change_requested(self, prompt: str, lang: str) -> NoReturn:
        self._hear(prompt)
        self._stop(self._change_needed())

    def kbdint_auth_requested(self) -> str | None:
        self._before_next()
        can = self._secrets.password is not None or self._secrets.code is not None
        return "" if can and "keyboard-interactive" in self._methods else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str]:
        self._hear(name)
        self._hear(instructions)
        self._rounds += 1
        if self._rounds > _MAX_ROUNDS:
            self._stop(
                f"{self.place} asked more than {_MAX_ROUNDS} times; nothing more was answered"
            )
        if not prompts:
            return []
        self._go("question")
        wanted = [asked(prompt, self._user) for prompt, _echo in prompts]
        for (prompt, _echo), what in zip(prompts, wanted, strict=True):
            self._answerable(what, prompt)
        self._answering([_NAMED[what] for what in wanted])
        return [self._answer(what) for what in wanted]

    # ---- one answer to each question

    def _answerable(self, what: str, prompt: str) -> None:
        """Stops where a question cannot be answered, or was answered before. Nothing of this round
        has been sent then.
        """
        question = quoted(self._secrets.hidden(prompt))
        parts = {"both": ("password", "code"), "password": ("password",), "code": ("code",)}.get(
            what, ()
        )
        if what == "change":
            self._hear(prompt)
            self._stop(self._change_needed())
        if not parts:
            self._stop(
                f"{self.place} asks {question}, which is neither a password nor a one-time code; nothing was answered to it"
            )
        for part in parts:
            if not self._first(part):
                self._stop(self._not_accepted())
            self._there(part, question, both=what == "both")

    def _there(self, part: str, question: str, *, both: bool) -> None:
        """Stops where a part of the answer is missing."""
        if (self._secrets.password if part == "password" else self._secrets.code) is not None:
            return
        if part == "code" and self._secrets.had_code:
            self._stop(
                f"{self.place} asks {question} too, and the one-time code was used on the way there; a code opens one host only"
            )
        together = ", both in one answer," if both else ""
        missing = f"no {_SAID[part]} was given, so nothing was answered; sign in with it"
        self._stop(f"{self.place} asks {question}{together} and {missing}{self.words()}")

    def _answer(self, what: str) -> str:
        password, code = self._secrets.password or "", self._secrets.code or ""
        if what in ("code", "both"):
            self._secrets.code = None
        return {"password": password, "code": code, "both": password + code}[what]

    def _first(self, part: str) -> bool:
        """False from the second time on."""
        if part in self._used:
            return False
        self._used.add(part)
        return True

    def _answering(self, what: list[str]) -> None:
        """From now on this is out, until the server says what it thinks of it."""
        self.sent += what
        self._go("answer")
        attempt = None if self._connection is None else self._connection.auth
        if attempt is not None:
            # a part of several that are needed; asyncssh keeps this to itself
            setattr(attempt, "auth_succeeded", self._part_accepted)  # noqa: B010

    def _part_accepted(self) -> None:
        self.accepted += self.sent
        self.sent.clear()
        self.offered = []

    def _before_next(self) -> None:
        if self._connection is not None:
            now = list(self._connection.get_server_auth_methods())
            self.offered = now if len(now) > len(self.offered) else self.offered
        if self.sent:
            self._stop(self._not_accepted())
        self._go("methods")

    def _stop(self, refused: str) -> NoReturn:
        self.refusal = self.refusal or Refusal("signInRefused", refused)
        self._drop()
        raise asyncssh.DisconnectError(_CANCELLED, "signed out", "en")

    def _drop(self) -> None:
        self._key = None

    def _go(self, step: Step) -> None:
        self.step = step
        self._moved()

    # ---- sentences

    def _hear(self, text: str) -> None:
        """What the server says, and whether something had been answered by then."""
        text = plain(self._secrets.hidden(text), _MAX_WORDS)
        if (
            text
            and sum(len(w) for _, w in self._words) < _MAX_WORDS
            and text not in (w for _, w in self._words[-5:])
        ):
            self._words.append((bool(self.sent or self.accepted), text))

    def heard_after_answer(self) -> bool:
        return any(after for after, _ in self._words)

    def words(self) -> str:
        """`. It says: ...`, or nothing. What was said after an answer means more than a notice that
        everybody gets.
        """
        after = " ".join(w for late, w in self._words if late)
        said = plain(after or " ".join(w for _, w in self._words)).rstrip(".")
        return f". {self.place} says: {said}" if said else ""

    def meaning(self) -> Meaning | None:
        return meaning(" ".join(w for _, w in self._words))

    def not_accepted(self) -> Refusal:
        return Refusal("signInRefused", self._not_accepted())

    def _not_accepted(self) -> str:
        told = self._told()
        if told is not None:
            return told + self.words()
        what = " and ".join(dict.fromkeys(self.sent)) or "the sign-in"
        before = (
            f"{self.place} accepted {' and '.join(self.accepted)}, but not"
            if self.accepted
            else f"{self.place} did not accept"
        )
        return f"{before} {what} of {self._user}{self._hint()}{self.words()}"

    def _hint(self) -> str:
        if any("key" in s or "certificate" in s for s in self.sent):
            return "; look whether it is the key that your site knows, and whether the user name is right"
        if len(self.sent) > 1 or any(" with " in s for s in self.sent):
            return " (it does not say which is wrong); a code can be used once and for a short time only, so wait for the next one"
        if any("code" in s for s in self.sent):
            return "; a code can be used once and for a short time only, so wait for the next one"
        more = (
            ", and if your site wants a code right behind the password, type it there"
            if self._secrets.code
            else ""
        )
        return f"; look at user name and password{more}"

    def _told(self) -> str | None:
        """Where the site's own words say what it is."""
        match self.meaning():
            case "locked":
                return f"{self.place} has locked the account {self._user}, or had too many tries; wait, or ask your site to unlock it"
            case "accountExpired":
                return f"the account {self._user} has expired at {self.place}; ask your site to renew it"
            case "passwordExpired":
                return change_first(self.place, self._user)
            case "closed" if self.heard_after_answer():
                return f"{self.place} lets nobody in now; try again later"
            case _:
                return None

    def _change_needed(self) -> str:
        return change_first(self.place, self._user) + self.words()


_NAMED = {
    "password": "the password",
    "code": "the one-time code",
    "both": "the password with the one-time code behind it",
}
_SAID = {"password": "password", "code": "one-time code"}


def change_first(place: str, user: str) -> str:
    return f"{place} wants the password of {user} to be changed first; sign in there by hand with ssh, change it, and come back"


def _fingerprint(key: asyncssh.SSHKeyPair) -> str:
    return "SHA256:" + base64.b64encode(
        hashlib.sha256(key.key_public_data).digest()
    ).decode().rstrip("=")
