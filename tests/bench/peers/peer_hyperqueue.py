"""HyperQueue: server, worker and client of its Python package, in one process. A bulk is one job of n
tasks.

Its client polls once a second for the end of jobs. So the commands are `/bin/echo` into a pipe,
which tells their end at once: what is measured is the system, without that client.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hyperqueue import Job, LocalCluster
from hyperqueue.client import Client, SubmittedJob
from hyperqueue.cluster import WorkerConfig


class Jobs:
    def __init__(self, client: Client, pipe: Path) -> None:
        self._client, self._pipe = client, pipe
        os.mkfifo(pipe)
        self._ends = os.open(pipe, os.O_RDWR)
        self._all: list[SubmittedJob] = []
        self._left = 0

    def submit(self) -> SubmittedJob:
        return self.bulk(1)[0]

    def bulk(self, n: int) -> list[SubmittedJob]:
        job = Job()
        for _ in range(n):
            job.program(["/bin/echo"], stdout=self._pipe)
        self._left += n
        self._all.append(self._client.submit(job))
        return self._all[-1:]

    def wait(self, handles: list[SubmittedJob]) -> None:
        """Wait for all submitted tasks."""
        while self._left:
            self._left -= len(os.read(self._ends, self._left))

    def check(self) -> None:
        self._client.wait_for_jobs(self._all)


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Jobs]:
    os.environ["TQDM_DISABLE"] = "1"
    with LocalCluster(worker_config=WorkerConfig(cores=2)) as cluster:
        yield Jobs(cluster.client(), folder / "ends")
