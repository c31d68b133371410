"""The options of OpenSSH with which it reaches a task through `job ssh-proxy`. Pure."""

import shlex
from collections.abc import Sequence

#: The user name of the task's unix user in its container (drivers/docker/containers/ssh_files.py).
USER = "jobscribe"


def host_name(jid: str, role: str, index: int) -> str:
    """Return the name of a task for ssh."""
    return f"{jid}.{role}-{index}"


def alias(jid: str) -> str:
    """Return the name of the tasks' host key in known_hosts. All tasks of an attempt have one key."""
    return f"jobscribe-{jid}"


def ssh_options(
    jid: str, proxy: Sequence[str], private: str, known_hosts: str
) -> list[tuple[str, str]]:
    """Return options and values as in ssh_config. proxy: the command that connects."""
    command = shlex.join(proxy).replace("%", "%%")
    return [
        ("User", USER),
        ("ProxyCommand", command),
        ("IdentityFile", _quoted(private)),
        ("IdentitiesOnly", "yes"),
        ("HostKeyAlias", alias(jid)),
        ("UserKnownHostsFile", _quoted(known_hosts)),
        ("StrictHostKeyChecking", "yes"),
        ("UpdateHostKeys", "no"),
        ("PreferredAuthentications", "publickey"),
        ("ForwardAgent", "no"),
        ("ServerAliveInterval", "15"),
    ]


def block(name: str, options: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of a host for ssh_config."""
    return [f"Host {name}", *(f"  {key} {value}" for key, value in options)]


def _quoted(path: str) -> str:
    """Return a path for ssh_config, whose values may have tokens."""
    return '"' + path.replace("%", "%%") + '"'
