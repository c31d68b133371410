"""The file of notification targets is read, or its errors are reported with their lines before
anything starts.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.loader import load as load_settings
from jobscribe.service.site.notification_file import Target, headers_of, load, read, secret_of
from jobscribe.service.site.startup_checks import check, problems

Write = Callable[[str], str]
SECRET = "4f1d0c6e2b7a98350fdeca1b"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "notify.yml", mode: int = 0o600) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write


def told(path: str) -> list[tuple[str, str]]:
    targets, found = read(path)
    assert targets is None and found
    return [(f.code, f.sentence.replace(path, "F")) for f in found]


def one(path: str, code: str, *words: str) -> None:
    found = told(path)
    assert len(found) == 1 and found[0][0] == code, found
    assert [w for w in words if w not in found[0][1]] == [], found


def target(*lines: str) -> str:
    return "targets:\n  - name: a\n" + "".join(f"    {line}\n" for line in lines)


def test_the_least_is_what_the_defaults_say(write: Write) -> None:
    assert load(write(target("url: https://x.example.org/hook"))) == (
        Target(name="a", url="https://x.example.org/hook"),
    )


def test_everything_that_can_be_said_is_read(write: Write, tmp_path: Path) -> None:
    write(SECRET, "secret")
    write("# mine\nAuthorization: Bearer abcdefgh\nX-Team: compute\n", "headers")
    hook, command = load(
        write(
            target(
                "url: http://far.example.org:8080/x?y=z",
                "on: [error, attemptEnded, signInNeeded]",
                "users: [abcd1234]",
                "simulationTypes: [crack]",
                "drivers: [local, sbatch]",
                "secretFile: secret",
                "headersFile: headers",
                "allowHttp: true",
                "timeoutSecs: 1:30",
                "giveUpSecs: 60",
                "maxParallel: 1",
            )
            + "  - {name: b, command: [/bin/true, 1, two]}\n"
        )
    )
    assert hook == Target(
        name="a",
        url="http://far.example.org:8080/x?y=z",
        on=("error", "attemptEnded", "signInNeeded"),
        users=("abcd1234",),
        simulation_types=("crack",),
        drivers=("local", "sbatch"),
        secret_file=str(tmp_path / "secret"),
        headers_file=str(tmp_path / "headers"),
        allow_http=True,
        timeout_secs=90.0,
        give_up_secs=60.0,
        max_parallel=1,
    )
    assert (hook.shown, secret_of(hook)) == ("http://far.example.org:8080", SECRET)
    assert headers_of(hook) == {"Authorization": "Bearer abcdefgh", "X-Team": "compute"}
    assert (command.command, command.shown, command.kind) == (
        ("/bin/true", "1", "two"),
        "/bin/true",
        "command",
    )


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ((), "badConfig", ("F:2", "either `url` or `command`")),
        (
            ("url: https://x.example.org", "command: [/bin/true]"),
            "badConfig",
            ("either `url` or `command`",),
        ),
        (("url: ftp://x.example.org",), "badConfig", ("F:3", "https://host/path")),
        (("url: https://x.example.org:port/",), "badConfig", ("F:3",)),
        (("url: https://me:word@x.example.org/",), "unsafe", ("F:3", "headersFile")),
        (("url: http://x.example.org/",), "unsafe", ("F:3", "allowHttp")),
        (("url: http://127.0.0.1/", "on: [finished]"), "badConfig", ("F:4", "completed", "ended")),
        (("url: http://127.0.0.1/", "on: [ended, ended]"), "badConfig", ("F:4", "each once")),
        (("url: http://127.0.0.1/", "timeoutSecs: 0"), "badConfig", ("F:4", "more than 0")),
        (("url: http://127.0.0.1/", "maxParallel: 33"), "badConfig", ("F:4", "1 to 32")),
        (
            ("url: http://127.0.0.1/", "user: abcd1234"),
            "badConfig",
            ("F:4", "right: `users`"),
        ),
        (("command: [true]",), "badConfig", ("F:3", "absolute path")),
        (("command: [/no/such/program]",), "badConfig", ("F:3", "No such file")),
        (("command: [/etc/passwd]",), "badConfig", ("F:3", "chmod +x")),
        (
            ("command: [/bin/true]", "secretFile: secret"),
            "badConfig",
            ("F:4", "it is only for targets with url"),
        ),
        (
            ("url: http://127.0.0.1/", "secretFile: none"),
            "badConfig",
            ("F:4", "secretFile", "none cannot be read"),
        ),
        (("url: http://127.0.0.1/", "secretFile: open"), "unsafe", ("chmod 600",)),
        (("url: http://127.0.0.1/", "secretFile: weak"), "unsafe", ("openssl rand",)),
        (
            ("url: http://127.0.0.1/", "headersFile: ours"),
            "badConfig",
            ("ours:1", "Content-Type", "remove this line"),
        ),
        (
            ("url: http://127.0.0.1/", "headersFile: bad"),
            "badConfig",
            ("bad:2", "Authorization: Bearer"),
        ),
        (("url: https://127.0.0.1/", "caFile: secret"), "badConfig", ("F:4", "certificates")),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    write: Write, lines: tuple[str, ...], code: str, words: tuple[str, ...]
) -> None:
    write(SECRET, "secret")
    write(SECRET, "open", 0o644)
    write("secretsecretsecretsecret", "weak")
    write("Content-Type: text/plain\n", "ours")
    write("X-A: b\nmySecretValue\n", "bad")
    path = write(target(*lines))
    one(path, code, *words)
    assert "mySecretValue" not in told(path)[0][1]


def test_two_of_one_name_are_two_of_a_kind(write: Write) -> None:
    one(
        write("targets: [{name: a, url: 'https://x.org'}, {name: a, url: 'https://y.org'}]\n"),
        "badConfig",
        "F:1: targets[1].name: it is also that of targets[0]",
    )


def test_all_mistakes_are_told_at_once(write: Write) -> None:
    path = write(target("url: nothing", "on: []") + "  - {name: B, command: []}\n  - 7\n")
    assert len(told(path)) == 5
    with pytest.raises(Refusal, match="has 5 problems"):
        load(path)


def test_who_can_write_the_file_could_have_commands_executed(write: Write) -> None:
    one(write(target("url: https://x.example.org"), mode=0o620), "unsafe", "chmod go-w")


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root can give files away; run the tests as root to see this refused",
)
def test_nor_may_it_be_somebody_else_s(write: Write) -> None:
    path = write(target("url: https://x.example.org"))
    os.chown(path, 4242, -1)
    one(path, "unsafe", "belongs to another user")


def test_a_supervisor_does_not_start_with_a_wrong_one(write: Write) -> None:
    path = write(target("url: nothing", "on: []"))
    settings = load_settings({"notify.file": path, "supervisor.development": True}, env={})
    assert len(list(problems(settings))) == 2
    with pytest.raises(Refusal, match="has 2 problems"):
        check(settings)


def test_a_command_that_is_told_may_ask_us_about_it() -> None:
    names = ("ID", "TARGET", "EVENT", "STATE", "JID", "SERIAL", "POSITION")
    load_settings({}, env={f"JOBSCRIBE_NOTIFY_{name}": "x" for name in names})
    with pytest.raises(Refusal, match="JOBSCRIBE_NOTIFY_OTHER"):
        load_settings({}, env={"JOBSCRIBE_NOTIFY_OTHER": "x"})


def test_the_example_is_a_right_one_but_for_what_is_not_here() -> None:
    found = read(str(Path(__file__).parents[4] / "etc" / "notifications.example.yml"))[1]
    assert all(
        "No such file" in f.sentence or "can be changed by others" in f.sentence for f in found
    ), found
