"""After a full run - good ends, bad ends, refusals, restarts - no secret of it stands anywhere but where it belongs."""

import hashlib
import json
import os
import re
import signal
from collections.abc import Callable

import pytest
from books import check_books, events
from real_site import UID, Site, jid_of, req_id, shell, spec, until

from jobscribe.protocol.ids import derived_id, parse_agent_key
from jobscribe.runtime import processes

#: Where the secrets of a root lie, for its owner only.
BELONGS = ("client.json", "secret/server", "secret/agents")


def test_no_secret_is_anywhere_but_in_its_place(make_site: Callable[..., Site]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can read an agent's token out of its memory, to look for it elsewhere")
    site = make_site(env={"SYSTEM_CANARY_TOKEN": "canaryOfTheEnvironment"})
    site.start()
    _everything(site)
    site.stop(signal.SIGKILL)
    site.start()
    stays = shell("sleep 300", graceSecs=0)
    site.submit(stays)
    site.running(stays)
    secrets = _secrets(site)
    assert len(secrets) >= 6
    _check_files(site, secrets)
    _check_processes(site, secrets)
    said = [site.ask("GET", path).body for path in ("/readyz", "/livez")]
    said += [site.ask("POST", f"/api/{path}", json.dumps({"uid": UID, "computeJid": jid_of(stays)}).encode()).body for path in ("run-status", "job-why", "job-story")]
    said.append(site.ask("POST", "/api/trace", json.dumps({"id": str(site.agent_key())}).encode()).body)
    for name, secret in secrets.items():
        assert not [s for s in said if secret.encode() in s], name
    site.cancel(stays)
    site.wait(stays)
    check_books(site)


def _everything(site: Site) -> None:
    """Runs that end well and badly, refusals with the secret in odd places, an agent that is killed."""
    site.finished(spec(["true"]))
    site.finished(shell("env; exit 3"))
    site.finished(spec(["/no/such/program"]))
    for path, body, headers in (
        ("/api/run-status", site.token.encode(), None), ("/api/" + site.token, b"{}", None), ("/api/run-status?token=" + site.token, b"{}", None),
        ("/api/run-status", b"{}", {"Authorization": "Basic " + site.token}), ("/api/trace", json.dumps({"id": site.token}).encode(), None),
        ("/api/run-simulation", json.dumps({"reqId": req_id(), "run": {**spec(["true"]), "simulationType": site.token}}).encode(), None),
        ("/api/run-simulation", json.dumps({"reqId": req_id(), "run": {**spec(["true"]), "env": {"MY_PASSWORD": "canaryOfAPassword"}}}).encode(), None),
    ):
        assert site.ask("POST", path, body, headers=headers).code >= 400
    witness = shell("sleep 1; exit 0")
    site.submit(witness)
    site.running(witness)
    old = site.agent_pid()
    site.kill(old)
    site.wait(witness)
    until(lambda: [p for p in site.titled("agent") if p != old], "another agent")


def _secrets(site: Site) -> dict[str, str]:
    out = {name: (site.root / "secret" / name).read_text().strip() for name in ("server", "agents")}
    out["environment"], out["password"] = "canaryOfTheEnvironment", "canaryOfAPassword"
    out |= {f"token {n}": t for n, t in enumerate(_tokens(site))}
    out["agentId"] = derived_id(str(site.agent_key()).encode(), key=out["agents"].encode())
    return out


def _tokens(site: Site) -> list[str]:
    """The agents' tokens: not kept anywhere, but their digests are in the log, so they are known when seen in the agent's memory."""
    digests = {e["event"]["tokenHash"] for e in events(site.root) if e["type"] == "AgentStartRequested"}
    found = {text for text in _words(site.agent_pid()) if hashlib.sha256(text.encode()).hexdigest() in digests}
    if not found:
        pytest.fail("no token was found in the agent's memory: this test would not see one elsewhere")
    return sorted(found)


def _words(pid: int) -> set[str]:
    """Everything in a process's memory that has the shape of a token. Only root can look into a process that hides itself."""
    out: set[str] = set()
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            begin, end = (int(x, 16) for x in span.split("-"))
            if not mode.startswith("rw") or end - begin > 1 << 28:
                continue
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except OSError:
                continue
            out.update(m.decode() for m in re.findall(rb"(?<![A-Za-z0-9])[A-Za-z0-9]{32}(?![A-Za-z0-9])", content or b""))
    return out


def _check_files(site: Site, secrets: dict[str, str]) -> None:
    looked = 0
    for path in site.place.rglob("*"):
        if path.is_symlink() or not path.is_file() or str(path.relative_to(site.place)).removeprefix("r/") in BELONGS:
            continue
        content = path.read_bytes()
        looked += 1
        for name, secret in secrets.items():
            assert secret.encode() not in content and secret.encode() not in str(path).encode(), (name, path)
    assert looked > 20
    for place in BELONGS:
        assert (site.root / place).stat().st_mode & 0o077 == 0


def _check_processes(site: Site, secrets: dict[str, str]) -> None:
    pids = set(site.everybody()) | {site.pid}
    assert len(pids) >= 5
    for pid in pids:
        line, environment = processes._read(f"/proc/{pid}/cmdline"), processes._read(f"/proc/{pid}/environ")
        for name, secret in secrets.items():
            assert secret.encode() not in line, (name, pid, line)
            if not (name == "environment" and pid == site.pid):
                assert secret.encode() not in environment, (name, pid, line)


def test_what_holds_secrets_hides_itself_from_jobs_of_the_same_user(site: Site) -> None:
    """Supervisor, template, keeper and agent are not dumpable: their memory and environment belong to root."""
    site.finished(spec(["true"]))
    for title in ("supervisor", "template", "keeper", "agent"):
        (pid,) = site.titled(title)
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                open(f"/proc/{pid}/environ", "rb").close()


def test_an_agent_key_is_what_is_shown_of_agents(site: Site) -> None:
    site.finished(spec(["true"]))
    names = [p.name for p in (site.root / "agent").iterdir() if p.is_dir()]
    assert [str(parse_agent_key(n)) for n in names] == names
