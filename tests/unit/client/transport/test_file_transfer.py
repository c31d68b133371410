"""App calls, files and libraries in the plain client, with a supervisor that fails, refuses and
closes connections.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.sync_client import Client

Fake = Any


@pytest.fixture
def client(fake: Fake) -> Iterator[Client]:
    with Client.from_root(fake.root, budget_secs=15.0) as client:
        yield client


def asked(fake: Fake, path: str) -> list[dict[str, Any]]:
    return [body for p, body in fake.requests if p == path]


def code_of(work: Any) -> str:
    with pytest.raises(ClientError) as e:
        work()
    return e.value.code


def test_what_an_app_answers_comes_as_it_is(client: Client, fake: Fake) -> None:
    assert (
        client.call("stateless_compute", "myapp", method="idealWeight", args={"height": 2})
        == b'{"said":  [1, null]}'
    )
    (body,) = asked(fake, "call")
    assert (body["uid"], body["jobCmd"], body["simulationType"], body["args"]) == (
        client.uid,
        "stateless_compute",
        "myapp",
        {"height": 2},
    )


@pytest.mark.parametrize("code", ["deadline", "tooManyRequests", "notReady", "appFailed"])
def test_a_call_is_not_sent_again_where_that_would_only_add_to_the_trouble(
    client: Client, fake: Fake, code: str
) -> None:
    fake.fail("call", code)
    assert code_of(lambda: client.call("stateless_compute", "myapp", method="m")) == code
    assert len(fake.failures) == 0 and asked(fake, "call") == []


@pytest.mark.parametrize("code", ["agentUnavailable", "draining", "storageUnavailable"])
def test_a_call_is_sent_again_where_its_agent_or_the_supervisor_is_away_for_a_moment(
    client: Client, fake: Fake, code: str
) -> None:
    fake.fail("call", code, times=2)
    assert client.call("stateless_compute", "myapp", method="m") == b'{"said":  [1, null]}'


def test_a_call_whose_answer_was_lost_is_sent_again(client: Client, fake: Fake) -> None:
    fake.cut("call")
    client.call("stateless_compute", "myapp", method="m")
    assert len(asked(fake, "call")) == 2


def test_sessions_apps_and_ports(client: Client, fake: Fake) -> None:
    client.begin_session()
    assert client.apps() == ["command", "heat"]
    assert client.global_resources("heat", "i9btqxdR", ports=2)["ports"] == [20000, 20001]
    assert asked(fake, "begin-session") == [{"uid": client.uid, "driver": ""}]


def test_the_reqid_and_the_serial_may_be_the_callers(client: Client, fake: Fake) -> None:
    client.submit(client.spec(["date"]), req_id="browser-0001", serial=7)
    (body,) = asked(fake, "run-simulation")
    assert (body["reqId"], body["computeJobSerial"]) == ("browser-0001", 7)


# ---- files


def test_a_file_comes_in_pieces(client: Client, fake: Fake) -> None:
    fake.file = bytes(i % 256 for i in range(1_000_000))
    with client.open_file("EPRSqtUW-i9btqxdR-m", "out.dat", offset=10) as f:
        pieces = list(f.pieces())
    assert b"".join(pieces) == fake.file[10:]
    assert (f.size, f.length, f.etag, len(pieces) > 1) == (1_000_000, 999_990, '"e"', True)
    with client.open_file("EPRSqtUW-i9btqxdR-m", "out.dat", offset=5, length=3) as f:
        assert (f.read(), f.length) == (fake.file[5:8], 3)


def test_a_file_that_breaks_off_is_not_taken_for_whole(client: Client, fake: Fake) -> None:
    fake.file, fake.file_cut_after = b"x" * 600_000, 300_000
    with client.open_file("EPRSqtUW-i9btqxdR-m", "out.dat") as f:
        assert code_of(f.read) == "unreachable"


def test_a_file_that_is_refused_or_for_the_moment_cannot_be_had(client: Client, fake: Fake) -> None:
    fake.file = b"1"
    fake.fail("run-file", "notFound")
    assert code_of(lambda: client.open_file("EPRSqtUW-i9btqxdR-m", "x")) == "notFound"
    fake.fail("run-file", "agentUnavailable", times=2)
    with client.open_file("EPRSqtUW-i9btqxdR-m", "x") as f:
        assert f.read() == b"1"


def test_a_library(client: Client, fake: Fake) -> None:
    said = client.upload("heat", "a b&c=d.dat", iter([b"one", b"two"]), 6)
    assert said == {"name": "a b&c=d.dat", "size": 6, "sha256": "s"}
    assert [f["name"] for f in client.lib_files("heat")] == ["a b&c=d.dat"]
    client.delete_file("heat", "a b&c=d.dat")
    assert client.lib_files("heat") == []
    assert code_of(lambda: client.delete_file("heat", "a b&c=d.dat")) == "notFound"


def test_an_upload_that_is_refused_in_the_middle_says_why(client: Client, fake: Fake) -> None:
    """The server stops reading and answers. The client reports that answer, not a broken
    connection.
    """
    fake.upload_limit = 1_000_000
    sent: list[int] = []

    def endless() -> Iterator[bytes]:
        for n in range(1000):
            sent.append(n)
            yield b"x" * 65536

    assert code_of(lambda: client.upload("heat", "a", endless(), 65_536_000)) == "tooLarge"
    assert len(sent) < 1000, "not all of it was sent for nothing"
    assert client.lib_files("heat") == []


def test_what_the_source_of_an_upload_raises_is_its_callers(client: Client, fake: Fake) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise RuntimeError("the disk of the caller")

    with pytest.raises(RuntimeError, match="of the caller"):
        client.upload("heat", "a", broken(), 100)
    assert client.lib_files("heat") == []


def test_an_answer_to_run_file_that_is_none(client: Client, fake: Fake) -> None:
    fake.failures.append(("run-file", (200, json.dumps({"state": "ok"}).encode())))
    assert code_of(lambda: client.open_file("EPRSqtUW-i9btqxdR-m", "x")) == "notASupervisor"
