"""Job descriptions: one job, or several that depend on each other. Validates a description as a
whole, then builds its runs.

`keys` has the keys of a job. `parse_description` reads a description; InvalidDocument reports all
errors at once. `build_runs` returns the `RunSpec`s, each after its dependencies.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...protocol.api.job_arrays import VARIABLES, Indices, expand
from ...protocol.api.requests import MAX_BULK, RunSpec
from ...protocol.errors import Refusal
from ...protocol.ids import ComputeJid, compute_jid, derived_id, split_jid
from ...protocol.jobs.roles import After
from ...protocol.launch.task_environment import GIVEN
from ..fields import Findings, InvalidDocument, Problem, element, fits, member, quoted, shown
from ..structs import Place, convert, shared
from .batch_rules import batch_request
from .keys import MAX_AFTER, Dependency, JobKeys, JobList
from .role_rules import check_env, roles, words

#: Maximum bytes of all stored runs together: a short text can describe many of them.
MAX_BYTES = 16 * 2**20
#: Variables that keys of a job set.
_DIRECTORIES = {
    "dataDir": "PAI_DATA_DIR",
    "outputDir": "PAI_OUTPUT_DIR",
    "codeDir": "PAI_CODE_DIR",
    "virtualCluster": "PAI_JOB_VC_NAME",
}
_NAMED_AT_MOST = 8
#: Length of a simulation id.
_SID_LENGTH = 8
#: The driver for clusters.
SBATCH = "sbatch"


class JobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One job. path: its place in the document. spec: its run, without user, simulation and
    dependencies. unique: no other job of the user may have its name. indices: the job is an array
    with one run for each. logins: names of the credentials for image registries, which the request
    has.
    """

    name: str
    path: str
    spec: RunSpec
    unique: bool = False
    after: tuple[Dependency, ...] = ()
    indices: Indices | None = None
    logins: tuple[str, ...] = ()


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

    def taken(self, state: str) -> Problem:
        """Return the problem of a unique name that the user has already. state: of that job."""
        sentence = f"you have a job with this name already: {self.jids()[0]}, which is {state}"
        path = member(self.job.path, "name")
        return Problem(path=path, problem=sentence, right="another name")


def parse_description(data: object) -> Description:
    """Parse the jobs in plain data (from JSON or YAML). Raises InvalidDocument and nothing else,
    for any data.
    """
    findings = Findings()
    if not isinstance(data, dict):
        right = "a job: an object with name, and command or roles; or an object with jobs"
        findings.error("", f"it is {shown(data)}", right)
        raise InvalidDocument(findings.problems)
    whole = Place(data, "", findings)
    if "jobs" in data:
        given = convert(JobList, data, findings).jobs
        jobs = [_job(place) for _, place in zip(given, whole.each("jobs"), strict=False)]
        _check_names(jobs, findings)
    else:
        jobs = [_job(whole)]
    _check_waits(jobs, findings)
    ordered = _ordered(jobs, findings)
    findings.check()
    return Description(tuple(ordered), tuple(findings.warnings))


def build_runs(description: Description, uid: str, fresh: Callable[[], str]) -> tuple[JobRuns, ...]:
    """Return the runs of all jobs in dependency order. fresh: returns an unused simulation id,
    called once for each job whose name need not be unique. Raises InvalidDocument.
    """
    findings = Findings()
    out: dict[str, JobRuns] = {}
    size = count = 0
    for job in description.jobs:
        after = _after(job, out, uid, findings)
        sid = named_simulation(uid, job.name) if job.unique else fresh()
        spec = msgspec.structs.replace(job.spec, uid=uid, simulation_id=sid, after=after)
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


def named_simulation(uid: str, name: str) -> str:
    """Return the simulation of the user's only job with this name: the supervisor finds an earlier
    one by its computeJid.
    """
    return derived_id(f"{uid}|{name}".encode(), key=b"jobscribe name")[:_SID_LENGTH]


def _check_names(jobs: Sequence[JobDescription], findings: Findings) -> None:
    first: dict[str, str] = {}
    for job in jobs:
        if job.name and first.setdefault(job.name, job.path) != job.path:
            problem = f"{first[job.name]} has the same name"
            findings.error(member(job.path, "name"), problem, "a unique name")


def _job(place: Place) -> JobDescription:
    keys = convert(JobKeys, place.data, place.findings, place.path)
    _check_conflicts(keys, place)
    has_roles = keys.roles is not None
    own = {
        "uid": "",
        "simulation_id": "",
        "job_run_mode": keys.kind or ("parallel" if has_roles else "sequential"),
        "driver": keys.driver or (SBATCH if keys.batch is not None else ""),
        "command": () if has_roles else words(keys.command, place),
        "roles": roles(keys.roles or {}, place, keys.image),
        "env": _environment(keys, place),
        "after": (),
        "sim_name": keys.name,
        "queue": keys.queue or msgspec.UNSET,
        "priority": keys.priority or msgspec.UNSET,
        "ssh": keys.ssh or msgspec.UNSET,
        "cloned_from": keys.cloned_from or msgspec.UNSET,
        "profile": keys.profile or msgspec.UNSET,
        "batch": msgspec.UNSET
        if keys.batch is None
        else batch_request(keys.batch, place.within("batch")),
    }
    spec = RunSpec(**{**shared(keys, RunSpec), **own})
    return JobDescription(
        name=keys.name,
        path=place.path,
        spec=spec,
        unique=keys.unique,
        after=_waits(keys),
        indices=keys.array,
        logins=keys.registry_auth,
    )


def _check_conflicts(keys: JobKeys, place: Place) -> None:
    """Check keys that exclude or need each other."""
    has_roles = place.given("roles")
    if has_roles and place.given("command"):
        place.error(
            "command", "a job with roles has no command of its own", "`command` inside of each role"
        )
    elif isinstance(place.data, dict) and not has_roles and not place.given("command"):
        place.error("", "it has nothing to run", "`command`, or `roles`")
    if place.given("image") and not has_roles:
        place.error(
            "image",
            "a job without roles runs in the image of its pool",
            "`roles`, whose tasks have their own containers",
        )
    if place.given("registryAuth") and not has_roles:
        place.error(
            "registryAuth",
            "a job without roles runs in the image of its pool",
            "`roles`, whose tasks have their own images",
        )
    if keys.ssh and not has_roles:
        place.error("ssh", "a job without roles has one task", "`roles`, whose tasks are a gang")
    if place.given("batch") and keys.driver not in (None, SBATCH):
        place.error("driver", f"it is {shown(keys.driver)}", f"{SBATCH}, the driver for `batch`")
    if keys.retry.count == -1 and keys.time_limit_secs is None:
        place.findings.warning(
            member(place.within("retry").path, "count"),
            "a run that always fails is retried without end",
            "a number, or a `timeLimit`",
        )


def _environment(keys: JobKeys, place: Place) -> dict[str, str]:
    """Return the variables of `env`, and those that other keys of the job set."""
    values = (keys.data_dir, keys.output_dir, keys.code_dir, keys.virtual_cluster)
    own = {
        variable: (key, value)
        for (key, variable), value in zip(_DIRECTORIES.items(), values, strict=True)
        if value is not None
    }
    taken = {variable: key for variable, (key, _) in own.items()}
    array = dict.fromkeys(VARIABLES, "array") if keys.array is not None else {}
    check_env(keys.env, place, taken | array, None if keys.roles is None else GIVEN)
    return keys.env | {variable: value for variable, (_, value) in own.items()}


def _waits(keys: JobKeys) -> tuple[Dependency, ...]:
    return tuple(Dependency(job=w) if isinstance(w, str) else w for w in keys.after)


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
