"""Names and labels of our objects on Docker hosts: unique for each deployment, user, kind and task,
and never confused with other objects.
"""

import re

import pytest

from jobscribe.drivers.deployment_name import deployment
from jobscribe.drivers.docker.containers import names
from jobscribe.protocol.ids import AgentKey, Token

KEY = AgentKey("docker", "sequential", "User0001", "a")
TOKEN = Token("User0001-Simu0001-animation", 3, 1, "worker", 7)
#: Docker's rule for container names.
DOCKERS = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+\Z")


def test_names_of_everything() -> None:
    assert names.agent(KEY) == "srj-s-User0001"
    assert names.agent(AgentKey("docker", "parallel", "User0001", "a")) == "srj-p-User0001"
    assert names.agent(KEY, "depl0001") == "srj-s-User0001-depl0001"
    assert names.task("User0001", TOKEN, "depl0001") == "srj-t-User0001-477405bbfc8c"
    assert names.relay("depl0001") == "jobscribe-relay-depl0001"
    assert names.links("depl0001") == "jobscribe-links-depl0001"
    assert names.network(TOKEN, "depl0001") == "srj-n-8d8fa548e8f1"


def test_docker_takes_them() -> None:
    for name in (
        names.agent(KEY, "depl0001"),
        names.task("User0001", TOKEN, "d"),
        names.relay("d"),
        names.links("d"),
        names.network(TOKEN, "d"),
    ):
        assert DOCKERS.match(name)


@pytest.mark.parametrize(
    "other",
    [
        Token("User0001-Simu0001-animation", 3, 1, "worker", 8),
        Token("User0001-Simu0001-animation", 3, 2, "worker", 7),
        Token("User0001-Simu0001-animation", 4, 1, "worker", 7),
        Token("User0001-Simu0001-animation", 3, 1, "server", 7),
        Token("User0001-Simu0002-animation", 3, 1, "worker", 7),
    ],
)
def test_every_execution_has_a_name_of_its_own(other: Token) -> None:
    assert names.task("User0001", TOKEN, "depl0001") != names.task("User0001", other, "depl0001")


def test_a_gang_has_one_network_and_another_attempt_another() -> None:
    mate, again = Token(TOKEN.jid, 3, 1, "server", 0), Token(TOKEN.jid, 3, 2, "worker", 7)
    assert names.network(TOKEN, "d") == names.network(mate, "d") != names.network(again, "d")


def test_two_deployments_on_a_host_share_no_name_but_the_plain_one() -> None:
    for name in (
        lambda d: names.task("User0001", TOKEN, d),
        names.relay,
        names.links,
        lambda d: names.network(TOKEN, d),
        lambda d: names.agent(KEY, d),
    ):
        assert name("depl0001") != name("depl0002")


def test_a_deployment_is_told_by_its_key_alone_and_does_not_tell_it() -> None:
    one, other = deployment(b"k" * 32), deployment(b"l" * 32)
    assert one != other and one == deployment(b"k" * 32)
    assert re.fullmatch(r"[a-z0-9]{8}", one) and re.fullmatch(r"[a-z0-9]{8}", other)
    assert deployment(b"k" * 64 + b"more") == deployment(b"k" * 64)


def test_labels_of_agents_and_tasks() -> None:
    assert names.agent_labels("depl0001", KEY, "AbCdEfGh" * 4, 1700000000.7) == {
        "jobscribe.deployment": "depl0001",
        "jobscribe.part": "agent",
        "jobscribe.key": "docker.sequential.User0001@a",
        "jobscribe.uid": "User0001",
        "jobscribe.kind": "sequential",
        "jobscribe.agent": "AbCd",
        "jobscribe.started": "1700000000",
    }
    place = AgentKey("docker", "container", "User0001", "a")
    assert names.task_labels("depl0001", place, TOKEN, "OpIdOpId" * 4, 1700000000) == {
        "jobscribe.deployment": "depl0001",
        "jobscribe.part": "task",
        "jobscribe.key": "docker.container.User0001@a",
        "jobscribe.uid": "User0001",
        "jobscribe.kind": "container",
        "jobscribe.started": "1700000000",
        "jobscribe.jid": TOKEN.jid,
        "jobscribe.token": str(TOKEN),
        "jobscribe.op": "OpIdOp",
        "jobscribe.agent": "",
    }


def test_what_is_ours() -> None:
    labels = names.agent_labels("depl0001", KEY, "i" * 32, 0)
    assert names.is_ours(labels, "depl0001")
    assert not names.is_ours(labels, "depl0002")
    assert not names.is_ours(labels, "depl0001", "task")
    assert not names.is_ours(None, "depl0001") and not names.is_ours({}, "depl0001")


def test_a_filter_asks_for_the_deployment_and_the_part_always() -> None:
    assert names.filters("depl0001", "agent", key=str(KEY)) == {
        "label": [
            "jobscribe.deployment=depl0001",
            "jobscribe.part=agent",
            "jobscribe.key=docker.sequential.User0001@a",
        ],
    }
