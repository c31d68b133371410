"""Threads that decode a struct type for the first time at the same moment."""

import subprocess
import sys

import pytest

#: Short switch intervals make the crash likely (one in eight forks); each fork decodes for the first
#: time.
DECODE_AT_ONCE = """
import collections, os, sys, threading
from jobscribe.client.api.replies import RunState
from jobscribe.client.api.requests import state_from
from jobscribe.runtime import struct_types
import msgspec

BODY = {"state": "running", "runDir": "/x", "waitsFor": ["a"], "roles": {"a": {"b": 1}}, "exit": {}}

def decode():
    barrier.wait()
    PREPARED(BODY)

def prepared(body):
    struct_types.resolve_all()
    return msgspec.convert(body, RunState)

ends = collections.Counter()
for _ in range(100):
    if (pid := os.fork()) == 0:
        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(6)
        threads = [threading.Thread(target=decode) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    ends[os.waitpid(pid, 0)[1]] += 1
print(dict(ends))
"""


@pytest.mark.process
@pytest.mark.parametrize("way", ["state_from", "prepared"])
def test_threads_may_decode_a_type_for_the_first_time_at_once(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECODE_AT_ONCE.replace("PREPARED", way)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "{0: 100}\n", (done.stdout, done.stderr)
