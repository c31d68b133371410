"""Clients that continue while their supervisor dies and restarts, and journal their answers."""

import contextlib
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from oracle import Oracle
from site_locations import dice
from supervisor_process import SupervisorProcess, jid_of, req_id, until

from jobscribe.client.api.replies import RunState
from jobscribe.client.sync_client import Client

#: Users of the runs.
UIDS = ("KillSup1", "KillSup2")


class Load:
    """A client that never stops: submits short runs into a few result slots, forces some and
    cancels some. It journals its answers and repeats unanswered requests.
    """

    def __init__(self, site: SupervisorProcess, oracle: Oracle, seed: str) -> None:
        self._witness = oracle
        self._chance = dice(seed)
        self._over = threading.Event()
        self.answered = self.repeated = 0
        self.failure: BaseException | None = None
        self._runs = [
            oracle.job("sleep 0.0$((JOBSCRIBE_SERIAL % 10)); exit 0", uid=UIDS[n % 2], graceSecs=0)
            for n in range(8)
        ]
        self._root = site.root
        self._thread = threading.Thread(target=self._guarded)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            while not self._over.is_set():
                self._one(self._chance.choice(self._runs))
        except BaseException as e:
            self.failure = e

    def _one(self, run: dict[str, Any]) -> None:
        if self._chance.random() < 0.2:
            self._ask(
                "run-cancel", {"reqId": req_id(), "uid": run["uid"], "computeJid": jid_of(run)}
            )
        body = {"reqId": req_id(), "run": run, "forceRun": self._chance.random() < 0.7}
        reply = self._ask("run-simulation", body)
        if reply is not None:
            self._witness.acknowledged(body["reqId"], reply)
            self.answered += 1
        self._over.wait(self._chance.random() * 0.02)

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, or None if refused for good. Repeat the request unchanged while there
        is no answer.
        """
        while True:
            try:
                where = json.loads((self._root / "client.json").read_text())
                connection = http.client.HTTPConnection(
                    where["url"].removeprefix("http://"), timeout=10
                )
                try:
                    connection.request(
                        "POST",
                        f"/api/{path}",
                        json.dumps(body),
                        {"Authorization": "Bearer " + where["token"]},
                    )
                    reply = connection.getresponse()
                    said = json.loads(reply.read())
                finally:
                    connection.close()
            except (OSError, http.client.HTTPException, ValueError):
                self.repeated += 1
                time.sleep(0.02)
                continue
            if reply.status == 200:
                return said  # type: ignore[no-any-return]
            assert said["retry"] or said["code"] in ("anotherRun", "notFound"), said
            if said["retry"] is False:
                return None
            time.sleep(0.02)


class Waiting(threading.Thread):
    """A user who waits with the Python client while supervisors restart; `result` is the outcome."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        super().__init__()
        self._wait = wait
        self.result: Any = None
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._wait()
        except BaseException as e:
            self.failure = e

    def get(self) -> Any:
        self.join(60)
        assert not self.is_alive(), "nobody told it that it was over"
        if self.failure is not None:
            raise self.failure
        return self.result


def killed(site: SupervisorProcess) -> None:
    """Kill only the supervisor, with kill -9."""
    assert site.stop(signal.SIGKILL) == -signal.SIGKILL


def let_all_go(
    site: SupervisorProcess, oracle: Oracle, gate: str, runs: list[dict[str, Any]]
) -> None:
    def over() -> bool:
        oracle.open(gate)
        return all(site.status(run)["over"] for run in runs)

    until(over, "all of them are over", 60, pause=0.05)
    for run in runs:
        oracle.status(run)


def wait(site: SupervisorProcess, run: dict[str, Any]) -> RunState:
    with Client.from_root(site.root, uid=run["uid"], budget_secs=120) as client:
        return client.wait(jid_of(run))


class Poll:
    """A long poll over a raw connection."""

    def __init__(self, site: SupervisorProcess, run: dict[str, Any]) -> None:
        self._connection = site.connection(10)
        body = {"uid": run["uid"], "computeJid": jid_of(run), "waitSecs": 20}
        self._connection.request(
            "POST", "/api/run-status", json.dumps(body), {"Authorization": "Bearer " + site.token}
        )

    def check_cut_off(self) -> None:
        """Check that the client of a dead supervisor gets an error at once, and that the error is
        retryable.
        """
        with (
            contextlib.closing(self._connection),
            pytest.raises((http.client.HTTPException, OSError)),
        ):
            self._connection.getresponse().read()

    def answer(self) -> tuple[int, dict[str, Any]]:
        with contextlib.closing(self._connection):
            reply = self._connection.getresponse()
            return reply.status, json.loads(reply.read())
