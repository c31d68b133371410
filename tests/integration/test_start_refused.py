"""A supervisor that must not start reports why with its own exit code and no traceback, and changes
nothing.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from consistency_check import check_books
from supervisor_process import SupervisorProcess, fresh_nap, naps, spec, until

from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.process import root_directory as root_module
from jobscribe.supervisor.process.root_directory import RootDirectory

Make = Callable[..., SupervisorProcess]


def fails(site: SupervisorProcess, *words: str, more: tuple[str, ...] = ()) -> str:
    """Check that the start fails: stdout is empty, the exit code means failure, and no process is
    left. Return stderr.
    """
    (site.place / "up.log").write_text("")
    process = site.fork_or_launch(*more)
    try:
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    said = site.log()
    assert out == b""
    assert process.returncode not in (0, None) and process.returncode > 0, process.returncode
    assert "Traceback" not in said, said
    for word in words:
        assert word in said, said
    return said


def listing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return modification time, size and content of every file below."""
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_size, p.read_bytes())
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.is_symlink()
    }


def test_of_two_supervisors_on_one_root_the_second_leaves_without_a_trace(
    site: SupervisorProcess,
) -> None:
    nap = fresh_nap()
    run = spec(["sleep", nap], graceSecs=0)
    site.submit(run)
    until(lambda: naps(nap), "it sleeps")
    site.running(run)
    second = SupervisorProcess()
    try:
        second.root.symlink_to(site.root)
        until(lambda: _quiet(site.root), "nothing is written any more")
        before = listing(site.root)
        said = fails(second, "in use by another supervisor", str(site.pid))
        assert "stop the other supervisor" in said
        assert listing(site.root) == before
    finally:
        second.root.unlink()
        assert second.end() == {}
    assert site.status(run)["state"] == "running"
    site.cancel(run)
    site.wait(run)


def _quiet(folder: Path) -> bool:
    before = listing(folder)
    time.sleep(1.2)
    return listing(folder) == before


@pytest.mark.soak("tests/chaos/disk/test_two_supervisors.py")
def test_many_that_race_for_one_root_leave_one(make_site: Make) -> None:
    site = make_site()
    racers = [site.launch() for _ in range(6)]
    try:
        until(lambda: sum(r.poll() is not None for r in racers) == 5, "five gave up")
        (winner,) = [r for r in racers if r.poll() is None]
        assert winner.stdout is not None and winner.stdout.readline().startswith(b"jobscribe ready")
        site.read_address()
        assert site.finished(spec(["true"]))["state"] == "completed"
        winner.send_signal(signal.SIGTERM)
        assert winner.wait(20) == 0
        assert len({r.returncode for r in racers if r is not winner}) == 1
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
            if racer.stdout is not None:
                racer.stdout.close()


def test_a_port_that_is_taken_is_named(make_site: Make) -> None:
    site = make_site()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        fails(site, f"port {port}", "in use", more=("--port", port))
    site.start()
    assert site.finished(spec(["true"]))["state"] == "completed"
    check_books(site)


def test_a_root_on_a_network_file_system_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount table reports a network file system. The users' tree may lie there, the root may
    not.
    """
    asked: list[str] = []

    def network(path: os.PathLike[str]) -> str:
        asked.append(str(path))
        return "nfs4"

    monkeypatch.setattr(root_module, "network_file_system", network)
    with pytest.raises(Refusal) as refused:
        RootDirectory(str(tmp_path / "far" / "root"))
    assert (refused.value.code, asked) == ("networkFileSystem", [str(tmp_path)])
    assert "nfs4" in refused.value.sentence
    assert list(tmp_path.iterdir()) == []


def test_the_users_tree_may_lie_elsewhere(make_site: Make) -> None:
    elsewhere = make_site()
    site = make_site(f"user_root={elsewhere.place}/tree")
    site.start()
    run = spec(["pwd"])
    assert site.finished(run)["runDir"].startswith(f"{elsewhere.place}/tree/")
    assert site.output(run).body.decode().strip() == site.status(run)["runDir"]
    assert not (site.root / "user").exists()
    check_books(site)


@pytest.mark.parametrize(
    "how", ["flipped", "cut", "emptied", "missing", "no database", "witness missing"]
)
def test_a_damaged_store_stops_the_start_and_says_what_to_do(make_site: Make, how: str) -> None:
    site = make_site()
    site.start()
    for _ in range(3):
        site.finished(spec(["true"]))
    site.stop()
    file = site.root / "db" / "events.sqlite"
    content = bytearray(file.read_bytes())
    if how == "flipped":
        at = content.rindex(b'"RunEnded"')
        content[at + 3] ^= 1
        file.write_bytes(content)
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "emptied":
        file.write_bytes(b"")
    elif how == "no database":
        file.write_bytes(b"this is no database, and never was one" * 200)
    elif how == "missing":
        file.unlink()
    else:
        (site.root / "db" / "head").unlink()
    before = _log_files(site)
    for _ in range(2):  # the first refusal must not let the second start succeed
        fails(site, "jobscribe db check", str(site.root))
    assert _log_files(site) == before


def _log_files(site: SupervisorProcess) -> dict[str, bytes]:
    """Return the files that hold the log and its durable head. Empty files and SQLite's files for
    readers are left out.
    """
    found = listing(site.root / "db")
    return {
        name: content
        for name, (_, _, content) in found.items()
        if name in ("events.sqlite", "head") and content
    }


# ---- settings


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("n7Qw2LrZpX4vTy9KsB3mFd6HgJ8cVu1A\n")
    file.chmod(0o600)
    return file


def test_without_a_secret_there_is_no_supervisor(make_site: Make) -> None:
    fails(make_site(command="supervisor"), "no server secret", "server_secret_file")


@pytest.mark.parametrize(
    ("mode", "content", "word"),
    [
        (0o644, None, "chmod 600"),
        (0o600, "changeme" * 4, "guessed|example"),
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_shown(
    make_site: Make, secret: Path, mode: int, content: str | None, word: str
) -> None:
    """tests/unit/service/site/test_startup_checks.py has all modes and contents."""
    if content is not None:
        secret.write_text(content)
    secret.chmod(mode)
    said = fails(
        make_site(f"supervisor.server_secret_file={secret}", command="supervisor"), str(secret)
    )
    assert any(w in said for w in word.split("|"))
    assert secret.read_text().strip() not in said or not content


def test_with_a_secret_it_starts_and_takes_that_one_only(make_site: Make, secret: Path) -> None:
    site = make_site(f"supervisor.server_secret_file={secret}", command="supervisor")
    site.start()
    assert site.token == secret.read_text().strip()
    assert site.finished(spec(["true"]))["state"] == "completed"
    assert (
        site.ask("POST", "/api/job-list", b"{}", headers={"Authorization": "Bearer x"}).code == 401
    )
    check_books(site)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("supervisor.ip=0.0.0.0", ("supervisor.ip", "loopback")),
        ("supervisor.prot=1", ("supervisor.prot", "supervisor.port")),
        ("slots.local_sequential=0", ("slots.local_sequential",)),
    ],
)
def test_an_unsafe_or_unknown_setting_is_refused_by_name(
    make_site: Make, setting: str, words: tuple[str, ...]
) -> None:
    """tests/unit/service has all settings."""
    site = make_site(setting)
    fails(site, *words)
    assert not (site.root / "db").exists()


def test_an_unknown_variable_is_refused_and_the_nearest_one_named(make_site: Make) -> None:
    fails(
        make_site(env={"JOBSCRIBE_SUPERVISOR_PROT": "1"}),
        "JOBSCRIBE_SUPERVISOR_PROT",
        "JOBSCRIBE_SUPERVISOR_PORT",
    )


def test_what_was_written_is_for_its_owner_only(site: SupervisorProcess) -> None:
    run = spec(["touch", "mine"])
    site.finished(run)
    for path in [site.root, *site.root.rglob("*")]:
        if path.is_symlink():
            continue
        if path.is_relative_to(site.root / "user"):
            continue  # the login profile sets the umask
        # the ledger entry of a run that was acknowledged meanwhile is missing
        with contextlib.suppress(FileNotFoundError):
            assert path.stat().st_mode & 0o077 == 0, path
