"""A record is old or new, never partial: its writer is killed at every single system call of the
write.

A wrapped `os` counts the calls of the writer. The child kills itself before or after the n-th call.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobscribe.runtime.filesystems import write_atomically

OLD, NEW = (
    b'{"status": "running"}\n',
    json.dumps({"status": "completed", "more": "x" * 200_000}).encode() + b"\n",
)
CALLS = ("open", "write", "fsync", "close", "rename")


def _die_at(path: Path, n: int, *, after: bool, sync: bool) -> bool:
    """Write in a child that is killed at its n-th call. Return False if the child completed because
    it makes fewer calls.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _arm(n, after=after)
            write_atomically(str(path), NEW, sync=sync)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _arm(n: int, *, after: bool) -> None:
    left = [n]
    for name, real in {name: getattr(os, name) for name in CALLS}.items():

        def call(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            # a write may be cut anywhere: first write half of the data
            if name == "write" and len(args[1]) > 1:
                args = (args[0], args[1][: max(1, len(args[1]) // 2)])
            out = real(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return out

        setattr(os, name, call)


@pytest.mark.parametrize("sync", [False, True], ids=["record", "synced"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("there", [False, True], ids=["a new one", "replaces one"])
def test_killed_at_every_call(tmp_path: Path, sync: bool, after: bool, there: bool) -> None:
    path = tmp_path / "UserWrit-simwrite-m.json"
    seen: set[bytes | None] = set()
    for n in range(1, 1000):
        path.unlink(missing_ok=True)
        if there:
            path.write_bytes(OLD)
        died = _die_at(path, n, after=after, sync=sync)
        found = path.read_bytes() if path.exists() else None
        assert found in (OLD if there else None, NEW), f"half of it is there after call {n}"
        seen.add(found)
        assert {p.name for p in tmp_path.iterdir() if not p.name.endswith(".new")} <= {path.name}
        if not died:
            break
    else:
        pytest.fail("the write has no end")
    print(f"{n - 1} calls")
    assert n > 15 and found == NEW and seen == {OLD if there else None, NEW}, (
        "it was killed on both sides of the rename"
    )
