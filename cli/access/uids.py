"""`jobscribe auth uid`: the uids of the names with which people sign in at the front end."""

import os
from typing import TYPE_CHECKING

import click

from ...protocol.errors import Refusal
from ..session.session import command, session
from ..session.setting_assignments import assignments

if TYPE_CHECKING:
    from ...service.settings.settings import Settings


@command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--config",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file of the front end (TOML), which names its server.uid_file.",
)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting, as for `server`."
)
def uid(names: tuple[str, ...], file: str | None, sets: tuple[str, ...]) -> None:
    """Print the uid of each NAME with which a person signs in, or those of all known names.

    A name that never signed in gets its uid now, so that the files of queues and users can name it
    before. Run it on the front end's machine, as its unix user.
    """
    from ...service.settings import loader
    from ...web.server.user_ids import UserIds

    s = session()
    path = _file(loader.load({"root": s.options.get("root"), **assignments(sets)}, file=file))
    ids = UserIds(path)
    known = ids.all()
    if any(name not in known for name in names):
        _check_owner(path)
    found = {name: ids.of(name) for name in names} if names else known
    rows = [{"name": name, "uid": found[name]} for name in found]
    if s.screen.json:
        s.screen.value("jobscribe.auth.uid/1", {"items": rows})
    else:
        s.screen.table(("NAME", "UID"), [[row["name"], row["uid"]] for row in rows])


def _file(settings: "Settings") -> str:
    path = settings.server.uid_file
    if path is None:
        raise Refusal(
            "badConfig",
            "server.uid_file is not set, so the front end's users are named by their uids: set it, or name"
            " the configuration with --config FILE",
        )
    return path


def _check_owner(path: str) -> None:
    """Raise Refusal if the front end could not use the file that this process writes."""
    folder = os.path.dirname(os.path.abspath(path))
    for place in (path, folder):
        try:
            owner = os.stat(place).st_uid
        except FileNotFoundError:
            continue
        except OSError as e:
            raise Refusal("badConfig", f"{place} cannot be read: {e.strerror}") from None
        if owner != os.geteuid():
            raise Refusal(
                "badConfig",
                f"{place} belongs to unix user {owner}: run this command as that user, so that the front end"
                " can use the file",
            )
        return
