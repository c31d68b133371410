"""Dask: two worker processes of one thread; the scheduler is in the client's process. A bulk is one
`map`. A submission returns a future that nobody has acknowledged.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from distributed import Client, Future, LocalCluster


def true(_: int = 0) -> None:
    subprocess.run(["/bin/true"], check=True)


class Futures:
    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self) -> Future:
        return self._client.submit(true, pure=False)

    def bulk(self, n: int) -> list[Future]:
        futures: list[Future] = self._client.map(true, range(n), pure=False)
        return futures

    def wait(self, handles: list[Future]) -> None:
        self._client.gather(handles)

    def check(self) -> None:
        """A failed command has raised in `wait`."""


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Futures]:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=str(folder),
        ) as cluster,
        Client(cluster) as client,
    ):
        yield Futures(client)
