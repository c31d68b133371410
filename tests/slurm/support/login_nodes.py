"""Unix users with jobs on a cluster, and their login node (etc/engines/sshd.sh): three real sshd on
loopback.

Users, homes and secrets are created for one test session, with unique names, and removed after it.
"""

import base64
import hashlib
import hmac
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_scripts import CALL_SECS, Refused, Script, free_ports

#: A one-time code is valid for this time (seconds).
STEP_SECS = 30
#: The server accepts codes of this many steps before and after now, each once.
WINDOW = 45
SERVERS = ("main", "other", "jump")
NAMES = (
    "alice",
    "bob",
    "key",
    "pw",
    "kbd",
    "one",
    "two",
    "keycode",
    "cert",
    "locked",
    "expired",
    "stale",
    "noisy",
    "nologin",
)


class Users:
    """The unix users; `users["alice"]` is alice's unix name. etc/engines/sshd.sh defines the names
    and their special settings.
    """

    def __init__(self, slurm_conf: Path | None = None) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="jobscribe-sshd-", dir="/var/tmp"))
        self.place.chmod(0o755)
        existing = {entry.pw_name for entry in pwd.getpwall()}
        while True:  # a run that was killed leaves its users
            self.port = free_ports(len(SERVERS))
            self.prefix = f"js{self.port}"
            if self["alice"] not in existing:
                break
        given = {"DIR": str(self.place), "PORT": str(self.port), "PREFIX": self.prefix}
        if slurm_conf is not None:
            given["SLURM_CONF"] = str(slurm_conf)
        self.script = Script("sshd", given)
        self._used: dict[str, int] = {}

    def up(self) -> None:
        self.script("users")

    def clean(self) -> None:
        self.script("clean")
        shutil.rmtree(self.place, ignore_errors=True)

    def __getitem__(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def accounts(self) -> dict[str, list[str]]:
        """Return the accounts to which each user may charge on the cluster."""
        return {
            self[name]: ["research", *(["chem", "spent"] if name == "alice" else [])]
            for name in NAMES
        }

    def uid(self, name: str) -> int:
        return pwd.getpwnam(self[name]).pw_uid

    def home(self, name: str) -> Path:
        return self.place / "home" / self[name]

    # ---- secrets

    @property
    def password(self) -> str:
        """The password of all users."""
        return self._secrets()[0]

    def code(self, name: str) -> str:
        """Return a one-time code that this user has not used. The window is wide, so no test waits
        for the next code.
        """
        now = int(time.time() // STEP_SECS)
        self._used[name] = max(self._used.get(name, 0) + 1, now - WINDOW)
        assert self._used[name] <= now + WINDOW, f"{name} has had all codes of this half hour"
        return totp(self._secrets()[1], self._used[name])

    @property
    def key(self) -> Path:
        """The private key that opens the accounts (but not `cert`)."""
        return self.place / "client" / "key"

    @property
    def stranger(self) -> Path:
        """A private key that opens no account."""
        return self.place / "client" / "stranger"

    def certificate(self, name: str, secs: int, key: str = "key") -> Path:
        """Create a certificate of the login node's trusted authority, beside its key."""
        return Path(self.script("certificate", self[name], str(secs), key).strip())

    def _secrets(self) -> list[str]:
        return (self.place / "secrets").read_text().split()

    # ---- processes

    def run(
        self,
        name: str,
        *command: str,
        given: str = "",
        code: int | None = 0,
        env: dict[str, str] | None = None,
    ) -> str:
        """Return the output of a command that this user runs on this machine, in their home (both
        streams if it may fail).
        """
        variables = {
            "HOME": str(self.home(name)),
            "USER": self[name],
            "LOGNAME": self[name],
            "PATH": os.environ["PATH"],
            **(env or {}),
        }
        done = subprocess.run(
            ["setpriv", "--reuid", self[name], "--regid", self[name], "--init-groups", *command],
            input=given,
            capture_output=True,
            text=True,
            timeout=CALL_SECS,
            env=variables,
            cwd=self.home(name),
        )
        if code is not None and done.returncode != code:
            raise Refused(
                f"{name}: {' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout if code == 0 else done.stdout + done.stderr

    def processes(self, name: str) -> list[int]:
        """Return the pids of all processes of this user."""
        said = subprocess.run(
            ["ps", "-o", "pid=,stat=", "-u", self[name]], capture_output=True, text=True
        ).stdout
        return [
            int(line.split()[0])
            for line in said.splitlines()
            if not line.split()[1].startswith("Z")
        ]

    def end_processes(self) -> None:
        """SIGKILL all processes of these users, on this machine and on the cluster's nodes."""
        mine = {self.uid(name) for name in NAMES}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if path.stat().st_uid in mine:
                    os.kill(int(path.name), 9)
            except (FileNotFoundError, ProcessLookupError):
                pass
        for path in Path("/tmp").glob("jobscribe-link.*"):  # links without a peer
            if path.lstat().st_uid in mine:
                shutil.rmtree(path, ignore_errors=True)


class Sshd:
    """The three servers. Each method is a verb of the script; `well` restores the original
    state.
    """

    def __init__(self, users: Users) -> None:
        self.users, self._script = users, users.script

    def up(self) -> None:
        self._script("up")

    def down(self) -> None:
        self._script("down")

    def port(self, server: str = "main") -> int:
        return self.users.port + SERVERS.index(server)

    def keys(self, server: str = "main") -> list[str]:
        """Return its host keys in the format of known_hosts and cluster files."""
        mark = f"[127.0.0.1]:{self.port(server)} "
        return [
            line.removeprefix(mark)
            for line in self.known_hosts.read_text().splitlines()
            if line.startswith(mark)
        ]

    @property
    def known_hosts(self) -> Path:
        return self.users.place / "known_hosts"

    def login(
        self, server: str = "main", *, keys: Sequence[str] | None = None, via: str | None = None
    ) -> dict[str, Any]:
        """Return a login host entry for a cluster file. via: the jump server."""
        said: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port(server),
            "keys": list(keys or self.keys(server)),
        }
        return said | ({"via": self.login(via)} if via else {})

    def log(self, server: str = "main") -> str:
        return (self.users.place / "log" / server).read_text(errors="replace")

    def failures(self, name: str, server: str = "main") -> int:
        """Return how often this server got a wrong password or code from this user; sites lock
        accounts for that.
        """
        return len(
            re.findall(
                rf"^Failed (?:password|keyboard-interactive/pam) for {self.users[name]} ",
                self.log(server),
                re.MULTILINE,
            )
        )

    def start(self, server: str = "main") -> None:
        self._script("start", server)

    def stop(self, server: str = "main") -> None:
        """Refuse new connections; open sessions continue."""
        self._script("stop", server)

    def restart(self, server: str = "main") -> None:
        self._script("restart", server)

    def freeze(self, server: str = "main") -> None:
        """Accept connections without an answer; open connections hang too."""
        self._script("freeze", server)

    def thaw(self, server: str = "main") -> None:
        self._script("thaw", server)

    def sever(self, server: str = "main", name: str | None = None) -> None:
        """End its sessions (of this user) at once."""
        self._script("sever", server, *([self.users[name]] if name else []))

    def cut(self, server: str = "main", way: str = "drop") -> None:
        """Block its port with a firewall rule. way: drop (no answer) or reject."""
        self._script("cut", server, way)

    def mend(self, server: str = "main") -> None:
        self._script("mend", server)

    def identity(self, server: str, whose: str) -> None:
        """Restart it with the host keys of the server `whose`."""
        self._script("identity", server, whose)

    def well(self) -> None:
        self._script("well")

    def status(self) -> str:
        return self._script("status", code=None)


def totp(secret: str, step: int) -> str:
    """Return the six digits of RFC 6238 with SHA-1, as authenticator apps do."""
    mac = hmac.digest(base64.b32decode(secret), step.to_bytes(8, "big"), hashlib.sha1)
    at = mac[-1] & 15
    return f"{(int.from_bytes(mac[at : at + 4], 'big') & 0x7FFFFFFF) % 1_000_000:06d}"
