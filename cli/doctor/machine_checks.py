"""Judgements about the machine: what facts mean for jobs, and what to do. Pure: the same facts give
the same findings.
"""

from .findings import Facts, Finding, fail, ok, skip, warn

_INFINITE = -1
MIN_PYTHON = (3, 11)
#: Streams of news, agents' connections and uploads take a descriptor or two each.
FEW_FILES, FEW_PROCESSES = 4096, 1024
#: Seconds by which two clocks may differ before times in a story look odd; a jump that is no drift.
APART_SECS, JUMP_SECS = 2.0, 0.05
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
                "take Python 3.11 or newer",
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
                "a part of jobscribe cannot be loaded, and fails where it is needed",
                "install jobscribe by pip, with its dependencies",
            )
        )
    else:
        found.append(ok(f"packages: {versions}"))
    found += [*_path(f), _encoding(f)]
    if f["umask"] & 0o022 != 0o022:
        found.append(
            warn(
                f"the umask is {f['umask']:04o}: what is made can be written by others",
                "a supervisor started so would let others change files",
                "umask 077 before it is started (units that ship say UMask=0077)",
            )
        )
    return found


def _path(f: Facts) -> list[Finding]:
    found = []
    odd = [p or "(empty)" for p in f["path"].split(":") if not p.startswith("/")]
    if odd:
        found.append(
            warn(
                f"PATH names folders that depend on where one stands: {', '.join(odd)}",
                "a job could start another program than you think",
                "take them out of PATH",
            )
        )
    absent = [p for p in ("sh", "env") if not f["programs"].get(p)]
    if absent:
        found.append(
            fail(f"not in PATH: {', '.join(absent)}", "no job can be started without", "set PATH")
        )
    return found


def _encoding(f: Facts) -> Finding:
    if f["encoding"].lower().replace("-", "") in ("utf8", "utf8sig"):
        return ok("text is UTF-8")
    return warn(
        f"the locale's text is {f['encoding']}",
        "names and output beyond ASCII may break in programs that ask the locale",
        "set LANG=C.UTF-8 (or another UTF-8 locale)",
    )


def limits(f: Facts) -> list[Finding]:
    found = []
    soft, hard = f["nofile"]
    if _less(hard, FEW_FILES):
        found.append(
            warn(
                f"open files: at most {hard}",
                "with many agents and readers of news a supervisor refuses connections",
                "raise the hard limit (LimitNOFILE=1024:524288 in the unit; limits.conf for a login)",
            )
        )
    else:
        found.append(ok(f"open files: {_shown(soft)}, up to {_shown(hard)}"))
    processes = [
        n
        for n in (f["nproc"][0] if f["uid"] != 0 else _INFINITE, f["pids"] or _INFINITE)
        if n != _INFINITE
    ]
    if processes and min(processes) < FEW_PROCESSES:
        found.append(
            warn(
                f"processes and threads: at most {min(processes)} for all jobs together",
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
                f"files may grow to {f['fsize'][0]} bytes only",
                "jobs that write more are ended by SIGXFSZ",
                "ulimit -f unlimited",
            )
        )
    return found


def _less(limit: int, than: int) -> bool:
    return limit != _INFINITE and limit < than


def _shown(limit: int) -> str:
    return "unlimited" if limit == _INFINITE else str(limit)


def cores(f: Facts) -> list[Finding]:
    pattern = f["pattern"]
    if pattern is None:
        return [
            skip("the kernel's core_pattern cannot be read", "where a core would go is not known")
        ]
    if f["limit"][1] == 0:
        return [
            warn(
                "cores: the hard limit is 0",
                "no job started from here can leave a core, whatever it asks for",
                "ulimit -H -c unlimited before the start",
            )
        ]
    wanted = "a job leaves one only if it asked for it (coreBytes)"
    if not pattern:
        return [
            warn(
                "cores: core_pattern is empty",
                "the kernel writes none",
                "sysctl kernel.core_pattern=core",
            )
        ]
    if not pattern.startswith("|"):
        place = (
            "in the run directory"
            if not pattern.startswith("/")
            else "there, on the host, whichever container or job it was"
        )
        return [ok(f"cores go to the file {pattern!r}: {place}", wanted)]
    program = pattern[1:].split()[0] if pattern[1:].split() else ""
    if program.endswith("systemd-coredump"):
        how = (
            "'coredumpctl dump PID' gets them"
            if f["coredumpctl"]
            else "coredumpctl is not installed here: install systemd-coredump"
        )
        return [
            ok(f"cores go to systemd-coredump; {how}", f"{wanted}; none lies in the run directory")
        ]
    return [
        warn(
            f"cores are piped to {program or 'nothing'}",
            "they are lost for jobs: that program decides, and commonly drops those of unpackaged programs",
            "sysctl kernel.core_pattern=core (a file in the run directory), or use systemd-coredump",
        )
    ]


def ptrace(f: Facts) -> list[Finding]:
    scope, error = f["scope"], f["error"]
    if error is not None:
        return [
            warn(
                f"ptrace is refused even for an own child ({error})",
                "py-spy, gdb and strace cannot look into jobs from here",
                "allow it (in a container: --cap-add SYS_PTRACE; kernel.yama.ptrace_scope below 3)",
            )
        ]
    if scope in (1, 2) and not f["capability"]:
        return [
            warn(
                f"ptrace works for own children only (kernel.yama.ptrace_scope is {scope})",
                "py-spy, gdb and strace cannot attach to a job that runs already",
                "attach as root, or sysctl kernel.yama.ptrace_scope=0",
            )
        ]
    return [
        ok(
            "ptrace works" + (" (CAP_SYS_PTRACE)" if f["capability"] else ""),
            "py-spy, gdb and strace can look into jobs of this user",
        )
    ]


def kernel_log(f: Facts) -> list[Finding]:
    if f["kmsg"] is None or f["syslog"] is None:
        return [
            ok(
                "the kernel log can be read",
                "'job why' can show what the kernel said of a process that it killed",
            )
        ]
    restricted = f["restrict"] == "1"
    return [
        warn(
            f"the kernel log cannot be read by this user ({f['kmsg']}; dmesg_restrict is {f['restrict'] or 'not known'})",
            "'job why' says of a kill for memory what cgroups counted, and that the kernel log could not be read",
            "sysctl kernel.dmesg_restrict=0, or give the supervisor CAP_SYSLOG"
            if restricted
            else "look at the rights of /dev/kmsg",
        )
    ]


def cgroups(f: Facts) -> list[Finding]:
    if not f["found"]:
        return [
            warn(
                f"no cgroups can be seen ({f.get('unread') or 'none is mounted'})",
                "memory limits of tasks are not enforced, and what jobs leave behind is found by process tree alone",
                "mount cgroup2 at /sys/fs/cgroup",
            )
        ]
    versions = sorted({m["version"] for m in f["found"]})
    memory = [m for m in f["found"] if "memory" in m["controllers"]]
    name = "cgroups " + " and ".join(f"v{v}" for v in versions)
    if any(m["writable"] for m in memory):
        return [
            ok(
                f"{name}; memory can be limited and counted for each task",
                "a kill for memory is told from any other, by task",
            )
        ]
    if any(m["writable"] for m in f["found"]):
        known = "what a job's processes are is known; memory is not counted for each task"
        return [
            warn(
                f"{name}: writable, but without the memory controller",
                known,
                "as a service: Delegate=yes and systemd 254 (DelegateSubgroup), or root",
            )
        ]
    seen = (
        "kills for memory are counted for all jobs together only"
        if any(m["memoryRead"] for m in f["found"])
        else "kills for memory are not counted"
    )
    return [
        warn(
            f"{name}, none of them writable by this user",
            f"jobs get no cgroup of their own; {seen}: 'job why' may say 'likely' where it could be certain",
            "run the supervisor as a service with Delegate=yes ('jobscribe install-units'), or as root",
        )
    ]


def clock(f: Facts) -> list[Finding]:
    found = []
    if f["now"] < _YEAR_2025:
        found.append(
            fail(
                "the clock stands before 2025",
                "times of all events are wrong, TLS and sign-ins fail",
                "set the clock; run chrony or systemd-timesyncd",
            )
        )
    if abs(f["jumped"]) > JUMP_SECS:
        found.append(
            warn(
                f"the clock moved by {f['jumped']:+.2f} s against the time since boot while we looked",
                "times in stories jump",
                "look at who sets it (chrony, VM tools)",
            )
        )
    if f["newest"] is not None and f["newest"] > f["now"] + APART_SECS:
        found.append(
            warn(
                f"the newest log was written {f['newest'] - f['now']:.0f} s in the future: the clock has been set back",
                "events keep their order, but times in stories go backwards there",
                "run chrony or systemd-timesyncd",
            )
        )
    if f["synchronised"] is False:
        found.append(
            warn(
                "the clock is not synchronised (adjtimex)",
                "times from different machines cannot be compared to the second; Slurm's munge needs it within minutes",
                "run chrony or systemd-timesyncd; in a virtual machine the host may do it, and this is harmless",
            )
        )
    if f["suspended"] > APART_SECS:
        found.append(
            warn(
                f"the machine has slept for {f['suspended']:.0f} s since boot",
                "time limits count that time; connections were cut",
                "do not let it sleep",
            )
        )
    return found or [
        ok(
            "the clock is synchronised"
            if f["synchronised"]
            else "the clock runs steadily; whether it is synchronised is not told"
        )
    ]


def journal(f: Facts) -> list[Finding]:
    if f["error"] is not None:
        return [
            skip(
                f"no journal listens here ({f['error']})",
                "logs are in <root>/log and on standard error only",
            )
        ]
    if not f["journalctl"]:
        return [
            warn(
                "the journal listens, but journalctl is not installed",
                "its fields cannot be asked for",
                "install systemd's tools",
            )
        ]
    if not f["readable"]:
        return [
            warn(
                "the journal takes records, but this user cannot read it",
                "'journalctl JOBSCRIBE_JID=...' shows nothing to you, which is not the same as nothing there",
                "put the user into the group systemd-journal (usermod -aG systemd-journal NAME), and sign in again",
            )
        ]
    return [
        ok(
            "the journal takes records and can be read",
            "'journalctl JOBSCRIBE_JID=...' shows a job's lines",
        )
    ]


def systemd(f: Facts) -> list[Finding]:
    if not f["running"] or not f["systemctl"]:
        return [
            skip(
                "systemd is not what runs this machine",
                "nothing starts the supervisor again by itself",
                "see docs/operations.md for services",
            )
        ]
    if not f["units"] and f.get("silent"):
        return [
            skip(
                f"{f['version']}; it does not answer this user (no D-Bus?)",
                "how its units stand is not known",
                "ask as root",
            )
        ]
    if not f["units"]:
        return [
            skip(
                f"{f['version']}; no unit of jobscribe is installed",
                "a supervisor that ends is not started again",
                "jobscribe install-units --dry-run shows them",
            )
        ]
    found = []
    for unit, shown in f["units"].items():
        whose = " (of this user)" if shown["user"] else ""
        restarts = int(shown.get("NRestarts") or 0)
        if shown.get("NeedDaemonReload") == "yes":
            found.append(
                warn(
                    f"{unit}{whose} was changed since systemd read it",
                    "what runs is the old one",
                    "systemctl daemon-reload",
                )
            )
        if shown["ActiveState"] == "failed":
            found.append(
                fail(
                    f"{unit}{whose} has failed ({shown.get('Result')})",
                    "jobs that ran run on; nothing is begun",
                    f"journalctl -u {unit} -n 50",
                )
            )
        elif shown["ActiveState"] == "active":
            again = f", started again {restarts} times since it was begun" if restarts else ""
            found.append((ok if restarts < 3 else _often)(f"{unit}{whose} is active{again}"))
        else:
            found.append(
                warn(
                    f"{unit}{whose} is {shown['ActiveState']}",
                    "nothing is begun while it is not active",
                    f"systemctl start {unit}",
                )
            )
    return found


def _often(sentence: str) -> Finding:
    return warn(
        sentence,
        "something ends it again and again; jobs run on",
        "journalctl -u jobscribe-supervisor -p 4 says why",
    )


def gpus(f: Facts) -> list[Finding]:
    if not f["library"]:
        if f["devices"]:
            return [
                warn(
                    "there is an NVIDIA driver, but no library for it",
                    "GPUs are neither given to tasks nor measured",
                    "pip install 'jobscribe[gpu]'",
                )
            ]
        return [
            skip(
                "no GPUs: neither NVIDIA's library nor its driver is here",
                "runs that ask for GPUs are refused on this machine",
            )
        ]
    if f.get("error"):
        state = warn if f["devices"] else skip
        return [
            state(
                f"NVIDIA's library finds no driver: {f['error']}",
                "runs that ask for GPUs are refused on this machine",
                "nvidia-smi tells more",
            )
        ]
    return [
        ok(
            f"{len(f['cards'])} GPUs: {', '.join(f['cards'])}"
            if f["cards"]
            else "NVIDIA's driver is here, without a card"
        )
    ]
