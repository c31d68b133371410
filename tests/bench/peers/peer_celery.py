"""Celery: a prefork worker of two processes, Redis as broker and result store. A bulk is a group."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import celery
import celery.result
from redis_server import redis_server

_URL = "BENCH_REDIS_URL"
#: The worker imports this module for `app`.
app = celery.Celery(
    "peer_celery", broker=os.environ.get(_URL), backend=os.environ.get(_URL), set_as_current=False
)


@app.task
def true() -> None:
    subprocess.run(["/bin/true"], check=True)


class Tasks:
    def submit(self) -> celery.result.AsyncResult:
        return true.delay()

    def bulk(self, n: int) -> list[celery.result.GroupResult]:
        return [celery.group(true.s() for _ in range(n)).apply_async()]

    def wait(self, handles: list[celery.result.ResultBase]) -> None:
        for handle in handles:
            handle.get(timeout=600)

    def check(self) -> None:
        """A failed command has raised in `wait`."""


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Tasks]:
    with redis_server(folder) as url:
        os.environ[_URL] = app.conf.broker_url = app.conf.result_backend = url
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        options = ["worker", "--concurrency", "2", "--loglevel", "ERROR"]
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "peer_celery", *options],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Tasks()
        finally:
            worker.terminate()
            worker.wait()
