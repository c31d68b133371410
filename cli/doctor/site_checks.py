"""Judgement of facts about one installation: root, configuration, supervisor, ports, drivers. Pure
functions.
"""

from .findings import Facts, Finding, fail, mb, ok, skip, warn
from .machine_checks import MAX_OFFSET_SECS

LOW_BYTES, NO_BYTES, LOW_INODES = 2 * 2**30, 128 * 2**20, 10_000
SLOW_SYNC_SECS, STALLED_SYNC_SECS = 0.1, 2.0


def config(f: Facts) -> list[Finding]:
    problems = f["problems"]
    if f.get("development"):
        secretless = [p for p in problems if "no server secret" in p["error"]]
        problems = [p for p in problems if p not in secretless]
    found = [
        fail(
            f"{p['code']}: {p['error']}",
            "a supervisor does not start with this configuration",
            p.get("advice") or "correct the configuration",
        )
        for p in problems
    ]
    found += [
        warn(w, "a supervisor starts with it", "check whether this is intended")
        for w in f["warnings"]
    ]
    if found:
        return found
    start = (
        "'jobscribe up' can start; 'jobscribe supervisor' needs supervisor.server_secret_file"
        if f.get("development")
        else "a supervisor can start with it"
    )
    return [ok(f"the configuration is valid: {start}")]


def root(f: Facts) -> list[Finding]:
    found = _folder(f, "root")
    if f["network"]:
        found.insert(
            0,
            fail(
                f"the root {f['path']} is on {f['network']}",
                "a supervisor refuses to start: locks and memory maps of the store are not reliable there",
                "move the root to a local disk; only user_root may be on a network file system",
            ),
        )
    if f["exists"]:
        if f["owner"] != f["uid"]:
            found.append(
                fail(
                    f"the root belongs to {f['ownerName']}, and you are {f['user']}",
                    "a supervisor of this user does not start there",
                    f"runuser -u {f['ownerName']} -- jobscribe doctor --root {f['path']}, or use another root",
                )
            )
        if f["mode"] & 0o077:
            found.append(
                fail(
                    f"the root's mode is {f['mode']:04o}",
                    "other users can access its files, and perhaps its secrets",
                    f"chmod 700 {f['path']}",
                )
            )
    means = "a supervisor does not start with parts of different roots; a running one ignores foreign parts"
    found += [
        fail(sentence, means, "see 'A root whose parts do not belong together' in docs/store.md")
        for sentence in f.get("parts", ())
    ]
    return found


def user_root(f: Facts) -> list[Finding]:
    if f["inRoot"] and not f["exists"]:
        return [ok("run directories will be created in the root")]
    found = _folder(f, "folder for run directories")
    if f["network"]:
        found.append(
            ok(f"run directories are on {f['network']}, which is allowed", "its delays affect jobs")
        )
    return found


def _folder(f: Facts, name: str) -> list[Finding]:
    found = []
    path, space = f["path"], f"{mb(f['freeBytes'])} of {mb(f['bytes'])} free"
    if not f["isFolder"]:
        return [
            fail(
                f"{f['nearest']} is not a folder, so the {name} {path} cannot exist",
                "no files can be stored there",
                "use another folder",
            )
        ]
    if not f["writable"] or f["readOnly"]:
        state = fail if f["readOnly"] or (f["exists"] and f["owner"] == f["uid"]) else warn
        found.append(
            state(
                f"{f['user']} cannot write to {f['nearest']}",
                f"this user cannot use the {name}",
                "run the command as the owner, or use another folder",
            )
        )
    if f["freeBytes"] < NO_BYTES:
        found.append(
            fail(
                f"{path}: {space}",
                "runs are refused or fail when the disk is full ('storageUnavailable')",
                "free disk space now",
            )
        )
    elif f["freeBytes"] < LOW_BYTES:
        found.append(
            warn(
                f"{path}: {space}",
                "output of jobs may fill the disk",
                "free disk space, or set purge.after_secs",
            )
        )
    if f["inodes"] and f["freeInodes"] < LOW_INODES:
        found.append(
            warn(
                f"{path}: {f['freeInodes']} inodes free",
                "no new files can be created, despite free space",
                "remove small files",
            )
        )
    sync = f["syncSecs"]
    if sync is not None and sync > SLOW_SYNC_SECS:
        state = fail if sync > STALLED_SYNC_SECS else warn
        found.append(
            state(
                f"{path}: a write takes {sync * 1000:.0f} ms to reach the disk",
                "each submission and each end of a run waits for a write",
                "use a faster disk for the root, or find other users of the disk (iostat -x)",
            )
        )
    if found:
        return found
    where = path if f["exists"] else f"{path} (does not exist yet)"
    latency = "" if sync is None else f", write latency {sync * 1000:.1f} ms"
    return [ok(f"{where}: {f['kind'] or 'unknown file system'}, {space}{latency}")]


def supervisor(f: Facts) -> list[Finding]:
    if f.get("error"):
        if f["held"]:
            return [
                fail(
                    f"a supervisor uses the root, but does not answer: {f['error']}",
                    "running jobs continue; submissions and queries fail",
                    "wait a minute after a start, then read the end of log/supervisor.log",
                )
            ]
        if f["held"] is None:
            return [
                skip(
                    f"unknown whether a supervisor runs here: {f['error']}",
                    "this user cannot query it",
                    "run the command as the owner of the root (sudo -u)",
                )
            ]
        return [
            skip(
                f"no supervisor runs here: {f['error']}",
                "running jobs continue; no job starts",
                "jobscribe up (or systemctl start jobscribe-supervisor)",
            )
        ]
    if f["health"]["code"] == 401:
        return [
            fail(
                f"what answers at {f['url']} does not accept this secret: it is the supervisor of another root",
                "commands for this root are refused there",
                "start the supervisor of this root; one that runs writes its address into client.json",
            )
        ]
    found = [*_ready(f), *_health(f)]
    if f["version"] is not None and f["version"] != f["own"]:
        found.append(
            warn(
                f"the supervisor is version {f['version']}, this command line {f['own']}",
                "commands and replies may be incompatible",
                "restart it after an upgrade (jobs continue), or use its own command line",
            )
        )
    if f["apart"] is not None and abs(f["apart"]) > MAX_OFFSET_SECS:
        found.append(
            warn(
                f"the supervisor's clock differs by {f['apart']:+.0f} s from this machine's",
                "its times seem wrong here",
                "synchronise both clocks",
            )
        )
    version = f", version {f['version']}" if f["version"] else ""
    return found or [ok(f"the supervisor at {f['url']} answers and is ready{version}")]


def _ready(f: Facts) -> list[Finding]:
    ready = f["ready"]
    if ready["code"] == 200:
        return []
    return [
        fail(
            f"the supervisor at {f['url']} is not ready: {ready['body'].get('error') or ready['code']}",
            "requests are refused temporarily",
            ready["body"].get("advice") or "wait, then read log/supervisor.log",
        )
    ]


def _health(f: Facts) -> list[Finding]:
    """Return the supervisor's health reasons in the supervisor's order: failing ones first."""
    body = f["health"]["body"]
    if f["health"]["code"] != 200 or not isinstance(body, dict):
        return []
    return [
        (fail if r["state"] == "failing" else warn)(
            f"the supervisor reports: {r['sentence']}",
            "as reported",
            r["try"] or "docs/monitoring.md",
        )
        for r in body.get("reasons") or []
    ]


def ports(f: Facts) -> list[Finding]:
    if f.get("error"):
        return [skip(f"the ports are unknown: {f['error']}", "", "see the check config")]
    found = []
    for p in f["ports"]:
        where = f"port {p['port']} of {p['ip']} ({p['name']})"
        if p["error"] is None:
            found.append(
                ok(f"{where} is free" if not f["held"] else f"nothing listens on {where} now")
            )
        elif p["error"] == "Address already in use":
            found.append(_taken(f, p, where))
        else:
            found.append(
                fail(
                    f"cannot listen on {where}: {p['error']}",
                    "a supervisor with this setting does not start",
                    "use another address or port",
                )
            )
    return found or [ok("all ports are chosen automatically (0)")]


def _taken(f: Facts, p: Facts, where: str) -> Finding:
    """Return the finding for a port in use: `ok` only if this root is known to use it."""
    holder = p.get("holder") or {}
    listens = f.get("listens") or []
    if holder.get("ours") or (
        holder.get("ours") is None and any(_same(place, p) for place in listens)
    ):
        by = f" (pid {holder['pid']})" if holder.get("pid") else ""
        return ok(f"this root uses {where}{by}, as expected while it runs")
    if holder.get("pid") is not None:
        by = f"pid {holder['pid']} ({holder['what'][:100] or 'unknown name'}) uses {where}, and does not belong to this root"
        advice = f"'ps -fp {holder['pid']}' shows the process; stop it, or set another port"
    else:
        by = f"{where} is in use by a process that this user cannot see, and this root is not known to use it"
        advice = f"as root, 'ss -ltnp | grep :{p['port']}' shows the process; or set another port"
    here = "; no supervisor runs in this root" if f["held"] is False else ""
    if listens:
        here = f"; the supervisor of this root listens at {', '.join(listens)}"
    return warn(
        by + here, "a supervisor with this setting does not start while the port is in use", advice
    )


def _same(place: str, p: Facts) -> bool:
    return place in (f"{p['ip']}:{p['port']}", f"[{p['ip']}]:{p['port']}")


def engines(f: Facts) -> list[Finding]:
    if f.get("error"):
        return [skip(f"the drivers are unknown: {f['error']}", "", "see the check config")]
    found: list[Finding] = (
        [ok("driver local: jobs run on this machine")] if "local" in f["use"] else []
    )
    if "docker" in f:
        found += _docker(f["docker"])
    for cluster in f.get("sbatch", []):
        found += _cluster(cluster)
    return found


def _docker(f: Facts) -> list[Finding]:
    if f.get("error"):
        return [
            skip(
                f"driver docker: its hosts can only be checked through the supervisor: {f['error']}",
                "",
                "start the supervisor, then run 'jobscribe pool check'",
            )
        ]
    found = [
        fail(
            f"driver docker: host {h['host']} is {h['state']}: {h['detail']}",
            "no runs start there",
            "run 'jobscribe pool check'",
        )
        for h in f["hosts"]
        if h["state"] != "up"
    ]
    found += [
        fail(f"driver docker: {p}", "runs there fail", "docs/docker.md") for p in f["problems"]
    ]
    return found or [
        ok(
            f"driver docker: {len(f['hosts'])} hosts are usable: "
            + ", ".join(f"{h['host']} ({h['version']})" for h in f["hosts"])
        )
    ]


def _cluster(f: Facts) -> list[Finding]:
    name = f"driver sbatch, {f['name']}"
    if f.get("error"):
        return [fail(f"{name}: {f['error']}", "no runs start there", "docs/sbatch.md")]
    if f.get("signIn"):
        return [
            skip(
                f"{name}: a user must sign in",
                "",
                f"run 'jobscribe driver check sbatch --cluster {f['name']}'",
            )
        ]
    wrong = [
        (fail if line["ok"] is False else warn)(
            f"{name}: {line['what']}: {line['said']}",
            "runs there may fail",
            line["advice"] or "docs/sbatch.md",
        )
        for line in f["lines"]
        if line["ok"] is not True
    ]
    return wrong or [ok(f"{name}: each step of a run works ({len(f['lines'])} checked)")]
