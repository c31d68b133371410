"""Parsl: its high-throughput executor with two worker processes. It has no bulk submission. A
submission returns a future that nobody has acknowledged.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider


@parsl.python_app
def true() -> None:
    import subprocess

    subprocess.run(["/bin/true"], check=True)


class Futures:
    def submit(self) -> Future[None]:
        future: Future[None] = true()
        return future

    def bulk(self, n: int) -> list[Future[None]]:
        return [true() for _ in range(n)]

    def wait(self, handles: list[Future[None]]) -> None:
        for handle in handles:
            handle.result()

    def check(self) -> None:
        """A failed command has raised in `wait`."""


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Futures]:
    # its programs are started by name, and its workers import this module
    os.environ["PYTHONPATH"] = os.path.dirname(__file__)
    os.environ["PATH"] = f"{sys.prefix}/bin:{os.environ['PATH']}"
    executor = HighThroughputExecutor(
        label="two",
        address="127.0.0.1",
        max_workers_per_node=2,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    with parsl.load(Config(executors=[executor], run_dir=str(folder / "runs"))):
        yield Futures()
