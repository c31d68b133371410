"""What this process tells systemd (or whoever else started it with NOTIFY_SOCKET): ready, alive,
stopping, and how it stands.

The protocol is sd_notify(3): datagrams of NAME=VALUE lines to a unix socket. Nothing is sent where
nobody listens, nothing is waited for, and nothing raises: a service that cannot be heard does its
work all the same.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping

#: What systemd shows of a status is a line.
_STATUS_MAX = 400
_SEND_SECS = 1.0


class Notifier:
    """Made once and early, since it takes what systemd said out of `env`: no child must speak in
    this process's name.

    watchdog_secs: a sign of life is expected at least so often; None where nobody waits for one.
    """

    def __init__(self, env: MutableMapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        self._address = env.pop("NOTIFY_SOCKET", "")
        usec, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        self.watchdog_secs = (
            int(usec) / 1e6
            if self._address and ours and usec.isascii() and usec.isdigit() and int(usec)
            else None
        )

    @property
    def heard(self) -> bool:
        """Is there anybody to be told?"""
        return self._address[:1] in ("/", "@")

    def ready(self) -> None:
        """Requests are answered from now on."""
        self._send("READY=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping: jobs run on")

    def status(self, sentence: str) -> None:
        """How things stand, for `systemctl status`."""
        self._send("STATUS=" + " ".join(sentence.split())[:_STATUS_MAX])

    def _send(self, text: str) -> None:
        if not self.heard:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s,
        ):
            # not for ever, should process 1 not read; a timeout is an OSError
            s.settimeout(_SEND_SECS)
            s.sendto(text.encode(), address)
