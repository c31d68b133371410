"""An image registry on loopback for tests: Debian's docker-registry, started by
etc/engines/registry.sh, with a name and a password.
"""

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import jobscribe

_SCRIPT = Path(jobscribe.__file__).parent / "etc/engines/registry.sh"


class Registry:
    """host: prefix of its image names. The constructor starts it; `close` ends it and removes its
    files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._env = {**os.environ, "DIR": str(folder), "PORT": str(port)}
        self.host = f"127.0.0.1:{port}"
        self.up()
        self.user, self.password = "puller", (folder / "password").read_text().strip()

    def up(self) -> None:
        self._script("up")

    def stop(self) -> None:
        """Stop the server and keep its data."""
        self._script("stop")

    def close(self) -> None:
        self._script("down")

    def push(self, client: Any, image: str, name: str) -> str:
        """Push `image` of that daemon under this name (repository:tag); return its digest."""
        repository, _, tag = name.partition(":")
        full = f"{self.host}/{repository}"
        client.tag(image, full, tag)
        said = client.push(
            full,
            tag,
            auth_config={"username": self.user, "password": self.password},
            stream=True,
            decode=True,
        )
        digests = []
        for line in said:
            assert "error" not in line, line
            digests += [line["aux"]["Digest"]] if "Digest" in line.get("aux", {}) else []
        client.remove_image(f"{full}:{tag}")
        return str(digests[-1])

    def credentials(self, file: Path, password: str | None = None) -> str:
        """Write a credentials file for a pool and return its path."""
        file.touch(0o600)
        file.write_text(
            json.dumps({self.host: {"username": self.user, "password": password or self.password}})
        )
        return str(file)

    def _script(self, what: str) -> None:
        subprocess.run(
            [str(_SCRIPT), what], env=self._env, check=True, capture_output=True, timeout=60
        )
