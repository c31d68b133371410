"""Judgements about one installation: root, configuration, supervisor, ports, drivers. Pure: the
same facts give the same findings.
"""

from .findings import Facts, Finding, fail, mb, ok, skip, warn
from .machine_checks import APART_SECS

LITTLE_BYTES, NO_BYTES, LITTLE_INODES = 2 * 2**30, 128 * 2**20, 10_000
SLOW_SYNC_SECS, STALLED_SYNC_SECS = 0.1, 2.0


def config(f: Facts) -> list[Finding]:
    problems = f["problems"]
    if f.get("development"):
        secretless = [p for p in problems if "there is no server secret" in p["error"]]
        problems = [p for p in problems if p not in secretless]
    found = [
        fail(
            f"{p['code']}: {p['error']}",
            "a supervisor does not start with this configuration",
            p.get("advice") or "correct it",
        )
        for p in problems
    ]
    found += [
        warn(w, "a supervisor starts with it", "decide whether it is meant so")
        for w in f["warnings"]
    ]
    if found:
        return found
    start = (
        "'jobscribe up' may start; 'jobscribe supervisor' needs supervisor.server_secret_file"
        if f.get("development")
        else "a supervisor may start with it"
    )
    return [ok(f"the configuration is in order: {start}")]


def root(f: Facts) -> list[Finding]:
    found = _folder(f, "root")
    if f["network"]:
        found.insert(
            0,
            fail(
                f"the root {f['path']} lies on {f['network']}",
                "a supervisor refuses to start: locks and memory maps of the store cannot be relied on there",
                "put the root on a local disk; only user_root may lie on a network file system",
            ),
        )
    if f["exists"]:
        if f["owner"] != f["uid"]:
            found.append(
                fail(
                    f"the root belongs to {f['ownerName']}, and this is {f['user']}",
                    "a supervisor of this user does not start there",
                    f"runuser -u {f['ownerName']} -- jobscribe doctor --root {f['path']}, or take another root",
                )
            )
        if f["mode"] & 0o077:
            found.append(
                fail(
                    f"the root's mode is {f['mode']:04o}",
                    "others can reach what is in it, and perhaps its secrets",
                    f"chmod 700 {f['path']}",
                )
            )
    means = "a supervisor does not start with parts of different roots; one that runs leaves alone what is not its own"
    found += [
        fail(sentence, means, "see 'A root whose parts do not belong together' in docs/store.md")
        for sentence in f.get("parts", ())
    ]
    return found


def user_root(f: Facts) -> list[Finding]:
    if f["inRoot"] and not f["exists"]:
        return [ok("users' run directories will be made in the root")]
    found = _folder(f, "place of run directories")
    if f["network"]:
        found.append(
            ok(f"run directories lie on {f['network']}, which is allowed", "its pauses are theirs")
        )
    return found


def _folder(f: Facts, name: str) -> list[Finding]:
    found = []
    path, room = f["path"], f"{mb(f['freeBytes'])} of {mb(f['bytes'])} free"
    if not f["isFolder"]:
        return [
            fail(
                f"{f['nearest']} is no folder, so the {name} {path} cannot be",
                "nothing can be kept there",
                "name another place",
            )
        ]
    if not f["writable"] or f["readOnly"]:
        state = fail if f["readOnly"] or (f["exists"] and f["owner"] == f["uid"]) else warn
        found.append(
            state(
                f"{f['nearest']} cannot be written to by {f['user']}",
                f"the {name} cannot be used by this user",
                "run it as its owner, or name another place",
            )
        )
    if f["freeBytes"] < NO_BYTES:
        found.append(
            fail(
                f"{path}: {room}",
                "runs are refused or fail as soon as it is full ('storageUnavailable')",
                "make room now",
            )
        )
    elif f["freeBytes"] < LITTLE_BYTES:
        found.append(
            warn(
                f"{path}: {room}", "jobs' output may fill it", "make room, or set purge.after_secs"
            )
        )
    if f["inodes"] and f["freeInodes"] < LITTLE_INODES:
        found.append(
            warn(
                f"{path}: {f['freeInodes']} inodes free",
                "no new files although there are bytes",
                "remove small files",
            )
        )
    sync = f["syncSecs"]
    if sync is not None and sync > SLOW_SYNC_SECS:
        state = fail if sync > STALLED_SYNC_SECS else warn
        found.append(
            state(
                f"{path}: a write takes {sync * 1000:.0f} ms to reach the disk",
                "each submission and each end waits for one: everything is slow",
                "take a faster disk for the root, or look at who else uses it (iostat -x)",
            )
        )
    if found:
        return found
    where = path if f["exists"] else f"{path} (not made yet)"
    kept = "" if sync is None else f", a write reaches it in {sync * 1000:.1f} ms"
    return [ok(f"{where}: {f['kind'] or 'file system not told'}, {room}{kept}")]


def supervisor(f: Facts) -> list[Finding]:
    if f.get("error"):
        if f["held"]:
            return [
                fail(
                    f"a supervisor holds the root, but cannot be asked: {f['error']}",
                    "jobs run on; nothing can be submitted or looked at",
                    "give it a minute after a start; then look at the end of log/supervisor.log",
                )
            ]
        if f["held"] is None:
            return [
                skip(
                    f"whether a supervisor runs here is not known: {f['error']}",
                    "it cannot be asked by this user",
                    "run it as the user who owns the root (sudo -u)",
                )
            ]
        return [
            skip(
                f"no supervisor runs here: {f['error']}",
                "jobs that run go on; nothing is begun",
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
                "commands and replies may not fit together",
                "restart it after an upgrade (jobs run on), or use its own command line",
            )
        )
    if f["apart"] is not None and abs(f["apart"]) > APART_SECS:
        found.append(
            warn(
                f"the supervisor's clock is {f['apart']:+.0f} s from this machine's",
                "times that it tells seem wrong here",
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
            "requests are refused for now",
            ready["body"].get("advice") or "wait, then look at log/supervisor.log",
        )
    ]


def _health(f: Facts) -> list[Finding]:
    """Its own words, in its own order: what fails comes first."""
    body = f["health"]["body"]
    if f["health"]["code"] != 200 or not isinstance(body, dict):
        return []
    return [
        (fail if r["state"] == "failing" else warn)(
            f"the supervisor says: {r['sentence']}",
            "see what it names",
            r["try"] or "docs/monitoring.md",
        )
        for r in body.get("reasons") or []
    ]


def ports(f: Facts) -> list[Finding]:
    if f.get("error"):
        return [skip(f"the ports are not known: {f['error']}", "", "see config")]
    found = []
    for p in f["ports"]:
        where = f"port {p['port']} of {p['ip']} ({p['name']})"
        if p["error"] is None:
            found.append(
                ok(f"{where} is free" if not f["held"] else f"{where} is not listened on now")
            )
        elif p["error"] == "Address already in use":
            found.append(_taken(f, p, where))
        else:
            found.append(
                fail(
                    f"{where} cannot be listened on: {p['error']}",
                    "a supervisor with this setting does not start",
                    "take another address or port",
                )
            )
    return found or [ok("every port is taken as it comes (0)")]


def _taken(f: Facts, p: Facts, where: str) -> Finding:
    """Of a port in use: it is well only where this root is known to hold it."""
    holder = p.get("holder") or {}
    listens = f.get("listens") or []
    if holder.get("ours") or (
        holder.get("ours") is None and any(_same(place, p) for place in listens)
    ):
        by = f" (pid {holder['pid']})" if holder.get("pid") else ""
        return ok(f"{where} is in use by this root{by}, as it should be while it runs")
    if holder.get("pid") is not None:
        by = f"{where} is taken by pid {holder['pid']} ({holder['what'][:100] or 'its name is not to be seen'}), which is not of this root"
        advice = f"'ps -fp {holder['pid']}' says more; stop it, or set another port"
    else:
        by = f"{where} is taken; by whom is not to be seen by this user, and this root is not known to listen there"
        advice = f"as root, 'ss -ltnp | grep :{p['port']}' says by whom; or set another port"
    here = "; no supervisor runs in this root" if f["held"] is False else ""
    if listens:
        here = f"; the supervisor of this root listens at {', '.join(listens)}"
    return warn(
        by + here, "a supervisor with this setting does not start while it is taken", advice
    )


def _same(place: str, p: Facts) -> bool:
    return place in (f"{p['ip']}:{p['port']}", f"[{p['ip']}]:{p['port']}")


def engines(f: Facts) -> list[Finding]:
    if f.get("error"):
        return [skip(f"the drivers are not known: {f['error']}", "", "see config")]
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
                f"driver docker: its hosts are asked through the supervisor, and {f['error']}",
                "",
                "start it, then 'jobscribe pool check'",
            )
        ]
    found = [
        fail(
            f"driver docker: host {h['host']} is {h['state']}: {h['detail']}",
            "no runs go there",
            "jobscribe pool check",
        )
        for h in f["hosts"]
        if h["state"] != "up"
    ]
    found += [
        fail(f"driver docker: {p}", "runs that go there fail", "docs/docker.md")
        for p in f["problems"]
    ]
    return found or [
        ok(
            f"driver docker: {len(f['hosts'])} hosts can be used: "
            + ", ".join(f"{h['host']} ({h['version']})" for h in f["hosts"])
        )
    ]


def _cluster(f: Facts) -> list[Finding]:
    name = f"driver sbatch, {f['name']}"
    if f.get("error"):
        return [fail(f"{name}: {f['error']}", "no runs go there", "docs/sbatch.md")]
    if f.get("signIn"):
        return [
            skip(
                f"{name}: a user has to sign in to it",
                "",
                f"jobscribe driver check sbatch --cluster {f['name']}",
            )
        ]
    wrong = [
        (fail if line["ok"] is False else warn)(
            f"{name}: {line['what']}: {line['said']}",
            "runs that go there may fail",
            line["advice"] or "docs/sbatch.md",
        )
        for line in f["lines"]
        if line["ok"] is not True
    ]
    return wrong or [ok(f"{name}: each step of a run works ({len(f['lines'])} looked at)")]
