"""The environment of jobs: the login profile's result in a clean environment. A bad profile affects
only its own user.
"""

import asyncio
import json
import os
import time
from pathlib import Path

import process_search
import psutil
import pytest

from jobscribe.agent.host import login_environment
from jobscribe.agent.host.login_environment import Account, LoginEnvironment, run_profile

from ..conftest import until

pytestmark = pytest.mark.process


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def account(home: Path) -> Account:
    return Account(os.getuid(), "somebody", str(home))


def _profile(home: Path, text: str) -> None:
    (home / ".bash_profile").write_text(text)
    (home / ".profile").write_text(text)


def _finder(tmp_path: Path, account: Account, **more: float) -> LoginEnvironment:
    return LoginEnvironment(tmp_path, account, **more)


def test_the_profile_is_run_in_a_clean_environment(
    home: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBSCRIBE_SERVER_SECRET", "s3cret")
    _profile(
        home,
        "export MODULES='a b'\nexport PATH=/opt/x:$PATH\nLOCAL=1\necho a banner\necho noise >&2\numask 027\n",
    )
    got = run_profile(account)
    assert got.sentence is None and got.umask == "0027"
    assert got.env["MODULES"] == "a b" and got.env["PATH"].startswith("/opt/x:/")
    assert got.env["HOME"] == str(home) and got.env["USER"] == got.env["LOGNAME"] == "somebody"
    assert "LOCAL" not in got.env and "s3cret" not in str(got.env)
    assert not set(got.env) & {
        "_",
        "SHLVL",
        "PWD",
        "OLDPWD",
        "TERM",
        "PYTHONPATH",
        "PYTEST_CURRENT_TEST",
    }


def test_values_may_hold_anything(home: Path, account: Account) -> None:
    _profile(
        home, "export A=$'two\\nlines = more'\nexport B=$'\\xff'\nf() { echo hi; }\nexport -f f\n"
    )
    got = run_profile(account).env
    assert got["A"] == "two\nlines = more" and got["B"] == "\udcff"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 3\n", "ended the shell"),
        ("exec true\n", "ended the shell"),
        ("kill -9 $$\n", "ended the shell"),
        ("sleep 60\n", "did not end within"),
        (
            "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done\n",
            "did not end within",
        ),
        ("exec >&-\nsleep 60\n", "did not end within"),
    ],
)
def test_a_profile_that_hangs_or_fails_leaves_the_default_and_a_sentence(
    home: Path, account: Account, text: str, said: str
) -> None:
    _profile(home, f"export A=1\n{text}")
    begin = time.monotonic()
    got = run_profile(account, timeout_secs=1.0)
    assert got.sentence is not None and said in got.sentence
    assert got.env == account.clean()
    assert time.monotonic() - begin < 10


def test_an_error_in_a_profile_is_like_at_a_login(home: Path, account: Account) -> None:
    _profile(home, "export A=1\nno-such-program\nfalse\nexport B=2\n")
    got = run_profile(account)
    assert (got.env["A"], got.env["B"], got.sentence) == ("1", "2", None)


def test_what_a_profile_leaves_in_the_background_neither_delays_nor_survives(
    home: Path, account: Account
) -> None:
    nap = f"86400.{os.getpid()}77"
    _profile(home, f"sleep {nap} &\nexport A=1\n")
    begin = time.monotonic()
    assert run_profile(account).env["A"] == "1"
    assert time.monotonic() - begin < 5

    until(lambda: not process_search.pids_with(f"sleep\0{nap}\0"))


@pytest.mark.parametrize("ends", ["hangs", "leaves it in the background"])
def test_who_is_asked_to_end_may_remove_its_lock(home: Path, account: Account, ends: str) -> None:
    holder = f"trap 'rm {home}/lock' EXIT; touch {home}/lock; while :; do sleep 0.05; done"
    _profile(
        home,
        f"{{ {holder}; }} >/dev/null {'&' if ends != 'hangs' else ''}\nwhile [ ! -e {home}/lock ]; do sleep 0.01; done\n",
    )
    said = run_profile(account, timeout_secs=1.0).sentence
    assert (said is not None) == (ends == "hangs")
    assert not (home / "lock").exists()


def test_who_does_not_end_when_asked_is_killed(home: Path, account: Account) -> None:
    _profile(home, f"trap '' TERM\necho $$ >{home}/pid\nwhile :; do sleep 0.05; done\n")
    began = time.monotonic()
    assert "did not end within" in str(run_profile(account, timeout_secs=1.0).sentence)
    assert time.monotonic() - began < 10 and not psutil.pid_exists(int((home / "pid").read_text()))


def test_it_is_in_our_session_and_in_a_group_of_its_own(home: Path, account: Account) -> None:
    """The session lets a keeper recognize its agent's processes. The group lets the agent end the
    shell and its children.
    """
    _profile(home, f"read -r stat </proc/self/stat\nset -- $stat\necho $5 $6 $$ >{home}/said\n")
    assert run_profile(account).sentence is None
    group, session, pid = (home / "said").read_text().split()
    assert (int(session), group) == (os.getsid(0), pid)


async def test_none_is_run_where_none_is_wanted(
    home: Path, account: Account, tmp_path: Path
) -> None:
    _profile(home, f"touch {home}/run\nexport A=1\n")
    finder = _finder(tmp_path, account, timeout_secs=0.0)
    await finder.load()
    assert (finder.known, finder.umask, finder.sentence) == (account.clean(), "0077", None)
    assert not (home / "run").exists() and not (tmp_path / "login-environment.json").exists()


async def test_it_is_found_out_once_however_many_ask(
    home: Path, account: Account, tmp_path: Path
) -> None:
    _profile(home, f"echo x >>{home}/runs\nexport A=1\n")
    finder = _finder(tmp_path, account)
    assert finder.known is None
    await asyncio.gather(*(finder.load() for _ in range(5)))
    assert finder.known is not None and finder.known["A"] == "1" and finder.sentence is None
    assert (home / "runs").read_text() == "x\n"


async def test_the_cache_is_private_and_used_until_a_file_changes(
    home: Path, account: Account, tmp_path: Path
) -> None:
    _profile(home, f"echo x >>{home}/runs\nexport A=1\n")
    for _ in range(3):
        await _finder(tmp_path, account).load()
    assert (home / "runs").read_text() == "x\n"
    cache = tmp_path / "login-environment.json"
    assert cache.stat().st_mode & 0o777 == 0o600
    _profile(home, f"echo x >>{home}/runs\nexport A=22\n")
    finder = _finder(tmp_path, account)
    await finder.load()
    assert (
        finder.known is not None
        and finder.known["A"] == "22"
        and (home / "runs").read_text() == "x\nx\n"
    )
    (home / ".bash_login").write_text("")
    await _finder(tmp_path, account).load()
    assert (home / "runs").read_text() == "x\nx\nx\n"


@pytest.mark.parametrize("spoil", ["mode", "age", "noise", "other account"])
async def test_a_cache_that_cannot_be_trusted_is_not_used(
    home: Path, account: Account, tmp_path: Path, spoil: str
) -> None:
    _profile(home, "export A=1\n")
    await _finder(tmp_path, account).load()
    cache = tmp_path / "login-environment.json"
    said = json.loads(cache.read_text())
    said["env"]["A"] = "from the cache"
    said["at"] -= 1e6 if spoil == "age" else 0
    cache.write_text("{" if spoil == "noise" else json.dumps(said))
    cache.chmod(0o644 if spoil == "mode" else 0o600)
    other = account._replace(name="another") if spoil == "other account" else account
    finder = _finder(tmp_path, other)
    await finder.load()
    assert finder.known is not None and finder.known["A"] == "1"


async def test_the_same_cache_untouched_is_used(
    home: Path, account: Account, tmp_path: Path
) -> None:
    """The counterpart of the test above, which would also pass if the cache were never used."""
    _profile(home, "export A=1\n")
    await _finder(tmp_path, account).load()
    cache = tmp_path / "login-environment.json"
    said = json.loads(cache.read_text())
    said["env"]["A"] = "from the cache"
    cache.write_text(json.dumps(said))
    finder = _finder(tmp_path, account)
    await finder.load()
    assert finder.known is not None and finder.known["A"] == "from the cache"


async def test_a_profile_that_hangs_is_asked_once_and_then_remembered(
    home: Path, account: Account, tmp_path: Path
) -> None:
    _profile(home, f"echo x >>{home}/runs\nsleep 60\n")
    for _ in range(2):
        finder = _finder(tmp_path, account, timeout_secs=0.5)
        await finder.load()
        assert finder.known == account.clean() and finder.sentence is not None
    assert (home / "runs").read_text() == "x\n"


async def test_a_cache_that_cannot_be_written_is_done_without(
    home: Path, account: Account, tmp_path: Path
) -> None:
    _profile(home, "export A=1\n")
    finder = _finder(tmp_path / "missing", account)
    await finder.load()
    assert finder.known is not None and finder.known["A"] == "1"


def test_without_bash_the_login_shell_is_sh(
    home: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_environment, "shell_path", lambda: "/bin/sh")
    _profile(home, "A=1; export A\n")
    got = run_profile(account)
    assert (got.env["A"], got.env["SHELL"], got.sentence) == ("1", "/bin/sh", None)
