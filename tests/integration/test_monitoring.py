"""Access to metrics and health on a real supervisor, their content, and their command."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor_process import PYTHON_PATH, Answer, SupervisorProcess, shell, spec, until

from jobscribe.router.metrics import RouterMetrics
from jobscribe.supervisor.api.routes import ROUTES


def token(site: SupervisorProcess) -> str:
    return (site.root / "secret/metrics").read_text().strip()


def asked(site: SupervisorProcess, path: str, secret: str | None) -> Answer:
    return site.ask(
        "GET", path, headers={} if secret is None else {"Authorization": "Bearer " + secret}
    )


def value(site: SupervisorProcess, sample: str) -> float:
    """Return the value of one sample in the text format."""
    lines = asked(site, "/metrics", token(site)).body.decode().splitlines()
    return next(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"jobscribe_{sample} ")
    )


def test_the_token_opens_these_two_and_nothing_else(site: SupervisorProcess) -> None:
    path = site.root / "secret/metrics"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(token(site)) >= 40
    assert token(site) != site.token
    for route in ("/metrics", "/health"):
        assert [
            asked(site, route, s).code
            for s in (token(site), site.token, token(site)[:-1], "", None)
        ] == [200, 200, 401, 401, 401]
    closed = [r for r in ROUTES if r.scope is not None and not r.monitors]
    assert len(closed) > 25
    for r in closed:
        assert (
            site.ask(
                r.methods[0], r.path, b"{}", headers={"Authorization": "Bearer " + token(site)}
            ).code
            == 401
        ), r.path
    before = token(site)
    site.stop()
    site.start()
    assert token(site) == before


def test_open_routes_say_nothing_of_others(shared: SupervisorProcess) -> None:
    asked(shared, "/metrics", "wrong")
    assert asked(shared, "/livez", None).json() == {"state": "ok"}
    assert set(asked(shared, "/readyz", None).json()) == {"state", "head"}


def test_a_token_of_ones_own(make_site: Callable[..., SupervisorProcess], tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text("aVeryOwnTokenOfTheSite0123456789\n")
    file.chmod(0o644)
    site = make_site(f"supervisor.metrics_secret_file={file}")
    process = site.fork_or_launch()
    said = process.communicate(timeout=60)
    assert (
        process.returncode != 0
        and "supervisor.metrics_secret_file" in site.log() + said[0].decode()
    )
    file.chmod(0o600)
    site.start()
    assert asked(site, "/metrics", "aVeryOwnTokenOfTheSite0123456789").code == 200
    assert not (site.root / "secret/metrics").exists() and "aVeryOwnToken" not in site.log()


def test_counters_follow_what_happens_and_jobs_outlive_a_restart(site: SupervisorProcess) -> None:
    site.finished(spec(["true"]))
    site.finished(shell("exit 3"))
    waits = shell("sleep 300", graceSecs=0)
    site.submit(waits)
    site.running(waits)
    labels = 'driver="local",kind="sequential"'
    until(lambda: value(site, f'jobs{{{labels},state="running"}}') == 1, "it is counted")
    assert value(site, f"jobs_submitted_total{{{labels}}}") == 3
    assert value(site, f'jobs_finished_total{{cause="exit",{labels},state="error"}}') == 1
    assert value(site, 'slots_used{driver="local",kind="sequential"}') == 1
    assert value(site, 'db_operation_seconds_count{op="commit"}') > 3
    assert (
        value(
            site,
            'http_request_duration_seconds_count{code="200",method="POST",route="/api/run-simulation"}',
        )
        == 3
    )
    refused = value(site, 'auth_failures_total{reason="api"}')
    assert asked(site, "/metrics", "wrong").code == 401
    assert value(site, 'auth_failures_total{reason="api"}') == refused + 1
    site.stop()
    site.start()
    until(lambda: value(site, f'jobs{{{labels},state="running"}}') == 1, "jobs are in the index")
    assert (
        value(site, f'jobs{{{labels},state="error"}}') == 1
        and value(site, f"jobs_submitted_total{{{labels}}}") == 0
    )
    site.cancel(waits)
    site.wait(waits)
    until(
        lambda: (
            value(site, f'jobs_finished_total{{cause="canceled",{labels},state="canceled"}}') == 1
        ),
        "its end is counted, though it began before",
    )


def test_every_metric_and_alert_is_on_its_page_and_nothing_else(shared: SupervisorProcess) -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs/monitoring.md").read_text()
    text = asked(shared, "/metrics", token(shared)).body.decode()
    text += RouterMetrics(2).text({0: True, 1: False})
    there = {m[0]: m[1] for m in re.findall(r"^# TYPE (jobscribe_\w+) (\w+)$", text, re.MULTILINE)}
    #: metrics of a driver that this supervisor does not use
    docker = {
        "jobscribe_docker_api_seconds": "histogram",
        "jobscribe_docker_api_errors_total": "counter",
    }
    rows = re.findall(r"^\| `(jobscribe_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", page, re.MULTILINE)
    assert {name: kind for name, kind, _, _ in rows} == there | docker and len(rows) == len(
        there
    ) + len(docker)
    for name, _, labels, about in rows:
        used = {
            label
            for line in re.findall(rf"^{name}(?:_bucket)?{{(.*?)}} ", text, re.MULTILINE)
            for label in re.findall(r'(\w+)="', line)
        } - {"le"}
        assert used <= set(re.findall(r"`(\w+)`", labels)), name
        assert name in docker or f"# HELP {name} {about}\n" in text, name
    rules = (root / "etc/monitoring/alerts.yml").read_text()
    alerts = list(
        zip(
            re.findall(r"- alert: (\w+)", rules), re.findall(r"severity: (\w+)", rules), strict=True
        )
    )
    assert re.findall(r"^\| `(Jobscribe\w+)` \| (\w+) \|", page, re.MULTILINE) == alerts


def command(site: SupervisorProcess, *more: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONPATH": PYTHON_PATH
    }
    arguments = [sys.executable, "-m", "jobscribe.cli", "--root", str(site.root), *more]
    return subprocess.run(arguments, capture_output=True, text=True, env=env, cwd="/", timeout=60)


def test_the_command_says_what_is_wrong_and_exits_so(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    # the fault lasts longer than the commands below take
    site = make_site("limits.agent_start_tries=6").start()
    well = command(site, "health")
    assert (well.returncode, well.stdout) == (0, "ok\n"), well
    assert "no fault" in well.stderr
    folder = site.root / "agent"
    folder.mkdir(exist_ok=True)
    # an agent that cannot start, because a file has the name of its folder
    (folder / str(site.agent_key())).write_text("in the way")
    site.submit(spec(["true"]))
    said = until(
        lambda: (s := command(site, "health", "--json")).returncode == 1 and s, "it is degraded", 60
    )
    body = json.loads(said.stdout)
    (reason,) = body["reasons"]
    assert (body["schema"], body["state"], reason["what"], reason["state"]) == (
        "jobscribe.health/1",
        "degraded",
        "agentStarts",
        "degraded",
    )
    assert (
        re.search(r"could not be started", reason["sentence"])
        and reason["try"]
        and reason["since"] > 1e9
    )
    plain = command(site, "health")
    assert (
        plain.returncode == 1
        and plain.stdout.startswith("degraded\n")
        and "\n  try: " in plain.stdout
    )
    site.stop()
    gone = command(site, "health")
    assert gone.returncode == 125 and "Traceback" not in gone.stderr
