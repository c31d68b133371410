"""The cluster file is read, or all its errors are reported with their lines before anything starts."""

import base64
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from jobscribe.agent.slurm.sbatch_directives import OWN_OPTIONS
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.clusters.cluster import Cluster, Clusters, Limits, LoginHost
from jobscribe.protocol.errors import Refusal
from jobscribe.schema.jobs.batch_rules import RESERVED
from jobscribe.service.settings.loader import load as load_settings
from jobscribe.service.settings.settings import (
    DriverSettings,
    SbatchSettings,
    Settings,
    SupervisorSettings,
)
from jobscribe.service.site import startup_checks
from jobscribe.service.site.cluster_file import load, read

FIELDS = {
    f.encode_name
    for type_ in (Clusters, Cluster, LoginHost, Limits, BatchRequest)
    for f in msgspec.structs.fields(type_)
}
ROOT = pathlib.Path(__file__).resolve().parents[4]
GOOD = "clusters:\n  - name: a\n"
Write = Callable[[str], str]


def key(kind: str = "ssh-ed25519", *parts: bytes) -> str:
    blob = b"".join(
        len(p).to_bytes(4, "big") + p for p in (kind.encode(), *(parts or (bytes(range(32)),)))
    )
    return f"{kind} {base64.b64encode(blob).decode()}"


KEY = key()
SSH = f"clusters:\n  - name: a\n    access: ssh\n    link: ssh\n    login:\n      - host: login.example.org\n        keys: [{KEY}]\n"


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "clusters.yml"
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return write


def told(path: str) -> list[tuple[str, str]]:
    """Return (code, sentence without the file name) of all errors."""
    clusters, found = read(path)
    assert clusters is None and found
    return [(f.code, f.sentence.replace(path, "F")) for f in found]


def one(path: str, code: str, *words: str) -> None:
    found = told(path)
    assert len(found) == 1 and found[0][0] == code, found
    assert [w for w in words if w not in found[0][1]] == [], found


def test_the_least_is_what_the_defaults_say(write: Write) -> None:
    assert load(write(GOOD)) == Clusters(clusters=(Cluster(name="a"),))


def test_everything_that_can_be_said_is_read(write: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "wheels").mkdir()
    text = f"""
clusters:
  - name: far
    access: ssh
    login:
      - host: login.example.org
        port: 2222
        keys: ["{KEY}", "{key("ssh-rsa", b"eee", bytes([255]) * 256)} with a comment"]
        via: {{host: gate.example.org, keys: ["{KEY}"], via: {{host: "10.0.0.1", keys: ["{KEY}"]}}}}
      - {{host: "fd00::1", keys: ["{KEY}"]}}
    methods: [keyboard-interactive, password]
    folder: $SCRATCH/of/$USER
    userRoot: /shared/js/user
    pythons: [/opt/python/3.12/bin/python3, python3.11]
    wheels: wheels
    link: tls
    supervisor: js.example.org:8002
    environment: {{OMP_NUM_THREADS: 4, FAST: true, WORD: on}}
    runs: 20
    pollSecs: 0.5
    pollMaxSecs: 1:30
    callSecs: 10
    startSecs: 120
    setup: |
      . /etc/profile.d/modules.sh
      umask 027
    directives: [exclusive, reservation]
    defaults: {{partition: regular, account: m1, qos: normal, constraint: "cpu&amd", licenses: "matlab:2", nodes: 2, tasks: 4, tasksPerNode: 2, cores: 3,
      memoryMb: 4000, gpus: 0, modules: [gcc/12.2], setup: ulimit -s unlimited, directives: [exclusive], signalSecs: 60}}
    limits: {{nodes: 4, tasks: 64, cores: 128, memoryMb: 8000, gpus: 2, timeLimitSecs: 2d00:00:00}}
  - {{name: here, access: sudo, users: {{EPRSqtUW: ann, c5xZkT2q: bob_2}}}}
"""
    far, here = load(write(text)).clusters
    gate = LoginHost(
        host="gate.example.org", keys=(KEY,), via=LoginHost(host="10.0.0.1", keys=(KEY,))
    )
    assert (
        far.login[0].via == gate
        and far.login[0].port == 2222
        and len(far.login[0].keys) == 2
        and far.login[1].host == "fd00::1"
    )
    assert far == Cluster(
        name="far",
        access="ssh",
        login=far.login,
        methods=("keyboard-interactive", "password"),
        folder="$SCRATCH/of/$USER",
        user_root="/shared/js/user",
        pythons=("/opt/python/3.12/bin/python3", "python3.11"),
        wheels=str(tmp_path / "wheels"),
        link="tls",
        supervisor="js.example.org:8002",
        environment={"OMP_NUM_THREADS": "4", "FAST": "true", "WORD": "on"},
        runs=20,
        runs_per_user=20,
        poll_secs=0.5,
        poll_max_secs=90.0,
        call_secs=10.0,
        start_secs=120.0,
        setup=". /etc/profile.d/modules.sh\numask 027\n",
        directives=("exclusive", "reservation"),
        limits=Limits(
            nodes=4, tasks=64, cores=128, memory_mb=8000, gpus=2, time_limit_secs=172_800.0
        ),
        defaults=BatchRequest(
            partition="regular",
            account="m1",
            qos="normal",
            constraint="cpu&amd",
            licenses="matlab:2",
            nodes=2,
            tasks=4,
            tasks_per_node=2,
            cores=3,
            memory_mb=4000,
            gpus=0,
            modules=("gcc/12.2",),
            setup="ulimit -s unlimited",
            directives=("exclusive",),
            signal_secs=60,
        ),
    )
    assert here.users == {"EPRSqtUW": "ann", "c5xZkT2q": "bob_2"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("    name: b\n", 'F:3: clusters[0].name: "name" occurs twice, first in line 2; right:'),
        ("    acces: ssh\n", "F:3: clusters[0].acces: unknown key; right: `access`"),
        ("    access: telnet\n", 'F:3: clusters[0].access: it is the text "telnet"; right: one'),
        ("    access: ssh\n    link: ssh\n", "F:3: clusters[0].access: it is ssh, which needs"),
        ("    access: sudo\n", "F:2: clusters[0].users: it is missing: access sudo needs the unix"),
        ("    access: runuser\n    users: {}\n", "F:4: clusters[0].users: it is missing: access"),
        ("    users: {EPRSqtUW: ann}\n", "F:3: clusters[0].users: it is only for access sudo and"),
        (
            "    access: sudo\n    users: {EPRS: ann}\n",
            "F:4: clusters[0].users.EPRS: this is not a valid",
        ),
        (
            "    access: sudo\n    users: {EPRSqtUW: 'ann;id'}\n",
            "F:4: clusters[0].users.EPRSqtUW: it is the text",
        ),
        (
            "    access: sudo\n    users: {EPRSqtUW: -u}\n",
            'F:4: clusters[0].users.EPRSqtUW: it is the text "-',
        ),
        ("    access: sudo\n    users: [ann]\n", "F:4: clusters[0].users: it is a list; right: an"),
        (
            f"    login: [{{host: h, keys: ['{KEY}']}}]\n",
            "F:3: clusters[0].login: it is only for access ssh,",
        ),
        ("    methods: [password]\n", "F:3: clusters[0].methods: it is only for access ssh, and"),
        ("    link: ssh\n", "F:3: clusters[0].link: it is ssh, which needs access ssh, and access"),
        ("    link: carrier\n", 'F:3: clusters[0].link: it is the text "carrier"; right: one of'),
        ("    supervisor: a:1\n", "F:3: clusters[0].supervisor: it is only for link tls, and link"),
        ("    link: tls\n    supervisor: a\n", 'F:4: clusters[0].supervisor: it is the text "a";'),
        (
            "    link: tls\n    supervisor: 'a b:1'\n",
            'F:4: clusters[0].supervisor: it is the text "a b:1',
        ),
        ("    link: tls\n    supervisor: a:99999\n", "F:4: clusters[0].supervisor: it is the text"),
        ("    folder: scratch\n", 'F:3: clusters[0].folder: it is the text "scratch"; right: a'),
        ("    folder: $(id)/x\n", 'F:3: clusters[0].folder: it is the text "$(id)/x"; right: a'),
        ("    folder: /a b\n", 'F:3: clusters[0].folder: it is the text "/a b"; right: a path of'),
        ("    folder: /a/../b\n", 'F:3: clusters[0].folder: it is the text "/a/../b"; right: a'),
        ("    folder: ~ann/x\n", 'F:3: clusters[0].folder: it is the text "~ann/x"; right: a'),
        (
            "    folder: /\n",
            "F:3: clusters[0].folder: it is /; right: another folder: users' files",
        ),
        ("    userRoot: here\n", 'F:3: clusters[0].userRoot: it is the text "here"; right: an'),
        ("    userRoot: /a/../b\n", 'F:3: clusters[0].userRoot: it is the text "/a/../b"; right:'),
        ("    userRoot: /\n", 'F:3: clusters[0].userRoot: it is the text "/"; right: an absolute'),
        ("    pythons: []\n", "F:3: clusters[0].pythons: it has 0 elements; right: a list of at"),
        ("    pythons: ['-c evil']\n", 'F:3: clusters[0].pythons[0]: it is the text "-c evil";'),
        ("    pythons: [bin/python3]\n", "F:3: clusters[0].pythons[0]: it is the text"),
        ("    pythons: [python3, python3]\n", 'F:3: clusters[0].pythons[1]: the text "python3"'),
        ("    wheels: nowhere\n", "nowhere does not exist; right:"),
        ("    environment: {1A: x}\n", 'F:3: clusters[0].environment["1A"]: this is not a valid'),
        ("    environment: {JOBSCRIBE_X: x}\n", "F:3: clusters[0].environment.JOBSCRIBE_X:"),
        ("    environment: {A: 'x\ty'}\n", 'F:3: clusters[0].environment.A: it is the text "x\\ty'),
        ("    environment: [A]\n", "F:3: clusters[0].environment: it is a list; right: an object"),
        ("    runs: 0\n", "F:3: clusters[0].runs: it is 0; right: a whole number of concurrent"),
        (
            "    runs: 10\n    runsPerUser: 11\n",
            "F:4: clusters[0].runsPerUser: it is 11, more than",
        ),
        (
            "    pollSecs: 0\n",
            "F:3: clusters[0].pollSecs: it is 0; right: seconds, or a text as in",
        ),
        ("    pollSecs: soon\n", 'F:3: clusters[0].pollSecs: it is the text "soon"; right:'),
        ("    pollSecs: 60\n", "F:3: clusters[0].pollSecs: pollSecs is 60 and pollMaxSecs is 30;"),
        (
            "    pollMaxSecs: 1\n",
            "F:3: clusters[0].pollMaxSecs: pollSecs is 2 and pollMaxSecs is 1",
        ),
        ("    callSecs: 2d00:00:00\n", 'F:3: clusters[0].callSecs: it is the text "2d00:00:00";'),
        ('    setup: "a\\r\\nb"\n', "F:3: clusters[0].setup: its lines end with CR LF (Windows),"),
        ('    setup: "a\\x07"\n', 'F:3: clusters[0].setup: it contains the character "\\x07" in'),
        (
            "    setup: |\n      #SBATCH -p x\n",
            "F:3: clusters[0].setup: line 1 begins with #SBATCH",
        ),
        ("    setup: " + "x" * 70_000 + "\n", "F:3: clusters[0].setup: it has 70000 characters;"),
        ("    directives: exclusive\n", 'F:3: clusters[0].directives: it is the text "exclusive"'),
        ("    directives: [--exclusive]\n", "F:3: clusters[0].directives[0]: it is the text"),
        ("    directives: [reservation=x]\n", "F:3: clusters[0].directives[0]: it is the text"),
        ("    directives: [output]\n", 'F:3: clusters[0].directives[0]: "output" is not for'),
        ("    directives: [mem]\n", 'F:3: clusters[0].directives[0]: "mem" is not for directives'),
        ("    directives: [outp]\n", 'F:3: clusters[0].directives[0]: sbatch may read "outp" as'),
        ("    directives: [exclusive, exclusive]\n", "F:3: clusters[0].directives[1]: the text"),
        (
            "    limits: 5\n",
            "F:3: clusters[0].limits: it is 5; right: an object with nodes, tasks,",
        ),
        ("    limits: {nodes: 0}\n", "F:3: clusters[0].limits.nodes: it is 0; right: a whole"),
        ("    limits: {nodes: -1}\n", "F:3: clusters[0].limits.nodes: it is -1; right: a whole"),
        ("    limits: {nodes: many}\n", 'F:3: clusters[0].limits.nodes: it is the text "many";'),
        ("    limits: {timeLimitSecs: 0}\n", "F:3: clusters[0].limits.timeLimitSecs: it is 0;"),
        (
            "    limits: {timeLimit: 1}\n",
            "F:3: clusters[0].limits.timeLimit: unknown key; right: `",
        ),
        ("    defaults: []\n", "F:3: clusters[0].defaults: it is an empty list; right: an object"),
        ("    defaults: {cluster: b}\n", "F:3: clusters[0].defaults.cluster: the defaults are"),
        ("    defaults: {partition: 'a b'}\n", "F:3: clusters[0].defaults.partition: it is the"),
        ("    defaults: {constraint: '$(x)'}\n", "F:3: clusters[0].defaults.constraint: it is the"),
        ("    defaults: {modules: gcc}\n", "F:3: clusters[0].defaults.modules: it is the text"),
        ("    defaults: {nodes: 0}\n", "F:3: clusters[0].defaults.nodes: it is 0; right: a whole"),
        ("    defaults: {nodes: true}\n", "F:3: clusters[0].defaults.nodes: it is true; right: a"),
        (
            "    defaults: {nodes: 3, tasks: 2}\n",
            "F:3: clusters[0].defaults: 3 `nodes` are more than",
        ),
        (
            "    defaults: {directives: [array=1-9]}\n",
            'F:3: clusters[0].defaults.directives[0]: "array"',
        ),
        (
            "    defaults: {directives: [exclusive]}\n",
            "F:3: clusters[0].defaults.directives[0]: the",
        ),
        (
            "    defaults: {directives: ['exclusive=a b']}\n",
            "F:3: clusters[0].defaults.directives[0]: it is the",
        ),
        (
            "    defaults: {setup: '#SBATCH -n 1'}\n",
            "F:3: clusters[0].defaults.setup: line 1 begins",
        ),
        (
            "    defaults: {nodes: 4}\n    limits: {nodes: 2}\n",
            "F:3: clusters[0].defaults.nodes: it is 4; right:",
        ),
        (
            "    defaults: {tasks: 4, cores: 2}\n    limits: {cores: 7}\n",
            "F:3: clusters[0].defaults.cores: it is 8 of all",
        ),
        ("    defaults: {gpus: 2000}\n", "F:3: clusters[0].defaults.gpus: it is 2000; right: a"),
        ("  - name: A\n", "F:3: clusters[1].name: it is also that of clusters[0]; right: each"),
        (
            "  - {}\n",
            "F:3: clusters[1].name: it is missing; right: the name of a cluster: letters,",
        ),
        ("  - name: a_b\n", 'F:3: clusters[1].name: it is the text "a_b"; right: the name of a'),
        ("  - b\n", 'F:3: clusters[1]: it is the text "b"; right: an object with name'),
        ("what: 1\n", "F:3: what: unknown key; right: the keys here are clusters"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(
    write: Write, more: str, words: str
) -> None:
    one(write(GOOD + more), "badConfig", words)


RSA_1024 = key("ssh-rsa", b"\1\0\1", bytes([255]) * 128)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "SHA256:abcdef",
            "badConfig",
            "it is the fingerprint of a key; right: a key as ssh-keyscan",
        ),
        (f"login.example.org {KEY}", "badConfig", "it starts with a host name; right: a key as"),
        ("ssh-ed25519", "badConfig", 'it is the text "ssh-ed25519"; right: a key as ssh-keyscan'),
        (
            KEY[:-8],
            "badConfig",
            "the text after ssh-ed25519 was cut off, or is not base64; right: a",
        ),
        (
            "ssh-ed25519 %%%%",
            "badConfig",
            "the text after ssh-ed25519 was cut off, or is not base64;",
        ),
        (
            KEY.replace("ssh-ed25519", "ssh-rsa"),
            "badConfig",
            "it has type ssh-rsa, but the key itself has",
        ),
        (key("ssh-dss"), "unsafe", "it is a DSA key, which is insecure; right: the host's"),
        (
            RSA_1024,
            "unsafe",
            "it is an RSA key of 1024 bits, which can be broken; right: the host's",
        ),
        ("", "badConfig", 'it is the text ""; right: a key as ssh-keyscan prints it after the'),
        (
            "@cert-authority *.x ssh-ed25519 AAAA",
            "badConfig",
            'it is the text "@cert-authority *.x ssh-ed25519',
        ),
    ],
)
def test_a_host_key_that_is_none_is_refused(write: Write, text: str, code: str, words: str) -> None:
    one(
        write(SSH.replace(f"[{KEY}]", f"['{text}']")),
        code,
        "F:7: clusters[0].login[0].keys[0]: ",
        words,
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "host: login.example.org",
            "host: 'login.example.org:22'",
            "F:6: clusters[0].login[0].host: it is the text",
        ),
        (
            "host: login.example.org",
            "host: -oProxyCommand=x",
            "F:6: clusters[0].login[0].host: it is the text",
        ),
        (
            "host: login.example.org",
            "host: 'a b'",
            'F:6: clusters[0].login[0].host: it is the text "a',
        ),
        (f"        keys: [{KEY}]\n", "", "F:6: clusters[0].login[0].keys: it is missing; right: a"),
        (f"[{KEY}]", "[]", "F:7: clusters[0].login[0].keys: it has 0 elements; right: a"),
        (f"[{KEY}]", f"[{KEY}, {KEY} again]", 'F:7: clusters[0].login[0].keys[1]: "ssh-ed25519'),
        (
            "        keys",
            "        port: 0\n        keys",
            "F:7: clusters[0].login[0].port: it is 0; right: a",
        ),
        (
            "        keys",
            "        via: gate\n        keys",
            "F:7: clusters[0].login[0].via: it is the text",
        ),
        (
            "        keys",
            "        via: {host: g, keys: [x]}\n        keys",
            "F:7: clusters[0].login[0].via.keys[0]: it is the",
        ),
        (
            "        keys",
            "        user: ann\n        keys",
            "F:7: clusters[0].login[0].user: unknown key; right",
        ),
        ("    link: ssh\n", "", "F:2: clusters[0].link: login.example.org is another machine, and"),
        (
            "    link: ssh\n",
            "    link: ssh\n    methods: []\n",
            "F:5: clusters[0].methods: it has 0 elements; right",
        ),
        (
            "    link: ssh\n",
            "    link: ssh\n    methods: [password, password]\n",
            'F:5: clusters[0].methods[1]: the text "password"',
        ),
        (
            "    link: ssh\n",
            "    link: ssh\n    methods: [gssapi]\n",
            "F:5: clusters[0].methods[0]: it is the text",
        ),
        (
            "      - host",
            f"      - {{host: LOGIN.example.org, keys: [{KEY}]}}\n      - host",
            "F:7: clusters[0].login[1].host: it is also that of",
        ),
    ],
)
def test_a_mistake_about_where_to_sign_in(write: Write, old: str, new: str, words: str) -> None:
    one(write(SSH.replace(old, new, 1)), "badConfig", words)


def test_nobody_becomes_root(write: Write) -> None:
    one(
        write(GOOD + "    access: runuser\n    users: {EPRSqtUW: root}\n"),
        "unsafe",
        "F:4: clusters[0].users.EPRSqtUW: it is root",
    )


def test_a_secret_is_no_variable_of_all_users(write: Write) -> None:
    one(
        write(GOOD + "    environment: {API_TOKEN: abc}\n"),
        "unsafe",
        "environment.API_TOKEN: it looks like a secret",
    )


def test_a_file_that_everybody_can_write_is_refused(write: Write) -> None:
    path = write(GOOD)
    os.chmod(path, 0o666)
    one(path, "unsafe", "can be written by everybody", "chmod o-w")


def test_an_ssh_cluster_on_this_machine_may_be_dialed_directly(write: Write) -> None:
    assert (
        load(
            write(
                SSH.replace("link: ssh", "link: direct").replace("login.example.org", "127.0.0.1")
            )
        )
        .clusters[0]
        .link
        == "direct"
    )


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(write: Write) -> None:
    text = (
        "clusters:\n  - name: a\n    access: ssh\n    link: tls\n    login:\n      - host: h\n        keys: [x]\n    folder: /a b\n"
        "    defaults:\n      nodes: 0\n    limits: {cores: x}\n  - name: a\n    colour: red\n    environment: {MY_PASSWORD: x}\n"
    )
    path = write(text)
    lines = [int(re.match(r"F:(\d+): ", sentence)[1]) for _, sentence in told(path)]  # type: ignore[index]
    assert lines == [7, 8, 10, 11, 12, 13, 14]
    with pytest.raises(Refusal) as e:
        load(path)
    assert (
        e.value.code == "badConfig"
        and f"{path} has 7 problems" in e.value.sentence
        and f"{path}:14: " in e.value.sentence
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        "x",
        "\x00",
        "clusters: [\n",
        "clusters: []\n",
        "clusters: 7\n",
        "{}\n",
        "clusters: {a: b}\n",
        "clusters:\n",
        "clusters: [[]]\n",
    ],
)
def test_what_has_no_clusters_is_refused(write: Write, text: str) -> None:
    assert {code for code, _ in told(write(text))} == {"badConfig"}


def test_a_file_that_is_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refusal, match=r"sbatch\.clusters: .*No such file"):
        load(str(tmp_path / "none.yml"))


@how(
    max_examples=1000 if os.environ.get("SOAK") else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_stands_behind_a_key_it_is_read_or_refused_by_name(
    write: Write, data: st.DataObject
) -> None:
    """Any value gives clusters or refusals, and an accepted value has the right type."""
    values = st.one_of(
        st.text(max_size=20),
        st.integers(-(2**40), 2**40),
        st.booleans(),
        st.none(),
        st.lists(st.text(max_size=8), max_size=3),
        st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2),
        st.sampled_from([[{}], {"host": "x"}, [[["a"]]], "a\nb", "$(id)"]),
    )
    where = data.draw(st.sampled_from(["", "defaults", "limits", "login"]))
    names = {"": Cluster, "defaults": BatchRequest, "limits": Limits, "login": LoginHost}[where]
    fields = [f.encode_name for f in msgspec.structs.fields(names)]
    drawn = data.draw(
        st.dictionaries(
            st.one_of(st.sampled_from(fields), st.text(min_size=1, max_size=8)), values, max_size=5
        )
    )
    given_ = drawn if not where else {"login": [drawn]} if where == "login" else {where: drawn}
    path = write(msgspec.json.encode({"clusters": [{"name": "a", **given_}]}).decode())
    clusters, found = read(path)
    if clusters is None:
        assert found and all(
            f.code in ("badConfig", "unsafe") and f.sentence.isprintable() for f in found
        )
    else:
        assert msgspec.convert(msgspec.to_builtins(clusters), Clusters) == clusters


def test_no_option_that_is_the_systems_own_can_be_allowed(write: Write) -> None:
    assert set(OWN_OPTIONS) <= set(RESERVED)
    for name in RESERVED:
        one(write(GOOD + f"    directives: [{name}]\n"), "badConfig", "is not for directives")


# ---- the example


def example() -> str:
    return (ROOT / "etc" / "clusters.example.yml").read_text()


def test_the_example_is_good_and_shows_everything(write: Write) -> None:
    shown = example()
    assert [c.name for c in load(write(shown)).clusters] == ["hpc", "here", "far"]
    names = set(re.findall(r"(?m)(?:^|[#{ ,-])([A-Za-z]+):(?: |$)", shown))
    assert [f for f in FIELDS if f not in names | {"cluster"}] == []


def test_what_the_example_shows_as_default_is_the_default(write: Write) -> None:
    text = re.sub(
        r"^( +)#(?=[a-zA-Z]+: )(?!wheels|userRoot|environment)",
        r"\1",
        example(),
        flags=re.MULTILINE,
    )
    first = load(write(text)).clusters[0]
    given_, usual = (
        {"name", "access", "login", "link", "defaults", "limits", "directives"},
        Cluster(name="hpc"),
    )
    for name in Cluster.__struct_fields__:
        if name not in given_:
            assert getattr(first, name) == getattr(usual, name), name
    assert first.defaults.setup and first.defaults.modules and first.limits.gpus == 4


# ---- docs/sbatch.md


PAGE = (ROOT / "docs" / "sbatch.md").read_text(encoding="utf-8")


def rows(heading: str, end: str = "\n## ") -> list[list[str]]:
    """Return the table cells of a section, without header rows."""
    part = PAGE.partition(f"{heading}\n")[2].partition(end)[0]
    return [
        [c.strip() for c in line.strip("|").split(" | ")]
        for line in part.splitlines()
        if line.startswith("| `")
    ]


def words(cells: list[list[str]]) -> set[str]:
    return {word for row in cells for word in re.findall(r"`([^`]+)`", row[0])}


def test_the_page_names_every_field_and_no_other() -> None:
    assert words(rows("## The cluster file")) == FIELDS - {"clusters", "cluster"}


def test_the_page_has_the_right_defaults() -> None:
    said = {
        name: row[2].strip(" |")
        for row in rows("## The cluster file")
        if len(row) > 2
        for name in re.findall(r"`(\w+)`", row[0])
    }
    usual = msgspec.to_builtins(Cluster(name="a"))
    assert {k: v.strip("`") for k, v in said.items() if k in ("access", "folder", "link")} == {
        k: usual[k] for k in ("access", "folder", "link")
    }
    assert said["pythons"] == ", ".join(f"`{p}`" for p in usual["pythons"])
    for names in (
        "runs runsPerUser",
        "pollSecs pollMaxSecs",
        "callSecs",
        "startSecs",
        "limitSlackSecs",
    ):
        assert [float(n) for n in said[names.split()[0]].split(", ")] == [
            usual[n] for n in names.split()
        ], names


def test_the_page_knows_who_runs_as_whom_and_the_rule_of_sudo_is_one(
    tmp_path: pathlib.Path,
) -> None:
    assert words(rows("## Unix users on the cluster")) - {"access"} == {
        "account",
        "sudo",
        "runuser",
        "ssh",
    }
    (rule,) = re.findall(r"```sudoers\n(.*?)```", PAGE, re.DOTALL)
    assert re.search(r"^jobscribe ALL=\(%hpcusers\) NOPASSWD: ALL$", rule, re.MULTILINE)
    visudo = shutil.which("visudo", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if visudo is None:
        pytest.skip(
            "the rule cannot be tried: there is no visudo here; install Debian's package sudo"
        )
    (tmp_path / "rule").write_text(rule)
    (tmp_path / "rule").chmod(0o440)
    subprocess.run([visudo, "-cf", tmp_path / "rule"], check=True, capture_output=True)


def test_the_files_steps_and_waits_on_the_page_are_those_of_the_code() -> None:
    from jobscribe.agent.batch.ledger import BATCH
    from jobscribe.agent.slurm.pending_reasons import IMPOSSIBLE
    from jobscribe.agent.slurm.script_markers import BATCH_LOG, BATCH_SCRIPT
    from jobscribe.drivers.sbatch.cluster_check import ADVICE

    scientists = "## For scientists"
    assert {BATCH, BATCH_LOG, BATCH_SCRIPT} <= words(rows(scientists))
    assert set(ADVICE) | {"user", "shared"} == words(rows("## Checks and logs", "\n### Logs"))
    core = "".join(
        (ROOT / "supervisor" / "core" / "status" / name).read_text()
        for name in ("run_status.py", "batch_status.py")
    )
    waits = words(
        [
            row
            for row in rows(scientists)
            if row[0].strip("`").replace("_", "").replace("`, `", "").isalpha()
            and "-" not in row[0]
        ]
    )
    assert {"sign_in", "slurm", "agent", "op_slot", "cpu_slot"} <= waits and [
        w for w in ("sign_in", "slurm", "agent", "op_slot", "cpu_slot") if f'"{w}"' not in core
    ] == []
    named = re.findall(
        r"`(\w+)`", PAGE.partition("Some reasons can never clear (")[2].partition(")")[0]
    )
    assert len(named) == 4 and set(named) <= set(IMPOSSIBLE)
    from jobscribe.schema.jobs.batch_rules import RESERVED

    cannot = re.findall(
        r"`(\w+)`", " ".join(PAGE.split()).partition("are reserved (")[2].partition("...)")[0]
    )
    assert len(cannot) == 6 and set(cannot) <= set(RESERVED)


# ---- combined with other settings


def settings(
    path: str | None, use: tuple[str, ...] = ("local", "sbatch"), **supervisor: object
) -> Settings:
    return Settings(
        root="/nowhere",
        drivers=DriverSettings(use=use),
        sbatch=SbatchSettings(clusters=path),
        supervisor=SupervisorSettings(development=True, **supervisor),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("use", "path", "word"),
    [(("sbatch",), None, "sbatch.clusters"), (("local",), "/p", "drivers.use")],
)
def test_clusters_and_their_driver_go_together(
    use: tuple[str, ...], path: str | None, word: str
) -> None:
    with pytest.raises(Refusal) as e:
        settings(path, use)
    assert e.value.code == "badConfig" and word in e.value.sentence


def test_the_driver_is_one_of_those_that_there_are(tmp_path: pathlib.Path) -> None:
    assert load_settings(
        {"root": str(tmp_path), "drivers.use": "sbatch", "sbatch.clusters": "/p"}, env={}
    ).drivers.use == ("sbatch",)


def test_a_supervisor_does_not_start_with_bad_clusters(write: Write) -> None:
    bad = settings(write(GOOD + "    netwrok: x\n    link: y\n"))
    assert [p.code for p in startup_checks.problems(bad)] == ["badConfig"] * 2
    with pytest.raises(Refusal) as e:
        startup_checks.check(bad)
    assert "netwrok: unknown key" in e.value.sentence and "link: it is" in e.value.sentence
    assert list(startup_checks.problems(settings(write(GOOD)))) == []


def test_who_may_become_others_and_who_should_not_be_root(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes, shared = (
        GOOD + "    access: runuser\n    users: {EPRSqtUW: ann}\n",
        settings(write(GOOD)),
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (warning,) = startup_checks.warnings(shared)
    assert "access account" in warning and "root" in warning
    assert list(startup_checks.problems(settings(write(becomes)))) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert list(startup_checks.warnings(settings(write(becomes)))) == []
    (problem,) = startup_checks.problems(settings(write(becomes)))
    assert problem.code == "unsafe" and "uid 1234" in problem.sentence


def test_agents_that_dial_in_over_tls_need_a_listener_that_has_it(write: Write) -> None:
    text = SSH.replace("link: ssh", "link: tls")
    (problem,) = startup_checks.problems(settings(write(text)))
    assert "agents_tls_cert" in problem.sentence
