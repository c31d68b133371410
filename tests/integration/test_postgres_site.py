"""A whole site with its store in PostgreSQL: supervisor, keeper, agent and jobs, with kills of the
supervisor and of the server.
"""

import json
from collections.abc import Callable

import postgres_server
from supervisor_process import SupervisorProcess, req_id, shell, until


def test_a_site_that_moved_survives_kills_of_its_supervisor_and_of_its_database(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    server = postgres_server.shared_durable()
    url = server.url()
    site = make_site()
    site.start()
    gate = site.place / "gate"
    run = shell(f"until [ -e {gate} ]; do sleep 0.05; done; echo out; exit 3")
    request = req_id()
    site.submit(run, request)
    site.running(run)

    site.stop()
    # the log moves while the job runs
    with server.connect() as c:
        c.execute("CREATE SCHEMA taken; CREATE TABLE taken.site (n int)")
    taken = site.command("db", "move", server.url("taken"))
    assert taken.returncode and "choose another schema" in taken.stderr, taken.stderr
    moved = site.command("--json", "db", "move", url)
    assert moved.returncode == 0 and json.loads(moved.stdout)["events"] > 3, moved.stderr
    assert not (site.root / "db/events.sqlite").exists()
    site._sets = (*site._sets, f"store.url={url}")
    site.start()
    assert site.submit(run, request)["state"] == "running", "the receipt came along"

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

    # commands beside the supervisor, and the way back while a job runs
    report = site.command("--json", "db", "check")
    assert report.returncode == 0 and json.loads(report.stdout)["inUse"], report.stderr
    compacted = site.command("--json", "db", "compact", "--older-than", "0", "--no-keep")
    assert compacted.returncode == 0 and json.loads(compacted.stdout)["changed"], compacted.stderr
    gate.unlink()
    last = shell(f"until [ -e {gate} ]; do sleep 0.05; done; exit 4")
    site.submit(last)
    site.running(last)
    assert site.stop() == 0
    site._sets = tuple(s for s in site._sets if not s.startswith("store.url"))
    process = site.fork_or_launch()
    assert process.wait(60) != 0 and process.stdout is not None
    process.stdout.close()
    assert "but store.url is not set" in site.log()
    back = site.command("--json", "db", "move", "--to-file")
    assert back.returncode == 0, back.stderr
    site.start()
    gate.touch()
    assert site.wait(last)["exit"]["code"] == 4
    assert site.story(run) == ["JobFolded"]
    checked = site.command("db", "check")
    assert checked.returncode == 0, checked.stdout
