"""Logs written by released versions remain readable for ever. Never change a file here; a new
schema gets a new line or file.
"""

import json
from pathlib import Path

import msgspec
import pytest

from jobscribe.db.events import events
from jobscribe.db.events.agent_fold import evolve_agent
from jobscribe.db.events.events import Event, decode, encode, known
from jobscribe.db.events.job_fold import evolve, fold
from jobscribe.db.events.state import AgentRecord, Job
from jobscribe.db.records.event_text import sentence
from jobscribe.db.records.job_record import record
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey

GOLDEN = Path(__file__).parent / "golden"
LINES = [
    (path.name, number, line)
    for path in sorted(GOLDEN.glob("*.jsonl"))
    for number, line in enumerate(path.read_text().splitlines(), 1)
]


def read(line: str) -> tuple[dict, Event]:
    row = json.loads(line)
    return row, decode(row["type"], row["schema"], json.dumps(row["event"]).encode())


@pytest.mark.parametrize(("file", "number", "line"), LINES)
def test_every_golden_event_is_read(file: str, number: int, line: str) -> None:
    row, event = read(line)
    assert known(row["type"], row["schema"])
    # everything stored is still in the decoded event
    now = json.loads(encode(event))
    if row["schema"] == events.schema_of(event):
        assert differences(row["event"], now) == []
    assert len(sentence(event)) > 10


def test_every_type_and_released_schema_has_a_golden_event() -> None:
    there = {(row["type"], row["schema"]) for row, _ in (read(line) for *_, line in LINES)}
    wanted = {
        (str(c.__struct_config__.tag), v)
        for c in Event.__args__
        for v in range(1, events.VERSIONS.get(c.__struct_config__.tag, 1) + 1)
    }
    assert there == wanted


@pytest.mark.parametrize("type_", ["RunRequested", "JobFolded"])
def test_an_event_is_written_in_the_lowest_version_that_holds_it(type_: str) -> None:
    """So the previous release reads the store until the addition is used."""
    rows = [read(line) for *_, line in LINES if json.loads(line)["type"] == type_]
    newest = events.VERSIONS[type_]
    written = {(events.schema_of(event), b'"config":' in encode(event)) for _, event in rows}
    assert written == {(newest - 1, False), (newest, True)}


@pytest.mark.parametrize(
    ("jid", "file"),
    [
        ("EPRSuser-simAAA01-heightWeightReport", "v1-job.json"),
        ("EPRSuser-simAAA05-command", "v1-roles-job.json"),
        ("EPRSuser-simAAA06-command", "v1-containers-job.json"),
        ("EPRSuser-simAAA07-command", "v1-batch-job.json"),
        ("EPRSuser-simAAA09-command", "v1-ending-job.json"),
        ("EPRSuser-simAAA10-command", "v1-ahead-job.json"),
    ],
)
def test_a_golden_job_adds_up_to_what_it_always_did(jid: str, file: str) -> None:
    job = fold(
        jid, [e for row, e in (read(line) for *_, line in LINES) if row["stream"] == f"job/{jid}"]
    )
    assert (
        differences(
            json.loads((GOLDEN / file).read_text()), msgspec.json.decode(msgspec.json.encode(job))
        )
        == []
    )


def test_roles_of_before_there_were_containers_have_neither_image_nor_volumes() -> None:
    line = next(
        line for file, _, line in LINES if file == "v1-roles.jsonl" and '"RunRequested"' in line
    )
    assert '"image"' not in line and '"volumes"' not in line
    _, event = read(line)
    assert isinstance(event, events.RunRequested)
    assert (
        [(r.image, r.volumes) for r in event.spec.roles]
        == [(None, ())] * len(event.spec.roles)
        != []
    )


def test_what_a_record_says_of_containers_is_their_images_and_of_other_tasks_nothing() -> None:
    def on_file(jid: str) -> list[dict]:
        job = fold(
            jid,
            [e for row, e in (read(line) for *_, line in LINES) if row["stream"] == f"job/{jid}"],
        )
        return [t for a in record(job, 1, 2.0)["attempts"] for t in a["tasks"]]

    contained = on_file("EPRSuser-simAAA06-command")
    digest = "@sha256:" + "0a" * 32
    assert {t["role"]: t["image"] for t in contained} == {
        "ps": "python:3.11",
        "worker": f"registry.example.org:5000/team/solver:2{digest}",
        "log": None,
    }
    assert {t["agentKey"] for t in contained} == {"docker.container.EPRSuser@h1"}
    assert [t for t in on_file("EPRSuser-simAAA05-command") if "image" in t] == []


def test_a_record_says_what_a_batch_scheduler_said_last_and_of_other_runs_nothing() -> None:
    def on_file(jid: str) -> dict:
        return record(
            fold(
                jid,
                [
                    e
                    for row, e in (read(line) for *_, line in LINES)
                    if row["stream"] == f"job/{jid}"
                ],
            ),
            1,
            2.0,
        )

    batch = on_file("EPRSuser-simAAA07-command")
    assert (
        batch["batch"]["jobId"],
        batch["batch"]["state"],
        batch["batch"]["canceledBy"],
        batch["batch"]["nodes"],
    ) == (
        "4711",
        "CANCELLED",
        "operator",
        "n[1-2]",
    )
    assert (
        batch["attempts"][0]["tasks"][0]["batch"] == batch["batch"]
        and "reason" not in batch["batch"]
    ), "what is not said is left out"
    for other in ("EPRSuser-simAAA05-command", "EPRSuser-simAAA01-heightWeightReport"):
        assert '"batch"' not in json.dumps(on_file(other))


def test_a_run_in_the_queue_of_a_cluster_is_told_so_on_file() -> None:
    _, event = next(read(line) for file, _, line in LINES if file == "v3-compacted.jsonl")
    assert isinstance(event, events.JobFolded)
    job = evolve(Job(jid="whatever"), event)
    told = record(job, 1, 2.0)
    assert (told["queueState"], told["jobStatusMessage"]) == (
        "slurm",
        "in the queue of hpc, Slurm job 4711",
    )
    assert (
        job.run is not None
        and job.run.live_tasks[0].batch is not None
        and job.run.live_tasks[0].batch.reason == "Resources"
    )


def test_a_token_that_nobody_was_given_pushes_no_other_out() -> None:
    key = AgentKey("sbatch", "parallel", "EPRSuser", "hpc")
    agent = evolve_agent(
        AgentRecord(key=key),
        events.AgentStartRequested(at=1.0, agent_key=key, token_hash="lives", attempt=1),
    )
    for attempt in range(2, 40):
        agent = evolve_agent(
            agent,
            events.AgentStartRequested(
                at=1.0, agent_key=key, token_hash=f"never-{attempt}", attempt=attempt
            ),
        )
        agent = evolve_agent(
            agent,
            events.AgentSignInNeeded(at=1.0, agent_key=key, attempt=attempt, reason="sign in"),
        )
    assert agent.token_hashes == ("lives",) and not agent.starting and agent.last_failure is None
    # a late event of an earlier start: the token of the newer start may be in use
    agent = evolve_agent(
        agent, events.AgentStartRequested(at=1.0, agent_key=key, token_hash="newer", attempt=41)
    )
    agent = evolve_agent(
        agent, events.AgentSignInNeeded(at=1.0, agent_key=key, attempt=40, reason="sign in")
    )
    assert agent.token_hashes == ("lives", "newer")


def test_a_golden_checkpoint_is_the_state_that_it_carries() -> None:
    rows = {
        row["stream"]: (row, event)
        for row, event in (read(line) for file, _, line in LINES if file == "v1-compacted.jsonl")
    }
    row, event = rows["job/EPRSuser-simAAA03-heightWeightReport"]
    job = evolve(Job(jid="whatever"), event)
    assert (
        job.version == row["version"]
        and differences(row["event"]["job"], msgspec.json.decode(msgspec.json.encode(job))) == []
    )
    # a field omitted because it had its default value still has that value
    row, event = rows["job/EPRSuser-simAAA04-command"]
    job = evolve(Job(jid="whatever"), event)
    assert (
        differences(
            json.loads((GOLDEN / "v1-folded-job.json").read_text()),
            msgspec.json.decode(msgspec.json.encode(job)),
        )
        == []
    )
    row, event = rows["agent/local.sequential.EPRSuser@node1.example.org"]
    agent = evolve_agent(AgentRecord(key=event.agent.key), event)
    assert (
        agent.version == row["version"]
        and differences(row["event"]["agent"], msgspec.json.decode(msgspec.json.encode(agent)))
        == []
    )


def differences(golden, now, where: str = "") -> list[str]:
    """Return where `now` lacks or changes a golden value; additional values of later versions are
    allowed.
    """
    if isinstance(golden, dict) and isinstance(now, dict):
        return [
            d
            for k in golden
            for d in (
                differences(golden[k], now[k], f"{where}.{k}")
                if k in now
                else [f"{where}.{k} is gone"]
            )
        ]
    if isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        return [
            d
            for n, (a, b) in enumerate(zip(golden, now, strict=True))
            for d in differences(a, b, f"{where}[{n}]")
        ]
    return [] if golden == now else [f"{where}: {golden!r} became {now!r}"]


@pytest.mark.parametrize(
    ("type_", "schema"), [("RunRequested", 99), ("RunRequested", 0), ("NeverHeardOf", 1)]
)
def test_an_unknown_event_is_refused_by_name(type_: str, schema: int) -> None:
    assert not known(type_, schema)
    with pytest.raises(Refusal, match=f"{type_}.*{schema}") as refused:
        decode(type_, schema, b"{}")
    assert refused.value.code == "unknownEvent"


def test_an_old_version_is_brought_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(events.VERSIONS, "SupervisorStopped", 3)
    monkeypatch.setitem(
        events.UPCASTERS, ("SupervisorStopped", 1), lambda d: {**d, "why": d["because"]}
    )
    assert not known("SupervisorStopped", 1)
    monkeypatch.setitem(
        events.UPCASTERS, ("SupervisorStopped", 2), lambda d: {**d, "reason": d["why"]}
    )
    assert (
        known("SupervisorStopped", 1)
        and known("SupervisorStopped", 3)
        and not known("SupervisorStopped", 4)
    )
    event = decode(
        "SupervisorStopped",
        1,
        b'{"type":"SupervisorStopped","at":1.0,"session":2,"because":"told"}',
    )
    assert event == events.SupervisorStopped(at=1.0, session=2, reason="told")


def test_only_a_cloned_run_needs_a_later_version() -> None:
    rows = [read(line) for *_, line in LINES if json.loads(line)["type"] == "RunRequested"]
    plain = next(e for _, e in rows if b'"config":' not in encode(e))
    assert isinstance(plain, events.RunRequested) and b"clonedFrom" not in encode(plain)
    spec = msgspec.structs.replace(plain.spec, cloned_from="EPRSuser-simAAA01-command")
    cloned = msgspec.structs.replace(plain, spec=spec)
    assert (events.schema_of(plain), events.schema_of(cloned)) == (1, 2)
