"""Judgement of facts about the machine: effect on jobs and action. Pure functions."""

from .findings import Facts, Finding, fail, ok, skip, warn

_INFINITE = -1
MIN_PYTHON = (3, 11)
#: Event streams, agent connections and uploads use one or two descriptors each.
FEW_FILES, FEW_PROCESSES = 4096, 1024
#: Tolerated difference between two clocks, and smallest jump of a clock, in seconds.
MAX_OFFSET_SECS, JUMP_SECS = 2.0, 0.05
_YEAR_2025 = 1_735_689_600


def environment(f: Facts) -> list[Finding]:
    found = []
    python = tuple(int(p) for p in f["python"].split(".")[:2])
    versions = ", ".join(f"{n} {v}" for n, v in f["packages"].items() if v and n != "jobscribe")
    extras = ", ".join(n for n, there in f["extras"].items() if there) or "none"
    if python < MIN_PYTHON:
        found.append(
            fail(
                f"Python is {f['python']}",
                "jobscribe does not run with it",
                "install Python 3.11 or newer",
            )
        )
    else:
        where = f"{f['executable']}) on {f['host']}, Linux {f['kernel']}"
        found.append(
            ok(f"jobscribe {f['version']} with Python {f['python']} ({where}; extras: {extras}")
        )
    missing = [n for n, v in f["packages"].items() if v is None and n != "jobscribe"]
    if missing:
        found.append(
            fail(
                f"packages are missing: {', '.join(missing)}",
                "the parts of jobscribe that need them fail",
                "install jobscribe with pip, including its dependencies",
            )
        )
    else:
        found.append(ok(f"packages: {versions}"))
    found += [*_path(f), _encoding(f)]
    if f["umask"] & 0o022 != 0o022:
        found.append(
            warn(
                f"the umask is {f['umask']:04o}: other users can write to new files",
                "other users could change files of a supervisor started with it",
                "run 'umask 077' before the start (the shipped units set UMask=0077)",
            )
        )
    return found


def _path(f: Facts) -> list[Finding]:
    found = []
    odd = [p or "(empty)" for p in f["path"].split(":") if not p.startswith("/")]
    if odd:
        found.append(
            warn(
                f"PATH contains relative folders: {', '.join(odd)}",
                "a job could start the wrong program",
                "remove them from PATH",
            )
        )
    absent = [p for p in ("sh", "env") if not f["programs"].get(p)]
    if absent:
        found.append(fail(f"not in PATH: {', '.join(absent)}", "no job can start", "set PATH"))
    return found


def _encoding(f: Facts) -> Finding:
    if f["encoding"].lower().replace("-", "") in ("utf8", "utf8sig"):
        return ok("the locale's encoding is UTF-8")
    return warn(
        f"the locale's encoding is {f['encoding']}",
        "programs that use the locale may fail on non-ASCII names and output",
        "set LANG=C.UTF-8 (or another UTF-8 locale)",
    )


def limits(f: Facts) -> list[Finding]:
    found = []
    soft, hard = f["nofile"]
    if _less(hard, FEW_FILES):
        found.append(
            warn(
                f"open files: at most {hard}",
                "a supervisor with many agents and event streams refuses connections",
                "raise the hard limit (LimitNOFILE=1024:524288 in the unit; limits.conf for a login)",
            )
        )
    else:
        found.append(ok(f"open files: {_limit_text(soft)}, up to {_limit_text(hard)}"))
    processes = [
        n
        for n in (f["nproc"][0] if f["uid"] != 0 else _INFINITE, f["pids"] or _INFINITE)
        if n != _INFINITE
    ]
    if processes and min(processes) < FEW_PROCESSES:
        found.append(
            warn(
                f"processes and threads: at most {min(processes)} for all jobs",
                "jobs fail to fork ('Resource temporarily unavailable')",
                "raise nproc (ulimit -u, limits.conf) or the cgroup's pids.max (TasksMax=infinity in the unit)",
            )
        )
    else:
        found.append(
            ok(f"processes and threads: {min(processes) if processes else 'not limited here'}")
        )
    if f["fsize"][0] != _INFINITE:
        found.append(
            warn(
                f"maximum file size: {f['fsize'][0]} bytes",
                "SIGXFSZ ends jobs that write more",
                "run 'ulimit -f unlimited' before the start",
            )
        )
    return found


def _less(limit: int, than: int) -> bool:
    return limit != _INFINITE and limit < than


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == _INFINITE else str(limit)


def cores(f: Facts) -> list[Finding]:
    pattern = f["pattern"]
    if pattern is None:
        return [
            skip(
                "the kernel's core_pattern cannot be read", "the location of core dumps is unknown"
            )
        ]
    if f["limit"][1] == 0:
        return [
            warn(
                "core dumps: the hard limit is 0",
                "jobs started from here cannot write core dumps",
                "run 'ulimit -H -c unlimited' before the start",
            )
        ]
    condition = "a job writes a core dump only if it was submitted with --core"
    if not pattern:
        return [
            warn(
                "core dumps: core_pattern is empty",
                "the kernel writes none",
                "sysctl kernel.core_pattern=core",
            )
        ]
    if not pattern.startswith("|"):
        place = (
            "in the run directory"
            if not pattern.startswith("/")
            else "on the host, for all containers and jobs"
        )
        return [ok(f"core dumps go to the file {pattern!r}: {place}", condition)]
    program = pattern[1:].split()[0] if pattern[1:].split() else ""
    if program.endswith("systemd-coredump"):
        how = (
            "'coredumpctl dump PID' extracts them"
            if f["coredumpctl"]
            else "coredumpctl is not installed here: install systemd-coredump"
        )
        return [
            ok(
                f"core dumps go to systemd-coredump; {how}",
                f"{condition}; the run directory contains none",
            )
        ]
    return [
        warn(
            f"core dumps are piped to {program or 'nothing'}",
            "they are usually lost: such programs drop core dumps of unpackaged programs",
            "sysctl kernel.core_pattern=core (a file in the run directory), or use systemd-coredump",
        )
    ]


def ptrace(f: Facts) -> list[Finding]:
    scope, error = f["scope"], f["error"]
    if error is not None:
        return [
            warn(
                f"ptrace is refused, also for a child process ({error})",
                "py-spy, gdb and strace cannot inspect jobs from here",
                "allow it (in a container: --cap-add SYS_PTRACE; kernel.yama.ptrace_scope below 3)",
            )
        ]
    if scope in (1, 2) and not f["capability"]:
        return [
            warn(
                f"ptrace works for child processes only (kernel.yama.ptrace_scope is {scope})",
                "py-spy, gdb and strace cannot attach to a running job",
                "attach as root, or sysctl kernel.yama.ptrace_scope=0",
            )
        ]
    return [
        ok(
            "ptrace works" + (" (CAP_SYS_PTRACE)" if f["capability"] else ""),
            "py-spy, gdb and strace can inspect jobs of this user",
        )
    ]


def kernel_log(f: Facts) -> list[Finding]:
    if f["kmsg"] is None or f["syslog"] is None:
        return [
            ok(
                "the kernel log can be read",
                "'jobscribe job why' can show kernel messages about killed processes",
            )
        ]
    restricted = f["restrict"] == "1"
    return [
        warn(
            f"the kernel log cannot be read by this user ({f['kmsg']}; dmesg_restrict is {f['restrict'] or 'unknown'})",
            "for an out-of-memory kill 'jobscribe job why' shows cgroup counts, but no kernel messages",
            "sysctl kernel.dmesg_restrict=0, or give the supervisor CAP_SYSLOG"
            if restricted
            else "check the permissions of /dev/kmsg",
        )
    ]


def cgroups(f: Facts) -> list[Finding]:
    if not f["found"]:
        return [
            warn(
                f"no cgroups found ({f.get('unread') or 'none is mounted'})",
                "memory limits of tasks are not enforced, and leftover processes are found by the process tree alone",
                "mount cgroup2 at /sys/fs/cgroup",
            )
        ]
    versions = sorted({m["version"] for m in f["found"]})
    memory = [m for m in f["found"] if "memory" in m["controllers"]]
    name = "cgroups " + " and ".join(f"v{v}" for v in versions)
    if any(m["writable"] for m in memory):
        return [
            ok(
                f"{name}; memory can be limited and counted per task",
                "out-of-memory kills are attributed to tasks",
            )
        ]
    if any(m["writable"] for m in f["found"]):
        known = "a job's processes are known, but memory is not counted per task"
        return [
            warn(
                f"{name}: writable, but without the memory controller",
                known,
                "run the supervisor as a service with Delegate=yes and systemd 254 (DelegateSubgroup), or as root",
            )
        ]
    seen = (
        "out-of-memory kills are counted for all jobs together"
        if any(m["memoryRead"] for m in f["found"])
        else "out-of-memory kills are not counted"
    )
    return [
        warn(
            f"{name}, none of them writable by this user",
            f"jobs get no cgroup of their own; {seen}: causes from 'jobscribe job why' may be 'likely' instead of certain",
            "run the supervisor as a service with Delegate=yes ('jobscribe install-units'), or as root",
        )
    ]


def clock(f: Facts) -> list[Finding]:
    found = []
    if f["now"] < _YEAR_2025:
        found.append(
            fail(
                "the clock shows a time before 2025",
                "times of all events are wrong, and TLS and sign-ins fail",
                "set the clock; run chrony or systemd-timesyncd",
            )
        )
    if abs(f["jumped"]) > JUMP_SECS:
        found.append(
            warn(
                f"the clock moved by {f['jumped']:+.2f} s against the time since boot during the check",
                "times in job histories jump",
                "find the program that sets it (chrony, VM tools)",
            )
        )
    if f["newest"] is not None and f["newest"] > f["now"] + MAX_OFFSET_SECS:
        found.append(
            warn(
                f"the newest log is dated {f['newest'] - f['now']:.0f} s in the future: the clock was set back",
                "events keep their order, but their times go backwards there",
                "run chrony or systemd-timesyncd",
            )
        )
    if f["synchronised"] is False:
        found.append(
            warn(
                "the clock is not synchronised (adjtimex)",
                "times of different machines differ; Slurm's munge tolerates only minutes",
                "run chrony or systemd-timesyncd; harmless in a virtual machine whose host sets the clock",
            )
        )
    if f["suspended"] > MAX_OFFSET_SECS:
        found.append(
            warn(
                f"the machine was suspended for {f['suspended']:.0f} s since boot",
                "time limits include this time, and connections were cut",
                "disable suspend",
            )
        )
    return found or [
        ok(
            "the clock is synchronised"
            if f["synchronised"]
            else "the clock runs steadily; its synchronisation state is unknown"
        )
    ]


def journal(f: Facts) -> list[Finding]:
    if f["error"] is not None:
        return [
            skip(
                f"no journal is available ({f['error']})",
                "logs go to <root>/log and standard error only",
            )
        ]
    if not f["journalctl"]:
        return [
            warn(
                "the journal is available, but journalctl is not installed",
                "its records cannot be queried",
                "install systemd's tools",
            )
        ]
    if not f["readable"]:
        return [
            warn(
                "the journal accepts records, but this user cannot read it",
                "'journalctl JOBSCRIBE_JID=...' shows no lines to this user, also if there are some",
                "add the user to the group systemd-journal (usermod -aG systemd-journal NAME), and sign in again",
            )
        ]
    return [
        ok(
            "the journal accepts records and can be read",
            "'journalctl JOBSCRIBE_JID=...' shows a job's lines",
        )
    ]


def systemd(f: Facts) -> list[Finding]:
    if not f["running"] or not f["systemctl"]:
        return [
            skip(
                "this machine does not run systemd",
                "the supervisor is not restarted automatically",
                "see docs/operations.md for services",
            )
        ]
    if not f["units"] and f.get("silent"):
        return [
            skip(
                f"{f['version']} does not answer this user (no D-Bus?)",
                "the state of its units is unknown",
                "run the command as root",
            )
        ]
    if not f["units"]:
        return [
            skip(
                f"{f['version']}; no unit of jobscribe is installed",
                "a supervisor that exits is not restarted",
                "'jobscribe install-units --dry-run' shows them",
            )
        ]
    found = []
    for unit, properties in f["units"].items():
        scope = " (of this user)" if properties["user"] else ""
        restarts = int(properties.get("NRestarts") or 0)
        if properties.get("NeedDaemonReload") == "yes":
            found.append(
                warn(
                    f"{unit}{scope} was changed after systemd read it",
                    "the old version is active",
                    "systemctl daemon-reload",
                )
            )
        if properties["ActiveState"] == "failed":
            found.append(
                fail(
                    f"{unit}{scope} has failed ({properties.get('Result')})",
                    "running jobs continue; no job starts",
                    f"journalctl -u {unit} -n 50",
                )
            )
        elif properties["ActiveState"] == "active":
            again = f", restarted {restarts} times" if restarts else ""
            found.append(
                (ok if restarts < 3 else _restarts_often)(f"{unit}{scope} is active{again}")
            )
        else:
            found.append(
                warn(
                    f"{unit}{scope} is {properties['ActiveState']}",
                    "no job starts while it is not active",
                    f"systemctl start {unit}",
                )
            )
    return found


def _restarts_often(sentence: str) -> Finding:
    return warn(
        sentence,
        "the supervisor fails repeatedly; jobs continue",
        "'journalctl -u jobscribe-supervisor -p 4' shows the reason",
    )


def gpus(f: Facts) -> list[Finding]:
    if not f["library"]:
        if f["devices"]:
            return [
                warn(
                    "an NVIDIA driver is installed, but no library for it",
                    "GPUs are neither allocated to tasks nor measured",
                    "pip install 'jobscribe[gpu]'",
                )
            ]
        return [
            skip(
                "no GPUs: NVIDIA's library and driver are not installed",
                "runs that request GPUs are refused on this machine",
            )
        ]
    if f.get("error"):
        state = warn if f["devices"] else skip
        return [
            state(
                f"NVIDIA's library finds no driver: {f['error']}",
                "runs that request GPUs are refused on this machine",
                "run nvidia-smi for details",
            )
        ]
    return [
        ok(
            f"{len(f['cards'])} GPUs: {', '.join(f['cards'])}"
            if f["cards"]
            else "NVIDIA's driver is installed, without a GPU"
        )
    ]
