"""Where the supervisor is and how to be let in: read from `<root>/client.json`, or given.

A source of addresses is a function without arguments. The client asks it again whenever a
connection fails, because a restarted supervisor may listen on another port and have another token.
Nothing here opens a connection.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...protocol.ids import Uid
from ..api.errors import own

CLIENT_FILE = "client.json"


class Address(msgspec.Struct, frozen=True):
    """url: `http://host:port` of the supervisor's interface, without a path. uid: the user that
    local commands act as.

    pid: the supervisor's; front: address of the front door, for browsers; where they are known.
    """

    url: str
    token: str
    uid: Uid
    pid: int | None = None
    front: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.url} u={self.uid})"


Source = Callable[[], Address]


def in_root(root: str | os.PathLike[str]) -> Source:
    """The address that the supervisor of this root wrote last. Raises ClientError("noSupervisor",
    "foreignRoot") where it is not there.
    """
    path = Path(root) / CLIENT_FILE

    def read() -> Address:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Address)
        except FileNotFoundError:
            raise own(
                "noSupervisor", f"no supervisor has been started with the root {path.parent}"
            ) from None
        except PermissionError:
            raise own(
                "foreignRoot", f"{path} cannot be read: it belongs to somebody else"
            ) from None
        except OSError as e:
            raise own("noSupervisor", f"{path} cannot be read: {e.strerror}") from None
        except msgspec.DecodeError as e:
            raise own("noSupervisor", f"{path} is not what a supervisor writes: {e}") from None

    return read


def fixed(url: str, token: str, uid: str) -> Source:
    """Always this address."""
    address = Address(url=url.rstrip("/"), token=token, uid=uid)
    return lambda: address
