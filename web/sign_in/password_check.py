"""Checks names and passwords with PAM in child processes, with a deadline. A password is in no
argument, environment, log or message.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from ...protocol.errors import Refusal
from ...runtime.log.logger import Log
from .pam_process import MODULE

#: Time limit of one check, in seconds. pam_unix delays a refusal by 2 to 3 s.
CHECK_SECS = 15.0
#: Checks at once: each one holds a worker.
AT_ONCE = 4


class PasswordCheck:
    """PAM of this machine. service: its name. env: environment of the child processes (default: of
    this process).
    """

    def __init__(
        self,
        service: str,
        log: Log,
        *,
        secs: float = CHECK_SECS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._service, self._log, self._secs = service, log, secs
        self._env = env
        self._busy = threading.BoundedSemaphore(AT_ONCE)

    def name(self, name: str, password: str) -> str:
        """Return the account's name. Raises Refusal: signInRefused (the same for a wrong password
        and for an unknown name), signInDenied, signInUnavailable.
        """
        if "\0" in name or "\0" in password:
            raise _refused()  # PAM would take the text before it
        if not self._busy.acquire(blocking=False):
            raise Refusal("signInUnavailable", "too many people are signing in at this moment")
        try:
            said = self._asked(name, password)
        finally:
            self._busy.release()
        outcome, account = said.get("outcome"), said.get("name")
        if outcome == "ok" and isinstance(account, str):
            return account
        self._log("PAM service {} answered {} ({})", self._service, outcome, said.get("code"))
        match outcome:
            case "refused":
                raise _refused()
            case "account":
                raise Refusal(
                    "signInDenied",
                    "the password is right, but your account may not sign in now; it may be locked, or the password expired",
                )
            case _:
                raise Refusal("signInUnavailable", "passwords cannot be checked at the moment")

    def _asked(self, name: str, password: str) -> dict[str, Any]:
        """Return the answer of a child process; an empty one if there is none by the deadline."""
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=None if self._env is None else dict(self._env),
            start_new_session=True,
        )
        asked = {"service": self._service, "name": name, "password": password}
        try:
            out, _ = child.communicate(json.dumps(asked).encode() + b"\n", self._secs)
            said = json.loads(out)
        except subprocess.TimeoutExpired:
            self._log("PAM service {} did not answer within {:g} s", self._service, self._secs)
            # its helpers too; the group exists, because the child was not waited for
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            said = {}
        except (ValueError, OSError):
            said = {}
        finally:
            child.kill()  # if it still runs
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        return said if isinstance(said, dict) else {}


def _refused() -> Refusal:
    return Refusal("signInRefused", "name or password is wrong")
