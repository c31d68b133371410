"""The authentication dialog with one login host: each question is answered once, and after a
refusal nothing more is sent.

asyncssh asks for answers, one method after the other, as often as the server permits. This module
stops it: every answer must be accepted, completely or as a partial success, before the next one is
sent.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

import asyncssh

from ....protocol.errors import Refusal
from .host_keys import PinnedKeys
from .prompts import Meaning, classify_message, classify_prompt, quote_prompt, strip_control

#: All supported methods; the cluster's configuration selects from them. The last two are only
#: reported if a server offers them.
METHODS = ("publickey", "keyboard-interactive", "password", "gssapi-with-mic", "hostbased")
#: maximum number of question rounds, and of kept characters of the server's messages
_MAX_ROUNDS, _MAX_WORDS = 20, 4000
#: Shorter secrets are not masked: that would damage ordinary words and reveal the secret.
_MIN_HIDDEN = 4
_CANCELLED = 13  # SSH_DISCONNECT_AUTH_CANCELLED_BY_USER, RFC 4253 11.1
Step = Literal["connect", "handshake", "methods", "question", "answer", "in"]


class SecretRegistry:
    """The secrets of one sign-in. A code is sent to one host only, and a password to each host
    once.
    """

    __slots__ = ("_shown", "code", "had_code", "password")

    def __init__(self, password: str | None, code: str | None) -> None:
        self.password, self.code = password or None, code or None
        self.had_code = bool(code)
        self._shown = tuple(s for s in (password, code) if s and len(s) >= _MIN_HIDDEN)

    def __repr__(self) -> str:
        return "Secrets()"

    pkdebug_str = __repr__

    def mask(self, text: str) -> str:
        """Mask the secrets in a server's message."""
        for secret in self._shown:
            text = text.replace(secret, "***")
        return text

    def forget(self) -> None:
        self.password = self.code = None
        self._shown = ()


class AuthDialog(asyncssh.SSHClient):
    """Dialog with one host. refusal: why the dialog was stopped, or None. sent: descriptions of
    answers that are not accepted yet.
    """

    def __init__(
        self,
        place: str,
        user: str,
        methods: tuple[str, ...],
        secrets: SecretRegistry,
        key: asyncssh.SSHKeyPair | None,
        pinned: PinnedKeys,
        on_step: Callable[[], None],
    ) -> None:
        """on_step: called at every step; each step has its own deadline."""
        self.place, self._user, self._methods = place, user, methods
        self._secrets, self._key, self._pinned, self._on_step = secrets, key, pinned, on_step
        self.step: Step = "connect"
        self.refusal: Refusal | None = None
        self.sent: list[str] = []
        self.accepted: list[str] = []
        self.offered: list[str] = []
        self.lost: Callable[[], None] = lambda: None
        self._used: set[str] = set()
        self._messages: list[tuple[bool, str]] = []
        self._rounds = 0
        self._connection: asyncssh.SSHClientConnection | None = None

    # ---- callbacks of asyncssh

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn
        self._enter_step("handshake")

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
        self._enter_step("methods")

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self._keep_message(msg)

    def auth_completed(self) -> None:
        self._enter_step("in")
        self.sent.clear()
        self._forget_key()

    # ---- requests of asyncssh: once per try, and again after each failure

    def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        self._before_next_method()
        if self._key is None or "publickey" not in self._methods or not self._use_once("key"):
            return None
        kind = "certificate" if self._key.has_cert else "key"
        self._record_sent([f"the {kind} {_fingerprint(self._key)}"])
        return [self._key]

    def password_auth_requested(self) -> str | None:
        self._before_next_method()
        if (
            self._secrets.password is None
            or "password" not in self._methods
            or not self._use_once("password")
        ):
            return None
        self._record_sent(["the password"])
        return self._secrets.password

    def password_change_requested(self, prompt: str, lang: str) -> NoReturn:
        self._keep_message(prompt)
        self._refuse(self._change_needed())

    def kbdint_auth_requested(self) -> str | None:
        self._before_next_method()
        has_secret = self._secrets.password is not None or self._secrets.code is not None
        return "" if has_secret and "keyboard-interactive" in self._methods else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str]:
        self._keep_message(name)
        self._keep_message(instructions)
        self._rounds += 1
        if self._rounds > _MAX_ROUNDS:
            self._refuse(
                f"{self.place} asked more than {_MAX_ROUNDS} times; the dialog was stopped"
            )
        if not prompts:
            return []
        self._enter_step("question")
        wanted = [classify_prompt(prompt, self._user) for prompt, _echo in prompts]
        for (prompt, _echo), kind in zip(prompts, wanted, strict=True):
            self._check_answerable(kind, prompt)
        self._record_sent([_ANSWER_NAMES[kind] for kind in wanted])
        return [self._answer(kind) for kind in wanted]

    # ---- one answer to each question

    def _check_answerable(self, kind: str, prompt: str) -> None:
        """Stop the dialog if this question cannot be answered or was answered before. Called before
        any answer of this round is sent.
        """
        question = quote_prompt(self._secrets.mask(prompt))
        parts = {"both": ("password", "code"), "password": ("password",), "code": ("code",)}.get(
            kind, ()
        )
        if kind == "change":
            self._keep_message(prompt)
            self._refuse(self._change_needed())
        if not parts:
            self._refuse(
                f"{self.place} asks {question}, which is neither a password nor a one-time code; "
                "no answer was sent"
            )
        for part in parts:
            if not self._use_once(part):
                self._refuse(self._not_accepted())
            self._require(part, question, both=kind == "both")

    def _require(self, part: str, question: str, *, both: bool) -> None:
        """Stop the dialog if a part of the answer is missing."""
        if (self._secrets.password if part == "password" else self._secrets.code) is not None:
            return
        if part == "code" and self._secrets.had_code:
            self._refuse(
                f"{self.place} asks {question} too, but the one-time code was used at an earlier "
                "host; a code is valid for one host only"
            )
        together = ", both in one answer," if both else ""
        missing = f"no {_PART_NAMES[part]} was given, so no answer was sent; sign in with it"
        self._refuse(f"{self.place} asks {question}{together} and {missing}{self.message_suffix()}")

    def _answer(self, kind: str) -> str:
        password, code = self._secrets.password or "", self._secrets.code or ""
        if kind in ("code", "both"):
            self._secrets.code = None
        return {"password": password, "code": code, "both": password + code}[kind]

    def _use_once(self, part: str) -> bool:
        """Return True on the first use only."""
        if part in self._used:
            return False
        self._used.add(part)
        return True

    def _record_sent(self, answers: list[str]) -> None:
        """Record that this is being sent, until the server accepts or refuses it."""
        self.sent += answers
        self._enter_step("answer")
        attempt = None if self._connection is None else self._connection.auth
        if attempt is not None:
            # partial success of multi-factor authentication; asyncssh has no public callback for it
            setattr(attempt, "auth_succeeded", self._part_accepted)  # noqa: B010

    def _part_accepted(self) -> None:
        self.accepted += self.sent
        self.sent.clear()
        self.offered = []

    def _before_next_method(self) -> None:
        if self._connection is not None:
            methods = list(self._connection.get_server_auth_methods())
            self.offered = methods if len(methods) > len(self.offered) else self.offered
        if self.sent:
            self._refuse(self._not_accepted())
        self._enter_step("methods")

    def _refuse(self, refused: str) -> NoReturn:
        self.refusal = self.refusal or Refusal("signInRefused", refused)
        self._forget_key()
        raise asyncssh.DisconnectError(_CANCELLED, "signed out", "en")

    def _forget_key(self) -> None:
        self._key = None

    def _enter_step(self, step: Step) -> None:
        self.step = step
        self._on_step()

    # ---- sentences

    def _keep_message(self, text: str) -> None:
        """Keep a message of the server, and whether an answer had been sent before it."""
        text = strip_control(self._secrets.mask(text), _MAX_WORDS)
        if (
            text
            and sum(len(w) for _, w in self._messages) < _MAX_WORDS
            and text not in (w for _, w in self._messages[-5:])
        ):
            self._messages.append((bool(self.sent or self.accepted), text))

    def got_message_after_answer(self) -> bool:
        return any(after for after, _ in self._messages)

    def message_suffix(self) -> str:
        """Return `. HOST says: ...`, or "". Messages after an answer have priority over general
        notices.
        """
        after = " ".join(w for late, w in self._messages if late)
        messages = strip_control(after or " ".join(w for _, w in self._messages)).rstrip(".")
        return f". {self.place} says: {messages}" if messages else ""

    def classified(self) -> Meaning | None:
        return classify_message(" ".join(w for _, w in self._messages))

    def not_accepted(self) -> Refusal:
        return Refusal("signInRefused", self._not_accepted())

    def _not_accepted(self) -> str:
        explained = self._explained()
        if explained is not None:
            return explained + self.message_suffix()
        answers = " and ".join(dict.fromkeys(self.sent)) or "the sign-in"
        before = (
            f"{self.place} accepted {' and '.join(self.accepted)}, but not"
            if self.accepted
            else f"{self.place} did not accept"
        )
        return f"{before} {answers} of {self._user}{self._hint()}{self.message_suffix()}"

    def _hint(self) -> str:
        if any("key" in s or "certificate" in s for s in self.sent):
            return "; check that this key is registered at your site, and check the user name"
        if len(self.sent) > 1 or any(" with " in s for s in self.sent):
            return f" (it does not say which is wrong){_WAIT_FOR_CODE}"
        if any("code" in s for s in self.sent):
            return _WAIT_FOR_CODE
        more = (
            "; if your site expects a code directly after the password, type it there"
            if self._secrets.code
            else ""
        )
        return f"; check user name and password{more}"

    def _explained(self) -> str | None:
        """Return a sentence if the server's messages explain the refusal."""
        match self.classified():
            case "locked":
                return (
                    f"{self.place} has locked the account {self._user} or had too many tries; "
                    "wait, or ask your site to unlock it"
                )
            case "accountExpired":
                return (
                    f"the account {self._user} has expired at {self.place}; "
                    "ask your site to renew it"
                )
            case "passwordExpired":
                return password_change_needed(self.place, self._user)
            case "closed" if self.got_message_after_answer():
                return f"{self.place} accepts no sign-ins now; try again later"
            case _:
                return None

    def _change_needed(self) -> str:
        return password_change_needed(self.place, self._user) + self.message_suffix()


_ANSWER_NAMES = {
    "password": "the password",
    "code": "the one-time code",
    "both": "the password with the one-time code after it",
}
_WAIT_FOR_CODE = "; a code can be used once and for a short time only, so wait for the next one"
_PART_NAMES = {"password": "password", "code": "one-time code"}


def password_change_needed(place: str, user: str) -> str:
    return (
        f"{place} requires {user} to change the password first; "
        "sign in there with ssh, change the password, then sign in here again"
    )


def _fingerprint(key: asyncssh.SSHKeyPair) -> str:
    return "SHA256:" + base64.b64encode(
        hashlib.sha256(key.key_public_data).digest()
    ).decode().rstrip("=")
