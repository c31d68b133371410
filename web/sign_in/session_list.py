"""The list of a user's login sessions, from which the user may end each."""

from collections.abc import Callable

from ..request.own_sign_ins import SignInRow
from .login_sessions import Sessions, key_of

#: Characters of a session's key that name it. The key itself is a digest of the token.
_ID_LENGTH = 16
_BROWSERS = {
    "Edg/": "Edge",
    "OPR/": "Opera",
    "Firefox/": "Firefox",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
}
_SYSTEMS = {
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Windows": "Windows",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


class SessionList:
    """Implements OwnSignIns. token: returns the token of the request's session."""

    def __init__(self, sessions: Sessions, token: Callable[[], str | None]) -> None:
        self._sessions, self._token = sessions, token

    def of(self, uid: str) -> list[SignInRow]:
        token = self._token()
        current = None if token is None else key_of(token)
        rows = [
            SignInRow(
                id=key[:_ID_LENGTH],
                begun=session.begun,
                until=session.until,
                browser=session.browser,
                current=key == current,
            )
            for key, session in self._sessions.of_user(uid).items()
        ]
        return sorted(rows, key=lambda row: -row.until)

    def end(self, uid: str, id_: str) -> None:
        for key in self._sessions.of_user(uid):
            if key[:_ID_LENGTH] == id_:
                self._sessions.end_key(key)


def browser_of(user_agent: str) -> str:
    """Return the browser and the system that a header names: `Firefox on Linux`."""
    found = (
        next((name for mark, name in table.items() if mark in user_agent), "")
        for table in (_BROWSERS, _SYSTEMS)
    )
    return " on ".join(filter(None, found))
