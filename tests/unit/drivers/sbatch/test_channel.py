"""The local channel: commands as the current user, through sudo or through runuser, and what
another account on the machine can see.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sbatch_agents import (
    AGENT_ID,
    KEY,
    SPEC,
    SYSTEM_PYTHON,
    TOKEN,
    SbatchAgents,
    made_ground,
    until,
)

from jobscribe.drivers.sbatch.login_node import channel as channels
from jobscribe.drivers.sbatch.login_node.channel import (
    OUT_BYTES,
    ChannelError,
    LocalChannel,
    local_channel,
)
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime import processes

pytestmark = pytest.mark.process

NOBODY = 65534
ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("runuser") is None,
    reason="becoming another user takes root and runuser: run as root",
)


@pytest.fixture
async def batch_site() -> AsyncIterator[SbatchAgents]:
    async with made_ground() as made:
        yield made


async def test_a_command_gets_its_stdin_and_says_what_it_says() -> None:
    ran = await LocalChannel(()).run(["sh", "-c", "cat; echo oops >&2; exit 7"], b"x" * 300_000)
    assert (ran.code, len(ran.out), ran.err) == (7, 300_000, b"oops\n")
    # the command does not read its stdin
    assert (await LocalChannel(()).run(["true"], b"x" * 300_000)).code == 0
    assert (await LocalChannel(()).run(["no-such-command"])).code == 127
    assert (
        len((await LocalChannel(()).run(["head", "-c", str(OUT_BYTES + 1), "/dev/zero"])).out)
        == OUT_BYTES
    )


async def test_nothing_of_the_supervisors_environment_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBSCRIBE_SECRET", "hidden")
    said = (await LocalChannel(()).run(["env"])).out.decode()
    assert "hidden" not in said
    assert {line.partition("=")[0] for line in said.splitlines()} <= {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PATH",
        "LANG",
        "LC_ALL",
        "TZ",
    }


async def test_what_takes_too_long_is_ended_with_what_it_started() -> None:
    began = time.monotonic()
    with pytest.raises(ChannelError, match=r"sh on .* did not end within 0\.3 s"):
        await LocalChannel(()).run(["sh", "-c", "sleep 4321 & sleep 4321"], secs=0.3)
    assert time.monotonic() - began < 20
    await until(
        lambda: (
            not [
                p
                for p in processes.table().values()
                if not p.over and processes._read(f"/proc/{p.pid}/cmdline") == b"sleep\x004321\0"
            ]
        ),
        "the end of what it started",
    )


async def test_what_it_leaves_behind_is_not_waited_for() -> None:
    """Login profiles start daemons that keep the output open."""
    began = time.monotonic()
    ran = await LocalChannel(()).run(["sh", "-c", "echo done; sleep 1234 & exit 3"], secs=60)
    assert (ran.code, ran.out) == (3, b"done\n") and time.monotonic() - began < 30
    for p in processes.table().values():
        if processes._read(f"/proc/{p.pid}/cmdline") == b"sleep\x001234\0":
            os.kill(p.pid, 9)


def test_users_that_cannot_be_are_named() -> None:
    cluster = Cluster(name="hpc", access="runuser", users={"DriverU1": "no-such-user"})
    for uid, words in (
        ("another0", "no unix user is configured for another0"),
        ("DriverU1", "no unix user named no-such-user"),
    ):
        with pytest.raises(Refusal, match=words) as refused:
            local_channel(cluster, uid)
        assert refused.value.code == "agentUnavailable" and "cluster hpc" in refused.value.sentence


@pytest.mark.parametrize(
    ("sudo", "words"),
    [
        (
            'echo "sudo: a password is required" >&2; exit 1',
            "adds a rule with NOPASSWD): sudo: a password is required",
        ),
        (None, "cannot run sudo on this machine"),
    ],
)
async def test_a_missing_rule_is_a_clear_refusal(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch, sudo: str | None, words: str
) -> None:
    if sudo is not None:
        batch_site.command("sudo", sudo)
    monkeypatch.setattr(channels, "_PATH", str(batch_site.bin))
    me = pwd.getpwuid(os.geteuid()).pw_name
    driver = batch_site.driver(batch_site.cluster(access="sudo", users={KEY.uid: me}))
    with pytest.raises(Refusal) as refused:
        await driver.start(SPEC)
    assert refused.value.code == "agentUnavailable" and words in refused.value.sentence
    assert await driver.check() == [refused.value.sentence]


async def test_sudo_is_asked_for_no_password_and_for_the_users_home(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_site.command(
        "sudo", f'echo "$1 $2 $3 $4 $5" >> {batch_site.root}/asked; shift 5; exec "$@"'
    )
    monkeypatch.setattr(channels, "_PATH", f"{batch_site.bin}:/usr/bin:/bin")
    me = pwd.getpwuid(os.geteuid()).pw_name
    driver = batch_site.driver(
        batch_site.cluster(access="sudo", users={KEY.uid: me}, pythons=(SYSTEM_PYTHON,))
    )
    assert await driver.evidence(KEY, "t1/stdout.log", 0, 1) == (
        b"",
        0,
    )  # every command runs in the same way
    assert set((batch_site.root / "asked").read_text().splitlines()) == {f"-n -H -u {me} --"}


_SECOND_ACCOUNT = """
import os, sys, time
root, *secrets = sys.argv[1:2] + [s.encode() for s in sys.stdin.read().split()]
seen, hits, before = 0, [], set(os.listdir("/proc"))
print("looking", flush=True)
while not os.path.exists(root + "/over"):
    time.sleep(0.001)
    for pid in (p for p in os.listdir("/proc") if p.isdigit() and p not in before):
        for name in ("cmdline", "environ"):
            try:
                text = open(f"/proc/{pid}/{name}", "rb").read()
            except OSError:
                continue
            seen += b"agent.keeper" in text
            hits += [text for s in secrets if s in text]
files = 0
for folder, _, names in os.walk(root):
    for name in names:
        try:
            text = open(f"{folder}/{name}", "rb").read()
        except OSError:
            continue
        files += 1
        hits += [(folder, name) for s in secrets if s in text]
print(seen, files, hits)
"""


@ROOT
async def test_an_agent_as_another_user_whose_secrets_a_third_cannot_see(
    batch_site: SbatchAgents,
) -> None:
    os.chown(batch_site.scratch, NOBODY, NOBODY)
    batch_site.scratch.chmod(0o755)
    cluster = batch_site.cluster(
        access="runuser", users={KEY.uid: "nobody"}, pythons=(SYSTEM_PYTHON,)
    )
    driver = batch_site.driver(cluster)
    third = subprocess.Popen(
        [SYSTEM_PYTHON, "-c", _SECOND_ACCOUNT, str(batch_site.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=54_321,
        group=54_321,
        extra_groups=[],
        cwd="/",
    )
    assert third.stdin is not None and third.stdout is not None
    third.stdin.write(f"{TOKEN} {AGENT_ID}".encode())
    third.stdin.close()
    assert third.stdout.readline() == b"looking\n"
    try:
        handle = await driver.start(SPEC)
    finally:
        (batch_site.root / "over").touch()
    seen, files, hits = third.stdout.read().decode().split(maxsplit=2)
    third.stdout.close()
    third.wait()
    assert int(seen) > 0 and int(files) > 0, "it looked and saw what everybody may see"
    assert hits.strip() == "[]"
    assert os.stat(f"/proc/{handle['pid']}").st_uid in (0, NOBODY)
    status = Path(f"/proc/{handle['pid']}/status").read_text()
    assert (
        f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}" in status and f"Groups:\t{NOBODY}" in status
    )
    for path in (batch_site.base, *batch_site.base.rglob("*")):
        with contextlib.suppress(
            FileNotFoundError
        ):  # a file that is being rewritten has a temporary name
            assert path.lstat().st_uid == NOBODY
    assert handle["user"] == "nobody" and driver.signed_in_as(KEY) == "nobody"
    await driver.stop(handle, 1.0)
    assert (await driver.find(handle)).state == "gone" and not batch_site.keepers()


@ROOT
async def test_evidence_of_another_users_agent_is_read_as_that_user(
    batch_site: SbatchAgents,
) -> None:
    os.chown(batch_site.scratch, NOBODY, NOBODY)
    driver = batch_site.driver(
        batch_site.cluster(access="runuser", users={KEY.uid: "nobody"}, pythons=(SYSTEM_PYTHON,))
    )
    run = batch_site.folder() / "run" / "t1"
    run.mkdir(parents=True)
    (run / "stdout.log").write_bytes(b"0123456789")
    secret = batch_site.root / "secret"
    secret.write_text("of root's")
    secret.chmod(0o600)
    (run / "stderr.log").symlink_to(secret)
    os.link(secret, run / "hard.log")
    os.mkfifo(run / "pipe")
    for path in (batch_site.base, *batch_site.base.rglob("*")):
        if not path.is_symlink() and path.name != "hard.log":
            os.chown(path, NOBODY, NOBODY)
    assert await driver.evidence(KEY, "t1/stdout.log", 2, 4) == (b"2345", 10)
    for name in ("stderr.log", "nothing.log", "pipe"):
        assert await driver.evidence(KEY, f"t1/{name}", 0, 100) == (b"", 0), name
    with pytest.raises(Refusal, match="Permission denied"):
        await driver.evidence(KEY, "t1/hard.log", 0, 100)
