"""All settings: name, type, default, form and description. Frozen values, which tests create
without a file.

The name of a setting is its path here with dots (`limits.grace_secs`), as in the file; in the
environment it is `JOBSCRIBE_LIMITS_GRACE_SECS`. `loader` determines where values come from;
`site.startup_checks` checks whether they are safe.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...protocol.errors import Refusal
from ...protocol.shards import Shard
from .value_parsers import (
    Parser,
    app_list,
    boolean,
    claim_name,
    count,
    drivers,
    gpu_ids,
    header_name,
    host_ports,
    issuer_url,
    one_of,
    or_none,
    pam_service,
    pattern,
    peers,
    port_number,
    port_range,
    positive_seconds,
    scopes,
    seconds,
    shard_addresses,
    shard_count,
    shard_number,
    site_url,
    size,
    text,
    words,
)


def _is(default: Any, parser: Parser, about: str) -> Any:
    metadata = {"parser": parser, "about": about}
    return (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )


def _cores() -> int:
    """Return the number of usable cores, at least 2: with one slot, a long job would block all others."""
    return max(2, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True)
class SupervisorSettings:
    ip: str = _is("127.0.0.1", text, "IP address of the HTTP interface")
    port: int = _is(8001, port_number, "its port; 0 takes a free one")
    tls_ip: str = _is("0.0.0.0", text, "IP address of the HTTPS interface for other machines")
    tls_port: int = _is(8443, port_number, "its port; 0 takes a free one")
    tls_cert: str | None = _is(
        None, or_none(text), "file with its certificate; without one there is no HTTPS interface"
    )
    tls_key: str | None = _is(
        None,
        or_none(text),
        "file with its private key, readable only by the supervisor's unix user",
    )
    agents_ip: str = _is("127.0.0.1", text, "address of the listener for agents")
    agents_port: int = _is(0, port_number, "its port; 0 takes a free one")
    agents_tls_cert: str | None = _is(
        None,
        or_none(text),
        "file with the certificate of the agents' listener; needed off loopback",
    )
    agents_tls_key: str | None = _is(
        None,
        or_none(text),
        "file with its private key, readable only by the supervisor's unix user",
    )
    agents_tls_ca: str | None = _is(
        None, or_none(text), "file with the certificate authority that agents trust"
    )
    agents_others: tuple[str, ...] = _is(
        (),
        host_ports,
        "addresses host:port of the agents' listeners of the site's other supervisors (store.standby)",
    )
    server_secret_file: str | None = _is(
        None,
        or_none(text),
        "file with the secret of front ends, readable only by the supervisor's unix user",
    )
    metrics_secret_file: str | None = _is(
        None,
        or_none(text),
        "file with the token for monitoring (default: secret/metrics in the root)",
    )
    development: bool = _is(False, boolean, "allow a start without a secret file, on loopback only")
    sockets: bool = _is(
        False, boolean, "listen at Unix sockets in the root for this unix user, at no address"
    )


@dataclass(frozen=True, kw_only=True)
class SlotSettings:
    local_sequential: int = _is(_cores, count, "concurrent runs of kind sequential on this machine")
    local_parallel: int = _is(_cores, count, "concurrent runs of kind parallel on this machine")
    op_run: int = _is(
        0, count, "concurrent runs of one agent (default: the larger of the two above)"
    )

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "op_run", self.op_run or max(self.local_sequential, self.local_parallel)
        )


def _memory_mb() -> int:
    """Return the memory of this machine in MiB."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


@dataclass(frozen=True, kw_only=True)
class ResourceSettings:
    """Resources for tasks of runs with roles. Other runs use slots and are not counted here."""

    local_cpu: int = _is(
        lambda: len(os.sched_getaffinity(0)),
        count,
        "cores of this machine for tasks of runs with roles",
    )
    local_memory_mb: int = _is(_memory_mb, count, "memory of this machine for these tasks, in MiB")
    local_gpus: tuple[str, ...] = _is(
        ("auto",),
        gpu_ids,
        "GPUs for these tasks, by number or UUID (auto: all that NVIDIA's library finds)",
    )
    local_ports: tuple[int, int] = _is(
        (30_000, 32_767), port_range, "ports of this machine for these tasks"
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    agent_start_secs: float = _is(
        10.0, positive_seconds, "time limit for the first report of a started agent"
    )
    agent_start_tries: int = _is(3, count, "failed starts of an agent before its runs fail")
    grace_secs: float = _is(3.0, seconds, "default time between SIGTERM and SIGKILL")
    queue_limit_secs: float | None = _is(
        None, or_none(positive_seconds), "default time limit for the wait of a run"
    )
    placed_ahead_secs: float = _is(
        0.1,
        seconds,
        "runs for this time wait for a slot with their agent, which starts the next one itself (0: none)",
    )
    time_limit_secs: float | None = _is(
        None, or_none(positive_seconds), "default time limit for the execution of a run"
    )
    agent_away_secs: float = _is(
        6 * 3600.0,
        positive_seconds,
        "an idle agent ends after this time without a supervisor",
    )
    login_profile_secs: float = _is(
        10.0,
        seconds,
        "time limit of a login profile; jobs then start without it (0: do not run it)",
    )
    op_reply_secs: float = _is(
        30.0, positive_seconds, "time limit for an agent's answer to a request"
    )
    ping_interval_secs: float = _is(
        20.0, positive_seconds, "interval between two pings on an agent's connection"
    )
    ping_timeout_secs: float = _is(
        10.0, positive_seconds, "time limit for the answer to a ping; at most the interval"
    )
    keeper_silent_secs: float = _is(
        60.0,
        seconds,
        "a keeper that does not answer its agent for this time is killed; its jobs continue (0: never)",
    )
    call_secs: float = _is(
        30.0,
        positive_seconds,
        "default time limit for an app's answer to a page",
    )
    calls_per_user: int = _is(64, count, "concurrent calls and downloads of one user")
    token_requests_per_sec: int = _is(
        100, count, "requests of one API token in a second, after a burst"
    )
    token_burst: int = _is(1_000, count, "requests of one API token at once")
    upload_bytes: int = _is(1024**3, size, "maximum size of an uploaded file")
    debug_secs: float = _is(
        604_800.0,
        positive_seconds,
        "maximum hold of a failed task for debugging, with all its resources",
    )
    lease_secs: float = _is(
        86400.0,
        positive_seconds,
        "leased ports are released when their simulation does not renew the lease for this time",
    )
    request_secs: float = _is(
        10.0,
        positive_seconds,
        "time limit for the first request of a connection that is not authenticated",
    )
    body_secs: float = _is(
        30.0, positive_seconds, "a request ends when no data of its body arrives for this time"
    )
    idle_secs: float = _is(
        300.0,
        positive_seconds,
        "an authenticated connection is closed after this time without a request",
    )
    connections_per_peer: int = _is(
        256, count, "concurrent unauthenticated connections of one unix user or address"
    )
    trusted_peers: tuple[str, ...] = _is(
        (),
        peers,
        "addresses or unix users of the site's proxies, as in 'www-data': no connections_per_peer, and trusted with user_header",
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    ip: str = _is("127.0.0.1", text, "IP address of the front end")
    port: int = _is(8000, port_number, "its port; 0 takes a free one")
    threads: int = _is(16, count, "number of worker threads: concurrent requests")
    user_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(request) that returns the user of a request; or set oidc_issuer, pam_service or user_header",
    )
    user_header: str | None = _is(
        None,
        or_none(header_name),
        "header in which the site's proxy names the user, as in 'X-Remote-User'; believed from limits.trusted_peers only",
    )
    uid_file: str | None = _is(
        None,
        or_none(text),
        "file that stores the uid of each user name; for user_hook and user_header only if they have names, not uids",
    )
    public_url: str | None = _is(
        None,
        or_none(site_url),
        "address of the front end for browsers, as in 'https://jobs.example.org'; sign-in and 'auth login' without a token need it",
    )
    session_secs: float = _is(
        12 * 3600.0,
        positive_seconds,
        "a person who signed in with oidc_issuer or pam_service signs in again after this time",
    )
    oidc_issuer: str | None = _is(
        None,
        or_none(issuer_url),
        "sign people in with the OpenID Connect provider at this address, its issuer",
    )
    oidc_client_id: str | None = _is(
        None, or_none(text), "the client that the provider registered for this site"
    )
    oidc_client_secret_file: str | None = _is(
        None,
        or_none(text),
        "file with the secret of this client, readable only by the front end's unix user",
    )
    oidc_claim: str = _is(
        "preferred_username", claim_name, "claim of the provider that names the user"
    )
    oidc_scopes: tuple[str, ...] = _is(
        ("openid", "profile"), scopes, "scopes to request from the provider, with openid"
    )
    pam_service: str | None = _is(
        None,
        or_none(pam_service),
        "sign people in by name and password with this PAM service of the machine, as in 'jobscribe'",
    )
    may_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(uid, api, simulation_type) that returns None to allow a request, or a Refusal",
    )
    plan_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(uid) that returns the user's plan; each run stores it",
    )
    admin_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(uid) that returns whether the user may see everybody's jobs",
    )
    supervisor_url: str | None = _is(
        None,
        or_none(text),
        "URL of the supervisor's HTTP interface (default: from its root)",
    )


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    format: Literal["text", "json"] = _is("text", one_of("text", "json"), "format of the log lines")
    trace: str | None = _is(
        None,
        or_none(pattern),
        "write trace lines that match this regular expression, as in 'op=run.*a=Vrwf'",
    )
    journald: Literal["auto", "on", "off"] = _is(
        "auto",
        one_of("auto", "on", "off"),
        "send structured records to the journal (auto: instead of lines, if the lines would go there)",
    )
    file_bytes: int = _is(64 * 1024 * 1024, size, "size at which a log file is rotated")
    files_kept: int = _is(3, count, "number of rotated log files to keep")
    sessions_kept: int = _is(
        20, count, "number of log sessions to keep; each start of the supervisor begins a session"
    )
    total_bytes: int = _is(
        1024 * 1024 * 1024,
        size,
        "maximum total size of all sessions; the oldest are removed first",
    )


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    head_bytes: int = _is(
        16 * 1024 * 1024, size, "bytes to keep from the beginning of a job's output"
    )
    tail_bytes: int = _is(
        16 * 1024 * 1024,
        size,
        "bytes to keep from its end; the bytes between are dropped and counted",
    )


@dataclass(frozen=True, kw_only=True)
class KeeperSettings:
    cgroups: Literal["auto", "v1", "v2", "off"] = _is(
        "auto",
        one_of("auto", "v1", "v2", "off"),
        "find the processes of a job by kernel control groups (auto: if the keeper may create them)",
    )
    job_pids: int | None = _is(
        None,
        or_none(count),
        "maximum number of processes and threads of a job, if a pids cgroup can be created",
    )


@dataclass(frozen=True, kw_only=True)
class PurgeSettings:
    after_secs: float | None = _is(
        None,
        or_none(positive_seconds),
        "run directories and evidence are removed this long after the end of their run (none: never)",
    )
    every_secs: float = _is(3600.0, positive_seconds, "interval between two searches for such runs")
    kept_plans: tuple[str, ...] = _is(
        (), words, "never remove runs of users with these plans, as in 'premium, enterprise'"
    )


_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    scripts_secs: float | None = _is(
        30 * _DAY,
        or_none(positive_seconds),
        "scripts and exit files go this long after the end of their run; the log has their content (none: never)",
    )
    evidence_secs: float | None = _is(
        365 * _DAY,
        or_none(positive_seconds),
        "the whole evidence, with its output, goes this long after the end of its run (none: never)",
    )
    superseded_secs: float | None = _is(
        30 * _DAY,
        or_none(positive_seconds),
        "the same for evidence of an earlier run of a job, from its last change on (none: never)",
    )
    cores_secs: float | None = _is(
        14 * _DAY,
        or_none(positive_seconds),
        "core files go this long after the end of their run, and at the latest with the evidence (none: with it)",
    )
    profiles_secs: float | None = _is(
        30 * _DAY,
        or_none(positive_seconds),
        "profiles go this long after the end of their run (none: never)",
    )
    agents_secs: float | None = _is(
        90 * _DAY,
        or_none(positive_seconds),
        "logs of agents without keeper and evidence go after this time (none: never)",
    )
    records_secs: float | None = _is(
        365 * _DAY,
        or_none(positive_seconds),
        "records of purged runs go this long after the end of their run (none: never)",
    )
    events_secs: float | None = _is(
        30 * _DAY,
        or_none(positive_seconds),
        "the running supervisor folds the events of jobs without events for this time (none: never)",
    )
    every_secs: float = _is(6 * 3600.0, positive_seconds, "interval between two retention passes")
    folders_per_sec: int = _is(500, count, "folders that a pass inspects in a second")


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    also: tuple[str, ...] = _is(
        (), app_list, "apps in addition to the installed ones, as in 'crack=my_apps.crack:app'"
    )


@dataclass(frozen=True, kw_only=True)
class ExitSettings:
    table: str | None = _is(
        None,
        or_none(text),
        "file with rows for the exit table; they precede or replace shipped rows",
    )


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    file: str | None = _is(
        None,
        or_none(text),
        "file that describes queues, shares and users' limits (see docs/queues.md)",
    )


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    use: tuple[str, ...] = _is(
        ("local",),
        drivers,
        "drivers, as in 'local, docker'; the first one is the default",
    )


@dataclass(frozen=True, kw_only=True)
class DockerSettings:
    pool: str | None = _is(
        None,
        or_none(text),
        "file that describes the hosts of the driver docker (see docs/docker.md)",
    )


@dataclass(frozen=True, kw_only=True)
class SbatchSettings:
    clusters: str | None = _is(
        None,
        or_none(text),
        "file that describes the clusters of the driver sbatch (see docs/sbatch.md)",
    )


@dataclass(frozen=True, kw_only=True)
class NotifySettings:
    file: str | None = _is(
        None,
        or_none(text),
        "file with the notification targets (see docs/notifications.md)",
    )


@dataclass(frozen=True, kw_only=True)
class AuthSettings:
    users: str | None = _is(
        None,
        or_none(text),
        "file with the administrators and groups of users (see docs/site.md)",
    )
    shells: bool = _is(True, boolean, "whether users may open shells in their tasks")
    open_lists: bool = _is(
        False,
        boolean,
        "whether users may read lists and states of all users' jobs at OpenPAI's /api/v1",
    )


@dataclass(frozen=True, kw_only=True)
class DebuggerSettings:
    allowed: bool = _is(
        True, boolean, "runs may ask for remote debugging of their Python processes"
    )
    wait_secs: float = _is(
        86400.0,
        positive_seconds,
        "a stopped process continues by itself after this time at the latest",
    )
    recordings: int = _is(
        2, count, "profiles of running jobs that are recorded on one host at once"
    )


@dataclass(frozen=True, kw_only=True)
class ProfilerSettings:
    allowed: bool = _is(True, boolean, "runs may ask for profiles (--profile)")


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    url: str | None = _is(
        None,
        or_none(text),
        "PostgreSQL database of the event store, without a password (default: a SQLite file in the root;"
        " see docs/store.md)",
    )
    password_file: str | None = _is(
        None,
        or_none(text),
        "file with its password, readable only by the supervisor's unix user",
    )
    standby: bool = _is(
        False,
        boolean,
        "stand by while another supervisor with this setting serves the site, and take over when it is gone",
    )


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    count: int | None = _is(
        None,
        or_none(shard_count),
        "number of shards of the site, each with a supervisor of its own; it cannot be changed later (see docs/scale.md)",
    )
    number: int | None = _is(
        None, or_none(shard_number), "shard of this supervisor (option --shard)"
    )
    addresses: tuple[str, ...] = _is(
        (),
        shard_addresses,
        "addresses of the supervisors of each shard, for routers on other machines (default: from the root)",
    )
    tls_port: int | None = _is(
        None,
        or_none(port_number),
        "port of the HTTPS interface of shard 0 for routers on other machines; shard K has this port + K",
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    root: str = _is(
        lambda: os.path.expanduser("~/.jobscribe"),
        text,
        "data directory of the supervisor; on a local disk",
    )
    user_root: str = _is(
        "",
        text,
        "users' run directories, the same path on every host that runs jobs (default: user/ in the root)",
    )
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    slots: SlotSettings = field(default_factory=SlotSettings)
    resources: ResourceSettings = field(default_factory=ResourceSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    log: LogSettings = field(default_factory=LogSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    keeper: KeeperSettings = field(default_factory=KeeperSettings)
    apps: AppSettings = field(default_factory=AppSettings)
    purge: PurgeSettings = field(default_factory=PurgeSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    exits: ExitSettings = field(default_factory=ExitSettings)
    queues: QueueSettings = field(default_factory=QueueSettings)
    drivers: DriverSettings = field(default_factory=DriverSettings)
    docker: DockerSettings = field(default_factory=DockerSettings)
    sbatch: SbatchSettings = field(default_factory=SbatchSettings)
    debugger: DebuggerSettings = field(default_factory=DebuggerSettings)
    profiler: ProfilerSettings = field(default_factory=ProfilerSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    shards: ShardSettings = field(default_factory=ShardSettings)
    #: origins of values, by name; settings without an entry have their default
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    #: limits of the whole site of which this shard has a part that changes, by name
    site_limits: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", os.path.abspath(self.root))
        object.__setattr__(
            self,
            "user_root",
            os.path.abspath(self.user_root) if self.user_root else os.path.join(self.root, "user"),
        )
        s, limits = self.supervisor, self.limits
        if limits.ping_timeout_secs > limits.ping_interval_secs:
            raise Refusal(
                "badConfig",
                "limits.ping_timeout_secs must not be more than limits.ping_interval_secs",
            )
        tls = {
            "agents_tls_cert": s.agents_tls_cert,
            "agents_tls_key": s.agents_tls_key,
            "agents_tls_ca": s.agents_tls_ca,
        }
        missing = [f"supervisor.{k}" for k, v in tls.items() if v is None]
        if 0 < len(missing) < len(tls):
            raise Refusal(
                "badConfig",
                f"TLS of the agents' listener needs certificate, key and authority; set {' and '.join(missing)}",
            )
        if (s.tls_cert is None) != (s.tls_key is None):
            raise Refusal(
                "badConfig",
                "the HTTPS interface needs certificate and key; set supervisor.tls_cert and supervisor.tls_key",
            )
        if "docker" in self.drivers.use and self.docker.pool is None:
            raise Refusal(
                "badConfig",
                "drivers.use contains docker, which needs hosts: describe them in a file and set docker.pool",
            )
        if self.docker.pool is not None and "docker" not in self.drivers.use:
            raise Refusal(
                "badConfig",
                "docker.pool describes hosts that nothing uses: add docker to drivers.use, or remove docker.pool",
            )
        if self.store.password_file is not None and self.store.url is None:
            raise Refusal(
                "badConfig",
                "store.password_file has the password of a database that is not set: set store.url, or remove it",
            )
        if self.store.standby and self.store.url is None:
            raise Refusal(
                "badConfig",
                "store.standby needs a store that several supervisors reach: set store.url, or remove it",
            )
        if self.store.standby and s.sockets:
            raise Refusal(
                "badConfig",
                "store.standby needs an address for each supervisor: remove supervisor.sockets",
            )
        self._check_shards()
        if "sbatch" in self.drivers.use and self.sbatch.clusters is None:
            raise Refusal(
                "badConfig",
                "drivers.use contains sbatch, which needs clusters: describe them in a file and set sbatch.clusters",
            )
        if self.sbatch.clusters is not None and "sbatch" not in self.drivers.use:
            raise Refusal(
                "badConfig",
                "sbatch.clusters describes clusters that nothing uses: add sbatch to drivers.use, or remove sbatch.clusters",
            )

    @property
    def shard(self) -> Shard | None:
        """Return the shard of this supervisor; None for a site without shards, and for its other parts."""
        s = self.shards
        return None if s.count is None or s.number is None else Shard(s.number, s.count)

    def _check_shards(self) -> None:
        s = self.shards
        if s.count is None:
            for name in ("number", "addresses", "tls_port"):
                if getattr(s, name) not in (None, ()):
                    raise Refusal(
                        "badConfig",
                        f"shards.{name} is for sites with shards: set shards.count, or remove it",
                    )
            return
        if self.store.url is None:
            raise Refusal(
                "badConfig",
                "shards.count needs a store that all shards reach: set store.url, or remove it",
            )
        if self.supervisor.sockets:
            raise Refusal(
                "badConfig",
                "shards.count needs an address for each supervisor: remove supervisor.sockets",
            )
        if s.number is not None and s.number >= s.count:
            raise Refusal(
                "badConfig",
                f"shards.number is {s.number}, and the site has the shards 0 to {s.count - 1}"
                " (shards.count): choose one of them",
            )
        if s.addresses and len(s.addresses) != s.count:
            raise Refusal(
                "badConfig",
                f"shards.addresses names {len(s.addresses)} shards, and shards.count is {s.count}:"
                " name the supervisors of each shard",
            )


@dataclass(frozen=True)
class Setting:
    """Definition of one setting."""

    name: str
    parser: Parser
    about: str

    @property
    def env_name(self) -> str:
        return "JOBSCRIBE_" + self.name.replace(".", "_").upper()


def _settings() -> dict[str, Setting]:
    out: dict[str, Setting] = {}
    for f in dataclasses.fields(Settings):
        if "parser" in f.metadata:
            out[f.name] = Setting(f.name, f.metadata["parser"], f.metadata["about"])
        elif f.name in GROUPS:
            for g in dataclasses.fields(GROUPS[f.name]):
                name = f"{f.name}.{g.name}"
                out[name] = Setting(name, g.metadata["parser"], g.metadata["about"])
    return out


GROUPS: dict[str, type[Any]] = {
    "supervisor": SupervisorSettings,
    "server": ServerSettings,
    "slots": SlotSettings,
    "resources": ResourceSettings,
    "limits": LimitSettings,
    "log": LogSettings,
    "output": OutputSettings,
    "keeper": KeeperSettings,
    "apps": AppSettings,
    "purge": PurgeSettings,
    "retention": RetentionSettings,
    "exits": ExitSettings,
    "queues": QueueSettings,
    "drivers": DriverSettings,
    "docker": DockerSettings,
    "sbatch": SbatchSettings,
    "debugger": DebuggerSettings,
    "profiler": ProfilerSettings,
    "notify": NotifySettings,
    "auth": AuthSettings,
    "store": StoreSettings,
    "shards": ShardSettings,
}
SETTINGS: dict[str, Setting] = _settings()


def value_of(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value
