"""Profiles never change how a job ends, and are listed, fetched and opened by its user.

The table of ends is the one of docs/profiles.md: each row is a run of one job array.
"""

import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, req_id, spec, until

from jobscribe.cli.main import call
from jobscribe.client import Client, ClientError

pytestmark = pytest.mark.process

SID = "profiles"
#: The work of each row, then its end. It uses 60 ms of CPU time, or more until its profile begins.
PROGRAM = """
import os, signal, subprocess, sys, threading, time
def recorded():
    folder = os.environ["JOBSCRIBE_PROFILE_DIR"]
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return "cpu" not in os.environ["JOBSCRIBE_PROFILE"] or any(f"-{os.getpid()}-" in n for n in names)
def work():
    end = time.process_time() + 0.06
    while time.process_time() < end or not recorded():
        sum(range(1000))
def in_a_thread():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print(threading.active_count())
def forked():
    child = os.fork()
    work()
    if child == 0:
        os._exit(6)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
def terminated(handler):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if handler:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    work()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
ENDS = [
    lambda: work(),
    lambda: (work(), sys.exit(3)),
    lambda: (work(), sys.exit("a text")),
    lambda: (work(), 1 / 0),
    lambda: terminated(False),
    lambda: terminated(True),
    lambda: (work(), os.kill(os.getpid(), signal.SIGKILL)),
    lambda: (work(), os._exit(4)),
    lambda: (work(), os.abort()),
    lambda: (work(), os.execv("/bin/sh", ["sh", "-c", "echo replaced; exit 5"])),
    forked,
    in_a_thread,
]
ENDS[int(os.environ["ARRAY_INDEX"])]()
"""
#: (code, signal, output, end of the error output, processes) of each row.
ENDS: list[tuple[int | None, int | None, bytes, bytes, int]] = [
    (0, None, b"", b"", 1),
    (3, None, b"", b"", 1),
    (1, None, b"", b"a text\n", 1),
    (1, None, b"", b"ZeroDivisionError: division by zero\n", 1),
    (None, signal.SIGTERM, b"", b"", 1),
    (7, None, b"", b"", 1),
    (None, signal.SIGKILL, b"", b"", 1),
    (4, None, b"", b"", 1),
    (None, signal.SIGABRT, b"", b"", 1),
    (5, None, b"replaced\n", b"", 1),
    (6, None, b"", b"", 2),
    (0, None, b"1\n", b"", 1),
]
SOAK = os.environ.get("SOAK") == "1"


@pytest.mark.parametrize(
    "option",
    [
        "cpu",
        *(
            pytest.param(o, marks=pytest.mark.soak("the row `cpu`"))
            for o in ("cpu=cprofile", "mem")
        ),
    ],
)
def test_exit_codes_signals_and_output_do_not_change(
    make_site: Callable[..., SupervisorProcess], option: str
) -> None:
    site = make_site("slots.local_sequential=4", "slots.op_run=4")
    site.start()
    run = {
        "uid": UID,
        "simulationId": SID,
        "command": [sys.executable, "-c", PROGRAM],
        "profile": option,
    }
    site.post("run-array", reqId=req_id(), run=run, indices=f"0-{len(ENDS) - 1}")
    with Client.from_root(site.root, uid=UID) as client:
        for index, (code, number, output, error, processes) in enumerate(ENDS):
            one = {**run, "computeModel": f"command_{index}"}
            ended = site.wait(one)
            assert (ended["exit"]["code"], ended["exit"]["signal"]) == (code, number), index
            assert site.output(one).body == output, index
            assert site.output(one, "stderr").body.endswith(error), index
            names = [f["name"] for f in client.files(jid_of(one))]
            assert len(names) == processes or option == "mem", (index, names)


#: The hook of the debugger and the recorder run one after the other, then the site's own.
BOTH = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\nraise ValueError('unlucky')"


def command(
    site: SupervisorProcess, capfd: pytest.CaptureFixture[str], *words: str
) -> tuple[int, Any, str]:
    """Return exit code, JSON value and messages of a command line."""
    code = call(["--uid", UID, "--root", str(site.root), "--json", "profile", *words])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else None, err


def test_profiles_are_listed_fetched_opened_and_expire(
    make_site: Callable[..., SupervisorProcess],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = make_site("slots.local_sequential=4", "slots.op_run=4", "retention.profiles_secs=1")
    site.start()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    debug = {"JOBSCRIBE_DEBUG": "on-error", "JOBSCRIBE_DEBUG_SECS": "0.1"}
    go = site.place / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    both = spec([sys.executable, "-c", BOTH], env=debug, profile="cpu=sampler")
    curve = spec([sys.executable, "-c", waits], profile="mem")
    detail = spec([sys.executable, "-c", "print(1)"], profile="mem=memray")
    gpus = spec(["true"], profile="gpu")
    for run in (both, curve, detail, gpus):
        site.submit(run)

    # while the job runs
    def listed(run: dict[str, Any]) -> list[dict[str, Any]]:
        return command(site, capfd, "list", jid_of(run))[1]["items"]

    site.running(curve)
    until(lambda: [i for i in listed(curve) if i["size"] > 0], "a sample is taken")
    (recording,) = listed(curve)
    assert (recording["tool"], recording["state"]) == ("mem-samples", "recording")
    site.kill(site.agent_pid())
    size = listed(curve)[0]["size"]
    until(lambda: listed(curve)[0]["size"] > size, "the next agent continues the curve")
    go.touch()
    assert site.wait(curve)["exit"]["code"] == 0
    assert listed(curve)[0]["state"] == "complete"

    # unavailable profiles have a reason, and the job is as without
    assert (site.wait(detail)["exit"]["code"], site.output(detail).body) == (0, b"1\n")
    assert site.wait(gpus)["exit"]["code"] == 0
    (note,) = listed(detail)
    assert note["state"] == "unavailable" and "pip install memray" in note["reason"], note
    (note,) = listed(gpus)
    assert note["state"] == "unavailable" and note["reason"], note

    # with a debugger
    assert site.wait(both)["exit"]["code"] == 1
    assert b"nobody attached within 0.1 s" in site.output(both, "stderr").body
    (profile,) = listed(both)
    assert (profile["tool"], profile["overhead"]) == ("cpu-sampler", "about 2 %")

    # copies
    folder = tmp_path / "copies"
    fetch = ("fetch", jid_of(both), "-o", str(folder))
    code, value, _ = command(site, capfd, *fetch)
    copy = Path(value["items"][0]["path"])
    assert code == 0 and "<module> (<string>:1)" in copy.read_text()
    assert command(site, capfd, *fetch)[0] == 0  # it is there already
    copy.write_text("mine")
    code, value, error = command(site, capfd, *fetch, profile["name"])
    assert code == 125 and "it was kept" in error and copy.read_text() == "mine"
    code, value, error = command(site, capfd, *fetch, "nothing")
    assert code != 0 and value is None and "no profile with the name nothing" in error

    # pages
    for run, word in ((both, "&lt;module&gt; (&lt;string&gt;:1)"), (curve, "memory, MiB")):
        code, value, _ = command(site, capfd, "open", jid_of(run), "--no-browser")
        page = Path(value["path"])
        assert code == 0 and stat.S_IMODE(page.stat().st_mode) == 0o600
        assert word in page.read_text() and "src=" not in page.read_text()

    # only its user sees them, on the disk and over HTTP
    place = site.root / "user" / UID
    files = place.rglob("jobscribe-profiles/**/*")
    modes = {stat.S_IMODE(p.stat().st_mode) for p in files if p.is_file()}
    assert modes == {0o600}
    with (
        Client.from_root(site.root, uid="SystemU2") as other,
        pytest.raises(ClientError, match="there is no job"),
    ):
        list(other.files(jid_of(both)))

    # retention
    swept = ("--root", str(site.root), "retention", "--now")
    until(
        lambda: call([*swept]) == 0 and not list(place.rglob("jobscribe-profiles/*")),
        "profiles of ended runs go",
    )
    capfd.readouterr()
    assert site.output(both).code == 200
    code, value, error = command(site, capfd, "open", jid_of(both))
    assert code != 0 and "has no profile" in error
