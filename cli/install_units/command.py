"""The command `install-units`: systemd units with this installation's program, account, root and
configuration, shown before they are written.
"""

import difflib
import os
import pwd
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ...protocol.errors import Refusal
from ..session.session import Session, command, session
from . import unit_text

if TYPE_CHECKING:
    from ...service.settings.settings import Settings

_SHIPPED = Path(__file__).resolve().parents[2] / "etc" / "systemd"
_SYSTEMCTL_SECS = 120.0


class _File(NamedTuple):
    path: str
    text: str
    #: Current content; None if the file does not exist.
    current: str | None

    @property
    def changes(self) -> bool:
        return self.current != self.text


@command()
@click.option(
    "--user",
    "own",
    is_flag=True,
    help="Units for your own systemd (workstations, login nodes); needs no root.",
)
@click.option(
    "--prefix",
    type=click.Path(),
    default="",
    metavar="DIR",
    help="Write below DIR, for packages and images.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file of the services (default: /etc/jobscribe.toml).",
)
@click.option(
    "--account",
    default=unit_text.ACCOUNT,
    metavar="NAME",
    help="Unix user of the services (default: jobscribe).",
)
@click.option("--dry-run", is_flag=True, help="Show the changes, and write nothing.")
@click.option("--now", is_flag=True, help="Then start the supervisor, now and at each boot.")
@click.option("--force", is_flag=True, help="Overwrite edited files.")
def install_units(
    own: bool, prefix: str, file: str | None, account: str, dry_run: bool, now: bool, force: bool
) -> None:
    """Write the systemd units of supervisor and front end for this installation, after showing the
    changes.

    Edited units are not overwritten: put your changes into a drop-in (systemctl edit), which this
    command never touches.
    """
    if now and (prefix or dry_run):
        raise click.UsageError(
            "--now cannot be combined with --prefix or --dry-run: it starts the installed units"
        )
    s = session()
    settings, config = _load_settings(s, own, file)
    i = unit_text.Installation(_program(), None if own else account, config, settings.root)
    sharded = settings.shards.count is not None
    files = _files(i, prefix, sharded=sharded)
    for f in files:
        _show(s, f)
    edited = [f.path for f in files if f.changes and not _is_unedited(f)]
    if edited and not force:
        raise Refusal(
            "badRequest",
            f"not overwritten, because edited: {', '.join(edited)}; move the changes into a drop-in, or add --force",
        )
    if not dry_run:
        _write(files, own)
    if s.screen.json:
        items = [{"path": f.path, "text": f.text, "changed": f.changes} for f in files]
        s.screen.value(
            "jobscribe.install-units/1",
            {"items": items, "written": not dry_run, "next": _next(i, own, prefix, settings)},
        )
    elif not dry_run:
        s.screen.message("written" if any(f.changes for f in files) else "no changes")
    if now:
        _start(own, settings)
    elif not s.screen.json:
        s.screen.message("Next:")
        for line in _next(i, own, prefix, settings):
            s.screen.message(f"  {line}")


def _load_settings(s: Session, own: bool, file: str | None) -> "tuple[Settings, str | None]":
    """Return the settings, and the configuration file for the units. Without that file, return the
    default settings of a system service.
    """
    from ...service.settings import loader

    options = {"root": s.options.get("root")}
    named = file or os.environ.get("JOBSCRIBE_CONFIG") or (None if own else unit_text.CONFIG)
    if named == unit_text.CONFIG and file is None and not os.path.exists(named):
        return loader.load({"root": options["root"] or unit_text.STATE}, env={}), named
    return loader.load(options, file=named), None if named is None else os.path.abspath(named)


def _program() -> tuple[str, ...]:
    """Return the command of this installation. Use the link `current` if it points here, so that an
    upgrade needs no new units.
    """
    here = Path(sys.prefix)
    current = here.parent / "current"
    if current.is_symlink() and current.resolve() == here.resolve():
        here = current
    script = here / "bin" / "jobscribe"
    if script.exists():
        return (str(script),)
    return (
        str(here / "bin" / Path(sys.executable).name)
        if here != Path(sys.prefix)
        else sys.executable,
        "-m",
        "jobscribe.cli",
    )


def _files(i: unit_text.Installation, prefix: str, *, sharded: bool) -> list[_File]:
    folder = (
        os.path.expanduser("~/.config/systemd/user") if i.account is None else "/etc/systemd/system"
    )
    texts = {
        f"{folder}/{name}": unit_text.unit(_shipped(name), i)
        for name in (
            (unit_text.SHARD, unit_text.ROUTER, unit_text.SERVER)
            if sharded
            else (unit_text.SUPERVISOR, unit_text.SERVER)
        )
    }
    if _systemd_version() >= unit_text.DROP_IN_FROM:
        service = unit_text.SHARD if sharded else unit_text.SUPERVISOR
        texts[f"{folder}/{service}.d/{unit_text.DROP_IN}"] = _shipped(unit_text.DROP_IN)
    if i.account is not None and not _account_exists(i.account):
        texts["/etc/sysusers.d/jobscribe.conf"] = unit_text.account(
            _shipped(unit_text.SYSUSERS), i.account
        )
    prefix = os.path.abspath(prefix) if prefix else ""
    return [
        _File(prefix + path, unit_text.marked(text), _read(prefix + path))
        for path, text in texts.items()
    ]


def _shipped(name: str) -> str:
    try:
        return (_SHIPPED / name).read_text(encoding="utf-8")
    except OSError as e:
        raise Refusal(
            "internal", f"this installation lacks its unit files: {_SHIPPED / name}: {e.strerror}"
        ) from None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise Refusal("badRequest", f"{path} cannot be read: {e.strerror}") from None


def _account_exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


def _systemd_version() -> int:
    """Return systemd's version; 0 if unknown."""
    try:
        words = subprocess.run(
            ["systemctl", "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        ).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def _show(s: Session, f: _File) -> None:
    if s.screen.json or not f.changes:
        return
    before = [] if f.current is None else f.current.splitlines()
    for line in difflib.unified_diff(
        before,
        f.text.splitlines(),
        "/dev/null" if f.current is None else f.path,
        f.path,
        lineterm="",
    ):
        s.screen.line(line)


def _is_unedited(f: _File) -> bool:
    """Return whether the file may be overwritten: it is missing, unedited, or a manual copy of a
    shipped unit.
    """
    return (
        f.current is None or unit_text.untouched(f.current) or unit_text.marked(f.current) == f.text
    )


def _write(files: list[_File], own: bool) -> None:
    from ...runtime.filesystems import write_atomically

    for f in files:
        if not f.changes:
            continue
        try:
            os.makedirs(os.path.dirname(f.path), 0o755, exist_ok=True)
            write_atomically(f.path, f.text.encode("utf-8", "surrogateescape"), 0o644)
            os.chmod(f.path, 0o644)
        except OSError as e:
            hint = (
                ""
                if own
                else "; only root can write the machine's units ('--user' writes units of your own)"
            )
            raise Refusal("badRequest", f"{f.path} cannot be written: {e.strerror}{hint}") from None


def _next(i: unit_text.Installation, own: bool, prefix: str, settings: "Settings") -> list[str]:
    """Return the commands for the user to run next."""
    ctl = "systemctl --user" if own else "systemctl"
    lines = []
    if i.account is not None and not _account_exists(i.account):
        lines.append("systemd-sysusers jobscribe.conf")
    if settings.supervisor.server_secret_file is None:
        where = i.config or f"{settings.root}/jobscribe.toml"
        lines.append(
            f"# first create a secret: openssl rand -hex 32 into a file of mode 600, named as [supervisor] server_secret_file in {where}"
        )
    as_account = f"runuser -u {i.account} -- " if i.account is not None else ""
    named = f"--config {i.config}" if i.config is not None else f"--root {i.root}"
    lines.append(
        f"{as_account}{shlex.join(i.program)} config check {named}"
        if i.config
        else f"{shlex.join(i.program)} {named} config check"
    )
    if not prefix:
        lines += [f"{ctl} daemon-reload", f"{ctl} enable --now {' '.join(_services(settings))}"]
    if settings.server.user_hook is not None and not prefix:
        lines.append(f"{ctl} enable --now jobscribe-server")
    if own:
        lines.append("loginctl enable-linger      # keep it running after you sign out")
    return lines


def _services(settings: "Settings") -> list[str]:
    """Return the services that serve requests, on this machine."""
    count = settings.shards.count
    if count is None:
        return ["jobscribe-supervisor"]
    return [*(f"jobscribe-shard@{k}" for k in range(count)), "jobscribe-router"]


def _start(own: bool, settings: "Settings") -> None:
    ctl = ["systemctl", *(["--user"] if own else [])]
    account = [] if own else [["systemd-sysusers"]]
    for words in (
        *account,
        [*ctl, "daemon-reload"],
        [*ctl, "enable", "--now", *_services(settings)],
    ):
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                timeout=_SYSTEMCTL_SECS,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise Refusal(
                "badRequest", f"the units are written, but '{shlex.join(words)}' could not run: {e}"
            ) from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise Refusal(
                "badRequest",
                f"the units are written, but '{shlex.join(words)}' failed: {lines[-1]}",
            )
