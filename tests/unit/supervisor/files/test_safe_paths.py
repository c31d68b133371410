"""A supervisor that runs as root among other Unix users: no trap in a user's folder makes it touch
files of others.
"""

import asyncio
import contextlib
import errno
import json
import math
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log
from jobscribe.supervisor.files import user_library as library_module
from jobscribe.supervisor.files.run_dir_reaper import RunDirReaper
from jobscribe.supervisor.files.safe_paths import remove
from jobscribe.supervisor.files.user_library import Library
from jobscribe.supervisor.tracing import log_search

MINE, THEIRS = "user0001", "user0002"
#: Unix users; they need no passwd entry
MY_UNIX, THEIR_UNIX = (41_001, 41_001), (41_002, 41_002)
ROUNDS, PATIENCE_SECS = (20_000, 900.0) if os.environ.get("SOAK") == "1" else (150, 60.0)
root_only = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="folders of other unix users can be made by root only: run the tests as root",
)


class Place:
    """The user root with the folders of two users, each owned by its own Unix user, and system
    files outside.
    """

    def __init__(self, folder: Path) -> None:
        self.user_root, self.outside = folder / "user", folder / "outside"
        self.user_root.mkdir(mode=0o700)
        for path, owner in (
            (self.user_root / MINE, MY_UNIX),
            (self.user_root / THEIRS, THEIR_UNIX),
            (self.outside, (0, 0)),
        ):
            self.made(path / "heat" / "lib", owner)
            self.made(path / "heat" / "simAAA01" / "model" / "sub", owner)
            for name in ("heat/lib/a", "heat/lib/b", "heat/simAAA01/model/sub/out"):
                (path / name).write_text(f"secret of {path.name}")
                (path / name).chmod(0o600)
                os.chown(path / name, *owner)
        self.library = Library(str(self.user_root), limit=10_000)

    @staticmethod
    def made(path: Path, owner: tuple[int, int]) -> None:
        for folder in (*reversed(path.parents), path):
            if not folder.exists():
                folder.mkdir(mode=0o700)
                os.chown(folder, *owner)

    def mine(self, name: str = "") -> Path:
        return self.user_root / MINE / "heat" / name

    def others(self) -> dict[str, tuple[Any, ...]]:
        """Return the state of all files that must stay unchanged."""
        out = {}
        for top in (self.outside, self.user_root / THEIRS):
            for path in (top, *top.rglob("*")):
                info = path.lstat()
                out[str(path)] = (
                    info.st_mode,
                    info.st_uid,
                    info.st_gid,
                    info.st_nlink,
                    path.read_text() if path.is_file() else None,
                )
        return out


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def put(library: Library, name: str, data: bytes = b"new", uid: str = MINE) -> dict[str, Any]:
    upload = library.upload(uid, "heat", name)
    try:
        upload.write(data)
        return upload.finish()
    finally:
        upload.close()


def owner_of(path: Path) -> tuple[int, int]:
    return path.lstat().st_uid, path.lstat().st_gid


def purging(user_root: Path) -> tuple[RunDirReaper, list[str]]:
    said: list[str] = []
    put = lambda text: said.append("{msg} jid={jid}".format_map(json.loads(text)))
    log = Log("supervisor", Redactor(), Direct(SimpleNamespace(put=put), form="json"))
    made = RunDirReaper(
        SimpleNamespace(),
        SimpleNamespace(),
        log,
        lambda: None,
        user_root=str(user_root),
        agents_root=str(user_root.parent / "agent"),
        after_secs=None,
        every_secs=1.0,
    )  # type: ignore[arg-type]
    return made, said


# ---- ownership


@root_only
def test_what_is_uploaded_belongs_to_the_owner_of_the_users_folder(place: Place) -> None:
    put(place.library, "c")
    assert (
        owner_of(place.mine("lib/c")) == MY_UNIX
        and stat.S_IMODE(place.mine("lib/c").stat().st_mode) == 0o600
    )
    for gone in (place.mine("lib"), place.mine()):
        for path in sorted(gone.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    place.mine().rmdir()
    put(place.library, "c")
    assert [owner_of(p) for p in (place.mine(), place.mine("lib"), place.mine("lib/c"))] == [
        MY_UNIX
    ] * 3
    assert owner_of(place.user_root) == (0, 0)


@root_only
def test_a_file_is_the_users_before_it_has_its_name_and_not_while_it_is_received(
    place: Place,
) -> None:
    """The user could write to the file, and the digest would not match its content."""
    upload = place.library.upload(MINE, "heat", "c")
    upload.write(b"1")
    (temporary,) = (p for p in place.mine("lib").iterdir() if p.name.startswith(".upload-"))
    assert owner_of(temporary) == (0, 0)
    upload.finish()
    upload.close()
    assert owner_of(place.mine("lib/c")) == MY_UNIX


@root_only
def test_a_folder_that_is_not_there_yet_is_made_for_the_unix_user_to_come(tmp_path: Path) -> None:
    library = Library(
        str(tmp_path / "user"), limit=10, owner=lambda uid: MY_UNIX if uid == MINE else None
    )
    put(library, "c")
    put(library, "c", uid=THEIRS)
    for uid, owner in ((MINE, MY_UNIX), (THEIRS, (0, 0))):
        top = tmp_path / "user" / uid
        assert [
            owner_of(p)
            for p in (top, top / "heat", top / "heat" / "lib", top / "heat" / "lib" / "c")
        ] == [owner] * 4


@root_only
def test_a_folder_that_a_crash_left_to_root_is_given_to_its_user(place: Place) -> None:
    os.chown(place.mine(), 0, 0)
    os.chown(place.mine("lib"), 0, 0)
    put(place.library, "c")
    assert [owner_of(p) for p in (place.mine(), place.mine("lib"))] == [MY_UNIX] * 2


@root_only
def test_a_folder_of_somebody_else_is_not_given_away(place: Place) -> None:
    os.chown(place.mine("lib"), 41_003, 41_003)
    put(place.library, "c")
    assert (owner_of(place.mine("lib")), owner_of(place.mine("lib/c"))) == (
        (41_003, 41_003),
        MY_UNIX,
    )


# ---- links


@root_only
@pytest.mark.parametrize("part", ["heat", "heat/lib"])
@pytest.mark.parametrize("target", ["outside", THEIRS])
def test_a_planted_link_leads_nowhere(place: Place, part: str, target: str) -> None:
    planted = place.user_root / MINE / part
    planted.rename(place.user_root / MINE / "away")
    planted.symlink_to((place.outside if target == "outside" else place.user_root / THEIRS) / part)
    before = place.others()
    for what in (
        lambda: put(place.library, "planted"),
        lambda: place.library.delete(MINE, "heat", "a"),
        lambda: place.library.files(MINE, "heat"),
        lambda: place.library.open(MINE, "heat", "a"),
    ):
        with pytest.raises(Refusal) as e:
            what()
        assert e.value.code == "notFound"
    assert place.others() == before


@root_only
@pytest.mark.parametrize("part", ["heat", "heat/simAAA01", "heat/simAAA01/model"])
@pytest.mark.parametrize("target", ["outside", THEIRS])
async def test_a_purge_goes_through_no_link(place: Place, part: str, target: str) -> None:
    planted = place.user_root / MINE / part
    planted.rename(place.user_root / MINE / "away")
    planted.symlink_to((place.outside if target == "outside" else place.user_root / THEIRS) / part)
    before = place.others()
    p, said = purging(place.user_root)
    p.remove(str(place.mine("simAAA01/model")), 7)
    p._start_removal(str(place.mine("simAAA01/.purged-model-8")))
    await p.close()
    assert place.others() == before
    if part == "heat/simAAA01/model":
        assert os.listdir(place.mine("simAAA01")) == [], "the link itself is the user's, and goes"
    else:
        assert len(said) == 2 and all("jid=user0001-simAAA01-model" in s for s in said)


@root_only
async def test_links_and_hard_links_in_a_run_directory_go_and_what_they_lead_to_stays(
    place: Place,
) -> None:
    model = place.mine("simAAA01/model")
    (model / "etc").symlink_to(place.outside)
    (model / "sub" / "etc").symlink_to(place.user_root / THEIRS)
    os.link(place.outside / "heat/lib/a", model / "sub" / "hard")
    os.mkfifo(model / "sub" / "pipe")
    os.link(model / "sub" / "pipe", model / "pipe")
    before = {k: (*v[:3], v[4]) for k, v in place.others().items()}
    p, said = purging(place.user_root)
    p.remove(str(model), 7)
    await p.close()
    assert (os.listdir(place.mine("simAAA01")), said) == ([], [])
    assert {k: (*v[:3], v[4]) for k, v in place.others().items()} == before


@root_only
def test_a_hard_link_to_a_file_that_the_user_cannot_read_is_no_file_of_the_library(
    place: Place,
) -> None:
    for name, source in (
        ("root", place.outside / "heat/lib/a"),
        ("theirs", place.user_root / THEIRS / "heat/lib/a"),
    ):
        os.link(source, place.mine("lib") / name)
        with pytest.raises(Refusal) as e:
            place.library.open(MINE, "heat", name)
        assert e.value.code == "notFound"
    for name, mode, group in (
        ("all", 0o604, 0),
        ("group", 0o640, MY_UNIX[1]),
        ("not-group", 0o604, MY_UNIX[1]),
    ):
        (place.mine("lib") / name).write_text("x")
        os.chown(place.mine("lib") / name, 0, group)
        (place.mine("lib") / name).chmod(mode)
    assert [f["name"] for f in place.library.files(MINE, "heat")] == ["a", "all", "b", "group"], (
        "as the kernel would let him"
    )
    assert [f["name"] for f in place.library.files(THEIRS, "heat")] == ["a", "b"]


def test_what_is_no_file_is_not_opened_even_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe or a device has side effects."""
    library = Library(str(tmp_path), limit=10)
    put(library, "c")
    pipe = tmp_path / MINE / "heat" / "lib" / "pipe"
    os.mkfifo(pipe)
    looked: list[int] = []

    def looks(mode: int) -> bool:
        with pytest.raises(OSError) as e:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        looked.append(e.value.errno)
        return stat.S_ISREG(mode)

    monkeypatch.setattr(
        library_module,
        "stat",
        SimpleNamespace(S_ISREG=looks, S_IRGRP=stat.S_IRGRP, S_IROTH=stat.S_IROTH),
    )
    with pytest.raises(Refusal):
        library.open(MINE, "heat", "pipe")
    assert looked == [errno.ENXIO], "nobody reads it while it is looked at"


# ---- races


class Swapping:
    """A job that keeps replacing its own folder with a link to another user's folder, and back."""

    def __init__(self, place: Path, target: Path) -> None:
        self._place, self._target = place, target
        self._own, self._link = (
            place.with_name("own-" + place.name),
            place.with_name("link-" + place.name),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._link.symlink_to(self._target)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                os.rename(self._place, self._own)
                os.rename(self._link, self._place)
                os.rename(self._place, self._link)
                os.rename(self._own, self._place)
            except OSError:
                # another process created a folder while the name was free
                with contextlib.suppress(OSError):
                    self._settle()
        self._settle()

    def _settle(self) -> None:
        if self._place.is_symlink():
            self._place.rename(self._link)
        if self._own.exists():
            if self._place.exists():
                shutil.rmtree(self._place)
            self._own.rename(self._place)


def until_both(what: Callable[[int], bool], rounds: int) -> None:
    """Repeat until enough calls succeeded and enough were refused: only then did the race occur."""
    well = refused = n = 0
    least, deadline = rounds // 10, time.monotonic() + PATIENCE_SECS
    while (well < least or refused < least or n < rounds) and time.monotonic() < deadline:
        if what(n):
            well += 1
        else:
            refused += 1
        n += 1
    assert well >= least <= refused and n >= rounds, (well, refused)


@root_only
@pytest.mark.timeout(1200 if ROUNDS > 1000 else 120)
@pytest.mark.parametrize("part", ["heat", "heat/lib"])
@pytest.mark.parametrize("target", ["outside", THEIRS])
def test_a_job_that_swaps_folder_and_link_gets_nothing_written_read_or_removed_elsewhere(
    place: Place, part: str, target: str
) -> None:
    victim = place.outside if target == "outside" else place.user_root / THEIRS
    (place.mine("lib") / "only-mine").write_text("mine")
    os.chown(place.mine("lib/only-mine"), *MY_UNIX)
    before = place.others()

    def use(n: int) -> bool:
        try:
            if n % 3 == 0:
                put(place.library, "a")
            elif n % 3 == 1:
                fd, _ = place.library.open(MINE, "heat", "only-mine" if n % 2 else "a")
                data = os.read(fd, 100)
                os.close(fd)
                assert b"secret of" not in data or data == b"secret of user0001"
            else:
                assert {f["name"] for f in place.library.files(MINE, "heat")} <= {
                    "a",
                    "b",
                    "only-mine",
                }
                place.library.delete(MINE, "heat", "b" if n % 2 else "a")
        except Refusal as e:
            return e.code != "notFound"
        return True

    with Swapping(place.user_root / MINE / part, victim / part):
        until_both(use, ROUNDS)
    assert place.others() == before


@root_only
@pytest.mark.timeout(1200 if ROUNDS > 1000 else 120)
@pytest.mark.parametrize("part", ["heat", "heat/simAAA01"])
@pytest.mark.parametrize("target", ["outside", THEIRS])
async def test_a_job_that_swaps_folder_and_link_gets_nothing_purged_elsewhere(
    place: Place, part: str, target: str
) -> None:
    victim = place.outside if target == "outside" else place.user_root / THEIRS
    before = place.others()
    p, said = purging(place.user_root)
    well = refused = 0
    least, deadline = ROUNDS // 10, time.monotonic() + PATIENCE_SECS
    with Swapping(place.user_root / MINE / part, victim / part):
        while (well < least or refused < least) and time.monotonic() < deadline:
            known = len(said)
            p.remove(str(place.mine("simAAA01/model")), 7)
            p._start_removal(str(place.mine("simAAA01/.purged-model-7")))
            await asyncio.gather(*p._removing.values())
            refused += len(said) > known
            well += len(said) == known
    await p.close()
    assert well >= least <= refused, (well, refused)
    assert place.others() == before


@root_only
@pytest.mark.parametrize("part", ["heat", "heat/simAAA01"])
async def test_a_link_that_comes_at_the_worst_moment_of_a_purge_leads_nowhere(
    place: Place, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The link appears right after the path to the folder is resolved."""
    own, away = place.user_root / MINE / part, place.user_root / MINE / "away"
    before = place.others()
    p, _ = purging(place.user_root)
    opened = p._folder_of

    def and_then(path: str) -> int:
        fd = opened(path)
        own.rename(away)
        own.symlink_to(place.user_root / THEIRS / part)
        return fd

    for what in (
        lambda: p.remove(str(place.mine("simAAA01/model")), 7),
        lambda: p._remove_tree(str(place.mine("simAAA01/.purged-model-7"))),
    ):
        with monkeypatch.context() as m:
            m.setattr(p, "_folder_of", and_then)
            m.setattr(p, "_start_removal", lambda doomed, evidence=(): None)
            what()
        assert place.others() == before
        own.unlink()
        away.rename(own)
    assert os.listdir(place.mine("simAAA01")) == []
    await p.close()


# ---- malicious trees


def no_end() -> bool:
    return True


def test_a_tree_of_any_depth_is_removed_with_few_open_files(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("model", dir_fd=fd)
    at = os.open("model", os.O_RDONLY, dir_fd=fd)
    for n in range(3000):
        os.mkdir("d", dir_fd=at)
        if n % 100 == 0:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at))
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    most = [0]

    def counted() -> bool:
        most[0] = max(most[0], len(os.listdir("/proc/self/fd")))
        return True

    before = len(os.listdir("/proc/self/fd"))
    assert remove(fd, "model", counted)
    os.close(fd)
    assert os.listdir(tmp_path) == [] and most[0] <= before + 6


def test_a_wide_tree_is_removed_whole(tmp_path: Path) -> None:
    for a in range(20):
        for b in range(10):
            (tmp_path / "model" / f"{a}" / f"{b}").mkdir(parents=True)
            for c in range(3):
                (tmp_path / "model" / f"{a}" / f"{b}" / f"{c}").touch()
    (tmp_path / "kept").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    assert remove(fd, "model", no_end) and remove(fd, "model", no_end)
    os.close(fd)
    assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.timeout(60)
def test_a_job_that_writes_faster_than_is_removed_holds_nobody_up_for_ever(tmp_path: Path) -> None:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            try:
                (tmp_path / "model" / "sub").mkdir(parents=True, exist_ok=True)
                (tmp_path / "model" / "sub" / f"{n}").touch()
            except OSError:
                continue

    writer = threading.Thread(target=write)
    writer.start()
    fd = os.open(tmp_path, os.O_RDONLY)
    end = time.monotonic() + 0.5
    try:
        remove(fd, "model", lambda: time.monotonic() < end)
        assert time.monotonic() - end < 5 * 0.5
    finally:
        stop.set()
        writer.join()
        os.close(fd)


async def test_what_stands_in_the_way_of_the_other_name_is_removed_first(tmp_path: Path) -> None:
    """Otherwise a user could create the temporary name and keep runs forever."""
    folder = tmp_path / MINE / "heat" / "simAAA01"
    (folder / ".purged-model-7" / "x").mkdir(parents=True)
    (folder / "model").mkdir()
    p, said = purging(tmp_path)
    p.remove(str(folder / "model"), 7)
    await asyncio.gather(*p._removing.values())
    assert os.listdir(folder) == ["model"] and len(said) == 1
    p.remove(str(folder / "model"), 7)
    await p.close()
    assert os.listdir(folder) == []


def test_a_library_with_endless_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "SEEN_AT_MOST", 50)
    library = Library(str(tmp_path), limit=10)
    put(library, "c")
    for n in range(60):
        (tmp_path / MINE / "heat" / "lib" / f".hidden{n}").touch()
    for what in (lambda: put(library, "d"), lambda: library.files(MINE, "heat")):
        with pytest.raises(Refusal) as e:
            what()
        assert e.value.code == "conflict"


def test_a_folder_that_is_called_like_a_leftover_spoils_nothing(tmp_path: Path) -> None:
    library = Library(str(tmp_path), limit=10)
    put(library, "c")
    old = tmp_path / MINE / "heat" / "lib" / ".upload-old"
    old.mkdir()
    os.utime(old, (1.0, 1.0))
    put(library, "d")
    assert [f["name"] for f in library.files(MINE, "heat")] == ["c", "d"]


@pytest.mark.timeout(60)
def test_a_trace_reads_no_link_and_no_pipe_in_an_agents_folder(tmp_path: Path) -> None:
    """The user owns the folder if the agent runs in a container. A keeper's log is shown
    completely.
    """
    agent = tmp_path / "root" / "agent" / f"local.sequential.{MINE}@localhost"
    agent.mkdir(parents=True)
    (tmp_path / "shadow").write_text("root:secret\n")
    (agent / "agent.log").symlink_to(tmp_path / "shadow")
    os.mkfifo(agent / "agent.log.1")
    (agent / "keeper.log").symlink_to(tmp_path / "shadow")
    (agent / "keeper.log.1").write_text("said by the keeper\n")
    about = log_search.JobQuery(
        f"{MINE}-simAAA01-model", "heat", frozenset(), frozenset(), 0.0, math.inf
    )
    assert [line.text for line in log_search.lines(str(tmp_path / "root"), about)[0]] == [
        "said by the keeper"
    ]
    with pytest.raises(OSError, match="symbolic"):
        list(log_search._blocks([str(agent / "agent.log")]))


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    left = [f for f in set(os.listdir("/proc/self/fd")) - before if _leads_to_a_folder(f)]
    assert left == []


def _leads_to_a_folder(fd: str) -> bool:
    return os.path.isdir(f"/proc/self/fd/{fd}") and not os.readlink(
        f"/proc/self/fd/{fd}"
    ).startswith("/proc")
