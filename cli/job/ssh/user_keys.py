"""The key pairs of a user for ssh to tasks: one for each job, made here, so that no private key
passes any network. They are removed some time after their last use.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from ....protocol.errors import Refusal
from ...session import site_credentials

#: Files in the folder of a job.
KEY, KNOWN_HOSTS = "id_ed25519", "known_hosts"
#: Time after its last use after which the folder of a job is removed (seconds).
KEPT_SECS = 30 * 86400.0
_NO_OPENSSH = (
    "this machine has no {}; install the OpenSSH client (Debian: openssh-client), or use"
    " 'jobscribe job shell'"
)


class UserKeys:
    """The keys for one job. folder: only its user can read it. public: the public key."""

    def __init__(self, folder: Path, public: str) -> None:
        self.folder, self.public = folder, public
        self.private, self.known_hosts = str(folder / KEY), str(folder / KNOWN_HOSTS)

    def know(self, alias: str, host_key: str) -> None:
        """Write the key of the hosts of the job. Raises OSError."""
        fd, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(f"{alias} {host_key}\n")
        os.replace(name, self.known_hosts)


def user_keys(jid: str) -> UserKeys:
    """Return the keys for a job. Make them if they are missing. Raises Refusal."""
    parent = Path(site_credentials.path()).parent / "ssh"
    folder = parent / jid
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_old(parent)
        if not (folder / KEY).exists():
            _make(parent, folder)
        os.utime(folder)
        public = (folder / f"{KEY}.pub").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is damaged; remove it"
        raise Refusal("notHere", f"the keys for ssh cannot be kept in {folder}: {why}") from None
    kind, _, rest = public.partition(" ")
    return UserKeys(folder, f"{kind} {rest.split(' ')[0]}")


def program(name: str) -> str:
    """Return the path of a program of OpenSSH. Raises Refusal."""
    found = shutil.which(name)
    if found is None:
        raise Refusal("notHere", _NO_OPENSSH.format(name))
    return found


def _make(parent: Path, folder: Path) -> None:
    """Make the folder of a job with its keys: all of them or none. Raises OSError, Refusal."""
    part = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))  # 0700
    try:
        subprocess.run(
            [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", part / KEY],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        try:
            part.rename(folder)
        except OSError:  # another process was first
            if not (folder / KEY).exists():
                raise
    except subprocess.CalledProcessError as e:
        said = e.stderr.decode("utf-8", "replace").strip()
        raise Refusal("notHere", f"ssh-keygen made no key: {said or e.returncode}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_old(parent: Path) -> None:
    before = time.time() - KEPT_SECS
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)
