"""The shipped units, under a real systemd as process 1 of its own machine, installed with the
commands of docs/operations.md.

Jobs survive every action on the service: the process keeps its pid and start time. Their later
status is correct.
"""

import json
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from systemd_machine import (
    ROOT,
    SERVER,
    STATE,
    SUPERVISOR,
    UID,
    WAITS,
    Job,
    Machine,
    recipes,
    until,
)

from jobscribe.cli.services.startup import EXIT_CONFIG
from jobscribe.runtime.log.session_folders import log_files

pytestmark = pytest.mark.timeout(120)

#: Seconds; short, but long enough for a supervisor on a very busy machine.
WATCHDOG_SECS = 4
WATCHED = f"[Service]\nWatchdogSec={WATCHDOG_SECS}\n"
HOOK = f'''
def user(request):
    return "{UID}" if request.headers.get("X-Test-User") else None
'''


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine("jobscribe")
    try:
        made.up().install()
        yield made
    finally:
        made.down()


@pytest.fixture
def job(machine: Machine) -> Iterator[Job]:
    """Start a job that runs until released, then exits with code 7."""
    made = Job(machine, WAITS).running()
    yield made
    made.let_go()


def ended_well(job: Job) -> None:
    """Release the job; its own exit is the reported outcome."""
    job.let_go()
    said = job.over()
    assert (said["state"], said["reason"], said["exit"]["code"], said["exit"]["source"]) == (
        "error",
        "exit",
        7,
        "keeper",
    ), said


def new_main(machine: Machine, old: int, unit: str = SUPERVISOR) -> int:
    """Return the pid of the main process that systemd has started instead, once it is ready."""

    def look() -> int | None:
        now = machine.main_pid(unit)
        return (
            now if now not in (0, old) and machine.shows("ActiveState", unit) == "active" else None
        )

    return int(until(look, f"{unit} has another main process"))


# ---- starting and stopping


def test_start_returns_when_requests_are_answered_and_not_before(machine: Machine) -> None:
    machine.systemctl("stop")
    machine.systemctl("start")
    assert machine.ask("GET", "/readyz", headers={}) == (
        200,
        machine.ask("GET", "/readyz", headers={})[1],
    )
    assert Job(machine, "true").over()["state"] == "completed"


def test_a_restart_leaves_jobs_alone_and_they_are_adopted(machine: Machine, job: Job) -> None:
    before, restarts = machine.main_pid(), machine.shows("NRestarts")
    machine.systemctl("restart")
    assert machine.main_pid() not in (0, before) and machine.shows("NRestarts") == restarts
    assert job.lives()
    until(lambda: job.status()["known"], "it is known again")
    assert (job.status()["state"], job.lives()) == ("running", True)
    ended_well(job)


def test_a_stop_ends_the_supervisor_alone_and_a_start_tells_what_happened_meanwhile(
    machine: Machine, job: Job
) -> None:
    stays = Job(machine, WAITS).running()
    keepers, began = machine.titled("keeper"), time.monotonic()
    machine.systemctl("stop")
    assert time.monotonic() - began < 5 * 30  # TimeoutStopSec
    assert (machine.shows("ActiveState"), machine.shows("Result")) == ("inactive", "success")
    assert machine.titled("supervisor") == [] and machine.titled("template") == []
    assert machine.titled("keeper") == keepers != []
    assert job.lives() and stays.lives()
    job.let_go()
    until(lambda: not job.lives(), "it ends while nobody is there")
    machine.systemctl("start")
    ended_well(job)
    assert stays.lives()
    ended_well(stays)


def test_a_killed_supervisor_is_started_again_by_itself(machine: Machine, job: Job) -> None:
    before, restarts = machine.main_pid(), int(machine.shows("NRestarts"))
    machine.systemctl("kill", "--signal=KILL", "--kill-who=main")
    new_main(machine, before)
    assert int(machine.shows("NRestarts")) == restarts + 1
    assert job.lives()
    ended_well(job)


def test_after_a_crash_jobs_still_get_a_cgroup_of_their_own(machine: Machine) -> None:
    """systemd removes empty cgroups below the unit's when it restarts the unit; a keeper must
    tolerate that.
    """

    def group() -> bool:
        told = Job(machine, "cat /proc/self/cgroup > seen")
        assert told.over()["state"] == "completed"
        return "/job-" in (told.folder / "seen").read_text()

    if not group():
        pytest.skip(
            "cgroups of version 2 cannot be delegated here: this kernel, or the container around this machine, has none"
        )
    before = machine.main_pid()
    machine.systemctl("kill", "--signal=KILL", "--kill-who=main")
    new_main(machine, before)
    assert group()


def test_a_supervisor_that_hangs_is_ended_by_the_watchdog_and_says_where_it_stood(
    machine: Machine, job: Job
) -> None:
    machine.drop_in("watchdog", WATCHED)
    machine.systemctl("restart")
    try:
        # systemd leaves a healthy supervisor alone
        before = machine.main_pid()
        time.sleep(WATCHDOG_SECS + 0.5)
        assert machine.main_pid() == before
        since = machine.cursor()
        machine.systemctl("kill", "--signal=STOP", "--kill-who=main")
        new_main(machine, before)
        said = "\n".join(machine.journal(since=since))
        assert "Watchdog timeout" in said and "Fatal Python error: Aborted" in said, said
        assert job.lives()
    finally:
        machine.drop_in("watchdog", "")
        machine.systemctl("restart")
    ended_well(job)


def test_a_job_that_takes_too_much_memory_costs_itself_only(machine: Machine, job: Job) -> None:
    if not (
        machine.at("/sys/fs/cgroup/memory").is_dir()
        or "memory" in machine.at("/sys/fs/cgroup/cgroup.controllers").read_text()
    ):
        pytest.skip(
            "cgroups cannot limit memory here: the container around this machine has no memory controller for it"
        )
    machine.drop_in("memory", "[Service]\nMemoryMax=400M\n")
    machine.systemctl("restart")
    try:
        main = machine.main_pid()
        said = Job(machine, "exec /opt/jobscribe/current/bin/python -c 'bytearray(1 << 30)'").over()
        assert (said["state"], said["reason"], said["exit"]["signal"]) == (
            "error",
            "signal",
            signal.SIGKILL,
        ), said
        assert machine.main_pid() == main and machine.shows("ActiveState") == "active"
        assert job.lives()
        assert Job(machine, "true").over()["state"] == "completed"
    finally:
        machine.drop_in("memory", "")
        machine.systemctl("restart")
    ended_well(job)


# ---- failing starts


def test_a_wrong_setting_is_one_sentence_and_no_second_try(machine: Machine, job: Job) -> None:
    file = machine.at("/etc/jobscribe.toml")
    right = file.read_text()
    try:
        file.write_text(right + "prot = 8001\n")
        since = machine.cursor()
        machine.systemctl("restart", code=1)
        assert (
            machine.shows("ActiveState"),
            machine.shows("ExecMainStatus"),
            machine.shows("NRestarts"),
        ) == ("failed", str(EXIT_CONFIG), "0")
        time.sleep(1.5)  # more than three times the RestartSec of these tests
        assert machine.shows("ActiveState") == "failed"
        assert machine.journal(since=since, own=True)[-2:] == [
            "jobscribe: /etc/jobscribe.toml:5: unknown setting 'supervisor.prot'; did you mean 'supervisor.port'?",
            "  correct the named setting",
        ]
        assert job.lives()
    finally:
        file.write_text(right)
        machine.systemctl("start")
    ended_well(job)


def test_what_passes_by_itself_is_tried_until_it_has_passed(machine: Machine) -> None:
    machine.systemctl("stop")
    taken = machine.socket(lambda: socket.create_server(("127.0.0.1", 8001)))
    try:
        since = machine.cursor()
        machine.systemctl("start", "--no-block")
        until(lambda: int(machine.shows("NRestarts")) >= 2, "it is tried again")
        assert (
            "jobscribe: port 8001 of 127.0.0.1 cannot be used: Address already in use"
            in machine.journal(since=since)
        )
    finally:
        taken.close()
    machine.serving()


# ---- journal and commands for operators


def test_status_says_how_things_stand(machine: Machine, job: Job) -> None:
    machine.drop_in("watchdog", WATCHED)
    machine.systemctl("restart")
    try:
        wanted = (
            "ready at http://127.0.0.1:8001: 1 tasks running, 0 runs queued, 1 agents connected"
        )
        until(lambda: machine.shows("StatusText") == wanted, "the status is told")
        assert f'Status: "{wanted}"' in machine.systemctl("status", "--no-pager", "--full")
    finally:
        machine.drop_in("watchdog", "")
        machine.systemctl("restart")
    ended_well(job)


HEAD = re.compile(r"\w{3} \d\d \d\d:\d\d:\d\d +\d+ +\d+ ")


def _own_lines(machine: Machine) -> list[str]:
    """Return the supervisor's own log lines, of all sessions."""
    return [
        line
        for file in log_files(str(machine.at(STATE)), "supervisor")
        for line in Path(file).read_text().splitlines()
    ]


def test_the_journal_has_every_line_once(machine: Machine) -> None:
    """Supervisor, keepers and agents also write files; that must not duplicate lines in the
    journal.
    """
    assert Job(machine, "true").over()["state"] == "completed"
    files = list(machine.at(f"{STATE}/agent").glob("*/agent.log"))

    def written_so_far() -> tuple[list[int], int]:
        return [f.stat().st_size for f in files], len(_own_lines(machine))

    def begins() -> tuple[str, list[int], int] | None:
        """Return where journal and files are, unless a line was written meanwhile."""
        sizes, before = written_so_far()
        since = machine.cursor()
        time.sleep(0.3)  # files are written after the journal
        if written_so_far() != (sizes, before) or machine.journal(since=since, own=True):
            return None
        return since, sizes, before

    since, sizes, before = until(begins, "nothing is logged")
    machine.systemctl("restart")
    assert Job(machine, "true").over()["state"] == "completed"
    machine.systemctl("restart")

    def in_files() -> Counter[str]:
        agents = [
            line
            for f, size in zip(files, sizes, strict=True)
            for line in f.read_bytes()[size:].decode().splitlines()
        ]
        # supervisor and agents send records to the journal, which adds time and pid itself
        lines = [*_own_lines(machine)[before:], *agents]
        return Counter(HEAD.sub("", line, count=1) for line in lines)

    # the restart's agents may still be writing
    written = in_files()
    journal = Counter(machine.journal(since=since, own=True))
    later = in_files()
    assert len(written) > 8 and any(line.startswith("agent/process.py:") for line in written)
    wrong = {
        line: (n, journal[line], later[line])
        for line, n in written.items()
        if not n <= journal[line] <= later[line]
    }
    assert not wrong
    assert journal[f"jobscribe ready at http://127.0.0.1:8001 root={STATE}"] == 2


def test_what_the_page_shows_for_the_night_and_for_maintenance_can_be_typed(
    machine: Machine, job: Job
) -> None:
    """Each command in those blocks succeeds while a job runs."""
    night, backup, offline = (
        next(r for r in recipes() if word in r)
        for word in ("readyz", "install -d -m 700", "db compact")
    )
    night = (
        night.replace("JOB ", job.jid + " ")
        .replace("ID ", job.jid + " ")
        .replace("curl -s", "true")
    )
    # bash aliases do not work in scripts
    alias = next(r for r in recipes() if "alias js=" in r).splitlines()[0]
    function = alias.replace("alias js='", "js() { ").rstrip("'") + ' "$@"; }\n'
    bundle = next(r for r in recipes() if "js bundle JOB" in r).replace("JOB ", job.jid + " ")
    said = machine.sh(function + night + bundle + backup + offline)
    assert "no fault" in said and "verified" in said and job.jid in said and "trace.txt" in said
    machine.serving()
    assert job.lives()
    ended_well(job)


def test_install_units_has_written_what_runs_and_an_edit_is_not_lost(machine: Machine) -> None:
    unit = machine.at(f"/etc/systemd/system/{SUPERVISOR}.service")
    shipped = (ROOT / "etc" / "systemd" / unit.name).read_text()
    assert (
        unit.read_text().startswith(shipped)
        and machine.shows("FragmentPath") == f"/etc/systemd/system/{unit.name}"
    )
    install = "/opt/jobscribe/current/bin/jobscribe install-units --config /etc/jobscribe.toml"
    assert "KillMode" not in machine.sh(install)  # nothing changes
    written = unit.read_text()
    try:
        unit.write_text(written.replace("TasksMax=infinity", "TasksMax=9999"))
        assert (
            "because edited" in machine.sh(install, code=None)
            and "TasksMax=9999" in unit.read_text()
        )
    finally:
        unit.write_text(written)
        machine.run("systemctl", "daemon-reload")


def test_the_journal_is_asked_by_unit_and_by_job(machine: Machine) -> None:
    """`journalctl -u` selects a unit; `journalctl JOBSCRIBE_JID=` returns only lines about that
    job, each with its field.
    """
    told, other = Job(machine, "true"), Job(machine, "true")
    assert told.over()["state"] == other.over()["state"] == "completed"

    def lines() -> list[dict[str, Any]]:
        machine.run("journalctl", "--sync")
        said = machine.run("journalctl", "-o", "json", "--no-pager", f"JOBSCRIBE_JID={told.jid}")
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    found = until(lines, "the journal has lines about the job")
    assert all(
        line["JOBSCRIBE_JID"] == told.jid and line["_SYSTEMD_UNIT"] == f"{SUPERVISOR}.service"
        for line in found
    )
    assert not [line for line in found if other.jid in str(line["MESSAGE"])]
    by_unit = "\n".join(machine.journal())
    assert all(str(line["MESSAGE"]).splitlines()[0] in by_unit for line in found)


def test_the_doctor_finds_service_journal_and_root_as_they_are(machine: Machine) -> None:
    as_user = "runuser -u jobscribe -- /opt/jobscribe/current/bin/jobscribe doctor --json --config /etc/jobscribe.toml"
    found = {
        who: json.loads(machine.sh(command, code=None).splitlines()[0])["items"]
        for who, command in (("jobscribe", as_user), ("root", as_user.partition("-- ")[2]))
    }

    def states(who: str, check: str) -> set[str]:
        return {i["state"] for i in found[who] if i["check"] == check}

    assert (
        states("jobscribe", "root")
        == states("jobscribe", "supervisor")
        == states("jobscribe", "config")
        == {"ok"}
    ), found["jobscribe"]
    assert "fail" in states("root", "root")  # it belongs to jobscribe
    assert any(
        "jobscribe-supervisor.service is active" in i["sentence"]
        for i in found["root"]
        if i["check"] == "systemd"
    ), found["root"]
    assert states("root", "journal") == {"ok"} and states("jobscribe", "journal") == {"warn"}, found


# ---- the front end


@pytest.fixture(scope="module")
def server(machine: Machine) -> Machine:
    (packages,) = machine.at("/opt/jobscribe").glob("[0-9]*/lib/python3*/site-packages")
    (packages / "test_site_users.py").write_text(HOOK)
    config = machine.at("/etc/jobscribe.toml")
    config.write_text(config.read_text() + '\n[server]\nuser_hook = "test_site_users:user"\n')
    machine.systemctl("enable", "--now", unit=SERVER)
    return machine


def front(machine: Machine) -> tuple[int, list[str]]:
    """Return status and computeJids of the user's own jobs, requested as a page would."""
    headers = {"Content-Type": "application/json", "X-Test-User": "yes"}
    code, said = machine.ask("POST", "/own-jobs", {}, port=8000, headers=headers)
    return code, sorted(re.findall(rf"{UID}-\w+-command", json.dumps(said)))


def test_the_front_end_serves_when_its_start_returns_and_is_restarted_under_a_running_supervisor(
    server: Machine, job: Job
) -> None:
    supervisor = server.main_pid()
    code, jobs = front(server)
    assert code == 200 and job.jid in jobs
    server.systemctl("restart", unit=SERVER)
    assert front(server) == (code, jobs)
    assert server.main_pid() == supervisor and job.lives()
    ended_well(job)


def test_a_killed_front_end_is_started_again_by_itself(server: Machine) -> None:
    supervisor, before = server.main_pid(), server.main_pid(SERVER)
    server.systemctl("kill", "--signal=KILL", unit=SERVER)
    new_main(server, before, SERVER)
    assert front(server)[0] == 200 and server.main_pid() == supervisor


def test_the_supervisor_is_restarted_under_a_running_front_end(server: Machine, job: Job) -> None:
    before = server.main_pid(SERVER)
    server.systemctl("restart")
    code, jobs = front(server)
    assert code == 200 and job.jid in jobs and server.main_pid(SERVER) == before
    server.systemctl("stop")
    code, said = server.ask(
        "POST",
        "/own-jobs",
        {},
        port=8000,
        headers={"Content-Type": "application/json", "X-Test-User": "yes"},
    )
    assert (code, said["retry"]) == (503, True) and server.main_pid(SERVER) == before
    server.systemctl("start")
    assert front(server) == (200, jobs)
    ended_well(job)


# ---- another version, another boot


def test_an_upgrade_and_the_way_back_leave_jobs_alone(server: Machine, job: Job) -> None:
    upgrade = next(r for r in recipes() if "before-$version" in r)
    old, new = server.current(), "99.0.0"
    server.sh(f"cp -a /opt/jobscribe/{old} /opt/jobscribe/{new}")
    server.fill(new)
    (file,) = server.at(f"/opt/jobscribe/{new}").glob(
        "lib/python3*/site-packages/jobscribe/protocol/version.py"
    )
    changed, count = re.subn(r'(?m)^VERSION = ".*"', f'VERSION = "{new}"', file.read_text())
    assert count == 1
    file.write_text(changed)
    swap = "".join(
        line for line in upgrade.splitlines(keepends=True) if not line.startswith("js db backup")
    )
    for to in (new, old):
        server.sh(f"version={to}\n{swap}")
        server.serving()
        assert version_running(server) == to
        assert job.lives()
        until(lambda: job.status()["known"], "it is known again")
        assert Job(server, "true").over()["state"] == "completed"
    ended_well(job)


def version_running(machine: Machine) -> str:
    """Return the version in the start event of the newest supervisor."""
    said = machine.sh(
        f"runuser -u jobscribe -- /opt/jobscribe/current/bin/jobscribe --root {STATE} db export"
    )
    starts = [
        e["event"]["version"]
        for e in map(json.loads, said.splitlines())
        if e["type"] == "SupervisorStarted"
    ]
    return str(starts[-1])


def test_a_reboot_ends_what_ran_and_says_so_and_begins_what_waited(machine: Machine) -> None:
    ran = [Job(machine, "sleep 1000").running()]
    while runs(last := Job(machine, "sleep 1000")):
        ran.append(last)
    waits = [last, Job(machine, "true")]
    machine.reboot()
    machine.serving()
    for job in ran:
        said = job.over()
        # systemd ends all processes at once: either its keeper or the job itself is faster
        assert (said["state"], said["reason"], said["exit"]["signal"]) in (
            ("error", "shutdown", 15),
            ("error", "signal", 15),
        ), said
    waits[0].running()
    machine.post("run-cancel", reqId="request-cancel", uid=UID, computeJid=waits[0].jid)
    assert [job.over()["state"] for job in waits] == ["canceled", "completed"]


def runs(job: Job) -> bool:
    """Return whether the job runs, and does not wait for a concurrency slot."""
    return bool(until(lambda: _stands(job.status()), "it runs or waits for a slot") == "running")


def _stands(status: dict[str, Any]) -> str | None:
    return (
        "running"
        if status["state"] == "running"
        else "waiting"
        if status["queueState"] in ("cpu_slot", "op_slot")
        else None
    )


# ---- cgroups version 2 alone, as on most current machines


def test_with_version_2_alone_a_restart_finds_its_place_beside_running_jobs() -> None:
    """A cgroup that passes controllers on must hold no process. If a keeper put one into the unit's
    cgroup, the next start would fail (219/CGROUP).
    """
    machine = Machine("unified", cgroup="2")
    try:
        machine.up().install()
        job = Job(machine, f"cat /proc/self/cgroup > seen; {WAITS}").running()
        file = job.folder / "seen"
        seen = until(lambda: file.exists() and file.read_text(), "it has said where it is")
        assert re.search(
            r"^0::/system.slice/jobscribe-supervisor.service/jobscribe-.*/job-", seen, re.MULTILINE
        )
        machine.systemctl("restart")
        assert job.lives()
        assert Job(machine, "true").over()["state"] == "completed"
        ended_well(job)
    finally:
        machine.down()


def test_the_page_names_the_files_that_ship() -> None:
    said = (ROOT / "docs/operations.md").read_text()
    for path in (ROOT / "etc/systemd").iterdir():
        assert path.name in said or path.suffix == ".service", path
