"""Job descriptions: one job, or several that depend on each other. Validates a description as a
whole, then builds its runs.

Formats of other systems are translated into this one. `parse_description` reads it (docs/jobs.md
lists every key). `build_runs` returns the `RunSpec`s, each after its dependencies. InvalidDocument
reports all errors at once.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from ...protocol.api.job_arrays import VARIABLES, Indices, expand, parse_indices
from ...protocol.api.requests import MAX_BULK, RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.errors import Refusal
from ...protocol.ids import ComputeJid, Driver, compute_jid, split_jid
from ...protocol.jobs.roles import After, Retry, TaskRole
from ...protocol.jobs.status import Kind
from ...protocol.launch.task_environment import GIVEN
from ..fields import Findings, Problem, Table, bounds, element, fits, member, quoted, shown, word
from .batch_fields import batch
from .role_fields import command, environment, image, roles

On = Literal["ok", "any", "failed"]
JobName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,255}\Z")]

MAX_JOBS, MAX_AFTER = 1_000, 1_000
#: Maximum bytes of all stored runs together: a short text can describe many of them.
MAX_BYTES = 16 * 2**20
#: Variables that keys of a job set.
DIRECTORIES = {
    "dataDir": "PAI_DATA_DIR",
    "outputDir": "PAI_OUTPUT_DIR",
    "codeDir": "PAI_CODE_DIR",
    "virtualCluster": "PAI_JOB_VC_NAME",
}
#: Keys of a job, each with names used by other systems.
JOB: dict[str, Sequence[str]] = {
    "name": ("jobName", "simName"),
    "kind": ("jobRunMode",),
    "driver": (),
    "image": ("dockerImage",),
    "command": ("cmd",),
    "roles": ("taskRoles",),
    "env": ("environment", "jobEnvs"),
    "retry": ("retryCount", "jobRetryCount", "retries"),
    "debug": ("isDebug", "debugSecs"),
    "timeLimit": ("timeLimitSecs", "time"),
    "queueLimit": ("queueLimitSecs",),
    "grace": ("graceSecs",),
    "after": ("dependsOn", "dependencies", "needs"),
    "array": ("indices",),
    "dataDir": (),
    "outputDir": (),
    "codeDir": (),
    "virtualCluster": ("partition", "queue"),
    "batch": ("sbatch", "slurm"),
}
_JOBS: dict[str, Sequence[str]] = {"jobs": ()}
_RETRY: dict[str, Sequence[str]] = {
    "count": ("retryCount",),
    "platform": ("maxPlatformRetries",),
    "conflictSecs": (),
}
_AFTER: dict[str, Sequence[str]] = {"job": ("name",), "on": ("when",)}
_NAMED_AT_MOST = 8
#: The driver for clusters.
SBATCH = "sbatch"


class DependencyWait(msgspec.Struct, frozen=True):
    """A dependency: on a job of this description, by its name, or on another run, by its
    computeJid.
    """

    job: str
    on: On = "ok"


class JobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One job, with `command` or `roles`. path: its place in the document.

    env: includes the variables set by dataDir, outputDir, codeDir and virtualCluster. indices: the
    job is an array with one run for each.
    """

    name: str
    path: str = ""
    kind: Kind = "sequential"
    driver: str = ""
    command: tuple[str, ...] = ()
    roles: tuple[TaskRole, ...] = ()
    env: dict[str, str] = {}
    retry: Retry = Retry()
    debug_secs: float | None = None
    time_limit_secs: float | None = None
    queue_limit_secs: float | None = None
    grace_secs: float = 3.0
    after: tuple[DependencyWait, ...] = ()
    indices: Indices | None = None
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET


class Description(msgspec.Struct, frozen=True):
    """jobs: each after its dependencies. warnings: allowed, but probably not intended."""

    jobs: tuple[JobDescription, ...]
    warnings: tuple[Problem, ...] = ()


class JobRuns(msgspec.Struct, frozen=True):
    """The runs of one job: one run, or those of an array in the order of its indices."""

    job: JobDescription
    specs: tuple[RunSpec, ...]

    def jids(self) -> tuple[str, ...]:
        return tuple(compute_jid(s.uid, s.simulation_id, s.compute_model) for s in self.specs)


def parse_description(data: object) -> Description:
    """Parse the jobs in plain data (from JSON or YAML). Raises InvalidDocument and nothing else,
    for any data.
    """
    findings = Findings()
    jobs = (
        _several(data, findings)
        if isinstance(data, dict) and "jobs" in data
        else [_job(data, "", findings)]
    )
    _check_waits(jobs, findings)
    ordered = _ordered(jobs, findings)
    findings.check()
    return Description(tuple(ordered), tuple(findings.warnings))


def build_runs(description: Description, uid: str, fresh: Callable[[], str]) -> tuple[JobRuns, ...]:
    """Return the runs of all jobs in dependency order. fresh: returns an unused simulation id,
    called once for each job. Raises InvalidDocument.
    """
    findings = Findings()
    out: dict[str, JobRuns] = {}
    size = count = 0
    for job in description.jobs:
        after = _after(job, out, uid, findings)
        spec = _spec(job, uid, fresh(), after)
        each = len(job.indices.numbers) if job.indices else 1
        size, count = size + each * len(msgspec.json.encode(spec)), count + each
        if size > MAX_BYTES or count > MAX_BULK:
            what = (
                f"{count} runs of {size} bytes together"
                if job.indices
                else f"all runs up to here are {count} runs of {size} bytes"
            )
            findings.error(
                member(job.path, "array") if job.indices else job.path,
                what,
                f"at most {MAX_BULK} runs and {MAX_BYTES} bytes",
            )
            break
        try:
            msgspec.convert(msgspec.to_builtins(spec), RunSpec)
            out[job.name] = JobRuns(job, expand(spec, job.indices) if job.indices else (spec,))
        except (msgspec.ValidationError, Refusal) as e:
            findings.error(
                job.path, e.sentence if isinstance(e, Refusal) else str(e), "see docs/jobs.md"
            )
            out[job.name] = JobRuns(job, ())
    findings.check()
    return tuple(out.values())


def _several(data: Mapping[Any, Any], findings: Findings) -> list[JobDescription]:
    table = Table(data, "", findings, _JOBS, "a description of several jobs")
    elements = table.elements("jobs", "a list of jobs")
    if not 1 <= len(elements) <= MAX_JOBS and isinstance(data["jobs"], list | tuple | None):
        table.error("jobs", f"1 to {MAX_JOBS} jobs", f"there are {len(elements)}")
    jobs = [_job(value, path, findings) for value, path in elements[:MAX_JOBS]]
    first: dict[str, str] = {}
    for job in jobs:
        if job.name and first.setdefault(job.name, job.path) != job.path:
            findings.error(
                member(job.path, "name"),
                f"{first[job.name]} has the same name",
                "a unique name",
            )
    return jobs


def _job(data: object, path: str, findings: Findings) -> JobDescription:
    t = Table(data, path, findings, JOB, "a job")
    if not isinstance(data, dict):
        return JobDescription(name="", path=path)
    name = t.text("name", JobName, "letters, digits and . _ -, at most 255")
    if not t.has("name"):
        t.error("name", "letters, digits and . _ -, at most 255", "it is missing")
    has_roles = t.has("roles")
    if has_roles and t.has("command"):
        t.error(
            "command",
            "`command` inside of each role",
            "a job with roles has no command of its own",
        )
    elif not has_roles and not t.has("command"):
        findings.error(path, "it has nothing to run", "`command`, or `roles`")
    of_all = image(t)
    if t.has("image") and not has_roles:
        t.error(
            "image",
            "`roles`, whose tasks have their own containers",
            "a job without roles runs in the image of its pool",
        )
    driver = t.text(
        "driver",
        Driver,
        "a small letter, then small letters or digits, at most 16; the usual one is local",
    )
    indices = _indices(t)
    job = JobDescription(
        name=name or "",
        path=path,
        kind=_kind(t, has_roles),
        driver=driver or (SBATCH if t.has("batch") else ""),
        command=command(t) if t.has("command") and not has_roles else (),
        roles=roles(t, of_all) if has_roles else (),
        env=_environment(t, indices is not None, GIVEN if has_roles else None),
        retry=_retry(t),
        debug_secs=_secs(t, "debug", "debug_secs"),
        time_limit_secs=_secs(t, "timeLimit", "time_limit_secs"),
        queue_limit_secs=_secs(t, "queueLimit", "queue_limit_secs"),
        grace_secs=t.secs("grace", bounds(RunSpec, "grace_secs"), 3.0) or 0.0,
        after=_waits(t),
        indices=indices,
        batch=batch(t),
    )
    if t.has("batch") and driver not in (None, SBATCH):
        t.error("driver", f"{SBATCH}, the driver for `batch`")
    if job.retry.count == -1 and job.time_limit_secs is None:
        findings.warning(
            member(t.path("retry"), "count"),
            "a run that always fails is retried without end",
            "a number, or a `timeLimit`",
        )
    return job


def _environment(t: Table, array: bool, pai: Collection[str] | None) -> dict[str, str]:
    """Return the variables of `env`, and those that other keys of the job set."""
    own = {variable: key for key, variable in DIRECTORIES.items() if t.has(key)}
    env = environment(t, own | (dict.fromkeys(VARIABLES, "array") if array else {}), pai)
    return env | {
        variable: word(t.findings, t.path(key), t.raw(key)) for variable, key in own.items()
    }


def _secs(t: Table, key: str, field: str) -> float | None:
    return t.secs(key, bounds(RunSpec, field), None)


def _kind(t: Table, has_roles: bool) -> Kind:
    kind: Any = t.choice("kind", get_args(Kind), "parallel" if has_roles else "sequential")
    return kind  # type: ignore[no-any-return]


def _retry(t: Table) -> Retry:
    table = t.table("retry", _RETRY, "an object with count, platform and conflictSecs")
    return Retry(
        count=table.whole("count", bounds(Retry, "count"), 0),
        platform=table.whole("platform", bounds(Retry, "platform"), 3),
        conflict_secs=table.secs("conflictSecs", bounds(Retry, "conflict_secs"), 600.0) or 600.0,
    )


def _indices(t: Table) -> Indices | None:
    value = t.raw("array")
    right = "indices as a text, such as '0-9,20,30-40:2%5' (%5: five at once)"
    if value is None:
        return None
    if not isinstance(value, str):
        t.error("array", right)
        return None
    try:
        return parse_indices(value)
    except Refusal as e:
        t.error("array", right, e.sentence)
        return None


def _waits(t: Table) -> tuple[DependencyWait, ...]:
    elements = t.elements("after", "a list of names, or of objects with job and on")
    if len(elements) > MAX_AFTER:
        t.error("after", f"at most {MAX_AFTER}", f"it has {len(elements)} dependencies")
    out: list[DependencyWait] = []
    for value, path in elements[:MAX_AFTER]:
        if isinstance(value, str):
            out.append(DependencyWait(value))
            continue
        one = Table(value, path, t.findings, _AFTER, "a dependency")
        on: Any = one.choice("on", get_args(On), "ok")
        if isinstance(one.raw("job"), str):
            out.append(DependencyWait(str(one.raw("job")), on))
        else:
            out.append(DependencyWait(""))
            if isinstance(value, dict):
                one.error(
                    "job",
                    "the name of a job here, or a computeJid",
                    f"it is {shown(one.raw('job'))}",
                )
    return tuple(out)


def _check_waits(jobs: Sequence[JobDescription], findings: Findings) -> None:
    """Check that all dependencies exist, each once."""
    names: dict[str, Sequence[str]] = {job.name: () for job in jobs if job.name}
    for job in jobs:
        seen: set[str] = set()
        for n, wait in enumerate(job.after):
            path = element(member(job.path, "after"), n)
            if wait.job in seen:
                findings.error(path, f"it waits for {quoted(wait.job)} twice", "each job once")
            elif wait.job and wait.job not in names and not fits(wait.job, ComputeJid):
                near = findings.nearest(wait.job, names)
                right = (
                    f"`{near}`"
                    if near
                    else "the name of a job of this description, or a computeJid"
                )
                findings.error(path, f"there is no job {quoted(wait.job)}", right)
            seen.add(wait.job)
        seen.discard("")


def _ordered(jobs: Sequence[JobDescription], findings: Findings) -> list[JobDescription]:
    """Sort the jobs topologically, otherwise in their order. Each cycle is reported, then broken to
    find the next one.
    """
    by_name = {job.name: job for job in reversed(jobs)}
    by_name = {job.name: by_name[job.name] for job in jobs}
    left = {
        job.name: {w.job: None for w in job.after if w.job in by_name} for job in by_name.values()
    }
    waiting: dict[str, list[str]] = {}
    for name, before in left.items():
        for other in before:
            waiting.setdefault(other, []).append(name)
    ready = deque(name for name, before in left.items() if not before)
    done: dict[str, None] = {}
    while len(done) < len(by_name):
        while ready:
            name = ready.popleft()
            if name in done:
                continue
            done[name] = None
            for other in waiting.get(name, ()):
                left[other].pop(name, None)
                if not left[other]:
                    ready.append(other)
        if len(done) < len(by_name):
            ready.extend(_cycle(next(n for n in by_name if n not in done), by_name, left, findings))
    return [by_name[name] for name in done]


def _cycle(
    start: str,
    jobs: Mapping[str, JobDescription],
    left: Mapping[str, dict[str, None]],
    findings: Findings,
) -> list[str]:
    """Report and return a cycle that contains this job, or that this job waits for."""
    visited: dict[str, None] = {}
    name = start
    while name not in visited:
        visited[name] = None
        name = next(iter(left[name]))
    names = list(visited)
    cycle = names[names.index(name) :]
    named = (
        [*cycle, name] if len(cycle) <= _NAMED_AT_MOST else [*cycle[:_NAMED_AT_MOST], "...", name]
    )
    findings.error(
        member(jobs[name].path, "after"),
        f"jobs wait for each other: {' -> '.join(named)}",
        "dependencies without a cycle",
    )
    return cycle


def _after(
    job: JobDescription, out: Mapping[str, JobRuns], uid: str, findings: Findings
) -> tuple[After, ...]:
    """Return the dependencies by computeJid. A dependency on an array means all its runs."""
    after: list[After] = []
    for n, wait in enumerate(job.after):
        path = element(member(job.path, "after"), n)
        if wait.job in out:
            after += [After(compute_jid=jid, on=wait.on) for jid in out[wait.job].jids()]
        elif split_jid(wait.job)[0] == uid:
            after.append(After(compute_jid=wait.job, on=wait.on))
        else:
            findings.error(path, "it is a job of another user", "a job of the same user")
    if len(after) > MAX_AFTER:
        findings.error(
            member(job.path, "after"),
            f"it waits for {len(after)} runs in total",
            f"at most {MAX_AFTER}",
        )
        return ()
    return tuple(after)


def _spec(job: JobDescription, uid: str, sid: str, after: tuple[After, ...]) -> RunSpec:
    return RunSpec(
        uid=uid,
        simulation_id=sid,
        job_run_mode=job.kind,
        driver=job.driver,
        command=job.command,
        roles=job.roles,
        env=job.env,
        retry=job.retry,
        debug_secs=job.debug_secs,
        time_limit_secs=job.time_limit_secs,
        queue_limit_secs=job.queue_limit_secs,
        grace_secs=job.grace_secs,
        after=after,
        sim_name=job.name,
        batch=job.batch,
    )
