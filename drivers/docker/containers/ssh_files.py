"""The files with which the tasks of an attempt reach each other by ssh: one key pair for the user,
one for the hosts, and the configurations of sshd and ssh. Pure, except for the random keys.

The tasks mount these files read-only. All tasks of an attempt share both key pairs: they run as one
unix user, for one user. A key is in no event, log, argument, variable or `docker inspect`.
"""

import json
from collections.abc import Iterator, Mapping

import msgspec

from ....protocol.jobs.roles import TaskPlace

#: The folder of these files in a container.
MOUNTED = "/run/jobscribe-ssh"
CLIENT_KEY, HOST_KEY, AUTHORIZED, KNOWN_HOSTS = "id", "host_key", "authorized_keys", "known_hosts"
SSHD_CONFIG, SSH_CONFIG, PASSWD = "sshd_config", "ssh_config", "passwd"
#: Files that are mounted at other paths, too: a program finds them there only.
ALSO_AT: Mapping[str, str] = {SSH_CONFIG: "/etc/ssh/ssh_config", PASSWD: "/etc/passwd"}
#: The name that a task's unix user has in its container, and that known_hosts has for all tasks.
USER, HOSTS = "jobscribe", "jobscribe-tasks"
#: Where sshd listens in a container without a network of its gang.
LOCAL = "127.0.0.1"
#: Seconds that ssh waits for the sshd of a task that starts. It tries once a second.
_START_SECS = 30


class Keys(msgspec.Struct, frozen=True):
    """Private keys in OpenSSH's format, public ones as in authorized_keys."""

    client: str
    client_public: str
    host: str
    host_public: str

    def __repr__(self) -> str:
        return "Keys()"


def make_keys() -> Keys:
    """Return new ed25519 keys."""
    return Keys(*_key_pair(), *_key_pair())


def files(
    keys: Keys, job: str, user: tuple[int, int], home: str, *, network: bool
) -> dict[str, str]:
    """Return the files of each task of an attempt. job: the text of its `job.json`. network: the
    gang has one; otherwise a task reaches only itself.
    """
    places = msgspec.convert(json.loads(job)["tasks"], list[TaskPlace])
    return {
        CLIENT_KEY: keys.client,
        f"{CLIENT_KEY}.pub": keys.client_public + "\n",
        HOST_KEY: keys.host,
        f"{HOST_KEY}.pub": keys.host_public + "\n",
        AUTHORIZED: keys.client_public + "\n",
        KNOWN_HOSTS: f"{HOSTS} {keys.host_public}\n",
        SSHD_CONFIG: _sshd_config(user[0]),
        SSH_CONFIG: "\n".join(_ssh_config(places, network)) + "\n",
        PASSWD: _passwd(user, home),
    }


def read_keys(found: Mapping[str, str]) -> Keys:
    """Return the keys in the files of another task of the attempt. Raises KeyError."""
    return Keys(
        found[CLIENT_KEY],
        found[f"{CLIENT_KEY}.pub"].strip(),
        found[HOST_KEY],
        found[f"{HOST_KEY}.pub"].strip(),
    )


def _key_pair() -> tuple[str, str]:
    # here, because it takes a while and few jobs need it
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
    ).decode()
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return private, public.decode()


def _sshd_config(uid: int) -> str:
    """sshd runs as the task's user, so it can log in this user only. StrictModes refuses a folder
    below /tmp; these files cannot be written at all.
    """
    lines = (
        f"HostKey {MOUNTED}/{HOST_KEY}",
        f"AuthorizedKeysFile {MOUNTED}/{AUTHORIZED}",
        f"AllowUsers {USER}{' root' if uid == 0 else ''}",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        f"PermitRootLogin {'prohibit-password' if uid == 0 else 'no'}",
        "StrictModes no",
        "UsePAM no",
        "AllowAgentForwarding no",
        "X11Forwarding no",
        "PermitTunnel no",
        "PermitUserEnvironment no",
        "PrintMotd no",
        "PidFile none",
        "LogLevel ERROR",
        "MaxStartups 1000",
        "Subsystem sftp internal-sftp",
    )
    return "".join(f"{line}\n" for line in lines)


def _ssh_config(places: list[TaskPlace], network: bool) -> Iterator[str]:
    """ssh obtains the first value of each option, so a user's own ~/.ssh/config wins."""
    for place in places:
        of_task = list(dict.fromkeys((f"{place.role}-{place.index}", host_name(place))))
        of_task += [place.address] if network else []
        yield f"Host {' '.join(of_task)}"
        yield f"  HostName {place.address if network else LOCAL}"
        yield f"  Port {place.ports['ssh'][0]}"
        yield f"  HostKeyAlias {HOSTS}"
        yield f"  IdentityFile {MOUNTED}/{CLIENT_KEY}"
        yield "  IdentitiesOnly yes"
        yield f"  UserKnownHostsFile {MOUNTED}/{KNOWN_HOSTS}"
        yield "  StrictHostKeyChecking yes"
        yield "  UpdateHostKeys no"
        yield "  BatchMode yes"
        yield f"  ConnectionAttempts {_START_SECS}"
        # the network of an ended task vanishes, and nothing says so to its peers
        yield "  ConnectTimeout 10"
        yield "  ServerAliveInterval 15"
    yield "Host *"
    yield "  Include /etc/ssh/ssh_config.d/*.conf"


def host_name(place: TaskPlace) -> str:
    """Return the name of a task's container in the network of its gang."""
    return f"{place.role}-{place.index}".replace("_", "-").lower()


def _passwd(user: tuple[int, int], home: str) -> str:
    """The image does not know the unix user of the task, without whom neither ssh nor sshd runs. A user
    outside does not know its number, so also root has the name.
    """
    known = ("root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534:nobody:/:/bin/sh")
    own = f"{USER}:x:{user[0]}:{user[1]}::{home}:/bin/sh"
    return "".join(f"{line}\n" for line in (*known, own))
