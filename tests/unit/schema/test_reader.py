"""Job files: YAML and JSON become plain data with the line of each path; any invalid text gives
only problems.
"""

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.schema.fields import MAX_PROBLEMS, InvalidDocument, Problem
from jobscribe.schema.jobs.description import parse_description
from jobscribe.schema.text.document import MAX_DEPTH, MAX_VALUES
from jobscribe.schema.text.reader import MAX_BYTES, parse, read

SOAK = bool(os.environ.get("SOAK"))


def data(text: str, name: str = "x.yaml") -> Any:
    return parse(text.encode(), name).data


def problems(raw: str | bytes, name: str = "x.yaml") -> list[Problem]:
    with pytest.raises(InvalidDocument) as e:
        parse(raw.encode() if isinstance(raw, str) else raw, name)
    assert all(p.file == name and p.problem and p.right for p in e.value.problems)
    return list(e.value.problems)


# ---- accepted text


def test_words_in_yaml_are_what_json_reads_them_as() -> None:
    text = """
on: yes
off: [no, On, 010, 0x1f, 1_000, 1:30, 2024-01-02, .5, +1, .inf, <<, =]
numbers: [0, -7, 12, 1.5, 1e3, -2.5E-1]
words: [true, False, null, ~, Null, "true", 'null', "1"]
empty:
"""
    assert data(text) == {
        "on": "yes",
        "off": [
            "no",
            "On",
            "010",
            "0x1f",
            "1_000",
            "1:30",
            "2024-01-02",
            ".5",
            "+1",
            ".inf",
            "<<",
            "=",
        ],
        "numbers": [0, -7, 12, 1.5, 1000.0, -0.25],
        "words": [True, False, None, None, None, "true", "null", "1"],
        "empty": None,
    }


def test_a_command_of_many_lines_keeps_every_byte() -> None:
    command = "cat <<EOF\n  a # no comment\n\n\tb: 'c'\nEOF\n"
    indented = "".join(f"  {line}\n" if line else "\n" for line in command.splitlines())
    assert data(f"command: |\n{indented}after: []\n") == {"command": command, "after": []}


def test_json_with_comments_and_commas() -> None:
    text = '// first\n{"a": [1, 2.5, -3e2, /* two\nlines */ true, null,], // more\n "b": "no // comment, /* no */ ,] \\u00e9\\n\\"", "c": {},\n}\n// last'
    assert data(text, "x.json") == {
        "a": [1, 2.5, -300.0, True, None],
        "b": 'no // comment, /* no */ ,] \xe9\n"',
        "c": {},
    }


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": [1, "x", null, false]}}',
        "[]",
        '"x"',
        "3",
        '{"": "", "a.b": {"c d": "\U0001f600"}}',
    ],
)
def test_json_is_json(text: str) -> None:
    assert data(text, "x.json") == json.loads(text)
    assert data(text, "x.yaml") == json.loads(text)


@pytest.mark.parametrize(
    ("text", "name", "is_json"),
    [
        ('{"a": 1, /* */}', "job", True),
        ('// x\n{"a": 1}', "standard input", True),
        ("a: 1", "job", False),
        ("{a: 1}", "x.YML", False),
        ("a: 1", "x.json", None),
        ("{a: 1}", "job", None),
    ],
)
def test_which_of_the_two_it_is(text: str, name: str, is_json: bool | None) -> None:
    if is_json is None:
        assert problems(text, name)
    else:
        assert data(text, name) == {"a": 1}


def test_every_path_has_its_line() -> None:
    yaml = "name: x\nroles:\n  ps:\n    tasks: 2\n    command: [a,\n      b]\nafter:\n  - y\n  - job: z\n    on: any\n"
    lines = {
        "": 1,
        "name": 1,
        "roles": 2,
        "roles.ps": 3,
        "roles.ps.tasks": 4,
        "roles.ps.command": 5,
        "roles.ps.command[0]": 5,
        "roles.ps.command[1]": 6,
        "after": 7,
        "after[0]": 8,
        "after[1]": 9,
        "after[1].job": 9,
        "after[1].on": 10,
    }
    assert parse(yaml.encode(), "x.yaml").lines == lines
    as_json = '{"name": "x",\n"roles": {\n"ps": {"tasks":\n2}},\n"a b": [1,\n2]}'
    assert parse(as_json.encode(), "x.json").lines == {
        "": 1,
        "name": 1,
        "roles": 2,
        "roles.ps": 3,
        "roles.ps.tasks": 3,
        '["a b"]': 5,
        '["a b"][0]': 5,
        '["a b"][1]': 6,
    }


def test_problems_of_the_description_have_file_and_line() -> None:
    tree = parse(
        b"jobs:\n- name: x\n  command: a\n- name: y\n  roles:\n    a:\n      command: x\n      minFailed: 2\n  tmeLimit: 3\n- {}\n",
        "f.yaml",
    )
    with pytest.raises(InvalidDocument) as e:
        parse_description(tree.data)
    assert [(p.file, p.line, p.path) for p in tree.located(e.value.problems)] == [
        ("f.yaml", 8, "jobs[1].roles.a.minFailed"),
        ("f.yaml", 9, "jobs[1].tmeLimit"),
        ("f.yaml", 10, "jobs[2].name"),
        ("f.yaml", 10, "jobs[2]"),
    ]
    assert (
        tree.located(e.value.problems)[1].sentence()
        == "f.yaml:9: jobs[1].tmeLimit: unknown key; right: `timeLimit`"
    )


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    assert data("\ufeffa: 1\r\nb: |\r\n  x\r\n  y\r\n") == {"a": 1, "b": "x\ny\n"}
    assert data('\ufeff{"a":\r\n1}', "job") == {"a": 1}


# ---- refused text


BILLION = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


def test_a_billion_laughs_are_not_built() -> None:
    begun = time.process_time()
    found = problems(BILLION)
    assert {p.problem.split('"')[1][0] for p in found} == {"&", "*"}
    assert found[0].line == 1
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: &x 1\n", "an anchor"),
        ("a: *x\n", "an alias"),
        ("a: !!python/object/apply:os.system [id]\n", "is a tag"),
        ("a: !!str 1\n", "is a tag"),
        ("!t\na: 1\n", "is a tag"),
        ("b: !<x> 1\n", "is a tag"),
        ("? [a]\n: 1\n", "a key is"),
        ("{a: 1}: 2\n", "a key is"),
        ("a: 1\n---\nb: 1\n", "a second document"),
        ("a: b: c\n", "not YAML"),
        ("a: [1\n", "not YAML"),
        ("a: 'x\n", "not YAML"),
        ("a:\n\t- b\n", "not YAML"),
        ("a: \x07\n", "control character"),
        ('a: "\\UFFFFFFFF"\n', "invalid escape"),
        ("a: 99999999999999999999999\n", "64 bits"),
        ("a: 1e999\n", "64 bits"),
        ("a: " + "9" * 5000 + "\n", "64 bits"),
    ],
)
def test_yaml_that_is_refused(text: str, word: str) -> None:
    found = problems(text)
    assert word in found[0].problem, found
    assert all(p.problem.isprintable() for p in found)


def test_half_a_character_is_no_text_of_a_command() -> None:
    for text, name in (
        ('{"name": "x", "command": "\\ud800"}', "x.json"),
        ('name: x\ncommand: "\\ud800"', "x.yaml"),
    ):
        with pytest.raises(InvalidDocument, match="lone surrogate"):
            parse_description(data(text, name))


def test_an_alias_as_key_ends_it() -> None:
    assert [p.problem for p in problems("*x : 1\n")] == ['"*x" is an alias', "a key is an alias"]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("", 1, "end of the file"),
        ("{", 1, "end of the file"),
        ('{\n"a"', 2, "end of the file"),
        ('{"a": 1} x', 1, "after the end"),
        ('{"a": 1}{}', 1, "after the end"),
        ('{\n"a" 1}', 2, '"1"'),
        ('{"a": 1\n"b": 2}', 2, "b"),
        ("{,}", 1, '","'),
        ("[1,,2]", 1, '","'),
        ("[1}", 1, '"}"'),
        ('{"a": 1]', 1, '"]"'),
        ("{1: 2}", 1, '"1"'),
        ("{a: 1}", 1, '"a"'),
        ("{'a': 1}", 1, "'"),
        ('{"a": NaN}', 1, "NaN"),
        ('{"a": 01}', 1, "01"),
        ('{"a": .5}', 1, ".5"),
        ('{"a": True}', 1, "True"),
        ('{"a":\n"x\ny"}', 2, "does not end"),
        ('{"a": "\\q"}', 1, "is not valid"),
        ('{"a": "x', 1, "does not end"),
        ("/* x", 1, "comment"),
        ('{"a": / 1}', 1, '"/"'),
        ('{"a":\n1e999}', 2, "64 bits"),
        ('{"a": 123456789012345678901}', 1, "64 bits"),
        ("{\xa0}", 1, "\\xa0"),
    ],
)
def test_json_that_is_refused(text: str, line: int, word: str) -> None:
    found = problems(text, "x.json")
    assert (found[0].line, word in found[0].problem) == (line, True), found


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_a_key_that_is_there_twice_is_named_with_both_lines(name: str) -> None:
    text = (
        '{"roles": {\n"a": {"tasks": 1},\n"b": {},\n"a": {"tasks": 2, "tasks": 3}},\n"roles": {}}'
    )
    assert [(p.line, p.path, p.problem) for p in problems(text, name)] == [
        (4, "roles.a", '"a" occurs twice, first in line 2'),
        (4, "roles.a.tasks", '"tasks" occurs twice, first in line 2'),
        (5, "roles", '"roles" occurs twice, first in line 1'),
    ]


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_what_is_too_deep_or_too_many_is_refused(name: str) -> None:
    assert data("[" * MAX_DEPTH + "]" * MAX_DEPTH, name)
    assert (
        "levels of nesting"
        in problems("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), name)[0].problem
    )
    assert "more than 50000 values" in problems("[" + "1," * MAX_VALUES + "1]", name)[0].problem
    assert len(problems("{" + '"a": 1,' * (MAX_PROBLEMS * 2) + "}", name)) == MAX_PROBLEMS + 1


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 10 * 2**20])
def test_a_large_file_is_refused_before_it_is_read(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * size)
    with pytest.raises(InvalidDocument) as e:
        read(str(path))
    assert "more than 1048576 bytes" in e.value.problems[0].problem
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#" * size)))
    with pytest.raises(InvalidDocument) as e:
        read("-")
    assert e.value.problems[0].file == "standard input"


def test_the_largest_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b'{"a": "' + b"x" * (MAX_BYTES - 9) + b'"}')
    assert len(read(str(path)).data["a"]) == MAX_BYTES - 9


@pytest.mark.parametrize(
    ("raw", "line", "word"),
    [
        (b"a: 1\nb: \0", 2, "NUL"),
        (b"a: 1\n\nb: \xff", 3, "UTF-8"),
        ("a: 1".encode("utf-16"), 1, "NUL"),
        ("é: 1".encode("latin-1"), 1, "UTF-8"),
    ],
)
def test_bytes_that_are_no_text(raw: bytes, line: int, word: str) -> None:
    assert [(p.line, word in p.problem) for p in problems(raw)] == [(line, True)]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.yaml", tmp_path):
        with pytest.raises(InvalidDocument) as e:
            read(str(path))
        assert (e.value.problems[0].file, "cannot be read" in e.value.problems[0].problem) == (
            str(path),
            True,
        )


WORST = [
    b"[" * MAX_BYTES,
    b"{" * MAX_BYTES,
    b"- " * (MAX_BYTES // 2),
    b"? " * (MAX_BYTES // 2),
    b"[a," * (MAX_BYTES // 3),
    b"a\n" * (MAX_BYTES // 2),
    b":" * MAX_BYTES,
    b"'" * MAX_BYTES,
    b"#\n" * (MAX_BYTES // 2),
    b"a: " + b"x " * (MAX_BYTES // 2 - 2),
    b"/*" * (MAX_BYTES // 2),
    b"//\n" * (MAX_BYTES // 3),
    b'"' + b"\\\\" * (MAX_BYTES // 2 - 1),
    b"9" * MAX_BYTES,
]


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
@pytest.mark.parametrize("raw", WORST if SOAK else WORST[:7:3], ids=lambda raw: str(raw[:4]))
def test_a_megabyte_of_anything_is_over_soon(raw: bytes, name: str) -> None:
    begun = time.process_time()
    try:
        parse_description(parse(raw, name).data)
    except InvalidDocument as e:
        assert e.problems
    # at most three seconds on an idle machine
    assert time.process_time() - begun < 20


_pieces = st.sampled_from(
    [
        "a",
        "name",
        ":",
        ": ",
        " ",
        "\n",
        "\n  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ",",
        '"',
        "'",
        "#",
        "&a",
        "*a",
        "!",
        "!!str",
        "|",
        ">",
        "---",
        "...",
        "%",
        "?",
        "1",
        "1e9",
        "null",
        "//",
        "/*",
        "*/",
        "\t",
        "\\",
        "\\u00",
        "\\ud800",
        "\x85",
        "\u2028",
        "\ufeff",
        "é",
        "<<",
        "@",
        "`",
    ]
)


@settings(max_examples=20_000 if SOAK else 300, deadline=None)
@pytest.mark.timeout(7200 if SOAK else 120)
@given(
    st.binary(max_size=60) | st.lists(_pieces, max_size=30).map(lambda p: "".join(p).encode()),
    st.sampled_from(["x.yaml", "x.json", "x"]),
)
def test_whatever_the_bytes_are_nothing_but_data_or_problems_comes_out(
    raw: bytes, name: str
) -> None:
    try:
        tree = parse(raw, name)
    except InvalidDocument as e:
        assert e.problems
        assert all(p.file == name and p.sentence().isprintable() for p in e.problems)
        return
    try:
        parse_description(tree.data)
    except InvalidDocument as e:
        assert all(p.line is not None or not tree.lines for p in tree.located(e.problems))


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=9),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_what_was_written_as_json_is_read_back(value: Any) -> None:
    text = json.dumps(value, indent=1)
    assert data(text, "x.json") == value
    assert data(json.dumps(value, ensure_ascii=False), "x.json") == value
