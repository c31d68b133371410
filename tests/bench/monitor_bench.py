"""Cost of monitoring: scrapes next to a store with 100,000 jobs, and the cost added to each run.
`python tests/bench/monitor_bench.py`.
"""

import statistics
import time

from history import _events, fill

from jobscribe.db.events.events import job_stream
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job
from jobscribe.db.store.contract import Stored
from jobscribe.db.store.job_index import index_row
from jobscribe.supervisor.metrics.event_counters import EventCounters
from jobscribe.supervisor.metrics.instruments import Instruments

JOBS, SCRAPES, RUNS = 100_000, 60, 2_000


def sample(text: str, name: str) -> float:
    return next(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + " ")
    )


def scrapes() -> None:
    from supervisor_process import SupervisorProcess

    site = SupervisorProcess()
    try:
        fill(site.root, JOBS, 0)
        site.start()
        header = {"Authorization": "Bearer " + (site.root / "secret/metrics").read_text().strip()}

        def scrape() -> tuple[float, str]:
            began = time.perf_counter()
            answer = site.ask("GET", "/metrics", headers=header)
            return time.perf_counter() - began, answer.body.decode()

        cold, text = scrape()
        took, before = [], sample(text, "process_cpu_seconds_total")
        for _ in range(SCRAPES):
            secs, text = scrape()
            took.append(secs)
            time.sleep(0.25)
        cpu = (sample(text, "process_cpu_seconds_total") - before) / SCRAPES
        loop = site.ask("GET", "/api/metrics").json()["loop"]
        slow = {bound: n for bound, n in loop["roundsUpTo"].items() if n}
        print(
            f"scrapes of {len(text) // 1000} kB beside {JOBS} jobs: the first {cold * 1000:.0f} ms, then median "
            f"{statistics.median(took) * 1000:.1f}, p95 {sorted(took)[int(0.95 * len(took))] * 1000:.1f} ms; {cpu * 1000:.1f} ms of CPU each"
        )
        print(
            f"the loop meanwhile: p99.9 of its lag {loop['p999'] * 1000:.0f} ms, rounds over 5 ms by their bound {slow}, "
            f"longest {loop['worst']['secs'] * 1000:.0f} ms"
        )
    finally:
        site.end()


def runs() -> None:
    """Feed each run's events to the monitor as the supervisor does."""
    happened = EventCounters(Instruments({"local": ["localhost"]}))
    work = []
    for n in range(RUNS):
        jid = f"User0001-{n:08d}-command"
        events, job, moments = _events("User0001", n, over=True), Job(jid=jid), []
        for version, event in enumerate(events, 1):
            job = evolve(job, event)
            moments.append(
                (
                    Stored(
                        position=n * 10 + version,
                        stream=job_stream(jid),
                        version=version,
                        event=event,
                    ),
                    job,
                )
            )
        work.append(moments)
        index_row(job)
    began = time.process_time()
    for moments in work:
        for stored, job in moments:
            happened.heard((stored,))
            happened.projected(job, stored.position)
    print(f"events of a run: {(time.process_time() - began) / RUNS * 1e6:.0f} us of CPU")


if __name__ == "__main__":
    runs()
    scrapes()
