"""Users' credentials for image registries, in memory only, until the runs that need them have ended.

Nothing here is stored: after a restart, a run whose image is not pulled yet ends with `credentialsLost`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ...db.events.events import RunEnded, job_stream
from ...db.store.contract import Stored
from ...protocol.ids import derived_id
from ...protocol.jobs.registry_login import LoginRef, RegistryLogin
from ...protocol.redaction import Redactor

_Key = tuple[str, str]


class _Held:
    """Credentials of one submission. streams: of the jobs whose runs have not ended."""

    def __init__(
        self, logins: Iterable[RegistryLogin], streams: Iterable[str], release: Callable[[], None]
    ) -> None:
        self.logins = {login.registry: login for login in logins}
        self.streams, self.release = set(streams), release
        self.submitting = 1


class RegistryLogins:
    """The credentials of all runs that have not ended. Logs hide their passwords."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: dict[_Key, _Held] = {}

    def find(self, uid: str, ref: LoginRef) -> Mapping[str, RegistryLogin] | None:
        """Return the credentials by registry; None if this process has them no more. Only their own
        user's runs find them.
        """
        held = self._held.get((uid, ref.id))
        return None if held is None else held.logins

    def hold(
        self, uid: str, id_: str, logins: Collection[RegistryLogin], jids: Iterable[str]
    ) -> LoginRef:
        """Hold credentials before the runs of these jobs are submitted; `submitted` must follow. A
        repeated request replaces them.
        """
        streams = set(map(job_stream, jids))
        release = self._redactor.hold(login.password for login in logins)
        if (held := self._held.get((uid, id_))) is None:
            self._held[uid, id_] = _Held(logins, streams, release)
        else:
            held.release()
            held.logins, held.release = {login.registry: login for login in logins}, release
            held.streams |= streams
            held.submitting += 1
        return LoginRef(id=id_, registries=tuple(sorted({login.registry for login in logins})))

    def submitted(self, uid: str, id_: str, ended: Iterable[str]) -> None:
        """Drop the credentials for jobs whose runs were refused, or have ended already."""
        held = self._held.get((uid, id_))
        if held is not None:
            held.submitting -= 1
            self._drop((uid, id_), held, set(map(job_stream, ended)))

    def events(self, events: Sequence[Stored]) -> None:
        """Drop the credentials for runs that have ended."""
        ended = {e.stream for e in events if isinstance(e.event, RunEnded)} if self._held else set()
        for key, held in list(self._held.items()) if ended else ():
            self._drop(key, held, ended)

    def _drop(self, key: _Key, held: _Held, ended: set[str]) -> None:
        # while a request is submitted, the end may be that of an earlier run of the same job
        if held.submitting:
            return
        held.streams -= ended
        if not held.streams:
            held.release()
            del self._held[key]

    def __len__(self) -> int:
        return len(self._held)


def login_id(uid: str, req_id: str) -> str:
    """Return the id of the credentials of a request: the same one if the request is repeated."""
    return derived_id(f"{uid}|{req_id}".encode(), key=b"jobscribe login")
