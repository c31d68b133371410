"""Golden roots: archives of data directories that released versions wrote.

Pack and unpack an archive, and ask a supervisor for all answers that must survive an upgrade.
`make_golden_root.py` and `test_golden_root.py` share this module. It holds no test.
"""

import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supervisor_process import SupervisorProcess, run_command

from jobscribe.web.sign_in.login_sessions import Sessions

FOLDER = Path(__file__).parents[1] / "golden_roots"
#: Holds each root while its archive is made. The log stores absolute run directories, so a run that
#: was pending then keeps its run directory here, even if the root was moved.
PLACE = Path("/tmp/golden-root")
#: Parts of a root that no archive holds: logs, and files of a supervisor that runs.
LEFT_OUT = ("log", "supervisor.lock", "client.json", "agents.json")
#: Fields of `run-status` that no later version may change for a run that is over.
STATUS_FIELDS = (
    "state",
    "reason",
    "error",
    "exit",
    "attempt",
    "over",
    "roles",
    "computeJobSerial",
    "computeJobHash",
    "computeJobQueued",
    "computeJobStart",
    "computeJobEnd",
)
#: The same for a row of `job-tasks`.
TASK_FIELDS = ("role", "index", "attempt", "state", "exit")


# ---- archives


def pack(root: Path, archive: Path) -> None:
    """Write a tar.xz of `root`. The same files give the same bytes. All owners are 0."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in packed_files(root):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = int(info.mtime)
            if path.is_file() and not path.is_symlink():
                # a hard link would depend on the order of the files
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
                with path.open("rb") as f:
                    tar.addfile(info, f)
            else:
                tar.addfile(info)
    archive.write_bytes(lzma.compress(held.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def packed_files(root: Path) -> list[Path]:
    """Return the folders, plain files and symbolic links that an archive holds, sorted."""
    found = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if name.parts[0] in LEFT_OUT or name.match("agent/*/*.log"):
            continue
        if path.is_symlink() or path.is_dir() or path.is_file():
            found.append(path)
    return found


def unpack(archive: Path, root: Path) -> None:
    """Unpack into `root`, which must not exist. All files belong to the user of this process."""
    root.mkdir(mode=0o700)
    with tarfile.open(archive, "r:xz") as tar:
        # Roots have absolute links, which the default filter of newer Pythons refuses.
        tar.extraction_filter = lambda member, path: member
        members = tar.getmembers()
        for member in members:
            member.uid, member.gid = os.getuid(), os.getgid()
        tar.extractall(root, members)


def traces(root: Path, answers: str, texts: Iterable[str]) -> list[str]:
    """Return a sentence for each file of the archive, or `answers`, that contains one of `texts`.

    A text inside a longer word does not count.
    """
    words = [
        re.compile((r"\b" * t[0].isalnum() + re.escape(t) + r"\b" * t[-1].isalnum()).encode())
        for t in texts
    ]
    contents = {"answers": answers.encode()}
    for path in packed_files(root):
        if path.is_symlink():
            contents[f"{path} (link)"] = os.readlink(path).encode()
        elif path.is_file():
            contents[str(path)] = path.read_bytes()
    return [
        f"{name} contains {word.pattern!r}"
        for name, content in contents.items()
        for word in words
        if word.search(content)
    ]


# ---- a root without a supervisor


def command(root: Path, *words: str) -> str:
    """Return the output of a `jobscribe` command on `root`. The command must succeed."""
    done = run_command("--root", str(root), *words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def log_length(root: Path) -> int:
    """Return the number of events in the log."""
    return len(command(root, "db", "export").splitlines())


def records(root: Path) -> dict[str, bytes]:
    """Return the bytes of the records of all jobs, by computeJid."""
    return {path.stem: path.read_bytes() for path in root.glob("supervisor-job/*.json")}


def exits(root: Path) -> list[Path]:
    """Return the files that hold the exit info of executions, as keepers write it."""
    return list(root.glob("agent/*/run/*/exit.json"))


def sign_in(root: Path, uid: str, name: str) -> str:
    """Open a session that expires in 2096. Return its token, which is valid for this root only."""
    return Sessions(root / "sessions.json", wall=lambda: 4e9).open(uid, name)


# ---- answers of a supervisor


def answers(site: SupervisorProcess, jid: str) -> dict[str, Any]:
    """Return status, event types, tasks and output of a job."""
    asked = {"uid": jid.split("-")[0], "computeJid": jid}
    status = site.post("run-status", **asked)
    story = site.post("job-story", **asked)["events"]
    return {
        **{name: status[name] for name in STATUS_FIELDS if name in status},
        "events": [e["event"]["type"] for e in story],
        "attempts": [_tasks(site, asked, n + 1) for n in range(status["attempt"] or 0)],
    }


def _tasks(site: SupervisorProcess, asked: dict[str, Any], attempt: int) -> list[dict[str, Any]]:
    rows = site.post("job-tasks", attempt=attempt, **asked)["tasks"]
    return [
        {
            **{name: row[name] for name in TASK_FIELDS if name in row},
            "output": _output(site, {**asked, "attempt": attempt}, row),
        }
        for row in rows
    ]


def _output(site: SupervisorProcess, asked: dict[str, Any], task: dict[str, Any]) -> dict[str, str]:
    """Return the text of each stream of one task."""
    where = {**asked, "role": task["role"], "index": task["index"]}
    texts = {}
    for stream in ("stdout", "stderr"):
        answer = site.ask("POST", "/api/job-log", json.dumps({**where, "stream": stream}).encode())
        texts[stream] = answer.body.decode() if answer.code == 200 else f"HTTP {answer.code}"
    return texts


def results(site: SupervisorProcess, jid: str, serial: int) -> dict[str, Any]:
    """Return the report, a download and the file sizes of a run of myapp."""
    of_run = {"uid": jid.split("-")[0], "computeJid": jid, "computeJobSerial": serial}
    call = {"simulationType": "myapp", **of_run}
    report = site.post("call", jobCmd="sequential_result", **call)
    named = site.post("call", jobCmd="download_run_file", args={"suffix": "csv"}, **call)["name"]
    body = json.dumps({**of_run, "name": named}).encode()
    file = site.ask("POST", "/api/run-file", body)
    assert file.code == 200, file.body
    listed = site.post("run-files", **of_run)["files"]
    return {
        "report": json.dumps(report, sort_keys=True),
        "file": file.body.decode(),
        "sizes": {row["name"]: row["size"] for row in listed},
    }


def differences(recorded: Any, now: Any, path: str = "") -> list[str]:
    """Return a sentence for each recorded value that differs now. New fields do not count."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        found = []
        for name, value in recorded.items():
            if name in now:
                found += differences(value, now[name], f"{path}.{name}")
            else:
                found.append(f"{path}.{name} is missing, it was {value!r}")
        return found
    if isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        pairs = enumerate(zip(recorded, now, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{path}[{n}]")]
    return [] if recorded == now else [f"{path} is {now!r}, it was {recorded!r}"]
