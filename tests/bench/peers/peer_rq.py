"""RQ: two workers, each with its process per job, and Redis. A bulk is one pipeline."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis
import rq
from redis_server import redis_server
from rq.job import Job

#: Longer than a turn: the registry of finished jobs is complete.
_RESULT_SECS = 3600


def true() -> None:
    """Run by the workers, which import this module."""
    subprocess.run(["/bin/true"], check=True)


class Jobs:
    def __init__(self, queue: rq.Queue) -> None:
        self._queue = queue
        self._submitted = 0

    def submit(self) -> Job:
        self._submitted += 1
        return self._queue.enqueue("peer_rq.true", result_ttl=_RESULT_SECS)

    def bulk(self, n: int) -> list[Job]:
        self._submitted += n
        data = [rq.Queue.prepare_data("peer_rq.true", result_ttl=_RESULT_SECS) for _ in range(n)]
        return self._queue.enqueue_many(data)

    def wait(self, handles: list[Job]) -> None:
        handles[-1].latest_result(timeout=600)
        while (done := self._queue.finished_job_registry.count) < self._submitted:
            self.check()
            time.sleep(0.002 if self._submitted - done < 10 else 0.1)

    def check(self) -> None:
        if self._queue.failed_job_registry.count:
            raise RuntimeError(f"failed: {self._queue.failed_job_registry.get_job_ids()[:10]}")


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Jobs]:
    with redis_server(folder) as url:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        program = [sys.executable, "-m", "rq.cli", "worker", "--quiet", "--url", url]
        workers = [subprocess.Popen(program, env=environment) for _ in range(2)]
        try:
            yield Jobs(rq.Queue(connection=redis.Redis.from_url(url, socket_timeout=None)))
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
