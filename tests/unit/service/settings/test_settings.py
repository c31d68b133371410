"""Settings come in layers, record their source, and no setting is silently ignored."""

import pathlib
import tomllib
from typing import Any

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.loader import JOB_NAMES, load, show
from jobscribe.service.settings.settings import (
    SETTINGS,
    LimitSettings,
    Settings,
    SlotSettings,
    SupervisorSettings,
    value_of,
)

ROOT = pathlib.Path(__file__).resolve().parents[4]


def origin(settings: Settings, key: str) -> tuple[str, str]:
    row = next(r for r in show(settings) if r.key == key)
    return row.value, row.origin


def test_settings_are_made_without_any_file() -> None:
    s = Settings(root="/srv/x", slots=SlotSettings(local_sequential=3, local_parallel=7))
    assert (s.user_root, s.supervisor.port, s.slots.op_run) == ("/srv/x/user", 8001, 7)
    assert s.slots.local_sequential == 3
    assert SlotSettings().local_sequential >= 2
    assert {r.origin for r in show(s)} == {"default"}
    with pytest.raises(AttributeError):
        s.root = "/other"  # type: ignore[misc]


def test_each_layer_hides_the_one_below_and_says_so(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "jobscribe.toml"
    file.write_text(
        '# ours\n[limits]\ngrace_secs = 7\nagent_start_tries = 5\n\n[supervisor]\nport = 9000\nip = "127.0.0.2"\n'
    )
    env = {
        "JOBSCRIBE_ROOT": str(tmp_path),
        "JOBSCRIBE_SUPERVISOR_PORT": "9001",
        "JOBSCRIBE_LIMITS_GRACE_SECS": "8",
        "HOME": "/x",
        "JOBSCRIBE_LOG_TRACE": "",
    }
    s = load({"supervisor.port": 9002, "log.format": None}, env=env)
    assert origin(s, "supervisor.port") == ("9002", "option --port")
    assert origin(s, "limits.grace_secs") == ("8.0", "environment JOBSCRIBE_LIMITS_GRACE_SECS")
    assert origin(s, "limits.agent_start_tries") == ("5", f"{file}:4")
    assert origin(s, "supervisor.ip") == ("127.0.0.2", f"{file}:8")
    assert origin(s, "log.format") == ("text", "default")
    assert origin(s, "log.trace") == ("none", "default")
    assert s.user_root == str(tmp_path / "user")


@pytest.mark.parametrize(
    "text",
    ["supervisor.port = 9000\n", "supervisor = {port = 9000}\n", '["supervisor"]\n"port" = 9000\n'],
)
def test_a_file_may_say_it_in_every_way_that_toml_has(tmp_path: pathlib.Path, text: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text("\n" + text)
    s = load(env={}, file=str(file))
    assert s.supervisor.port == 9000
    assert s.origins["supervisor.port"] in (f"{file}:2", f"{file}:3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[supervisor]\nprot = 1\n",
            ["c.toml:2", "'supervisor.prot'", "did you mean 'supervisor.port'"],
        ),
        ("port = 1\n", ["c.toml:1", "'port'", "did you mean 'supervisor.port'"]),
        ("[limit]\ngrace_secs = 1\n", ["c.toml:2", "did you mean 'limits.grace_secs'"]),
        ("zzz = 1\n", ["c.toml:1", "config show"]),
        ("[zzz]\n", ["c.toml:1", "'zzz'"]),
        ("[supervisor.port]\nx = 1\n", ["c.toml:1", "supervisor.port must be a port"]),
        (
            "[supervisor]\nport = 70000\n",
            ["c.toml:2", "supervisor.port must be a port", "got 70000"],
        ),
        ("[supervisor]\nport = true\n", ["supervisor.port must be a port"]),
        ('[supervisor]\ndevelopment = "perhaps"\n', ["must be true or false"]),
        ("[supervisor]\nip = 7\n", ["supervisor.ip must be text"]),
        ('[log]\nformat = "xml"\n', ["must be one of text, json"]),
        ('[log]\ntrace = "(["\n', ["must be a regular expression"]),
        ("[limits]\ngrace_secs = -1\n", ["must be a number of seconds"]),
        ("[limits]\ngrace_secs = nan\n", ["must be a number of seconds"]),
        ("[limits]\nop_reply_secs = 0\n", ["must be more than 0 seconds"]),
        ('[limits]\ntime_limit_secs = "soon"\n', ["must be a number of seconds", "or none"]),
        ("[limits]\nagent_start_tries = 0\n", ["must be a whole number, at least 1"]),
        ('[log]\nfile_bytes = "1P"\n', ["must be a number of bytes"]),
        ("[limits]\nping_timeout_secs = 21\n", ["limits.ping_timeout_secs must not be more than"]),
        (
            '[supervisor]\nagents_tls_cert = "/c"\n',
            ["set supervisor.agents_tls_key and supervisor.agents_tls_ca"],
        ),
        ('[apps]\nalso = ["a"]\n', ["apps.also must be app names", "crack=my_apps.crack:app"]),
        ('[apps]\nalso = ["A=b:c"]\n', ["apps.also must be"]),
        ('[apps]\nalso = ["a=../b:c"]\n', ["apps.also must be"]),
        ('[apps]\nalso = ["a=b:c", "a=d:e"]\n', ["apps.also must be", "each name once"]),
        ("[apps]\nalso = 7\n", ["apps.also must be"]),
        ("port = \n", ["c.toml cannot be read", "line 1"]),
        ("port = 1\nport = 2\n", ["c.toml cannot be read"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_place_and_what_would_be_right(
    tmp_path: pathlib.Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(Refusal) as e:
        load(env={}, file=str(file))
    assert e.value.code == "badConfig"
    assert [w for w in words if w not in e.value.sentence] == [], e.value.sentence


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("JOBSCRIBE_ROT", "JOBSCRIBE_ROOT"),
        ("JOBSCRIBE_SUPERVISOR_PROT", "JOBSCRIBE_SUPERVISOR_PORT"),
        ("JOBSCRIBE_GRACE_SECS", "JOBSCRIBE_LIMITS_GRACE_SECS"),
        ("JOBSCRIBE_TOKN", "JOBSCRIBE_TOKEN"),
        ("JOBSCRIBE_ULR", "JOBSCRIBE_URL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_right_one(name: str, near: str) -> None:
    with pytest.raises(Refusal) as e:
        load(env={name: "secret value"})
    assert e.value.code == "badConfig"
    assert f"'{name}'; did you mean '{near}'?" in e.value.sentence
    assert "secret value" not in e.value.sentence


def test_a_jobs_environment_is_known_and_means_nothing(tmp_path: pathlib.Path) -> None:
    env = dict.fromkeys(JOB_NAMES, "x") | {
        "JOBSCRIBE_ROOT": str(tmp_path),
        "JOBSCRIBE_URL": "http://h",
        "JOBSCRIBE_PATIENCE": "5m",
        "PATH": "/bin",
        "JOBSCRIBEX": "1",
    }
    assert load(env=env) == Settings(root=str(tmp_path))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Refusal, match=r"did you mean 'supervisor.port'"):
        load({"supervisor.prot": 1}, env={})


def test_the_file_is_the_named_one_or_the_one_in_the_root(tmp_path: pathlib.Path) -> None:
    named, root = tmp_path / "named.toml", tmp_path / "root"
    root.mkdir()
    named.write_text(f'root = "{root}"\n[supervisor]\nport = 1111\n')
    (root / "jobscribe.toml").write_text("[supervisor]\nport = 2222\n")
    assert load(env={"JOBSCRIBE_ROOT": str(root)}).supervisor.port == 2222
    assert load({"root": str(root)}, env={}).supervisor.port == 2222
    for s in (load(env={"JOBSCRIBE_CONFIG": str(named)}), load(env={}, file=str(named))):
        assert (s.supervisor.port, s.root) == (1111, str(root))
    with pytest.raises(Refusal, match=r"configuration file .* does not exist"):
        load(env={}, file=str(tmp_path / "missing.toml"))
    (root / "jobscribe.toml").write_text('root = "/elsewhere"\n')
    with pytest.raises(Refusal, match="cannot set the root"):
        load({"root": str(root)}, env={})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("limits.grace_secs", "0.5", 0.5),
        ("limits.grace_secs", "1:30", 90),
        ("limits.grace_secs", "0", 0),
        ("limits.time_limit_secs", "2d12:00:00", 216_000),
        ("limits.time_limit_secs", "1-00:00:00", 86_400),
        ("limits.time_limit_secs", "10m", 600),
        ("limits.time_limit_secs", "none", None),
        ("log.file_bytes", "64K", 65536),
        ("log.file_bytes", "2mb", 2 << 20),
        ("supervisor.port", "0", 0),
        ("supervisor.development", "yes", True),
        ("supervisor.development", "0", False),
        ("log.trace", "op=run.*a=Vrwf", "op=run.*a=Vrwf"),
        ("apps.also", "a=b:c", ("a=b:c",)),
        ("apps.also", "a=b:c, d2=e.f:g.h", ("a=b:c", "d2=e.f:g.h")),
        ("limits.upload_bytes", "5M", 5 << 20),
        ("resources.local_gpus", "0,1", ("0", "1")),
        ("resources.local_gpus", "GPU-4f2aBc00-12 MIG-0f/1", ("GPU-4f2aBc00-12", "MIG-0f/1")),
        ("resources.local_gpus", "none", ()),
        ("resources.local_ports", "30000-30010", (30_000, 30_010)),
        (
            "limits.trusted_peers",
            "root, 192.0.2.0/24 2001:db8::1",
            ("root", "192.0.2.0/24", "2001:db8::1"),
        ),
    ],
)
def test_text_becomes_a_value(key: str, text: str, value: Any) -> None:
    got = value_of(load(env={SETTINGS[key].env_name: text}), key)
    assert (got, type(got)) == (
        value,
        float if key.endswith("_secs") and value is not None else type(value),
    )


@pytest.mark.parametrize("text", ["192.0.2.300", "192.0.2.0/33", "no-such-unix-user", "*"])
def test_what_is_no_peer_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match=r"limits\.trusted_peers.*www-data"):
        load({"limits.trusted_peers": text}, env={})


@pytest.mark.parametrize("text", ["0,0", "auto,1", "first", "-1", "GPU-"])
def test_what_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match=r"resources\.local_gpus"):
        load({"resources.local_gpus": text}, env={})
    assert load({"resources.local_gpus": [0, 1]}, env={}).resources.local_gpus == ("0", "1")


@pytest.mark.parametrize(
    "text", ["30000", "1000-2000", "30010-30000", "a-b", "30000-70000", "-", ""]
)
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match=r"resources\.local_ports must be two ports"):
        load({"resources.local_ports": text}, env={})


def test_every_setting_is_shown_as_it_would_be_written() -> None:
    shown = {r.key: r.value for r in show(Settings())}
    assert shown.keys() == SETTINGS.keys()
    assert (
        shown["resources.local_ports"],
        shown["resources.local_gpus"],
        shown["limits.grace_secs"],
    ) == ("30000-32767", "auto", "3.0")


def test_every_default_is_what_its_own_parser_makes_of_it() -> None:
    for s in SETTINGS.values():
        default = value_of(Settings(), s.name)
        assert s.parser(default if default is not None else "none") == default, s.name
        assert s.about


def test_the_example_file_names_every_setting_with_its_default(tmp_path: pathlib.Path) -> None:
    text = (ROOT / "etc/jobscribe.example.toml").read_text(encoding="utf-8")
    file = tmp_path / "c.toml"
    file.write_text(
        "\n".join(
            line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
            for line in text.splitlines()
        )
    )
    s = load(env={}, file=str(file))
    assert set(s.origins) == set(SETTINGS)
    machine = {
        "root",
        "user_root",
        "slots.local_sequential",
        "slots.local_parallel",
        "slots.op_run",
        "resources.local_cpu",
        "resources.local_memory_mb",
    }
    assert {k: value_of(s, k) for k in SETTINGS if k not in machine} == {
        k: value_of(Settings(), k) for k in SETTINGS if k not in machine
    }
    file.write_text(text)
    assert load(env={}, file=str(file)) == Settings()


def test_a_settings_file_of_a_released_version_means_the_same() -> None:
    """golden/0.1.0.toml has every setting of 0.1.0 with its default."""
    file = ROOT / "tests/unit/service/settings/golden/0.1.0.toml"
    s = load(env={}, file=str(file))
    named = {k for k in SETTINGS if k in s.origins}
    given = {
        f"{section}.{key}" if isinstance(value, dict) else section
        for section, value in tomllib.loads(file.read_text(encoding="utf-8")).items()
        for key in (value if isinstance(value, dict) else [section])
    }
    assert named == given
    machine = {"root", "user_root", "resources.local_cpu", "resources.local_memory_mb"}
    machine |= {k for k in given if k.startswith("slots.")}
    assert {k: value_of(s, k) for k in given - machine} == {
        k: value_of(Settings(), k) for k in given - machine
    }


def test_settings_that_contradict_each_other_cannot_be_made() -> None:
    with pytest.raises(Refusal, match="badConfig"):
        Settings(limits=LimitSettings(ping_interval_secs=1.0, ping_timeout_secs=2.0))
    with pytest.raises(Refusal, match="badConfig"):
        Settings(supervisor=SupervisorSettings(agents_tls_key="k"))
