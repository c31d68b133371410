"""Redaction hides every test secret, wherever it is, and keeps the text that people need for
diagnosis.
"""

import json
import secrets
import traceback
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.ids import Token
from jobscribe.protocol.redaction import (
    MAX_ELEMENTS,
    MAX_STRING,
    MAX_TOTAL,
    REDACTED,
    SNIP,
    Redactor,
    is_secret,
    truncated,
)

CANARY = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"
PASSWORD = "pa\"ss wörd'\\&<Canary"
CODE = "493817"


@dataclass
class Login:
    user: str
    password: str


class Start(msgspec.Struct):
    key: str
    agent_id: str
    token: str


@pytest.mark.parametrize(
    "key",
    [
        "serverSecret",
        "server_secret",
        "SERVER_SECRET",
        "password",
        "userPassword",
        "PGPASSWORD",
        "passwd",
        "passphrase",
        "privateKey",
        "otp",
        "totp",
        "oneTimeCode",
        "one_time_code",
        "token",
        "agentToken",
        "agent_token",
        "AGENT_TOKEN",
        "tokens",
        "tokenHash",
        "token_hash",
        "agentId",
        "agent_id",
        "AGENTID",
        "apiKey",
        "api_key",
        "API-KEY",
        "one-time-code",
        "Authorization",
        "cookie",
        "Set-Cookie",
        "sbatchCredentials",
        "bearer",
    ],
)
@pytest.mark.parametrize(
    "value", [CANARY, "ab/cd/ef==", 493817, [CANARY], {"a": CANARY}, CANARY.encode()]
)
def test_what_is_called_a_secret_is_not_shown(key: str, value: Any) -> None:
    shown = Redactor().value({"outer": [{key: value, "other": 1}]})
    assert shown == {"outer": [{key: REDACTED, "other": 1}]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("computeJid", "EPRSqtUW-IVh7w74d-m"),
        ("computeJobHash", "ae629e4c20b23a65"),
        ("uid", "EPRSqtUW"),
        ("opId", "pb5uQ2"),
        ("agentKey", "local.x"),
        ("reqId", "ZMCMHyAF"),
        ("isPrivate", True),
        ("password", None),
        ("keys", [1]),
        ("author", "me"),
        ("passed", 3),
        ("monkey", "x"),
    ],
)
def test_what_only_sounds_like_a_secret_is_shown(key: str, value: Any) -> None:
    assert Redactor().value({key: value}) == {key: value}


@pytest.mark.parametrize(
    "token",
    ["EPRSqtUW-IVh7w74d-m/1700000000/1/task/0", ["EPRSqtUW-IVh7w74d-m", 1700000000, 1, "task", 0]],
)
def test_a_fencing_token_is_shown_by_its_form_and_a_secret_with_slashes_is_not(token: Any) -> None:
    for key in ("token", "JOBSCRIBE_TOKEN"):
        assert Redactor().value({key: token}) == {key: token}
    assert Redactor().value({"tokens": [token, token]}) == {"tokens": [token, token]}
    assert not is_secret("token", Token("EPRSqtUW-IVh7w74d-m", 1, 1, "task", 0))
    assert Redactor().value({"token": "a/1/1/task/0", "tokens": [token, CANARY]}) == {
        "token": REDACTED,
        "tokens": REDACTED,
    }


@pytest.fixture
def redactor() -> Redactor:
    return Redactor([CANARY, PASSWORD, CODE])


PLACES: dict[str, Any] = {
    "alone": lambda s: s,
    "in a sentence": lambda s: f"agent said {s}, twice: {s}{s}",
    "in a longer word": lambda s: f"x{s}y",
    "in bytes": lambda s: f"stdin={s}".encode(),
    "in a list": lambda s: ["a", [s], ("b", s)],
    "in a set": lambda s: {s},
    "as a key": lambda s: {s: 1},
    "in a command line": lambda s: ["agent", "--opt", s, f"--opt={s}", f"-p{s}"],
    "in an address": lambda s: f"https://user:{s}@host/path?t={s}",
    "in an environment": lambda s: {"env": {"HOME": "/root", "X": s}, "Env": [f"X={s}"]},
    "in JSON": lambda s: json.dumps({"a": [s]}),
    "in msgspec's JSON": lambda s: msgspec.json.encode({"a": s}),
    "in a repr": lambda s: repr({"a": s}),
    "in an exception": lambda s: ValueError(f"cannot log in with {s}"),
    "in an exception's repr": lambda s: repr(KeyError(s)),
    "in a dataclass": lambda s: Login("me", s),
    "in a struct": lambda s: Start("local.sequential.x", s, s),
    "deep": lambda s: [[[[[[[[s]]]]]]]],
    "behind much text": lambda s: "x" * (MAX_STRING - 5) + s,
    "in much text": lambda s: (s + " ") * 5000,
}


@pytest.mark.parametrize("secret", [CANARY, PASSWORD, CODE], ids=["token", "password", "code"])
@pytest.mark.parametrize("place", PLACES)
def test_a_known_secret_is_not_shown_wherever_it_stands(
    redactor: Redactor, place: str, secret: str
) -> None:
    shown = str(redactor.value(PLACES[place](secret)))
    for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]):
        assert form[:5] not in shown and form[-5:] not in shown


def test_a_secret_in_a_traceback_is_not_shown_and_the_end_is(redactor: Redactor) -> None:
    def fail(n: int) -> None:
        if n == 0:
            raise RuntimeError(f"the end {CANARY}")
        try:
            fail(n - 1)
        except RuntimeError as e:
            raise RuntimeError(f"step {n} {CANARY}") from e

    with pytest.raises(RuntimeError) as e:
        fail(60)
    text = "".join(traceback.format_exception(e.value))
    assert len(text) > 2 * MAX_STRING
    shown = redactor.value(text)
    assert CANARY not in shown
    assert shown.startswith(SNIP) and shown.endswith(f"step 60 {REDACTED}\n")


def test_arguments_that_follow_a_secret_option_are_not_shown() -> None:
    shown = Redactor().value(
        [
            "psql",
            "--password",
            "abc",
            "--user",
            "me",
            "--api-key=xyz",
            "PGPASSWORD=abc",
            "HOME=/root",
            "-x",
            "--secret=a=b",
        ]
    )
    assert shown == [
        "psql",
        "--password",
        REDACTED,
        "--user",
        "me",
        f"--api-key={REDACTED}",
        f"PGPASSWORD={REDACTED}",
        "HOME=/root",
        "-x",
        f"--secret={REDACTED}",
    ]


def test_an_object_says_itself_what_is_shown_of_it_but_no_secret(redactor: Redactor) -> None:
    class Driver:
        def pkdebug_str(self) -> str:
            return f"LocalDriver(a=WUt4 k=sequential u=EPRS {CANARY} [_Op(run, pb5uQ2)])"

    shown = redactor.value([Driver()])
    assert shown == [f"LocalDriver(a=WUt4 k=sequential u=EPRS {REDACTED} [_Op(run, pb5uQ2)])"]


def test_the_short_forms_of_ids_stay_visible() -> None:
    agent_id, op_id, uid = (
        "WUt4" + secrets.token_hex(14),
        "pb5uQ2" + secrets.token_hex(13),
        "EPRSqtUW",
    )
    line = f"LocalDriver(a={agent_id[:4]} k=sequential u={uid[:4]} [_Op(run, {op_id[:6]})]) jid={uid}-IVh7w74d-m full={agent_id}"
    assert Redactor([agent_id]).text(line) == line.replace(agent_id, REDACTED)


@pytest.mark.parametrize("around", ["{}", "Bearer {}", "x={}&y", '{{"a": "{}"}}', "{}x" * 2])
@pytest.mark.parametrize("length", [43, 30, 8])
def test_an_api_token_is_not_shown_anywhere_and_its_id_is(around: str, length: int) -> None:
    secret = "Zk_9-aB3" * 6
    text = around.format(*[f"jst_Qm3vX81k_{secret[:length]}"] * 2)
    shown = Redactor().text(text)
    assert "Zk_9-aB" not in shown and "jst_Qm3vX81k_" + REDACTED in shown


def test_no_part_of_an_api_token_is_left_where_a_text_is_cut() -> None:
    token = "jst_Qm3vX81k_" + "Zk_9-aB3" * 5 + "Zk9"
    for before in range(MAX_STRING - 60, MAX_STRING + 1):
        assert "Zk_9" not in Redactor().shown("." * before + token + "." * 200)


def test_a_thousand_secrets_are_all_found() -> None:
    known = [secrets.token_urlsafe(24) for _ in range(500)] + [
        secrets.token_hex(16) for _ in range(500)
    ]
    redactor = Redactor(known)
    assert redactor.text(" ".join(known)) == " ".join([REDACTED] * 1000)
    assert redactor.text("".join(known[500:])) == REDACTED * 500


def test_what_is_too_short_to_be_a_secret_redacts_no_ordinary_words() -> None:
    redactor = Redactor()
    assert redactor.add("run") == "run"
    assert redactor.text("a run is running") == "a run is running"


def test_long_strings_collections_depths_and_totals_are_cut_and_it_is_said() -> None:
    r = Redactor()
    assert r.value("x" * 9000) == "x" * MAX_STRING + SNIP
    assert r.value(list(range(100))) == [*range(MAX_ELEMENTS), SNIP]
    assert r.value({str(i): i for i in range(100)})[SNIP] == 100 - MAX_ELEMENTS
    deep: Any = "bottom"
    for _ in range(20):
        deep = [deep]
    assert str(r.value(deep)).count("[") == 10 and SNIP in str(r.value(deep))
    wide: Any = 1
    for _ in range(9):
        wide = [wide] * 25
    assert str(r.value(wide)).count("1") <= MAX_TOTAL
    assert truncated("short") == "short"


def test_data_that_contains_itself_comes_to_an_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert SNIP in str(Redactor().value(loop))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.just(CANARY)
    | st.just(f"<{CANARY}>"),
    lambda x: st.lists(x) | st.dictionaries(st.text() | st.just(CANARY), x) | st.tuples(x, x),
    max_leaves=40,
)


@given(plain)
def test_nothing_that_is_shown_of_any_data_contains_a_known_secret(value: Any) -> None:
    assert CANARY not in str(Redactor([CANARY]).value(value))
