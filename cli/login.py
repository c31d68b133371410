"""`jobscribe login` and `jobscribe logout`: sign-in to a cluster and sign-out."""

import click

from .session.credentials import credentials
from .session.session import command, session


@command()
@click.argument("cluster", required=False)
@click.option("--user", "-l", metavar="NAME", help="Unix user there (default: your name here).")
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
def login(
    cluster: str | None,
    user: str | None,
    password_stdin: bool,
    key: str | None,
    certificate: str | None,
) -> None:
    """Sign in to CLUSTER (default: the first one), so that your runs can start there under your
    account. Runs that wait for the sign-in continue.

    The sign-in lasts until 'jobscribe logout' or a restart of the supervisor. Your jobs continue in
    any case. A wrong password is never sent twice, because repeated failures may lock an account.
    For a key with a passphrase, --password-stdin reads the passphrase from line 1.
    """
    if certificate and not key:
        raise click.UsageError("--certificate requires --key")
    s = session()
    client = s.client()
    status = client.sign_in_status(cluster)
    was_ready = status["ready"]
    if was_ready and user is not None:
        # The supervisor refuses this if another user is signed in.
        status = client.sign_in(user, cluster=status["cluster"])
    elif not was_ready:
        given = credentials(s, status["host"], user, password_stdin, key, certificate)
        status = client.sign_in(given.pop("username") or "", cluster=status["cluster"], **given)
    if s.screen.json:
        s.screen.value(
            "jobscribe.login/1", {k: status.get(k) for k in ("cluster", "host", "user", "ready")}
        )
    else:
        already = "already " if was_ready else ""
        s.screen.message(
            f"{already}signed in to {status['cluster']}"
            + (f" as {status['user']}" if status.get("user") else "")
        )


@command()
@click.argument("cluster", required=False)
def logout(cluster: str | None) -> None:
    """Sign out of CLUSTER (default: the first one). Your agent there ends, and its connection is
    closed. Jobs in Slurm continue.

    The state of these jobs is unknown until the next sign-in. Runs that are not in Slurm yet wait
    for it.
    """
    s = session()
    reply = s.client().sign_out(cluster)
    if s.screen.json:
        s.screen.value(
            "jobscribe.logout/1",
            {
                k: reply.get(k)
                for k in ("cluster", "host", "user", "signedOut", "agentEnded", "runs")
            },
        )
        return
    name = reply["cluster"]
    if reply["signedOut"]:
        s.screen.message(
            f"signed out of {name}" + (f" as {reply['user']}" if reply.get("user") else "")
        )
    else:
        s.screen.message(f"you were not signed in to {name}")
    if not reply["agentEnded"]:
        s.screen.message(
            f"your agent on {reply['host']} cannot be reached and may still run; without a supervisor it exits on its own"
        )
    if reply["runs"]:
        s.screen.message(
            f"{reply['runs']} of your runs continue there; after 'jobscribe login {name}' their state is known again"
        )
