"""Open pages: memory, lag and processor time with 500 live streams, and with 0 of them in the same
run: `python tests/bench/live_bench.py`. Prints tables; asserts nothing.

Users have 50 streams each. Some pages are open in a real Chromium, if it is installed. Jobs run
while the streams are open; each change goes to all streams of its user.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import os
import secrets
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from front_bench import Page, sid, up

EACH, JOBS, TABS = 50, 40, 4
#: Interval of the requests that measure how long the loops are busy.
PROBE_SECS = 0.02
_TICK = os.sysconf("SC_CLK_TCK")


def processes(root: Path) -> dict[str, int]:
    """Return the pids of supervisor and front end of this root."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").decode()
            for name in ("supervisor", "server"):
                if words == f"jobscribe {name} {root}":
                    found["front end" if name == "server" else name] = int(folder.name)
    return found


def memory_mib(pid: int) -> float:
    """Return the memory of the process that it shares with no other."""
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return sum(int(words[n + 1]) for n, w in enumerate(words) if w.startswith("Private_")) / 1024


def cpu_secs(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


class Streams:
    """Open streams, and for each the jobs of which it has heard the end."""

    def __init__(self) -> None:
        self.ended: list[dict[str, float]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.bytes = 0

    async def open(self, front: str, user: Page) -> None:
        ticket = user.post("/live-ticket")
        host, _, port = front.removeprefix("http://").rstrip("/").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /live HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {user._headers['Cookie']}\r\n"
        writer.write(f"{head}{ticket['header']}: {ticket['ticket']}\r\n\r\n".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"/live: {status!r}")
        heard: dict[str, float] = {}
        self.ended.append(heard)
        self._writers.append(writer)
        self._tasks.append(asyncio.create_task(self._read(reader, heard)))

    async def _read(self, reader: asyncio.StreamReader, heard: dict[str, float]) -> None:
        async for line in reader:
            self.bytes += len(line)
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if event.get("over"):
                    heard.setdefault(event["computeJid"], time.perf_counter())

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def probe(ask: Any, out: list[float], stop: threading.Event) -> None:
    while not stop.is_set():
        began = time.perf_counter()
        ask()
        out.append((time.perf_counter() - began) * 1000)
        time.sleep(PROBE_SECS)


async def measure(front: str, root: Path, users: list[Page], count: int) -> dict[str, str]:
    """Run jobs of the first user with this number of open streams."""
    pids, streams = processes(root), Streams()
    before = {name: memory_mib(pid) for name, pid in pids.items()}
    began = time.perf_counter()
    for n in range(count):
        await streams.open(front, users[n // EACH])
    opened = time.perf_counter() - began
    await asyncio.sleep(1.0)
    held = {name: memory_mib(pid) for name, pid in pids.items()}
    own = json.loads((root / "client.json").read_text())["url"]
    times: dict[str, list[float]] = {"front end": [], "supervisor": []}
    stop = threading.Event()
    asks = {
        "front end": functools.partial(users[0].again(front).ask, "GET", "/who"),
        "supervisor": functools.partial(Page(own).ask, "GET", "/livez"),
    }
    threads = [threading.Thread(target=probe, args=(asks[n], times[n], stop)) for n in times]
    for thread in threads:
        thread.start()
    used = {name: cpu_secs(pid) for name, pid in pids.items()}
    late = await asyncio.to_thread(run_jobs, users[0])
    done = time.perf_counter()
    heard = streams.ended[:EACH]
    while any(len(h) < JOBS for h in heard) and time.perf_counter() < done + 60:
        await asyncio.sleep(0.05)
    used = {name: cpu_secs(pid) - used[name] for name, pid in pids.items()}
    stop.set()
    for thread in threads:
        thread.join()
    spread = (
        [max(h[j] for h in heard) - min(h[j] for h in heard) for j in heard[0]] if heard else []
    )
    await streams.close()
    out = {
        "streams": str(count),
        "opened": f"{opened:.1f} s",
        "jobs": f"{late:.1f} s",
        "spread of an end over the streams": f"{1000 * max(spread, default=0):.0f} ms at most",
        "bytes sent": f"{streams.bytes / 1e6:.1f} MB",
    }
    for name in pids:
        asked = sorted(times[name])
        each = f", {1024 * (held[name] - before[name]) / count:.0f} KiB each" if count else ""
        out[f"{name}: memory"] = f"{held[name]:.1f} MiB{each}"
        out[f"{name}: CPU"] = f"{used[name]:.2f} s"
        p99, worst = asked[int(len(asked) * 0.99)], asked[-1]
        out[f"{name}: request"] = (
            f"{statistics.median(asked):.1f} ms, p99 {p99:.0f}, worst {worst:.0f}"
        )
    return out


def run_jobs(user: Page) -> float:
    """Run short jobs; return the time that it took."""
    began = time.perf_counter()
    names = [sid() for _ in range(JOBS)]
    for name in names:
        text = json.dumps({"name": name, "command": ["true"]})
        user.post("/page-data/run-text", reqId=secrets.token_hex(12), text=text)
    while user.post("/page-data/job-search", states=["pending", "running"])["jobs"]:
        time.sleep(0.2)
    return time.perf_counter() - began


def browse(front: str, stop: threading.Event, out: list[str]) -> None:
    """Keep pages open in Chromium; report their memory and how they did."""
    try:
        from chromium_user import CHROMIUM, FLAGS
        from playwright.sync_api import sync_playwright
    except ImportError:
        out.append("no Chromium: playwright is not installed")
        return
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = browser.new_context()
        context.request.post(front + "/sign-in", data={"name": "user0"})
        pages = [context.new_page() for _ in range(TABS)]
        for page in pages:
            page.goto(front + "/jobs")
            page.locator(".link-state", has_text="Live").wait_for()
        stop.wait(300)
        for page in pages:
            rows = page.locator("table.jobs tbody tr[data-state=completed]").count()
            heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
            state = page.locator(".link-state").inner_text()
            out.append(f"{state}, {rows} rows completed, {heap:.1f} MiB of JavaScript heap")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--no-browser", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "r"
        with up(root) as front:
            users = [Page(front).sign_in(f"user{n}") for n in range(-(-args.streams // EACH))]
            run_jobs(users[0])  # its agent starts
            rows = [asyncio.run(measure(front, root, users, 0))]
            stop, browser = threading.Event(), list[str]()
            tabs = threading.Thread(target=browse, args=(front, stop, browser))
            if not args.no_browser:
                tabs.start()
                time.sleep(10)
            rows.append(asyncio.run(measure(front, root, users, args.streams)))
            stop.set()
            if not args.no_browser:
                tabs.join()
    print("| | " + " | ".join(r["streams"] for r in rows) + " streams |")
    for name in list(rows[0])[1:]:
        print(f"| {name} | " + " | ".join(r[name] for r in rows) + " |")
    for line in browser:
        print("Chromium:", line)


if __name__ == "__main__":
    main()
