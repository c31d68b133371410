"""A server on an earlier timeline than the one that served last is refused; another system is not."""

from pathlib import Path

import pytest

from jobscribe.db.postgres.server_identity import FILE, Server, fault, known, record


@pytest.mark.parametrize(
    "found, refused",
    (
        (Server("a", 1), True),
        (Server("a", 2), False),
        (Server("a", 3), False),
        (Server("b", 1), False),
        (None, False),
    ),
)
def test_only_a_former_primary_is_refused(
    tmp_path: Path, found: Server | None, refused: bool
) -> None:
    assert known(tmp_path) is None and fault(tmp_path, found, "jobs") is None
    record(tmp_path, Server("a", 2))
    said = fault(tmp_path, found, "jobs")
    assert (said is not None) is refused
    if said is not None:
        assert "timeline 1" in said and "timeline 2" in said and str(tmp_path / FILE) in said


def test_the_recorded_timeline_never_goes_back(tmp_path: Path) -> None:
    record(tmp_path, Server("a", 3))
    record(tmp_path, Server("a", 2))
    record(tmp_path, None)
    assert known(tmp_path) == Server("a", 3)
    # a log that moved to another cluster
    record(tmp_path, Server("b", 1))
    assert known(tmp_path) == Server("b", 1)


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert known(tmp_path) is None and fault(tmp_path, Server("a", 1), "jobs") is None
