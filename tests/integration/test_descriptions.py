"""Job descriptions over HTTP. The examples run. An invalid description gets one answer with all its
errors and leaves nothing behind.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_lag import check_lag
from supervisor_process import UID, SupervisorProcess, ended, req_id, until

from jobscribe.cli.submission.job_document import FileOptions, read_document
from jobscribe.client.sync_client import Client, Job
from jobscribe.schema.text.reader import read

EXAMPLES = Path(__file__).resolve().parents[2] / "etc" / "examples" / "jobs"


@pytest.fixture(scope="module")
def wide() -> Iterator[SupervisorProcess]:
    """Return a site with capacity for eight cores of roles, whatever this machine has."""
    with ended(check_lag) as sites:
        sites.append(SupervisorProcess(("resources.local_cpu=8",)))
        sites[0].start()
        yield sites[0]


def posted(
    site: SupervisorProcess, description: object, code: int = 200, request: str | None = None
) -> dict[str, Any]:
    body = json.dumps(
        {"reqId": request or req_id(), "uid": UID, "description": description}
    ).encode()
    answer = site.ask("POST", "/api/run-description", body)
    assert answer.code == code, (answer.code, answer.body)
    said: dict[str, Any] = answer.json()
    return said


def jobs(site: SupervisorProcess) -> int:
    return len(site.post("job-list", uid=UID)["jobs"])


def test_all_that_is_wrong_is_http_400_and_nothing_is_stored(wide: SupervisorProcess) -> None:
    before = wide.ready()
    bad = {
        "jobs": [
            {"name": "good", "command": "true"},
            {
                "name": "x",
                "roles": {"w": {"tasks": 2, "minFailed": 3, "comand": "x"}},
                "after": ["good", "x"],
            },
        ]
    }
    said = posted(wide, bad, 400)
    assert set(said) == {"state", "code", "error", "advice", "retry", "problems", "warnings"}
    assert (said["state"], said["code"], said["retry"]) == ("error", "badRequest", False)
    assert [p["path"] for p in said["problems"]] == [
        "jobs[1].roles.w.comand",
        "jobs[1].roles.w.command",
        "jobs[1].roles.w.minFailed",
        "jobs[1].after",
    ]
    assert "and 3 more" in said["error"]
    after = wide.ready()
    assert (after["head"], after["counters"]["refused.badRequest"]) == (
        before["head"],
        before["counters"].get("refused.badRequest", 0) + 1,
    )
    assert jobs(wide) == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"reqId": "request-0000", "uid": "SystemU1"}', "badRequest"),
        (
            b'{"reqId": "request-0000", "uid": "SystemU1", "description": {"name": "x", "name": "y", "command": "z"}}',
            "badRequest",
        ),
        (
            b'{"reqId": "request-0000", "uid": "SystemU1", "description": '
            + b"[" * 100_000
            + b"]" * 100_000
            + b"}",
            "tooDeep",
        ),
        (
            b'{"reqId": "request-0000", "uid": "SystemU1", "description": "' + b"x" * 2**20 + b'"}',
            "tooLarge",
        ),
        (
            b'{"reqId": "request-0000", "uid": "SystemU1", "description": "'
            + b"x" * 10 * 2**20
            + b'"}',
            "tooLarge",
        ),
    ],
)
def test_bodies_that_are_no_request(wide: SupervisorProcess, body: bytes, code: str) -> None:
    head = wide.ready()["head"]
    answer = wide.ask("POST", "/api/run-description", body)
    assert (answer.json()["code"], answer.code) == (code, 413 if code == "tooLarge" else 400)
    assert wide.ready()["head"] == head


def test_jobs_that_wait_for_each_other_run_in_order_and_once(
    wide: SupervisorProcess, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    tmp_path.chmod(0o777)
    description = {
        "jobs": [
            {
                "name": "last",
                "command": f"echo last >> {told}",
                "after": [{"job": "fails", "on": "failed"}],
            },
            {"name": "fails", "command": f"echo fails >> {told}; exit 3", "after": ["piece"]},
            {"name": "piece", "command": f"echo piece >> {told}", "array": "1-3"},
        ]
    }
    first = posted(wide, description, request="request-pipeline")
    jid = first["jobs"]["last"][0]["computeJid"]
    until(lambda: wide.post("run-status", uid=UID, computeJid=jid)["over"], "the last is over")
    assert (
        posted(wide, description, request="request-pipeline")["jobs"].keys() == first["jobs"].keys()
    )
    assert told.read_text().split() == ["piece", "piece", "piece", "fails", "last"]
    assert jobs(wide) == 5


def test_two_servers_and_two_workers_find_each_other(wide: SupervisorProcess) -> None:
    description = read(str(EXAMPLES / "training.yaml")).data
    with Client.from_root(wide.root, uid=UID) as client:
        job = client.submit_description(description)["training"][0]
        assert isinstance(job, Job)
        state = job.wait(timeout=60)
        assert (state.state, state.finished) == ("completed", True), (state, wide.log()[-3000:])
    said = [
        wide.ask(
            "POST",
            "/api/job-log",
            json.dumps({"uid": UID, "computeJid": job.jid, "role": "worker", "index": n}).encode(),
        ).body
        for n in (0, 1)
    ]
    assert [line.split()[:3] for line in said] == [
        [b"worker", b"0", b"saw"],
        [b"worker", b"1", b"saw"],
    ]
    assert max(int(line.split()[3]) for line in said) == 200


def test_configurations_of_openpai_run_to_their_results(
    wide: SupervisorProcess, tmp_path: Path
) -> None:
    """Both examples run with only their folders changed; a name that is in use is refused."""
    tmp_path.chmod(0o777)
    shutil.copytree(EXAMPLES.parent / "openpai", tmp_path / "sums", dirs_exist_ok=True)
    results = {}
    with Client.from_root(wide.root, uid=UID) as client:
        for name in ("sums.json", "sums.yaml"):
            path = tmp_path / name
            text = (EXAMPLES.parent / "openpai" / name).read_text()
            path.write_text(text.replace("/srv", str(tmp_path)))
            options = FileOptions(lambda: UID, containers=False)
            document, problems, _ = read_document(str(path), options)
            assert document is not None, problems
            request = f"request-{name.replace('.', '-')}"
            (runs,) = client.submit_description(document.data, req_id=request).values()
            job = runs[0]
            assert isinstance(job, Job)
            state = job.wait(timeout=60)
            assert state.state == "completed", (state, wide.log()[-3000:])
            assert state.roles["server"]["stopped"] == 2
            results[name] = job.jid
            assert posted(wide, document.data, 409)["code"] == "nameTaken"
            again = client.submit_description(document.data, req_id=request)
            assert [r.jid for rs in again.values() for r in rs if isinstance(r, Job)] == [job.jid]
    run_dir = next(Path(wide.root).glob(f"**/{results['sums.json'].split('-')[1]}/command"))
    assert [(run_dir / "Output" / "sums" / f"sum-{n}").read_text() for n in (0, 1)] == ["200\n"] * 2
    assert [(tmp_path / "sums" / "output" / f"sum-{n}").read_text() for n in (0, 1)] == [
        "200\n"
    ] * 2
    staged = run_dir / "worker" / "0" / "code" / "add.py"
    assert staged.stat().st_mode & 0o222 == 0
