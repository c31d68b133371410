"""Collection of files that look like cores: only real, new ones of the job's user, within the limit,
never through a link. And the report about them, also if a job wrote it.
"""

import errno
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobscribe.protocol.jobs.core_report import (
    NODE_SENTENCES,
    SENTENCES,
    CoreReport,
    CoreState,
    Frame,
    NodeState,
)
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.runtime.cores import core_folder, core_pattern, elf_core, marker, report_file, search
from jobscribe.runtime.cores.collector import Request, collect


def core(pid: int = 4711, signal: int = 11, content: int = 0) -> bytes:
    """Return a small core file of this process."""
    prpsinfo = bytearray(136)
    struct.pack_into("i", prpsinfo, 24, pid)
    prpsinfo[40:46] = b"solver"
    prstatus = bytearray(336)
    struct.pack_into("h", prstatus, 12, signal)
    struct.pack_into("i", prstatus, 32, pid)
    notes = b"".join(
        struct.pack("III", 5, len(data), kind) + b"CORE\0\0\0\0" + bytes(data)
        for kind, data in ((1, prstatus), (3, prpsinfo))
    )
    begin = 64 + 2 * 56
    header = struct.pack(
        "16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 4, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    table = struct.pack("IIQQQQQQ", 4, 0, begin, 0, 0, len(notes), 0, 1)
    table += struct.pack("IIQQQQQQ", 1, 0, begin + len(notes), 0, 0, content, content, 1)
    return header + table + notes + b"x" * content


def request(tmp_path: Path, **fields: Any) -> Request:
    for name in ("run", "evidence"):
        (tmp_path / name).mkdir(exist_ok=True)
    usual = {
        "folder": str(tmp_path / "evidence"),
        "runDir": str(tmp_path / "run"),
        "since": time.time() - 5,
        "limit": 1 << 20,
        "signal": 11,
        "dumped": True,
        "main": 4711,
        "frames": False,
        "pattern": "core.%p",
    }
    return Request({**usual, **fields})


def names(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "evidence" / "cores").iterdir())


def test_facts_of_a_core_and_of_files_that_only_begin_like_one(tmp_path: Path) -> None:
    whole = core(content=1000)
    path = tmp_path / "core"
    for length in (len(whole), len(whole) - 400):
        path.write_bytes(whole[:length])
        with path.open("rb") as file:
            facts = elf_core.read(file.fileno())
        assert facts is not None
        assert (facts.pid, facts.signal, facts.program) == (4711, 11, "solver")
        assert facts.complete_bytes == len(whole)
    for cut in range(64 + 2 * 56 + 60):
        path.write_bytes(whole[:cut])
        with path.open("rb") as file:
            elf_core.read(file.fileno())
    wild = struct.pack(
        "16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 4, 0, 0, 0, 2**63, 0, 0, 0, 56, 65535, 0, 0, 0
    )
    path.write_bytes(wild)
    with path.open("rb") as file:
        assert elf_core.read(file.fileno()) is not None


def test_cores_are_moved_the_main_process_first_and_other_files_stay(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    run = tmp_path / "run"
    (run / "in").mkdir()
    (run / "core.1").write_bytes(core(1, 6))
    (run / "in" / "core.4711").write_bytes(core())
    (run / "core.2").write_text("data of the job")
    (run / "core.3").write_bytes(core(3))
    os.utime(run / "core.3", (0, 0))  # of an earlier run
    (run / "other").write_bytes(core(5))
    (tmp_path / "elsewhere").write_bytes(core(6))
    (run / "core.6").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "linked").write_bytes(core(7))
    (run / "core.7").hardlink_to(tmp_path / "linked")
    os.mkfifo(run / "core.8")
    (run / "core.9").mkdir()
    report = collect(wanted)
    assert report is not None and report["state"] == "kept"
    assert [(f["pid"], f["signal"]) for f in report["files"]] == [(4711, 11), (1, 6)]
    assert names(tmp_path) == ["core.1", "core.4711", "cores.json"]
    left = {"core.2", "core.3", "core.6", "core.7", "core.8", "core.9", "in", "other"}
    assert {p.name for p in run.iterdir()} == left
    assert collect(wanted) == report, "a repeated collection finds the same"
    assert msgspec.convert(report_file.read_report(wanted.folder), CoreReport).files[0].pid == 4711


def test_the_limit_is_for_all_together_and_the_rest_stays_where_it_is(tmp_path: Path) -> None:
    wanted = request(tmp_path, limit=300_000)
    for pid in (4711, 1):
        (tmp_path / "run" / f"core.{pid}").write_bytes(core(pid, content=200_000))
    report = collect(wanted)
    assert report is not None and (report["state"], report["left"]) == ("kept", 1)
    assert [f["pid"] for f in report["files"]] == [4711] and (tmp_path / "run" / "core.1").exists()
    small = request(tmp_path / "run", limit=10)
    (tmp_path / "run" / "run" / "core.4711").write_bytes(core(content=200_000))
    report = collect(small)
    assert report is not None and (report["state"], report["left"]) == ("tooLarge", 1)


def test_folders_that_jobs_share_give_only_cores_of_the_processes_of_this_job(
    tmp_path: Path,
) -> None:
    wanted = request(tmp_path, pattern=f"{tmp_path}/all/core.%p", pids=[12])
    (tmp_path / "all").mkdir()
    for pid in (4711, 12, 13):
        (tmp_path / "all" / f"core.{pid}").write_bytes(core(pid))
    report = collect(wanted)
    assert report is not None and [f["pid"] for f in report["files"]] == [4711, 12]
    assert os.listdir(tmp_path / "all") == ["core.13"]


def test_an_end_that_leaves_no_core_has_a_report_only_if_one_is_missing(tmp_path: Path) -> None:
    assert collect(request(tmp_path, signal=None, dumped=False)) is None
    report = collect(request(tmp_path, pattern="|/usr/share/apport/apport"))
    assert report is not None
    assert (report["state"], report["detail"]) == ("piped", "/usr/share/apport/apport")


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "evidence" / "cores").symlink_to(tmp_path / "target")
    (tmp_path / "run" / "core.1").write_bytes(core(1))
    with pytest.raises(OSError, match=r"directory|links"):
        collect(wanted)
    assert os.listdir(tmp_path / "target") == []


def test_a_copy_to_another_disk_keeps_holes_and_removes_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def other_disk(*names: Any, **folders: Any) -> None:
        if folders and folders["src_dir_fd"] != folders["dst_dir_fd"]:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(*names, **folders)

    monkeypatch.setattr(os, "rename", other_disk)
    wanted = request(tmp_path)
    path = tmp_path / "run" / "core.4711"
    with path.open("wb") as file:
        file.write(core(content=50_000))
        file.truncate(8 << 20)  # more than the limit, but a hole
    content = path.read_bytes()
    report = collect(wanted)
    assert report is not None and report["state"] == "kept" and not path.exists()
    copied = tmp_path / "evidence" / "cores" / "core.4711"
    assert copied.read_bytes() == content and copied.stat().st_blocks * 512 < 1 << 20
    assert copied.stat().st_mode & 0o777 == 0o600

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path.write_bytes(core())
    monkeypatch.setattr(os, "pwrite", full)
    report = collect(wanted)
    assert report is not None and report["state"] == "diskFull" and path.exists()
    assert names(tmp_path) == ["core.4711", "cores.json"]


def test_what_a_job_prepares_in_the_folder_is_neither_opened_nor_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request(tmp_path)
    folder = tmp_path / "evidence" / "cores"
    folder.mkdir()
    (tmp_path / "other").write_text("of somebody else")
    os.mkfifo(folder / ".core.4711.part")
    (folder / ".cores.json.part").hardlink_to(tmp_path / "other")
    (tmp_path / "run" / "core.4711").write_bytes(core())

    def other_disk(*names: Any, **folders: Any) -> None:
        if folders["src_dir_fd"] != folders["dst_dir_fd"]:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(*names, **folders)

    rename = os.rename
    monkeypatch.setattr(os, "rename", other_disk)
    report = collect(wanted)
    assert report is not None and report["state"] == "kept"
    assert names(tmp_path) == ["core.4711", "cores.json"]
    assert (tmp_path / "other").read_text() == "of somebody else"


def test_a_copy_ends_at_the_limit_where_holes_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, to = tmp_path / "core", tmp_path / "copy"
    with source.open("wb") as file:
        file.truncate(1 << 30)
    monkeypatch.setattr(os, "lseek", lambda fd, at, how: at if how == os.SEEK_DATA else 1 << 30)
    for most, until, number in (
        (1 << 20, float("inf"), errno.EFBIG),
        (1 << 40, 0.0, errno.ETIMEDOUT),
    ):
        with source.open("rb") as read, to.open("wb") as write, pytest.raises(OSError) as refused:
            core_folder.copy_data(read.fileno(), write.fileno(), 1 << 30, most, until)
        assert refused.value.errno == number and to.stat().st_size <= 1 << 20


def test_a_search_holds_few_descriptors_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(70):
        (tmp_path / f"core.{pid}").write_bytes(core(pid))
    target = core_pattern.parse("core.%p", False)
    found = search.find(target, str(tmp_path), 0.0, ())
    assert len(found) == 64
    for each in found:
        each.close()
    assert search.find(target, str(tmp_path), 0.0, (), until=0.0) == []
    monkeypatch.setattr(search, "_ENTRIES", 0)
    assert search.find(target, str(tmp_path), 0.0, ()) == []


def test_all_notes_together_are_bounded(tmp_path: Path) -> None:
    """The zeros of a hole are notes; each header may name the same ones."""
    header = struct.pack(
        "16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 4, 62, 1, 0, 64, 0, 0, 64, 56, 9999, 0, 0, 0
    )
    with (tmp_path / "core").open("wb") as made:
        made.write(header + struct.pack("IIQQQQQQ", 4, 0, 1 << 20, 0, 0, 1 << 20, 0, 1) * 9999)
        made.truncate(2 << 20)
    read = os.pread
    asked: list[int] = []

    def counted(fd: int, count: int, at: int) -> bytes:
        asked.append(count)
        return read(fd, count, at)

    with pytest.MonkeyPatch.context() as patch, (tmp_path / "core").open("rb") as file:
        patch.setattr(os, "pread", counted)
        assert elf_core.read(file.fileno()) is not None
    assert sum(asked) < 32 << 20


def test_the_host_in_a_name_is_that_where_the_job_ran(tmp_path: Path) -> None:
    wanted = request(tmp_path, pattern="core.%h.%p")
    (tmp_path / "run" / "core.node-17.4711").write_bytes(core())
    report = collect(wanted)
    assert report is not None and report["state"] == "kept"


def test_each_node_of_several_has_its_own_pattern(tmp_path: Path) -> None:
    """Cores are found where any of them puts its own. A node that gives none is named."""
    wanted = request(tmp_path)
    markers = {
        "core-pattern": ("unlimited", "0", "core.%p"),
        "core-pattern.n1": ("unlimited", "0", "core.%p"),
        "core-pattern.n2": ("unlimited", "0", "dump-%e-%p"),
        "core-pattern.n3": ("unlimited", "0", "|/usr/share/apport/apport %p"),
        "core-pattern.n4": ("0", "0", "core.%p"),
        "core-pattern.n5": ("unlimited", "1", "/var/crash/core"),
        "core-pattern.n6": ("unlimited", "0", "|/usr/share/apport/apport %p"),
        "core-pattern.n7": ("unlimited", "0", "|/usr/lib/systemd/systemd-coredump %P"),
        "core-pattern.n/7": ("unlimited", "0", ""),
        "core-pattern.n8": ("unlimited",),
    }
    for name, lines in markers.items():
        text = "".join(f"{line}\n" for line in (str(1 << 20), *lines))
        (tmp_path / "evidence" / name.replace("/", "%")).write_text(text)
    (tmp_path / "run" / "dump-solver-4712").write_bytes(core(4712))
    exit_ = ExitInfo(code=139, source="script", started_at=time.time())
    report = marker.report_of(str(tmp_path / "evidence"), wanted.run_dir, exit_, frames=False)
    assert isinstance(report, CoreReport) and report.state == "kept"
    assert [file.name for file in report.files] == ["core.4712"]
    _, *said = report.sentences()
    assert said == [
        "the kernel of n3, n6 gives core files to /usr/share/apport/apport, which does not give them back",
        "processes on n4 write no core files: their hard limit is 0 there (ulimit -Hc)",
        "the kernel of n5 puts core files outside of the run directory: /var/crash/core",
        "the kernel of n7 gives core files to systemd-coredump; those of the job's first node are copied,"
        " and coredumpctl on the node has the others",
    ]
    (tmp_path / "evidence" / "core-pattern").write_text("1\n0\n0\ncore\n")
    (tmp_path / "evidence" / "cores" / "core.4712").unlink()
    report = marker.report_of(str(tmp_path / "evidence"), wanted.run_dir, exit_, frames=False)
    assert isinstance(report, CoreReport) and report.state == "hardLimit"
    assert [n.names for n in report.nodes] == ["n3, n6", "n5", "n7"], "n4 is as its first node"


def test_a_core_that_systemd_did_not_return_on_a_node_has_its_error(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    text = f"{1 << 20}\nunlimited\n0\n|/usr/lib/systemd/systemd-coredump %P\n"
    (tmp_path / "evidence" / "core-pattern").write_text(text)
    exit_ = ExitInfo(code=139, source="script", started_at=time.time())
    for error, state in (("", "piped"), ("No coredumps found.\n", "notStored")):
        (tmp_path / "evidence" / "core-error").write_text(error)
        report = marker.report_of(str(tmp_path / "evidence"), wanted.run_dir, exit_, frames=False)
        assert isinstance(report, CoreReport) and report.state == state
    (said,) = report.sentences()
    assert said.endswith("coredumpctl did not return it: No coredumps found.")


@pytest.mark.process
def test_systemd_is_asked_until_it_has_stored_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for coredumpctl, which knows a core some time after the end of its process."""
    program, data = tmp_path / "bin" / "coredumpctl", tmp_path / "data"
    program.parent.mkdir()
    data.write_bytes(core())
    program.write_text(
        f"""#!/bin/sh
[ "$4" = dump ] && [ "$5" = COREDUMP_PID=4711 ] || exit 9
if [ ! -e {tmp_path}/again ]; then : >{tmp_path}/again; echo 'No coredumps found.' >&2; exit 1; fi
cat {data} >"${{3#--output=}}"
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    there = ("|/usr/lib/systemd/systemd-coredump %P", False)
    monkeypatch.setattr(core_pattern, "read", lambda read_file: there)
    report = collect(request(tmp_path, pattern=None))
    assert report is not None and report["state"] == "kept"
    assert [f["pid"] for f in report["files"]] == [4711]
    assert names(tmp_path) == ["core.4711", "cores.json"]
    elsewhere = collect(request(tmp_path / "bin", pattern=there[0]))
    assert elsewhere is not None and elsewhere["state"] == "piped", "it ran on another machine"


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"state": "fine"},
        {"state": ["kept"]},
        {"state": "kept", "files": [{"name": "../../etc/passwd"}, {"name": 5}, 7]},
        {"state": "kept", "files": 3, "frames": {"a": 1}, "limit": -1, "left": True},
        {"state": "kept", "frames": [{"kind": [], "function": "x" * 999, "line": 2**70}] * 99},
        {"state": "piped", "detail": "\x1b[31m\ud800" + "z" * 5000, "tool": {}, "noFrames": []},
        {
            "state": "kept",
            "files": [{"name": "core.1", "sha256": "x", "signal": 900, "pid": -1}] * 50,
        },
    ],
)
def test_a_report_that_a_job_wrote_never_makes_its_end_invalid(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    (tmp_path / "cores").mkdir()
    (tmp_path / "cores" / "cores.json").write_text(json.dumps(said))
    found = report_file.read_report(str(tmp_path))
    if found is None:
        assert said.get("state") not in report_file.STATES[:1]
        return
    report = msgspec.convert(json.loads(json.dumps(found)), CoreReport)
    assert not any("/" in file.name for file in report.files)
    assert all(text.isprintable() for text in report.sentences())
    msgspec.json.encode(report)


def test_each_state_has_a_sentence() -> None:
    states = CoreState.__args__  # type: ignore[attr-defined]
    assert set(states) == {*SENTENCES, "kept"} == set(report_file.STATES)
    of_nodes = NodeState.__args__  # type: ignore[attr-defined]
    assert set(of_nodes) == {*NODE_SENTENCES} == set(report_file.NODE_STATES)
    for state in SENTENCES:
        (line,) = CoreReport(state=state, detail="D", limit=5).sentences()  # type: ignore[arg-type]
        assert "{" not in line and line[0].islower()


def test_the_place_of_a_crash_names_the_native_frame_and_its_caller() -> None:
    def frame(kind: str, function: str, file: str, line: int) -> Frame:
        return Frame(kind=kind, function=function, file=file, line=line)  # type: ignore[arg-type]

    python, native = (
        frame("python", "main", "/a/x.py", 7),
        frame("native", "crash_here", "extension.c", 12),
    )
    said = "crashed in extension.c:12 crash_here, called from x.py:7 in main"
    assert CoreReport(state="kept", frames=(python, native)).crash() == said
    assert CoreReport(state="kept", frames=(python,)).crash() == "crashed in x.py:7 main"
    unknown = (native, frame("native", "??", "", 0))
    assert (
        CoreReport(state="kept", frames=unknown).crash() == "crashed in extension.c:12 crash_here"
    )
    assert CoreReport(state="kept").crash() is None
    nameless = frame("native", "???", "libffi.so.8", 0)
    assert CoreReport(state="kept", frames=(nameless,)).crash() == "crashed in libffi.so.8"
