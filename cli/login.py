"""`jobscribe login` and `logout`: sign in to a cluster, and out again. What is typed is sent once
and kept nowhere.
"""

import base64
import binascii
import getpass
import sys
from pathlib import Path

import click

from .session.session import Session, command, session

#: A key with its certificate is much shorter.
_MOST = 64 * 1024
_OPENSSH = b"openssh-key-v1\0"


@command()
@click.argument("cluster", required=False)
@click.option("--user", "-l", metavar="NAME", help="The unix user there (default: your name here).")
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from the first line of standard input, and a code from the second.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Sign in with this private key; the rest is asked for.",
)
@click.option(
    "--certificate",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The certificate of the key.",
)
def login(
    cluster: str | None,
    user: str | None,
    password_stdin: bool,
    key: str | None,
    certificate: str | None,
) -> None:
    """Sign in to CLUSTER (default: the first one), so that your runs can go there as yourself. Runs
    that wait for it go on.

    It lasts until 'jobscribe logout', or until the supervisor is started anew; jobs of yours go on
    in any case. A wrong answer is sent once and never repeated: several of them may lock an
    account. Of a key with a passphrase, --password-stdin takes that from the first line.
    """
    if certificate and not key:
        raise click.UsageError("--certificate goes with --key")
    s = session()
    client = s.client()
    there = client.sign_in_status(cluster)
    was_in = there["ready"]
    if was_in and user is not None:
        there = client.sign_in(user, cluster=there["cluster"])  # refused where it is somebody else
    elif not was_in:
        given = credentials(s, there["host"], user, password_stdin, key, certificate)
        there = client.sign_in(given.pop("username") or "", cluster=there["cluster"], **given)
    if s.screen.json:
        s.screen.value(
            "jobscribe.login/1", {k: there.get(k) for k in ("cluster", "host", "user", "ready")}
        )
    else:
        already = "already " if was_in else ""
        s.screen.say(
            f"{already}signed in to {there['cluster']}"
            + (f" as {there['user']}" if there.get("user") else "")
        )


@command()
@click.argument("cluster", required=False)
def logout(cluster: str | None) -> None:
    """Sign out of CLUSTER (default: the first one): your agent there ends, and the connection with
    it. Jobs that Slurm has go on.

    What becomes of these jobs is known again after the next sign-in; runs that Slurm does not have
    yet wait for it.
    """
    s = session()
    said = s.client().sign_out(cluster)
    if s.screen.json:
        s.screen.value(
            "jobscribe.logout/1",
            {
                k: said.get(k)
                for k in ("cluster", "host", "user", "signedOut", "agentEnded", "runs")
            },
        )
        return
    name = said["cluster"]
    if said["signedOut"]:
        s.screen.say(f"signed out of {name}" + (f" as {said['user']}" if said.get("user") else ""))
    else:
        s.screen.say(f"nobody was signed in to {name}")
    if not said["agentEnded"]:
        s.screen.say(
            f"your agent on {said['host']} cannot be reached, and may still be there; without a supervisor it ends by itself"
        )
    if said["runs"]:
        s.screen.say(
            f"{said['runs']} of your runs go on there; 'jobscribe login {name}' shows again how they are"
        )


def credentials(
    s: Session,
    host: str,
    user: str | None,
    password_stdin: bool,
    key: str | None,
    certificate: str | None,
) -> dict[str, str | None]:
    """What is to be sent, by the names of Client.sign_in."""
    given: dict[str, str | None] = {"username": user}
    if key is not None:
        given["private_key"] = _kept(s, _read(key))
        given["certificate"] = None if certificate is None else _read(certificate)
    if password_stdin:
        given["password"], given["otp"] = _kept(s, _line()), _kept(s, _line())
        if key is not None and _is_encrypted(given["private_key"] or ""):
            given["passphrase"], given["password"], given["otp"] = (
                given["password"],
                given["otp"],
                None,
            )
        return {**given, "username": user or getpass.getuser()}
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at: use --password-stdin")
    given["username"] = user or click.prompt(f"User at {host}", default=getpass.getuser(), err=True)
    if key is not None and _is_encrypted(given["private_key"] or ""):
        given["passphrase"] = _kept(s, _asked(f"Passphrase of {key}"))
    given["password"] = _kept(
        s, _asked(f"Password of {given['username']} at {host}" + (" (empty: none)" if key else ""))
    )
    given["otp"] = _kept(s, _asked("One-time code (empty: none)"))
    return given


def _asked(question: str) -> str:
    try:
        return getpass.getpass(f"{question}: ", stream=sys.stderr)
    except EOFError:
        raise click.Abort from None


def _line() -> str:
    return sys.stdin.readline(_MOST).rstrip("\r\n")


def _kept(s: Session, typed: str) -> str:
    """Out of whatever is written if something goes wrong."""
    if typed:
        s.typed.append(typed)
    return typed


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            text = file.read(_MOST + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise click.UsageError(
            f"{path} cannot be read: {getattr(e, 'strerror', None) or 'it is no key'}"
        ) from None
    if len(text) > _MOST:
        raise click.UsageError(f"{path} is too long to be a key")
    return text


def _is_encrypted(key: str) -> bool:
    """Does this private key have a passphrase?"""
    if "ENCRYPTED" in key:
        return True
    lines = [
        line
        for line in key.splitlines()
        if line and not line.startswith("-----") and ":" not in line
    ]
    try:
        raw = base64.b64decode("".join(lines), validate=True)
    except (binascii.Error, ValueError):
        return False
    cipher = raw[len(_OPENSSH) + 4 : len(_OPENSSH) + 8]
    return raw.startswith(_OPENSSH) and cipher != b"none"
