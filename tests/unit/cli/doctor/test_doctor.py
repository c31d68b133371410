"""`doctor`: every check in each of its states with given facts, and all checks for real, as the
current user and as an ordinary user.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.doctor import fact_process, machine_facts, port_facts, site_checks, site_facts
from jobscribe.cli.doctor.check_table import CHECKS, Check

pytestmark = pytest.mark.process

FOLDER = {
    "path": "/r",
    "exists": True,
    "nearest": "/r",
    "kind": "ext4",
    "network": None,
    "uid": 1000,
    "user": "joe",
    "owner": 1000,
    "ownerName": "joe",
    "mode": 0o700,
    "isFolder": True,
    "freeBytes": 50 * 2**30,
    "bytes": 100 * 2**30,
    "readOnly": False,
    "freeInodes": 10**6,
    "inodes": 10**7,
    "writable": True,
    "syncSecs": 0.004,
    "held": False,
    "inRoot": False,
}
UP = {
    "own": "1.0",
    "url": "http://127.0.0.1:1",
    "held": True,
    "live": True,
    "version": "1.0",
    "apart": 0.2,
    "ready": {"code": 200, "body": {}},
    "health": {"code": 404, "body": {}},
}
CGROUP = {
    "version": 2,
    "point": "/c",
    "controllers": ["memory"],
    "folder": "/c/x",
    "writable": True,
    "delegated": True,
    "memoryRead": True,
}
UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "NRestarts": "0",
    "NeedDaemonReload": "no",
    "Result": "success",
    "user": False,
}
#: For each check, facts with which it passes.
WELL: dict[str, dict[str, Any]] = {
    "environment": {
        "version": "1.0",
        "python": "3.11.2",
        "executable": "/p",
        "packages": {"click": "8.1"},
        "extras": {"docker": True},
        "path": "/usr/bin:/bin",
        "programs": {"sh": "/bin/sh", "env": "/usr/bin/env"},
        "encoding": "UTF-8",
        "umask": 0o077,
        "uid": 1,
        "host": "h",
        "kernel": "6",
    },
    "config": {"problems": [], "warnings": [], "development": False, "file": None},
    "root": FOLDER,
    "user root": FOLDER,
    "supervisor": UP,
    "ports": {
        "held": False,
        "ports": [{"name": "server", "ip": "127.0.0.1", "port": 8000, "error": None}],
    },
    "engines": {
        "use": ["local", "docker"],
        "docker": {
            "hosts": [{"host": "a", "state": "up", "detail": "", "version": "1"}],
            "problems": [],
        },
    },
    "limits": {
        "nofile": [1024, 524288],
        "nproc": [-1, -1],
        "core": [0, -1],
        "fsize": [-1, -1],
        "pids": None,
        "uid": 1000,
        "pidMax": 4194304,
    },
    "cgroups": {"found": [CGROUP]},
    "kernel log": {"kmsg": "EPERM", "syslog": None, "restrict": "0", "uid": 1000},
    "cores": {"pattern": "core", "usesPid": "0", "limit": [0, -1], "coredumpctl": False},
    "ptrace": {"scope": 0, "capability": False, "error": None},
    "clock": {
        "now": 2e9,
        "jumped": 0.0,
        "synchronised": True,
        "suspended": 0.0,
        "up": 9.0,
        "newest": 2e9 - 5,
    },
    "journal": {"error": None, "journalctl": True, "uid": 0, "folders": ["/j"], "readable": True},
    "systemd": {
        "running": True,
        "systemctl": True,
        "version": "systemd 252",
        "units": {"jobscribe-supervisor.service": UNIT},
    },
    "gpus": {"library": True, "devices": True, "cards": ["H"]},
}
TAKEN = {"name": "server", "ip": "::1", "port": 8, "error": "Address already in use"}
PROBLEM = {"code": "unsafe", "error": "others can read it", "advice": "chmod"}
#: check, changed facts, the worst state, parts of the message
CASES = [
    ("environment", {"python": "3.9.1"}, "fail", "3.9.1"),
    ("environment", {"packages": {"click": None}}, "fail", "click"),
    ("environment", {"path": ".:/bin"}, "warn", "PATH"),
    ("environment", {"programs": {"sh": None, "env": "/e"}}, "fail", "sh"),
    ("environment", {"encoding": "ANSI_X3.4-1968"}, "warn", "ANSI"),
    ("environment", {"umask": 0o002}, "warn", "0002"),
    ("config", {"problems": [PROBLEM]}, "fail", "others can read it"),
    ("config", {"warnings": ["as root"]}, "warn", "as root"),
    (
        "config",
        {
            "problems": [{**PROBLEM, "error": "there is no server secret; name"}],
            "development": True,
        },
        "ok",
        "jobscribe up",
    ),
    ("root", {"network": "nfs4"}, "fail", "nfs4"),
    ("root", {"mode": 0o755}, "fail", "0755"),
    ("root", {"owner": 0, "ownerName": "root"}, "fail", "root"),
    ("root", {"freeBytes": 10 * 2**20}, "fail", "10 MiB"),
    ("root", {"freeBytes": 2**30}, "warn", "1.0 GiB"),
    ("root", {"freeInodes": 5}, "warn", "inodes"),
    ("root", {"syncSecs": 0.5}, "warn", "500 ms"),
    ("root", {"syncSecs": 5.0}, "fail", "5000 ms"),
    ("root", {"readOnly": True}, "fail", "cannot write"),
    ("root", {"isFolder": False}, "fail", "not a folder"),
    ("root", {"exists": False, "owner": 0, "mode": 0o755}, "ok", "does not exist yet"),
    ("user root", {"network": "lustre"}, "ok", "allowed"),
    ("user root", {"inRoot": True, "exists": False}, "ok", "created in the root"),
    ("supervisor", {"error": "nobody"}, "fail", "uses the root"),
    ("supervisor", {"error": "nobody", "held": False}, "skip", "no supervisor"),
    ("supervisor", {"ready": {"code": 503, "body": {"error": "it drains"}}}, "fail", "it drains"),
    ("supervisor", {"version": "0.9"}, "warn", "0.9"),
    ("supervisor", {"apart": -7.0}, "warn", "-7 s"),
    (
        "supervisor",
        {
            "health": {
                "code": 200,
                "body": {
                    "reasons": [
                        {"state": "degraded", "sentence": "the event loop was blocked", "try": "x"}
                    ]
                },
            }
        },
        "warn",
        "blocked",
    ),
    (
        "supervisor",
        {
            "health": {
                "code": 200,
                "body": {"reasons": [{"state": "failing", "sentence": "no room", "try": "df"}]},
            }
        },
        "fail",
        "no room",
    ),
    ("ports", {"ports": [TAKEN]}, "warn", "no supervisor runs in this root"),
    ("supervisor", {"health": {"code": 401, "body": {}}}, "fail", "another root"),
    (
        "ports",
        {
            "held": True,
            "ports": [
                {**TAKEN, "holder": {"pid": 7, "what": "jobscribe supervisor /r", "ours": True}}
            ],
        },
        "ok",
        "as expected",
    ),
    (
        "ports",
        {"held": True, "listens": ["[::1]:8"], "ports": [{**TAKEN, "holder": {"pid": None}}]},
        "ok",
        "as expected",
    ),
    (
        "ports",
        {"held": True, "listens": ["127.0.0.1:9"], "ports": [{**TAKEN, "holder": {"pid": None}}]},
        "warn",
        "listens at 127.0.0.1:9",
    ),
    (
        "ports",
        {
            "held": True,
            "listens": ["[::1]:9"],
            "ports": [
                {
                    **TAKEN,
                    "holder": {"pid": 7, "what": "jobscribe supervisor /other", "ours": False},
                }
            ],
        },
        "warn",
        "pid 7 (jobscribe supervisor /other) uses port 8 of ::1 (server), and does not belong to this root",
    ),
    (
        "ports",
        {"ports": [{"name": "server", "ip": "::1", "port": 8, "error": "Permission denied"}]},
        "fail",
        "Permission denied",
    ),
    (
        "engines",
        {
            "docker": {
                "hosts": [{"host": "a", "state": "down", "detail": "refused", "version": None}],
                "problems": [],
            }
        },
        "fail",
        "refused",
    ),
    ("engines", {"docker": {"hosts": [], "problems": ["no image"]}}, "fail", "no image"),
    ("engines", {"docker": {"error": "none runs"}}, "skip", "none runs"),
    ("engines", {"sbatch": [{"name": "c", "signIn": True}]}, "skip", "sign in"),
    ("engines", {"sbatch": [{"name": "c", "error": "no"}]}, "fail", "no"),
    (
        "engines",
        {
            "sbatch": [
                {
                    "name": "c",
                    "lines": [{"what": "clock", "ok": False, "said": "9 s off", "advice": "ntp"}],
                }
            ]
        },
        "fail",
        "9 s off",
    ),
    (
        "engines",
        {
            "sbatch": [
                {"name": "c", "lines": [{"what": "clock", "ok": None, "said": "?", "advice": ""}]}
            ]
        },
        "warn",
        "clock",
    ),
    (
        "engines",
        {
            "sbatch": [
                {"name": "c", "lines": [{"what": "clock", "ok": True, "said": "", "advice": ""}]}
            ]
        },
        "ok",
        "works",
    ),
    ("limits", {"nofile": [256, 1024]}, "warn", "1024"),
    ("limits", {"nproc": [100, 100]}, "warn", "100"),
    ("limits", {"pids": 300}, "warn", "300"),
    ("limits", {"nproc": [100, 100], "uid": 0}, "ok", "not limited"),
    ("limits", {"fsize": [5, 5]}, "warn", "5 bytes"),
    ("cgroups", {"found": []}, "warn", "no cgroups"),
    ("cgroups", {"found": [{**CGROUP, "writable": False}]}, "warn", "none of them writable"),
    (
        "cgroups",
        {"found": [{**CGROUP, "controllers": ["pids"]}]},
        "warn",
        "without the memory controller",
    ),
    ("kernel log", {"syslog": "EPERM", "restrict": "1"}, "warn", "cannot be read"),
    ("cores", {"pattern": "|/usr/lib/systemd/systemd-coredump %P"}, "ok", "systemd-coredump"),
    ("cores", {"pattern": "|/usr/share/apport/apport %p"}, "warn", "lost"),
    ("cores", {"pattern": "/var/core/%e"}, "ok", "on the host"),
    ("cores", {"pattern": ""}, "warn", "writes none"),
    ("cores", {"pattern": None}, "skip", "cannot be read"),
    ("cores", {"limit": [0, 0]}, "warn", "hard limit"),
    ("ptrace", {"error": "EPERM"}, "warn", "refused"),
    ("ptrace", {"scope": 1}, "warn", "child processes only"),
    ("ptrace", {"scope": 1, "capability": True}, "ok", "CAP"),
    ("clock", {"now": 1e9, "newest": None}, "fail", "2025"),
    ("clock", {"jumped": 3.0}, "warn", "+3.00 s"),
    ("clock", {"newest": 2e9 + 60}, "warn", "set back"),
    ("clock", {"synchronised": False}, "warn", "not synchronised"),
    ("clock", {"suspended": 99.0}, "warn", "suspended"),
    ("clock", {"synchronised": None}, "ok", "unknown"),
    ("journal", {"error": "ENOENT"}, "skip", "no journal"),
    ("journal", {"readable": False}, "warn", "systemd-journal"),
    ("journal", {"journalctl": False}, "warn", "journalctl"),
    ("systemd", {"running": False}, "skip", "does not run systemd"),
    ("systemd", {"units": {}}, "skip", "no unit"),
    ("systemd", {"units": {}, "silent": True}, "skip", "does not answer"),
    ("systemd", {"units": {"u": {**UNIT, "ActiveState": "failed"}}}, "fail", "failed"),
    ("systemd", {"units": {"u": {**UNIT, "NRestarts": "9"}}}, "warn", "9 times"),
    ("systemd", {"units": {"u": {**UNIT, "ActiveState": "inactive"}}}, "warn", "inactive"),
    ("systemd", {"units": {"u": {**UNIT, "NeedDaemonReload": "yes"}}}, "warn", "daemon-reload"),
    ("gpus", {"library": False}, "warn", "gpu"),
    ("gpus", {"library": False, "devices": False}, "skip", "no GPUs"),
    ("gpus", {"error": "no driver", "devices": False}, "skip", "no driver"),
    ("gpus", {"error": "mismatch"}, "warn", "mismatch"),
    ("gpus", {"cards": []}, "ok", "without a GPU"),
]
ORDER = ("ok", "skip", "warn", "fail")


def test_each_check_has_facts_with_which_all_is_well() -> None:
    assert set(WELL) == set(CHECKS)
    for name, facts in WELL.items():
        found = fact_process.judged(name, {"facts": facts})
        assert found and {(f.check, f.state) for f in found} == {(name, "ok")}, found


@pytest.mark.parametrize(
    ("name", "changed", "state", "words"), CASES, ids=[f"{c[0]}-{c[2]}-{c[3]}" for c in CASES]
)
def test_what_is_not_well_is_said_with_what_it_means_and_what_to_do(
    name: str, changed: dict[str, Any], state: str, words: str
) -> None:
    found = fact_process.judged(name, {"facts": {**WELL[name], **changed}})
    assert max((f.state for f in found), key=ORDER.index) == state, found
    assert any(words in f"{f.sentence} {f.means} {f.advice}" for f in found), found
    for f in found:
        assert f.sentence and (f.state in ("ok", "skip") or (f.means and f.advice)), f


def test_facts_that_could_not_be_had_are_a_failure() -> None:
    (found,) = fact_process.judged("root", {"error": "OSError: gone"})
    assert (found.state, found.sentence) == ("fail", "OSError: gone") and found.advice


def test_a_check_that_hangs_is_left_behind_and_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stand-in for the fact process answers one check and then hangs."""
    monkeypatch.setitem(CHECKS, "limits", CHECKS["limits"]._replace(secs=30.0))
    monkeypatch.setitem(CHECKS, "stuck", Check(lambda given: {}, lambda facts: [], 1.0))
    program = "import json,sys,time\njson.load(sys.stdin)\nprint(json.dumps({'check': 'limits', 'error': 'told'}), flush=True)\ntime.sleep(600)\n"
    real = subprocess.Popen
    monkeypatch.setattr(
        fact_process.subprocess,
        "Popen",
        lambda command, **more: real([sys.executable, "-c", program], **more),
    )
    waited: list[list[str]] = []
    began = time.monotonic()
    found = fact_process.findings({}, ("limits", "stuck"), lambda left, secs: waited.append(left))
    assert time.monotonic() - began < 5 * 2.0
    assert [(f.check, f.sentence) for f in found] == [
        ("limits", "told"),
        ("stuck", "no result within 1 s"),
    ]
    assert ["stuck"] in waited


def test_what_breaks_in_one_check_is_told_of_that_one_alone(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    given = {
        "root": str(tmp_path / "plain" / "\0"),
        "rootOption": None,
        "file": None,
        "sets": {},
        "url": None,
        "uid": None,
        "token": None,
    }
    found = fact_process.findings(given, ("root", "cores"), lambda left, secs: None)
    assert (found[0].check, found[0].state) == ("root", "fail") and "ValueError" in found[
        0
    ].sentence
    assert "cores" in {f.check for f in found} and not any(
        "ValueError" in f.sentence for f in found[1:]
    )


def doctor(
    root: Path, *before: str, args: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    kept = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "LANG": "C.UTF-8",
        "HOME": str(root),
    }
    command = [
        *before,
        sys.executable,
        "-m",
        "jobscribe.cli",
        "doctor",
        "--json",
        "--root",
        str(root),
        *args,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, env=kept | (env or {}), cwd="/"
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def by_check(answer: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {}
    for item in answer["items"]:
        out.setdefault(item["check"], []).append(item)
    return out


def test_all_of_it_for_real_without_a_supervisor(tmp_path: Path) -> None:
    code, answer = doctor(
        tmp_path / "new",
        args=(
            "--set",
            "supervisor.port=0",
            "--set",
            "server.port=0",
            "--set",
            "supervisor.agents_port=0",
        ),
    )
    found = by_check(answer)
    assert list(found) == list(CHECKS)
    assert code == (1 if any(i["state"] == "fail" for i in answer["items"]) else 0) and answer[
        "ok"
    ] == (code == 0)
    assert (
        found["supervisor"][0]["state"] == "skip"
        and "no supervisor" in found["supervisor"][0]["sentence"]
    )
    assert "does not exist yet" in found["root"][0]["sentence"] or found["root"][0]["state"] != "ok"
    # no check crashed
    assert [i for i in answer["items"] if "Error" in i["sentence"].split(":")[0]] == []
    assert not (tmp_path / "new").exists() and list(tmp_path.iterdir()) == []


#: Load everything first: an ordinary user may not have read access to the packages of the test
#: environment.
AS_NOBODY = """
import json, os, sys
from jobscribe.cli.doctor import fact_process as asking
from jobscribe.cli.doctor.check_table import CHECKS
given = {"root": sys.argv[1], "rootOption": sys.argv[1], "file": None, "sets": {}, "url": None, "uid": None, "token": None}
names = [n for n in CHECKS if n != "engines"]
def all():
    return [f for n in names for f in asking.judged(n, {"facts": CHECKS[n].read(given)})]
all()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(json.dumps([[f.check, f.state, f.sentence] for f in all()]))
"""


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="to become another user takes root; the test above has looked as an ordinary user already",
)
def test_all_of_it_for_real_as_an_ordinary_user() -> None:
    """The root belongs to another user: the check reports that, and reads and writes nothing in it."""
    place = Path(
        tempfile.mkdtemp(prefix="doctor-", dir="/tmp")
    )  # other users cannot enter all of pytest's own folders
    try:
        place.chmod(0o755)
        _as_an_ordinary_user(place / "root")
    finally:
        shutil.rmtree(place)


def _as_an_ordinary_user(root: Path) -> None:
    root.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(root)],
        capture_output=True,
        text=True,
        env=env,
        cwd="/",
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {c for c, _, _ in found} == set(CHECKS) - {"engines"}
    said = {c: " ".join(s for n, _, s in found if n == c) for c, _, _ in found}
    assert "the root belongs to root" in said["root"] and "cannot write to" in said["root"], said[
        "root"
    ]
    assert ["config", "fail"] in [
        [c, s] for c, s, _ in found
    ]  # the user has no permission to look for its configuration
    assert list(root.iterdir()) == []


def test_a_doctor_who_cannot_start_a_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_process.sys, "executable", "/no/such/python")
    (found,) = fact_process.findings({}, ("limits",), lambda left, secs: None)
    assert found.state == "fail" and "/no/such/python: No such file" in found.sentence


def test_a_person_reads_lines_and_an_unknown_check_is_named(run: Any) -> None:
    ended = run("doctor", "--only", "cores", "--only", "limits")
    assert (
        ended.code in (0, 1)
        and "cores" in ended.out
        and "limits" in ended.out
        and " ok, " in ended.err
    )
    ended = run("doctor", "--only", "nonsense")
    assert ended.code == 2 and "kernel log" in ended.err


def test_a_supervisor_that_answers_is_found_and_its_secret_is_not_shown(
    run: Any, fake: Any
) -> None:
    ended = run("doctor", "--json", "--only", "supervisor", "--only", "config")
    item = next(i for i in ended.json()["items"] if i["check"] == "supervisor")
    assert "no supervisor" not in item["sentence"] and item["sentence"].startswith("the supervisor")
    assert fake.token not in ended.out + ended.err


def test_ptrace_really_attaches_and_leaves_no_child(tmp_path: Path) -> None:
    said = machine_facts.ptrace({})
    assert said["error"] is None or said["error"].isupper()
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    assert not children.exists() or "read _" not in "".join(
        Path(f"/proc/{p}/cmdline").read_text()
        for p in children.read_text().split()
        if Path(f"/proc/{p}").exists()
    )


def test_a_sync_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    facts = machine_facts.folder(str(tmp_path))
    assert (
        facts["syncSecs"] > 0
        and facts["exists"]
        and facts["writable"]
        and list(tmp_path.iterdir()) == []
    )


def test_a_lock_that_is_held_is_seen_and_not_taken(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "supervisor.lock"
    assert machine_facts.held(str(path)) is False
    with path.open("w") as f:
        assert machine_facts.held(str(path)) is False
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert machine_facts.held(str(path)) is True


def test_that_nothing_may_be_seen_is_not_that_no_supervisor_runs() -> None:
    for held, said in (
        (None, "unknown whether a supervisor runs here: why"),
        (False, "no supervisor runs here: why"),
        (True, "uses the root"),
    ):
        (found,) = site_checks.supervisor({"error": "why", "held": held})
        assert said in found.sentence


@pytest.mark.parametrize("ip", ["127.0.0.1", "0.0.0.0"])
def test_whoever_listens_on_a_port_is_found_and_told_from_this_root(
    tmp_path: Path, ip: str
) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    code = (
        "import socket, sys; from jobscribe.runtime import processes; s = socket.create_server((sys.argv[1], 0))\n"
        "processes.set_title('jobscribe supervisor', sys.argv[2]); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, ip, str(other)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = port_facts.holder("127.0.0.1", port, str(root))
        assert (found["pid"], found["ours"]) == (process.pid, False) and found[
            "what"
        ] == f"jobscribe supervisor {other}"
        assert port_facts.holder("127.0.0.1", port, str(other))["ours"] is True
        assert port_facts.holder("127.0.0.2", port, str(other))["ours"] is (
            True if ip == "0.0.0.0" else None
        )
        given = {
            "root": str(root),
            "rootOption": str(root),
            "file": None,
            "sets": {"supervisor.port": str(port)},
        }
        findings = fact_process.judged("ports", {"facts": site_facts.ports(given)})
        (finding,) = [f for f in findings if f"port {port} " in f.sentence] or findings
        assert finding.state == "warn" and f"pid {process.pid} (" in finding.sentence
        process.communicate()


def test_what_a_root_says_of_its_addresses(tmp_path: Path) -> None:
    assert port_facts.published(str(tmp_path)) == []
    (tmp_path / "client.json").write_text('{"url": "http://127.0.0.1:8001", "front": null}')
    (tmp_path / "agents.json").write_text('{"agentsUrl": "ws://[::1]:9/agent"}')
    assert port_facts.published(str(tmp_path)) == ["127.0.0.1:8001", "[::1]:9"]
