"""Users who sign in, with a real supervisor, a real sshd and a real Slurm: killed processes cost no
run, and no user is asked twice for a code.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import explanation_quality
import pytest
from engine_scripts import free_ports
from login_nodes import Sshd, Users
from signed_in_users import (
    ALICE,
    BOB,
    DEEP,
    SECS,
    WHO,
    FarNode,
    SignedInUsers,
    all_at_once,
    signed_in,
)
from slurm_cluster import Slurm, sites
from supervisor_process import until

from jobscribe.cli.job.why import lines as why_lines

from ..integration.test_tls import Authority, settings

SOAK = bool(os.environ.get("SOAK"))
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def at(
    _cluster: tuple[Slurm, Users], _servers: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SignedInUsers]:
    """Clusters: users sign in to `link`, `tls` and `two` (to the last one on a far login node or
    here); `direct` needs no sign-in.
    """
    slurm, users = _cluster
    # a fixed port, which agents find again after a restart
    port = f"supervisor.agents_port={free_ports(1)}"
    for name in ("alice", "bob"):
        (users.home(name) / ".profile").write_text(f"export OF_THE_PROFILE=of-{name}\n")
    folder, authority, far = (
        tmp_path_factory.mktemp("ca"),
        Authority("of the supervisor"),
        FarNode(_servers),
    )
    far.start()
    cert, key = authority.issue(folder)
    here = _servers.login()
    clusters: dict[str, dict[str, Any]] = {
        "link": {"access": "ssh", "link": "ssh", "folder": DEEP},
        "tls": {"access": "ssh", "link": "tls", "folder": DEEP},
        "direct": {
            "access": "runuser",
            "link": "direct",
            "folder": "$HOME/scratch/projects-of-this-group/direct",
        },
        "two": {
            "access": "ssh",
            "link": "ssh",
            "login": [far.login(), here],
            "folder": "$HOME/scratch/projects-of-this-group/two",
            "callSecs": 20,
        },
    }
    with (
        sites(slurm, users, lambda: _servers) as made,
        signed_in(
            made,
            slurm,
            users,
            _servers,
            clusters,
            port,
            *settings(cert, key, authority.write(folder / "ca.pem")),
            far=far,
        ) as there,
    ):
        yield there


def complete(at: SignedInUsers, uid: str, cluster: str) -> None:
    """Submit a run before its user signs in. It waits for the sign-in where one is needed, and then
    continues by itself.
    """
    who, access = at.users[WHO[uid]], "runuser" if cluster == "direct" else "ssh"
    run = at.run(
        "id -un; pwd; echo $OF_THE_PROFILE; echo data >file.txt; env >&2; exit 0", uid, cluster
    )
    if access == "ssh":
        said = at.until(run, lambda s: s["queueState"] == "sign_in", "it waits for its user")
        assert (said["state"], said["known"], said["srException"]["routeName"]) == (
            "pending",
            True,
            "sbatchLogin",
        ), said
        why = at.why(run)
        explanation_quality.check(why, "\n".join(why_lines(why["computeJid"], why)))
        assert (why["cause"], why["confidence"]) == ("sign_in", "certain") and why["try"][
            0
        ].startswith(f"jobscribe login {cluster} "), why
        assert at.login(uid, cluster)["loginSuccess"]
    said = at.over(run)
    assert [j.user for j in at.slurm.accounted(job=said["batch"]["jobId"])] == [who]
    name, run_dir, of_the_profile = at.site.output(run).body.decode().split()
    assert of_the_profile == f"of-{WHO[uid]}", (
        "batch jobs start from what a login of their user sets"
    )
    assert (
        name == who
        and Path(run_dir).is_relative_to(at.base(uid, cluster))
        and Path(run_dir).owner() == who
    )
    assert (Path(run_dir) / "file.txt").read_text() == "data\n"
    pid = at.agent(uid, cluster)
    (keeper,) = at.keepers(uid, cluster)
    # /proc/PID belongs to root because these processes are not dumpable: read the ids instead
    for each in (pid, keeper):
        uids = next(
            line
            for line in Path(f"/proc/{each}/status").read_text().splitlines()
            if line.startswith("Uid:")
        )
        assert uids.split()[1:] == [str(at.users.uid(WHO[uid]))] * 4
    assert os.getsid(keeper) == keeper and os.getsid(pid) == pid, "ssh may go away"
    # a copy that is unpacked for another cluster at the same time lies beside it until the
    # duplicate is noticed
    (code,) = until(
        lambda: len(found := list((at.base(uid, cluster) / "code").iterdir())) == 1 and found,
        "the code is there, once",
    )
    assert (code / "jobscribe" / "agent" / "keeper" / "process.py").exists(), (
        "nothing was installed there"
    )
    logs = sorted(
        p.name.split("-")[1] for p in (at.root / "user" / uid / "agent-sbatch" / cluster).iterdir()
    )
    assert logs == ["remote.log", "start.log"]
    if cluster == "link":
        path = at.socket(uid, cluster)
        assert len(str(path)) < 60 < len(str(at.folder(uid, cluster))) and path.is_socket()
        assert (
            path.parent.stat().st_mode & 0o7777,
            path.parent.owner(),
            path.stat().st_mode & 0o777,
        ) == (0o700, who, 0o600)


def test_every_way_of_all_users_at_once(at: SignedInUsers) -> None:
    all_at_once(
        *(
            lambda uid=uid, cluster=cluster: complete(at, uid, cluster)
            for uid, cluster in (  # type: ignore[misc]
                (ALICE, "link"),
                (ALICE, "tls"),
                (ALICE, "direct"),
                (BOB, "link"),
            )
        )
    )


def signed(at: SignedInUsers, uid: str, cluster: str) -> None:
    if not at.ready(uid, cluster):
        assert at.login(uid, cluster)["loginSuccess"]


def test_a_supervisor_that_was_killed_knows_what_it_can_and_says_what_it_cannot(
    at: SignedInUsers,
) -> None:
    """With `tls` the agent reconnects by itself. With `ssh` the state is unknown until the user
    signs in; meanwhile jobs run and end.
    """
    for uid, cluster in ((ALICE, "link"), (ALICE, "tls"), (BOB, "link")):
        signed(at, uid, cluster)
    runs = {
        name: at.gated(uid, cluster, code)
        for name, uid, cluster, code in (
            ("by itself", ALICE, "tls", 0),
            ("goes on", ALICE, "link", 0),
            ("ends meanwhile", BOB, "link", 3),
            ("is killed meanwhile", BOB, "link", 0),
        )
    }
    jobs = {name: at.running(run, gate) for name, (run, gate) in runs.items()}
    agents = {
        at.agent(uid, cluster) for uid, cluster in ((ALICE, "link"), (ALICE, "tls"), (BOB, "link"))
    }
    at.kill()
    at.open(runs["ends meanwhile"][1])
    at.slurm.cancel(jobs["is killed meanwhile"])
    for name in ("ends meanwhile", "is killed meanwhile"):
        at.slurm.until_state(jobs[name], secs=SECS)
    ended_at = time.time()
    at.start()
    assert at.running(runs["by itself"][0]) == jobs["by itself"]
    assert at.ready(ALICE, "tls") and not at.ready(ALICE, "link") and not at.ready(BOB, "link")
    at.unknown(runs["goes on"][0], "sign in to link")
    at.unknown(runs["ends meanwhile"][0], "sign in to link")
    assert at.status(runs["ends meanwhile"][0])["srException"]["params"]["cluster"] == "link"
    until(
        lambda: time.time() > ended_at + 3,
        "some time passes, so that the end and the sign-in can be told apart",
    )
    all_at_once(lambda: signed(at, ALICE, "link"), lambda: signed(at, BOB, "link"))
    for name, state, how in (
        ("ends meanwhile", "error", ("script", 3)),
        ("is killed meanwhile", "canceled", None),
    ):
        run, gate = runs[name]
        said = at.over(run, at.status(run)["state"] if how is None else state, gate)
        assert how is None or (said["exit"]["source"], said["exit"]["code"]) == how, said
        assert (
            said["exit"]["endedAt"] < ended_at + 1.5
            and said["exit"]["batch"]["jobId"] == jobs[name]
        ), (said, ended_at)
        assert at.site.output(run).body == (b"begun\nover\n" if how else b"begun\n")
    assert at.running(runs["goes on"][0]) == jobs["goes on"]
    assert {
        at.agent(uid, cluster) for uid, cluster in ((ALICE, "link"), (ALICE, "tls"), (BOB, "link"))
    } == agents, "nobody had to be started anew"
    for name in ("by itself", "goes on"):
        run, gate = runs[name]
        at.open(gate)
        at.over(run, gate=gate)
        assert at.site.output(run).body == b"begun\nover\n"


def test_what_is_killed_there_is_there_again(at: SignedInUsers) -> None:
    """Kills agent, keeper, connection and all of them. A code is needed only where there is no
    other way.
    """
    all_at_once(
        lambda: _agent_killed(at, ALICE, "tls"),
        lambda: _moved_and_frozen(at, ALICE, "two"),
        lambda: (_keeper_killed(at, BOB, "tls"), _connection_killed(at, BOB, "link"))[0],
    )
    _rebooted(at, ALICE, "link")


def _agent_killed(at: SignedInUsers, uid: str, cluster: str) -> None:
    signed(at, uid, cluster)
    run, gate = at.gated(uid, cluster)
    job, before = at.running(run), at.agent(uid, cluster)
    keepers = at.keepers(uid, cluster)
    for _ in range(2):
        before = at.agent(uid, cluster)
        os.kill(before, 9)
        until(
            lambda before=before: at.agents(uid, cluster) not in ([], [before]),  # type: ignore[misc]
            "its keeper has started another one",
            SECS,
        )
    assert at.running(run) == job and at.keepers(uid, cluster) == keepers
    at.open(gate)
    at.over(run, gate=gate)


def _keeper_killed(at: SignedInUsers, uid: str, cluster: str) -> None:
    """The connection is still open: a new keeper is started without a sign-in."""
    signed(at, uid, cluster)
    run, gate = at.gated(uid, cluster)
    job, keepers = at.running(run), at.keepers(uid, cluster)
    os.kill(keepers[0], 9)
    until(lambda: at.keepers(uid, cluster) not in ([], keepers), "there is another keeper", SECS)
    assert at.running(run) == job
    at.open(gate)
    at.over(run, gate=gate)


def _connection_killed(at: SignedInUsers, uid: str, cluster: str) -> None:
    signed(at, uid, cluster)
    run, gate = at.gated(uid, cluster)
    job, agent, path = at.running(run), at.agent(uid, cluster), at.socket(uid, cluster)
    at.sshd.sever("main", WHO[uid])
    at.unknown(run, "sign in to link")
    assert not at.ready(uid, cluster)
    at.login(uid, cluster)
    assert at.running(run) == job and at.agent(uid, cluster) == agent
    now = at.socket(uid, cluster)
    assert now != path and now.is_socket() and not path.parent.exists(), (
        "one at a time, and none where somebody could wait for it"
    )
    at.open(gate)
    at.over(run, gate=gate)


def _rebooted(at: SignedInUsers, uid: str, cluster: str) -> None:
    """The login node reboots; the nodes run on."""
    signed(at, uid, cluster)
    run, gate = at.gated(uid, cluster)
    job = at.running(run)
    at.sshd.stop()
    at.sshd.sever("main", WHO[uid])
    at.end_on_login_node(uid)
    at.unknown(run, "sign in to link")
    at.open(gate)
    at.slurm.until_state(job, secs=SECS)
    at.sshd.start()
    at.login(uid, cluster)
    at.over(run, gate=gate)


def _moved_and_frozen(at: SignedInUsers, uid: str, cluster: str) -> None:
    """Two login nodes, one agent: it follows its user's sign-in. (SOAK: also if the agent on the
    other node hangs and resumes later.)
    """
    assert at.far is not None
    signed(at, uid, cluster)
    run, gate = at.gated(uid, cluster)
    job, first = at.running(run), at.agent(uid, cluster)
    left = [first, *at.keepers(uid, cluster)]
    assert set(left) <= set(at.far.processes())
    for pid in left if SOAK else ():
        os.kill(pid, signal.SIGSTOP)
    at.far.cut_off()
    at.unknown(run, "sign in to two")
    at.login(uid, cluster)
    assert at.running(run) == job
    second = [pid for pid in at.agents(uid, cluster) if pid != first]
    assert len(second) == 1 and second[0] not in at.far.processes()
    for pid in left if SOAK else ():
        os.kill(pid, signal.SIGCONT)
    until(
        lambda: at.agents(uid, cluster) == second and len(at.keepers(uid, cluster)) == 1,
        "the one that was left behind ends",
        SECS,
    )
    assert at.running(run) == job
    other, other_gate = at.gated(uid, cluster)
    at.running(other)
    at.far.reboot()
    for r, g in ((run, gate), (other, other_gate)):
        at.open(g)
        at.over(r, gate=g)
    assert at.agents(uid, cluster) == second


def test_one_sign_in_at_a_time_and_a_name_that_was_refused_is_repeated_nowhere(
    at: SignedInUsers,
) -> None:
    secret = "MyPasswordInTheWrongField4711"
    if at.ready(BOB, "tls"):
        at.end_on_login_node(BOB)
        at.sshd.sever("main", "bob")
        until(lambda: not at.ready(BOB, "tls"), "he is signed out", SECS)
    said = at.login(BOB, "tls", code=401, username=secret, password="NotThePassword4711")
    assert (
        said["code"] == "signInRefused"
        and secret not in str(said)
        and secret.lower() not in str(said).lower()
    )
    # the answer may arrive before its log line is written
    until(
        lambda: (
            "did not accept the password of this user" in at.site.log()
            and "did not accept the password of this user" in at.site.logged()
        ),
        "it is logged",
        SECS,
    )
    assert "4711" not in at.site.log() + at.site.logged()
    at.sshd.freeze()
    with ThreadPoolExecutor(1) as pool:
        try:
            begun = at.site.log().count(f"api_sbatchLogin, {BOB}")
            first = pool.submit(at.login, BOB, "tls")
            until(
                lambda: at.site.log().count(f"api_sbatchLogin, {BOB}") > begun,
                "it is under way",
                SECS,
            )
            said = at.login(BOB, "tls", code=429, password="NotThePassword4711")
            assert "in progress" in said["error"], said
        finally:
            at.sshd.thaw()
        assert first.result()["loginSuccess"] and at.sshd.failures("bob") == 0
