"""The OpenAPI document against the real answers: schemathesis finds no error, and every answer is
documented.
"""

import os
import re
from typing import Any

import hypothesis
import pytest
import schemathesis
from front_end_fixture import ANN, BOB, FrontEnd, followed
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from supervisor_process import SupervisorProcess

from jobscribe.web.blueprint.openapi import document
from jobscribe.web.blueprint.routes import ROUTES

from .test_gates import address

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]
#: Examples for each operation and mode. SCHEMATHESIS_EXAMPLES=200 runs more.
EXAMPLES = int(
    os.environ.get("SCHEMATHESIS_EXAMPLES", "50" if os.environ.get("SOAK") == "1" else "2")
)


def test_every_route_is_in_it_with_its_types(web: FrontEnd) -> None:
    paths = web.as_(None).get("/openapi.json").get_json()["paths"]
    there = {(method, path) for path, operations in paths.items() for method in operations}
    assert there == {(r.method.lower(), re.sub(r"<(\w+)>", r"{\1}", r.path)) for r in ROUTES} | {
        ("get", "/openapi.json")
    }
    for route in ROUTES:
        operation = paths[re.sub(r"<(\w+)>", r"{\1}", route.path)][route.method.lower()]
        assert {"200", "400", "401", "402", "403", "404", "405", "409", "413", "429", "503"} <= set(
            operation["responses"]
        )
        assert ("requestBody" in operation) == (route.method in ("POST", "PUT"))


def test_it_holds_no_words_of_python_and_no_loose_ends(web: FrontEnd) -> None:
    whole = web.as_(None).get("/openapi.json").get_data(as_text=True)
    assert "\\\\Z" not in whole and "msgspec" not in whole
    said = document()
    for name in re.findall(r"#/components/schemas/(\w+)", whole):
        assert name in said["components"]["schemas"]


#: Valid values by name, because random values would hardly ever be valid.
HITS = {
    "simulationType": ["odd", "odd", "nosuch"],
    "simulationId": ["abcdefgh", "zyxwvuts"],
    "report": ["oddReport", "oddAnimation", "nosuch"],
    "computeModel": ["oddReport", "oddAnimation", "nosuch"],
    "method": ["echo", "where", "raises", "nan", "nosuch"],
    "name": ["a.txt", "b c.txt"],
    "frame_id": ["1*oddAnimation*abcdefgh*odd*ab*17", "x", "1*nosuch*abcdefgh*odd*ab*1700000000"],
    "suffix": ["big10", "link", "up", ""],
}


def narrowed(said: dict[str, Any]) -> dict[str, Any]:
    """Restrict request fields of the document to likely values, so that requests pass the
    validation.
    """
    for operations in said["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in HITS:
                    parameter["schema"] = {"type": "string", "enum": HITS[parameter["name"]]}
    for type_ in {r.takes.__name__ for r in ROUTES if r.takes is not None}:
        for name, schema in said["components"]["schemas"][type_]["properties"].items():
            if name in HITS:
                schema.clear()
                schema |= {"type": "string", "enum": HITS[name]}
            if name == "deadlineSecs":  # shorter deadlines make the result depend on timing
                next(s for s in schema["anyOf"] if s["type"] == "number")["minimum"] = 20
    return said


def closing(app: Any) -> Any:
    """Close the response after reading it, like a WSGI server. The test harness does not."""

    def call(environ: Any, start_response: Any) -> list[bytes]:
        answer = app(environ, start_response)
        try:
            return list(answer)
        finally:
            if hasattr(answer, "close"):
                answer.close()

    return call


@pytest.fixture(scope="module")
def schema(module_site: SupervisorProcess) -> Any:
    web = FrontEnd(str(module_site.root))
    web.app.wsgi_app = closing(web.app.wsgi_app)  # type: ignore[method-assign]
    narrow = narrowed(document())
    web.app.add_url_rule("/narrow.json", "narrow", lambda: narrow)
    # a run of each model and a file, so that generated requests can find them
    ann = web.as_(ANN)
    for report in ("oddReport", "oddAnimation"):
        request = {"simulationType": "odd", "simulationId": "abcdefgh", "report": report}
        followed(ann, ann.said("/run-simulation", request))
    ann.put("/lib-file/odd/a.txt", b"x")
    yield schemathesis.openapi.from_wsgi("/narrow.json", web.app)
    web.close()


def test_what_is_generated_finds_no_fault_and_no_undocumented_answer(schema: Any) -> None:
    answered: set[tuple[str, int]] = set()
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == len(ROUTES) + 1
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            @hypothesis.settings(
                # requests of pages are passed on, and tested at the supervisor as well
                max_examples=1 if "/page-data/" in operation.label else EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            def try_it(case: Any) -> None:
                uid = ANN if case.method != "POST" or len(str(case.body)) % 2 else BOB
                answer = case.call(headers={"X-User": uid, "Accept-Encoding": "identity"})
                answered.add((case.operation.label, answer.status_code))
                case.validate_response(answer, checks=CHECKS)

            try:
                try_it()
            except hypothesis.errors.Unsatisfiable:
                # no request of this operation can be invalid
                assert mode is schemathesis.GenerationMode.NEGATIVE, operation.label
    statuses = {status for _, status in answered}
    assert {200, 400, 404} <= statuses, "the requests really reached the routes"
    done = {label for label, status in answered if status == 200}
    assert done >= {
        "POST /own-jobs",
        "POST /run-simulation",
        "POST /run-status",
        "POST /stateless-compute",
        "GET /apps",
        "POST /live-ticket",
    }, answered


def test_the_first_answer_of_each_route_to_nobody_is_documented_too(web: FrontEnd) -> None:
    for route in ROUTES:
        answer = web.as_(None).ask(
            route.method, address(route.path), json={} if route.method == "POST" else None
        )
        operation = document()["paths"][re.sub(r"<(\w+)>", r"{\1}", route.path)][
            route.method.lower()
        ]
        assert str(answer.status_code) in operation["responses"]
