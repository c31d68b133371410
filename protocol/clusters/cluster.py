"""The clusters that runs can go to, as their file describes them: shapes and defaults only.

How it is read is `service/cluster_file`'s business.
"""

import math
from typing import Annotated, Literal

import msgspec

from .batch import BatchRequest, ClusterName, Directive

Path = Annotated[str, msgspec.Meta(pattern=r"^[/~$][^\0\n]{0,1023}\Z")]
#: Slurm looks at time limits every 30 s, and waits 30 s (its KillWait) between SIGTERM and SIGKILL.
LIMIT_SLACK_SECS = 90.0
_Secs = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What all share: nothing but their form."""


class LoginHost(_Part, frozen=True, kw_only=True):
    """One machine to sign in at. key: as in known_hosts, `ssh-ed25519 AAAA...`; several may stand
    behind one name.

    via: the name of another one to go through first (ProxyJump), as `host[:port]`, with keys of its
    own.
    """

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 22
    keys: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=50)]
    via: "LoginHost | None" = None


class Limits(_Part, frozen=True, kw_only=True):
    """The most that one run may ask for here, whatever the partition allows. None: the partition's.

    cores: of all tasks together. memory_mb, gpus: of each node, as they are asked for.
    """

    nodes: int | None = None
    tasks: int | None = None
    cores: int | None = None
    memory_mb: int | None = None
    gpus: int | None = None
    time_limit_secs: float | None = None


class Cluster(_Part, frozen=True, kw_only=True):
    """One cluster.

    access: `account`: the supervisor's own unix user submits everybody's jobs; `sudo`, `runuser`:
    it becomes the user's own, as `users` says (uid: unix user); `ssh`: users sign in at `login` as
    themselves. folder: where agent, code, evidence and run directories lie, on the shared file
    system; `$SCRATCH`, `$HOME`, `~` and `$USER` are the cluster's. A part `jobscribe-<deployment>`
    is added. user_root: where users' run directories are, if the cluster sees those of the
    supervisor. pythons: tried in this order; Python 3.11 or later. wheels: folder with wheels for
    pythons that are unlike the supervisor's. link: how its agents reach the supervisor: `tls` dials
    out (supervisor: `host:port`, where it is not the listener's own address), `ssh` through the
    user's own connection, `direct` on this machine. runs, runs_per_user: at once, queued by Slurm
    or running. poll_secs: Slurm is asked no more often, and at least every poll_max_secs.
    limit_slack_secs: Slurm ends what is over its time limit; what it has not ended so long after
    that is ended by us. setup: lines of sh before every command. directives: names of further
    options of sbatch that runs may ask for.
    """

    name: ClusterName
    access: Literal["account", "sudo", "runuser", "ssh"] = "account"
    login: tuple[LoginHost, ...] = ()
    methods: tuple[Literal["password", "keyboard-interactive", "publickey"], ...] = (
        "publickey",
        "keyboard-interactive",
        "password",
    )
    users: dict[str, str] = {}
    folder: Path = "$SCRATCH"
    user_root: str | None = None
    pythons: tuple[str, ...] = ("python3", "python3.13", "python3.12", "python3.11")
    wheels: str | None = None
    link: Literal["tls", "ssh", "direct"] = "direct"
    supervisor: str | None = None
    environment: dict[str, str] = {}
    runs: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    runs_per_user: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    poll_secs: _Secs = 2.0
    poll_max_secs: _Secs = 30.0
    call_secs: _Secs = 30.0
    start_secs: _Secs = 60.0
    limit_slack_secs: _Secs = LIMIT_SLACK_SECS
    defaults: BatchRequest = BatchRequest()
    limits: Limits = Limits()
    setup: str = ""
    directives: tuple[Directive, ...] = ()


def fallback_secs(limit_secs: float, slack_secs: float = LIMIT_SLACK_SECS) -> float:
    """When we end a run of this time limit that Slurm has not ended, in seconds from its start.
    Slurm counts in full minutes.
    """
    return 60.0 * math.ceil(limit_secs / 60) + slack_secs


class Clusters(_Part, frozen=True, kw_only=True):
    """All of them; the first one is meant where a run does not say."""

    clusters: Annotated[tuple[Cluster, ...], msgspec.Meta(min_length=1, max_length=100)]

    def named(self, name: str | None) -> Cluster | None:
        """The first one for None; None where there is no such cluster."""
        if name is None:
            return self.clusters[0]
        return next((c for c in self.clusters if c.name == name), None)
