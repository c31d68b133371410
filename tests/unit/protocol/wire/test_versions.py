"""Negotiation of the protocol version, unknown fields, and fields that older versions do not know.

golden/fields-1.txt: the fields of all messages of version 1, as jobscribe 0.1.0 knows them. Never
changed.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import pytest

from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.wire import codec
from jobscribe.protocol.wire.codec import Decoder, Encoder, FrameError
from jobscribe.protocol.wire.handshake import SiteHello, format_header, hello, parse_header
from jobscribe.protocol.wire.messages import UNIONS, Kill, RunStatus
from jobscribe.protocol.wire.versions import (
    LATER_FIELDS,
    SPOKEN,
    UNSTATED,
    Protocols,
    common,
    parse_range,
    refusal,
)

FIELDS = pathlib.Path(__file__).parent / "golden" / "fields-1.txt"


def frame(v: int, *messages: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb({"v": v, "seq": 1, "m": list(messages)}))


@pytest.mark.parametrize(
    ("own", "other", "version"),
    [
        ((1, 2), (1, 2), 2),
        ((1, 2), (1, 1), 1),
        ((1, 2), (2, 3), 2),
        ((2, 3), (1, 2), 2),
        ((2, 3), (2, 2), 2),
        ((1, 9), (10, 12), None),
        ((3, 4), (1, 2), None),
        ((1, 2), (3, 4), None),
    ],
)
def test_the_highest_common_version_is_used(
    own: tuple[int, int], other: tuple[int, int], version: int | None
) -> None:
    assert common(Protocols(*own), Protocols(*other)) == version


def test_the_previous_release_is_served() -> None:
    assert common(SPOKEN, UNSTATED) == 1, "0.1 states no range and speaks version 1"


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("1-2", (1, 2)),
        ("9-10", (9, 10)),
        (None, UNSTATED),
        ("", UNSTATED),
        ("2", UNSTATED),
        ("3-2", UNSTATED),
        ("0-2", UNSTATED),
        ("1-2\n", UNSTATED),
        ("1-" + "9" * 99, UNSTATED),
    ],
)
def test_a_range_is_read_strictly(text: str | None, range_: tuple[int, int]) -> None:
    assert parse_range(text) == range_
    assert parse_range(str(SPOKEN)) == SPOKEN


def test_a_supervisor_states_its_range_and_one_of_0_1_states_none() -> None:
    said = parse_header(format_header(hello("9", ("heat",))))
    assert said == SiteHello("9", ("heat",), tuple(SPOKEN)) and said.spoken == SPOKEN
    earlier = parse_header('{"version":"0.1.0","apps":[]}')
    assert earlier is not None and earlier.spoken == UNSTATED


def test_a_refusal_names_both_ranges_and_the_side_to_upgrade() -> None:
    old, new = Protocols(1, 2), Protocols(3, 4)
    for own, other, remedy in ((new, old, "Upgrade the agent"), (old, new, "Upgrade this side")):
        sentence = refusal("this side", own, "the agent", other)
        assert f"the agent speaks protocol versions {other}, this side speaks {own}" in sentence
        assert remedy in sentence


def test_unknown_fields_are_ignored_and_counted(samples: dict[str, tuple[Any, Any]]) -> None:
    _, sent = samples["run"]
    run = msgspec.to_builtins(sent, builtin_types=(bytes,))
    run["later`s"], run["spec"]["later"] = [1], 1
    run["spec"]["batch"] = {"cores": 2, "later": {}}
    decoder = Decoder("to_agent")
    (message,) = decoder.messages(frame(SPOKEN.newest, run))
    spec = msgspec.structs.replace(sent.spec, batch=BatchRequest(cores=2))
    assert message == msgspec.structs.replace(sent, spec=spec) and decoder.ignored == 3
    two = {"op": "kill", "reason": "r", "x": 1}, {"op": "run_status", "opId": "o" * 32}
    assert Decoder("to_agent").messages(frame(SPOKEN.newest, *two)) == [
        Kill(reason="r"),
        RunStatus(op_id="o" * 32),
    ]


def test_version_1_refuses_unknown_fields_as_0_1_did() -> None:
    with pytest.raises(FrameError, match="unknown field"):
        Decoder("to_agent", protocol=1).messages(frame(1, {"op": "kill", "reason": "", "x": 1}))


def test_a_peer_gets_no_field_that_its_version_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "LATER_FIELDS", {("kill", "stopJobs"): 2})
    sent = Kill(reason="r", stop_jobs=True)
    for version, read in ((1, Kill(reason="r")), (2, sent)):
        (packed,) = Encoder(protocol=version).frames([sent])
        assert Decoder("to_agent", protocol=version).messages(packed) == [read]
        assert msgpack.unpackb(packed)["v"] == version


def test_each_field_since_version_1_is_listed_and_optional() -> None:
    """A field that is missing in LATER_FIELDS would end the connection of each agent of 0.1."""
    fields = {path: required for union in UNIONS.values() for path, required in _fields(union)}
    known = {tuple(line.split(".")) for line in FIELDS.read_text("ascii").split()}
    assert known <= set(fields), "fields of released versions stay"
    added = {path for path in fields if path not in known and path[:-1] in {(), *known}}
    ops = {path[0] for path in known}
    assert {path for path in added if path[0] in ops} == set(LATER_FIELDS)
    assert [path for path in LATER_FIELDS if fields[path]] == []
    assert all(1 < since <= SPOKEN.newest for since in LATER_FIELDS.values())


def _fields(union: Any) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the path of each field of each message, and whether it is required."""
    for op in msgspec.inspect.type_info(union).types:  # type: ignore[attr-defined]
        yield from _below(op, (str(op.tag),))


def _below(type_: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    match type_:
        case msgspec.inspect.StructType(array_like=False):
            if len(path) == 1:
                yield path, False
            for field in type_.fields:
                here = (*path, field.encode_name)
                yield here, field.required
                yield from _below(field.type, here)
        case msgspec.inspect.UnionType():
            for each in type_.types:
                yield from _below(each, path)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            yield from _below(type_.item_type, path)


if __name__ == "__main__":
    print("\n".join(sorted({".".join(p) for u in UNIONS.values() for p, _ in _fields(u)})))
