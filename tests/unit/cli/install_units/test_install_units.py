"""`install-units` adapts the shipped units to this installation and never overwrites a user's
edits.
"""

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.install_units import command, unit_text
from jobscribe.cli.install_units.unit_text import (
    ROUTER,
    SERVER,
    SHARD,
    SUPERVISOR,
    Installation,
    marked,
    unit,
    untouched,
)

SHIPPED = Path(__file__).resolve().parents[4] / "etc" / "systemd"
USUAL = Installation((unit_text.PROGRAM,), unit_text.ACCOUNT, unit_text.CONFIG, unit_text.STATE)
Run = Any


def shipped(name: str) -> str:
    return (SHIPPED / name).read_text(encoding="utf-8")


def read(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


@pytest.mark.parametrize("name", [SUPERVISOR, SERVER, SHARD, ROUTER])
def test_the_usual_installation_gets_what_ships(name: str) -> None:
    assert unit(shipped(name), USUAL) == shipped(name)


@pytest.mark.parametrize("name", [SUPERVISOR, SERVER, SHARD, ROUTER])
def test_another_installation_gets_its_program_account_configuration_and_root(name: str) -> None:
    i = Installation(
        ("/srv/my env/bin/python", "-m", "jobscribe.cli"), "runner", "/srv/50%/j.toml", "/srv/state"
    )
    made = read(unit(shipped(name), i))["Service"]
    verb = {SUPERVISOR: "supervisor", SHARD: "supervisor", ROUTER: "router"}.get(name, "server")
    shard = " --shard %i" if name == SHARD else ""
    assert (
        made["ExecStart"]
        == f'"/srv/my env/bin/python" -m jobscribe.cli {verb} --config /srv/50%%/j.toml{shard}'
    )
    assert made["User"] == "runner" and "StateDirectory" not in made
    usual = read(shipped(name))["Service"]
    assert made.get("ReadWritePaths") == ("/srv/state" if name in (SERVER, ROUTER) else None)
    same = set(usual) - {"ExecStart", "User", "StateDirectory", "StateDirectoryMode"}
    assert {k: made[k] for k in same} == {k: usual[k] for k in same}


@pytest.mark.parametrize("name", [SUPERVISOR, SERVER])
def test_ones_own_systemd_is_asked_for_nothing_that_only_process_1_can_do(name: str) -> None:
    made = read(unit(shipped(name), Installation(("/p",), None, None, "/home/joe/.jobscribe")))
    service = made["Service"]
    assert not {
        "User",
        "StateDirectory",
        "CapabilityBoundingSet",
        "ProtectSystem",
        "PrivateTmp",
        "PrivateDevices",
    } & set(service)
    assert (
        service["ExecStart"].startswith("/p --root /home/joe/.jobscribe s")
        and made["Install"]["WantedBy"] == "default.target"
    )
    assert made["Unit"].get("After") == (
        None if name == SUPERVISOR else "jobscribe-supervisor.service"
    )
    assert (service["Type"], service["Restart"]) == ("notify", "always")
    if name == SUPERVISOR:
        assert (service["KillMode"], service["Delegate"], service["OOMPolicy"]) == (
            "process",
            "yes",
            "continue",
        )


def test_an_edit_is_told_from_what_we_wrote() -> None:
    text = marked("[Unit]\nA=1\n")
    assert (
        untouched(text)
        and not untouched(text.replace("A=1", "A=2"))
        and not untouched(text + "B=1\n")
        and not untouched("[Unit]\nA=1\n")
        and not untouched("")
    )


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "_systemd_version", lambda: 252)
    return tmp_path / "image"


def place(prefix: Path) -> Path:
    return prefix / "etc" / "systemd" / "system"


def install(run: Run, prefix: Path, *args: str) -> Any:
    return run("install-units", "--prefix", str(prefix), "--root", str(prefix / "state"), *args)


def test_a_dry_run_shows_everything_and_writes_nothing(run: Run, prefix: Path) -> None:
    ended = install(run, prefix, "--dry-run")
    assert (
        ended.code == 0
        and f"+++ {place(prefix)}/{SUPERVISOR}" in ended.out
        and "+KillMode=process" in ended.out
    )
    assert not prefix.exists()


def test_a_site_with_shards_gets_its_own_units(run: Run, prefix: Path, tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text(
        '[store]\nurl = "postgresql:///j?host=/run/postgresql"\n[shards]\ncount = 2\n'
    )
    ended = install(run, prefix, "--config", str(config))
    assert ended.code == 0, ended
    folder = place(prefix)
    assert {p.name for p in folder.glob("*.service")} == {SHARD, ROUTER, SERVER}
    assert f"--config {config} --shard %i" in (folder / SHARD).read_text()


def test_it_writes_shows_only_what_changes_and_keeps_what_somebody_edited(
    run: Run, prefix: Path
) -> None:
    ended = install(run, prefix)
    assert ended.code == 0 and "Next:" in ended.err
    files = {p.name: p for p in place(prefix).iterdir()}
    assert set(files) == {SUPERVISOR, SERVER} and all(
        p.stat().st_mode & 0o777 == 0o644 and untouched(p.read_text()) for p in files.values()
    )
    again = install(run, prefix)
    assert (again.code, again.out) == (0, "") and "no changes" in again.err
    # another account: nobody has edited the units, so they are replaced
    other = install(run, prefix, "--account", "runner")
    assert other.code == 0 and "+User=runner" in other.out and "-User=jobscribe" in other.out
    edited = files[SUPERVISOR].read_text().replace("RestartSec=2", "RestartSec=9")
    files[SUPERVISOR].write_text(edited)
    before = files[SERVER].read_text()
    refused = install(run, prefix)
    assert (
        refused.code == 125 and str(files[SUPERVISOR]) in refused.err and "drop-in" in refused.err
    )
    assert files[SUPERVISOR].read_text() == edited and files[SERVER].read_text() == before
    forced = install(run, prefix, "--force")
    assert (
        forced.code == 0
        and "-RestartSec=9" in forced.out
        and "RestartSec=2" in files[SUPERVISOR].read_text()
    )


def test_what_was_copied_by_hand_as_it_ships_is_taken_over(run: Run, prefix: Path) -> None:
    assert install(run, prefix).code == 0
    path = place(prefix) / SUPERVISOR
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert install(run, prefix).code == 0 and untouched(path.read_text())


def test_the_drop_in_goes_only_where_systemd_knows_it(
    run: Run, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_systemd_version", lambda: 254)
    assert install(run, prefix).code == 0
    assert (
        "DelegateSubgroup=supervisor"
        in (place(prefix) / f"{SUPERVISOR}.d" / "systemd-254.conf").read_text()
    )


@pytest.mark.process
def test_units_of_ones_own_go_into_the_home_and_their_configuration_is_the_roots(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = run("install-units", "--user", "--json", "--root", str(tmp_path / "r"))
    assert ended.code == 0
    made = tmp_path / ".config" / "systemd" / "user" / SUPERVISOR
    assert f"--root {tmp_path}/r supervisor" in made.read_text() and str(made) in [
        i["path"] for i in ended.json()["items"]
    ]
    assert any("enable-linger" in line for line in ended.json()["next"])


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--now", "--dry-run"], 2, "--now"),
        (["--config", "/no/such.toml", "--dry-run"], 125, "/no/such.toml"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, args: list[str], code: int, words: str) -> None:
    ended = run("install-units", *args)
    assert ended.code == code and words in ended.err and ended.out == ""


def test_the_program_is_this_one_by_the_link_that_upgrades_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.0" / "bin").mkdir(parents=True)
    script = tmp_path / "1.0" / "bin" / "jobscribe"
    script.write_text("")
    monkeypatch.setattr(command.sys, "prefix", str(tmp_path / "1.0"))
    assert command._program() == (str(script),)
    (tmp_path / "current").symlink_to("1.0")
    assert command._program() == (str(tmp_path / "current" / "bin" / "jobscribe"),)
    script.unlink()
    assert command._program()[1:] == ("-m", "jobscribe.cli") and command._program()[0].startswith(
        str(tmp_path / "current")
    )


@pytest.mark.process
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not here: install Debian's systemd (etc/engines/systemd.sh check)",
)
def test_systemd_has_nothing_to_say_against_what_was_written(run: Run, prefix: Path) -> None:
    """Includes a program whose path needs quotes."""
    odd = prefix.parent / "a place 100%"
    odd.mkdir()
    (odd / "python").symlink_to(sys.executable)
    texts = {
        n: unit(
            shipped(n),
            Installation(
                (str(odd / "python"), "-m", "jobscribe.cli"),
                "jobscribe",
                "/etc/x y.toml",
                "/srv/st ate",
            ),
        )
        for n in (SUPERVISOR, SERVER)
    }
    place(prefix).mkdir(parents=True)
    for name, text in texts.items():
        (place(prefix) / name).write_text(marked(text))
    env = {"PATH": os.environ["PATH"], "SYSTEMD_UNIT_PATH": f"{place(prefix)}:"}
    for name in texts:
        done = subprocess.run(
            ["systemd-analyze", "verify", place(prefix) / name],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
        )
        assert (
            done.returncode,
            [x for x in done.stderr.splitlines() if "jobscribe" in x or str(prefix) in x],
        ) == (0, []), done.stderr
    assert shlex.split(read(texts[SUPERVISOR])["Service"]["ExecStart"])[0] == str(
        odd / "python"
    ).replace("%", "%%")
