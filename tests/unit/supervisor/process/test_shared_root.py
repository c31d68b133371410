"""A root that several supervisors share."""

import contextlib
from pathlib import Path

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.process.root_directory import ADDRESS, RootDirectory


def test_a_shared_root_excludes_others_and_names_its_holder(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        contextlib.closing(RootDirectory(str(tmp_path), shared=True)) as first,
        contextlib.closing(RootDirectory(str(tmp_path), shared=True)) as second,
    ):
        with pytest.raises(Refusal, match="in use by another supervisor"):
            RootDirectory(str(tmp_path))
        first.publish(ADDRESS, {"agentsUrl": "ws://first"})
        second.publish(ADDRESS, {"agentsUrl": "ws://second"})

        def lost() -> None:
            raise SystemExit

        first.before_write = lost
        with pytest.raises(SystemExit):
            first.repair(said.append)
        with pytest.raises(SystemExit):
            first.publish(ADDRESS, {"agentsUrl": "ws://first"})
        assert "second" in (tmp_path / ADDRESS).read_text(), "a former holder changes nothing"
        (tmp_path / ADDRESS).write_text('{"agentsUrl": "ws://first"}')
        second.repair(said.append)
        assert "second" in (tmp_path / ADDRESS).read_text(), "it is no proxy's address"
    with contextlib.closing(RootDirectory(str(tmp_path))), pytest.raises(Refusal):
        RootDirectory(str(tmp_path), shared=True)
