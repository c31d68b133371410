"""Ids are parsed once, at the edge; the parser refuses paths, header injections and look-alike
characters.
"""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol import ids
from jobscribe.protocol.errors import Refusal

GOOD = {
    "uid": "EPRSqtUW",
    "simulationId": "IVh7w74d",
    "simulationType": "my_app2",
    "computeModel": "heightWeightReport",
    "computeJid": "EPRSqtUW-IVh7w74d-heightWeightReport",
    "opId": "j2FXq1" + "a" * 26,
    "agentId": "WUt4" + "b" * 28,
    "reqId": "a.b:c-d_1",
}
LONGEST = {
    "uid": 8,
    "simulationId": 8,
    "simulationType": 32,
    "computeModel": 64,
    "computeJid": 8 + 1 + 8 + 1 + 64,
    "opId": 32,
    "agentId": 32,
    "reqId": 64,
}


def spoiled(good: str) -> dict[str, Any]:
    """Return damaged and malicious forms of the id."""
    return {
        "empty": "",
        "a dot dot": "..",
        "dot dot inside": good[:2] + ".." + good[4:],
        "a path": "../" + good,
        "a slash": good[:-1] + "/",
        "a NUL": good[:-1] + "\0",
        "a NUL behind": good + "\0",
        "a line break behind": good + "\n",
        "a line break before": "\n" + good,
        "a carriage return": good + "\r",
        "a blank": good[:-1] + " ",
        "a Cyrillic a": good[:-1] + "\u0430",
        "a full-width A": good[:-1] + "\uff21",
        "an Arabic digit": good[:-1] + "\u0661",
        "a dotless i": good[:-1] + "\u0131",
        "an invisible joiner": good + "\u200d",
        "a combining mark": good + "\u0301",
        "a lone surrogate": good[:-1] + "\udcff",
        "bytes": good.encode(),
        "a number": 12345678,
        "none": None,
        "a list": [good],
        "true": True,
        "a shell character": good[:-1] + "$",
        "percent": good[:-1] + "%",
    }


@pytest.mark.parametrize("what", GOOD)
def test_a_good_id_is_returned_as_it_is(what: str) -> None:
    assert ids.parse(what, GOOD[what]) == GOOD[what]


@pytest.mark.parametrize("accident", spoiled("x" * 8))
@pytest.mark.parametrize("what", GOOD)
def test_a_spoiled_id_is_refused_with_its_name_and_without_its_control_characters(
    what: str, accident: str
) -> None:
    if (what, accident) == ("reqId", "dot dot inside"):
        assert (
            ids.parse(what, "ab..cdef") == "ab..cdef"
        )  # a reqId may contain dots: it never becomes a path
        return
    with pytest.raises(Refusal) as e:
        ids.parse(what, spoiled(GOOD[what])[accident])
    assert e.value.code == "badRequest"
    assert e.value.sentence.startswith(what + " must be ")
    assert e.value.sentence.isascii() and e.value.sentence.isprintable()
    assert len(e.value.sentence) < 200


@pytest.mark.parametrize("what", GOOD)
def test_an_id_of_a_wrong_length_is_refused(what: str) -> None:
    longest = GOOD[what].ljust(LONGEST[what], "a")
    assert ids.parse(what, longest) == longest
    with pytest.raises(Refusal):
        ids.parse(what, longest + "a")
    if what in ("uid", "simulationId", "opId", "agentId"):
        with pytest.raises(Refusal):
            ids.parse(what, longest[:-1])


def test_names_begin_with_a_letter() -> None:
    for what, name in [
        ("simulationType", "9app"),
        ("simulationType", "App"),
        ("computeModel", "_model"),
        ("computeModel", "-model"),
    ]:
        with pytest.raises(Refusal):
            ids.parse(what, name)


@given(st.text(max_size=40))
def test_whatever_is_let_through_is_plain_ascii_without_separators(text: str) -> None:
    for what in GOOD:
        try:
            passed = ids.parse(what, text)
        except Refusal:
            continue
        assert re.fullmatch(r"[A-Za-z0-9_.:-]+", passed, re.ASCII)
        if what != "reqId":
            assert "." not in passed


TOKEN = ids.Token("EPRSqtUW-IVh7w74d-m", 1_700_000_000, 1, "worker", 0)
KEY = ids.AgentKey("docker", "parallel", "EPRSqtUW", "node-1.example.org")


def test_tokens_and_agent_keys_are_read_from_what_they_print() -> None:
    assert str(TOKEN) == "EPRSqtUW-IVh7w74d-m/1700000000/1/worker/0"
    assert ids.parse_token(str(TOKEN)) == TOKEN
    assert "/" not in TOKEN.name
    assert str(KEY) == "docker.parallel.EPRSqtUW@node-1.example.org"
    assert ids.parse_agent_key(str(KEY)) == KEY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "EPRSqtUW-IVh7w74d-m/0/1/worker/0",
        "EPRSqtUW-IVh7w74d-m/1/0/worker/0",
        "EPRSqtUW-IVh7w74d-m/1/1/worker/-1",
        "EPRSqtUW-IVh7w74d-m/1/1/../0",
        "EPRSqtUW-IVh7w74d-m/x/1/worker/0",
        "EPRSqtUW-IVh7w74d-m/1/1/worker/0\n/",
        str(TOKEN) + "/0",
        "EPRSqtUW-IVh7w74d-m/9007199254740993/1/worker/0",
    ],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="badRequest"):
        ids.parse_token(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "local",
        "local.sequential.EPRSqtUW",
        "local.other.EPRSqtUW@h",
        "local.sequential.EPRS@h",
        "local.sequential.EPRSqtUW@",
        "local.sequential.EPRSqtUW@h\n",
        "local.sequential.EPRSqtUW@../h",
        "LOCAL.sequential.EPRSqtUW@h",
        "local.sequential.EPRSqtUW@-h",
    ],
)
def test_what_is_no_agent_key_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="badRequest"):
        ids.parse_agent_key(text)


def test_numbers_in_a_token_are_plain_digits() -> None:
    for text in (
        "EPRSqtUW-IVh7w74d-m/1_000/1/worker/0",
        "EPRSqtUW-IVh7w74d-m/ 1000/1/worker/0",
        "EPRSqtUW-IVh7w74d-m/+1000/1/worker/0",
        "EPRSqtUW-IVh7w74d-m/\u0661000/1/worker/0",
    ):
        with pytest.raises(Refusal):
            ids.parse_token(text)


def test_derived_ids_have_the_shape_of_an_op_id_and_differ_by_everything_they_are_made_from() -> (
    None
):
    made = {
        ids.op_id(TOKEN, "run"),
        ids.op_id(TOKEN, "run", 1),
        ids.op_id(TOKEN, "cancel"),
        ids.derived_id(b"x", key=b"other"),
    }
    assert len(made) == 4
    assert ids.op_id(TOKEN, "run") == ids.op_id(TOKEN, "run")
    for x in made:
        ids.parse("opId", x)


def test_ids_are_shortened_as_in_every_log() -> None:
    assert (
        ids.short_agent("WUt4xxxx"),
        ids.short_op("pb5uQ2xxxx"),
        ids.short_op(None),
        ids.short_uid("EPRSqtUW"),
    ) == ("WUt4", "pb5uQ2", "None", "EPRS")
    assert ids.printable("a\x1b[2Jb\u202ec") == "a?[2Jb?c"
