"""Bad input to the HTTP API, the command line and the pool file: each gets its own clear sentence
without a traceback, and a refusal changes nothing.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_session import check_plain, environment, gang, refused, role, types
from docker_hosts import Host, Hosts, Sites, sites
from fake_docker import FakeDocker
from loop_lag import check_lag
from supervisor_process import SupervisorProcess, jid_of, shell, until

PATIENT = 90.0


def change(site: SupervisorProcess, **fields: Any) -> None:
    """Change fields of the pool file; None removes a field. hosts: fields of each host, by name."""
    path = site.place / "pool.yml"
    pool = json.loads(path.read_text())
    each = {h["name"]: h for h in pool["hosts"]}
    for name, more in fields.pop("hosts", {}).items():
        each.setdefault(name, {"name": name, "cpu": 4, "memoryMb": 4096}).update(more)
    pool["hosts"] = list(each.values())
    path.write_text(
        json.dumps({k: v for k, v in (pool | fields).items() if v is not None}, indent=1)
    )


@pytest.fixture(scope="module")
def observed(pool: Hosts) -> Iterator[SupervisorProcess]:
    """Supervisor with host a for all users and host b for the plan gold only."""
    for host in pool.hosts.values():
        host.well()
    with sites(pool) as made:
        site = made.make(
            use="docker,local",
            pool={"volumes": {"data": {"source": "/srv/jobscribe-data", "target": "/data"}}},
        )
        change(site, hosts={"a": {"plans": ["silver"]}, "b": {"plans": ["gold"]}})
        yield site.start()
        assert not (late := check_lag(site)), late


def containers(pool: Hosts) -> list[list[str]]:
    return [host.containers("jobscribe.part=task") for host in pool.hosts.values()]


@pytest.mark.timeout(200)
def test_what_a_gang_may_not_ask_for_is_refused_and_changes_nothing(
    observed: SupervisorProcess, pool: Hosts
) -> None:
    own = str(observed.root / "user" / "SystemU1")
    asked: list[tuple[dict[str, Any], dict[str, Any], int, str, list[str]]] = [
        (
            {"cpu": 5},
            {},
            400,
            "resourceExceeded",
            ["role hungry asks for 5 cores for each task: a has 4"],
        ),
        (
            {"memoryMb": 5000},
            {},
            400,
            "resourceExceeded",
            ["role hungry asks for 5000 MiB of memory", "4096"],
        ),
        ({"gpu": 1}, {}, 400, "resourceExceeded", ["role hungry asks for 1 GPU", "a has 0"]),
        (
            {"tasks": 5},
            {},
            400,
            "resourceExceeded",
            ["role hungry asks for 5 cores (5 x 1): a has 4"],
        ),
        (
            {},
            {"activePlan": "bronze"},
            400,
            "resourceExceeded",
            ["no host is available for users with the plan 'bronze'"],
        ),
        (
            {},
            {"activePlan": None},
            400,
            "resourceExceeded",
            ["no host is available for users without a plan"],
        ),
        ({"volumes": ["/etc"]}, {}, 400, "volumeRefused", ["role 'hungry'", "/etc", "data"]),
        ({"volumes": [f"{own}/../SystemU2"]}, {}, 400, "volumeRefused", ["role 'hungry'", ".."]),
        (
            {"volumes": [str(observed.root / "user" / "SystemU2")]},
            {},
            400,
            "volumeRefused",
            ["SystemU2"],
        ),
        ({"volumes": ["weights"]}, {}, 400, "volumeRefused", ["weights", "data"]),
        ({"volumes": ["data", "data"]}, {}, 400, "volumeRefused", ["twice"]),
        ({"image": "Team/Solver:1"}, {}, 400, "badRequest", ["its `image` is not valid"]),
        (
            {"image": "debian:12"},
            {"driver": "local"},
            400,
            "badRequest",
            ["`image`", "the driver local", "docker"],
        ),
        (
            {"volumes": ["data"]},
            {"driver": "local"},
            400,
            "badRequest",
            ["`volumes`", "the driver local"],
        ),
        ({}, {"driver": "podman"}, 400, "badRequest", ["podman", "docker", "local"]),
    ]
    before = containers(pool)
    for wishes, fields, status, code, said in asked:
        run = gang(role("hungry", "true", **wishes), **{"activePlan": "silver", **fields})
        if run["activePlan"] is None:
            del run["activePlan"]
        sentence = refused(observed, run, status, code)
        assert [words for words in said if words not in sentence] == [], (wishes, fields, sentence)
    for plan, whose in (
        ({}, "users without a plan"),
        ({"activePlan": "bronze"}, "users with the plan 'bronze'"),
    ):
        sentence = refused(observed, shell("true", **plan), 400, "resourceExceeded")
        assert (
            sentence == f"no host is available for {whose}: all hosts are reserved for other plans"
        )
    assert containers(pool) == before


@pytest.mark.timeout(200)
def test_what_is_typed_and_wrong_is_said_in_one_sentence(observed: SupervisorProcess) -> None:
    head = observed.ready()["head"]
    typed = {
        ("--driver", "docker", "--cpu", "5"): (
            125,
            "no host is available for users without a plan",
        ),
        ("--driver", "docker", "--volume", "weights"): (125, "weights"),
        ("--driver", "docker", "--volume", "/etc"): (125, "/etc"),
        ("--driver", "local", "--image", "debian:12"): (
            125,
            "the driver local runs tasks without containers",
        ),
        ("--driver", "docker", "--image", "No Such"): (2, "right: [registry[:port]/]name"),
        ("--driver", "docker", "--memory", "much"): (2, "much"),
    }
    for options, (code, words) in typed.items():
        out, err = types(observed, "job", "submit", *options, "--", "true", code=code)
        assert out == "" and words in err, (options, out, err)
    out, err = types(
        observed,
        "--json",
        "job",
        "submit",
        "--driver",
        "docker",
        "--volume",
        "weights",
        "--",
        "true",
        code=125,
    )
    said = json.loads(err)
    assert (
        (said["code"], said["retry"]) == ("volumeRefused", False)
        and "weights" in said["error"]
        and said["advice"]
    ), err
    assert observed.ready()["head"] == head


@pytest.mark.timeout(300)
def test_with_all_hosts_away_runs_wait_and_say_which_and_since_when(
    observed: SupervisorProcess, pool: Hosts, host_a: Host, host_b: Host
) -> None:
    plain, tasks = (
        shell("echo here", activePlan="silver"),
        gang(role("main", "echo here"), activePlan="gold"),
    )
    host_a.stop()
    host_b.stop()
    until(
        lambda: {h["state"] for h in observed.ask("GET", "/api/pool").json()["hosts"]} == {"down"},
        "both are missed",
    )
    for run, name in ((plain, "a"), (tasks, "b")):
        observed.submit(run)
        said = until(
            lambda run=run: (s := observed.status(run))["queueState"] == "host_down" and s,
            "it says what it waits for",
        )  # type: ignore[misc]
        text = said["jobStatusMessage"]
        assert "no host is available" in text and f"{name} " in text and "since " in text, text
        check_plain(text + "".join(types(observed, "job", "why", jid_of(run))))
        assert types(observed, "job", "status", jid_of(run))[0].count("no host is available") == 1
    host_a.start()
    host_b.start()
    for run in (plain, tasks):
        assert observed.wait(run, PATIENT)["state"] == "completed"


@pytest.mark.timeout(300)
def test_hosts_that_cannot_be_used_each_say_why_and_are_used_when_that_is_mended(
    docker_sites: Sites, pool: Hosts, tmp_path: Path
) -> None:
    """An expired certificate, a missing key, another authority, a daemon that is too old."""
    folders = {name: tmp_path / name for name in ("expired", "keyless", "otherca")}
    shutil.copytree(pool.place / "bad" / "expired", folders["expired"])
    shutil.copytree(pool.place / "tls" / "b", folders["keyless"])
    (folders["keyless"] / "key.pem").unlink()
    shutil.copytree(pool.place / "bad" / "otherca", folders["otherca"])
    sock = tmp_path / "old"
    sock.mkdir()
    old = FakeDocker(sock, api="1.24")
    try:
        site = docker_sites.make()
        change(
            site,
            hosts={
                "a": {"tls": str(folders["expired"])},
                "b": {"tls": str(folders["keyless"])},
                "old": {"address": old.address},
            },
        )
        site.start()
        run = shell("echo here")
        site.submit(run)

        def known() -> dict[str, str] | None:
            said = {
                h["host"]: h["detail"]
                for h in site.ask("GET", "/api/pool").json()["hosts"]
                if h["state"] == "down"
            }
            return said if len(said) == 3 and "not asked yet" not in said.values() else None

        said = until(known, "all were asked", 60)
        assert "expired" in said["a"] and "key.pem" in said["b"] and "1.24" in said["old"], said
        status = until(
            lambda: (s := site.status(run))["queueState"] == "host_down" and s, "it waits"
        )
        for text in said.values():
            check_plain(text)
        check_plain(
            status["jobStatusMessage"]
            + "".join(types(site, "pool", "check", code=1))
            + "".join(types(site, "pool", "show"))
        )
        shutil.copytree(folders["otherca"], folders["expired"], dirs_exist_ok=True)
        until(
            lambda: "authority" in (known() or {}).get("a", ""),
            "another authority is another sentence",
            60,
        )
        shutil.copytree(pool.place / "tls" / "a", folders["expired"], dirs_exist_ok=True)
        assert site.wait(run, PATIENT)["state"] == "completed", (
            "with good certificates it runs, without a new start"
        )
    finally:
        old.close()


@pytest.mark.timeout(300)
def test_a_pool_that_cannot_be_is_refused_before_anything_starts(
    docker_sites: Sites, pool: Hosts, tmp_path: Path
) -> None:
    open_key = tmp_path / "open"
    shutil.copytree(pool.place / "tls" / "a", open_key)
    (open_key / "key.pem").chmod(0o644)
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        (
            {"tlsDir": None, "hosts": {"b": {"address": "tcp://10.9.8.7:2375"}}},
            ["plain TCP without TLS off loopback", "--tlsverify"],
        ),
        ({"hosts": {"a": {"tls": str(tmp_path / "nowhere")}}}, ["does not exist", "nowhere"]),
        ({"hosts": {"a": {"tls": str(open_key)}}}, ["mode 0644", "chmod 600"]),
        (
            {"hosts": {"b": {"address": pool.hosts["a"].address}}},
            ["is also that of hosts[0]", "its own address"],
        ),
        (
            {"volumes": {"all": {"source": "/", "target": "/all"}}},
            ["volumes.all.source: it is /"],
        ),
        (
            {"volumes": {"r": {"source": "ROOT", "target": "/r"}}},
            ["it contains files of the supervisor"],
        ),
        (
            {
                "netwrok": "none",
                "network": "host",
                "pull": "often",
                "unixUsers": "0-5",
                "hosts": {"a": {"cpu": 0, "memoryMb": "lots"}},
            },
            [
                "has 6 problems",
                "netwrok: unknown key; right: `network`",
                "network: it is host",
                "right: one of missing, always, never",
                "below are root",
                "hosts[0].cpu",
                "hosts[0].memoryMb",
            ],
        ),
    ]
    site = docker_sites.make()
    good = (site.place / "pool.yml").read_text()
    for number, (fields, said) in enumerate(wrong):
        (site.place / "pool.yml").write_text(good)
        change(site, **json.loads(json.dumps(fields).replace("ROOT", str(site.root / "user"))))
        text = start_refused(site) if number in (0, len(wrong) - 1) else checked(site)
        assert [words for words in said if words not in text] == [], (fields, text)
    for sets, words in (
        ((), "docker.pool"),
        (("docker.pool=/nowhere/pool.yml",), "docker.pool: /nowhere/pool.yml: it cannot be read"),
    ):
        site = docker_sites.make(*sets)
        site._env.pop("JOBSCRIBE_DOCKER_POOL")
        assert words in start_refused(site)


def start_refused(site: SupervisorProcess) -> str:
    """Return the error of a supervisor that refuses to start; check that it created nothing."""
    process = site.fork_or_launch()
    assert process.wait(60) == 78, site.log()
    assert process.stdout is not None and process.stdout.read() == b""
    process.stdout.close()
    text = site.log()
    check_plain(text)
    assert not (site.root / "client.json").exists() and not (site.root / "agent").exists()
    checked(site)
    return text


def checked(site: SupervisorProcess) -> str:
    """Return the output of `config check`, which must report a fault."""
    command = [
        *site.arguments()[:3],
        "--root",
        str(site.root),
        "config",
        "check",
        *[w for s in site._sets for w in ("--set", s)],
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment() | site._env,
    )
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    check_plain(done.stdout + done.stderr)
    return done.stdout + done.stderr
