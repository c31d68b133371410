"""Log lines of a request carry its ids as soon as they are known, and what it states."""

import ast
import json
from types import SimpleNamespace

import pytest

from jobscribe.protocol.api.requests import RunSimulation, RunSpec
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log
from jobscribe.supervisor.api.transport.request_handler import Handler

JID = "user0001-sim00001-command"


class Lines(list):
    def put(self, text):
        self.append(json.loads(text))


@pytest.fixture
def lines():
    return Lines()


def handler(lines):
    log = Log("supervisor", Redactor(), Direct(lines, form="json"))
    out = Handler.__new__(Handler)
    out.initialize(SimpleNamespace(runs=SimpleNamespace(log=log)), None)
    return out


def test_lines_of_a_call_and_all_later_ones_of_its_request_carry_its_ids(lines):
    call, other = handler(lines), handler(lines)
    call.log_call("runFile", JID, "user0001", "o" * 32, jid=JID)
    call.log("later")
    other.log("another request")
    ids = [{k: line.get(k) for k in ("jid", "uid", "op")} for line in lines]
    assert ids == [{"jid": JID, "uid": "user0001", "op": "oooooo"}] * 2 + [
        dict.fromkeys(("jid", "uid", "op"))
    ]


def test_lines_of_a_run_request_carry_its_job(lines):
    request = handler(lines)
    request.log_request("runCancel", {"uid": "user0001"}, JID)
    assert [line["jid"] for line in lines] == [JID, JID]


def test_the_line_of_a_request_has_its_content_without_defaults_and_secrets(lines):
    run = RunSpec(
        uid="user0001",
        simulation_id="sim00001",
        command=("true",),
        env={"API_KEY": "k3y-of-the-user", "N": "1"},
        retry=Retry(count=2),
    )
    request = RunSimulation(req_id="r" * 24, run=run, force_run=True)
    handler(lines).log_request("runSimulation", request, JID)
    content = ast.literal_eval(
        lines[0]["msg"]
        .removeprefix("class=ServerReq content=")
        .replace("<REDACTED>", "'<REDACTED>'")
    )
    assert content == {
        "api": "api_runSimulation",
        "reqId": "r" * 24,
        "run": {
            "uid": "user0001",
            "simulationId": "sim00001",
            "command": ["true"],
            "env": {"API_KEY": "<REDACTED>", "N": "1"},
            "retry": {"count": 2},
        },
        "forceRun": True,
        "serverSecret": "<REDACTED>",
    }
