"""`jobscribe driver check sbatch`: uses each cluster as a run would and reports every step, without
a supervisor.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .session.session import Session, command, session
from .session.setting_assignments import assignments

if TYPE_CHECKING:
    from ..drivers.sbatch.cluster_check import CheckResult
    from ..drivers.sbatch.login_node.channel import Channel
    from ..protocol.clusters.cluster import Cluster
    from ..runtime.log.logger import Log
    from ..service.settings.settings import Settings

_LABELS = {True: "ok", False: "FAIL", None: "?"}
_ACCESS = {
    "ssh": "signed in to {host} as {user}; its host key is in the cluster file",
    "account": "jobs run as {user} on {host}",
}
#: Deployment name for a root that no supervisor has used yet.
_NO_DEPLOYMENT = "check"


@command()
@click.argument("driver", metavar="DRIVER")
@click.option("--cluster", metavar="NAME", help="Only this cluster (default: all).")
@click.option(
    "--user",
    metavar="NAME",
    help="Unix user there (default: your name here, or the first of `users`).",
)
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from line 1 of standard input, and a one-time code from line 2.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Sign in with this private key; prompt for the rest.",
)
@click.option(
    "--certificate",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Certificate of the key.",
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
    help="A setting, as for `up` and `supervisor`.",
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
    """Use the clusters of DRIVER (sbatch) as a run would. Report the result of each step, with an
    action for each failure.

    Run it as the supervisor's unix user, with the supervisor's configuration. For clusters with
    sign-in it prompts for password and one-time code (or reads them with --password-stdin); they
    are sent once and never stored. It submits nothing. Exits with 1 if a step fails.
    """
    if driver != "sbatch":
        others = {
            "docker": "'jobscribe pool check' checks its hosts",
            "local": "it needs no check",
        }
        raise click.UsageError(
            f"there is no check for the driver {driver}; {others.get(driver, 'only sbatch has one')}"
        )
    if certificate and not key:
        raise click.UsageError("--certificate requires --key")
    s = session()
    settings, clusters = _load_clusters(s, file, sets, cluster)
    given = {"user": user, "password_stdin": password_stdin, "key": key, "certificate": certificate}
    found: list[CheckResult] = []
    try:
        for each in clusters:
            asyncio.run(_check_cluster(s, settings, each, given, found))
    finally:
        s.typed.clear()
    failed = sum(line.ok is False for line in found)
    if s.screen.json:
        s.screen.value("jobscribe.driver.check/1", {"ok": not failed, "items": found})
    else:
        s.screen.message(
            f"{failed} problem{'' if failed == 1 else 's'} in {len(clusters)} cluster{'' if len(clusters) == 1 else 's'}"
        )
    if failed:
        raise SystemExit(1)


def _load_clusters(
    s: Session, file: str | None, sets: tuple[str, ...], name: str | None
) -> "tuple[Settings, Sequence[Cluster]]":
    """Return the settings and the clusters to check. Raises Refusal."""
    from ..protocol.errors import Refusal
    from ..service.settings import loader
    from ..service.site import cluster_file

    settings = loader.load({"root": s.options.get("root"), **assignments(sets)}, file=file)
    if settings.sbatch.clusters is None:
        raise Refusal(
            "badConfig",
            "no clusters are configured: add sbatch to drivers.use, and set sbatch.clusters to their file (see docs/sbatch.md)",
        )
    clusters = cluster_file.load(settings.sbatch.clusters)
    found = clusters.named(name) if name is not None else None
    if name is not None and found is None:
        raise Refusal(
            "notFound",
            f"there is no cluster {name}; configured clusters: {', '.join(c.name for c in clusters.clusters)}",
        )
    return settings, (found,) if found is not None else clusters.clusters


async def _check_cluster(
    s: Session,
    settings: "Settings",
    cluster: "Cluster",
    given: dict[str, Any],
    found: "list[CheckResult]",
) -> None:
    from ..drivers.sbatch.cluster_check import CheckResult, check_cluster, explain_failure
    from ..drivers.sbatch.login_node.channel import ChannelError
    from ..protocol.errors import Refusal

    def report(line: CheckResult) -> None:
        found.append(line)
        if not s.screen.json:
            s.screen.line(f"{line.cluster}: {_LABELS[line.ok]:5} {line.what}: {line.said}")
            if line.ok is not True and line.advice:
                s.screen.line(f"{line.cluster}:         {line.advice}")

    try:
        channel = await _channel(s, cluster, given)
    except (Refusal, ChannelError) as e:
        report(
            explain_failure(cluster, "sign-in" if cluster.access == "ssh" else "become", e.sentence)
        )
        return
    description = _ACCESS.get(cluster.access, "becomes {user} on {host}").format(
        host=channel.host, user=channel.user
    )
    report(
        CheckResult(
            cluster=cluster.name,
            what="sign-in" if cluster.access == "ssh" else "user",
            ok=True,
            said=description,
        )
    )
    try:
        async for line in check_cluster(
            cluster, channel, deployment(settings.root), address(settings.root)
        ):
            report(line)
    finally:
        await channel.close()


async def _channel(s: Session, cluster: "Cluster", given: dict[str, Any]) -> "Channel":
    """Open a channel to the cluster as the driver would. Raises Refusal, ChannelError."""
    from ..protocol.errors import Refusal

    if cluster.access != "ssh":
        from ..drivers.sbatch.login_node.channel import local_channel

        return local_channel(cluster, _uid(cluster, given["user"]))
    try:
        from ..drivers.sbatch.ssh.credentials import Credentials
        from ..drivers.sbatch.ssh.sign_in import connect
    except ImportError as e:
        reason = f"sign-in needs a package that is not installed here ({e.name})"
        raise Refusal("signInUnreachable", f"{reason}: pip install 'jobscribe[sbatch]'") from None
    from .session.credentials import credentials

    typed = credentials(
        s,
        cluster.login[0].host,
        given["user"],
        given["password_stdin"],
        given["key"],
        given["certificate"],
    )
    secrets = Credentials(
        user=typed.pop("username") or "",
        password=typed.pop("password", None),
        code=typed.pop("otp", None),
        key=typed.pop("private_key", None),
        passphrase=typed.pop("passphrase", None),
        certificate=typed.pop("certificate", None),
    )
    return await connect(cluster, secrets, _silent_log())


def _uid(cluster: "Cluster", user: str | None) -> str:
    """Return the uid of the user to check with. Raises Refusal."""
    from ..protocol.errors import Refusal

    if cluster.access == "account":
        return ""
    if user is None:
        return next(iter(cluster.users))
    found = next((uid for uid, name in cluster.users.items() if user in (uid, name)), None)
    if found is None:
        names = ", ".join(cluster.users.values())
        raise Refusal(
            "notFound",
            f"{user} is not in the `users` of cluster {cluster.name}, which are: {names}",
        )
    return found


def deployment(root: str) -> str:
    """Return the deployment name on clusters: the supervisor's, once it has run in this root."""
    from ..drivers.deployment_name import deployment as name_of

    try:
        key = Path(root, "secret", "agents").read_text().strip()
    except OSError:
        return _NO_DEPLOYMENT
    return name_of(key.encode())


def address(root: str) -> dict[str, Any] | None:
    """Return the address of the supervisor's listener for agents, or None if it has none."""
    try:
        published: dict[str, Any] = json.loads(Path(root, "agents.json").read_bytes())
    except (OSError, ValueError):
        return None
    return published


def _silent_log() -> "Log":
    """Return a log without output: this command already reports the sign-in."""
    from ..protocol.redaction import Redactor
    from ..runtime.log.logger import Direct, Log

    return Log("check", Redactor(), Direct())
