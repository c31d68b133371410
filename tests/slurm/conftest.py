"""Fixtures with a real Slurm cluster and a real login node. Where they cannot be started, all tests
of this folder are skipped with the reason.
"""

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import why_not
from login_nodes import Sshd, Users
from slurm_cluster import Sites, Slurm, sites
from supervisor_fork_server import MODULES
from supervisor_process import SupervisorProcess, add_logs

SOAK = os.environ.get("SOAK") == "1"
#: Functions that return the logs to add to the report of a failed test: of users' agents and the
#: controller.
_logs: list[Callable[[], list[Path]]] = []
#: Slow files and tests that run only with SOAK=1.
LONG = frozenset(
    {
        "test_batch_real",
        "test_login_node",
        "test_deaths::test_kills_of_the_supervisor_touch_no_job",
        "test_deaths::test_a_node_that_is_lost_ends_what_ran_there_and_nothing_else",
        "test_deaths::test_cancels_that_race_with_the_submission",
        "test_outages::test_what_squeue_has_forgotten_is_asked_of_accounting_and_waited_for",
        "test_outages::test_agents_that_are_cut_off_go_on_and_are_told_of_cancels_afterwards",
        "test_gangs::test_one_that_fails_ends_all_and_all_are_tried_again",
        "test_gangs::test_shards_lend_each_other_the_runs_of_a_cluster",
        "test_gangs::test_one_that_does_not_matter_may_be_ended_alone_and_a_cancel_ends_all",
        "test_signed_in::test_what_is_killed_there_is_there_again",
        "test_mpi::test_a_rank_that_dies_takes_the_others_with_it_and_is_told",
        "test_cluster_checks_real::test_a_time_limit_that_we_refuse_is_one_that_slurm_would_take_and_never_start",
        "test_why_slurm::test_why[its_users_login_hangs_on_the_node]",
        "test_states::test_what_slurm_does[its_limit_in_full_minutes]",
        "test_cluster_checks_real::test_signing_in_the_code_and_the_link_are_tried",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip long tests outside soaks, and set a timeout that covers the start of the cluster."""
    for item in items:
        if item.nodeid.startswith("tests/slurm/"):
            names = {
                item.path.stem,
                f"{item.path.stem}::{item.name}",
                f"{item.path.stem}::{item.name.partition('[')[0]}",
            }
            if not SOAK and names & LONG:
                item.add_marker(
                    pytest.mark.skip(
                        reason="takes long, and others of this folder show most of it: SOAK=1 has it run"
                    )
                )
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(report, *(path for logs in _logs for path in logs()))
    return report


@pytest.fixture(scope="session")
def _cluster() -> Iterator[tuple[Slurm, Users]]:
    """Cluster and users, created in parallel. All users may charge to `research`; alice also to
    `chem` and `spent`.
    """
    if reason := why_not("slurm"):
        pytest.skip(f"no Slurm of one's own: {reason}")
    os.environ[MODULES] = "jobscribe.drivers.sbatch.ssh.sign_in"
    slurm = Slurm()
    users = Users(slurm.conf)
    try:
        with ThreadPoolExecutor() as pool:
            made = [pool.submit(slurm.up, users.accounts()), pool.submit(users.up)]
            for done in made:
                done.result()
        _logs.append(
            lambda: [
                *sorted(users.place.glob("home/*/scratch/jobscribe-*/job_agent.log")),
                slurm.place / "log" / "slurmctld.log",
            ]
        )
        yield slurm, users
    finally:
        _logs.clear()
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(slurm.clean), pool.submit(users.clean)]:
                done.result()


@pytest.fixture
def slurm(_cluster: tuple[Slurm, Users]) -> Iterator[Slurm]:
    """The cluster; after the test it is restored to its original state and no job is left."""
    yield _cluster[0]
    _cluster[0].well()


@pytest.fixture
def hpc_users(_cluster: tuple[Slurm, Users]) -> Iterator[Users]:
    """Unix users with accounts on the cluster: `hpc_users["alice"]`. All their processes are ended
    after the test.
    """
    yield _cluster[1]
    _cluster[1].end_processes()


@pytest.fixture(scope="session")
def _servers(_cluster: tuple[Slurm, Users]) -> Iterator[Sshd]:
    if reason := why_not("sshd"):
        pytest.skip(f"no login node of one's own: {reason}")
    servers = Sshd(_cluster[1])
    try:
        servers.up()
        yield servers
    finally:
        servers.down()


@pytest.fixture
def sshd(_servers: Sshd) -> Iterator[Sshd]:
    """The login node; restored to its original state after the test."""
    yield _servers
    _servers.well()


@pytest.fixture
def cluster_sites(
    slurm: Slurm, hpc_users: Users, request: pytest.FixtureRequest
) -> Iterator[Sites]:
    """Factory for several supervisors or unstarted ones: `cluster_sites.make(*sets, clusters={...},
    people={...})`.
    """
    with sites(slurm, hpc_users, lambda: request.getfixturevalue("sshd")) as made:
        yield made


@pytest.fixture
def make_cluster_site(cluster_sites: Sites) -> Callable[..., SupervisorProcess]:
    """Factory for started supervisors with only the sbatch driver: `make_cluster_site(*sets,
    clusters={...}, people={...})`. Everything is removed after the test.
    """

    def make(*sets: str, **options: Any) -> SupervisorProcess:
        return cluster_sites.make(*sets, **options).start()

    return make
