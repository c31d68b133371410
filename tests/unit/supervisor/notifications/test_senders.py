"""Webhooks and commands, sent and started for real: the definition of delivered, and protection
from slow or noisy targets.
"""

import asyncio
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from webhook_server import certificates, receiver, reply

from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime import processes
from jobscribe.service.site.notification_file import Target
from jobscribe.supervisor.notifications.command_sender import MOST_READ, MOST_SHOWN, Program
from jobscribe.supervisor.notifications.sender import DeliveryResult, Notification
from jobscribe.supervisor.notifications.webhook_sender import Webhook, signature

SECRET = "4f1d0c6e2b7a98350fdeca1b"
BODY = b'{"schema": "jobscribe.notification/1"}'
LETTER = Notification(
    "user0001-sim00001-command/1/7",
    "error",
    BODY,
    {"ID": "user0001-sim00001-command/1/7", "EVENT": "error"},
)


async def post(
    url: str, *, ca: Path | None = None, secs: float = 5.0, headers: dict[str, str] | None = None
) -> DeliveryResult:
    target = Target(name="a", url=url, ca_file=None if ca is None else str(ca), timeout_secs=secs)
    hook = Webhook(
        target,
        secret=SECRET,
        headers=headers or {},
        redactor=Redactor([SECRET]),
        wall=lambda: 1_700_000_000.5,
    )
    try:
        return await hook.send(LETTER)
    finally:
        hook.close()


async def test_it_is_posted_with_its_id_and_a_signature() -> None:
    with receiver(lambda h: reply(h, 202, b"we have " + SECRET.encode())) as there:
        outcome = await post(there.url, headers={"Authorization": "Bearer abc"})
        ((headers, body),) = there.got
    assert outcome == DeliveryResult(True, "HTTP 202", "we have <REDACTED>")
    assert (
        body == BODY
        and headers["Content-Type"] == "application/json"
        and headers["Authorization"] == "Bearer abc"
    )
    assert headers["Idempotency-Key"] == headers["X-Jobscribe-Id"] == LETTER.id
    assert headers["X-Jobscribe-Timestamp"] == "1700000000"
    assert headers["X-Jobscribe-Signature"] == signature(SECRET, "1700000000", BODY)
    assert SECRET not in str(headers)


@pytest.mark.parametrize(
    ("code", "headers", "said", "asked", "final"),
    [
        (500, {}, "HTTP 500", 0.0, False),
        (404, {}, "HTTP 404", 0.0, False),
        (410, {}, "permanently rejects", 0.0, True),
        (429, {"Retry_After": "17"}, "pause of 17 s", 17.0, False),
        (503, {"Retry_After": "Tue, 14 Nov 2023 22:13:50 GMT"}, "29.5 s", 29.5, False),
        (429, {"Retry_After": "soon"}, "HTTP 429", 0.0, False),
        (500, {"Retry_After": "17"}, "HTTP 500", 0.0, False),
    ],
)
async def test_other_answers_are_failures(
    code: int, headers: dict[str, str], said: str, asked: float, final: bool
) -> None:
    with receiver(lambda h: reply(h, code, b"no", **headers)) as there:
        outcome = await post(there.url)
    assert (
        not outcome.delivered
        and said in outcome.sentence
        and (outcome.asked_secs, outcome.final, outcome.answer) == (asked, final, "no")
    )


async def test_a_redirect_is_not_followed() -> None:
    with receiver() as other, receiver(lambda h: reply(h, 307, Location=other.url)) as there:
        outcome = await post(there.url)
        assert (
            not outcome.delivered
            and "not followed" in outcome.sentence
            and other.got == []
            and len(there.got) == 1
        )


async def test_a_huge_answer_is_neither_kept_nor_a_reason_to_tell_it_again() -> None:
    def flood(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1 << 12):
            handler.wfile.write(b"x" * (1 << 16))

    with receiver(flood) as there:
        outcome = await post(there.url)
    assert outcome.delivered and outcome.answer == "x" * 500


async def test_an_answer_that_drips_for_ever_is_left() -> None:
    gone = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while not gone.wait(0.05):
                handler.wfile.write(b".")
        except OSError:
            gone.set()

    with receiver(drip) as there:
        assert (await post(there.url, secs=0.5)).delivered
        assert await asyncio.to_thread(gone.wait, 10), "its connection is closed"


@pytest.fixture
def bare() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, f"http://127.0.0.1:{server.getsockname()[1]}/"


async def test_who_never_answers_has_his_time_and_no_more(bare: tuple[socket.socket, str]) -> None:
    began = time.monotonic()
    assert await post(bare[1], secs=0.3) == DeliveryResult(False, "no answer within 0.3 s")
    assert time.monotonic() - began < 0.3 + 5


@pytest.mark.parametrize(
    "text",
    [b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200", b"", b"A" * (1 << 20)],
)
async def test_garbage_is_no_answer(bare: tuple[socket.socket, str], text: bytes) -> None:
    def serve() -> None:
        connection, _ = bare[0].accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(text)
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    outcome = await post(bare[1])
    thread.join()
    assert not outcome.delivered and (
        "HTTP answer" in outcome.sentence or "reached" in outcome.sentence
    ), outcome


async def test_who_is_not_there_is_told_from_who_has_no_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert (await post(f"http://127.0.0.1:{port}/")).sentence == "connection refused"
    assert (
        await post("http://no-such-host.invalid/")
    ).sentence == "the host name cannot be resolved"


async def test_its_certificate_is_verified(tmp_path: Path) -> None:
    ca, own = certificates(tmp_path)
    with receiver(tls=own) as there:
        assert (await post(there.url, ca=ca)).delivered
        outcome = await post(there.url)
        assert (
            not outcome.delivered
            and "certificate" in outcome.sentence
            and "caFile" in outcome.sentence
        )
        wrong_name = await post(there.url.replace("127.0.0.1", "localhost"), ca=ca)
        assert not wrong_name.delivered and "certificate" in wrong_name.sentence
        assert len(there.got) == 1


# ---- commands


async def run(*command: str, secs: float = 20.0) -> DeliveryResult:
    program = Program(
        Target(name="a", command=command, timeout_secs=secs), redactor=Redactor([SECRET])
    )
    return await program.send(LETTER)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.process
async def test_a_command_has_the_message_and_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", SECRET)
    await run("/bin/true")
    before = descriptors()
    outcome = await run(
        "/bin/sh",
        "-c",
        f"cat > {tmp_path}/body; env > {tmp_path}/env; pwd; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$; echo {SECRET}",
    )
    assert outcome.delivered, outcome
    folder, open_, sid, pid, secret = outcome.answer.split()
    assert (folder, secret) == ("/", "<REDACTED>") and sid == pid and int(open_) <= 5
    assert (tmp_path / "body").read_bytes() == BODY
    names = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert set(names) <= {
        "PATH",
        "HOME",
        "LANG",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
        "JOBSCRIBE_NOTIFY_ID",
        "JOBSCRIBE_NOTIFY_EVENT",
    }
    assert names["JOBSCRIBE_NOTIFY_ID"] == LETTER.id and SECRET not in str(names)
    assert descriptors() == before


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo no; exit 3", "the command exited with 3"),
        ("echo no; kill -9 $$", "the command was killed by signal 9"),
    ],
)
async def test_its_exit_says_whether_it_took_it(text: str, said: str) -> None:
    assert await run("/bin/sh", "-c", text) == DeliveryResult(False, said, "no\n")


@pytest.mark.process
async def test_one_that_is_missing_or_cannot_be_executed_is_said_so(tmp_path: Path) -> None:
    assert (
        await run("/no/such/program")
    ).sentence == "/no/such/program cannot be started: No such file or directory"
    script = tmp_path / "script"
    script.write_text("no program")
    script.chmod(0o700)
    before = descriptors()
    assert (await run(str(script))).sentence == f"{script} cannot be started: Exec format error"
    assert descriptors() == before


def mine(mark: str) -> list[int]:
    return [
        p.pid
        for p in processes.table().values()
        if not p.over
        and mark.encode() in processes._read(f"/proc/{p.pid}/cmdline")
        and p.pid != os.getpid()
    ]


async def until_gone(mark: str) -> None:
    async with asyncio.timeout(10):
        while mine(mark):
            await asyncio.sleep(0.02)


@pytest.mark.process
async def test_one_that_hangs_is_ended_with_its_children() -> None:
    mark = f"{os.getpid()}.0001"
    outcome = await run(
        "/bin/sh", "-c", f"trap '' TERM; sleep 3{mark} & sleep 3{mark}; sleep 3{mark}", secs=0.5
    )
    assert outcome == DeliveryResult(
        False, "the command did not end within 0.5 s and was killed", ""
    )
    await until_gone(mark)


@pytest.mark.process
async def test_what_it_leaves_behind_is_ended_and_not_waited_for() -> None:
    mark = f"{os.getpid()}.0002"
    began = time.monotonic()
    assert await run("/bin/sh", "-c", f"sleep 3{mark} & echo done") == DeliveryResult(
        True, "the command exited with 0", "done\n"
    )
    assert time.monotonic() - began < 10
    await until_gone(mark)


@pytest.mark.process
async def test_one_that_floods_gets_a_broken_pipe() -> None:
    outcome = await run(
        "/bin/sh",
        "-c",
        "yes; exit 0" if os.path.exists("/usr/bin/yes") else "while :; do echo y; done",
        secs=10.0,
    )
    assert len(outcome.answer) <= MOST_SHOWN
    forever = await run("/usr/bin/yes")
    assert (
        not forever.delivered
        and "signal 13" in forever.sentence
        and str(MOST_READ) in forever.sentence
    )


@pytest.mark.process
async def test_who_closes_ends_what_runs() -> None:
    mark = f"{os.getpid()}.0003"
    program = Program(
        Target(name="a", command=("/bin/sleep", f"3{mark}"), timeout_secs=60.0), redactor=Redactor()
    )
    task = asyncio.get_running_loop().create_task(program.send(LETTER))
    async with asyncio.timeout(10):
        while not mine(mark):
            await asyncio.sleep(0.01)
    task.cancel()
    program.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_gone(mark)


def test_the_signature_is_of_time_and_body() -> None:
    assert (
        len(
            {
                signature(SECRET, t, b)
                for t in ("1", "2")
                for b in (b"", b"1", json.dumps({}).encode())
            }
        )
        == 6
    )
