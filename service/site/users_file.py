"""The file of roles and groups (YAML, `auth.users`): fields and rules. All problems are reported
together, with their lines.

It is read at the start of the supervisor. docs/site.md describes it.
"""

from typing import Annotated

import msgspec

from ...protocol.api.tokens import UserRole
from ...protocol.errors import Refusal
from ...protocol.fields import Form
from ...protocol.ids import Uid
from ...schema.structs import Place
from . import site_file

_UserId = Annotated[Uid, Form("a user id: 8 letters or digits")]
_UserIds = Annotated[tuple[_UserId, ...], msgspec.Meta(max_length=10_000), Form(unique=True)]
_GroupName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z"),
    Form("lower-case letters, digits, _ and -, at most 40"),
]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group. Its admins may act for its members."""

    admins: _UserIds = ()
    members: _UserIds = ()


class Users(msgspec.Struct, frozen=True, kw_only=True):
    """Roles of users. A user without a role here is a plain user."""

    admins: _UserIds = ()
    groups: dict[_GroupName, Group] = {}

    def role(self, uid: str) -> UserRole:
        if uid in self.admins:
            return "admin"
        return "groupAdmin" if any(uid in g.admins for g in self.groups.values()) else "user"

    def groups_of(self, uid: str, admin: str | None = None) -> tuple[str, ...]:
        """Return the groups of a user, as a member or admin. admin: only those with this admin."""
        return tuple(
            name
            for name, g in self.groups.items()
            if (uid in g.members or uid in g.admins) and (admin is None or admin in g.admins)
        )

    def members_of(self, uid: str) -> frozenset[str]:
        """Return the users for whom this group admin may act: the members of the groups without
        those who have a role, so that nobody gains a role of another user.
        """
        members = {m for g in self.groups.values() if uid in g.admins for m in g.members}
        return frozenset(m for m in members if self.role(m) == "user")


def load(path: str | None) -> Users:
    """Return the roles in this file; None: no roles. Raises Refusal with all problems."""
    if path is None:
        return Users()
    users, found = read(path)
    if users is None:
        raise site_file.combined(path, found)
    return users


def read(path: str) -> tuple[Users | None, list[Refusal]]:
    """Return the roles, or all problems of the file."""

    def check(file: Users, place: Place) -> Users:
        site_file.check_owner(path, place, "become administrator")
        for group, at in zip(file.groups.values(), place.each("groups"), strict=False):
            if group.members and not group.admins and at.valid("admins"):
                at.error("admins", "the group has members and no admin", "at least one user id")
        return file

    return site_file.read(path, "auth.users", Users, check)
