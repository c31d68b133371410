"""Notifications to systemd, and their protection: child processes do not inherit the notification
socket.
"""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobscribe.service.systemd import Notifier


class Listener:
    """Fake systemd end of the notification socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(5)
        self.env = {"NOTIFY_SOCKET": address}

    def heard(self) -> str:
        return self.socket.recv(4096).decode()


@pytest.fixture(params=["file", "abstract"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with tempfile.TemporaryDirectory() as place:
        made = Listener(
            str(Path(place, "notify"))
            if request.param == "file"
            else f"@jobscribe-test-{os.getpid()}"
        )
        yield made
        made.socket.close()


def test_everything_that_is_said_arrives_as_it_is_meant(listener: Listener) -> None:
    notifier = Notifier(listener.env)
    assert notifier.heard
    notifier.ready()
    assert listener.heard() == "READY=1"
    notifier.alive()
    assert listener.heard() == "WATCHDOG=1"
    notifier.status("two\nlines, " + "and long " * 100)
    assert listener.heard() == ("STATUS=two lines, " + "and long " * 100)[:407]
    notifier.stopping()
    assert listener.heard().splitlines() == ["STOPPING=1", "STATUS=stopping: jobs run on"]


def test_no_child_finds_what_is_meant_for_this_process(listener: Listener) -> None:
    env = listener.env | {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    assert Notifier(env).watchdog_secs == 3.0
    assert env == {"HOME": "/"}


@pytest.mark.parametrize(
    ("usec", "pid", "secs"),
    [
        ("500000", "own", 0.5),
        ("500000", "", 0.5),
        ("500000", "1", None),
        ("", "", None),
        ("0", "", None),
        ("soon", "", None),
        ("-5", "", None),
    ],
)
def test_a_watchdog_is_that_of_this_process_only(
    listener: Listener, usec: str, pid: str, secs: float | None
) -> None:
    whose = str(os.getpid()) if pid == "own" else pid
    assert (
        Notifier(listener.env | {"WATCHDOG_USEC": usec, "WATCHDOG_PID": whose}).watchdog_secs
        == secs
    )


@pytest.mark.parametrize(
    "env", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"WATCHDOG_USEC": "3000000"}]
)
def test_where_nobody_listens_nothing_is_said(env: dict[str, str]) -> None:
    notifier = Notifier(env)
    assert not notifier.heard and notifier.watchdog_secs is None
    notifier.ready()
    notifier.stopping()


def test_one_that_went_away_stops_nobody() -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere/notify"})
    notifier.ready()
    notifier.alive()


@pytest.mark.timeout(20)
def test_one_that_does_not_read_stops_nobody(listener: Listener) -> None:
    notifier = Notifier(listener.env)
    flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    flood.setblocking(False)
    try:
        flood.connect(listener.socket.getsockname())
        while True:
            flood.send(b"x")
    except BlockingIOError:
        notifier.alive()
    finally:
        flood.close()
