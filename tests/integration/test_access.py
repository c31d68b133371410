"""Two users of a site work from elsewhere, each with an API token and without access to the root:
each gets only what is theirs, an administrator's acts are on record, and no token is anywhere.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from consistency_check import check_books
from process_sampler import ProcessSampler
from supervisor_process import PYTHON_PATH, SupervisorProcess, run_command, texts_below, until

from jobscribe.client import AsyncClient, Client, ClientError

ANN, BOB, ADMIN = "AnnUser1", "BobUser1", "AdmUser1"
Make = Callable[..., SupervisorProcess]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Person:
    """A user with a home of their own, on a machine without the root."""

    def __init__(self, site: SupervisorProcess, folder: Path, uid: str) -> None:
        self.uid, self.home, self.site = uid, folder / uid, site
        self.home.mkdir()
        self.token = ""

    def type(self, *words: str, given: str = "") -> Ended:
        if words[0] != "auth":
            done = run_command(
                *words, given=given, cwd=self.home, HOME=str(self.home), XDG_CONFIG_HOME=""
            )
            return Ended(done.returncode, done.stdout, done.stderr)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JOBSCRIBE_", "XDG_"))}
        done = subprocess.run(  # executed, so that the arguments of a login are seen
            [sys.executable, "-P", "-m", "jobscribe.cli", *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.home,
            env=env | {"HOME": str(self.home), "PYTHONPATH": PYTHON_PATH},
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def log_in(self, token: str) -> None:
        self.token = token
        ended = self.type("auth", "login", self.site.url, given=token + "\n")
        assert ended.code == 0 and self.uid in ended.out, ended


def operator(site: SupervisorProcess, *words: str) -> Ended:
    """Run a command with access to the root."""
    done = site.command(*words)
    return Ended(done.returncode, done.stdout, done.stderr)


def new_token(site: SupervisorProcess, uid: str, *scopes: str, expires: str = "1d") -> str:
    options = [o for s in scopes for o in ("--scope", s)]
    made = operator(
        site, "auth", "token", "create", "laptop", "--for", uid, "--expires", expires, *options
    )
    assert made.code == 0, made
    return made.out.strip()


async def uid_of(url: str, token: str) -> str:
    async with AsyncClient.to(url, token) as client:
        return await client.uid()


@pytest.fixture
def staffed(make_site: Make, tmp_path: Path) -> Iterator[SupervisorProcess]:
    """Start a site with an administrator."""
    roles = tmp_path / "users.yml"
    roles.write_text(f"admins: [{ADMIN}]\n")
    roles.chmod(0o600)
    site = make_site(f"auth.users={roles}").start()
    yield site
    check_books(site)


def test_two_users_and_an_administrator_work_from_elsewhere(
    staffed: SupervisorProcess, tmp_path: Path
) -> None:
    site = staffed
    ann, bob, admin = (Person(site, tmp_path, uid) for uid in (ANN, BOB, ADMIN))
    arguments = ProcessSampler("cmdline")
    ann.log_in(new_token(site, ANN, "read", "control"))
    bob.log_in(new_token(site, BOB, "read", "control"))
    admin.log_in(new_token(site, ADMIN, "read", "control", "admin"))
    # the owner
    ran = ann.type("run", "--", "sh", "-c", "echo hello of ann; exit 3")
    assert (ran.code, ran.out) == (3, "hello of ann\n"), ran
    jid = json.loads(ann.type("--json", "job", "list").out)["items"][0]["jid"]
    assert jid.startswith(ANN)
    assert ann.type("job", "logs", "last").out == "hello of ann\n"
    assert "exit code 3" in ann.type("job", "why", jid[9:14]).out
    assert ann.type("job", "get", jid, "-o", "files").code in (0, 125)
    # another user, for a job that exists and for one that does not
    for words in (["job", "logs"], ["job", "why"], ["job", "status"], ["job", "cancel"]):
        said = [
            bob.type(*words, one, "--patience", "0") for one in (jid, f"{ANN}-abcdefgh-command")
        ]
        assert [e.code == 0 for e in said] == [False, False], said
        assert "hello" not in said[0].out + said[0].err
        assert said[0].err.replace(jid, "J") == said[1].err.replace(f"{ANN}-abcdefgh-command", "J")
    assert json.loads(bob.type("--json", "job", "list").out)["items"] == []
    refused = bob.type("job", "list", "--all-users")
    assert json.loads(bob.type("--json", "job", "list", "--all-users").out)["items"] == [], refused
    for words in (["audit"], ["pool", "show"], ["health"], ["agent", "list"]):
        assert bob.type(*words).code == 125, words
    # Python clients, with a token only
    with Client(site.url, lambda: bob.token) as client:
        job = client.run(["sh", "-c", "echo hello of bob"])
        assert client.uid == BOB and job.wait(30).state == "completed"
        assert b"".join(part.data for part in job.logs()) == b"hello of bob\n"
        with pytest.raises(ClientError) as e, client.copy(uid=ANN) as other:
            other.status(jid)
        assert e.value.code == "forbidden"
    assert asyncio.run(uid_of(site.url, ann.token)) == ANN
    # the administrator, on record
    assert admin.type("job", "logs", jid).out == "hello of ann\n"
    assert admin.type("job", "cancel", jid).code in (0, 125)
    acts = [json.loads(line) for line in admin.type("audit", "--json").out.splitlines()]
    owner = json.loads((site.root / "client.json").read_text())["uid"]
    assert {(a["actor"], a["actorRole"], a["action"]) for a in acts if a["actor"] != ADMIN} == {
        (owner, "secretHolder", "token-create")
    }
    acts = [a for a in acts if a["actor"] == ADMIN]
    assert {(a["actorRole"], a["subject"], a["outcome"]) for a in acts} == {
        ("admin", ANN, "allowed")
    }
    assert {"job-log", "run-cancel"} <= {a["action"] for a in acts}
    assert {a["jid"] for a in acts} == {jid} and {a["peer"] for a in acts} == {"127.0.0.1"}
    assert operator(site, "audit", "--actor", ANN).out == ""
    # revoked: refused at once, and after a restart
    id_ = ann.token.split("_")[1]
    assert ann.type("auth", "token", "revoke", id_, "--reason", "lost").code == 0
    for restart in (True, False):
        ended = ann.type("job", "list")
        assert ended.code == 125 and "revoked" in ended.err and "auth login" in ended.err, ended
        if restart:
            _restart(site)
    # an expired one
    short = new_token(site, BOB, "read", expires="1")
    until(lambda: bob.type("auth", "login", site.url, given=short).code == 125, "the token expires")
    ended = bob.type("auth", "login", site.url, given=short)
    assert "expired" in ended.err and "supervisor's clock" in ended.err
    counters = site.ask("GET", "/api/metrics").json()["counters"]
    assert counters["refused.tokenExpired"] >= 1 and counters["refused.tokenRevoked"] >= 1
    # no token is anywhere but in its user's own file
    arguments.end()
    assert any(b"auth\0login" in text for text in arguments.seen), "it would have been seen"
    tokens = [p.token.split("_", 2)[2].encode() for p in (ann, bob, admin)]
    tokens += [short.split("_", 2)[2].encode()]
    where = texts_below(site.place)
    assert len(where) > 10
    for secret in tokens:
        assert [str(p) for p, text in where.items() if secret in text] == []
        assert not [text for text in arguments.seen if secret in text]
    for person in (ann, bob, admin):
        held = [p for p, text in texts_below(person.home).items() if b"jst_" in text]
        assert held == [person.home / ".config/jobscribe/credentials.json"]
        assert (held[0].stat().st_mode & 0o777) == 0o600
    check = operator(site, "db", "export")
    assert check.code == 0 and "TokenRevoked" in check.out
    assert not [t for t in tokens if t.decode() in check.out]


def _restart(site: SupervisorProcess) -> None:
    """Restart the supervisor at the same address, which the stored logins name."""
    port = site.url.rpartition(":")[2]
    site.stop()
    site.process = site.fork_or_launch("--port", port)
    assert site.process.stdout is not None
    assert site.process.stdout.readline().startswith(b"jobscribe ready at ")
    site.read_address()
