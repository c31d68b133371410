"""Address and token of the supervisor, from `<root>/client.json` or given. Opens no connection.

A source is a function that returns the address. The client calls it again whenever a connection
fails, because a restarted supervisor may have another port and token.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ...protocol.ids import Uid
from ...runtime.struct_types import resolve
from ..api.errors import own

CLIENT_FILE = "client.json"


class Address(msgspec.Struct, frozen=True):
    """Address of a supervisor. url: `http://host:port` of the API, without a path. uid: the user of
    local commands; empty if only the supervisor knows it, from the token. pid: of the supervisor,
    if known. front: address of the front end for browsers, if known.
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
    """Return a source that reads the address that the supervisor of this root wrote last.

    The source raises ClientError (noSupervisor, foreignRoot).
    """
    path = Path(root) / CLIENT_FILE

    def read() -> Address:
        resolve(Address)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Address)
        except FileNotFoundError:
            raise own(
                "noSupervisor", f"no supervisor has been started with the root {path.parent}"
            ) from None
        except PermissionError:
            raise own("foreignRoot", f"{path} cannot be read: it belongs to another user") from None
        except OSError as e:
            raise own("noSupervisor", f"{path} cannot be read: {e.strerror}") from None
        except msgspec.DecodeError as e:
            raise own("noSupervisor", f"{path} is not a valid address file: {e}") from None

    return read


#: A secret or an API token, or a function that returns it, called again after it was refused.
TokenSource = str | Callable[[], str]


class Several:
    """A source with the addresses of several supervisors of one site, of which one is in use."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources, self._at = sources, 0

    def __call__(self) -> Address:
        return self._sources[self._at]()

    def leave(self, url: str) -> None:
        """Use the next address from now on, if this one is in use: no supervisor answers there."""
        if self().url == url:
            self._at = (self._at + 1) % len(self._sources)


def fixed(url: str, token: TokenSource, uid: str | None = None) -> Source:
    """Return a source for a fixed address, or for several with commas between them. uid: None for the
    user of an API token.
    """
    if "," in url:
        return Several([fixed(one.strip(), token, uid) for one in url.split(",") if one.strip()])
    address = Address(url=url.rstrip("/"), token="", uid=uid or "")
    if isinstance(token, str):
        address = msgspec.structs.replace(address, token=token)
        return lambda: address
    return lambda: msgspec.structs.replace(address, token=token())
