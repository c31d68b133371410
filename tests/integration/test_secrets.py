"""No secret appears outside its own file after a full run: successes, failures, refusals and
restarts.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from consistency_check import check_books
from process_memory import tokens_in
from supervisor_process import (
    PYTHON_PATH,
    UID,
    SupervisorProcess,
    jid_of,
    req_id,
    shell,
    spec,
    texts_below,
    until,
)

from jobscribe.protocol.ids import derived_id, parse_agent_key
from jobscribe.runtime import processes

#: Files of a root that hold secrets. Only the owner may read them.
BELONGS = ("client.json", "root.json", "secret/server", "secret/agents", "secret/metrics")


#: The signing key of notifications, and the value of an additional header.
SIGNING, HEADER = "9c41d7e0b6a25f83signsEveryBody", "canaryOfAHeaderOfTheSite"
#: Commands of an operator. A bundle also contains the output of the job.
ASKED = (
    "job why JOB",
    "--json job why JOB",
    "trace JOB",
    "--json trace JOB",
    "trace AGENT",
    "job logs --all JOB",
    "job status JOB",
    "job tasks JOB",
    "agent list",
    "--json agent list",
    "agent logs --all AGENT",
    "agent logs --all --previous AGENT",
    "agent logs --keeper AGENT",
    "health",
    "--json notify list",
    "--json doctor",
    "config show",
    "db export",
    "db story JOB",
)

#: Runs each line of its standard input as a command line, and prints the exit code after the
#: output.
TYPES = """
import os, sys
from jobscribe.cli.main import call
for line in sys.stdin.read().splitlines():
    code = call([*sys.argv[1:], *line.split()])
    sys.stdout.flush()
    os.write(1, b"\\0code %d\\0" % code)
"""


@pytest.fixture
def told() -> Iterator[tuple[int, list[bytes]]]:
    """Start a notification target. Return its port and a list of received requests, without the
    additional header.
    """
    came: list[bytes] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = "".join(f"{k}: {v}\n" for k, v in self.headers.items() if k != "X-Site")
            came.append(headers.encode() + self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the tests inspect the output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], came
        server.shutdown()


def _targets(folder: Path, port: int) -> str:
    target = f"{{name: hook, url: 'http://127.0.0.1:{port}/', secretFile: signing, headersFile: headers, on: [running, ended]}}"
    for name, text in (
        ("signing", SIGNING),
        ("headers", f"X-Site: {HEADER}"),
        ("notify.yml", f"targets: [{target}]"),
    ):
        (folder / name).write_text(text + "\n")
        (folder / name).chmod(0o600)
    return str(folder / "notify.yml")


def _asked(site: SupervisorProcess, folder: Path, run: dict[str, object]) -> dict[str, bytes]:
    """Return the output of every command and request that reports on this run."""
    jid, agent = jid_of(run), str(site.agent_key())
    lines = [*ASKED, f"bundle JOB -y -o {folder}/bundle.tgz"]
    out = _typed(site, [line.replace("JOB", jid).replace("AGENT", agent) for line in lines])
    with tarfile.open(folder / "bundle.tgz") as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            out[f"bundle: {member.name}"] = file.read() if file is not None else b""
    assert len(out) > len(ASKED) + 10, sorted(out)
    metrics = {"Authorization": "Bearer " + (site.root / "secret" / "metrics").read_text().strip()}
    for path, headers in (
        ("/metrics", metrics),
        ("/health", metrics),
        ("/readyz", None),
        ("/livez", None),
        ("/api/notify", None),
    ):
        answer = site.ask("GET", path, headers=headers)
        assert answer.code == 200, path
        out[path] = answer.body
    return out


def _typed(site: SupervisorProcess, lines: list[str]) -> dict[str, bytes]:
    """Return the output of each command line. All run in one interpreter, because an interpreter
    starts slowly.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONPATH": PYTHON_PATH
    }
    done = subprocess.run(
        [sys.executable, "-c", TYPES, "--root", str(site.root), "--uid", UID],
        input="\n".join(lines).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd="/",
        timeout=90,
        check=True,
    )
    said = done.stdout.split(b"\0code ")
    codes = [int(text.split(b"\0")[0]) for text in said[1:]]
    assert (
        set(codes) <= {0, 1}
        and len(codes) == len(lines)
        and all(len(text) > 5 for text in said[:-1])
    ), (codes, said)
    return dict(zip(lines, said, strict=False))


@pytest.mark.timeout(150)
def test_no_secret_is_anywhere_but_in_its_place(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path, told: tuple[int, list[bytes]]
) -> None:
    if os.geteuid() != 0:
        pytest.skip(
            "only root can read an agent's token out of its memory, to look for it elsewhere"
        )
    site = make_site(
        f"notify.file={_targets(tmp_path, told[0])}",
        env={"SYSTEM_CANARY_TOKEN": "canaryOfTheEnvironment"},
    )
    site.start()
    _everything(site)
    talks = shell("echo failed >&2; exit 3")
    site.finished(talks)
    site.stop(signal.SIGKILL)
    site.start()
    stays = shell("sleep 300", graceSecs=0)
    site.submit(stays)
    site.running(stays)
    secrets = _secrets(site)
    assert len(secrets) >= 8
    until(
        lambda: any(jid_of(stays).encode() in text for text in told[1]), "the target is told of it"
    )
    answers = _asked(site, tmp_path, talks) | {
        f"notification {n}": text for n, text in enumerate(told[1])
    }
    for name, secret in secrets.items():
        assert not [what for what, text in answers.items() if secret.encode() in text], name
    _check_files(site, secrets)
    _check_processes(site, secrets)
    said = [site.ask("GET", path).body for path in ("/readyz", "/livez")]
    said += [
        site.ask(
            "POST", f"/api/{path}", json.dumps({"uid": UID, "computeJid": jid_of(stays)}).encode()
        ).body
        for path in ("run-status", "job-why", "job-story")
    ]
    said.append(
        site.ask("POST", "/api/trace", json.dumps({"id": str(site.agent_key())}).encode()).body
    )
    for name, secret in secrets.items():
        assert not [s for s in said if secret.encode() in s], name
    site.cancel(stays)
    site.wait(stays)
    check_books(site)


def _everything(site: SupervisorProcess) -> None:
    """Run jobs that succeed and fail, send refused requests with the secret in unusual places, and
    kill an agent.
    """
    site.finished(spec(["true"]))
    site.finished(shell("env; exit 3"))
    site.finished(spec(["/no/such/program"]))
    for path, body, headers in (
        ("/api/run-status", site.token.encode(), None),
        ("/api/" + site.token, b"{}", None),
        ("/api/run-status?token=" + site.token, b"{}", None),
        ("/api/run-status", b"{}", {"Authorization": "Basic " + site.token}),
        ("/api/trace", json.dumps({"id": site.token}).encode(), None),
        (
            "/api/run-simulation",
            json.dumps(
                {"reqId": req_id(), "run": {**spec(["true"]), "simulationType": site.token}}
            ).encode(),
            None,
        ),
        (
            "/api/run-simulation",
            json.dumps(
                {
                    "reqId": req_id(),
                    "run": {**spec(["true"]), "env": {"MY_PASSWORD": "canaryOfAPassword"}},
                }
            ).encode(),
            None,
        ),
    ):
        assert site.ask("POST", path, body, headers=headers).code >= 400
    may_end = site.place / "may_end"
    oracle = shell(f"until [ -e {may_end} ]; do sleep 0.05; done")
    site.submit(oracle)
    site.running(oracle)
    old = site.agent_pid()
    site.kill(old)
    may_end.touch()
    site.wait(oracle)
    until(lambda: [p for p in site.titled("agent") if p != old], "another agent")


def _secrets(site: SupervisorProcess) -> dict[str, str]:
    out = {
        name: (site.root / "secret" / name).read_text().strip()
        for name in ("server", "agents", "metrics")
    }
    out["environment"], out["password"] = "canaryOfTheEnvironment", "canaryOfAPassword"
    out["signing"], out["header"] = SIGNING, HEADER
    out |= {f"token {n}": t for n, t in enumerate(tokens_in(site, site.agent_pid()))}
    out["agentId"] = derived_id(str(site.agent_key()).encode(), key=out["agents"].encode())
    return out


def _check_files(site: SupervisorProcess, secrets: dict[str, str]) -> None:
    texts = {
        p: t
        for p, t in texts_below(site.place).items()
        if str(p.relative_to(site.place)).removeprefix("r/") not in BELONGS
    }
    for path, content in texts.items():
        for name, secret in secrets.items():
            assert secret.encode() not in content and secret.encode() not in str(path).encode(), (
                name,
                path,
            )
    assert len(texts) > 20
    for place in BELONGS:
        assert (site.root / place).stat().st_mode & 0o077 == 0


def _check_processes(site: SupervisorProcess, secrets: dict[str, str]) -> None:
    pids = set(site.everybody()) | {site.pid}
    assert len(pids) >= 5
    for pid in pids:
        line, environment = (
            processes._read(f"/proc/{pid}/cmdline"),
            processes._read(f"/proc/{pid}/environ"),
        )
        for name, secret in secrets.items():
            assert secret.encode() not in line, (name, pid, line)
            if not (name == "environment" and pid == site.pid):
                assert secret.encode() not in environment, (name, pid, line)


def test_what_holds_secrets_hides_itself_from_jobs_of_the_same_user(
    site: SupervisorProcess,
) -> None:
    """Supervisor, fork server, keeper and agent are not dumpable: root owns their memory and
    environment.
    """
    site.finished(spec(["true"]))
    for title in ("supervisor", "template", "keeper", "agent"):
        (pid,) = site.titled(title)
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                open(f"/proc/{pid}/environ", "rb").close()


def test_an_agent_key_is_what_is_shown_of_agents(site: SupervisorProcess) -> None:
    site.finished(spec(["true"]))
    names = [p.name for p in (site.root / "agent").iterdir() if p.is_dir()]
    assert [str(parse_agent_key(n)) for n in names] == names
