"""Ssh from outside into tasks, with the real client of OpenSSH: it passes through supervisor and
relay, nothing listens, and the keys of users and of gangs do not open the same.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_session import environment, words
from docker_hosts import BASE, Host, Hosts, sites
from supervisor_process import UID, SupervisorProcess, texts_below, until

from jobscribe.client.sync_client import Client

from .test_openpai import CACHE, SSHD, submitted

pytestmark = pytest.mark.timeout(300)
_WAITS = "until [ -e ../../end ]; do sleep 0.05; done; exit 0"
_FAILS = "echo here > made; until [ -e ../../fail ]; do sleep 0.05; done; exit 3"
#: Prints what listens (state 0A), also in the network of a gang.
_LISTENING = "cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == \"0A\"' | wc -l"


@pytest.fixture(scope="module")
def site(pool: Hosts) -> Iterator[SupervisorProcess]:
    with sites(pool) as made:
        yield made.make("slots.op_run=12", pool={"hosts": ["a"], "pull": "missing"}).start()


def test_a_user_enters_tasks_from_outside(
    site: SupervisorProcess, host_a: Host, tmp_path: Path
) -> None:
    """The roles: a task in an image with sshd, one without, and one that fails and is held."""
    host_a.docker("import", f"{CACHE}/sshd.tar", SSHD)
    role = {"memory": 128, "command": _WAITS, "image": SSHD}
    roles = {
        "open": role,
        "plain": role | {"image": BASE},
        "held": role | {"command": _FAILS, "minFailed": 1},
    }
    job_file = {"name": "entered", "driver": "docker", "ssh": True, "debug": 600, "roles": roles}
    env = {**environment(), "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}

    def ran(*args: str, given: bytes = b"", code: int = 0) -> tuple[bytes, str]:
        done = subprocess.run(
            args, input=given, capture_output=True, timeout=100, env=env, check=False
        )
        said = done.stderr.decode()
        assert done.returncode == code, (args, done.returncode, done.stdout[-500:], said)
        return done.stdout, said

    with Client.from_root(site.root, uid=UID) as client:
        job = submitted(client, tmp_path / "job", json.dumps(job_file))
        run_dir = Path(site.root, "user", UID, "command", *job.jid.split("-")[1:])
        own = run_dir.parents[2]
        until(lambda: all(t["state"] == "running" for t in _tasks(client, job.jid)), "all run", 100)

        # a command, its input, its output and its exit code, unchanged
        data = os.urandom(1_000_000)
        facts = "id -un; id -u; echo $HOME; cat; exit 7"
        said, _ = ran(
            *words(site, "job", "ssh", job.jid, "open-0", "--", facts), given=data, code=7
        )
        assert said == f"jobscribe\n{own.stat().st_uid}\n{own}\n".encode() + data

        # other programs use it as a host; a terminal works
        config, name = tmp_path / "ssh_config", f"{job.jid}.open-0"
        config.write_bytes(ran(*words(site, "job", "ssh", job.jid, "--config"))[0])
        (tmp_path / "sent").write_bytes(data)
        ran("scp", "-q", "-F", str(config), str(tmp_path / "sent"), f"{name}:arrived")
        assert (own / "arrived").read_bytes() == data
        shown = f"cat /run/jobscribe-ssh/id >gang; {_LISTENING}; tty"
        said, _ = ran("ssh", "-tt", "-F", str(config), name, shown)
        listening, tty = said.decode().split()
        assert tty.startswith("/dev/pts/")

        # nothing listens for it, and the key of the gang does not open it
        assert int(listening) == _listening(host_a, _container(client, job.jid, "open"))
        gang = f"IdentityFile {own}/gang\n  #"
        (own / "gang").chmod(0o600)
        os.chown(own / "gang", 0, 0)
        (tmp_path / "gang").write_text(config.read_text().replace("IdentityFile", gang))
        _, refused = ran("ssh", "-F", str(tmp_path / "gang"), name, "true", code=255)
        assert "Permission denied (publickey)" in refused

        plain = f"{job.jid}.plain-0"
        _, without = ran("ssh", "-F", str(config), plain, "true", code=255)
        assert "its image has no sshd" in without and "job shell" in without

        # a task that is held has no process any more, and its files
        (run_dir / "fail").touch()
        until(lambda: _task(client, job.jid, "held")["state"] == "held", "it is held", 60)
        seen = f"cat {run_dir}/held/0/made"
        assert ran("ssh", "-F", str(config), f"{job.jid}.held-0", seen)[0] == b"here\n"

        container = _container(client, job.jid, "open")
        left = (
            "ls -A /tmp | grep jobscribe; cat /proc/[0-9]*/comm | grep -cx sshd"  # that of the gang
        )
        shown = ("exec", container, "/bin/sh", "-c", left)
        until(lambda: host_a.docker(*shown) == "1\n", "the connections are gone", 20)
        inspected = host_a.docker("inspect", *host_a.containers("jobscribe.part=task"))
        recorded = [e["event"] for e in site.post("audit")["events"]]
        (run_dir / "end").touch()
        client.release(job.jid)
        assert job.wait(timeout=60).raw["exit"]["code"] == 3, site.log()[-3000:]
    opened = [e for e in recorded if e["type"] == "ShellOpened"]
    assert {e["program"] for e in opened} == {"ssh"} and "open/0" in {e["task"] for e in opened}
    private = (tmp_path / "config" / "jobscribe" / "ssh" / job.jid / "id_ed25519").read_text()
    secret = private.splitlines()[2]
    assert secret not in inspected + site.log()
    assert not [p for p, text in texts_below(Path(site.root)).items() if secret.encode() in text]


def _tasks(client: Client, jid: str) -> list[dict[str, Any]]:
    tasks = client.tasks(jid)["tasks"]
    return tasks if len(tasks) == 3 else [{"state": "none"}]


def _task(client: Client, jid: str, role: str) -> dict[str, Any]:
    return next(t for t in client.tasks(jid)["tasks"] if t["role"] == role)


def _container(client: Client, jid: str, role: str) -> str:
    return str(_task(client, jid, role)["container"])


def _listening(host: Host, container: str) -> int:
    return int(host.docker("exec", container, "/bin/sh", "-c", _LISTENING))
