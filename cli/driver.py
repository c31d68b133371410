"""`driver check sbatch`: each cluster used as a run would use it, a line for every step. Needs no
supervisor.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .services.up import assignments
from .session.session import Session, command, session

if TYPE_CHECKING:
    from ..drivers.sbatch.cluster_check import CheckResult
    from ..drivers.sbatch.login_node.channel import Channel
    from ..protocol.clusters.cluster import Cluster
    from ..runtime.log.logger import Log
    from ..service.settings.settings import Settings

_WORDS = {True: "ok", False: "WRONG", None: "?"}
_HOW = {
    "ssh": "signed in to {host} as {user}; its host key is one of those in the file",
    "account": "jobs are those of {user}, on {host}",
}
#: Where no supervisor has made a root yet.
_NO_DEPLOYMENT = "check"


@command()
@click.argument("driver", metavar="DRIVER")
@click.option("--cluster", metavar="NAME", help="This one of its clusters (default: each).")
@click.option(
    "--user",
    metavar="NAME",
    help="As this unix user there (default: your name here, or the first of `users`).",
)
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
@click.option(
    "--config",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file (TOML); must exist.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting, as `up` and `supervisor` take it.",
)
def check(
    driver: str,
    cluster: str | None,
    user: str | None,
    password_stdin: bool,
    key: str | None,
    certificate: str | None,
    file: str | None,
    sets: tuple[str, ...],
) -> None:
    """Use the clusters of DRIVER (sbatch) as a run would, and say of each step whether it works and
    what to do if not.

    Run it as the supervisor's unix user, with the supervisor's configuration. Where users sign in,
    password and code are asked for (or come with --password-stdin); they are sent once and kept
    nowhere. Nothing is submitted. Exits with 1 when something is wrong.
    """
    if driver != "sbatch":
        others = {
            "docker": "its hosts are checked by 'jobscribe pool check'",
            "local": "it has nothing that could be checked",
        }
        raise click.UsageError(
            f"there is no check of the driver {driver}; {others.get(driver, 'there is one of sbatch')}"
        )
    if certificate and not key:
        raise click.UsageError("--certificate goes with --key")
    s = session()
    settings, clusters = _configured(s, file, sets, cluster)
    given = {"user": user, "password_stdin": password_stdin, "key": key, "certificate": certificate}
    found: list[CheckResult] = []
    try:
        for each in clusters:
            asyncio.run(_checked(s, settings, each, given, found))
    finally:
        s.typed.clear()
    wrong = sum(line.ok is False for line in found)
    if s.screen.json:
        s.screen.value("jobscribe.driver.check/1", {"ok": not wrong, "items": found})
    else:
        s.screen.say(
            f"{wrong} problem{'' if wrong == 1 else 's'} in {len(clusters)} cluster{'' if len(clusters) == 1 else 's'}"
        )
    if wrong:
        raise SystemExit(1)


def _configured(
    s: Session, file: str | None, sets: tuple[str, ...], name: str | None
) -> "tuple[Settings, Sequence[Cluster]]":
    """Raises Refusal."""
    from ..protocol.errors import Refusal
    from ..service.settings import loader
    from ..service.site import cluster_file

    settings = loader.load({"root": s.options.get("root"), **assignments(sets)}, file=file)
    if settings.sbatch.clusters is None:
        raise Refusal(
            "badConfig",
            "there are no clusters: name sbatch in drivers.use, their file in sbatch.clusters (see docs/sbatch.md)",
        )
    clusters = cluster_file.load(settings.sbatch.clusters)
    found = clusters.named(name) if name is not None else None
    if name is not None and found is None:
        raise Refusal(
            "notFound",
            f"there is no cluster {name}; there are: {', '.join(c.name for c in clusters.clusters)}",
        )
    return settings, (found,) if found is not None else clusters.clusters


async def _checked(
    s: Session,
    settings: "Settings",
    cluster: "Cluster",
    given: dict[str, Any],
    found: "list[CheckResult]",
) -> None:
    from ..drivers.sbatch.cluster_check import CheckResult, check_cluster, explain_failure
    from ..drivers.sbatch.login_node.channel import ChannelError
    from ..protocol.errors import Refusal

    def told(line: CheckResult) -> None:
        found.append(line)
        if not s.screen.json:
            s.screen.line(f"{line.cluster}: {_WORDS[line.ok]:5} {line.what}: {line.said}")
            if line.ok is not True and line.advice:
                s.screen.line(f"{line.cluster}:         {line.advice}")

    try:
        channel = await _channel(s, cluster, given)
    except (Refusal, ChannelError) as e:
        told(
            explain_failure(cluster, "sign-in" if cluster.access == "ssh" else "become", e.sentence)
        )
        return
    said = _HOW.get(cluster.access, "becomes {user} on {host}").format(
        host=channel.host, user=channel.user
    )
    told(
        CheckResult(
            cluster=cluster.name,
            what="sign-in" if cluster.access == "ssh" else "user",
            ok=True,
            said=said,
        )
    )
    try:
        async for line in check_cluster(
            cluster, channel, deployment(settings.root), address(settings.root)
        ):
            told(line)
    finally:
        await channel.close()


async def _channel(s: Session, cluster: "Cluster", given: dict[str, Any]) -> "Channel":
    """The way there, as the driver would take it. Raises Refusal, ChannelError."""
    from ..protocol.errors import Refusal

    if cluster.access != "ssh":
        from ..drivers.sbatch.login_node.channel import local_channel

        return local_channel(cluster, _uid(cluster, given["user"]))
    try:
        from ..drivers.sbatch.ssh.credentials import Credentials
        from ..drivers.sbatch.ssh.sign_in import connect
    except ImportError as e:
        what = f"sign-in needs a package that is not installed here ({e.name})"
        raise Refusal("signInUnreachable", f"{what}: pip install 'jobscribe[sbatch]'") from None
    from .login import credentials

    typed = credentials(
        s,
        cluster.login[0].host,
        given["user"],
        given["password_stdin"],
        given["key"],
        given["certificate"],
    )
    shown = Credentials(
        user=typed.pop("username") or "",
        password=typed.pop("password", None),
        code=typed.pop("otp", None),
        key=typed.pop("private_key", None),
        passphrase=typed.pop("passphrase", None),
        certificate=typed.pop("certificate", None),
    )
    return await connect(cluster, shown, _quiet())


def _uid(cluster: "Cluster", user: str | None) -> str:
    """Of the user as whom it is looked at. Raises Refusal."""
    from ..protocol.errors import Refusal

    if cluster.access == "account":
        return ""
    if user is None:
        return next(iter(cluster.users))
    found = next((uid for uid, name in cluster.users.items() if user in (uid, name)), None)
    if found is None:
        there = ", ".join(cluster.users.values())
        raise Refusal(
            "notFound",
            f"{user} is not among the `users` of cluster {cluster.name}; there are: {there}",
        )
    return found


def deployment(root: str) -> str:
    """The name of this deployment there: that of the supervisor, once it has run."""
    from ..drivers.deployment_name import deployment as name_of

    try:
        key = Path(root, "secret", "agents").read_text().strip()
    except OSError:
        return _NO_DEPLOYMENT
    return name_of(key.encode())


def address(root: str) -> dict[str, Any] | None:
    """Where the supervisor's listener for agents is, if it runs."""
    try:
        said: dict[str, Any] = json.loads(Path(root, "agents.json").read_bytes())
    except (OSError, ValueError):
        return None
    return said


def _quiet() -> "Log":
    """What the sign-in would say to the supervisor's log is said here already."""
    from ..protocol.redaction import Redactor
    from ..runtime.log.logger import Direct, Log

    return Log("check", Redactor(), Direct())
