"""Credentials of users for image registries. They travel with one submission and stay in the memory of
the supervisor; events and records have a reference only.
"""

from typing import Annotated

import msgspec

from ..fields import Form

#: The registry of image names without a registry.
PUBLIC = "docker.io"

#: `host` or `host:port`.
Registry = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?(:[0-9]{1,5})?\Z"),
    Form("the address of a registry: host or host:port"),
]


class RegistryLogin(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """User name and password for one registry. Its text shows neither."""

    registry: Registry
    username: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=16_384)]

    def __repr__(self) -> str:
        return f"RegistryLogin({self.registry})"


class LoginRef(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Names the credentials of a run in the supervisor's memory. id: no secret; it is of use to its
    user only. registries: the credentials are for these.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{1,64}\Z")]
    registries: Annotated[tuple[Registry, ...], msgspec.Meta(max_length=100)]


def registry_name(address: str) -> str:
    """Return the registry of an address as tools write it: with a scheme, a path, or Docker's own
    old address.
    """
    name = address.strip().partition("://")[2] or address.strip()
    name = name.partition("/")[0]
    return PUBLIC if name in ("", "index.docker.io", "registry-1.docker.io") else name
