"""The OpenAPI document of the supervisor's API against its real answers: schemathesis sends requests
with a user's token, and to administrators' addresses with the server secret. It finds no error, no
undocumented answer, and nothing of another user.
"""

import contextlib
import os
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from supervisor_process import SupervisorProcess, shell

from jobscribe.supervisor.api.routes import ROUTES

ANN, BOB = "AnnUser1", "BobUser1"
CANARY = "canary-of-bob-in-output-and-command"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: Examples for each operation and mode. SCHEMATHESIS_EXAMPLES=200 runs more.
EXAMPLES = int(
    os.environ.get("SCHEMATHESIS_EXAMPLES", "10" if os.environ.get("SOAK") == "1" else "1")
)
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


def narrowed(said: dict[str, Any], hits: dict[str, list[Any]]) -> dict[str, Any]:
    """Restrict fields to likely values, so that requests pass the validation; and commands to
    harmless ones, because the requests are carried out.
    """
    for operations in said["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] in hits:
                    parameter["schema"] = {"enum": hits[parameter["name"]]}
    for schema in said["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            if name in hits:
                field.clear()
                field |= {"enum": hits[name]}
    return said


def _tried(operation: Any, mode: Any, senders: dict[str, bytes]) -> set[tuple[str, int]]:
    """Send requests to an operation, and check the answers. Return the codes by operation.
    senders: tokens, each with text that is in none of its answers.
    """
    answered: set[tuple[str, int]] = set()

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def try_it(case: Any) -> None:
        for sender, forbidden in senders.items():
            answer = case.call(headers={"Authorization": "Bearer " + sender}, timeout=60)
            answered.add((case.operation.label, answer.status_code))
            assert forbidden not in answer.content
            case.validate_response(answer, checks=CHECKS)

    # no request of some operations can be invalid
    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        try_it()
    return answered


@pytest.mark.timeout(600)
def test_requests_of_a_user_find_no_error_and_nothing_of_others(
    shared: SupervisorProcess,
) -> None:
    site = shared
    theirs, own = shell(f"echo {CANARY}", BOB), shell("echo hello", ANN)
    token = site.post("token-create", uid=ANN, name="t", scopes=["read", "control", "debug"])
    for run in (theirs, own):
        site.finished(run)
    jids = [f"{r['uid']}-{r['simulationId']}-command" for r in (own, theirs)]
    sids = [own["simulationId"], theirs["simulationId"]]
    said = site.ask("GET", "/api/openapi.json").json()
    assert set(said["paths"]) == {r.path for r in ROUTES if "*" not in r.path}
    hits: dict[str, list[Any]] = {
        "uid": [ANN, BOB],
        "username": [ANN, BOB],
        "computeJid": jids,
        "after": [None],
        "job": sids,
        "simulationId": sids,
        "computeJobSerial": [0],
        "computeModel": ["command"],
        "simulationType": ["command", "nosuch"],
        "command": [["/bin/true"], ["/bin/echo", "x"]],
        "wrap": [[]],
        "driver": ["", "local", "nosuch"],
        "stream": ["stdout", "stderr"],
        "waitSecs": [0],
        "deadlineSecs": [20],
        "debugSecs": [None],
        "id": [sids[0], sids[1], "zzzz"],
    }
    schema = schemathesis.openapi.from_dict(narrowed(said, hits))
    schema.config.update(base_url=site.url)
    # the streams end with their clients
    scopes = {r.path: r.scope for r in ROUTES if not r.streams}
    answered: set[tuple[str, int]] = set()
    for operation in (result.ok() for result in schema.get_all_operations()):
        if operation.path not in scopes:
            continue
        senders = {token["secret"]: CANARY.encode()}
        if scopes[operation.path] == "admin":
            senders[site.token] = site.token.encode()
        for mode in _MODES:
            answered |= _tried(operation, mode, senders)
    assert site.status(theirs)["state"] == "completed", "no request of another user changed it"
    assert {200, 400, 401, 403, 404} <= {code for _, code in answered}
    succeeded = {label for label, code in answered if code < 300}
    assert len(succeeded) > 20, "requests pass the validation"
