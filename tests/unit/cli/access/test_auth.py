"""`jobscribe auth` stores a token for its owner alone and shows it nowhere; the other commands use it
when no root is named.
"""

import io
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.bundle.local_files import secrets
from jobscribe.client.api.errors import ClientError
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.sync_client import Client
from jobscribe.web.server.user_ids import UserIds

Fake = Any
Run = Any
TOKEN = "jst_Qm3vX81k_" + "c" * 43
USER = "remote01"


@pytest.fixture
def away(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run` without access to the root: another home, and no variable that names a root."""
    fake.api_tokens[TOKEN] = USER
    monkeypatch.delenv("JOBSCRIBE_ROOT")
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere/config"))
    return run


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def credentials(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere/config/jobscribe/credentials.json"


def log_in(away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Any:
    typed(monkeypatch, TOKEN + "\n")
    ended = away("auth", "login", fake.url)
    assert ended.code == 0, ended
    return ended


def test_after_a_login_commands_use_the_site(
    away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = log_in(away, fake, monkeypatch)
    assert USER in ended.out and "c" * 20 not in ended.out + ended.err
    path = credentials(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["credentials.json"]
    assert away("job", "submit", "--", "date").code == 0
    assert fake.submitted()[0]["uid"] == USER
    me = away("auth", "whoami", "--json").json()
    assert (me["site"], me["uid"], me["token"]["id"]) == (fake.url, USER, "Qm3vX81k")
    # named by option and by environment
    for options, name in ((["--site", fake.url.upper() + "/"], ""), ([], fake.url)):
        monkeypatch.setenv("JOBSCRIBE_SITE", name)
        assert away("job", "list", *options).code == 0
    assert away("auth", "logout").err == f"logged out of {fake.url}\n"
    assert json.loads(path.read_text())["sites"] == {}
    assert away("auth", "logout", fake.url).err == f"you were not logged in at {fake.url}\n"
    ended = away("job", "list", "--site", fake.url)
    assert ended.code == 125 and "auth login" in ended.err


def test_a_root_that_is_named_comes_first(
    away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(away, fake, monkeypatch)
    monkeypatch.setenv("JOBSCRIBE_ROOT", str(fake.root))
    assert away("job", "submit", "--", "date").code == 0
    assert fake.submitted()[0]["uid"] != USER
    ended = away("job", "list", "--site", fake.url, "--root", str(fake.root))
    assert ended.code == 2 and "--root" in ended.err


@pytest.mark.parametrize("words", [[], ["--with-token"]])
def test_a_site_without_a_page_for_logins_asks_for_a_token_at_a_terminal(
    away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def no_page(*args: object, **more: object) -> None:
        assert words == [], "not asked"
        raise ClientError("notFound", "this site has no page", "", False)

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(Client, "begin_device_login", no_page)
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: TOKEN)
    ended = away("auth", "login", fake.url, *words)
    assert ended.code == 0 and USER in ended.out, ended
    assert ("has no page" in ended.err) == (words == [])


@pytest.mark.parametrize("command", [["db", "check"], ["db", "story", "x"]])
def test_commands_that_read_a_root_say_where_to_run_them(
    away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    log_in(away, fake, monkeypatch)
    ended = away(*command)
    assert ended.code == 2 and "--root DIR" in ended.err and fake.url in ended.err
    assert away("doctor", "--site", fake.url).code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TOKEN[:-1], "55 characters"),
        ("", "no API token"),
        ("jst_Zz999999_" + "c" * 43, "secret is missing or wrong"),
        ("Vq3nB8xKp2Lw9Rt5Yc7Zm4Hd6Jf1Gs0A", "incomplete"),
    ],
)
def test_a_wrong_token_is_refused_and_not_stored(
    away: Run,
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    text: str,
    said: str,
) -> None:
    typed(monkeypatch, text + "\n")
    ended = away("auth", "login", fake.url)
    assert ended.code in (2, 125) and said in ended.err
    assert "c" * 20 not in ended.err and not credentials(tmp_path).exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x", "https://host"),
        ("http://user:pw@127.0.0.1", "no user"),
        ("http://example.org", "https"),
        ("http://127.0.0.1:99999", "https://host"),
    ],
)
def test_a_site_is_an_address_to_which_a_token_may_be_sent(
    away: Run, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    typed(monkeypatch, TOKEN + "\n")
    ended = away("auth", "login", url)
    assert ended.code == 2 and said in ended.err and "pw" not in ended.err


def test_a_file_that_others_may_read_is_refused(
    away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log_in(away, fake, monkeypatch)
    credentials(tmp_path).chmod(0o640)
    ended = away("job", "list")
    assert ended.code == 125 and "chmod 600" in ended.err
    credentials(tmp_path).chmod(0o600)
    credentials(tmp_path).write_text("{")
    ended = away("job", "list")
    assert ended.code == 125 and "damaged" in ended.err


def test_each_site_has_its_own_token(
    away: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log_in(away, fake, monkeypatch)
    other = fake.url.replace("127.0.0.1", "localhost")
    second = "jst_Second01_" + "d" * 43
    fake.api_tokens[second] = "remote02"
    typed(monkeypatch, second)
    assert away("auth", "login", other).code == 0
    assert away("auth", "whoami", "--json").json()["uid"] == "remote02"
    assert away("auth", "whoami", "--json", "--site", fake.url).json()["uid"] == USER
    away("auth", "logout")
    assert away("auth", "whoami", "--json").json()["uid"] == USER


def test_tokens_are_created_listed_and_revoked(run: Run, fake: Fake) -> None:
    made = run("auth", "token", "create", "my laptop", "--scope", "read", "--expires", "30d")
    assert made.code == 0 and made.out.startswith("jst_00000000_") and "sss" not in made.err
    path, body = fake.requests[-1]
    assert (path, body["scopes"], body["expiresSecs"]) == ("token-create", ["read"], 30 * 86400)
    for_other = run("auth", "token", "create", "x", "--for", "remote01", "--json").json()
    assert (for_other["uid"], for_other["schema"]) == ("remote01", "jobscribe.auth.token.create/1")
    listed = run("auth", "token", "list", "--json").json()["items"]
    assert [t["id"] for t in listed] == ["00000000"]
    assert "laptop" in run("auth", "token", "list").out
    assert "is revoked" in run("auth", "token", "revoke", "00000000", "--reason", "lost").err
    assert run("auth", "token", "revoke", "00000000").code == 125
    assert run("auth", "token", "create", "x", "--expires", "367d").code == 2
    assert run("auth", "token", "create", "x", "--scope", "everything").code == 2


def test_the_holder_of_the_secret_is_told_so(run: Run, fake: Fake) -> None:
    ended = run("auth", "whoami")
    assert ended.code == 0 and "the server secret" in ended.out


def test_the_audit_trail_is_read_to_its_end(run: Run, fake: Fake) -> None:
    assert run("audit").out.count("admin001 acted") == 2
    (one, two) = run("audit", "--json", "--since", "7d", "--actor", "admin001").lines()
    assert one == two == {"type": "act", "at": 1.0, "actor": "admin001", "subject": one["subject"]}
    assert fake.requests[-1][1] | {"after": 0} == {
        "after": 0,
        "limit": 1000,
        "sinceSecs": 7 * 86400.0,
        "actor": "admin001",
    }


def test_a_token_file_with_an_api_token_needs_no_user(run: Run, fake: Fake, tmp_path: Path) -> None:
    fake.api_tokens[TOKEN] = USER
    (tmp_path / "token").write_text(TOKEN + "\n")
    options = ["--url", fake.url, "--token-file", str(tmp_path / "token")]
    assert run("job", "submit", *options, "--", "date").code == 0
    assert fake.submitted()[0]["uid"] == USER


async def test_python_clients_find_their_user_by_the_token(fake: Fake) -> None:
    fake.api_tokens[TOKEN] = USER
    asked = []

    def token() -> str:
        asked.append(1)
        return TOKEN

    with Client(fake.url, token=token) as client:
        assert client.uid == USER and client.run(["date"]).jid.startswith(USER)
    async with AsyncClient.to(fake.url, TOKEN) as other:
        assert await other.uid() == USER
        made = await other.create_token("x", ["read"])
        assert [t["id"] for t in await other.tokens()] == ["Qm3vX81k", made["id"]]
        assert (await other.revoke_token(made["id"]))["id"] == made["id"]
        assert len([e async for e in other.audit()]) == 2
    assert asked
    from jobscribe.client.api.errors import ClientError

    with (
        Client(fake.url, fake.token) as operator,
        pytest.raises(ClientError, match="name the user"),
    ):
        _ = operator.uid


def test_a_token_that_was_replaced_is_looked_up_and_one_that_always_changes_is_given_up(
    fake: Fake,
) -> None:
    fake.api_tokens[TOKEN] = USER
    tokens = iter(["jst_Old00001_" + "c" * 43, TOKEN])
    with Client(fake.url, lambda: next(tokens), budget_secs=0.0) as client:
        assert client.uid == USER
    asked: list[str] = []

    def changing() -> str:
        asked.append("")
        return f"jst_Bad{len(asked):05d}_" + "c" * 43

    with Client(fake.url, changing, budget_secs=0.0) as client, pytest.raises(ClientError) as e:
        client.jobs()
    assert e.value.code == "unauthenticated" and len(asked) < 20


@pytest.mark.parametrize(
    "words", [["job", "status", "other001-sim00001-command"], ["--uid", "other001", "job", "list"]]
)
def test_the_owner_of_the_root_is_named_when_it_acts_for_another_user(
    run: Run, fake: Fake, words: list[str]
) -> None:
    run(*words)
    assert fake.actors[-1] == "EPRSqtUW"
    run("job", "list")
    assert fake.actors[-1] is None


def test_no_secret_is_sent_over_plain_http_to_another_machine(run: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdefghijklm")
    options = ["--url", "http://192.0.2.1:1", "--token-file", str(tmp_path / "token")]
    ended = run(*options, "--uid", "EPRSqtUW", "job", "list")
    assert ended.code == 2 and "use https" in ended.err


def test_a_name_has_its_uid_before_the_first_sign_in(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "uids.json"
    named = ("--set", f"server.uid_file={file}")
    ended = run("auth", "uid", "ann@example.org", *named, "--json")
    (ann,) = ended.json()["items"]
    assert ann == {"name": "ann@example.org", "uid": UserIds(file).of("ann@example.org")}
    bob = UserIds(file).of("bob")
    listed = run("auth", "uid", *named)
    assert listed.out.split() == ["NAME", "UID", "ann@example.org", ann["uid"], "bob", bob]
    before = file.read_bytes()
    refused = run("auth", "uid", "x", *named[:1], "server.port=1")
    assert refused.code == 125 and "server.uid_file is not set" in refused.err
    assert run("auth", "uid", "", *named).code == 125
    # a file of another unix user would no longer be that user's
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    refused = run("auth", "uid", "carl", *named)
    assert refused.code == 125 and "run this command as that user" in refused.err
    assert run("auth", "uid", "bob", *named).out.split()[-1] == bob
    assert file.read_bytes() == before


def test_a_rotation_without_a_supervisor_and_those_that_are_refused(
    run: Any, tmp_path: Path
) -> None:
    """The commands never show a value, and a failure changes nothing."""
    root = tmp_path / "stopped"
    (root / "secret").mkdir(parents=True)
    file = root / "secret" / "server"
    file.write_text("0123456789abcdefghijklm")
    file.chmod(0o600)
    ended = run("--root", str(root), "secret", "rotate", "server", "--overlap", "2h")
    new = file.read_text().strip()
    assert ended.code == 0 and "no supervisor runs" in ended.out and len(new) == 43
    listed = run("--root", str(root), "--json", "secret", "list")
    server, metrics = listed.json()["items"]
    assert server["earlier"] == 1 and server["earlierUntil"] > time.time() + 7000
    assert "first start" in metrics["error"] and "--config FILE" in metrics["error"]
    table = run("--root", str(root), "secret", "list")
    assert table.code == 0
    named = "supervisor.server_secret_file=/srv/none"
    ended_early = run("--root", str(root), "--json", "secret", "list", "--set", named)
    missing = ended_early.json()["items"][0]["error"]
    assert missing == "supervisor.server_secret_file names a file that does not exist"
    for words, part in (
        (("server", "--overlap", "10s"), "at least 60 s"),
        (("metrics",), "at its first start"),
        (("server", "--overlap", "31d"), "at most 30 d 0 h"),
        ((), "NAME"),
    ):
        refused = run("--root", str(root), "secret", "rotate", *words)
        assert refused.code != 0 and part in refused.err, refused
    file.chmod(0o640)
    refused = run("--root", str(root), "secret", "rotate", "server")
    assert refused.code != 0 and "accessible to others" in refused.err
    for said in (ended, listed, table, refused):
        assert new not in said.out + said.err and "0123456789abcdef" not in said.out + said.err
    assert file.read_text().strip() == new
    # a bundle masks the earlier one, too
    assert {new, "0123456789abcdefghijklm"} <= set(secrets(str(root), ()))
