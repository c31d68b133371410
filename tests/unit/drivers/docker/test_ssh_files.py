"""Files for ssh between the tasks of a gang: who can read them, and what they permit."""

import json
import os
import stat
from pathlib import Path

import pytest

from jobscribe.drivers.docker.containers import ssh_files
from jobscribe.drivers.docker.tasks.init_script import NO_SSHD, init_script
from jobscribe.drivers.docker.tasks.ledger import ContainerLedger, TaskRequest
from jobscribe.protocol.ids import Token

KEYS = ssh_files.make_keys()
ME = (os.geteuid(), os.getegid())


def token(attempt: int = 1, index: int = 0) -> Token:
    return Token("User0001-Simu0001-command", 3, attempt, "my_worker", index)


def job(*addresses: str) -> str:
    tasks = [
        {"role": "My_worker", "index": n, "host": "a", "address": a, "ports": {"ssh": [22000 + n]}}
        for n, a in enumerate(addresses)
    ]
    return json.dumps({"tasks": tasks})


@pytest.fixture
def ledger(tmp_path: Path) -> ContainerLedger:
    made = ContainerLedger(str(tmp_path / "place"))
    made.make()
    for each in (token(), token(index=1), token(attempt=12), token(attempt=2)):
        assert made.take_token(TaskRequest(token=str(each), run_dir="/r"), each)
    return made


def test_the_tasks_of_an_attempt_share_keys_that_only_their_user_reads(
    ledger: ContainerLedger,
) -> None:
    assert ledger.ssh_of_attempt(token()) is None
    files = ssh_files.files(KEYS, job("10.208.0.2"), ME, "/home/u", network=True)
    ledger.write_ssh(token(), files, ME)
    folder = Path(ledger.ssh_folder(token()))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    found = ledger.ssh_of_attempt(token(index=1))
    assert found == files and ssh_files.read_keys(found) == KEYS
    assert [ledger.ssh_of_attempt(token(attempt=n)) for n in (2, 12)] == [None, None]
    assert len(ledger.entries()) == 4
    ledger.remove_entry(token())
    assert not folder.exists() and ledger.ssh_of_attempt(token()) is None


def test_only_the_key_of_the_attempt_is_accepted_and_shown_nowhere() -> None:
    files = ssh_files.files(
        KEYS, job("10.208.0.2", "10.208.0.3"), (4711, 4712), "/home/u", network=True
    )
    config = dict(line.split(" ", 1) for line in files["sshd_config"].splitlines())
    refused = (
        "PasswordAuthentication",
        "KbdInteractiveAuthentication",
        "PermitRootLogin",
        "UsePAM",
    )
    assert {config[key] for key in (*refused, "AllowAgentForwarding")} == {"no"}
    assert config["AuthenticationMethods"] == "publickey"
    assert config["AuthorizedKeysFile"] == f"{ssh_files.MOUNTED}/authorized_keys"
    assert files["authorized_keys"].split() == KEYS.client_public.split()
    assert config["AllowUsers"] == "jobscribe"
    assert "jobscribe:x:4711:4712::/home/u:/bin/sh\n" in files["passwd"]
    shared = [n for n, text in files.items() if KEYS.client in text or KEYS.host in text]
    assert shared == ["id", "host_key"]
    assert KEYS.client not in repr(KEYS) and ssh_files.make_keys() != KEYS
    as_root = ssh_files.files(KEYS, job("10.208.0.2"), (0, 0), "/home/u", network=True)[
        "sshd_config"
    ]
    assert (
        "PermitRootLogin prohibit-password\n" in as_root
        and "AllowUsers jobscribe root\n" in as_root
    )


def test_ssh_finds_each_task_by_the_name_of_its_role_its_container_and_its_address() -> None:
    files = ssh_files.files(KEYS, job("10.208.0.2", "10.208.0.3"), ME, "/home/u", network=True)
    hosts = files["ssh_config"].split("Host ")[1:]
    assert hosts[1].splitlines()[:4] == [
        "My_worker-1 my-worker-1 10.208.0.3",
        "  HostName 10.208.0.3",
        "  Port 22001",
        "  HostKeyAlias jobscribe-tasks",
    ]
    assert "  StrictHostKeyChecking yes" in hosts[0] and hosts[2].startswith("*\n")
    assert files["known_hosts"] == f"jobscribe-tasks {KEYS.host_public}\n"
    (alone, _) = ssh_files.files(KEYS, job("h"), ME, "/home/u", network=False)["ssh_config"].split(
        "Host "
    )[1:]
    assert "HostName 127.0.0.1\n" in alone


def test_sshd_is_started_where_the_job_asks_and_a_missing_one_is_told() -> None:
    plain = init_script("/e", "/r", limit_secs=None, grace_secs=1.0)
    asked = init_script("/e", "/r", limit_secs=None, grace_secs=1.0, ssh=("10.208.0.2", 22001))
    assert ssh_files.MOUNTED not in plain and NO_SSHD not in plain
    added = set(asked.splitlines()) - set(plain.splitlines())
    (start,) = [line for line in added if "sshd_config" in line]
    assert "ListenAddress='10.208.0.2' -p 22001 >/dev/null 2>sshd.log 3>&- 4>&- &" in start
    assert any("sshUnavailable" in line and line.endswith(">>notices.jsonl") for line in added)
