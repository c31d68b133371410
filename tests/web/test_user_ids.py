"""Map of a site's user names to uids: stable, unique, and safe under concurrent requests."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.web import UserIds
from jobscribe.web.server import user_ids


def test_a_uid_is_given_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "uids.json"
    ann, bob = UserIds(path).of("ann@example.org"), UserIds(path).of("B\u00f6b")
    assert re.fullmatch(r"[A-Za-z0-9]{8}", ann) and ann != bob
    again = UserIds(path)
    assert (again.of("ann@example.org"), again.of("B\u00f6b"), again.of("b\u00f6b") != bob) == (
        ann,
        bob,
        True,
    )
    assert (again.name(ann), again.name("nobody01")) == ("ann@example.org", None)
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_names_never_have_one_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_ids, "derived_id", lambda data, key: data[:1].decode() * 32)
    given = UserIds(tmp_path / "uids.json")
    assert [given.of(name) for name in ("a", "b", "a")] == ["00000000", "11111111", "00000000"]


def test_processes_that_ask_at_once_get_the_same(tmp_path: Path) -> None:
    code = "import sys; from jobscribe.web import UserIds; print(*[UserIds(sys.argv[1]).of(f'user{n % 7}') for n in range(14)])"
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "uids.json")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = {process.communicate(timeout=60)[0] for process in asking}
    assert len(said) == 1 and len(set(said.pop().split())) == 7
    assert len(json.loads((tmp_path / "uids.json").read_text())["uids"]) == 7


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", 7, b"ann"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(Refusal, match="printable characters"):
        UserIds(tmp_path / "uids.json").of(name)


def test_a_damaged_file_gives_nobody_a_uid(tmp_path: Path) -> None:
    (tmp_path / "uids.json").write_text('{"uids": {"ann"')
    with pytest.raises(Refusal, match="restore it from a backup"):
        UserIds(tmp_path / "uids.json").of("bob")
    assert (tmp_path / "uids.json").read_text() == '{"uids": {"ann"'


def test_a_hook_of_names_becomes_one_of_uids(tmp_path: Path) -> None:
    given = UserIds(tmp_path / "uids.json")
    hook = given.user(lambda request: request.name)
    assert hook(SimpleNamespace(name=None)) is None  # type: ignore[arg-type]
    assert hook(SimpleNamespace(name="ann")) == given.of("ann")  # type: ignore[arg-type]
