"""Plain data becomes structs by the types of their fields; all errors are found, and none raises."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.clusters.cluster import Clusters
from jobscribe.protocol.clusters.container_pool import Pool
from jobscribe.protocol.fields import PORTS, SECONDS, Form, InvalidForm, Word, word
from jobscribe.schema.fields import Findings
from jobscribe.schema.structs import Place, convert


def _even(value: Any) -> int:
    if not isinstance(value, int) or value % 2:
        raise InvalidForm("it is odd")
    return value


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+\Z"), Form("small letters")]
    tasks_each: Annotated[int, msgspec.Meta(ge=1, le=10_000), Form(aliases=("instances",))] = 1
    limit: Annotated[float, msgspec.Meta(gt=0, le=600), SECONDS] | None = None
    ports: Annotated[tuple[int, int], PORTS] = (2000, 3000)
    words: Annotated[tuple[Annotated[str, Form("a word", word)], ...], Form(unique=True)] = ()
    labels: dict[Annotated[str, msgspec.Meta(max_length=3), Form("letters")], Word] = {}
    kind: Literal["a", "b"] = "a"
    on: bool = False
    file: Annotated[str, Form("a file", path=True)] | None = None
    even: Annotated[int, Form("an even number", _even)] = 2
    share: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    most: int | None = 7


class Size(msgspec.Struct, frozen=True, kw_only=True):
    low: int = 1
    high: int = 2


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=3)]
    by_name: dict[str, Part] = {}
    size: Size = Size(low=10, high=20)
    inner: "Whole | None" = None


def read(data: object, type_: Any = Part) -> tuple[Any, list[str]]:
    """Return the struct and `path: problem; right: form` of all errors."""
    findings = Findings()
    out = convert(type_, data, findings, folder="/etc/x")
    return out, [p.sentence() for p in findings.problems]


def test_values_are_read_as_people_write_them() -> None:
    given = {
        "name": "ab",
        "tasksEach": 3,
        "limit": "1:30",
        "ports": "2000-2010",
        "words": ["a", 7, True],
        "labels": {"x": 1},
        "kind": "b",
        "on": True,
        "file": "y/z",
        "share": 1,
        "most": None,
    }
    assert read(given) == (
        Part(
            name="ab",
            tasks_each=3,
            limit=90.0,
            ports=(2000, 2010),
            words=("a", "7", "true"),
            labels={"x": "1"},
            kind="b",
            on=True,
            file="/etc/x/y/z",
            share=1.0,
            most=None,
        ),
        [],
    )


Shout = Annotated[str, msgspec.Meta(max_length=3), Form("a text", aliases=("loud",))]


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """shout: its outer form adds a name, and keeps the rest of the inner one."""

    line: Annotated[str | tuple[str, ...], Form("a line, or a list of words")] = ""
    sizes: Annotated[dict[str, int | Size | None], msgspec.Meta(max_length=2)] = {}
    shout: Annotated[Shout, Form(aliases=("cry",))] = ""
    unset: Size | msgspec.UnsetType = msgspec.UNSET


def test_the_kind_of_a_value_selects_the_choice_of_a_union() -> None:
    given = {"line": ["a", "b"], "sizes": {"x": 3, "y": {"low": 2}}}
    wanted = Choice(line=("a", "b"), sizes={"x": 3, "y": Size(low=2)})
    assert read(given, Choice) == (wanted, [])
    assert read({"line": "a b", "sizes": {"x": None}}, Choice) == (
        Choice(line="a b", sizes={"x": None}),
        [],
    )


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("line", {}, "line: it is an empty object; right: a line, or a list of words"),
        ("line", 7, "line: it is 7; right: a line, or a list of words; put it in quotes: '7'"),
        ("line", ["a", []], "line[1]: it is an empty list; right: a text"),
        (
            "sizes",
            {"x": {"low": "2"}},
            'sizes.x.low: it is the text "2"; right: a whole number, without quotes',
        ),
        (
            "sizes",
            {"x": []},
            "sizes.x: it is an empty list; right: a whole number, or an object with low and high",
        ),
        ("sizes", dict.fromkeys("abc", 1), "sizes: it has 3 keys; right: an object of at most 2"),
        ("shout", "abcd", "shout: it has 4 characters; right: a text, at most 3 characters"),
        ("cry", "a", "cry: unknown key; right: `shout`"),
        ("unset", 7, "unset: it is 7; right: an object with low and high"),
    ],
)
def test_each_choice_explains_its_own_errors(key: str, value: object, sentence: str) -> None:
    assert read({key: value}, Choice)[1] == [sentence]


def test_a_message_of_a_program_is_read_as_strictly_as_msgspec_reads_it() -> None:
    findings = Findings()
    convert(Part, {"name": "a", "limit": "1:30", "kind": None, "new": 1}, findings, wire=True)
    convert(Choice, {"new": 1}, findings, "second", wire=True)
    assert [p.sentence() for p in findings.problems] == [
        'limit: it is the text "1:30"; right: a number, more than 0, at most 600',
        "kind: it is nothing; right: one of a, b",
        "second.new: unknown key; right: the keys here are line, sizes, shout and unset",
    ]


def test_null_is_missing_unless_it_is_a_value() -> None:
    given = {"name": "a", "tasksEach": None, "ports": None, "limit": None, "most": None}
    assert read(given) == (Part(name="a", most=None), [])
    assert read({"name": None})[1] == ["name: it is missing; right: small letters"]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("name", "A", 'it is the text "A"; right: small letters'),
        ("name", 7, "it is 7; right: small letters; put it in quotes: '7'"),
        ("tasksEach", 0, "it is 0; right: a whole number, 1 to 10,000"),
        (
            "tasksEach",
            "3",
            'it is the text "3"; right: a whole number, 1 to 10,000, without quotes',
        ),
        ("tasksEach", True, "it is true; right: a whole number, 1 to 10,000"),
        (
            "tasksEach",
            10**30,
            "it is a number of more than 64 bits; right: a whole number, 1 to 10,000",
        ),
        (
            "limit",
            0,
            "it is 0; right: seconds, or a text as in 90s, 15m or 1:30, more than 0, at most 600",
        ),
        (
            "limit",
            "soon",
            'it is the text "soon"; right: seconds, or a text as in 90s, 15m or 1:30, more than 0, at most 600',
        ),
        (
            "limit",
            True,
            "it is true; right: seconds, or a text as in 90s, 15m or 1:30, more than 0, at most 600",
        ),
        (
            "ports",
            "7-9",
            'it is the text "7-9"; right: two ports from 1024 to 65535, the lower one first, as in 30000-32767',
        ),
        ("words", "a", 'it is the text "a"; right: a list'),
        ("words[1]", ["a", {}], "it is an empty object; right: a word"),
        ("words[2]", ["a", "b", "a"], 'the text "a" occurs twice; right: each once'),
        (
            "labels.x",
            {"x": 1.5},
            "it is 1.5, which could have been written differently; right: a text in quotes",
        ),
        (
            "labels.long",
            {"long": "x"},
            "this is not a valid name; right: letters, at most 3 characters",
        ),
        ("labels", [], "it is an empty list; right: an object"),
        ("kind", "c", 'it is the text "c"; right: one of a, b'),
        ("on", "yes", 'it is the text "yes"; right: true or false'),
        ("file", "", 'it is the text ""; right: a file'),
        ("file", "a\0", r'it is the text "a\x00"; right: a file'),
        ("even", 3, "it is odd; right: an even number"),
        ("share", -1, "it is -1; right: a number, at least 0"),
        ("share", "x", 'it is the text "x"; right: a number, at least 0'),
        ("instances", 3, "unknown key; right: `tasksEach`"),
        ("lables", {}, "unknown key; right: `labels`"),
    ],
)
def test_a_wrong_value_is_explained_and_replaced_by_its_default(
    key: str, value: object, sentence: str
) -> None:
    data = {"name": "a", key.partition("[")[0].partition(".")[0]: value}
    out, found = read(data)
    assert found == [f"{key}: {sentence}"]
    assert out == Part(name="" if key == "name" else "a")


def test_parts_keep_their_places() -> None:
    data = {
        "parts": [{"name": "a"}, 7, {"name": 1, "on": True}],
        "by_name": {"x y": {}},
        "size": {"low": "x", "high": 5},
    }
    out, found = read(data, Whole)
    assert found == [
        "parts[1]: it is 7; right: an object with name",
        "parts[2].name: it is 1; right: small letters; put it in quotes: '1'",
        'by_name["x y"].name: it is missing; right: small letters',
        'size.low: it is the text "x"; right: a whole number',
    ]
    assert out == Whole(
        parts=(Part(name="a"), Part(name=""), Part(name="", on=True)),
        by_name={"x y": Part(name="")},
        size=Size(low=10, high=5),
    )
    assert read({"parts": []}, Whole)[1] == ["parts: it has 0 elements; right: a list of 1 to 3"]
    assert read([], Whole)[1] == [": it is an empty list; right: an object with parts".lstrip(": ")]


def test_a_key_that_is_no_text() -> None:
    assert read({"name": "a", 5: 1})[1] == ["a key is 5; right: keys are texts; put it in quotes"]


def test_a_place_knows_what_was_given_and_what_was_wrong() -> None:
    data = {"parts": [{"name": "a"}, {"name": "b", "on": "yes", "limit": None}], "size": {}}
    findings = Findings()
    convert(Whole, data, findings)
    place = Place(data, "", findings)
    first, second = place.each("parts")
    assert [first.given("on"), second.given("on"), second.given("limit")] == [False, True, False]
    assert [first.valid("on"), second.valid("on"), place.valid("parts")] == [True, False, False]
    assert (place.within("size").path, place.within("inner").given("x")) == ("size", False)
    second.error("name", "taken", "another name", unsafe=True)
    second.error("", "odd", "even")
    assert [(p.path, p.unsafe) for p in findings.problems[1:]] == [
        ("parts[1].name", True),
        ("parts[1]", False),
    ]


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["hosts", "clusters", "name", "login", "via", "gpus", "x", 5]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_values, st.sampled_from([Pool, Clusters, Whole]))
def test_no_data_raises(data: Any, type_: Any) -> None:
    out, found = read(data, type_)
    assert isinstance(out, type_) and all(sentence.isprintable() for sentence in found)
