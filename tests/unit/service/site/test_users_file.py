"""The file of roles: who is administrator, and for whom a group admin may act."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.loader import load as load_settings
from jobscribe.service.site.startup_checks import problems
from jobscribe.service.site.users_file import Users, load, read

Write = Callable[..., str]
ROOT = Path(__file__).parents[4]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, mode: int = 0o600) -> str:
        path = tmp_path / "users.yml"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write


def test_the_example_is_valid(write: Write) -> None:
    users = load(write((ROOT / "etc/users.example.yml").read_text()))
    assert [users.role(u) for u in ("abcd1234", "efgh5678", "ijkl9012", "nobody00")] == [
        "admin",
        "groupAdmin",
        "user",
        "user",
    ]
    assert users.members_of("efgh5678") == {"ijkl9012", "mnop3456"}
    assert users.members_of("ijkl9012") == users.members_of("abcd1234") == frozenset()


def test_without_a_file_nobody_has_a_role() -> None:
    assert load(None) == Users() and load(None).role("abcd1234") == "user"


def test_nobody_gains_a_role_by_acting_for_a_member(write: Write) -> None:
    users = load(
        write(
            "admins: [admin001]\n"
            "groups:\n"
            "  a: {admins: [chief001], members: [admin001, chief002, user0001]}\n"
            "  b: {admins: [chief002], members: [user0002]}\n"
        )
    )
    assert users.members_of("chief001") == {"user0001"}


def test_all_problems_are_told_with_their_lines(write: Write) -> None:
    path = write(
        "admins: [abc, admin001, admin001]\ngroups:\n  a:\n    members: [user0001]\n  B: {}\nroles: {}\n"
    )
    users, found = read(path)
    said = "\n".join(f.sentence for f in found)
    assert users is None and {f.code for f in found} == {"badConfig"}
    for words in (
        ":1:",
        "admins[0]",
        "admins[2]",
        ":3:",
        "has members and no admin",
        ":5:",
        ":6:",
        "roles",
    ):
        assert words in said, (words, said)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_change_is_refused(write: Write, mode: int) -> None:
    users, (found,) = read(write("admins: [admin001]\n", mode))
    assert users is None and found.code == "unsafe" and "chmod go-w" in found.sentence


def test_the_start_reports_its_problems(write: Write, tmp_path: Path) -> None:
    path = write("admins: 7\n")
    settings = load_settings({"auth.users": path, "root": str(tmp_path)}, env={})
    assert [p for p in problems(settings) if "users.yml" in p.sentence]
    with pytest.raises(Refusal, match="admins"):
        load(path)
