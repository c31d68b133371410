"""Write an archive of a root of this version: `make_golden_root.py OUT.tar.xz`. Needs root and
Linux.

A real supervisor runs jobs of every kind. Then everything is killed while two jobs run. `OUT.json`,
beside the archive, holds the answers of that supervisor for `test_golden_root.py`. Namespaces hide
the names of host, boot and folders, so an archive contains no name of this machine.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import supervisor_process
from golden_root import (
    PLACE,
    answers,
    command,
    exits,
    log_length,
    pack,
    results,
    sign_in,
    traces,
)
from supervisor_process import SupervisorProcess, jid_of, until

from jobscribe.db.maintenance.verification import check

REPOSITORY = Path(__file__).resolve().parents[3]
HOST, BOOT = "golden", "00000000-0000-4000-8000-000000000001"
#: In the namespace: the virtual environment, and the folder that contains the package.
STAGE = Path("/mnt/jobscribe")
#: Set in the namespaces: the real names of host, boot and folders, one per line.
INSIDE = "GOLDEN_ROOT_HIDES"
#: Further texts that no file of an archive may contain.
FOREIGN = ("/work/", "/home/", "/sys/fs/cgroup", "jobscribe-link", "SSH_")
UID = "GoldenU1"
SETS = (
    # two sequential runs fill these slots, so a third run is pending
    "slots.local_sequential=2",
    "slots.local_parallel=1",
    "slots.op_run=4",
    "resources.local_cpu=8",
    "resources.local_memory_mb=4000",
    # the paths of cgroups would name this machine
    "keeper.cgroups=off",
)
PURGE = ("purge.after_secs=0.5", "purge.every_secs=0.1")
#: The target fails as soon as this file exists.
FAILS = PLACE / "fails"
TARGETS = f"targets:\n  - {{name: pager, command: [/usr/bin/test, '!', -e, {FAILS}]}}\n"


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".tar.xz"):
        sys.exit("usage: make.py OUT.tar.xz")
    if INSIDE in os.environ:
        make(Path(sys.argv[1]))
        return 0
    if os.geteuid() != 0:
        sys.exit("make.py needs root, because it hides the names of this machine in namespaces")
    if PLACE.exists():
        sys.exit(f"{PLACE} exists. Remove it first: rm -r {PLACE}")
    PLACE.mkdir(mode=0o700)
    try:
        return run_inside(os.path.abspath(sys.argv[1]))
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)


def run_inside(out: str) -> int:
    """Run this script in namespaces where host, boot, checkout and environment have other names."""
    (PLACE / "boot_id").write_text(BOOT + "\n")
    script = STAGE / "lib/jobscribe" / Path(__file__).resolve().relative_to(REPOSITORY)
    entering = f"""
        set -e
        hostname {HOST}
        mount --bind {PLACE}/boot_id /proc/sys/kernel/random/boot_id
        mount -t tmpfs none /mnt
        mkdir -p {STAGE}/venv {STAGE}/lib/jobscribe
        mount --bind "$1" {STAGE}/venv
        mount --bind "$2" {STAGE}/lib/jobscribe
        exec {STAGE}/venv/bin/python {script} "$3"
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    env = {
        INSIDE: "\n".join((os.uname().nodename, boot, sys.prefix, str(REPOSITORY))),
        "PATH": "/usr/bin:/bin",
        "HOME": "/",
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{STAGE}/lib",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = ["sh", "-c", entering, "sh", sys.prefix, str(REPOSITORY), out]
    done = subprocess.run(["unshare", "--mount", "--uts", *words], env=env, check=False, cwd="/")
    return done.returncode


# ---- inside the namespaces


def make(out: Path) -> None:
    """Fill a root, kill everything that runs there, and write the archive and its answers."""
    # a binary file contains any short word by chance
    hidden = [name for name in os.environ.pop(INSIDE).splitlines() if len(name) > 4]
    # a supervisor refuses the reqIds of the last 24 hours, and tests count theirs from 1
    supervisor_process._numbers = itertools.count(1_000_000)
    site = SupervisorProcess(SETS)
    site.place.rmdir()
    site.place, site.root = PLACE, PLACE / "r"
    try:
        recorded = fill(site)
        if found := traces(site.root, json.dumps(recorded), (*FOREIGN, *hidden)):
            sys.exit("the archive would name this machine:\n" + "\n".join(found))
        pack(site.root, out)
    finally:
        site.end()
    text = json.dumps(recorded, indent=1, sort_keys=True)
    out.with_name(out.name.replace(".tar.xz", ".json")).write_text(text + "\n")
    print(f"{out}: {out.stat().st_size} bytes, {recorded['events']} events")


def fill(site: SupervisorProcess) -> dict[str, Any]:
    """Run all jobs and kill all processes. Return the answers.

    Afterwards the root is as a crash leaves it.
    """
    restart(site, *PURGE)
    purged = run("gpurged1", "echo gone")
    site.finished(purged)
    until(lambda: "RunPurged" in site.story(purged), "the run is purged")

    restart(site)
    again = run("gagain01", "echo first; echo of old >&2; exit 2")
    site.finished(run("gfolded1", "echo folded"))
    site.finished(again)
    site.finished(gang("gfolded2", role("a", "echo a", tasks=2), role("b", "sleep 0.2; exit 1")))
    site.stop()
    command(site.root, "db", "compact", "--older-than", "0", "--no-keep")

    (PLACE / "notify.yml").write_text(TARGETS)
    (PLACE / "notify.yml").chmod(0o600)
    restart(site, f"notify.file={PLACE}/notify.yml")
    site.finished({**again, "computeJobHash": "second", "command": shell("echo second; exit 4")})
    good = run("gcomplet", "echo to stdout; echo to stderr >&2; echo x > result.txt")
    site.finished(good)
    report = app("gmyapp01")
    serial = site.finished(report)["computeJobSerial"]
    run_failures(site)
    run_roles(site)
    run_dependencies(site)
    run_array(site)
    until(lambda: not waiting(site), "all notifications are delivered")
    FAILS.touch()
    untold = run("guntold1", "echo nobody was told")
    site.finished(untold)
    until(lambda: kept(site)["waiting"], "the notification waits")
    live = begin_unfinished(site)

    jids = sorted(row["jid"] for row in site.post("job-list", limit=1000)["jobs"])
    recorded = {
        "root": str(site.root),
        "uid": UID,
        "completed": good,
        "again": again,
        "live": live,
        "untold": jid_of(untold),
        "over": {jid: answers(site, jid) for jid in jids if jid not in live.values()},
        "app": jid_of(report),
        "results": results(site, jid_of(report), serial),
        "list": json.loads(command(site.root, "--json", "job", "list", "--all-users")),
        "signIn": sign_in(site.root, UID, "ann"),
    }
    until(lambda: not check(site.root).records_behind, "the records are written")
    kill(site)
    return {**recorded, "events": log_length(site.root)}


def run_failures(site: SupervisorProcess) -> None:
    site.finished(run("gfailed1", "echo bad >&2; exit 3"))
    site.finished(run("gsignal1", "kill -KILL $$"))
    slow = "echo begun; exec sleep 1000"
    site.finished(run("glimit01", slow, timeLimitSecs=0.5, graceSecs=0.5))
    canceled = run("gcancel1", slow, graceSecs=1.0)
    site.submit(canceled)
    site.running(canceled)
    site.cancel(canceled, reason="enough")
    site.wait(canceled)


def run_roles(site: SupervisorProcess) -> None:
    """Two roles, two attempts, and a hold that is released."""
    server, worker = "echo serves; exec sleep 1000", "echo works"
    roles = (role("ps", server), role("worker", worker, tasks=2, minSucceeded=2))
    site.finished(gang("groles01", *roles, graceSecs=1.0))
    flaky = "echo attempt; [ -e ../../tried ] || { touch ../../tried; exit 5; }"
    roles = (role("main", flaky, minSucceeded=1), role("side", "exec sleep 1000"))
    site.finished(gang("gretry01", *roles, retry={"count": 1}, graceSecs=1.0))

    held = gang("gheld001", role("main", "echo here; exit 3"), debugSecs=600.0)
    site.submit(held)
    until(lambda: site.status(held)["queueState"] == "debug_hold", "the task is held")
    site.post("run-release", uid=UID, computeJid=jid_of(held))
    site.wait(held)


def run_dependencies(site: SupervisorProcess) -> None:
    gate = PLACE / "submitted"
    first = run("gbefore1", f"until [ -e {gate} ]; do sleep 0.05; done; exit 1")
    follows = run("gafter01", "echo after", after=[{"computeJid": jid_of(first), "on": "failed"}])
    never = run("gafter02", "echo never", after=[{"computeJid": jid_of(first), "on": "ok"}])
    for one in (first, follows, never):
        site.submit(one)
    gate.touch()
    for one in (first, follows, never):
        site.wait(one)


def run_array(site: SupervisorProcess) -> None:
    array = run("garray01", "echo $ARRAY_INDEX; exit $ARRAY_INDEX")
    site.post("run-array", reqId="golden-array", run=array, indices="0-2")
    asked = {"uid": UID, "simulationId": "garray01", "limit": 0}
    until(lambda: site.post("job-group", **asked)["over"], "the array is over")


def begin_unfinished(site: SupervisorProcess) -> dict[str, str]:
    """Start the runs that the kill interrupts. Return their computeJids.

    left: no process observes its end. alone: it ends while no supervisor runs. pending: it waits
    for a slot.
    """
    left = run("gleft001", "echo begun; exec sleep 1000")
    waiting = f"until [ -e {PLACE}/gate ]; do sleep 0.05; done"
    alone = run("galone01", f"echo begun; {waiting}; echo ended; exit 6")
    pending = run("gpending", "echo ran at last")
    for one in (left, alone):
        site.submit(one)
        site.running(one)
    site.submit(pending)
    until(lambda: site.status(pending)["queueState"], "the third run is queued")
    return {"left": jid_of(left), "alone": jid_of(alone), "pending": jid_of(pending)}


def kill(site: SupervisorProcess) -> None:
    """Kill the supervisor. After one run has ended, kill keepers, agents and jobs."""
    known = len(exits(site.root))
    site.stop(signal.SIGKILL)
    (PLACE / "gate").touch()
    until(lambda: len(exits(site.root)) > known, "the keeper has written the exit")
    ours = (b"jobscribe keeper", b"jobscribe agent")
    while there := site.everybody():
        # keepers first: a live keeper would write the exit of the job that is killed
        for pid in sorted(there, key=lambda pid: not there[pid].startswith(ours)):
            with contextlib.suppress(ProcessLookupError):
                site.kill(pid)


def waiting(site: SupervisorProcess) -> bool:
    """Return whether the notification of a run's end is still undelivered."""
    rows = site.post("job-list", limit=1000)["jobs"]
    last = max(row["position"] for row in rows if not row["busy"])
    return bool(kept(site)["cursor"] < last or kept(site)["waiting"])


def kept(site: SupervisorProcess) -> dict[str, Any]:
    """Return the cursor of the target and its waiting notifications, as they are stored on disk."""
    stored = json.loads((site.root / "notifications.json").read_bytes())
    pager: dict[str, Any] = stored["targets"]["pager"]
    return pager


def restart(site: SupervisorProcess, *sets: str) -> None:
    """Start the supervisor with these settings in addition to SETS."""
    if site.process is not None:
        site.stop()
    site._sets = (*SETS, supervisor_process.PROFILE + "=0", *sets)
    site.start()


# ---- runs


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def run(sid: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"uid": UID, "simulationId": sid, "command": shell(text), **fields}


def role(name: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": shell(text), **fields}


def gang(sid: str, *roles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    own = {"uid": UID, "simulationId": sid, "roles": list(roles), "jobRunMode": "parallel"}
    return {**own, **fields}


def app(sid: str) -> dict[str, Any]:
    model = "heightWeightReport"
    names = {"simulationType": "myapp", "simulationId": sid}
    data = {**names, "report": model, "models": {model: {"breed": "Pug"}}}
    return {"uid": UID, **names, "computeModel": model, "data": data}


if __name__ == "__main__":
    sys.exit(main())
