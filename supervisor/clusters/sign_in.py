"""Sign-in of users to clusters: one attempt at a time, throttled, without storing any secret.

The secrets are in the request, in the driver during the attempt, and in the redactor, which keeps
them out of the log; nowhere else, and for seconds only. The driver knows which users must sign in
and which are signed in.
"""

import asyncio
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ...db.events.state import AgentRecord
from ...protocol.api.requests import SbatchLogin, SbatchLoginStatus, SbatchLogout
from ...protocol.clusters.cluster import Cluster, Clusters
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, AgentKind, agent_log_ids
from ...protocol.redaction import Redactor
from ...runtime.log.logger import Log
from ..core.state.agent_state import AgentState
from ..process.counters import Counters
from .sign_in_throttle import SignInThrottle, folded

if TYPE_CHECKING:
    from ...drivers.sbatch.ssh.credentials import Credentials

DRIVER = "sbatch"
#: Time limit of an attempt, without the start of an agent.
ATTEMPT_SECS = 120.0
#: How long the secrets stay in the redactor after the attempt.
LINGER_SECS = 10.0
#: Largest number of simultaneous attempts of all users.
MOST = 32
#: Lines of a key of at least this length are secrets of their own.
_KEY_LINE = 16
#: Shorter secrets are not searched for in sentences.
_REPEATED = 3


async def _nobody(key: AgentKey) -> bool:
    return False


def _unknown(key: AgentKey) -> AgentState:
    return AgentState(record=AgentRecord(key=key))


class SignsIn(Protocol):
    """The part of the driver that signs users in."""

    def needs_sign_in(self, key: AgentKey) -> str | None: ...

    def signed_in_as(self, key: AgentKey) -> str | None: ...

    async def sign_in(self, uid: str, cluster: str | None, credentials: "Credentials") -> None: ...

    async def sign_out(
        self, key: AgentKey, handle: dict[str, Any] | None, dismiss: Callable[[], Awaitable[bool]]
    ) -> bool: ...


class SignIns:
    """Signs users in to clusters and out.

    agent_up: returns whether this agent is connected or starting, so that no sign-in is needed.
    view: returns the core's state of an agent. dismiss: stops a connected agent, but not its jobs,
    and returns whether it is gone. signed_out: tells the core that the agent of a signed-out user
    is gone.
    """

    def __init__(
        self,
        clusters: Clusters,
        driver: SignsIn,
        redactor: Redactor,
        counters: Counters,
        log: Log,
        *,
        agent_up: Callable[[AgentKey], bool] = lambda key: False,
        view: Callable[[AgentKey], AgentState] = _unknown,
        dismiss: Callable[[AgentKey], Awaitable[bool]] = _nobody,
        signed_out: Callable[[AgentKey], None] = lambda key: None,
        now: Callable[[], float] = time.monotonic,
        attempt_secs: float = ATTEMPT_SECS,
        linger_secs: float = LINGER_SECS,
    ) -> None:
        self._clusters, self._driver, self._redactor, self._counters, self._log = (
            clusters,
            driver,
            redactor,
            counters,
            log,
        )
        self._agent_up, self._attempt_secs, self._linger_secs = agent_up, attempt_secs, linger_secs
        self._view, self._dismiss, self._signed_out = view, dismiss, signed_out
        self._pace = SignInThrottle(now)
        #: attempts under way: (uid, cluster) and the name of the unix user
        self._under_way: dict[tuple[str, str], str] = {}

    def sizes(self) -> dict[str, int]:
        return {"underWay": len(self._under_way), "remembered": len(self._pace)}

    async def login(self, request: SbatchLogin) -> dict[str, Any]:
        """Sign this user in.

        If the user is already signed in, or needs no sign-in, nothing is sent, so that no one-time
        code is wasted. A user who is signed in under another name is refused, because each user
        has one agent for each cluster. Raises Refusal (signInRefused, signInUnreachable,
        signedInAlready, tooManyRequests, badRequest, internal).
        """
        cluster = self._cluster(request.cluster)
        key = _key(request.uid, cluster)
        if self._sentence(key) is None:
            self._check_same(request, key, cluster)
            return self._reply(key, cluster) | {"loginSuccess": True}
        if not any((request.password, request.otp, request.private_key)):
            raise Refusal("badRequest", "a sign-in needs a password, a one-time code or a key")
        with self._place(request, cluster):
            self._counters.add("signIn.tried")
            try:
                await self._attempt(request, cluster)
            except Refusal as e:
                self._ended(request, cluster, _OUTCOMES.get(e.code, "failed"))
                raise
        self._ended(request, cluster, "ok")
        return self._reply(key, cluster) | {"ready": True, "loginSuccess": True}

    async def logout(self, request: SbatchLogout) -> dict[str, Any]:
        """Sign this user out. Raises Refusal (badRequest, tooManyRequests, signInUnreachable).

        signedOut: the user was signed in. agentEnded: the agent is gone, as far as is known. runs:
        number of the user's runs that continue in Slurm.
        """
        cluster = self._cluster(request.cluster)
        key = _key(request.uid, cluster)
        if cluster.access != "ssh":
            raise Refusal(
                "badRequest",
                f"the cluster {cluster.name} needs no sign-in, so there is no sign-out",
            )
        if (request.uid, cluster.name) in self._under_way:
            raise Refusal(
                "tooManyRequests", "a sign-in to this cluster is in progress; wait for its end"
            )
        was_in, user, view = self._sentence(key) is None, self._user(key), self._view(key)
        try:
            async with asyncio.timeout(self._attempt_secs):
                ended = await self._driver.sign_out(
                    key, view.record.handle, lambda: self._dismiss(key)
                )
        except TimeoutError:
            raise Refusal(
                "signInUnreachable",
                f"{_host(cluster)} did not answer within {_secs(self._attempt_secs)}",
            ) from None
        if ended:
            self._signed_out(key)
        self._counters.add("signIn.out")
        log = self._log.bound(**agent_log_ids(key))
        log("sign-out of {} at {}: agent ended: {}", request.uid, cluster.name, ended)
        return self._reply(key, cluster) | {
            "user": user,
            "signedOut": was_in,
            "agentEnded": ended,
            "runs": len(view.placed),
        }

    def status(self, request: SbatchLoginStatus) -> dict[str, Any]:
        """Return the sign-in state. ready: no sign-in is needed. sentence: why a sign-in is
        needed.
        """
        cluster = self._cluster(request.cluster)
        return self._reply(_key(request.uid, cluster), cluster)

    def needed(self, uid: str, cluster: str | None) -> dict[str, Any] | None:
        """Return the `srException` for a run whose user must sign in; None if no sign-in is needed."""
        found = self._clusters.named(cluster)
        sentence = None if found is None else self._sentence(_key(uid, found))
        if found is None or sentence is None:
            return None
        params = {
            "isModal": True,
            "isSbatchLogin": True,
            "reason": "no-creds",
            "cluster": found.name,
            "host": _host(found),
            "sentence": sentence,
        }
        return {"routeName": "sbatchLogin", "params": params}

    def cluster_named(self, name: str | None) -> str | None:
        """Return the name of the cluster, or of the default one; None if it does not exist."""
        found = self._clusters.named(name)
        return None if found is None else found.name

    # ---- inside

    def _cluster(self, name: str | None) -> Cluster:
        found = self._clusters.named(name)
        if found is None:
            raise Refusal(
                "badRequest",
                f"there is no such cluster; there are: {', '.join(c.name for c in self._clusters.clusters)}",
            )
        return found

    def _sentence(self, key: AgentKey) -> str | None:
        """Return why the user must sign in; None if no sign-in is needed."""
        return None if self._agent_up(key) else self._driver.needs_sign_in(key)

    def _user(self, key: AgentKey) -> str | None:
        """Return the unix user of the connection, or else of the agent."""
        user = self._driver.signed_in_as(key) or (self._view(key).record.handle or {}).get("user")
        return None if user is None else str(user)

    def _check_same(self, request: SbatchLogin, key: AgentKey, cluster: Cluster) -> None:
        user = self._user(key)
        if (
            cluster.access == "ssh"
            and user is not None
            and folded(user) != folded(request.username)
        ):
            raise Refusal(
                "signedInAlready",
                f"you are already signed in to {cluster.name} as {user}, so nothing was sent; to sign in as "
                f"another user, sign out first: jobscribe logout {cluster.name}",
                {"user": user},
            )

    def _reply(self, key: AgentKey, cluster: Cluster) -> dict[str, Any]:
        sentence = self._sentence(key)
        return {
            "ready": sentence is None,
            "cluster": cluster.name,
            "host": _host(cluster),
            "access": cluster.access,
            "user": self._user(key),
            "sentence": sentence,
        }

    @contextmanager
    def _place(self, request: SbatchLogin, cluster: Cluster) -> Iterator[None]:
        """Register the attempt: one at a time for each user and for each unix user.

        Raises Refusal("tooManyRequests").
        """
        mine, name = (request.uid, cluster.name), folded(request.username)
        wait = self._pace.wait_secs(request.uid, request.username)
        if wait > 0:
            self._counters.add("signIn.slowed")
            sentence = f"too many wrong answers in a row, and another one could lock the account; try again in {_secs(wait)}"
            raise Refusal("tooManyRequests", sentence, {"waitSecs": round(wait, 1)})
        theirs = name in self._under_way.values() and not self._pace.is_own(*_who(request))
        if mine in self._under_way or theirs or len(self._under_way) >= MOST:
            self._counters.add("signIn.busy")
            raise Refusal("tooManyRequests", "another sign-in is in progress; wait for its end")
        self._under_way[mine] = name
        try:
            yield
        finally:
            del self._under_way[mine]

    async def _attempt(self, request: SbatchLogin, cluster: Cluster) -> None:
        """Sign in once. Raises Refusal with a sentence that contains no secret."""
        secrets = tuple(_secrets(request))
        give_back = self._redactor.hold(secrets)
        try:
            async with asyncio.timeout(self._attempt_secs):
                await self._driver.sign_in(request.uid, cluster.name, _credentials(request))
        except TimeoutError:
            raise Refusal(
                "signInUnreachable",
                f"{_host(cluster)} did not answer within {_secs(self._attempt_secs)}",
            ) from None
        except Refusal as e:
            raise Refusal(e.code, _without_secrets(e, request.username, secrets)) from None
        except Exception as e:
            # do not log its text or traceback, which may contain secrets
            log = self._log.bound(**agent_log_ids(_key(request.uid, cluster)))
            log("internal error in a sign-in: {} at {}", type(e).__name__, _code_position(e))
            raise Refusal(
                "internal", "internal error in the sign-in; the log names its place"
            ) from None
        finally:
            asyncio.get_running_loop().call_later(self._linger_secs, give_back)

    def _ended(self, request: SbatchLogin, cluster: Cluster, outcome: str) -> None:
        if outcome == "ok":
            self._pace.succeeded(*_who(request))
        elif outcome == "refused":
            self._pace.refused(*_who(request))
        self._counters.add(f"signIn.{outcome}")
        log = self._log.bound(**agent_log_ids(_key(request.uid, cluster)))
        log("sign-in of {} at {}: {}", request.uid, cluster.name, outcome)


_OUTCOMES = {
    "signInRefused": "refused",
    "signInUnreachable": "unreachable",
    "badRequest": "malformed",
}
_WITHOUT_DETAILS = {
    "signInRefused": "the cluster refuses this sign-in",
    "signInUnreachable": "the cluster cannot be reached",
    "badRequest": "these credentials cannot be used to sign in",
}


def _key(uid: str, cluster: Cluster) -> AgentKey:
    return AgentKey(DRIVER, AgentKind.PARALLEL, uid, cluster.name)


def _host(cluster: Cluster) -> str:
    return cluster.login[0].host if cluster.login else cluster.name


def _who(request: SbatchLogin) -> tuple[str, str]:
    return request.uid, request.username


def _credentials(request: SbatchLogin) -> "Credentials":
    try:
        from ...drivers.sbatch.ssh.credentials import (
            Credentials,  # imported here: asyncssh is loaded at the first sign-in only
        )
    except ImportError as e:
        raise Refusal(
            "signInUnreachable",
            f"the supervisor lacks a package for ssh ({e.name}); install it: pip install 'jobscribe[sbatch]'",
        ) from None

    return Credentials(
        user=request.username,
        password=request.password,
        code=request.otp,
        key=request.private_key,
        passphrase=request.passphrase,
        certificate=request.certificate,
    )


def _secrets(request: SbatchLogin) -> Iterator[str]:
    """Yield everything that was typed except the name, and each long line of a key."""
    for given in (
        request.password,
        request.otp,
        request.private_key,
        request.passphrase,
        request.certificate,
    ):
        if given:
            yield given
            yield from (
                line.strip()
                for line in given.splitlines()
                if len(line) >= _KEY_LINE and not line.startswith("-----")
            )
    if request.password and request.otp:
        yield request.password + request.otp


def _without_secrets(refusal: Refusal, username: str, secrets: Collection[str]) -> str:
    """Return the sentence of a refusal, or a general one if it contains a secret.

    The sentence may quote the cluster. The user name is replaced, because it may be a password in
    the wrong field.
    """
    if any(len(secret) >= _REPEATED and secret in refusal.sentence for secret in secrets):
        return _WITHOUT_DETAILS.get(refusal.code, "the sign-in failed")
    return re.sub(rf"(?<![\w.@-]){re.escape(username)}(?![\w@-])", "this user", refusal.sentence)


def _code_position(error: BaseException) -> str:
    """Return files, lines and functions of the innermost frames."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(
        f"{f.filename.rpartition('/')[2]}:{f.lineno}:{f.name}" for f in reversed(frames[-6:])
    )


def _secs(secs: float) -> str:
    return f"{secs:.0f} s" if secs < 120 else f"{secs / 60:.0f} min"
