"""Commands of function calls: limits, refusals, and arguments that do not enter the event log."""

import asyncio
import os
import threading
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.functions import calls, runner
from jobscribe.protocol.launch import function_call

LOCK = threading.Lock()


def packed(function: Any, *args: Any, **options: Any) -> calls.Payload:
    return calls.payload(
        function, [(args, options)], many=False, inline_bytes=1000, max_bytes=1_000_000
    )


def test_small_arguments_are_in_a_variable_and_others_in_a_file() -> None:
    """The command line, which other users of the machine can read, has none."""
    small, large = packed(abs, 1), packed(len, "x" * 2000)
    assert small.inline and not large.inline
    line = calls.command(small, "unused", ["python3.11", "python3"])
    assert line == calls.command(packed(abs, 2), "unused", ["python3.11", "python3"])
    assert line[:2] == ["/bin/sh", "-c"] and line[-1] == "inline"
    options = calls.with_call({"env": {"A": "1"}, "queue": "q"}, small)
    call = options["env"].pop(runner.CALL)
    assert options == {"env": {"A": "1"}, "queue": "q"}
    assert calls.payload_of(line, {runner.CALL: call}) == ("inline", small.data)
    assert calls.payload_of([*line, call], {}) == ("inline", small.data), "of an earlier client"
    assert calls.command(large, "a.bin", ["p"])[-2:] == ["file", "a.bin"]
    assert calls.with_call({"queue": "q"}, large) == {"queue": "q"}
    names = (function_call.VARIABLE, function_call.PATH_VARIABLE)
    assert names == (runner.CALL, runner.CALL_FILE)


def test_the_largest_inline_call_fits_into_a_variable() -> None:
    data = os.urandom(calls.MAX_INLINE_BYTES - 200)
    most = calls.payload(
        len, [((data,), {})], many=False, inline_bytes=calls.MAX_INLINE_BYTES, max_bytes=10**6
    )
    assert most.inline
    assert len(f"{runner.CALL}={calls.with_call({}, most)['env'][runner.CALL]}\0") <= 128 * 1024


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
