"""Secrets are rotated under a running supervisor with an agent and a job, while requests go on."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import (
    UID,
    SupervisorProcess,
    jid_of,
    shell,
    texts_below,
    until,
)

from jobscribe.cli.main import call
from jobscribe.client.api.errors import ClientError
from jobscribe.client.sync_client import Client
from jobscribe.service.site.secret_rotation import rotate


class Requests:
    """Clients that send requests until `stop`, each with the secret that it finds in client.json,
    as front ends and the command line do.
    """

    def __init__(self, site: SupervisorProcess, jid: str) -> None:
        self.answered, self.failed = 0, list[str]()
        self._site, self._jid, self._over = site, jid, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with Client.from_root(self._site.root, uid=UID, budget_secs=0.0) as client:
            while not self._over.wait(0.01):
                try:
                    state = client.status(self._jid)
                    assert state.state == "running", state
                    self.answered += 1
                except (ClientError, AssertionError) as e:
                    self.failed.append(str(e))

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)


def code(site: SupervisorProcess, secret: str, path: str = "/api/whoami") -> int:
    return site.ask("GET", path, headers={"Authorization": f"Bearer {secret}"}).code


@pytest.mark.timeout(120)
def test_no_request_and_no_job_is_lost_over_rotations(
    make_site: Callable[..., SupervisorProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    """The earlier secret is accepted until its time and refused after it; agent and job go on."""
    site = make_site().start()

    def answer(*words: str) -> Any:
        capfd.readouterr()
        status = call(["--root", str(site.root), "--json", *words])
        out, err = capfd.readouterr()
        assert status == 0, (status, out, err)
        return json.loads(out)["items"]

    run = shell("echo begun; sleep 600")
    site.submit(run)
    site.running(run)
    agent, old = site.agent_pid(), site.token
    file = site.root / "secret" / "server"
    requests = Requests(site, jid_of(run))
    try:
        # three rotations by the command, and one with a short time
        for _ in range(3):
            [row] = answer("secret", "rotate", "server", "--overlap", "1h")
            assert row["inUse"] is True and old not in json.dumps(row)
            site.read_address()
            assert site.token == file.read_text().strip() and code(site, site.token) == 200
        assert code(site, old) == 200
        [server, metrics] = answer("secret", "list")
        assert (server["earlier"], metrics["earlier"], server["error"]) == (3, 0, None)
        short = site.token
        newest = rotate(str(file), "x", 2.0, time.time()).current
        assert code(site, newest) == code(site, short) == 200, "both are accepted at once"
        until(lambda: code(site, short) == 401, "it is refused after its time", 15)
        assert code(site, old) == 200 and code(site, newest) == 200
        # a secret that others know: nothing of before is accepted
        [row] = answer("secret", "rotate", "server", "--now")
        assert row["inUse"] is True and row["earlierUntil"] is None
        assert {code(site, s) for s in (old, short, newest)} == {401}
        before = requests.answered
        until(lambda: requests.answered > before + 20, "clients found the new secret")
    finally:
        requests.stop()
    assert requests.failed == [] and requests.answered > 100
    site.read_address()
    # the monitoring token is another secret
    scraper = (site.root / "secret" / "metrics").read_text().strip()
    [row] = answer("secret", "rotate", "metrics")
    new = (site.root / "secret" / "metrics").read_text().strip()
    assert row["inUse"] is True and code(site, scraper, "/health") == code(site, new, "/health")
    assert code(site, new, "/health") == 200 and code(site, new) == 401
    # a file that cannot be used: the secret in use stays, and is reported
    good = file.read_text()
    file.write_text("weak")
    until(lambda: "secretRefused" in site.log(), "the file was refused")
    assert code(site, site.token) == 200
    reasons = site.ask("GET", "/health").json()["reasons"]
    assert [r["what"] for r in reasons if r["what"].startswith("secret")] == ["secret:server"]
    file.write_text(good)
    until(lambda: not _secret_reasons(site), "the file is right again")
    counters = site.ready()["counters"]
    assert counters["secretRefused"] == 1 and counters["earlierSecret"] > 0
    # agent and job were not touched, and a restart knows the same
    assert site.agent_pid() == agent and site.status(run)["state"] == "running"
    site.stop()
    site.start()
    until(lambda: site.status(run)["known"], "the job was found")
    assert site.agent_pid() == agent and code(site, old) == 401
    site.cancel(run)
    site.wait(run)
    known = {old, short, newest, site.token, scraper, new}
    for path, text in texts_below(site.root / "log", site.root / "agent", site.root / "db").items():
        assert not [s for s in known if s.encode() in text], path


def _secret_reasons(site: SupervisorProcess) -> list[Any]:
    reasons = site.ask("GET", "/health").json()["reasons"]
    return [r for r in reasons if r["what"].startswith("secret")]
