"""Notifications to systemd, or another service manager that sets NOTIFY_SOCKET: ready, alive,
stopping, status.

The protocol is sd_notify(3): datagrams with NAME=VALUE lines to a unix socket. Without a socket
nothing is sent. Nothing waits and nothing raises: a service works without a service manager too.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping

#: systemd shows a status as one line.
_STATUS_MAX = 400
_SEND_SECS = 1.0


class Notifier:
    """Sends notifications. Create it once and early: it removes systemd's variables from `env`, so
    that no child process can use them.

    watchdog_secs: maximum time between two alive signals; None without a watchdog.
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
        """Return whether a service manager listens."""
        return self._address[:1] in ("/", "@")

    def ready(self) -> None:
        """Report that requests are served."""
        self._send("READY=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping: jobs run on")

    def status(self, sentence: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send("STATUS=" + " ".join(sentence.split())[:_STATUS_MAX])

    def _send(self, text: str) -> None:
        if not self.heard:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s,
        ):
            # A limit in case process 1 does not read; a timeout is an OSError.
            s.settimeout(_SEND_SECS)
            s.sendto(text.encode(), address)
