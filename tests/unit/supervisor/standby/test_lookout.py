"""When a standby knows that the holder's process has ended: never without proof."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("psycopg")

from jobscribe.db.postgres.supervisors import About
from jobscribe.supervisor.standby.lookout import has_ended, life


def about(pid: int, life: str) -> About:
    return About(host="a", pid=pid, boot_id="b", version="1", addresses={}, relay="/r", life=life)


@pytest.mark.process
def test_only_an_ended_process_of_this_machine_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = about(process.pid, life(process.pid))
    assert not has_ended(holder)
    later = holder.life.rpartition(" ")[0] + " 1"
    assert has_ended(msgspec.structs.replace(holder, life=later)), "the pid is another process's"

    def full(self: Path) -> bytes:
        raise OSError(24, "Too many open files")

    process.kill()
    with monkeypatch.context() as m:
        m.setattr(Path, "read_bytes", full)
        assert not has_ended(holder), "it may run"
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(holder), "a zombie does nothing"
    process.communicate()
    assert has_ended(holder)
    for other in (
        holder.life.replace(holder.life.split()[0], "another-boot"),
        holder.life.replace("pid:[", "pid:[1"),
        holder.life.rpartition(" ")[0] + " None",
        "",
    ):
        assert not has_ended(msgspec.structs.replace(holder, life=other)), other
