"""Commands of function calls: limits, refusals, and arguments that do not enter the event log."""

import asyncio
import threading
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.functions import calls

LOCK = threading.Lock()


def packed(function: Any, *args: Any, **options: Any) -> calls.Payload:
    return calls.payload(
        function, [(args, options)], many=False, inline_bytes=1000, max_bytes=1_000_000
    )


def test_small_arguments_are_inline_and_others_in_a_file() -> None:
    assert packed(abs, 1).inline and not packed(len, "x" * 2000).inline
    line = calls.command(packed(abs, 1), "unused", ["python3.11", "python3"])
    assert line[:2] == ["/bin/sh", "-c"] and line[-2] == "inline"
    assert calls.command(packed(len, "x" * 2000), "a.bin", ["p"])[-2:] == ["file", "a.bin"]
    assert max(map(len, line)) < 128 * 1024


def test_arguments_that_sound_secret_are_never_inline() -> None:
    assert not packed(dict, password="hunter2").inline
    assert packed(dict, passenger="hunter2").inline


def test_a_call_above_the_limit_is_refused_with_the_limit() -> None:
    table = bytes(2_000_000)
    with pytest.raises(ClientError, match=r"more than 0.95\d* MiB") as e:
        packed(lambda: table)
    assert e.value.code == "tooLarge" and "names of files" in e.value.advice


def test_all_values_that_cannot_be_sent_are_named() -> None:
    lock = threading.Lock()
    with pytest.raises(ClientError) as e:
        packed(lambda x: lock, {"a": [threading.Lock()]}, key="hunter2")
    assert e.value.code == "notSerializable" and "hunter2" not in str(e.value)
    paths = [(o["path"], o["scope"]) for o in e.value.more["offenders"]]
    assert paths == [("lock", "closure"), ("args[0]['a'][0]", "item")]


def test_generators_coroutines_and_values_are_no_functions() -> None:
    async def coroutine() -> None:
        await asyncio.sleep(0)

    def generator() -> Any:
        yield 1

    for wrong, said in ((coroutine, "asyncio.run"), (generator, "a list"), (7, "no function")):
        with pytest.raises(ClientError, match=said):
            packed(wrong)


def test_options_that_the_executor_sets_are_refused() -> None:
    assert calls.split_resources({"python": "p", "driver": "docker"}) == (
        {"driver": "docker"},
        ["p"],
    )
    for wrong in ({"simulation_id": "abcdefgh"}, {"roles": [1]}, {"task": {"tasks": 2}}):
        with pytest.raises(ClientError, match=r"cannot have|one task"):
            calls.split_resources(wrong)
