"""Every refusal has a code with an HTTP status, advice, and whether a retry may succeed."""

import ast
import pathlib

import pytest

from jobscribe.protocol.errors import CODES, Refusal

ROOT = pathlib.Path(__file__).resolve().parents[3]
PRODUCT = (
    "agent",
    "apps",
    "cli",
    "client",
    "db",
    "diagnosis",
    "drivers",
    "protocol",
    "runtime",
    "schema",
    "service",
    "router",
    "supervisor",
    "web",
)


@pytest.mark.parametrize("code", CODES)
def test_a_refusal_crosses_the_wire_with_all_a_person_needs(code: str) -> None:
    refusal = Refusal(code, "a sentence")
    assert refusal.body() == {
        "state": "error",
        "code": code,
        "error": "a sentence",
        "advice": CODES[code].advice,
        "retry": CODES[code].retry,
    }
    assert 400 <= refusal.http <= 599
    assert len(CODES[code].advice) > 3
    assert str(refusal) == f"{code}: a sentence"


def test_only_what_may_pass_is_worth_a_retry() -> None:
    for code, c in CODES.items():
        assert c.retry == (
            c.http in (429, 503, 504) or code in ("conflict", "internal", "notReady")
        ), code


def test_every_code_that_the_product_uses_is_known() -> None:
    used = {}
    for path in (p for name in PRODUCT for p in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="Refusal" | "FrameError"),
                    args=[ast.Constant(value=str(code)), *_],
                ):
                    used[code] = f"{path.relative_to(ROOT)}:{node.lineno}"
    assert "badRequest" in used and "malformed" in used
    assert {code: place for code, place in used.items() if code not in CODES} == {}
