"""A disk that is really full, really read-only, or slow: requests are refused with a code, jobs
continue, and the supervisor recovers without a restart.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import strace_calls
from consistency_check import check_books
from failing_calls import Fault
from running_jobs import LongJob, ask, refused
from supervisor_process import SupervisorProcess, jid_of, req_id, shell, until

Make = Callable[..., SupervisorProcess]
DISK_BYTES = 4 * 1024 * 1024
#: Seconds until a refused request is accepted again: a pause of 1 s and a check every 0.5 s, times
#: 5.
RECOVERY_SECS = 5 * 1.5
#: The longest time that the event loop may be blocked, times 5.
QUICK_SECS = 5 * 0.05


@pytest.fixture
def small_disk(make_site: Make) -> Iterator[SupervisorProcess]:
    """A site whose root has its own disk of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk of 4 MB: run this as root")
    site = make_site("slots.local_sequential=3")
    site.root.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(site.root)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(
            f"no disk can be mounted here ({mounted.stderr.strip()}): a container needs --cap-add SYS_ADMIN"
        )
    try:
        yield site
    finally:
        left = site.end()
        subprocess.run(["umount", "--lazy", str(site.root)], check=True)
        shutil.rmtree(site.place)
        assert left == {}


def fill(ballast: Path) -> None:
    """Fill the disk to the last byte."""
    with ballast.open("ab", buffering=0) as f:
        for size in (65536, 4096, 512, 1):
            try:
                while f.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


@pytest.mark.timeout(120)
def test_a_full_disk_refuses_by_name_and_all_is_well_when_there_is_room(
    small_disk: SupervisorProcess,
) -> None:
    site = small_disk.start()
    pid, long, ender = (
        site.pid,
        LongJob(site),
        shell(f"until [ -e {small_disk.place}/end ]; do sleep 0.05; done; exit 3"),
    )
    site.submit(ender)
    site.running(ender)
    fill(site.root / "ballast")
    acknowledged: dict[str, int] = {}
    requests = [(shell("exit 0"), req_id()) for _ in range(300)]
    for run, request in requests:
        answer = ask(site, run, request)
        if answer.code != 200:
            refused(answer, "storageUnavailable")
            break
        acknowledged[jid_of(run)] = answer.json()["computeJobSerial"]
    else:
        pytest.fail("the disk was never full")
    until(lambda: site.ask("GET", "/readyz").code == 503, "it says that it is not ready")
    (site.place / "end").touch()  # the job ends while nothing can be written
    for _ in range(5):
        long.check()
        assert site.status(ender)["state"] == "running"  # durable states only
    again = ask(site, run, request)
    if again.code != 200:
        refused(again, "storageUnavailable")

    (site.root / "ballast").unlink()
    until(lambda: ask(site, run, request).code == 200, "it accepts runs again", RECOVERY_SECS)
    assert (site.wait(ender)["state"], site.status(ender)["exit"]["code"]) == ("error", 3)
    for jid, serial in acknowledged.items():
        assert site.post("run-status", uid=jid[:8], computeJid=jid)["computeJobSerial"] == serial
    until(lambda: site.ask("GET", "/readyz").code == 200, "it is ready")
    long.check()
    long.let_go()
    assert site.pid == pid and site.process is not None and site.process.poll() is None
    check_books(site)
    assert site.stop() == 0


def test_a_start_on_a_read_only_disk_says_so_and_the_next_one_finds_everything(
    small_disk: SupervisorProcess,
) -> None:
    site = small_disk.start()
    run = shell("exit 0")
    serial = site.finished(run)["computeJobSerial"]
    check_books(site)
    assert site.stop() == 0
    until(lambda: not site.titled("keeper"), "the idle keeper has ended")
    remount(site.root, "ro")
    (site.place / "up.log").write_text("")
    process = site.launch()
    out, _ = process.communicate(timeout=20)
    said = site.log()
    assert (
        process.returncode > 0
        and out == b""
        and "Traceback" not in said
        and "Read-only file system" in said
    ), said
    remount(site.root, "rw")
    site.start()
    assert site.status(run)["computeJobSerial"] == serial
    check_books(site)


def remount(path: Path, how: str) -> None:
    until(
        lambda: (
            subprocess.run(
                ["mount", "-o", f"remount,{how}", str(path)], capture_output=True
            ).returncode
            == 0
        ),
        f"it is mounted {how}",
    )


def test_on_a_slow_disk_answers_that_need_it_wait_and_the_others_do_not(make_site: Make) -> None:
    strace_calls.required()
    site = make_site().start()
    run = shell("exit 0")
    site.finished(run)
    waited: list[float] = []

    def submit() -> None:
        connection = site.connection()
        for _ in range(3):
            began = time.monotonic()
            body = json.dumps({"reqId": req_id(), "run": shell("exit 0")})
            connection.request(
                "POST", "/api/run-simulation", body, {"Authorization": "Bearer " + site.token}
            )
            assert connection.getresponse().read()
            waited.append(time.monotonic() - began)
        connection.close()

    delay = 0.4
    files = [site.root / "db" / name for name in ("events.sqlite", "events.sqlite-wal")]
    fault = Fault(
        site.pid, "fdatasync", f"delay_enter={int(delay * 1e6)}", "1+", files, site.place / "struck"
    )
    thread = threading.Thread(target=submit)
    thread.start()
    quick: list[float] = []
    while thread.is_alive():
        began = time.monotonic()
        assert site.status(run)["state"] == "completed"
        quick.append(time.monotonic() - began)
    thread.join()
    assert fault.end()
    assert len(waited) == 3 and min(waited) >= delay * 0.9, waited
    assert len(quick) > 20 and max(quick) < QUICK_SECS, sorted(quick)[-5:]
    check_books(site)
