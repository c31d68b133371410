"""Agents of the previous release on a login node, under the supervisor of the tree, and back: with jobs
that run in a real Slurm, for a user who signs in with ssh and for one who need not.
"""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import free_ports
from login_nodes import Sshd, Users
from released_version import PREVIOUS, Released, install
from signed_in_users import ALICE, BOB, SECS, WHO, SignedInUsers
from slurm_cluster import Slurm, sites
from supervisor_process import SupervisorProcess, until

from jobscribe.protocol.version import VERSION

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.soak("tests/integration/test_upgrade.py, without a cluster"),
]
CLUSTERS: dict[str, dict[str, Any]] = {
    "link": {"access": "ssh", "link": "ssh"},
    "direct": {"access": "runuser", "link": "direct", "folder": "$HOME/scratch/direct"},
}
#: The clusters of the users.
USED = ((ALICE, "link"), (BOB, "direct"))


def start(site: SupervisorProcess, version: Released | None) -> None:
    """Start the supervisor of a released version; None: of the tree."""
    site._python = sys.executable if version is None else version.python
    site._env.pop("PYTHONPATH", None)
    if version is not None:
        site._env["PYTHONPATH"] = ""  # may lead to the tree
    site.start()
    expected = VERSION if version is None else version.version
    assert f'version="{expected}"' in site.ask("GET", "/metrics").body.decode()


def signed(at: SignedInUsers) -> None:
    if not at.ready(ALICE, "link"):
        assert at.login(ALICE, "link")["loginSuccess"]


def versions(at: SignedInUsers) -> dict[str, str]:
    """Return the versions of the agents that are up, by user."""
    return {
        uid: str(agent["version"])
        for uid, _ in USED
        for agent in at.site.post("agents", uid=uid)["agents"]
        if agent["version"]
    }


def test_agents_of_the_previous_release_work_on_with_their_jobs(
    slurm: Slurm, hpc_users: Users, sshd: Sshd, tmp_path: Path
) -> None:
    released = install(PREVIOUS, tmp_path / PREVIOUS)
    with sites(slurm, hpc_users, lambda: sshd) as made:
        port = f"supervisor.agents_port={free_ports(1)}"
        site = made.make(port, clusters=CLUSTERS, people=dict(WHO))
        at = SignedInUsers(site, slurm, hpc_users, sshd)
        start(site, released)
        signed(at)
        runs = [at.gated(uid, cluster, 3) for uid, cluster in USED]
        jobs = [at.running(run, gate) for run, gate in runs]
        agents = [at.agent(uid, cluster) for uid, cluster in USED]
        old = {uid: PREVIOUS for uid, _ in USED}
        assert versions(at) == old
        for version in (None, released, None):
            site.stop(signal.SIGKILL)
            start(site, version)
            signed(at)
            assert [at.running(run) for run, _ in runs[:2]] == jobs
            until(lambda: versions(at) == old, "the agents are the old ones", SECS)
            assert [at.agent(uid, cluster) for uid, cluster in USED] == agents
            later = [at.gated(uid, cluster) for uid, cluster in USED]
            for run, gate in later:
                at.running(run, gate)
            runs += later
        for run, gate in runs:
            at.open(gate)
            code = 3 if (run, gate) in runs[:2] else 0
            said = at.over(run, "error" if code else "completed", gate)
            assert said["exit"]["code"] == code
            assert at.site.output(run).body == b"begun\nover\n"
        # as docs/compatibility.md says: agents without jobs are stopped, the next have the new code
        done = site.command("agent", "stop", "--all", "--all-users")
        assert done.returncode == 0, done.stdout + done.stderr
        for uid, cluster in USED:
            until(lambda: not at.agents(uid, cluster), "it has ended", SECS)
        signed(at)
        for uid, cluster in USED:
            at.over(at.run("true", uid, cluster))
        assert versions(at) == {uid: VERSION for uid, _ in USED}
        assert "no fault found" in site.command("db", "check").stdout
        at.close()
