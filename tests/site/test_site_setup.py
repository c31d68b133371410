"""docs/site-setup.md: its commands make a site, from nothing, with nginx and a sign-in. A user of it
works with a token, and logs a machine in by approving it.

As root, site and user are in two network namespaces: two machines with a cable between them.
Otherwise both are here, on loopback.
"""

import contextlib
import grp
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import supervisor_process
import tornado.testing
from supervisor_process import texts_below, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "site-setup.md"
ROOT = PAGE.parents[1]
#: Debian's main file of nginx, as far as this site needs it.
NGINX = """
user {user} {group};
pid {etc}/nginx.pid;
error_log {etc}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {etc}/body;
    proxy_temp_path {etc}/proxy;
    fastcgi_temp_path {etc}/fastcgi;
    uwsgi_temp_path {etc}/uwsgi;
    scgi_temp_path {etc}/scgi;
    include {etc}/sites-enabled/*;
}}
"""
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    socket, port = tornado.testing.bind_unused_port()
    socket.close()
    return port


class Machines:
    """Two network namespaces with a cable, for root; else both are this machine. site: address of
    the site's machine. one: why there is only one.
    """

    def __init__(self) -> None:
        self.site, self.one, self._names = "127.0.0.1", "", dict[str, str]()
        try:
            self._connect()
        except (OSError, subprocess.CalledProcessError) as e:
            self.close()
            self.site, self.one, self._names = "127.0.0.1", str(e), {}

    def _connect(self) -> None:
        for which in ("site", "user"):
            name = f"js-{which}-{os.getpid()}"
            ip("netns", "add", name)
            self._names[which] = name
            ip("-n", name, "link", "set", "lo", "up")
        site, user = self._names.values()
        ip("-n", site, "link", "add", "v0", "type", "veth", "peer", "v0", "netns", user)
        self.site = "10.77.0.1"
        for name, address in ((site, self.site), (user, "10.77.0.2")):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
            ip("-n", name, "link", "set", "v0", "up")

    def on(self, which: str) -> tuple[str, ...]:
        """Return the beginning of a command line on this machine."""
        name = self._names.get(which)
        return () if name is None else ("nsenter", f"--net=/run/netns/{name}")

    def close(self) -> None:
        for name in self._names.values():
            ip("netns", "delete", name)


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, timeout=20, stdin=subprocess.DEVNULL)


class Walk:
    """A shell that runs the blocks of the page. place: stands for /srv/jobscribe."""

    def __init__(self, place: Path, machines: Machines) -> None:
        self.place, self.machines = place, machines
        self.port, http, front, browsers = (free_port() for _ in range(4))
        self.pages = f"https://jobs.example.org:{browsers}"
        user, group = proxy_user()
        self._names = {
            "127.0.0.1:8000": f"localhost:{front}",
            "127.0.0.1:8001": f"localhost:{http}",
            "/srv/jobscribe": str(place),
            "/etc/nginx": f"{place}/nginx",
            '"www-data"': f'"{user}"',
            "-g www-data": f"-g {group}",
            "https://jobs.example.org": self.pages,
            "listen 443": f"listen {browsers}",
            "jobs.example.org:443:": f"jobs.example.org:{browsers}:",
            "8443": str(self.port),
            "127.0.0.1": machines.site,
            "localhost:": "127.0.0.1:",
            "[supervisor]\n": f'[supervisor]\nport = {http}\ntls_ip = "{machines.site}"\n',
            "[server]\n": f"[server]\nport = {front}\n",
        }
        nginx = place / "nginx"
        for folder in ("bin", "nginx", "nginx/sites-available", "nginx/sites-enabled"):
            (place / folder).mkdir()
        place.chmod(0o711)  # nginx reads its users as another unix user
        (nginx / "nginx.conf").write_text(NGINX.format(etc=nginx, user=user, group=group))
        python = supervisor_process.PYTHON_PATH
        self._program(
            "jobscribe", f'PYTHONPATH={python} exec {sys.executable} -m jobscribe.cli "$@"'
        )
        start = f"exec {nginx_program()} -c {nginx}/nginx.conf -e {nginx}/error.log"
        self._program("systemctl", f'[ "$*" = "reload nginx" ] && {start}')
        self._state = place / "state"
        self._state.write_text(f"cd {place}\n")

    def _program(self, name: str, line: str) -> None:
        path = self.place / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def run(self, block: str, machine: str = "site") -> str:
        for name, real in self._names.items():
            block = block.replace(name, real)
        script = f'. {self._state}\n{block}\n{{ export -p; echo cd "$PWD"; }} > {self._state}\n'
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JOBSCRIBE_", "XDG_"))}
        path = f"{self.place}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [*self.machines.on(machine), "bash", "-eu", "-o", "pipefail", "-c", script],
            env=env | {"HOME": str(self.place), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        for name in ("etc/supervisor.pid", "etc/server.pid", "nginx/nginx.pid"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int((self.place / name).read_text()), signal.SIGTERM)


def proxy_user() -> tuple[str, str]:
    """Return unix user and group of nginx: www-data for root, who alone may start it as another one."""
    if os.geteuid() == 0:
        return "www-data", "www-data"
    return pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name


def nginx_program() -> Path:
    engine = ROOT / "etc/engines/unpacked.sh"
    done = subprocess.run([engine, "where", "nginx", "nginx"], capture_output=True, text=True)
    if done.returncode or shutil.which("curl") is None:
        pytest.skip(f"the page needs curl and nginx: {done.stderr.strip()} (make engines)")
    return Path(done.stdout.strip()) / "nginx"


@pytest.fixture
def walk() -> Iterator[Walk]:
    place = Path(tempfile.mkdtemp(prefix="site-"))
    machines = Machines()
    made = Walk(place, machines)
    yield made
    made.stop()
    until(lambda: not processes_below(place), "nothing runs any more", 20)
    machines.close()
    shutil.rmtree(place)


def processes_below(place: Path) -> list[str]:
    """Return the command lines that name the folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(place) in line:
                found.append(line)
    return found


def test_the_commands_make_a_site(walk: Walk) -> None:
    *before, as_user, afterwards = _BLOCK.findall(PAGE.read_text())
    *_, uids, _, started, _, signed_in, token = map(walk.run, before)
    names = dict(line.split() for line in uids.splitlines()[1:])
    assert list(names) == ["ann", "head", "chief"]
    user, operator = walk.run(as_user, "user"), walk.run(afterwards)
    assert started == "ok\n" and token == ""
    assert signed_in == "401\n200\n"
    me, *_, hello, counted, ended, why = user.splitlines()
    at = f"{names['ann']} at https://{walk.machines.site}:{walk.port}, role user"
    assert me.startswith(at), user
    assert [hello, ended, counted] == ["hello from the site", "exit 3", "counting"]
    assert "failed with exit code 3" in why
    audit, *tokens = operator.splitlines()
    assert f"acted for {names['ann']}: token-create" in audit and "laptop" in tokens[-1]
    _log_in_by_approval(walk, names["ann"])
    etc = walk.place / "etc"
    usage = json.loads((etc / "usage.json").read_text())
    assert names["ann"] in json.dumps(usage) and names["ann"] in (etc / "disk.txt").read_text()
    password = (walk.place / "nginx" / "ann.password").read_bytes().strip()
    secrets = [password, *((etc / f).read_bytes().strip() for f in ("secret", "ann.token"))]
    left = texts_below(*(walk.place / "data" / f for f in ("log", "db", "agent", "supervisor-job")))
    assert left and not [name for name, text in left.items() if any(s in text for s in secrets)]
    if walk.machines.one:
        pytest.skip(f"all passed, but on one machine: no network namespaces ({walk.machines.one})")


def _log_in_by_approval(walk: Walk, uid: str) -> None:
    """The machine of the user asks, and Ann approves it with her password at nginx."""
    walk.run(
        r"""
        export HOME=/srv/jobscribe/other
        unset JOBSCRIBE_ROOT
        mkdir $HOME
        jobscribe auth login https://127.0.0.1:8443 --device --json > $HOME/said 2> $HOME/err &
        login=$!
        until [ -s $HOME/said ] || ! kill -0 $login; do sleep 0.1; done
        [ -s $HOME/said ] || { cat $HOME/err >&2; false; }
        code=$(sed 's/.*"userCode":"\([A-Z-]*\)".*/\1/' $HOME/said)
        curl -sf -o $HOME/page --cacert /srv/jobscribe/etc/cert.pem --netrc-file /etc/nginx/ann.netrc \
            --resolve jobs.example.org:443:127.0.0.1 -H 'Origin: https://jobs.example.org' \
            -d code=$code -d do=approve https://jobs.example.org/sign-in/device
        wait $login
        jobscribe auth whoami > $HOME/who
        """,
        "user",
    )
    other = walk.place / "other"
    begun = json.loads((other / "said").read_text().splitlines()[0])
    assert begun["verificationUri"] == f"{walk.pages}/sign-in/device"
    assert (other / "who").read_text().startswith(f"{uid} at https://")
