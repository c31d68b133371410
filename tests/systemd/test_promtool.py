"""Prometheus compatibility: its own promtool checks metrics, rules, configuration and dashboard,
and a real Prometheus scrapes and fires alerts.
"""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, ended, shell, spec, until

from jobscribe.router.metrics import RouterMetrics

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "etc/monitoring"
ENGINE = ROOT / "etc/engines/unpacked.sh"
#: Sample names derived from a metric family; `up` is Prometheus' own.
_ENDS = re.compile(r"_(bucket|count|sum)$")
#: Families that exist only with the driver that exports them.
DRIVERS = {"jobscribe_docker_api_seconds", "jobscribe_docker_api_errors_total"}
#: Metrics that a router adds to those of its shards.
ROUTER = RouterMetrics(2).text({0: True, 1: False})


@pytest.fixture(scope="module")
def programs() -> Path:
    done = subprocess.run(
        [ENGINE, "where", "prometheus", "promtool", "prometheus"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{done.stderr.strip()} (make engines does it)")
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def scraped() -> Iterator[SupervisorProcess]:
    """Start a supervisor on which some jobs have succeeded and some have failed."""
    with ended(lambda site: []) as sites:
        site = SupervisorProcess()
        sites.append(site)
        site.start()
        for run in (spec(["true"]), shell("exit 3"), shell("echo some; kill -9 $$")):
            site.finished(run)
        yield site


def text_of(site: SupervisorProcess) -> str:
    answer = site.ask("GET", "/metrics", headers={"Authorization": "Bearer " + token(site)})
    assert answer.code == 200 and answer.headers["Content-Type"].startswith(
        "text/plain; version=0.0.4"
    )
    return answer.body.decode()


def token(site: SupervisorProcess) -> str:
    return (site.root / "secret/metrics").read_text().strip()


def families(text: str) -> dict[str, str]:
    """Return the sample names of metric families with their types."""
    return dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))


def promtool(programs: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "promtool", *arguments], capture_output=True, text=True, timeout=60, **options
    )


# ---- promtool


def test_the_metrics_are_as_prometheus_wants_them(
    programs: Path, scraped: SupervisorProcess
) -> None:
    text = text_of(scraped)
    done = promtool(programs, "check", "metrics", input=text + ROUTER)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = promtool(
        programs,
        "check",
        "metrics",
        input=text.replace("jobscribe_jobs_submitted_total", "jobscribe_jobs_submitted"),
    )
    assert "_total" in wrong.stdout + wrong.stderr, "promtool would not have said anything"


def test_rules_and_their_tests_and_the_configuration(programs: Path, tmp_path: Path) -> None:
    for name in ("alerts.yml", "alerts.test.yml", "prometheus.yml"):
        shutil.copy(MONITORING / name, tmp_path)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        config.read_text().replace("/etc/prometheus/jobscribe.token", str(tmp_path / "token"))
    )
    (tmp_path / "token").write_text("token")
    for arguments in (
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
        ("check", "config", "prometheus.yml"),
    ):
        done = promtool(programs, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    rules, tests = tmp_path / "alerts.yml", tmp_path / "alerts.test.yml"
    rules.write_text(
        rules.read_text().replace("jobscribe_db_failing == 1", "jobscribe_db_failing == 2")
    )
    head, *each = tests.read_text().split("  - name: ")
    tests.write_text(
        head + "".join("  - name: " + t for t in each if t.startswith("JobscribeStoreFailing"))
    )
    assert promtool(programs, "test", "rules", "alerts.test.yml", cwd=tmp_path).returncode != 0, (
        "a rule that never fires was not noticed"
    )


def test_each_alert_is_tested_both_ways_and_says_what_to_type() -> None:
    rules, tests = (
        (MONITORING / "alerts.yml").read_text(),
        (MONITORING / "alerts.test.yml").read_text(),
    )
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == len(set(alerts)) >= 15
    for part in ("summary", "description", "command", "severity"):
        assert len(re.findall(rf"\b{part}: .", rules)) == len(alerts), part
    for alert in alerts:
        assert re.search(rf"name: {alert} fires\n", tests) and re.search(
            rf"name: {alert} stays quiet\n", tests
        ), alert


def test_the_dashboard_asks_for_what_there_is(
    programs: Path, scraped: SupervisorProcess, tmp_path: Path
) -> None:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    assert (
        board["schemaVersion"] >= 36
        and board["uid"]
        and {v["name"] for v in board["templating"]["list"]} == {"datasource", "instance"}
    )
    panels = [p for p in board["panels"] if p["type"] != "row"]
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]) and len(panels) > 20
    for p in board["panels"]:
        assert p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 and p["title"]
    expressions = [t["expr"] for p in panels for t in p["targets"]]
    rules = [
        {
            "record": f"board:n{n}",
            "expr": e.replace("$__rate_interval", "1m").replace("$instance", ".*"),
        }
        for n, e in enumerate(expressions)
    ]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    done = promtool(programs, "check", "rules", "board.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    there = set(families(text_of(scraped) + ROUTER)) | DRIVERS
    alerts = re.findall(
        r"^        expr: (.*)$", (MONITORING / "alerts.yml").read_text(), re.MULTILINE
    )
    named = {
        name
        for e in (*expressions, *alerts)
        for name in re.findall(r"\b(?:jobscribe|process)_\w+", e)
    }
    assert {n for n in named if _ENDS.sub("", n) not in there and n not in there} == set()
    shown = {n for e in expressions for n in re.findall(r"\bjobscribe_\w+", e)}
    hidden = {name for name in there if name.startswith("jobscribe_")} - {
        _ENDS.sub("", n) for n in shown
    }
    assert hidden == set(), "metrics that no panel shows"


# ---- a real Prometheus


@pytest.mark.timeout(120)
def test_a_real_prometheus_scrapes_and_a_rule_fires(programs: Path, tmp_path: Path) -> None:
    with ended(lambda site: []) as sites:
        site = SupervisorProcess()
        sites.append(site)
        site.start()
        (tmp_path / "token").write_text(token(site) + "\n")
        config = (MONITORING / "prometheus.yml").read_text()
        for old, new in (
            ("/etc/prometheus/jobscribe.token", str(tmp_path / "token")),
            ("127.0.0.1:8001", site.url.removeprefix("http://")),
            ("scrape_interval: 15s", "scrape_interval: 1s"),
            ("evaluation_interval: 15s", "evaluation_interval: 1s"),
        ):
            assert old in config
            config = config.replace(old, new)
        (tmp_path / "prometheus.yml").write_text(config)
        rules = (MONITORING / "alerts.yml").read_text()
        assert "for: 2m" in rules
        (tmp_path / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 1s", rules))
        url = f"http://127.0.0.1:{free_port()}"
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    programs / "prometheus",
                    f"--config.file={tmp_path / 'prometheus.yml'}",
                    f"--storage.tsdb.path={tmp_path / 'data'}",
                    f"--web.listen-address={url.removeprefix('http://')}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            up = until(
                lambda: asked(url, 'up{job="jobscribe"}') == [1.0], "the supervisor is scraped", 60
            )
            assert up
            assert asked(url, 'sum(jobscribe_jobs_finished_total{state="error"})') == [0.0]
            site.finished(spec(["/no/such/program"]))
            until(
                lambda: asked(url, 'sum(jobscribe_jobs_finished_total{state="error"})') == [1.0],
                "its end is counted there",
                60,
            )
            site.stop()
            fired = until(lambda: firing(url, "JobscribeDown"), "the alert fires", 60)
            assert (
                "systemctl status" in fired["annotations"]["command"]
                and fired["labels"]["severity"] == "page"
            )
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]
    except urllib.error.HTTPError as e:  # up, and not ready yet
        e.close()
        return None
    except OSError:
        return None  # not up yet


def asked(url: str, expression: str) -> list[float] | None:
    data = get(f"{url}/api/v1/query?query={urllib.request.quote(expression)}&time={time.time()}")
    return None if data is None else [float(row["value"][1]) for row in data["result"]]


def firing(url: str, alert: str) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = (get(f"{url}/api/v1/alerts") or {"alerts": []})["alerts"]
    return next(
        (a for a in found if a["labels"]["alertname"] == alert and a["state"] == "firing"), None
    )
