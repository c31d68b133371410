"""The plain client with a supervisor that fails, disappears and comes back."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.sync_client import Client
from jobscribe.client.transport.address import in_root
from jobscribe.client.transport.plain_connection import PlainConnection

Fake = Any


def until(condition: Callable[[], object], secs: float = 20.0) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.005)


@pytest.fixture
def client(fake: Fake) -> Iterator[Client]:
    with Client.from_root(fake.root, budget_secs=15.0) as client:
        yield client


@contextmanager
def elsewhere(function: Callable[[Client], object], client: Client) -> Iterator[threading.Thread]:
    """Run `function` in another thread with its own client; join the thread at the end of the
    block.
    """

    def run() -> None:
        with client.copy() as own:
            function(own)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()


def test_a_command_gets_a_slot_of_its_own_each_time(client: Client, fake: Fake) -> None:
    a, b = client.run(["date"], time_limit_secs=5.0, env={"A": "1"}), client.run(["date"])
    assert a.jid != b.jid
    spec = fake.submitted()[0]
    assert (spec["command"], spec["timeLimitSecs"], spec["env"], spec["uid"]) == (
        ["date"],
        5.0,
        {"A": "1"},
        client.uid,
    )
    assert {p for p, _ in fake.requests} == {"run-simulation"}


def test_what_has_no_shape_is_refused_before_it_is_sent(client: Client, fake: Fake) -> None:
    for command, options in (
        (["a\0b"], {}),
        ([], {}),
        (["a"], {"time_limit_secs": -1.0}),
        (["a"], {"no_such_option": 1}),
    ):
        with pytest.raises(ClientError) as e:
            client.run(command, **options)
        assert e.value.code == "badRequest"
    assert fake.requests == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo hi", ["not str", "['echo', 'hi']", "['sh', '-c', 'echo hi']"]),
        (b"echo", ["not bytes"]),
        (["sleep", 5], ["word 1", "str(5)"]),
        (5, ["not int"]),
    ],
)
def test_a_command_that_is_no_list_of_texts_is_refused_with_what_is_meant(
    client: Client, fake: Fake, command: Any, words: list[str]
) -> None:
    with pytest.raises(TypeError) as e:
        client.run(command)
    assert [word for word in words if word not in str(e.value)] == []
    assert fake.requests == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpu": 2}, ["task={'cpu': 2}"]),
        (
            {"time_limt_secs": 2},
            ["did you mean 'time_limit_secs'?", "there are: simulation_type, "],
        ),
        ({"task": {"cpus": 2}}, ["task has no option 'cpus'", "did you mean 'cpu'?", "memory_mb"]),
    ],
)
def test_an_option_that_there_is_not_is_answered_with_those_that_there_are(
    client: Client, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ClientError) as e:
        client.run(["date"], **options)
    assert e.value.code == "badRequest"
    assert [word for word in words if word not in e.value.sentence] == []


def test_an_answer_that_says_so_is_asked_for_again_with_the_same_reqid(
    client: Client, fake: Fake
) -> None:
    fake.fail("run-simulation", "storageUnavailable", times=3)
    job = client.run(["date"])
    assert job.jid in fake.jobs
    assert fake.failures == []


def test_a_request_whose_answer_was_lost_is_not_carried_out_twice(
    client: Client, fake: Fake
) -> None:
    client.run(["warm", "up"])
    fake.cut("run-simulation", times=2)
    job = client.run(["date"])
    sent = [body for path, body in fake.requests if path == "run-simulation"][1:]
    assert len(sent) == 3
    assert len({body["reqId"] for body in sent}) == 1
    assert [jid for jid in fake.jobs if fake.jobs[jid]["spec"]["command"] == ["date"]] == [job.jid]


def test_an_answer_that_is_final_is_raised_at_once_as_it_is(client: Client, fake: Fake) -> None:
    fake.fail("run-simulation", "runDirUnwritable", "the run directory cannot be written")
    with pytest.raises(ClientError) as e:
        client.run(["date"])
    assert (e.value.code, e.value.sentence) == (
        "runDirUnwritable",
        "the run directory cannot be written",
    )
    assert "writable" in e.value.advice
    assert fake.submitted() == []


def test_the_budget_ends_the_trying(fake: Fake) -> None:
    slept: list[float] = []
    client = Client.from_root(fake.root, budget_secs=0.3)
    client._connection._sleep = lambda secs: (slept.append(secs), time.sleep(secs))[1]  # type: ignore[func-returns-value]
    fake.fail("job-list", "storageUnavailable", times=1000)
    with client, pytest.raises(ClientError, match="storageUnavailable"):
        client.jobs()
    assert slept
    assert sum(slept) <= 0.3


def test_a_connection_that_was_closed_while_idle_is_no_trouble(fake: Fake) -> None:
    troubles: list[object] = []
    with Client(
        fake.url,
        fake.token,
        "EPRSqtUW",
        budget_secs=0.0,
        on_trouble=lambda e, s: troubles.append(e),
    ) as client:
        client.jobs()
        fake.drop_connections()
        client.jobs()
    assert troubles == []


def test_a_restart_on_another_port_is_survived(client: Client, fake: Fake) -> None:
    job = client.run(["sleep", "9"])
    old = fake.port
    fake.stop()
    result: list[Any] = []
    with elsewhere(
        lambda c: result.append((c.wait(job.jid, timeout=30).shell_code, c.url)), client
    ):
        fake.start()
        assert fake.port != old
        until(lambda: any(p == "run-status" for p, _ in fake.requests))
        fake.end(job.jid, code=7)
    assert result == [(7, fake.url)]


def test_a_new_token_on_the_old_port_is_looked_up(client: Client, fake: Fake) -> None:
    job = client.run(["date"])
    fake.token = "N" + fake.token[1:]
    fake.publish()
    assert job.status().state == "pending"


def test_a_wrong_token_is_refused_and_not_tried_again(fake: Fake) -> None:
    troubles: list[object] = []
    with (
        Client(
            fake.url, "wrong" * 5, "EPRSqtUW", on_trouble=lambda e, s: troubles.append(e)
        ) as client,
        pytest.raises(ClientError) as e,
    ):
        client.jobs()
    assert e.value.code == "unauthenticated"
    assert troubles == []


def test_no_supervisor_says_which_root_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as e:
        Client.from_root(tmp_path / "none", budget_secs=0.1).jobs()
    assert e.value.code == "noSupervisor"
    assert str(tmp_path / "none") in e.value.sentence
    assert "jobscribe up" in e.value.advice


def test_the_root_of_somebody_else_is_said_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    troubles: list[object] = []
    with pytest.raises(ClientError) as e:
        Client.from_source(in_root(tmp_path), on_trouble=lambda e, s: troubles.append(e)).jobs()
    assert (e.value.code, troubles) == ("foreignRoot", [])
    assert (
        "belongs to another user" in e.value.sentence
        and "as the owner of the root" in e.value.advice
    )


def test_nobody_at_the_address_is_unreachable(fake: Fake) -> None:
    fake.stop()
    with pytest.raises(ClientError) as e:
        Client(fake.url, fake.token, "EPRSqtUW", budget_secs=0.1).jobs()
    assert e.value.code == "unreachable"
    assert fake.url in e.value.sentence


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"url":1}', '{"url":"http://x","token":"t","uid":"tooLongUid"}']
)
def test_an_address_file_that_is_none_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "client.json").write_text(content)
    with pytest.raises(ClientError) as e:
        in_root(tmp_path)()
    assert e.value.code == "noSupervisor"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8001", "ftp://x", "http://", "http://x/path", "http://x:port"]
)
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ClientError) as e:
        Client(url, "t", "EPRSqtUW").jobs()
    assert e.value.code == "badRequest"


def test_the_secret_shows_in_no_repr(fake: Fake) -> None:
    address = in_root(fake.root)()
    assert fake.token not in repr(address) + str(address)


def test_many_runs_are_answered_in_order_each_for_itself(client: Client, fake: Fake) -> None:
    specs = [client.spec(["echo", word]) for word in ("a", "refuse-me", "c")]
    a, b, c = client.run_many(specs)
    assert isinstance(b, ClientError)
    assert b.code == "badRequest"
    assert not isinstance(a, ClientError)
    assert not isinstance(c, ClientError)
    assert [fake.jobs[j.jid]["spec"]["command"][1] for j in (a, c)] == ["a", "c"]
    assert a.serial > 0


def test_waiting_holds_one_request_open_and_ends_with_the_run(client: Client, fake: Fake) -> None:
    job = client.run(["sleep", "9"])
    threading.Timer(0.3, lambda: fake.end(job.jid, code=None, signal=9)).start()
    state = job.wait()
    assert (state.shell_code, state.state, state.finished) == (137, "error", True)
    assert sum(p == "run-status" for p, _ in fake.requests) == 1


def test_waiting_with_a_timeout_tells_the_state_then(client: Client, fake: Fake) -> None:
    job = client.run(["sleep", "9"])
    begun = time.monotonic()
    state = job.wait(timeout=0.2)
    assert not state.finished
    assert time.monotonic() - begun >= 0.2


def test_a_run_that_did_not_complete_is_never_a_success(client: Client, fake: Fake) -> None:
    job = client.run(["trap", "''", "TERM"])
    fake.end(job.jid, code=0, state="canceled")
    assert job.wait().shell_code == 125


def test_a_run_that_nobody_knows_of_is_not_waited_for(client: Client, fake: Fake) -> None:
    with pytest.raises(ClientError, match="notFound"):
        client.wait("EPRSqtUW-00000000-command")


def test_logs_are_read_to_what_is_there(client: Client, fake: Fake) -> None:
    job = client.run(["x"])
    fake.write(job.jid, "stdout", b"0123456789" * 5)
    assert b"".join(p.data for p in job.logs()) == b"0123456789" * 5
    assert b"".join(p.data for p in job.logs(tail=13)) == b"7890123456789"
    assert b"".join(p.data for p in job.logs("stderr")) == b""


def test_followed_logs_come_as_they_are_written_and_end_with_the_run(
    client: Client, fake: Fake
) -> None:
    job = client.run(["x"])
    got: list[bytes] = []
    with elsewhere(lambda c: got.extend(p.data for p in c.logs(job.jid, follow=True)), client):
        fake.write(job.jid, "stdout", b"first\n")
        until(lambda: b"".join(got) == b"first\n")
        fake.stop()
        fake.write(job.jid, "stdout", b"while away\n")
        fake.start()
        until(lambda: b"".join(got) == b"first\nwhile away\n")
        fake.write(job.jid, "stdout", b"last")
        fake.end(job.jid)
    assert b"".join(got) == b"first\nwhile away\nlast"


def test_followed_logs_end_with_the_run_even_if_nobody_says_so(client: Client, fake: Fake) -> None:
    job = client.run(["x"])
    fake.write(job.jid, "stdout", b"all of it")
    fake.end(job.jid)
    fake.change(job.jid, never_ends=True)
    assert b"".join(p.data for p in job.logs(follow=True)) == b"all of it"


def test_what_was_dropped_is_told(client: Client, fake: Fake) -> None:
    job = client.run(["x"])
    fake.write(job.jid, "stdout", b"tail")
    fake.change(job.jid, dropped=1000)
    fake.end(job.jid)
    assert next(iter(job.logs())).dropped == 1000


def test_events_come_once_and_in_order_over_cut_streams_and_a_restart(
    client: Client, fake: Fake
) -> None:
    for _ in range(5):
        fake.happen("TaskPlaced")
    fake.cut_after, fake.cut_with = 3, b"id: 4\nevent: TaskPlaced\n"
    stream = client.events(after=0)
    assert [next(stream).position for _ in range(5)] == [1, 2, 3, 4, 5]
    fake.stop()
    fake.happen("TaskStarted")
    fake.start()
    fake.fail("events", "draining")
    last = next(stream)
    assert (last.position, last.event["type"]) == (6, "TaskStarted")
    stream.close()
    assert [s["last"] for s in fake.streams_opened] == ["0", "3", "5"]


def test_events_from_now_on_miss_none_when_the_stream_is_cut_before_the_first(
    client: Client, fake: Fake
) -> None:
    fake.happen("before")
    fake.cut_after = 0
    got: list[Any] = []
    with elsewhere(lambda c: got.append(next(c.events())), client):
        until(lambda: fake.streams_opened)
        fake.happen("first")
    assert got[0].event["type"] == "first"
    assert fake.streams_opened[1]["last"] == "1"


def test_a_stream_that_says_nothing_is_taken_for_cut(client: Client, fake: Fake) -> None:
    got: list[Any] = []
    with elsewhere(lambda c: got.append(next(c.events(idle_secs=0.1))), client):
        until(lambda: len(fake.streams_opened) >= 3)
        fake.happen("at last")
    assert got[0].event["type"] == "at last"


def test_events_with_a_wrong_token_are_refused(fake: Fake) -> None:
    with (
        closing(Client(fake.url, "wrong" * 5, "EPRSqtUW")) as client,
        pytest.raises(ClientError, match="unauthenticated"),
    ):
        next(client.events())


def test_an_interrupted_request_leaves_no_answer_for_the_next_one(
    client: Client, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.run(["date"])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(PlainConnection, "_headers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.cancel(job.jid)
    assert len(client._connection._idle) == 0
    assert client.jobs().jobs[0]["jid"] == job.jid


def test_pages_lead_to_all_jobs(client: Client, fake: Fake) -> None:
    made = {client.run(["x"]).jid for _ in range(5)}
    seen: list[str] = []
    before = None
    while True:
        page = client.jobs(limit=2, before=before)
        seen += [r["jid"] for r in page.jobs]
        if page.next is None:
            break
        before = page.next
    assert len(seen) == 5
    assert set(seen) == made


def test_an_answer_with_new_fields_is_understood(client: Client, fake: Fake) -> None:
    job = client.run(["x"])
    fake.change(
        job.jid, exit={"code": 0, "source": "keeper", "newField": 1}, state="completed", over=True
    )
    assert job.status().exit is not None
    assert json.loads(json.dumps(job.status().raw))["exit"]["newField"] == 1
