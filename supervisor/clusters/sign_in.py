"""Users sign in to clusters: one attempt after another, no faster than is good for their accounts,
and nothing of it on record.

What a person types lives in the request, in the driver while it signs in, and, so that no line of
the log ever shows it, in the redactor; nowhere else, and not for long. Who must sign in, and who is
signed in, is the driver's knowledge.
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
from ...protocol.ids import AgentKey
from ...protocol.redaction import Redactor
from ...runtime.log.logger import Log
from ..core.state.agent_state import AgentState
from ..process.counters import Counters
from .sign_in_throttle import SignInThrottle, folded

if TYPE_CHECKING:
    from ...drivers.sbatch.ssh.sign_in import Credentials

DRIVER = "sbatch"
#: An attempt may take so long; agents are not waited for.
ATTEMPT_SECS = 120.0
#: What was typed is kept out of the log for so long after the attempt.
LINGER_SECS = 10.0
#: Attempts at once, of all users.
MOST = 32
#: Of a key, lines of at least this length are secrets each.
_KEY_LINE = 16
#: A shorter part of a sentence is no secret that it repeats.
_REPEATED = 3


async def _nobody(key: AgentKey) -> bool:
    return False


def _unknown(key: AgentKey) -> AgentState:
    return AgentState(record=AgentRecord(key=key))


class SignsIn(Protocol):
    """What is needed of the driver."""

    def needs_sign_in(self, key: AgentKey) -> str | None: ...

    def signed_in_as(self, key: AgentKey) -> str | None: ...

    async def sign_in(self, uid: str, cluster: str | None, credentials: "Credentials") -> None: ...

    async def sign_out(
        self, key: AgentKey, handle: dict[str, Any] | None, dismiss: Callable[[], Awaitable[bool]]
    ) -> bool: ...


class SignIns:
    """agent_up: is this agent up, or on its way? Then nobody has to sign in, whatever the driver
    has of its own.

    view: what the core knows of an agent. dismiss: ends a connected agent, not its jobs, and says
    whether it has gone. signed_out: tells the core that nothing is left of an agent whose user has
    signed out.
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
        #: whose attempts are under way: (uid, cluster), and the unix user's name for which it is
        self._under_way: dict[tuple[str, str], str] = {}

    def sizes(self) -> dict[str, int]:
        return {"underWay": len(self._under_way), "remembered": len(self._pace)}

    async def login(self, request: SbatchLogin) -> dict[str, Any]:
        """Sign this user in. Raises Refusal (signInRefused, signInUnreachable, signedInAlready,
        tooManyRequests, badRequest, internal).

        Where the user is signed in already, or nobody has to, nothing is sent anywhere: a code is
        not used up for nothing. Somebody who is signed in under another name is refused: there is
        one agent for each user and cluster.
        """
        cluster = self._cluster(request.cluster)
        key = _key(request.uid, cluster)
        if self._sentence(key) is None:
            self._check_same(request, key, cluster)
            return self._told(key, cluster) | {"loginSuccess": True}
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
        return self._told(key, cluster) | {"ready": True, "loginSuccess": True}

    async def logout(self, request: SbatchLogout) -> dict[str, Any]:
        """Sign this user out. Raises Refusal (badRequest, tooManyRequests, signInUnreachable).

        signedOut: somebody was signed in. agentEnded: nothing of the agent is left, as far as is
        known. runs: that Slurm goes on with.
        """
        cluster = self._cluster(request.cluster)
        key = _key(request.uid, cluster)
        if cluster.access != "ssh":
            raise Refusal(
                "badRequest",
                f"nobody signs in to the cluster {cluster.name}: its runs are started without a sign-in",
            )
        if (request.uid, cluster.name) in self._under_way:
            raise Refusal("tooManyRequests", "a sign-in there is under way; wait for its end")
        was_in, user, view = self._sentence(key) is None, self._user(key), self._view(key)
        try:
            async with asyncio.timeout(self._attempt_secs):
                ended = await self._driver.sign_out(
                    key, view.record.handle, lambda: self._dismiss(key)
                )
        except TimeoutError:
            raise Refusal(
                "signInUnreachable",
                f"{_host(cluster)} has not answered within {_secs(self._attempt_secs)}",
            ) from None
        if ended:
            self._signed_out(key)
        self._counters.add("signIn.out")
        self._log(
            "sign-out of {} at {}: agent ended: {}",
            request.uid,
            cluster.name,
            ended,
            uid=request.uid,
        )
        return self._told(key, cluster) | {
            "user": user,
            "signedOut": was_in,
            "agentEnded": ended,
            "runs": len(view.placed),
        }

    def status(self, request: SbatchLoginStatus) -> dict[str, Any]:
        """ready: the user's agent is there or on its way, or could be. sentence: why not."""
        cluster = self._cluster(request.cluster)
        return self._told(_key(request.uid, cluster), cluster)

    def needed(self, uid: str, cluster: str | None) -> dict[str, Any] | None:
        """What a client is told whose run waits for its user to sign in, in the words that clients
        know; None: nobody has to.
        """
        there = self._clusters.named(cluster)
        sentence = None if there is None else self._sentence(_key(uid, there))
        if there is None or sentence is None:
            return None
        params = {
            "isModal": True,
            "isSbatchLogin": True,
            "reason": "no-creds",
            "cluster": there.name,
            "host": _host(there),
            "sentence": sentence,
        }
        return {"routeName": "sbatchLogin", "params": params}

    def cluster_named(self, name: str | None) -> str | None:
        """The one that is meant; None: there is none of this name any more."""
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
        """Why the user has to sign in; None: not at all."""
        return None if self._agent_up(key) else self._driver.needs_sign_in(key)

    def _user(self, key: AgentKey) -> str | None:
        """The unix user whose connection there is, or else as whom the agent was started."""
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
                f"you are signed in to {cluster.name} as {user}, so nothing was sent; to sign in there as "
                f"somebody else, sign out first: jobscribe logout {cluster.name}",
                {"user": user},
            )

    def _told(self, key: AgentKey, cluster: Cluster) -> dict[str, Any]:
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
        """The only attempt of this user there, and the only one for this unix user. Raises
        Refusal("tooManyRequests").
        """
        mine, name = (request.uid, cluster.name), folded(request.username)
        wait = self._pace.wait_secs(request.uid, request.username)
        if wait > 0:
            self._counters.add("signIn.slowed")
            sentence = f"too many wrong answers in a row, and one more could lock the account; the next try is allowed in {_secs(wait)}"
            raise Refusal("tooManyRequests", sentence, {"waitSecs": round(wait, 1)})
        theirs = name in self._under_way.values() and not self._pace.is_own(*_who(request))
        if mine in self._under_way or theirs or len(self._under_way) >= MOST:
            self._counters.add("signIn.busy")
            raise Refusal("tooManyRequests", "another sign-in is under way; wait for its end")
        self._under_way[mine] = name
        try:
            yield
        finally:
            del self._under_way[mine]

    async def _attempt(self, request: SbatchLogin, cluster: Cluster) -> None:
        """One try. Raises Refusal, whose sentence repeats nothing of what was typed."""
        secrets = tuple(_secrets(request))
        give_back = self._redactor.hold(secrets)
        try:
            async with asyncio.timeout(self._attempt_secs):
                await self._driver.sign_in(request.uid, cluster.name, _credentials(request))
        except TimeoutError:
            raise Refusal(
                "signInUnreachable",
                f"{_host(cluster)} has not answered within {_secs(self._attempt_secs)}",
            ) from None
        except Refusal as e:
            raise Refusal(e.code, _harmless(e, request.username, secrets)) from None
        except Exception as e:
            # neither its text nor its trace: nobody knows what they repeat
            self._log(
                "a sign-in failed inside: {} at {}", type(e).__name__, _place_of(e), uid=request.uid
            )
            raise Refusal("internal", "the sign-in failed inside; the log says where") from None
        finally:
            asyncio.get_running_loop().call_later(self._linger_secs, give_back)

    def _ended(self, request: SbatchLogin, cluster: Cluster, outcome: str) -> None:
        if outcome == "ok":
            self._pace.succeeded(*_who(request))
        elif outcome == "refused":
            self._pace.refused(*_who(request))
        self._counters.add(f"signIn.{outcome}")
        self._log("sign-in of {} at {}: {}", request.uid, cluster.name, outcome, uid=request.uid)


_OUTCOMES = {
    "signInRefused": "refused",
    "signInUnreachable": "unreachable",
    "badRequest": "malformed",
}
_SAID_INSTEAD = {
    "signInRefused": "the cluster refuses this sign-in",
    "signInUnreachable": "the cluster cannot be reached",
    "badRequest": "what was given cannot be used to sign in",
}


def _key(uid: str, cluster: Cluster) -> AgentKey:
    return AgentKey(DRIVER, "parallel", uid, cluster.name)


def _host(cluster: Cluster) -> str:
    return cluster.login[0].host if cluster.login else cluster.name


def _who(request: SbatchLogin) -> tuple[str, str]:
    return request.uid, request.username


def _credentials(request: SbatchLogin) -> "Credentials":
    try:
        from ...drivers.sbatch.ssh.sign_in import (
            Credentials,  # what it needs is loaded where somebody signs in
        )
    except ImportError as e:
        what = f"what signs in by ssh is not installed beside the supervisor ({e.name}): pip install 'jobscribe[sbatch]'"
        raise Refusal("signInUnreachable", what) from None

    return Credentials(
        user=request.username,
        password=request.password,
        code=request.otp,
        key=request.private_key,
        passphrase=request.passphrase,
        certificate=request.certificate,
    )


def _secrets(request: SbatchLogin) -> Iterator[str]:
    """All that was typed but the name; of a text of several lines, each of these that tells
    something.
    """
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


def _harmless(refusal: Refusal, username: str, secrets: Collection[str]) -> str:
    """Its sentence, which may quote the other side: not where that repeats a secret, and a name may
    be one in the wrong field.
    """
    if any(len(secret) >= _REPEATED and secret in refusal.sentence for secret in secrets):
        return _SAID_INSTEAD.get(refusal.code, "the sign-in failed")
    return re.sub(rf"(?<![\w.@-]){re.escape(username)}(?![\w@-])", "this user", refusal.sentence)


def _place_of(error: BaseException) -> str:
    """Where in the code it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(
        f"{f.filename.rpartition('/')[2]}:{f.lineno}:{f.name}" for f in reversed(frames[-6:])
    )


def _secs(secs: float) -> str:
    return f"{secs:.0f} s" if secs < 120 else f"{secs / 60:.0f} min"
