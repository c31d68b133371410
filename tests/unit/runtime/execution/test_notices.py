"""Notices in the file of an execution, which the job may change."""

import json
import os
from pathlib import Path

import msgspec

from jobscribe.protocol.jobs.notices import MOST_NOTICES, Notices
from jobscribe.runtime.execution import folder
from jobscribe.runtime.execution.notices import NOTICES, notice_line, parse_notices


def test_notices_are_read_once_and_clean_and_others_are_left_out(tmp_path: Path) -> None:
    good = notice_line("sshUnavailable", "no\tsshd")
    rows = [
        good,
        "x",
        "[1]",
        '{"code": "other", "text": "x"}',
        '{"code": ["sshUnavailable"]}',
        good,
        json.dumps({"code": "debuggerMissing", "text": "y" * 999}),
    ]
    (tmp_path / NOTICES).write_text("\n".join(rows))
    found = folder.add_messages(str(tmp_path), {"code": 0})["notices"]
    texts = [("sshUnavailable", "no sshd"), ("debuggerMissing", "y" * 300)]
    assert [(n["code"], n["text"]) for n in found] == texts
    assert len(msgspec.convert(found, Notices)) == 2
    many = "\n".join(notice_line("debuggerMissing", str(n)) for n in range(99))
    assert len(parse_notices(many.encode())) == MOST_NOTICES


def test_a_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text(notice_line("sshUnavailable", "secret"))
    os.link(tmp_path / "theirs", tmp_path / NOTICES)
    assert folder.notices(str(tmp_path)) == []
    assert "notices" not in folder.add_messages(str(tmp_path), {"code": 0})
