"""The pool file of hosts is read, or all its errors are reported with their lines before anything
starts.
"""

import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import msgspec
import pytest

from jobscribe.protocol.clusters.container_pool import Limits, Pool, PoolHost, Volume
from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.loader import load as load_settings
from jobscribe.service.settings.settings import (
    DockerSettings,
    DriverSettings,
    Settings,
    SupervisorSettings,
)
from jobscribe.service.site import startup_checks
from jobscribe.service.site.pool_file import load, read

FIELDS = {
    f.encode_name
    for type_ in (Pool, PoolHost, Limits, Volume)
    for f in msgspec.structs.fields(type_)
}
ROOT = pathlib.Path(__file__).resolve().parents[4]
HOST = "  - {name: a, address: 'tcp://127.0.0.1:2376', cpu: 4, memoryMb: 1000}\n"
GOOD = "image: agent:1\nhosts:\n" + HOST
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def write(text: str, *tls: str) -> str:
        path = tmp_path / "pool.yml"
        path.write_text(text)
        for folder in tls:
            (tmp_path / folder).mkdir(parents=True)
            for name in ("cacert.pem", "cert.pem", "key.pem"):
                (tmp_path / folder / name).write_text("x")
            (tmp_path / folder / "key.pem").chmod(0o600)
        return str(path)

    return write


def told(path: str, own: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return (code, sentence without the file name) of all errors."""
    pool, found = read(path, own)
    assert pool is None and found
    return [(f.code, f.sentence.replace(path, "F")) for f in found]


def test_the_least_is_what_the_defaults_say(write: Write) -> None:
    host = PoolHost(name="a", address="tcp://127.0.0.1:2376", cpu=4, memory_mb=1000)
    assert load(write(GOOD)) == Pool(hosts=(host,), image="agent:1")


def test_everything_that_can_be_said_is_read(write: Write, tmp_path: pathlib.Path) -> None:
    text = """
image: registry.example.org:5000/agent@sha256:0123456789abcdef
tlsDir: certificates
hosts:
  - name: a
    address: tcp://10.0.0.1:2376
    cpu: 4
    memoryMb: 1000
    agentsMb: 5000
    gpus: [0, GPU-abc-1]
    ports: 40000-40010
    sequential: 3
    parallel: 2
    labels: {rack: 7, fast: true}
    plans: [premium]
  - {name: b, address: 'tcp://10.0.0.2:2376', tls: mine, cpu: 1, memoryMb: 10}
  - {name: c, address: 'unix:///run/docker.sock', cpu: 1, memoryMb: 10}
sequential: {memoryMb: 300}
tasks: {pids: 99}
network: ours
relayNetwork: bridge
supervisor: 10.0.0.9:8002
unixUsers: 1900000000-1900000100
taskSubnets: 172.16.0.0/16
volumes: {data: {source: /srv/data, target: /data, readOnly: false}}
pull: never
pullSecs: 1:30
registries: secrets.json
logDriver: journald
keepFailedSecs: 1d00:00:00
agentIdleSecs: 60
callSecs: 5
"""
    (tmp_path / "secrets.json").write_text("{}")
    (tmp_path / "secrets.json").chmod(0o600)
    pool = load(write(text, "certificates/a", "mine"))
    assert pool.hosts[0] == PoolHost(
        name="a",
        address="tcp://10.0.0.1:2376",
        tls=str(tmp_path / "certificates/a"),
        cpu=4,
        memory_mb=1000,
        agents_mb=5000,
        gpus=("0", "GPU-abc-1"),
        ports=(40000, 40010),
        sequential=3,
        parallel=2,
        labels={"rack": "7", "fast": "true"},
        plans=("premium",),
    )
    assert [h.tls for h in pool.hosts] == [
        str(tmp_path / "certificates/a"),
        str(tmp_path / "mine"),
        None,
    ]
    assert pool == Pool(
        hosts=pool.hosts,
        image="registry.example.org:5000/agent@sha256:0123456789abcdef",
        tls_dir=str(tmp_path / "certificates"),
        sequential=Limits(memory_mb=300),
        tasks=Limits(pids=99, tmp_mb=1024),
        network="ours",
        relay_network="bridge",
        supervisor="10.0.0.9:8002",
        unix_users=(1_900_000_000, 1_900_000_100),
        task_subnets="172.16.0.0/16",
        volumes={"data": Volume(source="/srv/data", target="/data", read_only=False)},
        pull="never",
        pull_secs=90.0,
        registries=str(tmp_path / "secrets.json"),
        log_driver="journald",
        keep_failed_secs=86400.0,
        agent_idle_secs=60.0,
        call_secs=5.0,
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("netwrok: none\n", ["F:4: netwrok: unknown key; right: `network`"]),
        ("image: x\n", ["F:4: image: ", "twice, first in line 1"]),
        ("sequential: {cpu: 1}\n", ["F:4: sequential.cpu: unknown key; right: `cpus`"]),
        ("sequential: 7\n", ["F:4: sequential: it is 7; right: an object with cpus, memoryMb"]),
        (
            "sequential:\n  cpus: 0\n",
            ["F:5: sequential.cpus: it is 0; right: a whole number of cores, 1 to 100,000"],
        ),
        (
            "parallel: {memoryMb: 1.5}\n",
            ["parallel.memoryMb: it is 1.5; right: a whole number of MiB, 1 to "],
        ),
        ("pids: 5\n", ["F:4: pids: unknown key; right: "]),
        (
            "pull: sometimes\n",
            ['pull: it is the text "sometimes"; right: one of missing, always, never'],
        ),
        (
            "pullSecs: 0\n",
            ["pullSecs: it is 0; right: seconds, or a text", "more than 0, at most 86,400"],
        ),
        ("callSecs: soon\n", ['callSecs: it is the text "soon"; right: seconds, or a text']),
        ("unixUsers: 100-200\n", ["F:4: unixUsers: it is 100-200; right: two numbers from 1000"]),
        ("unixUsers: 300000-200000\n", ["right: two numbers from 1000", "the lower one first"]),
        ("unixUsers: 65500-70000\n", ["unixUsers: it contains 65534"]),
        ("unixUsers: many\n", ["unixUsers: ", "right: the first and last number"]),
        ("taskSubnets: 10.0.0.1\n", ["taskSubnets: 10.0.0.1 is too small"]),
        ("taskSubnets: 10.0.0.1/8\n", ["taskSubnets: ", "right: an IPv4 network"]),
        ("taskSubnets: 8.0.0.0/8\n", ["taskSubnets: 8.0.0.0/8 is not private"]),
        ("taskSubnets: 10.0.0.0/23\n", ["too small; right: a /22 for each gang"]),
        ("taskSubnets: 'fd00::/8'\n", ["taskSubnets: ", "right: an IPv4 network"]),
        ("relayNetwork: none\n", ["relayNetwork: it is none", "right: host, or"]),
        ("supervisor: http://x:1\n", ["supervisor: ", "right: host:port"]),
        ("supervisor: 10.0.0.1\n", ["supervisor: ", "right: host:port"]),
        ("network: 'container:x'\n", ["network: ", "right: none, or the name of a network"]),
        ("volumes: [a]\n", ["volumes: it is a list; right: an object"]),
        (
            "volumes: {'a b': {source: /srv, target: /data}}\n",
            ['volumes["a b"]: this is not a valid name; right: letters, digits and . _ -'],
        ),
        (
            "volumes: {a: {source: srv, target: /data}}\n",
            ['volumes.a.source: it is the text "srv"; right: an absolute path'],
        ),
        (
            "volumes: {a: {source: /srv/../etc, target: /data}}\n",
            ["volumes.a.source: ", "right: an absolute path without '..'"],
        ),
        (
            "volumes: {a: {source: //etc, target: /data}}\n",
            ["volumes.a.source: ", "right: an absolute path without '..'"],
        ),
        (
            "volumes:\n a: {source: /srv, target: /d}\n b: {source: /opt, target: /d}\n",
            ["F:6: volumes.b.target: it is also that of volumes.a"],
        ),
        (
            "volumes: {a: {source: /srv}}\n",
            ["volumes.a.target: it is missing; right: an absolute path"],
        ),
        (
            "volumes: {a: {source: /srv, target: /d, readOnly: yes}}\n",
            ['volumes.a.readOnly: it is the text "yes"; right: true or false'],
        ),
        (
            "registries: nowhere.json\n",
            ["F:4: registries:", "nowhere.json cannot be read: No such file"],
        ),
        ("network: &anchor x\n", ["F:4: ", "is an anchor"]),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(
    write: Write, more: str, words: list[str]
) -> None:
    found = told(write(GOOD + more))
    assert len(found) == 1 and found[0][0] == "badConfig", found
    assert [w for w in words if w not in found[0][1]] == [], found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("cpu: many", [': hosts[1].cpu: it is the text "many"; right: a whole number of cores']),
        ("cpu: true", ["hosts[1].cpu: it is true; right: a whole number of cores"]),
        ("ports: 70-20", ["hosts[1].ports: ", "right: two ports from 1024 to 65535"]),
        ("gpus: [0, 0]", ["hosts[1].gpus[1]: 0 occurs twice; right: each once"]),
        ("gpus: [all]", ["hosts[1].gpus[0]: ", "right: the number or UUID of a GPU"]),
        ("plans: premium", ["hosts[1].plans: ", "right: a list"]),
        ("labels: [a]", ["hosts[1].labels: it is a list; right: an object"]),
        ("labels: {v: 1.10}", ["hosts[1].labels.v: it is 1.1", "right: a text in quotes"]),
        ("sequential: 0", ["hosts[1].sequential: it is 0; right: a whole number of concurrent"]),
        ("name: a", ["F:4: hosts[1].name: it is also that of hosts[0]"]),
        ("name: A", ["F:4: hosts[1].name: it is also that of hosts[0]"]),
        ("name: a_b", ["hosts[1].name: ", "right: letters, digits"]),
        (
            "address: tcp://localhost:2376",
            ["hosts[1].address: it is also that of hosts[0]; right: each host has its own address"],
        ),
        ("address: http://127.0.0.1:99", ["F:5: hosts[1].address: ", "right: tcp://ip:port"]),
        ("address: tcp://127.0.0.1", ["hosts[1].address: ", "right: tcp://ip:port"]),
        ("address: tcp://127.0.0.1:99999", ["hosts[1].address: ", "right: tcp://ip:port"]),
        ("address: tcp://me:pw@127.0.0.1:99", ["hosts[1].address: ", "right: tcp://ip:port"]),
        ("tls: nowhere", ["hosts[1].tls: the folder ", "nowhere does not exist"]),
        (
            "agentsMb: 1500",
            [
                "hosts[1].agentsMb: 1500 MiB are too few for one agent of kind parallel",
                "right: at least 2048 MiB",
            ],
        ),
        ("colour: red", ["hosts[1].colour: unknown key"]),
    ],
)
def test_a_mistake_about_a_host(write: Write, fields: str, words: list[str]) -> None:
    name, _, value = fields.partition(": ")
    lines = {"name": "b", "address": "tcp://127.0.0.1:2377", "memoryMb": "5", "cpu": "1"} | {
        name: value
    }
    second = "".join(
        f"{'  - ' if n == 0 else '    '}{k}: {v}\n" for n, (k, v) in enumerate(lines.items())
    )
    found = told(write(GOOD + second))
    assert len(found) == 1 and found[0][0] == "badConfig", found
    assert [w for w in words if w not in found[0][1]] == [], found


@pytest.mark.parametrize("ip", ["10.0.0.1", "example.org", "0.0.0.0"])
def test_plain_tcp_off_loopback_is_an_error_of_its_own(write: Write, ip: str) -> None:
    found = told(write(GOOD.replace("127.0.0.1", ip)))
    assert found == [
        (
            "unsafe",
            "F:3: hosts[0].address: it is plain TCP without TLS off loopback: everybody who reaches the port becomes root on the host; "
            "right: start the daemon with --tlsverify, and name the folder of its certificates in tls (or tlsDir for all hosts)",
        )
    ]


def test_a_key_that_others_can_read_is_refused(write: Write, tmp_path: pathlib.Path) -> None:
    path = write(GOOD.replace("cpu", "tls: t, cpu"), "t")
    load(path)
    (tmp_path / "t" / "key.pem").chmod(0o640)
    ((code, sentence),) = told(path)
    assert code == "unsafe" and "key.pem is accessible to others (mode 0640)" in sentence


def test_credentials_that_others_can_read_are_refused(write: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    (tmp_path / "r.json").chmod(0o644)
    ((code, sentence),) = told(write(GOOD + "registries: r.json\n"))
    assert code == "unsafe" and sentence.startswith("F:4: registries: ") and "chmod 600" in sentence


def test_the_network_of_the_host_is_for_nobodys_code(write: Write) -> None:
    ((code, sentence),) = told(write(GOOD + "network: host\n"))
    assert code == "unsafe" and sentence.startswith("F:4: network: it is host")
    assert load(write(GOOD + "relayNetwork: host\n")).relay_network == "host"


@pytest.mark.parametrize(
    "source",
    [
        "/",
        "/etc",
        "/etc/ssl",
        "/var/run/docker.sock",
        "/run",
        "/run/docker.sock",
        "/var",
        "/proc/1",
        "/dev",
        "/root",
        "/var/lib",
        "/var/lib/docker",
        "/usr/local",
        "/srv/js",
        "/srv/js/user",
        "/srv",
        "/data/users",
        "/data/users/x",
    ],
)
def test_a_volume_never_shows_the_host_or_what_is_the_supervisors(
    write: Write, source: str
) -> None:
    ((code, sentence),) = told(
        write(GOOD + f"volumes: {{v: {{source: {source}, target: /mine}}}}\n"),
        ("/srv/js", "/data/users"),
    )
    assert code == "unsafe" and sentence.startswith("F:4: volumes.v.source: ")


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/etc",
        "/etc/ssl",
        "/bin",
        "/proc",
        "/run/jobscribe",
        "/tmp",
        "/dev/shm",
        "/srv/js/user/x",
    ],
)
def test_a_volume_covers_nothing_that_an_image_needs(write: Write, target: str) -> None:
    ((code, sentence),) = told(
        write(GOOD + f"volumes: {{v: {{source: /mnt/x, target: {target}}}}}\n"), ("/srv/js",)
    )
    assert code == "unsafe" and sentence.startswith("F:4: volumes.v.target: ")


def test_a_neighbour_of_what_is_guarded_may_be_a_volume(write: Write) -> None:
    pool = load(
        write(
            GOOD
            + "volumes: {v: {source: /etcetera, target: /usrdata}, w: {source: /srv/js2, target: /srv/js2}}\n"
        ),
        ("/srv/js",),
    )
    assert set(pool.volumes) == {"v", "w"}


def test_numbers_of_real_accounts_are_nobodys_unix_users(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    found = [pwd.struct_passwd(("ann", "x", 5005, 5005, "", "/home/ann", "/bin/sh"))]
    monkeypatch.setattr(pwd, "getpwall", lambda: found)
    ((code, sentence),) = told(write(GOOD + "unixUsers: 5000-6000\n"))
    assert code == "unsafe" and "5005 is the account ann" in sentence
    assert load(write(GOOD + "unixUsers: 5006-6000\n")).unix_users == (5006, 6000)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(write: Write) -> None:
    text = "image: 'x y'\nnetwork: host\nhosts:\n  - name: a\n    address: tcp://10.0.0.1:1\n    memoryMb: 0\n  - 7\nvolumes:\n  r:\n    source: /\n    target: /\ncallSecs: -1\n"
    path = write(text)
    lines = [int(re.match(r"F:(\d+): ", sentence)[1]) for _, sentence in told(path)]  # type: ignore[index]
    assert lines == [1, 2, 4, 5, 6, 7, 10, 11, 12]
    with pytest.raises(Refusal) as e:
        load(path)
    assert (
        e.value.code == "badConfig"
        and "has 9 problems" in e.value.sentence
        and f"{path}:12: callSecs" in e.value.sentence
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        "x",
        "\x00",
        "hosts: [\n",
        "hosts: []\nimage: x\n",
        "hosts: 7\nimage: x\n",
        "image: x\n",
        "hosts: {a: b}\nimage: x\n",
    ],
)
def test_what_is_no_pool_is_refused(write: Write, text: str) -> None:
    assert [code for code, _ in told(write(text))] == ["badConfig"]


def test_a_file_that_is_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refusal, match="No such file"):
        load(str(tmp_path / "none.yml"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(Refusal, match="UTF-8"):
        load(str(tmp_path / "binary"))


def example() -> str:
    return (ROOT / "etc" / "pool.example.yml").read_text()


def test_the_example_is_good_and_shows_everything(write: Write) -> None:
    shown = example().replace("/etc/jobscribe/tls", "tls")
    pool = load(write(shown, "tls/node1", "tls/node2"))
    assert [h.name for h in pool.hosts] == ["node1", "node2"]
    names = set(re.findall(r"(?m)(?:^|[#{ ,])([A-Za-z]+):(?: |$)", shown))
    assert [f for f in FIELDS if f not in names | {"image", "hosts", "name"}] == []


def test_what_the_example_shows_as_default_is_the_default(write: Write) -> None:
    text = re.sub(
        r"^#(?=[a-z])(?!registries|supervisor)",
        "",
        example().replace("/etc/jobscribe/tls", "tls"),
        flags=re.MULTILINE,
    )
    pool = load(
        write(
            text.replace("#  data", "  data").replace("#  scratch", "  scratch"),
            "tls/node1",
            "tls/node2",
        )
    )
    assert set(pool.volumes) == {"data", "scratch"}
    given = {"hosts", "image", "tls_dir", "unix_users", "volumes"}
    for f in msgspec.structs.fields(Pool):
        if f.name not in given:
            assert getattr(pool, f.name) == f.default, f.name


# ---- docs/docker.md


PAGE = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")


def test_the_page_names_every_field_and_no_other() -> None:
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|",
        PAGE.partition("## The pool file")[2].partition("## Unix users")[0],
        re.MULTILINE,
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == FIELDS


@pytest.mark.process
@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="there is no openssl here: install Debian's package openssl",
)
def test_its_certificates_are_those_that_it_says(tmp_path: pathlib.Path) -> None:
    (script,) = (
        block.split("```")[0]
        for block in PAGE.split("```sh\n")[1:]
        if "openssl" in block.split("```")[0]
    )
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    for folder, purpose in (("daemon/node1", "sslserver"), ("client/node1", "sslclient")):
        place = tmp_path / folder
        assert sorted(p.name for p in place.iterdir()) == ["cacert.pem", "cert.pem", "key.pem"]
        assert (place / "key.pem").stat().st_mode & 0o077 == 0
        subprocess.run(
            [
                "openssl",
                "verify",
                "-x509_strict",
                "-CAfile",
                place / "cacert.pem",
                "-purpose",
                purpose,
                place / "cert.pem",
            ],
            check=True,
            capture_output=True,
        )


def test_its_firewall_is_the_one_of_the_tests() -> None:
    (script,) = (
        block.split("```")[0]
        for block in PAGE.split("```sh\n")[1:]
        if "JOBSCRIBE-FORWARD" in block.split("```")[0]
    )
    engine = (ROOT / "etc" / "engines" / "docker.sh").read_text()
    own = (
        engine.replace('"$chain-F"', "JOBSCRIBE-FORWARD")
        .replace('"$chain"', "JOBSCRIBE-IN")
        .replace('"$SUBNETS"', "10.208.0.0/12")
        .replace(" -w ", " ")
    )
    rules = [line for line in script.splitlines() if line.startswith("iptables")]
    assert (
        len(rules) == 8
        and [r for r in rules if r not in {line.strip() for line in own.splitlines()}] == []
    )


# ---- combined with other settings


def settings(
    pool: str | None, use: tuple[str, ...] = ("local", "docker"), root: str = "/nowhere"
) -> Settings:
    return Settings(
        root=root,
        drivers=DriverSettings(use=use),
        docker=DockerSettings(pool=pool),
        supervisor=SupervisorSettings(development=True),
    )


@pytest.mark.parametrize(
    ("use", "pool", "word"),
    [
        (("docker",), None, "docker.pool"),
        (("local", "docker"), None, "docker.pool"),
        (("local",), "/p", "drivers.use"),
    ],
)
def test_a_pool_and_its_driver_go_together(
    use: tuple[str, ...], pool: str | None, word: str
) -> None:
    with pytest.raises(Refusal) as e:
        settings(pool, use)
    assert e.value.code == "badConfig" and word in e.value.sentence


@pytest.mark.parametrize(
    ("value", "drivers"),
    [
        ("docker, local", ("docker", "local")),
        (["docker"], ("docker",)),
        ("", None),
        ("slurm", None),
        ("local,local", None),
        (7, None),
        ([], None),
    ],
)
def test_drivers_are_words_out_of_those_that_there_are(
    tmp_path: pathlib.Path, value: object, drivers: tuple[str, ...] | None
) -> None:
    options = {"root": str(tmp_path), "drivers.use": value, "docker.pool": "/p"}
    if drivers is None:
        with pytest.raises(Refusal, match=r"drivers\.use must be some of local, docker"):
            load_settings(options, env={})
    else:
        assert load_settings(options, env={}).drivers.use == drivers


def test_a_supervisor_does_not_start_with_a_bad_pool(write: Write) -> None:
    found = list(startup_checks.problems(settings(write(GOOD + "netwrok: x\npull: y\n"))))
    assert [(p.code, "F:" in p.sentence.replace(write(GOOD), "F")) for p in found] == [
        ("badConfig", True)
    ] * 2
    assert list(startup_checks.problems(settings(write(GOOD)))) == []
    with pytest.raises(Refusal) as e:
        startup_checks.check(settings(write(GOOD + "netwrok: x\npull: y\n")))
    assert "netwrok: unknown key" in e.value.sentence and "pull: it is" in e.value.sentence
    own = "volumes: {v: {source: /srv/js/user, target: /x}}\n"
    assert [
        p.code for p in startup_checks.problems(settings(write(GOOD + own), root="/srv/js"))
    ] == ["unsafe"]


def test_unix_users_need_root_and_root_should_have_them(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, users = settings(write(GOOD)), "unixUsers: 1900000000-1900000100\n"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (warning,) = startup_checks.warnings(without)
    assert "unixUsers" in warning and "root" in warning
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert list(startup_checks.warnings(without)) == []
    with_users = settings(write(GOOD + users))
    (problem,) = startup_checks.problems(with_users)
    assert problem.code == "unsafe" and "uid 1234" in problem.sentence
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert (
        list(startup_checks.problems(with_users)),
        list(startup_checks.warnings(with_users)),
    ) == ([], [])
    assert list(startup_checks.warnings(Settings(root="/nowhere"))) == []
