"""A redis-server of its own for one turn, without persistence: the fastest setting of Redis."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PEERS = Path(__file__).resolve().parents[3] / "etc" / "engines" / "peers.sh"


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Yield the URL of the server."""
    found = subprocess.run([PEERS, "redis"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(found.stderr.strip())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen([*found.stdout.split(), *options], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > deadline or server.poll() is not None:
                raise RuntimeError("redis-server does not listen")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()
