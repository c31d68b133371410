"""Every setting there is: its name, type, default, form, and a sentence about it. Frozen values,
made without any file in tests.

The name of a setting is its place here with dots (`limits.grace_secs`), as in the file; in the
environment it is `JOBSCRIBE_LIMITS_GRACE_SECS`. Where values come from is `config`'s business,
whether they are safe is `safety`'s.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...protocol.errors import Refusal
from .value_parsers import (
    Parser,
    app_list,
    boolean,
    count,
    drivers,
    gpu_ids,
    one_of,
    or_none,
    pattern,
    peers,
    port_number,
    port_range,
    positive_seconds,
    seconds,
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
    """Processors this process may use, at least 2: with one slot nothing runs beside a long job."""
    return max(2, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True)
class SupervisorSettings:
    ip: str = _is("127.0.0.1", text, "address of the HTTP interface")
    port: int = _is(8001, port_number, "its port; 0 takes a free one")
    agents_ip: str = _is("127.0.0.1", text, "address of the listener for agents")
    agents_port: int = _is(0, port_number, "its port; 0 takes a free one")
    agents_tls_cert: str | None = _is(
        None,
        or_none(text),
        "file with the certificate of the agents' listener; needed off loopback",
    )
    agents_tls_key: str | None = _is(
        None, or_none(text), "file with its key, readable by nobody else"
    )
    agents_tls_ca: str | None = _is(
        None, or_none(text), "file with the one authority that agents trust"
    )
    server_secret_file: str | None = _is(
        None, or_none(text), "file with the secret of front ends, readable by nobody else"
    )
    metrics_secret_file: str | None = _is(
        None,
        or_none(text),
        "file with the token of what monitors (default: secret/metrics in the root)",
    )
    development: bool = _is(False, boolean, "allow to run without a secret file, on loopback only")


@dataclass(frozen=True, kw_only=True)
class SlotSettings:
    local_sequential: int = _is(_cores, count, "runs of kind sequential at once on this machine")
    local_parallel: int = _is(_cores, count, "runs of kind parallel at once on this machine")
    op_run: int = _is(
        0, count, "run ops at once of one agent (default: the larger of the two above)"
    )

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "op_run", self.op_run or max(self.local_sequential, self.local_parallel)
        )


def _memory_mb() -> int:
    """All memory of this machine, MiB."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


@dataclass(frozen=True, kw_only=True)
class ResourceSettings:
    """What tasks of runs with roles may hold together. Other runs take a slot, and are not counted
    here.
    """

    local_cpu: int = _is(
        lambda: len(os.sched_getaffinity(0)),
        count,
        "cores of this machine for tasks of runs with roles",
    )
    local_memory_mb: int = _is(_memory_mb, count, "memory of this machine for them, in MiB")
    local_gpus: tuple[str, ...] = _is(
        ("auto",),
        gpu_ids,
        "GPUs for them, by number or UUID (auto: those that NVIDIA's library finds)",
    )
    local_ports: tuple[int, int] = _is(
        (30_000, 32_767), port_range, "ports of this machine for them"
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    agent_start_secs: float = _is(10.0, positive_seconds, "a started agent must report within")
    agent_start_tries: int = _is(3, count, "starts of an agent before its runs fail")
    grace_secs: float = _is(3.0, seconds, "between SIGTERM and SIGKILL, where the run does not say")
    queue_limit_secs: float | None = _is(
        None, or_none(positive_seconds), "a run may wait so long, where it does not say"
    )
    time_limit_secs: float | None = _is(
        None, or_none(positive_seconds), "a run may take so long, where it does not say"
    )
    agent_away_secs: float = _is(
        6 * 3600.0,
        positive_seconds,
        "an agent with nothing to do ends after so long without a supervisor",
    )
    login_profile_secs: float = _is(
        10.0,
        seconds,
        "a login profile may take so long before jobs start without it (0: it is not run)",
    )
    op_reply_secs: float = _is(30.0, positive_seconds, "an agent must answer an op within")
    ping_interval_secs: float = _is(
        20.0, positive_seconds, "between two pings on an agent's connection"
    )
    ping_timeout_secs: float = _is(
        10.0, positive_seconds, "a ping must be answered within; at most the interval"
    )
    keeper_silent_secs: float = _is(
        60.0,
        seconds,
        "a keeper that does not answer its agent for so long is killed; its jobs run on (0: never)",
    )
    call_secs: float = _is(
        30.0,
        positive_seconds,
        "an app may compute the answer to a page so long, where the request does not say",
    )
    calls_per_user: int = _is(64, count, "calls and downloads of one user at once")
    upload_bytes: int = _is(1024**3, size, "the largest file that a user may upload")
    debug_secs: float = _is(
        604_800.0,
        positive_seconds,
        "a failed task may be kept for debugging so long, with all that it holds",
    )
    lease_secs: float = _is(
        86400.0,
        positive_seconds,
        "ports leased to a simulation are given back when it does not ask for so long",
    )
    request_secs: float = _is(
        10.0,
        positive_seconds,
        "a connection must send its first request within, until it is authenticated",
    )
    body_secs: float = _is(
        30.0, positive_seconds, "a request ends when nothing more of its body comes for so long"
    )
    idle_secs: float = _is(
        300.0,
        positive_seconds,
        "an authenticated connection is closed when it sends no request for so long",
    )
    connections_per_peer: int = _is(
        256, count, "connections of one unix user or address that are not authenticated, at once"
    )
    trusted_peers: tuple[str, ...] = _is(
        (),
        peers,
        "addresses or unix users of the site's own proxies, which connections_per_peer does not limit, as in 'www-data'",
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    ip: str = _is("127.0.0.1", text, "address of the front end")
    port: int = _is(8000, port_number, "its port; 0 takes a free one")
    threads: int = _is(16, count, "requests that it answers at once")
    user_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(request) that says whose a request is; needed by `jobscribe server`",
    )
    uid_file: str | None = _is(
        None,
        or_none(text),
        "user_hook returns names of the site's own; this file keeps the uid of each",
    )
    may_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(uid, api, simulation_type) that returns what speaks against it",
    )
    plan_hook: str | None = _is(
        None,
        or_none(text),
        "module:function(uid) that names the user's plan, which runs are submitted with",
    )
    admin_hook: str | None = _is(
        None, or_none(text), "module:function(uid) that says who may see everybody's jobs"
    )
    supervisor_url: str | None = _is(
        None,
        or_none(text),
        "address of the supervisor's HTTP interface (default: what its root says)",
    )


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    format: Literal["text", "json"] = _is("text", one_of("text", "json"), "form of the log lines")
    trace: str | None = _is(
        None,
        or_none(pattern),
        "write trace lines that match this regular expression, as in 'op=run.*a=Vrwf'",
    )
    journald: Literal["auto", "on", "off"] = _is(
        "auto",
        one_of("auto", "on", "off"),
        "give records with their fields to the journal (auto: in place of lines, where the lines would go there)",
    )
    file_bytes: int = _is(64 * 1024 * 1024, size, "a log file is rotated at this size")
    files_kept: int = _is(3, count, "rotated log files that are kept")
    sessions_kept: int = _is(
        20, count, "each start of the supervisor begins a session of the log; so many are kept"
    )
    total_bytes: int = _is(
        1024 * 1024 * 1024,
        size,
        "the oldest sessions are removed when all of them together have more than this",
    )


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    head_bytes: int = _is(
        16 * 1024 * 1024, size, "so much of the beginning of a job's output is kept"
    )
    tail_bytes: int = _is(
        16 * 1024 * 1024, size, "and so much of its end; what lies between is dropped and counted"
    )


@dataclass(frozen=True, kw_only=True)
class KeeperSettings:
    cgroups: Literal["auto", "v1", "v2", "off"] = _is(
        "auto",
        one_of("auto", "v1", "v2", "off"),
        "kernel control groups of jobs: their processes are found by them (auto: where they may be made)",
    )
    job_pids: int | None = _is(
        None,
        or_none(count),
        "one job may have so many processes and threads, where a pids cgroup can be made",
    )


@dataclass(frozen=True, kw_only=True)
class PurgeSettings:
    after_secs: float | None = _is(
        None,
        or_none(positive_seconds),
        "run directories are removed so long after their run (none: never)",
    )
    every_secs: float = _is(3600.0, positive_seconds, "how often is looked for such runs")
    kept_plans: tuple[str, ...] = _is(
        (), words, "runs of users with these plans are kept, as in 'premium, enterprise'"
    )


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    also: tuple[str, ...] = _is(
        (), app_list, "apps besides the installed ones, as in 'crack=my_apps.crack:app'"
    )


@dataclass(frozen=True, kw_only=True)
class ExitSettings:
    table: str | None = _is(
        None,
        or_none(text),
        "file with rows for the exit table, before or in place of those that ship",
    )


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    use: tuple[str, ...] = _is(
        ("local",),
        drivers,
        "what starts runs, as in 'local, docker'; the first one where a run does not say",
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
        "file that says who is told when runs change (see docs/notifications.md)",
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    root: str = _is(
        lambda: os.path.expanduser("~/.jobscribe"),
        text,
        "everything the supervisor keeps; on a local disk",
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
    exits: ExitSettings = field(default_factory=ExitSettings)
    drivers: DriverSettings = field(default_factory=DriverSettings)
    docker: DockerSettings = field(default_factory=DockerSettings)
    sbatch: SbatchSettings = field(default_factory=SbatchSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    #: where the values came from, by name; what is not in it is a default
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

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
                "limits.ping_timeout_secs must not be more than limits.ping_interval_secs: it would be cut to that",
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
                f"TLS of the agents' listener needs certificate, key and authority; {' and '.join(missing)} not set",
            )
        if "docker" in self.drivers.use and self.docker.pool is None:
            raise Refusal(
                "badConfig",
                "drivers.use names docker, which needs hosts: describe them in a file, and name it in docker.pool",
            )
        if self.docker.pool is not None and "docker" not in self.drivers.use:
            raise Refusal(
                "badConfig",
                "docker.pool describes hosts that nothing uses: add docker to drivers.use, or take docker.pool away",
            )
        if "sbatch" in self.drivers.use and self.sbatch.clusters is None:
            raise Refusal(
                "badConfig",
                "drivers.use names sbatch, which needs clusters: describe them in a file, named in sbatch.clusters",
            )
        if self.sbatch.clusters is not None and "sbatch" not in self.drivers.use:
            raise Refusal(
                "badConfig",
                "sbatch.clusters describes clusters that nothing uses: add sbatch to drivers.use, or take it away",
            )


@dataclass(frozen=True)
class Setting:
    """What is known about one setting."""

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
    "exits": ExitSettings,
    "drivers": DriverSettings,
    "docker": DockerSettings,
    "sbatch": SbatchSettings,
    "notify": NotifySettings,
}
SETTINGS: dict[str, Setting] = _settings()


def value_of(settings: Settings, name: str) -> Any:
    """The value of the setting with this name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value
