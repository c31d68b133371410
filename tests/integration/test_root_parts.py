"""A root whose parts do not belong together is refused, or repaired with a message that names the
part. No running job is ended.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from supervisor_process import SupervisorProcess, fresh_nap, naps, run_command, shell, spec, until

from jobscribe.runtime import processes

Make = Callable[..., SupervisorProcess]


@pytest.fixture
def running(make_site: Make) -> tuple[SupervisorProcess, dict, Path]:
    """Return a site with a run that waits for its gate."""
    site = make_site().start()
    gate = site.place / "gate"
    run = shell(f"until [ -e {gate} ]; do sleep 0.05; done; exit 3")
    site.submit(run)
    site.running(run)
    return site, run, gate


def refused(site: SupervisorProcess, *words: str) -> str:
    """Check that the supervisor does not start, reports why, and changes no file except its lock.
    Return the message.
    """
    before = _files(site.root)
    (site.place / "up.log").write_text("")
    out, _ = site.launch().communicate(timeout=60)
    said = site.log()
    assert out == b"" and "Traceback" not in said
    for word in words:
        assert word in said, said
    assert _files(site.root) == before
    return said


def _files(root: Path) -> dict[str, bytes]:
    """Return all files of the root, except those that running keepers and agents write."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith(
            ("agent/", "user/", "supervisor.lock", "db/events.sqlite-shm")
        ):
            found[name] = path.read_bytes()
    return found


def command(root: Path, *words: str) -> str:
    """Return the output of a command on this root. The command must succeed."""
    done = ran(root, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ran(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("--root", str(root), *words)


def test_a_root_without_its_log_is_refused_until_the_loss_is_accepted(
    running: tuple[SupervisorProcess, dict, Path],
) -> None:
    site, run, gate = running
    keeper = site.keeper()
    site.stop(signal.SIGKILL)
    (site.root / "db").rename(site.place / "db")
    refused(site, "the log is missing", "db restore", "db init --accept-loss")
    (site.root / "root.json").rename(site.place / "root.json")
    refused(site, "the log is missing", "agents: 1")  # like a root of the previous version
    assert processes.alive(keeper["pid"], keeper["startTicks"]), "what runs is left alone"
    (site.place / "root.json").rename(site.root / "root.json")
    (site.place / "db").rename(site.root / "db")
    site.start()
    gate.touch()
    assert site.wait(run)["exit"]["code"] == 3
    site.stop()
    shutil.rmtree(site.root / "db")
    assert "new empty log" in command(site.root, "db", "init", "--accept-loss")
    site.start()
    assert site.finished(shell("exit 4"))["exit"]["code"] == 4


def test_a_copy_of_a_root_in_use_is_refused_until_it_is_a_root_of_its_own(
    running: tuple[SupervisorProcess, dict, Path], make_site: Make
) -> None:
    site, run, gate = running
    copy = make_site()
    subprocess.run(["cp", "-a", str(site.root), str(copy.root)], check=True)
    refused(copy, f"is a copy of {site.root}", "db adopt")
    (copy.root / "root.json").unlink()
    refused(copy, f"is a copy: its keeper, pid {site.keeper()['pid']}, belongs to {site.root}")
    subprocess.run(["cp", "-a", str(site.root / "root.json"), str(copy.root)], check=True)
    uid = json.loads((copy.root / "client.json").read_text())["uid"]
    assert "is now a separate root" in command(copy.root, "db", "adopt")
    copy.start()
    assert json.loads((copy.root / "client.json").read_text())["uid"] == uid, (
        "the command line goes on as the same user"
    )
    lost = copy.wait(run)
    assert (lost["state"], lost["reason"]) == ("error", "lost")
    assert copy.finished(shell("exit 4"))["exit"]["code"] == 4
    assert site.status(run)["state"] == "running"
    gate.touch()
    assert site.wait(run)["exit"]["code"] == 3, "the original knew nothing of it"


def test_a_root_that_was_moved_starts_and_one_moved_under_its_keepers_is_refused(
    running: tuple[SupervisorProcess, dict, Path], make_site: Make
) -> None:
    site, run, gate = running
    site.stop(signal.SIGKILL)
    moved = make_site()
    site.root.rename(moved.root)
    refused(moved, f"was moved from {site.root}", "move it back")
    moved.root.rename(site.root)
    site.start()
    gate.touch()
    site.wait(run)
    pid = site.keeper()["pid"]
    site.kill(pid)
    site.stop()
    until(lambda: not site.everybody(), "nobody is there")
    site.root.rename(moved.root)
    moved.start()
    assert moved.status(run)["exit"]["code"] == 3
    assert moved.finished(shell("exit 4"))["exit"]["code"] == 4


def test_replaced_secrets_orphan_nothing(running: tuple[SupervisorProcess, dict, Path]) -> None:
    """The original key that names agents is put back. The secret of the API may change."""
    site, run, gate = running
    key, uid = (
        (site.root / "secret/agents").read_text(),
        json.loads((site.root / "client.json").read_text())["uid"],
    )
    site.stop(signal.SIGKILL)
    for name in ("agents", "server"):
        (site.root / "secret" / name).write_text(name[0] * 20 + "0123456789abcdefghijklm")
    site.start()
    until(
        lambda: "secret/agents was replaced: the key of this root was restored" in site.log(),
        "that is said",
    )
    assert (site.root / "secret/agents").read_text() == key and site.token.startswith("s" * 20)
    assert json.loads((site.root / "client.json").read_text())["uid"] == uid
    gate.touch()
    assert site.wait(run)["exit"]["code"] == 3
    site.stop()
    (site.root / "root.json").unlink()
    shutil.rmtree(site.root / "secret")
    refused(site, "secret/agents is missing", "db adopt")
    command(site.root, "db", "adopt")
    site.start()
    assert site.finished(shell("exit 4"))["exit"]["code"] == 4


def test_the_log_of_another_root_is_refused_and_taken_as_a_backup(make_site: Make) -> None:
    one, other = make_site().start(), make_site().start()
    run = shell("exit 3")
    other.finished(run)
    for site in (one, other):
        site.stop()
    (one.root / "db").rename(one.place / "own")
    shutil.copytree(other.root / "db", one.root / "db")
    refused(one, "is of another root", "db restore")
    (one.root / "db").rename(one.place / "taken")
    command(one.root, "db", "restore", str(one.place / "taken"))
    one.start()
    assert one.status(run)["exit"]["code"] == 3
    one.stop()
    one.start()


def test_a_root_of_the_version_before_is_adopted(make_site: Make) -> None:
    """The log of the previous version has no identity, and its keepers report no folder."""
    site = make_site().start()
    nap = fresh_nap()
    run = spec(["sleep", nap], graceSecs=0)
    site.submit(run)
    site.running(run)
    site.stop(signal.SIGKILL)
    (site.root / "root.json").unlink()
    file = site.root / "agent" / str(site.agent_key()) / "keeper.json"
    said = json.loads(file.read_text())
    said.pop("folder")
    file.write_text(json.dumps(said))
    site.start()
    until(lambda: site.status(run)["known"], "its agent is known again")
    assert site.keeper()["pid"] == said["pid"] and naps(nap)
    assert json.loads((site.root / "root.json").read_text())["path"] == str(site.root)
    assert os.stat(site.root / "root.json").st_mode & 0o777 == 0o600
    site.cancel(run)
    site.wait(run)


def test_files_that_are_needed_are_written_again_and_what_is_not_ours_is_named(
    make_site: Make,
) -> None:
    site = make_site().start()
    names = ("client.json", "agents.json", "root.json", "secret/agents")
    before = {name: (site.root / name).read_bytes() for name in names}
    for name in names:
        (site.root / name).unlink()
    until(lambda: all((site.root / name).exists() for name in names), "they are there again")
    (site.root / "client.json").write_text("{}")
    until(
        lambda: {name: (site.root / name).read_bytes() for name in names} == before,
        "and as they were",
    )
    assert site.finished(shell("exit 4", uid="NewUser1"))["exit"]["code"] == 4
    assert all(site.log().count(f"{name} was missing: it was written again") == 1 for name in names)

    def reasons() -> dict[str, str]:
        """Return the health reasons of the root. A machine under load has others."""
        said = json.loads(site.ask("GET", "/health").body)["reasons"]
        return {
            r["what"]: r["sentence"] for r in said if r["what"] in ("file:agents.json", "strangers")
        }

    assert reasons() == {}
    (site.root / "agents.json").write_text(
        json.dumps({**json.loads(before["agents.json"]), "agentsUrl": "ws://127.0.0.1:1/agent"})
    )
    folder = site.root / "agent" / str(site.agent_key("Stranger"))
    folder.mkdir()
    me = {
        "pid": os.getpid(),
        "startTicks": processes.start_ticks(os.getpid()),
        "bootId": processes.boot_id(),
    }
    (folder / "keeper.json").write_text(json.dumps({**me, "folder": "/elsewhere"}))

    until(lambda: len(reasons()) == 2, "both are told")
    assert "an address for agents" in reasons()["file:agents.json"]
    assert f"its keeper, pid {os.getpid()}, belongs to /elsewhere" in reasons()["strangers"]
    assert "belongs to /elsewhere" in ran(site.root, "doctor").stdout
    (site.root / "agents.json").unlink()
    until(
        lambda: (
            (site.root / "agents.json").exists()
            and (site.root / "agents.json").read_bytes() == before["agents.json"]
        ),
        "it is ours again",
    )
    until(lambda: list(reasons()) == ["strangers"], "and not told any more")
    assert site.finished(shell("exit 5", uid="Stranger"))["exit"]["code"] == 5, (
        "nobody waits for the keeper of another root"
    )
