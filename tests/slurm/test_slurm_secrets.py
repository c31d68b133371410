"""No user on a cluster gets data of another: neither another unix user there, nor a user whose own
agent sends forged messages.

Also, no secret of a full run is outside its place: arguments and environments are searched all the
time, and all files at the end.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import free_ports
from login_nodes import Sshd, Users
from process_memory import tokens_in
from process_sampler import ProcessSampler
from signed_in_users import ALICE, BOB, SECS, WHO, SignedInUsers, all_at_once, signed_in
from slurm_cluster import Slurm, sites
from slurm_supervisor import environment
from supervisor_process import jid_of, texts_below, until

from jobscribe.protocol.ids import AgentKey, derived_id
from jobscribe.runtime import processes

from ..integration.test_tls import Authority, settings

pytestmark = pytest.mark.timeout(600)
ATTACKER = Path(__file__).resolve().parent / "support" / "attacker.py"
#: An errno that proves isolation.
WALLS = frozenset(("EPERM", "EACCES"))
WRONG, LOST = "canaryOfAWrongPassword4711", "canaryTypedAsAName4711"


@pytest.fixture(scope="module")
def at(
    _cluster: tuple[Slurm, Users], _servers: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SignedInUsers]:
    slurm, users = _cluster
    folder, authority = tmp_path_factory.mktemp("ca"), Authority("of the supervisor")
    cert, key = authority.issue(folder)
    clusters: dict[str, dict[str, Any]] = {
        "link": {"access": "ssh", "link": "ssh", "folder": "$HOME/scratch"},
        "tls": {"access": "ssh", "link": "tls", "folder": "$HOME/scratch"},
    }
    with (
        sites(slurm, users, lambda: _servers) as made,
        signed_in(
            made,
            slurm,
            users,
            _servers,
            clusters,
            f"supervisor.agents_port={free_ports(1)}",
            *settings(cert, key, authority.write(folder / "ca.pem")),
        ) as there,
    ):
        there.tls_key = key  # type: ignore[attr-defined]
        # home directories of many sites are world-readable: our folders must protect themselves
        open_ones = [
            p for who in WHO.values() for p in (users.home(who), users.home(who) / "scratch")
        ]
        for path in open_ones:
            path.chmod(0o755)
        yield there
        for path in open_ones:
            path.chmod(0o700)


def test_another_unix_user_gets_at_nothing_and_no_secret_is_anywhere(at: SignedInUsers) -> None:
    sampler = ProcessSampler("cmdline", "environ")
    codes = _everything(at)
    run, gate = at.gated(ALICE, "link")
    job = at.running(run, gate)
    secrets = _secrets(at, codes)
    said = _attacked(at, run, job)
    at.open(gate)
    at.over(run, gate=gate)
    assert {k: v for k, v in said["said"].items() if v not in WALLS} == {} and len(
        said["said"]
    ) > 60
    looked = (
        {f"shown to another user {n}": text.encode() for n, text in enumerate(said["shown"])}
        | _texts(at)
        | _answers(at)
        | sampler.end()
    )
    assert len(looked) > 300
    found = {
        name: where
        for name, secret in secrets.items()
        for where, text in looked.items()
        if _is_in(secret, text)
    }
    # sshd's own log has the names that users typed
    assert found.pop("typed as a name") == str(at.users.place / "log" / "main")
    assert found == {}
    assert any(b"jobscribe keeper" in text for text in sampler.seen) and any(
        b"sbatch" in text for text in sampler.seen
    ), "it would have been seen"


def _everything(at: SignedInUsers) -> list[str]:
    """Run refused and accepted sign-ins, jobs that print their environment, and a replaced agent.
    Return the codes used.
    """
    at.login(BOB, "link", code=401, password=WRONG)
    at.login(BOB, "link", code=401, username=LOST, password="x")
    codes = [at.users.code("two"), at.users.code("keycode")]
    WHO["CodeUser"], WHO["KeyUser1"] = "two", "keycode"
    try:
        all_at_once(
            lambda: at.login(ALICE, "link"),
            lambda: at.login(BOB, "tls", privateKey=at.users.key.read_text()),
            lambda: at.login("CodeUser", "link", password=at.users.password, otp=codes[0]),
            lambda: at.login("KeyUser1", "tls", privateKey=at.users.key.read_text(), otp=codes[1]),
        )
    finally:
        del WHO["CodeUser"], WHO["KeyUser1"]
    text = "env; tr '\\0' '\\n' </proc/self/environ; cat /proc/$PPID/environ; scontrol show job $SLURM_JOB_ID; ls -l /proc/*/fd"
    runs = [at.run(f"{text}; exit 3", ALICE, "link"), at.run(text, BOB, "tls")]
    for run, state in zip(runs, ("error", "completed"), strict=True):
        assert at.site.wait(run, SECS)["state"] in (state, "error")
    before = at.agent(ALICE, "link")
    os.kill(before, 9)
    until(lambda: at.agents(ALICE, "link") not in ([], [before]), "another agent", SECS)
    return codes


def _secrets(at: SignedInUsers, codes: list[str]) -> dict[str, bytes]:
    site = at.site
    out = {
        name: (site.root / "secret" / name).read_text().strip()
        for name in ("server", "agents", "metrics")
    }
    for uid, cluster in ((ALICE, "link"), (BOB, "tls")):
        key = str(AgentKey("sbatch", "parallel", uid, cluster))
        out[f"agentId of {uid}"] = derived_id(key.encode(), key=out["agents"].encode())
        out |= {
            f"token {n} of {uid}": token
            for n, token in enumerate(tokens_in(site, at.agent(uid, cluster)))
        }
    out |= {
        "client's token": site.token,
        "password": at.users.password,
        "wrong password": WRONG,
        "typed as a name": LOST,
    }
    out |= {f"code {n}": code for n, code in enumerate(codes)}
    out["user's key"] = at.users.key.read_text().splitlines()[3]
    out["listener's key"] = at.tls_key.read_text().splitlines()[1]  # type: ignore[attr-defined]
    return {name: secret.encode() for name, secret in out.items()}


def _is_in(secret: bytes, text: bytes) -> bool:
    if len(secret) > 8 or secret not in text:
        return secret in text
    return (
        re.search(rb"(?<![0-9.])" + secret + rb"(?![0-9])", text) is not None
    )  # a code may be part of a longer number


def _attacked(at: SignedInUsers, run: dict[str, Any], job: str) -> dict[str, Any]:
    base, folder = at.base(ALICE, "link"), at.folder(ALICE, "link")
    evidence = Path(
        at.site.post("job-tasks", uid=ALICE, computeJid=jid_of(run))["tasks"][0]["evidence"]
    )
    files = [p for p in base.rglob("*") if p.is_file() and "code" not in p.relative_to(base).parts]
    names = {p.name for p in files}
    assert {
        "job_agent.log",
        "agents.json",
        "batch.sh",
        "batch.json",
        "script.sh",
        "stdout.log",
        "started",
        "lab.json",
        "link.json",
    } & names, names
    own = next(p for p in (base / "code").rglob("keeper/process.py"))
    pids = [
        p for p in at.users.processes("alice") if processes.alive(p, processes.start_ticks(p) or 0)
    ]
    given = {
        "pids": pids,
        "folders": [
            str(p)
            for p in (
                base,
                folder,
                evidence,
                base / "code",
                own.parent,
                at.socket(ALICE, "link").parent,
            )
        ],
        "files": [
            str(p)
            for p in (
                *files[:30],
                own,
                at.root / "secret" / "server",
                at.root / "client.json",
                at.root / "agents.json",
            )
        ],
        "sockets": [str(at.socket(ALICE, "link"))],
        "jobs": [job],
    }
    script = ATTACKER.read_text()
    said: dict[str, Any] = json.loads(
        at.users.run(
            "pw", "/usr/bin/python3", "-", json.dumps(given), given=script, env=at.slurm.env
        )
    )
    assert at.status(run)["state"] == "running"
    stayed = [pid for pid in pids if pid in at.users.processes("alice")]
    assert len(stayed) > 3 and {at.agent(ALICE, "link"), *at.keepers(ALICE, "link")} <= set(stayed)
    gone = tuple(f"of {pid}" for pid in pids if pid not in stayed) + tuple(
        f"to {pid}" for pid in pids if pid not in stayed
    )
    said["said"] = {what: came for what, came in said["said"].items() if not what.endswith(gone)}
    return said


def _texts(at: SignedInUsers) -> dict[str, bytes]:
    """Return all searched texts, by location."""
    root, place = at.root, at.root.parent
    belongs = {
        root / "client.json",
        root / "root.json",
        *((root / "secret" / name) for name in ("server", "agents", "metrics")),
    }
    homes = [at.users.home(n) for n in ("alice", "bob", "two", "keycode")]
    texts = texts_below(
        place,
        at.slurm.place,
        at.users.place / "log",
        *homes,
        *Path("/tmp").glob("jobscribe-link.*"),
    )
    out = {str(path): text for path, text in texts.items() if path not in belongs}
    for argv in (
        ["scontrol", "show", "job", "-dd"],
        ["sacct", "-aP", "-o", "all"],
        ["squeue", "-t", "all", "-o", "%all"],
    ):
        out[" ".join(argv)] = at.slurm.ask(*argv).encode()
    out["journal"] = subprocess.run(
        ["journalctl", "--since", "-10min", "-o", "export"], capture_output=True
    ).stdout
    return out


def _answers(at: SignedInUsers) -> dict[str, bytes]:
    """Return the answers to debugging requests: `why`, trace and agent log of every job, one
    bundle, and the system's health.
    """
    site, out = at.site, {}
    monitor = {"Authorization": f"Bearer {(at.root / 'secret' / 'metrics').read_text().strip()}"}
    for path in ("/metrics", "/health"):
        answer = site.ask("GET", path, headers=monitor)
        assert answer.code == 200, (path, answer)
        out[path] = answer.body
    jids = [path.stem for path in (at.root / "supervisor-job").glob("*.json")]
    for jid in jids:
        uid = jid.partition("-")[0]
        bodies = {
            "job-why": {"uid": uid, "computeJid": jid},
            "job-story": {"uid": uid, "computeJid": jid},
            "trace": {"id": jid, "logs": True},
            "agent-logs": {"agent": jid},
        }
        for path, body in bodies.items():
            answer = site.ask("POST", f"/api/{path}", json.dumps(body).encode())
            assert answer.code == 200, (path, jid, answer)
            out[f"{path} of {jid}"] = answer.body
    failed = next(
        jid
        for jid in jids
        if json.loads((at.root / "supervisor-job" / f"{jid}.json").read_text())["status"] == "error"
    )
    file = at.root.parent / "bundle.tar.gz"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jobscribe.cli",
            "--root",
            str(at.root),
            "bundle",
            failed,
            "--yes",
            "--no-doctor",
            "-o",
            str(file),
        ],
        capture_output=True,
        timeout=SECS,
        stdin=subprocess.DEVNULL,
        env=environment(),
    )
    assert done.returncode == 0, (
        done.stderr,
        *(path.read_text() for path in (at.root / "log").glob("cli-crash*")),
    )
    with tarfile.open(file) as packed:
        out |= {f"bundle: {m.name}": packed.extractfile(m).read() for m in packed}  # type: ignore[union-attr]
    assert len([name for name in out if name.startswith("bundle: ")]) > 10 and len(jids) >= 3
    return out | {"bundle says": done.stdout + done.stderr}


# ---- attacks of a user on the supervisor and on others


def test_whatever_a_job_does_to_its_own_files_harms_itself_alone(at: SignedInUsers) -> None:
    """Pipes, links, sparse files and false data in place of all files that supervisor, agent and
    keeper read; false Slurm output about other jobs; start marks created in advance.
    """
    for uid, cluster in ((ALICE, "link"), (BOB, "tls")):
        if not at.ready(uid, cluster):
            at.login(uid, cluster)
    neighbour, gate = at.gated(BOB, "tls")
    its = at.running(neighbour, gate)
    secret = at.root / "secret" / "server"
    agent = at.folder(ALICE, "link")
    here = 'cd "$(readlink -f .jobscribe/latest)"'
    hostile = {
        "pipes": f"{here}; rm -f exit-code signal stdout.log stderr.log report.jsonl batch.json; for f in exit-code signal stdout.log report.jsonl batch.json exit.json; do mkfifo $f; done",
        "links": f"{here}; for f in exit-code stdout.log stderr.log batch.json exit.json stop.json termination-message; do ln -sf {secret} $f; done",
        "sparse": f"{here}; for f in report.jsonl termination-message batch.json started stdout.log.dropped; do rm -f $f; truncate -s 1T $f; done",
        "lies": f"""{here}; echo 0 >exit-code; echo '{{"tokens": ["{jid_of(neighbour)}/1/1/main/0"], "lead": "../../x"}}' >batch.json; echo '{{' >exit.json""",
        "ledger": f'cd {agent}/batch; for n in 1 2 3; do echo \'{{"token": "{jid_of(neighbour)}/1/1/main/0", "lead": "../../../x"}}\' >lie$n.json; mkfifo pipe$n.json; done',
        "poll": f"cd {agent}/../../poll; rm -f link.json; mkfifo link.json; echo >other",
        "comment": f"scontrol update jobid=$SLURM_JOB_ID comment='jobscribe x {jid_of(neighbour)}/1/1/main/0' jobname=js-mine; scontrol requeue {its}; scancel {its}",
        "cancels itself": "scancel $SLURM_JOB_ID; sleep 30",
        "stops": "scontrol suspend $SLURM_JOB_ID; kill -STOP $PPID; sleep 1; kill -CONT $PPID",
    }
    runs = {
        name: at.run(f"echo begun; {text}; echo done", ALICE, "link")
        for name, text in hostile.items()
    }
    ends = {name: at.site.wait(run, SECS) for name, run in runs.items()}
    assert {e["state"] for e in ends.values()} <= {"completed", "error", "canceled"}, ends
    assert ends["comment"]["state"] == "completed" and ends["cancels itself"]["state"] in (
        "canceled",
        "error",
    )
    given = secret.read_text().strip()
    for name, run in runs.items():
        answer = at.site.ask(
            "POST",
            "/api/job-log",
            json.dumps({"uid": ALICE, "computeJid": jid_of(run), "stream": "stdout"}).encode(),
        )
        assert answer.code in (200, 404, 503) and given.encode() not in answer.body, (name, answer)
        assert given not in json.dumps(at.why(run)) and len(json.dumps(ends[name])) < 100_000
    # a start mark created in advance: nothing runs, and that is reported
    at.slurm.ask("scontrol", "update", "partitionname=batch", "state=down")
    try:
        fenced = at.run("echo must not run", ALICE, "link")
        at.until(fenced, lambda s: s.get("batch", {}).get("jobId"), "Slurm has taken it")
        evidence = at.site.post("job-tasks", uid=ALICE, computeJid=jid_of(fenced))["tasks"][0][
            "evidence"
        ]
        at.users.run("alice", "sh", "-c", f"echo 'job {its}' >{evidence}/started")
    finally:
        at.slurm.ask("scontrol", "update", "partitionname=batch", "state=up")
    said = at.site.wait(fenced, SECS)
    assert (
        said["state"] == "error"
        and "must not run" not in (Path(evidence) / "stdout.log").read_text()
    ), said
    assert at.running(neighbour) == its, "nobody else has noticed anything"
    assert at.over(at.run("echo fine", ALICE, "link"))["state"] == "completed", (
        "and the next run works"
    )
    at.open(gate)
    at.over(neighbour, gate=gate)


def test_a_log_of_the_agents_is_copied_as_what_it_is(at: SignedInUsers) -> None:
    """job_agent.log is copied to the supervisor's own tree at each start. A link in its place must
    not lead to a supervisor file, and the copy is truncated.
    """
    if not at.ready(ALICE, "link"):
        at.login(ALICE, "link")
    at.over(at.run("true", ALICE, "link"))
    base, secret = at.base(ALICE, "link"), (at.root / "secret" / "server").read_bytes().strip()
    kept = at.root / "user" / ALICE / "agent-sbatch" / "link"
    for what in ("link", "sparse", *(["pipe"] if os.environ.get("SOAK") else [])):
        log = base / "job_agent.log"
        log.unlink(missing_ok=True)
        at.users.run(
            "alice",
            "sh",
            "-c",
            {
                "pipe": f"mkfifo {log}",
                "link": f"ln -s {at.root}/secret/server {log}",
                "sparse": f"truncate -s 200G {log}",
            }[what],
        )
        before = {p.name for p in kept.iterdir()}
        at.end_on_login_node(ALICE)
        until(lambda: not at.ready(ALICE, "link"), "signed out", SECS)
        at.login(ALICE, "link")
        run = at.run("true", ALICE, "link")
        if what != "sparse":
            said = at.until(
                run,
                lambda s, run=run: s["over"] or "job_agent.log" in str(at.why(run)),
                "it is said",
            )  # type: ignore[misc]
            log.unlink()
            if said["over"]:
                run = at.run("true", ALICE, "link")
        assert at.site.wait(run, SECS)["state"] == "completed"
        new = [kept / n for n in {p.name for p in kept.iterdir()} - before]
        assert new and all(
            p.stat().st_size <= 1 << 20 and secret not in p.read_bytes() for p in new
        )
