"""The configuration of Slurm clusters: fields, their forms and defaults.

`service/site/cluster_file` reads the file.
"""

import math
from typing import Annotated, Literal

import msgspec

from ..fields import SECONDS, Address, Form, Word
from ..ids import EnvName, Uid
from .batch import BatchRequest, ClusterName

Path = Annotated[
    str,
    msgspec.Meta(pattern=r"^[/~$][^\0\n]{0,1023}\Z"),
    Form("a path that starts with /, ~ or $, as in $SCRATCH or $HOME/work"),
]
#: Slurm checks time limits every 30 s, and waits 30 s (its KillWait) between SIGTERM and SIGKILL.
LIMIT_SLACK_SECS = 90.0
_Secs = Annotated[float, msgspec.Meta(gt=0, le=86_400), SECONDS]
_Count = Annotated[int, msgspec.Meta(ge=1)]
Method = Literal["password", "keyboard-interactive", "publickey"]
Python = Annotated[
    str,
    msgspec.Meta(pattern=r"^(/[A-Za-z0-9_.+/-]{1,1023}|[A-Za-z0-9_.+][A-Za-z0-9_.+-]{0,1023})\Z"),
    Form("a command or an absolute path, such as python3.12 or /opt/python/bin/python3"),
]
#: An sbatch option, without its value: runs give it.
OptionName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,63}\Z"),
    Form("the name of an sbatch option without its dashes, such as exclusive; runs give its value"),
]
#: A unix user other than root; `root` is a rule of its own.
UnixUser = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?\Z"),
    Form("the name of a unix user"),
]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all parts share; no fields."""


class LoginHost(_Part, frozen=True, kw_only=True):
    """One login host. keys: host keys as in known_hosts, `ssh-ed25519 AAAA...`; several machines
    may share one name.

    via: another login host to connect through first (ProxyJump), with its own keys.
    """

    host: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\Z"
        ),
        Form("the name of a host, or an IP address"),
    ]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535), Form("a port")] = 22
    keys: Annotated[
        tuple[str, ...],
        msgspec.Meta(min_length=1, max_length=50),
        Form(
            "a list of 1 to 50 host keys as ssh-keyscan prints them after the host's name, such as 'ssh-ed25519 AAAA...'"
        ),
    ]
    via: "LoginHost | None" = None


class Limits(_Part, frozen=True, kw_only=True):
    """The maximum that one run may request here, regardless of the partition. None: the partition's
    limit.

    cores: for all tasks together. memory_mb, gpus: requested per node.
    """

    nodes: _Count | None = None
    tasks: _Count | None = None
    cores: _Count | None = None
    memory_mb: Annotated[_Count, Form("a whole number of MiB")] | None = None
    gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None
    time_limit_secs: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400), SECONDS] | None = None


class Cluster(_Part, frozen=True, kw_only=True):
    """The configuration of one cluster.

    access: how jobs are submitted. `account`: the supervisor's own unix user submits the jobs of
    all users. `sudo`, `runuser`: the supervisor switches to the user's own account, given by
    `users` (uid: unix user). `ssh`: users sign in at `login` with their own accounts.

    folder: directory on the shared file system for agent, code, evidence and run directories.
    `$SCRATCH`, `$HOME`, `~` and `$USER` are expanded on the cluster, and `jobscribe-<deployment>`
    is appended. user_root: directory of the users' run directories, if the cluster mounts the
    supervisor's.

    pythons: interpreters to try, in this order; Python 3.11 or later. wheels: directory with wheels
    for interpreters that differ from the supervisor's. environment: variables of the agent. setup:
    lines of sh before every command. directives: names of further sbatch options that runs may use.

    link: how agents reach the supervisor. `tls` connects to the supervisor (supervisor:
    `host:port`, if it is not the listener's own address), `ssh` uses the user's own connection,
    `direct` is for this machine.

    runs, runs_per_user: maximum number of runs that Slurm queues or runs at once. poll_secs,
    poll_max_secs: shortest and longest interval between two queries of Slurm. limit_slack_secs:
    Slurm enforces the time limit; jobscribe ends a run that is still there after this additional
    time.
    """

    name: ClusterName
    access: Literal["account", "sudo", "runuser", "ssh"] = "account"
    login: Annotated[tuple[LoginHost, ...], msgspec.Meta(max_length=50)] = ()
    methods: Annotated[tuple[Method, ...], msgspec.Meta(min_length=1), Form(unique=True)] = (
        "publickey",
        "keyboard-interactive",
        "password",
    )
    users: dict[
        Annotated[Uid, Form("a user id ('jobscribe job list --json' shows them)")], UnixUser
    ] = {}
    folder: Path = "$SCRATCH"
    user_root: (
        Annotated[
            str,
            msgspec.Meta(pattern=r"^/[^\0-\x1f\x7f]{0,1023}\Z"),
            Form("an absolute path on the cluster"),
        ]
        | None
    ) = None
    pythons: Annotated[tuple[Python, ...], msgspec.Meta(min_length=1), Form(unique=True)] = (
        "python3",
        "python3.13",
        "python3.12",
        "python3.11",
    )
    wheels: Annotated[str, Form("a folder with wheels", path=True)] | None = None
    link: Literal["tls", "ssh", "direct"] = "direct"
    supervisor: Address | None = None
    environment: dict[EnvName, Word] = {}
    runs: Annotated[
        int, msgspec.Meta(ge=1, le=100_000), Form("a whole number of concurrent runs")
    ] = 1_000
    runs_per_user: Annotated[
        int, msgspec.Meta(ge=1, le=10_000), Form("a whole number of concurrent runs")
    ] = 100
    poll_secs: _Secs = 2.0
    poll_max_secs: _Secs = 30.0
    call_secs: _Secs = 30.0
    start_secs: _Secs = 60.0
    limit_slack_secs: _Secs = LIMIT_SLACK_SECS
    defaults: BatchRequest = BatchRequest()
    limits: Limits = Limits()
    setup: Annotated[str, msgspec.Meta(max_length=65_536), Form("lines of sh")] = ""
    directives: Annotated[tuple[OptionName, ...], Form(unique=True)] = ()


def fallback_secs(limit_secs: float, slack_secs: float = LIMIT_SLACK_SECS) -> float:
    """Return the run time in seconds after which jobscribe ends a run that Slurm did not end at its
    time limit. Slurm counts in full minutes.
    """
    return 60.0 * math.ceil(limit_secs / 60) + slack_secs


class Clusters(_Part, frozen=True, kw_only=True):
    """All configured clusters. The first one is the default."""

    clusters: Annotated[tuple[Cluster, ...], msgspec.Meta(min_length=1, max_length=100)]

    def named(self, name: str | None) -> Cluster | None:
        """Return the cluster with this name, the first one for None, or None if there is no such
        cluster.
        """
        if name is None:
            return self.clusters[0]
        return next((c for c in self.clusters if c.name == name), None)
