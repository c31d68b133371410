"""Process boundaries of the command line: crashes, closed pipes, and the arguments that start a
supervisor.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

Fake = Any
Run = Any
Started = Any


def test_a_crash_is_one_sentence_and_a_private_file_without_the_secret(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobscribe.client.sync_client import Client

    def broken(self: Client, **_: object) -> None:
        raise ZeroDivisionError(f"cannot divide with {self.token}")

    monkeypatch.setattr(Client, "jobs", broken)
    ended = run("job", "list")
    path = fake.root / "log" / "cli-crash.log"
    assert (ended.code, ended.out) == (125, "")
    assert str(path) in ended.err
    assert "Traceback" not in ended.err
    text = path.read_text()
    assert "ZeroDivisionError" in text
    assert "in broken" in text
    assert fake.token not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_reader_that_closes_early_is_no_error(started: Started, fake: Fake) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = started("job", "list", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


def test_agent_and_keeper_only_forward(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []

    def execv(path: str, args: list[str]) -> None:
        became.append(args)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    run("agent", "--folder", "x", "--help")
    run("keeper", "-v", "--", "y")
    assert became == [
        [sys.executable, "-P", "-m", "jobscribe.agent", "--folder", "x", "--help"],
        [sys.executable, "-P", "-m", "jobscribe.agent.keeper", "-v", "--", "y"],
    ]


STAND_IN = """
import os, sys, types
app = types.ModuleType("jobscribe.supervisor.app")
def main(settings, announce, *, notifier):
    print("a log line", flush=True)
    os.system("echo a line of a child")
    announce({"url": "http://127.0.0.1:%d" % settings.supervisor.port, "root": settings.root, "pid": os.getpid()})
    print(settings.supervisor.development, settings.limits.grace_secs)
app.main = main
sys.modules["jobscribe.supervisor.app"] = app
from jobscribe.cli.main import main as command_line
command_line()
"""


def up(*args: str, tmp_path: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    return subprocess.run(
        [sys.executable, "-c", STAND_IN, *args, "--root", str(tmp_path)],
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_up_prints_exactly_one_line_when_it_is_ready(tmp_path: Path) -> None:
    done = up(
        "up",
        "--no-web",
        "--port",
        "8123",
        "--set",
        "limits.grace_secs=9",
        tmp_path=tmp_path,
        JOBSCRIBE_LIMITS_GRACE_SECS="5",
    )
    assert done.returncode == 0
    assert done.stdout == f"jobscribe ready at http://127.0.0.1:8123 root={tmp_path}\n"
    assert done.stderr.splitlines() == ["a log line", "a line of a child", "True 9.0"]


def test_a_service_is_not_in_development_mode(tmp_path: Path) -> None:
    assert up("supervisor", tmp_path=tmp_path).stderr.splitlines()[-1] == "False 3.0"


@pytest.mark.parametrize("command", ["supervisor", "server"])
def test_a_service_says_by_its_exit_code_that_starting_it_again_does_not_help(
    command: str, tmp_path: Path
) -> None:
    done = up(command, "--config", "/nowhere.toml", tmp_path=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "/nowhere.toml" in done.stderr and "Traceback" not in done.stderr


def test_a_service_that_breaks_leaves_its_trace_in_its_log_and_in_its_root(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    config = tmp_path / "jobscribe.toml"
    config.write_text(f'root = "{tmp_path}/r"\n')
    broken = STAND_IN.replace(
        '    print("a log line", flush=True)\n', '    raise KeyError("broken")\n'
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    done = subprocess.run(
        [sys.executable, "-c", broken, "supervisor", "--config", str(config)],
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 125
    assert done.stderr.count("KeyError: 'broken'") == 1
    assert "KeyError: 'broken'" in (tmp_path / "r" / "log" / "cli-crash.log").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "limits.grace_sec=9"], "grace_secs"),
        (["--set", "limits.grace_secs=soon"], "seconds"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_starts(
    tmp_path: Path, args: list[str], said: str
) -> None:
    done = up("up", *args, tmp_path=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_variable_names_the_nearest_right_one(tmp_path: Path) -> None:
    done = up("up", tmp_path=tmp_path, JOBSCRIBE_LIMIT_GRACE_SECS="1")
    assert done.returncode == 78
    assert "JOBSCRIBE_LIMITS_GRACE_SECS" in done.stderr


def test_config_shows_values_with_their_origins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSCRIBE_LIMITS_GRACE_SECS", "5")
    rows = {
        i["key"]: i
        for i in run("config", "show", "--json", "--set", "supervisor.port=0").json()["items"]
    }
    assert (rows["limits.grace_secs"]["value"], rows["limits.grace_secs"]["origin"]) == (
        "5.0",
        "environment JOBSCRIBE_LIMITS_GRACE_SECS",
    )
    assert rows["supervisor.port"]["origin"].startswith("option")
    assert rows["log.format"]["origin"] == "default"
    assert "limits.grace_secs" in run("config", "show").out


def test_config_check_finds_what_keeps_a_supervisor_from_starting(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = run("config", "check")
    assert (bad.code, "server_secret_file" in bad.out) == (1, True)
    secret = tmp_path / "server-key"
    secret.write_text("9f8e7d6c5b4a39281706f5e4d3c2b1a0")
    secret.chmod(0o600)
    good = run("config", "check", "--json", "--set", f"supervisor.server_secret_file={secret}")
    assert (good.code, good.json()["ok"]) == (0, True)
    monkeypatch.setenv("JOBSCRIBE_LIMITS_GRACE_SECS", "soon")
    assert run("config", "check").code == 1
    monkeypatch.delenv("JOBSCRIBE_LIMITS_GRACE_SECS")
    # with a way to sign in, it checks the front end, too
    sets = [f"supervisor.server_secret_file={secret}", "server.ip=0.0.0.0"]
    signs_in = ["server.user_header=X-Remote-User", "limits.trusted_peers=127.0.0.1"]
    for more, code, part in (
        ([], 0, "a supervisor can start"),
        (signs_in, 1, "unsafe: server.ip is 0.0.0.0"),
        ([*signs_in, "server.ip=127.0.0.1"], 0, "a supervisor and a front end can start"),
    ):
        words = [word for name in [*sets, *more] for word in ("--set", name)]
        checked = run("config", "check", *words)
        assert checked.code == code and part in checked.out + checked.err
