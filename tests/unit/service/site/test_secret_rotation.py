"""A secret is replaced while clients use it: the earlier one is valid until its time, no longer, and
a file that cannot be used changes nothing.
"""

import os
import secrets
import stat
from pathlib import Path

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.service.site import secret_rotation
from jobscribe.service.site.secret_rotation import (
    MOST_EARLIER,
    SUFFIX,
    Earlier,
    RotatedSecret,
    opened,
    read,
    rotate,
)

SETTING = "supervisor.server_secret_file"
NOW = 1_800_000_000.0
OLD = secrets.token_hex(32)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(OLD + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def secret(file: Path, clock: Clock) -> RotatedSecret:
    return opened("server", str(file), SETTING, clock)


def bearer(secret: RotatedSecret, value: str) -> bool:
    return secret.holder(f"Bearer {value}") is not None


def test_a_file_with_one_line_is_valid_forever(secret: RotatedSecret, clock: Clock) -> None:
    clock.now += 1e9
    assert secret.accepted() == (OLD,) and bearer(secret, OLD) and not bearer(secret, OLD[:-1])


def test_both_are_accepted_until_the_time_of_the_earlier_one(
    secret: RotatedSecret, file: Path, clock: Clock
) -> None:
    new = rotate(str(file), SETTING, 3600.0, NOW).current
    assert new != OLD and file.read_text() == new + "\n", "other programs read the file as before"
    # the first request with the new one is accepted, without a wait for the next look
    assert bearer(secret, new) and bearer(secret, OLD)
    assert secret.accepted() == (new, OLD)
    clock.now = NOW + 3599
    assert bearer(secret, OLD)
    clock.now = NOW + 3600
    assert not bearer(secret, OLD) and bearer(secret, new)
    assert OLD in secret.values.all, "redaction still knows it"
    # a later start reads the same
    assert opened("server", str(file), SETTING, clock).accepted() == (new,)


def test_each_earlier_one_has_its_own_time_and_now_ends_all(
    secret: RotatedSecret, file: Path, clock: Clock
) -> None:
    second = rotate(str(file), SETTING, 100.0, NOW).current
    third = rotate(str(file), SETTING, 1000.0, NOW + 50).current
    assert secret.look() and secret.accepted() == (third, second, OLD)
    clock.now = NOW + 101
    assert secret.accepted() == (third, second)
    last = rotate(str(file), SETTING, 0.0, clock.now).current
    assert secret.look() and secret.accepted() == (last,)
    assert set(secret.values.all) == {last, third, second, OLD}


def test_what_was_authenticated_with_an_ended_secret_is_not_any_more(
    secret: RotatedSecret, file: Path
) -> None:
    mark = secret.holder(f"Bearer {OLD}")
    assert mark is not None and secret.knows(mark)
    rotate(str(file), SETTING, 0.0, NOW)
    secret.look()
    assert not secret.knows(mark)


def test_use_of_an_earlier_secret_is_reported(secret: RotatedSecret, file: Path) -> None:
    used: list[int] = []
    secret.used_earlier = lambda: used.append(1)
    bearer(secret, OLD)
    new = rotate(str(file), SETTING, 100.0, NOW).current
    secret.look()
    bearer(secret, new)
    assert used == []
    bearer(secret, OLD)
    assert used == [1]


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda f: f.write_text("weak"), "easily guessed"),
        (lambda f: f.write_text(""), "easily guessed"),
        (lambda f: f.chmod(0o644), "accessible to others"),
        (lambda f: f.unlink(), "cannot be read"),
        (lambda f: f.write_bytes(b"\xff" * 40), "no text"),
        (lambda f: f.write_text(f"{OLD}\n{OLD}"), "one line"),
        (lambda f: _earlier(f, "no time at all"), "easily guessed"),
        (lambda f: _earlier(f, f"{OLD} tomorrow"), "damaged"),
        (lambda f: _earlier(f, f"{OLD} 2026-01-01T00:00:00Z", 0o644), "accessible to others"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    secret: RotatedSecret, file: Path, spoil: object, part: str
) -> None:
    heard: list[str | None] = []
    secret.heard = lambda s: heard.append(s.problem)
    spoil(file)  # type: ignore[operator]
    assert not secret.look() and not secret.look()
    assert len(heard) == 1 and heard[0] is not None and part in heard[0]
    assert OLD not in heard[0] and bearer(secret, OLD)
    # it is put right
    for path in (file, file.with_name(file.name + SUFFIX)):
        path.unlink(missing_ok=True)
    file.write_text("x" + OLD)
    file.chmod(0o600)
    assert secret.look() and secret.problem is None and secret.accepted() == ("x" + OLD,)


def _earlier(file: Path, text: str, mode: int = 0o600) -> None:
    path = file.with_name(file.name + SUFFIX)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("last", [1, 2])
def test_a_rotation_that_fails_midway_leaves_a_valid_secret(
    secret: RotatedSecret, file: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """The n-th rename fails, as in a crash at this point."""
    calls = 0
    real = os.rename

    def rename(a: str, b: str) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise OSError(28, "No space left on device")
        real(a, b)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="No space"):
        rotate(str(file), SETTING, 100.0, NOW)
    secret.look()
    assert secret.problem is None and secret.accepted() == (OLD,)
    assert read(str(file), SETTING).current == OLD
    monkeypatch.undo()
    assert sorted(p.name for p in file.parent.iterdir() if p.name.endswith(".new")) == []
    new = rotate(str(file), SETTING, 100.0, NOW).current
    secret.look()
    assert secret.accepted() == (new, OLD)


def test_no_moment_of_a_rotation_refuses_the_secret_in_use(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that reads the files at each step accepts the old secret, and the new one as soon
    as the file has it.
    """
    real, seen = os.rename, list[int]()

    def rename(a: str, b: str) -> None:
        real(a, b)
        now = opened("server", str(file), SETTING, clock).accepted()
        assert OLD in now and file.read_text().strip() == now[0]
        seen.append(len(now))

    monkeypatch.setattr(os, "rename", rename)
    rotate(str(file), SETTING, 100.0, NOW)
    assert seen == [1, 2]


def test_mode_and_link_stay(file: Path, tmp_path: Path) -> None:
    file.chmod(0o400)
    link = tmp_path / "link"
    link.symlink_to(file)
    new = rotate(str(link), SETTING, 100.0, NOW).current
    assert link.is_symlink() and file.read_text().strip() == new
    for path in (file, tmp_path / ("secret" + SUFFIX)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o400


def test_root_rotates_the_secret_of_another_user_who_keeps_it(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file to another user")
    os.chown(file, 65534, 65534)
    new = rotate(str(file), SETTING, 100.0, NOW).current
    assert file.read_text().strip() == new
    for path in (file, file.with_name(file.name + SUFFIX)):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    with pytest.raises(Refusal, match="another user"):  # a supervisor of root does not use it
        read(str(file), SETTING)


def test_another_user_may_not_rotate(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(file).st_uid + 1)
    with pytest.raises(Refusal) as e:
        rotate(str(file), SETTING, 100.0, NOW)
    assert e.value.code == "forbidden" and file.read_text() == OLD + "\n"


def test_the_number_of_earlier_ones_is_limited(file: Path) -> None:
    for _ in range(MOST_EARLIER):
        rotate(str(file), SETTING, 100.0, NOW)
    with pytest.raises(Refusal, match="--now"):
        rotate(str(file), SETTING, 100.0, NOW)
    rotate(str(file), SETTING, 100.0, NOW + 200)
    values = rotate(str(file), SETTING, 0.0, NOW + 201)
    assert len(values.earlier) == MOST_EARLIER and len(values.accepted(NOW + 201)) == 1


def test_no_value_is_in_a_text_for_people(file: Path, secret: RotatedSecret) -> None:
    values = rotate(str(file), SETTING, 100.0, NOW)
    shown = repr((values, values.earlier, secret, Earlier(OLD, NOW)))
    assert OLD not in shown and values.current not in shown


def test_a_change_between_reading_and_watching_is_seen(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = secret_rotation.read

    def read_then_changed(path: str, setting: str) -> secret_rotation.SecretValues:
        found = real(path, setting)
        monkeypatch.undo()
        rotate(path, setting, 100.0, NOW)
        return found

    monkeypatch.setattr(secret_rotation, "read", read_then_changed)
    assert opened("server", str(file), SETTING).look()
