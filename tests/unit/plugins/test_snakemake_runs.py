"""The runs of Snakemake's jobs (etc/snakemake): ids, options, records, requests. Without Snakemake,
whose interface only the package itself and its module `jobs` import.
"""

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jobscribe
from jobscribe.client import ClientError
from jobscribe.client.api.replies import GroupRun, GroupState, RunState
from jobscribe.client.api.run_specs import command_spec
from jobscribe.protocol.clusters.batch import BatchRequest

PACKAGE = Path(jobscribe.__file__).parent / "etc/snakemake/snakemake_executor_plugin_jobscribe"
UID = "UserOne1"


class Plugin:
    """The modules of the plug-in."""

    def __init__(self) -> None:
        self.options: Any = importlib.import_module(f"{PACKAGE.name}.run_options")
        self.records: Any = importlib.import_module(f"{PACKAGE.name}.records")
        self.runs: Any = importlib.import_module(f"{PACKAGE.name}.runs")


@pytest.fixture(scope="module")
def plugin() -> Iterator[Plugin]:
    """Import the modules without their package, which imports Snakemake."""
    package = types.ModuleType(PACKAGE.name)
    package.__path__ = [str(PACKAGE)]
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[PACKAGE.name] = package
    try:
        yield Plugin()
    finally:
        sys.dont_write_bytecode = before
        for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE.name]:
            del sys.modules[name]


# ---- options


def test_resources_become_options_of_the_run(plugin: Plugin) -> None:
    options = plugin.options.run_options(
        {
            "mem_mb": 2000,
            "runtime": 90,
            "gpu": 1,
            "gpu_model": "A100",
            "jobscribe_queue": "physics",
            "jobscribe_image": "lab/tools:3",
            "jobscribe_volumes": "data,ref",
            "tmpdir": "/tmp",
        },
        threads=4,
        driver="docker",
        image=None,
    )
    assert {k: v for k, v in options.items() if v is not None} == {
        "driver": "docker",
        "queue": "physics",
        "time_limit_secs": 5400.0,
        "task": {
            "cpu": 4,
            "memory_mb": 2000,
            "gpu": 1,
            "gpu_type": "A100",
            "image": "lab/tools:3",
            "volumes": ("data", "ref"),
        },
    }


def test_a_job_without_resources_has_a_core_and_memory_for_snakemake(plugin: Plugin) -> None:
    options = plugin.options.run_options({}, 1, None, None)
    assert options["task"] == {"cpu": 1, "memory_mb": plugin.options.MEMORY_MB}


def test_on_a_cluster_resources_become_a_batch_request(plugin: Plugin) -> None:
    resources = {"mem_mb": 500, "gpu": 2, "slurm_partition": "long", "slurm_account": "p1"}
    options = plugin.options.run_options({**resources, "jobscribe_driver": "sbatch"}, 8, None, None)
    assert "task" not in options
    assert options["batch"] == {
        "partition": "long",
        "account": "p1",
        "cores": 8,
        "memory_mb": 500,
        "gpus": 2,
    }
    more = {"qos": "q", "constraint": "cpu", "nodes": 2, "tasks": 4, "jobscribe_cluster": "lab"}
    options = plugin.options.run_options({**resources, **more}, 8, "sbatch", None)
    spec = command_spec("aaaaaaaa", "bbbbbbbb", ["/bin/sh", "job.sh"], options)
    asked = spec.batch
    assert isinstance(asked, BatchRequest) and (asked.memory_mb, asked.gpus) == (500, 2)
    assert (asked.qos, asked.nodes, asked.tasks, asked.cluster) == ("q", 2, 4, "lab")
    with pytest.raises(ClientError, match="batch has no option 'memroy_mb'; did you mean"):
        command_spec("aaaaaaaa", "bbbbbbbb", ["true"], {"batch": {"memroy_mb": 1}})


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"jobscribe_quue": "a"}, "there is no resource jobscribe_quue; .* jobscribe_queue"),
        ({"runtime": "long"}, "runtime is 'long'; right: a number"),
        ({"mem_mb": -1}, "mem_mb is -1; right"),
        ({"gpu": True}, "gpu is True; right"),
    ],
)
def test_a_wrong_resource_is_named(plugin: Plugin, resources: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plugin.options.run_options(resources, 1, None, None)


def test_ids_are_stable_and_fit_jobscribe(plugin: Plugin) -> None:
    model = plugin.options.compute_model("align/é-reads", ["b", "a"])
    assert model == plugin.options.compute_model("align/é-reads", ["a", "b"])
    assert model != plugin.options.compute_model("align/é-reads", ["a", "c"])
    from jobscribe.protocol.ids import compute_jid, parse

    sid = plugin.options.simulation_id("/data/w/.snakemake")
    parse("computeJid", compute_jid(UID, sid, plugin.options.compute_model("x" * 300, ["a"])))
    assert sid != plugin.options.simulation_id("/data/v/.snakemake")


# ---- runs


class Job:
    def __init__(self, jid: str, serial: int, state: str) -> None:
        self.jid, self.serial = jid, serial
        self.submitted = RunState(state=state)


class FakeClient:
    """Counts requests. runs: [state, hash, serial, end, over] by computeModel."""

    uid = UID

    def __init__(self) -> None:
        self.runs: dict[str, list[Any]] = {}
        self.requests: list[str] = []
        self.specs: list[dict[str, Any]] = []

    def copy(self) -> "FakeClient":
        return self

    def spec(self, command: list[str], **options: Any) -> dict[str, Any]:
        return {"command": command, **options}

    def run_many(self, specs: list[dict[str, Any]]) -> list[Any]:
        self.requests.append("run_many")
        self.specs += specs
        return [self._submitted(spec) for spec in specs]

    def _submitted(self, spec: dict[str, Any]) -> Any:
        model, digest = spec["compute_model"], spec["compute_job_hash"]
        run = self.runs.get(model)
        if run is not None and run[1] != digest and not run[4]:
            return ClientError("anotherRun", "another browser is running the simulation")
        if run is None or run[1] != digest or run[0] not in ("running", "completed"):
            serial = 1 if run is None else run[2] + 1
            run = self.runs[model] = ["running", digest, serial, None, False]
        return Job(f"{UID}-{spec['simulation_id']}-{model}", run[2], run[0])

    def status(self, jid: str, *, hash_: str) -> RunState:
        self.requests.append("status")
        run = self.runs.get(jid.split("-")[2])
        if run is None or run[1] != hash_:
            return RunState(state="missing")
        return RunState(state=run[0], over=run[4], compute_job_end=run[3])

    def group(self, sid: str, *, limit: int) -> GroupState:
        self.requests.append("group")
        counts: dict[str, int] = {}
        for run in self.runs.values():
            counts[run[0]] = counts.get(run[0], 0) + 1
        busy = sum(not run[4] for run in self.runs.values())
        return GroupState(UID, sid, len(self.runs), counts, not busy, busy)

    def group_runs(self, sid: str) -> Iterator[GroupRun]:
        self.requests.append("group_runs")
        for model, run in self.runs.items():
            jid = f"{UID}-{sid}-{model}"
            yield GroupRun(
                compute_jid=jid, compute_job_serial=run[2], index=None, state=run[0], over=run[4]
            )

    def why(self, jid: str) -> dict[str, Any]:
        self.requests.append("why")
        return {
            "state": "error",
            "sentence": "failed with exit code 3",
            "logs": ["/r/stderr.log", "/r/exit.json"],
            "evidence": [f"line {n}" for n in range(20)],
        }

    def end(self, model: str, state: str, at: float = 0.0) -> None:
        self.runs[model][0], self.runs[model][3], self.runs[model][4] = state, at, True


class Order:
    def __init__(self, model: str = "j_a_1", meaning: str = "m", outputs: tuple[str, ...] = ()):
        self.model, self.name, self.meaning, self.outputs = model, model, meaning, outputs
        self.options: dict[str, Any] = {}

    def script(self) -> str:
        return "export SECRET=horse && true\n"


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def _start(plugin: Plugin, client: FakeClient, folder: Path, since: float = 100.0) -> Any:
    """Start the workflow, perhaps again."""
    return plugin.runs.Runs(client, folder / ".snakemake" / "jobscribe", since)


def test_many_jobs_are_one_request_and_their_states_are_one(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    runs = _start(plugin, client, tmp_path)
    orders = [Order(f"j_a_{n}") for n in range(50)]
    found = list(runs.submit(orders).values())
    assert client.requests == ["run_many"]
    assert runs.ended(found) == {}
    client.requests.clear()
    assert runs.ended(found) == {}
    assert client.requests == ["group"]
    client.end("j_a_7", "completed")
    client.end("j_a_8", "error")
    ended = runs.ended(found)
    assert sorted(jid.split("-")[2] for jid in ended) == ["j_a_7", "j_a_8"]
    assert client.requests == ["group", "group", "group_runs", "why"]
    failure = next(o for o in ended.values() if o.failure is not None)
    assert failure.failure.splitlines()[0].endswith("error: failed with exit code 3")
    assert len(failure.failure.splitlines()) == plugin.runs.WHY_LINES
    assert failure.logs == ["/r/stderr.log"]


def test_secrets_are_in_the_script_alone_which_its_owner_reads(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    runs = _start(plugin, client, tmp_path)
    (run,) = runs.submit([Order()]).values()
    shell, path = client.specs[0]["command"]
    assert (shell, Path(path).read_text()) == ("/bin/sh", Order().script())
    assert Path(path).stat().st_mode & 0o077 == 0
    assert "horse" not in str(client.specs)
    client.end("j_a_1", "completed")
    runs.ended([run])
    assert not Path(path).exists()


def test_an_active_run_of_a_killed_workflow_is_found_again(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    (first,) = _start(plugin, client, tmp_path).submit([Order()]).values()
    (second,) = _start(plugin, client, tmp_path).submit([Order()]).values()
    assert (second.jid, second.serial) == (first.jid, first.serial)


def test_a_run_that_the_supervisor_never_got_is_submitted_once(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    runs = _start(plugin, client, tmp_path)
    runs._records.create("j_a_1", "m")  # killed before the request
    (found,) = runs.submit([Order()]).values()
    assert found.serial == 1
    (again,) = _start(plugin, client, tmp_path).submit([Order()]).values()
    assert again.serial == 1


def test_an_active_run_of_another_meaning_is_not_taken(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    _start(plugin, client, tmp_path).submit([Order()])
    (answer,) = _start(plugin, client, tmp_path).submit([Order(meaning="other")]).values()
    assert isinstance(answer, plugin.runs.Refused)
    assert f"jobscribe job cancel {UID}-" in str(answer)
    (same,) = _start(plugin, client, tmp_path).submit([Order()]).values()
    assert same.serial == 1


def test_an_active_run_without_a_record_is_not_repeated(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    runs = _start(plugin, client, tmp_path)
    runs.submit([Order()])
    runs._records.remove("j_a_1")
    (answer,) = _start(plugin, client, tmp_path).submit([Order()]).values()
    assert isinstance(answer, plugin.runs.Refused)
    assert "no record of it" in str(answer)


@pytest.mark.parametrize(
    ("state", "at", "meaning", "there", "serial"),
    [
        ("completed", 101.0, "m", True, 1),  # ended while the workflow started again
        ("completed", 99.0, "m", True, 2),  # Snakemake knew that, and wants it again
        ("completed", 101.0, "other", True, 2),
        ("completed", 101.0, "m", False, 2),  # its output was removed
        ("error", 101.0, "m", True, 2),
        ("canceled", 101.0, "m", True, 2),
    ],
)
def test_an_ended_run_is_repeated_unless_its_success_is_new(
    plugin: Plugin,
    client: FakeClient,
    tmp_path: Path,
    state: str,
    at: float,
    meaning: str,
    there: bool,
    serial: int,
) -> None:
    output = tmp_path / "out"
    _start(plugin, client, tmp_path).submit([Order(outputs=(str(output),))])
    if there:
        output.touch()
    client.end("j_a_1", state, at)
    order = Order(meaning=meaning, outputs=(str(output),))
    (found,) = _start(plugin, client, tmp_path).submit([order]).values()
    assert found.serial == serial


def test_a_run_that_others_replaced_is_a_failure(
    plugin: Plugin, client: FakeClient, tmp_path: Path
) -> None:
    runs = _start(plugin, client, tmp_path)
    (found,) = runs.submit([Order()]).values()
    client.runs["j_a_1"][2] += 1
    assert "replaced by a later one" in runs.ended([found])[found.jid].failure
    client.runs.clear()
    runs._new = True
    assert "no run" in runs.ended([found])[found.jid].failure
