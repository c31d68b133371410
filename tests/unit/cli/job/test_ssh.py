"""`job ssh`: which task a user means, the options of OpenSSH, and the keys on the user's machine."""

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.job.ssh import command, options, user_keys
from jobscribe.protocol.errors import Refusal

JID = "ann00001-sim00001-command"


def task(role: str, index: int, state: str = "running") -> dict[str, Any]:
    return {"role": role, "index": index, "state": state}


TASKS = [task("worker", 0), task("worker", 1, "held"), task("ps", 0, "failed")]


@pytest.mark.parametrize(
    ("words", "chosen", "rest"),
    [
        ((), None, ()),
        (("worker-1",), TASKS[1], ()),
        (("worker-0", "worker-1", "x"), TASKS[0], ("worker-1", "x")),
        (("hostname", "-f"), None, ("hostname", "-f")),
        (("other-1", "x"), None, ("other-1", "x")),
    ],
)
def test_the_first_word_is_a_task_or_a_command(words: Any, chosen: Any, rest: Any) -> None:
    assert command._chosen(TASKS, words) == (chosen, rest)


def test_a_task_that_the_job_does_not_have_is_no_command() -> None:
    with pytest.raises(Refusal, match=r"no task worker-2; its tasks: worker-0, worker-1, ps-0"):
        command._chosen(TASKS, ("worker-2", "rm"))
    with pytest.raises(Refusal, match=r"choose a task: its tasks: worker-0, worker-1$"):
        command._only(TASKS)
    assert command._only(TASKS[1:]) == TASKS[1]
    with pytest.raises(Refusal, match="no task of the job runs"):
        command._only([TASKS[2]])


def test_options_are_quoted_for_ssh_and_its_shell() -> None:
    proxy = ["/opt/my tools/jobscribe", "job", "ssh-proxy", JID, "w-0", "--root", "/r%h"]
    lines = options.block("h", options.ssh_options(JID, proxy, "/k %d/id", "/k %d/known"))
    assert lines[0] == "Host h"
    start = "  ProxyCommand '/opt/my tools/jobscribe' job ssh-proxy "
    assert f"{start}{JID} w-0 --root /r%%h" in lines
    assert '  IdentityFile "/k %%d/id"' in lines
    assert {"  StrictHostKeyChecking yes", "  IdentitiesOnly yes"} <= set(lines)


@pytest.mark.process
def test_each_job_has_keys_that_only_their_user_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    old = tmp_path / "jobscribe" / "ssh" / "ann00001-sim00000-command"
    old.mkdir(parents=True)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    keys = user_keys.user_keys(JID)
    assert keys.public.startswith("ssh-ed25519 AAAA") and keys.public.count(" ") == 1
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(os.stat(keys.private).st_mode) == 0o600
    keys.know("alias", "ssh-ed25519 AAAA")
    assert Path(keys.known_hosts).read_text() == "alias ssh-ed25519 AAAA\n"
    assert user_keys.user_keys(JID).public == keys.public
    assert sorted(p.name for p in keys.folder.parent.iterdir()) == [JID]
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Refusal, match=r"has no ssh-keygen; install.*job shell"):
        user_keys.user_keys("ann00001-sim00002-command")
