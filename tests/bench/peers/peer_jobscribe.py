"""jobscribe: one user, one HTTP connection. A bulk is an array. Submissions are synced to disk before
they are acknowledged.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_site import Jobscribe, jobscribe


class Runs:
    def __init__(self, site: Jobscribe) -> None:
        self._site = site

    def submit(self) -> dict[str, Any]:
        return self._site.submit(["/bin/true"])

    def bulk(self, n: int) -> list[dict[str, Any]]:
        sid = self._site.array(["/bin/true"], f"0-{n - 1}")
        return [{"over": False, "computeJid": f"{self._site.uid}-{sid}-command_{n - 1}"}]

    def wait(self, handles: list[dict[str, Any]]) -> None:
        """Wait for the last run, and then until no run is active: few requests for many runs."""
        self._site.wait(handles[-1])
        if len(handles) == 1 and "state" in handles[0]:
            return
        while self._site.ask("job-list", uid=self._site.uid, active=True, limit=1)["jobs"]:
            time.sleep(0.005)

    def check(self) -> None:
        if failed := self._site.ask("job-list", status="error", limit=1)["jobs"]:
            raise RuntimeError(f"failed: {failed}")


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Runs]:
    with jobscribe(folder / "root") as site:
        yield Runs(site)
