"""The blueprint in this process, in front of any supervisor, and a browser for one user."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import flask
from flask.testing import FlaskClient

from jobscribe.client.transport.address import Address, Source
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log, Record
from jobscribe.web import create_blueprint

ANN, BOB, ADM = "AnnAnn01", "BobBob02", "AdmAdm03"
ALSO = ("odd=odd_app:app",)


class Lines:
    """A log sink that keeps its lines."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def text(self) -> str:
        return "\n".join(f"{r.where} {r.message} {r.ids} {r.traceback}" for r in self.records)


class Browser:
    """Sends the requests of a page as one user (None: not signed in)."""

    def __init__(self, client: FlaskClient, uid: str | None) -> None:
        self.client, self.uid = client, uid

    def ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {**({"X-User": self.uid} if self.uid else {}), **options.pop("headers", {})}
        return self.client.open(
            path, method=method, headers=headers, **{"buffered": True, **options}
        )

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.ask("POST", path, json={} if body is None else body, headers=headers)

    def get(self, path: str, **headers: str) -> Any:
        return self.ask("GET", path, headers=headers)

    def put(self, path: str, data: bytes, **headers: str) -> Any:
        return self.ask("PUT", path, data=data, headers={"X-Jobscribe": "1", **headers})

    def delete(self, path: str, **headers: str) -> Any:
        return self.ask("DELETE", path, headers={"X-Jobscribe": "1", **headers})

    def said(self, path: str, body: Any = None) -> Any:
        """Send a request that must succeed, and return its JSON."""
        answer = self.post(path, body)
        assert answer.status_code == 200, (
            path,
            answer.status_code,
            answer.get_data(as_text=True)[:500],
        )
        return answer.get_json()


def followed(browser: Browser, said: dict[str, Any]) -> dict[str, Any]:
    """Poll a run as a page does. Return its last status."""
    deadline = time.monotonic() + 30
    while "nextRequest" in said:
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
        said = browser.said("/run-status", said["nextRequest"])
    return said


class FrontEnd:
    """A Flask site with the blueprint. `refusals`: (uid, api, simulation type or None) to the
    refusal of the site's hook.
    """

    def __init__(
        self,
        supervisor: Address | Source | str,
        *,
        also: Sequence[str] = ALSO,
        prefix: str = "",
        streams: int = 4,
        plan: Callable[[str], str | None] | None = None,
    ) -> None:
        self.lines = Lines()
        self.refusals: dict[tuple[str, str, str | None], Refusal] = {}
        self.user: Callable[[flask.Request], Any] = lambda request: request.headers.get("X-User")
        self.app = flask.Flask("a_site")
        self.app.register_blueprint(
            create_blueprint(
                supervisor=supervisor,
                user=lambda request: self.user(request),
                admin=lambda uid: uid == ADM,
                apps_also=also,
                may=lambda uid, api, type_: self.refusals.get((uid, api, type_)),
                plan=plan,
                log=Log("web", Redactor(), self.lines),
                streams=streams,
            ),
            url_prefix=prefix or None,
        )

    def close(self) -> None:
        self.app.extensions["jobscribe"].close()

    def as_(self, uid: str | None) -> Browser:
        return Browser(self.app.test_client(), uid)


def refused(answer: Any, status: int, code: str) -> Any:
    """Check the status and form of a refusal. Return its body."""
    body = answer.get_json()
    assert answer.status_code == status, (answer.status_code, answer.get_data(as_text=True)[:500])
    assert set(body) - {"problems", "warnings"} == {"state", "code", "error", "advice", "retry"}
    assert body["state"] == "error"
    assert body["code"] == code
    assert body["advice"] and body["error"] and "Traceback" not in body["error"]
    return body
