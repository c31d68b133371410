"""An in-process login host: asyncssh's server asks the configured questions and records the
answers.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncssh

from jobscribe.drivers.sbatch.ssh.credentials import Credentials
from jobscribe.drivers.sbatch.ssh.sign_in import connect
from jobscribe.drivers.sbatch.ssh.ssh_channel import SshChannel
from jobscribe.protocol.clusters.cluster import Cluster, LoginHost
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

#: (name, instructions, prompts): one authentication request with several prompts
Round = tuple[str, str, Sequence[tuple[str, bool]]]
HOST_KEY = asyncssh.generate_private_key("ssh-ed25519")


class Output:
    def __init__(self) -> None:
        self.text = ""

    def put(self, text: str) -> None:
        self.text += text

    def close(self) -> None:
        return


def new_log() -> tuple[Log, Output]:
    output = Output()
    return Log("supervisor", Redactor(), Direct(output)), output


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


@dataclass
class Site:
    """The requirements of one host, and the answers that it received. `steps` are the required
    methods, in order.
    """

    password: str | None = None
    rounds: Sequence[Round] = ()
    answers: Sequence[Sequence[str]] = ()
    keys: Sequence[str] = ()
    authority: str | None = None
    steps: Sequence[str] = ()
    banner: str = ""
    #: the banner after a wrong answer; `hang_up`: close the connection after it
    words: str = ""
    hang_up: bool = False
    freeze: bool = False
    change: str = ""
    output: Callable[[str], tuple[int, bytes, bytes] | None] = lambda command: None
    host_keys: Sequence[asyncssh.SSHKey] = (HOST_KEY,)
    options: dict[str, Any] = field(default_factory=dict)
    #: the received answers in order: (method, answer)
    heard: list[tuple[str, Any]] = field(default_factory=list)
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    port: int = 0

    def login(self, *keys: str, via: LoginHost | None = None) -> LoginHost:
        return LoginHost(
            host="127.0.0.1",
            port=self.port,
            keys=keys or tuple(public(k) for k in self.host_keys),
            via=via,
        )

    def cluster(self, **more: Any) -> Cluster:
        return Cluster(
            **{"name": "hpc", "access": "ssh", "login": (self.login(),), "call_secs": 20.0, **more}
        )


class _Door(asyncssh.SSHServer):
    def __init__(self, site: Site) -> None:
        self.site, self.round, self.done = site, 0, 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.conn = conn
        self.site.connections.append(conn)
        whole = conn.send_userauth_success

        async def success() -> None:
            self.done += 1
            if self.done < len(self.site.steps):
                self.round = 0
                conn._auth = None
                conn.send_packet(
                    51,
                    asyncssh.packet.NameList([self.site.steps[self.done].encode()]),
                    asyncssh.packet.Boolean(True),
                )
            else:
                await whole()

        conn.send_userauth_success = success  # type: ignore[method-assign]

    def begin_auth(self, username: str) -> bool:
        if self.site.banner:
            self.conn.send_auth_banner(self.site.banner)
        return True

    def _now(self, method: str) -> bool:
        return (
            not self.site.steps
            or self.site.steps[min(self.done, len(self.site.steps) - 1)] == method
        )

    def _wrong(self) -> bool:
        if self.site.words:
            self.conn.send_auth_banner(self.site.words)
        if self.site.hang_up:
            asyncio.get_running_loop().call_later(0.05, self.conn.abort)
        return False

    async def _frozen(self) -> None:
        if self.site.freeze:
            await asyncio.sleep(600)

    # ---- password

    def password_auth_supported(self) -> bool:
        return self.site.password is not None and self._now("password")

    async def validate_password(self, username: str, password: str) -> bool:
        self.site.heard.append(("password", password))
        await self._frozen()
        if self.site.change:
            raise asyncssh.PasswordChangeRequired(self.site.change)
        if self.site.hang_up:
            self._wrong()
            await asyncio.sleep(600)
        return password == self.site.password or self._wrong()

    # ---- keyboard-interactive

    def kbdint_auth_supported(self) -> bool:
        return bool(self.site.rounds) and self._now("keyboard-interactive")

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        self.round = 0
        return self._question()

    def _question(self) -> Any:
        name, instructions, prompts = self.site.rounds[self.round]
        return name, instructions, "", prompts

    async def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> Any:
        if responses:
            self.site.heard.append(("keyboard-interactive", list(responses)))
        await self._frozen()
        good = list(responses) == list(self.site.answers[self.round])
        self.round += 1
        if not good:
            return self._wrong()
        return True if self.round == len(self.site.rounds) else self._question()

    # ---- keys

    def public_key_auth_supported(self) -> bool:
        return bool(self.site.keys or self.site.authority) and self._now("publickey")

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self.site.heard.append(("key", key.get_fingerprint()))
        return public(key).split()[1] in [k.split()[1] for k in self.site.keys] or self._wrong()

    def validate_ca_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self.site.heard.append(("authority", key.get_fingerprint()))
        return (
            self.site.authority is not None
            and public(key).split()[1] == self.site.authority.split()[1]
        )

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return bool(self.site.options.get("jump", True))

    def unix_server_requested(self, listen_path: str) -> bool:
        return bool(self.site.options.get("forward", True))


async def _execute(site: Site, process: "asyncssh.SSHServerProcess[bytes]") -> None:
    command = process.command or ""
    said = site.output(command)
    if said is not None:
        code, out, err = said
        process.stdout.write(out)
        process.stderr.write(err)
        process.exit(code)
        return
    pipe = asyncio.subprocess.PIPE
    real = await asyncio.create_subprocess_exec(
        "sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        out, err = await real.communicate(await process.stdin.read())
        process.stdout.write(out)
        process.stderr.write(err)
        if real.returncode is not None and real.returncode < 0:
            process.exit_with_signal("TERM" if real.returncode == -15 else "KILL")
        else:
            process.exit(real.returncode or 0)
    finally:
        if real.returncode is None:
            os.killpg(real.pid, 9)
            await real.wait()


@contextlib.asynccontextmanager
async def served(site: Site) -> AsyncIterator[Site]:
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Door(site),
        server_host_keys=list(site.host_keys),
        encoding=None,
        line_editor=False,
        process_factory=lambda process: _execute(site, process),
        config=None,
        login_timeout=0,
    )
    site.port = server.get_port()
    try:
        yield site
    finally:
        server.close()
        for connection in site.connections:
            connection.abort()
        await server.wait_closed()
        await asyncio.sleep(0)


Enter = Callable[..., Awaitable[SshChannel]]


async def enter(cluster: Cluster, log: Log | None = None, **given: Any) -> SshChannel:
    return await connect(cluster, Credentials(**{"user": "ann", **given}), log or new_log()[0])
