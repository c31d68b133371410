"""Copies of core files: continued after a break, compared with the digest of the collection, and
readable by their owner only.
"""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.transfers.core_download import get_core
from jobscribe.client.transport.connection import Connection
from jobscribe.protocol.api.requests import JobCore
from jobscribe.protocol.jobs.core_report import CoreFile

CONTENT = bytes(range(256)) * 5000
REQUEST = JobCore(uid="EvidUse1", compute_jid="EvidUse1-sim00001-command", name="core.1")


class Reply(NamedTuple):
    body: bytes


class Supervisor:
    """Answers with pieces of a core. breaks_at: no answer from this offset on."""

    def __init__(self, content: bytes) -> None:
        self.content, self.breaks_at, self.asked = content, len(content) + 1, list[int]()

    def call(self, call: Any) -> Reply:
        body = call.body if isinstance(call.body, bytes) else msgspec.json.encode(call.body)
        request = msgspec.json.decode(body)
        self.asked.append(request.get("offset", 0))
        if self.asked[-1] >= self.breaks_at:
            raise ConnectionError("cut")
        return Reply(self.content[self.asked[-1] :][: request.get("limit", 512 * 1024)])


def copied(site: Supervisor, path: Path, **fields: Any) -> Any:
    known = {"sha256": hashlib.sha256(CONTENT).hexdigest(), "size": len(CONTENT)} | fields
    return get_core(
        cast("Connection", site),
        REQUEST,
        CoreFile(name="core.1", **known),
        str(path),
        replace=False,
        on_progress=lambda count: None,
    )


def test_a_copy_that_breaks_is_continued_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    site, path = Supervisor(CONTENT), tmp_path / "core"
    site.breaks_at = 512 * 1024
    with pytest.raises(ConnectionError):
        copied(site, path)
    assert not path.exists()
    (part,) = tmp_path.iterdir()
    assert part.stat().st_mode & 0o777 == 0o600
    site.breaks_at, site.asked = len(CONTENT) + 1, []
    assert copied(site, path).size == len(CONTENT)
    assert site.asked[0] == 512 * 1024, "it goes on"
    assert path.read_bytes() == CONTENT and path.stat().st_mode & 0o777 == 0o600
    assert copied(site, path).note == "it is here already"
    with pytest.raises(ClientError, match="exists"):
        copied(site, path, size=5)


def test_another_content_than_that_of_the_collection_is_refused(tmp_path: Path) -> None:
    site = Supervisor(CONTENT[:-1] + b"x")
    with pytest.raises(ClientError, match="SHA-256 differs"):
        copied(site, tmp_path / "core")
    with pytest.raises(ClientError, match="shorter"):
        copied(Supervisor(CONTENT[:1000]), tmp_path / "core")
    assert not (tmp_path / "core").exists()
    assert "not compared" in copied(site, tmp_path / "core", sha256=None).note
