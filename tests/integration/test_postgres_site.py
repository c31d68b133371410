"""A whole site with its store in PostgreSQL: supervisor, keeper, agent and jobs, with kills of the
supervisor and of the server.
"""

import json
from collections.abc import Callable

import postgres_server
from supervisor_process import SupervisorProcess, req_id, shell, until


def test_a_site_survives_kills_of_its_supervisor_and_of_its_database(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    server = postgres_server.Server()
    server.start()
    url = server.url()
    site = make_site(f"store.url={url}")
    site.start()
    gate = site.place / "gate"
    run = shell(f"until [ -e {gate} ]; do sleep 0.05; done; echo out; exit 3")
    request = req_id()
    site.submit(run, request)
    site.running(run)

    site.stop(9)
    site.start()
    assert site.submit(run, request)["state"] == "running", "the receipt is in the database"
    assert site.finished(shell("exit 0"))["state"] == "completed"

    server.kill()
    pid = site.pid
    other = shell("exit 0")
    body = json.dumps({"reqId": req_id(), "run": other}).encode()

    def refused() -> bool:
        answer = site.ask("POST", "/api/run-simulation", body)
        assert answer.code >= 500 and answer.json()["code"] == "storageUnavailable", answer
        return True

    until(refused, "requests are refused by name")
    gate.touch()
    server.start_again()
    until(lambda: site.ask("POST", "/api/run-simulation", body).code == 200, "it takes requests")
    assert site.wait(other)["state"] == "completed"
    said = site.wait(run)
    assert (said["state"], said["exit"]["code"]) == ("error", 3)
    assert site.output(run, tail=100).body == b"out\n"
    assert site.story(run).count("RunRequested") == site.story(run).count("RunEnded") == 1
    assert site.pid == pid and site.process is not None and site.process.poll() is None
    assert "password" not in site.logged()

    report = site.command("db", "check")
    assert (
        report.returncode and "is in postgresql://" in report.stderr and "pg_dump" in report.stderr
    )
    assert site.stop() == 0
    site._sets = tuple(s for s in site._sets if not s.startswith("store.url"))
    process = site.launch()
    assert process.wait(60) != 0 and process.stdout is not None
    process.stdout.close()
    assert "but store.url is not set" in site.log()
