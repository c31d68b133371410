"""The supervisors of `jobscribe up --shards`: one process for each shard, started again when it dies,
stopped when `up` ends.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ...protocol.errors import Refusal
from ...runtime import processes
from ...service.settings.settings import Settings
from ...service.site.shards import make_secrets

FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 0.5, 10.0
#: A process that ran this long starts again without backoff.
STABLE_SECS = 60.0
START_SECS, STOP_SECS = 120.0, 20.0

_log = logging.getLogger(__name__)


class ShardProcesses:
    """options, file: the sources of the settings, so that the children load the same ones."""

    def __init__(self, settings: Settings, options: Mapping[str, Any], file: str | None) -> None:
        assert settings.shards.count is not None
        self._settings = settings
        self._words = _command(settings, options, file)
        self._stopping = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all supervisors, and return when each one serves or stands by. Raises Refusal."""
        assert self._settings.shards.count is not None
        try:
            make_secrets(self._settings)
        except OSError as e:
            raise Refusal(
                "badConfig", f"the root {self._settings.root} cannot be used: {e.strerror}"
            ) from None
        shards = range(self._settings.shards.count)
        for shard in shards:
            self._children[shard] = self._spawn(shard)
        for shard in shards:
            if not _is_ready(self._children[shard]):
                raise Refusal(
                    "internal",
                    f"the supervisor of shard {shard} did not start; the log lines above give the reason",
                )
        for shard in shards:
            thread = threading.Thread(target=self._follow, args=(shard,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop all supervisors and wait for their ends. Jobs continue."""
        self._stopping.set()
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + STOP_SECS
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            if child.poll() is None:
                child.kill()
                child.wait()
        for thread in self._threads:
            thread.join(STOP_SECS)

    def _follow(self, shard: int) -> None:
        """Start the supervisor of a shard again whenever it ends."""
        pause = FIRST_PAUSE_SECS
        while True:
            child, begun = self._children[shard], time.monotonic()
            code = child.wait()
            if self._stopping.is_set():
                return
            stable = time.monotonic() - begun > STABLE_SECS
            pause = FIRST_PAUSE_SECS if stable else min(2 * pause, LONGEST_PAUSE_SECS)
            _log.error(
                "the supervisor of shard %d ended (exit code %s); starting it again in %.1f s",
                shard,
                code,
                pause,
            )
            if self._stopping.wait(pause):
                return
            self._children[shard] = self._spawn(shard)
            if self._stopping.is_set():
                self._children[shard].terminate()
            _is_ready(self._children[shard])

    def _spawn(self, shard: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self._words, "--shard", str(shard)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd="/",
            # as `up` stops it, when `up` is killed
            preexec_fn=lambda: processes.end_with_parent(signal.SIGTERM),
        )


def _command(settings: Settings, options: Mapping[str, Any], file: str | None) -> list[str]:
    words = [sys.executable, "-P", "-m", "jobscribe.cli", "--root", settings.root, "supervisor"]
    if file is not None:
        words += ["--config", os.path.abspath(file)]
    for name, value in options.items():
        # the address is the router's
        if name not in ("root", "supervisor.port", "supervisor.ip", "server.port", "server.ip"):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--set", f"{name}={text}"]
    return words


def _is_ready(child: "subprocess.Popen[bytes]") -> bool:
    """Wait for the line of a supervisor that is ready. Return False if it ended."""
    assert child.stdout is not None
    with child.stdout:
        return child.stdout.readline().startswith(b"jobscribe ready")
