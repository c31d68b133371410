"""Definitions of stored runs: the job file that describes a run again. Pure; the inverse of
`description`, and changes to definitions.

An app's run has no job file. Its definition has the fields of `RunSpec` that its user may change.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.errors import Refusal
from ...protocol.ids import compute_jid
from ...protocol.jobs import debugging
from ...protocol.jobs.roles import Port, Retry, TaskRole
from ..fields import Findings, InvalidDocument, Problem, member
from ..structs import convert
from .description import Description, parse_description
from .keys import BatchKeys
from .role_rules import SHELL
from .withheld import Withheld, Withholding, references

#: Keys that set a variable, by the variable.
_KEYS = {
    "PAI_DATA_DIR": "dataDir",
    "PAI_OUTPUT_DIR": "outputDir",
    "PAI_CODE_DIR": "codeDir",
    "PAI_JOB_VC_NAME": "virtualCluster",
}
#: Fields of `RunSpec` that a definition of an app's run has, and those that are given anew.
_APP_FIELDS = (
    "simulation_type", "compute_model", "job_run_mode", "driver", "data", "env", "time_limit_secs",
    "queue_limit_secs", "grace_secs", "sim_name", "retry", "queue", "priority", "cloned_from",
)  # fmt: skip
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH = 255
#: The file name that stands for credentials that were not copied.
LOGIN = "@WITHHELD:REGISTRY_AUTH@"


class Definition(NamedTuple):
    """data: the job file, as plain data. app: it is an app's run. notes: parts of the run that the
    definition leaves out, as sentences. withheld: values that are not copied.
    """

    data: dict[str, Any]
    app: bool
    notes: tuple[str, ...]
    withheld: tuple[Withheld, ...]


def define(spec: RunSpec, *, origin: bool = True) -> Definition:
    """Return the definition of a stored run. origin: it names the job from which it comes."""
    withholding = Withholding()
    spec = withholding.spec(spec)
    app = spec.data is not None
    data = _app_data(spec) if app else _job_data(spec)
    if origin:
        jid = compute_jid(spec.uid, spec.simulation_id, spec.compute_model)
        data["clonedFrom"] = jid
    return Definition(data, app, tuple(_notes(spec)), tuple(withholding.found))


def changed(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition with these changes. Keys are paths such as `env.STEPS`; the value None
    removes a key. Raises Refusal.
    """
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(data))
    for path, value in changes.items():
        at: Any = out
        *above, last = path.split(".")
        for key in above:
            if isinstance(at, dict):
                at = at.setdefault(key, {})
            elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            else:
                raise _no_such(path)
        if isinstance(at, list) and last.isdecimal() and int(last) < len(at):
            at[int(last)] = value
        elif not isinstance(at, dict) or not last:
            raise _no_such(path)
        elif value is None:
            at.pop(last, None)
        else:
            at[last] = value
    return out


def parse_definition(data: object, app: bool) -> Description | RunSpec:
    """Return what a definition describes; of an app's run without user and simulation. Raises
    InvalidDocument with all problems.
    """
    missing = tuple(_missing(data, ""))
    try:
        found: Description | RunSpec = _app_spec(data) if app else parse_description(data)
    except InvalidDocument as e:
        raise InvalidDocument([*missing, *e.problems], e.warnings) from None
    if missing:
        raise InvalidDocument(missing)
    return found


def _app_spec(data: object) -> RunSpec:
    findings = Findings()
    if not isinstance(data, dict) or not isinstance(data.get("data"), dict):
        findings.error("data", "it is no object", "the data of the simulation")
        findings.check()
    assert isinstance(data, dict)
    known = {f.encode_name for f in msgspec.structs.fields(RunSpec) if f.name in _APP_FIELDS}
    for key in data:
        if key not in known:
            near = findings.nearest(str(key), dict.fromkeys(known, ()))
            findings.error(
                member("", str(key)), "unknown key", f"`{near}`" if near else "no such key"
            )
    findings.check()
    given = {"uid": "00000000", "simulationId": "00000000", **data}
    spec = convert(RunSpec, given, findings)
    findings.check()
    return spec


def _missing(value: object, path: str) -> Sequence[Problem]:
    """Return a problem for each value that was not copied."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in _missing(v, member(path, str(k)))]
    if isinstance(value, list):
        return [p for n, v in enumerate(value) for p in _missing(v, f"{path}[{n}]")]
    if not isinstance(value, str):
        return []
    if value == LOGIN:
        right = "the path of a file with the credentials; or remove `registryAuth`"
        said = "the credentials for registries of the earlier job were not copied"
        return [Problem(path=path, problem=said, right=right)]
    return [
        Problem(
            path=path,
            problem=f"a value of the earlier job that looks like a secret was not copied: {name}",
            right="the path of a file that only the job's user can read, or the value",
        )
        for name in dict.fromkeys(references(value))
    ]


def _no_such(path: str) -> Refusal:
    return Refusal("badRequest", f"there is nothing at {path[:200]!a} that can be set")


# ---- data


def job_name(spec: RunSpec) -> str:
    """Return a name for the job that a job file accepts."""
    name = _NOT_IN_NAME.sub("-", spec.sim_name or "").strip("-")[:_NAME_LENGTH]
    return name or f"job-{spec.simulation_id}"


def _app_data(spec: RunSpec) -> dict[str, Any]:
    defaults = RunSpec(uid=spec.uid, simulation_id=spec.simulation_id)
    kept = {
        f.encode_name: getattr(spec, f.name)
        for f in msgspec.structs.fields(RunSpec)
        if f.name in _APP_FIELDS
        and f.name != "cloned_from"
        and (getattr(spec, f.name) != getattr(defaults, f.name) or f.name == "data")
    }
    out: dict[str, Any] = msgspec.to_builtins(kept)
    out["env"] = {k: v for k, v in spec.env.items() if k not in debugging.OPTIONS}
    return {k: v for k, v in out.items() if v != {} or k == "data"}


def _job_data(spec: RunSpec) -> dict[str, Any]:
    env = {k: v for k, v in spec.env.items() if k not in debugging.OPTIONS}
    kind = "parallel" if spec.roles else "sequential"
    retry = spec.retry or Retry(count=0, platform=0)
    data: dict[str, Any] = {"name": job_name(spec)}
    if spec.roles:
        data["roles"] = {role.name: _role(role) for role in spec.roles}
    else:
        data["command"] = _command(spec.command)
    given = {
        "kind": spec.job_run_mode if spec.job_run_mode != kind else None,
        "driver": spec.driver or None,
        "env": {k: v for k, v in env.items() if k not in _KEYS} or None,
        **{key: env.get(variable) for variable, key in _KEYS.items()},
        "retry": _fields(retry, Retry()) or None,
        "debug": spec.debug_secs,
        "ssh": spec.ssh or None,
        "timeLimit": spec.time_limit_secs,
        "queueLimit": spec.queue_limit_secs,
        "grace": spec.grace_secs if spec.grace_secs != 3.0 else None,
        "profile": spec.profile or None,
        "core": -(-spec.core_bytes // 2**20) or None,
        "queue": spec.queue or None,
        "priority": spec.priority or None,
        "after": [{"job": a.compute_jid, "on": a.on} for a in spec.after] or None,
        "batch": _batch(spec.batch) if isinstance(spec.batch, BatchRequest) else None,
        "registryAuth": {"file": LOGIN} if spec.registry_login else None,
    }
    return data | {k: v for k, v in given.items() if v is not None}


def _role(role: TaskRole) -> dict[str, Any]:
    given = {
        "tasks": role.tasks,
        "command": _command(role.command),
        "env": dict(role.env) or None,
        "cpu": role.cpu,
        "memory": role.memory_mb,
        "shm": role.shm_mb,
        "gpu": role.gpu or None,
        "gpuType": role.gpu_type or None,
        "ports": {p.label: _port(p) for p in role.ports} or None,
        "image": role.image,
        "volumes": list(role.volumes) or None,
        "minSucceeded": role.min_succeeded,
    }
    out = {k: v for k, v in given.items() if v is not None}
    return out if role.min_failed == 1 else {**out, "minFailed": role.min_failed}


def _port(port: Port) -> Any:
    return {"begin": port.begin, "count": port.count} if port.begin else port.count


def _command(words: Sequence[str]) -> Any:
    is_text = tuple(words[:2]) == SHELL and len(words) == 3 and words[2].strip()
    return words[2] if is_text else list(words)


def _batch(request: BatchRequest) -> dict[str, Any]:
    return _fields(
        BatchKeys(**{f: getattr(request, f) for f in request.__struct_fields__}), BatchKeys()
    )


def _fields(value: msgspec.Struct, default: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that differ from the default."""
    out: dict[str, Any] = msgspec.to_builtins(
        {
            f.encode_name: getattr(value, f.name)
            for f in msgspec.structs.fields(type(value))
            if getattr(value, f.name) != getattr(default, f.name)
        }
    )
    return out


def _notes(spec: RunSpec) -> Sequence[str]:
    """Return the parts of a run that its definition leaves out."""
    out = []
    if set(spec.env) & debugging.OPTIONS:
        out.append("remote debugging (--debug) is not part of the definition")
    if spec.data is not None:
        if isinstance(spec.profile, str):
            out.append("the profile (--profile) is not part of the definition")
        return out
    if spec.wrap:
        out.append(
            f"the wrapper of the command is not part of the definition: {' '.join(spec.wrap)}"
        )
    if spec.at_once is not None:
        out.append("the limit of concurrent runs of its group is not part of the definition")
    if spec.config is not msgspec.UNSET:
        out.append(
            "the job came from a configuration of OpenPAI; this is the job file made from it"
        )
    return out
