"""`jobscribe auth login` without a token: a real supervisor, the real command, and the page on which
a person approves it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import supervisor_process
from flask.testing import FlaskClient
from front_end_fixture import Lines
from supervisor_process import SupervisorProcess

from jobscribe.client.transport.address import in_root
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.service.settings.settings import Settings
from jobscribe.web.server import application
from jobscribe.web.sign_in.login_sessions import Sessions

HERE = {"Origin": "http://localhost"}


class Machine:
    """A machine with a command line and nothing of the site."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self._home = home
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": supervisor_process.PYTHON_PATH,
        }

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "jobscribe.cli", "auth", "login", *words],
            env=self._env,
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def stored(self) -> str:
        path = self._home / ".config/jobscribe/credentials.json"
        return path.read_text() if path.exists() else ""


def page(answer: Any, status: int = 200) -> str:
    text = str(answer.get_data(as_text=True))
    assert answer.status_code == status, text
    return text


def post(client: FlaskClient, word: str, code: str, **headers: str) -> Any:
    return client.post(
        "/sign-in/device", data={"code": code, "do": word}, headers={**HERE, **headers}
    )


def test_a_person_approves_or_denies_the_login_of_a_machine(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    site = make_site("server.public_url=http://localhost").start()
    lines = Lines()
    app = application.create_app(
        Settings(root=str(site.root)),
        in_root(site.root),
        Log("server", Redactor(), lines),
        sessions=Sessions(None),
    )
    client = app.test_client()
    machine, other = Machine(tmp_path / "one"), Machine(tmp_path / "two")
    url = json.loads((site.root / "client.json").read_text())["url"]
    wrong = machine.begin(url, "--device", "--json", "--name", "laptop <b>")
    _, err = wrong.communicate(timeout=60)
    assert wrong.returncode == 125 and "badRequest" in err, "no such name of a token"
    first = machine.begin(url, "--device", "--json", "--name", "laptop", "--scope", "read")
    second = other.begin(url, "--device")
    try:
        assert first.stdout is not None and second.stderr is not None
        begun = json.loads(first.stdout.readline())
        assert begun["schema"] == "jobscribe.auth.device/1" and "deviceCode" not in begun
        code = begun["userCode"]
        assert begun["verificationUri"] == "http://localhost/sign-in/device"
        match = re.search(r"enter the code (\S+)", second.stderr.readline())
        assert match is not None
        # a visitor signs in first, and then comes back to the code
        to = client.get(f"/sign-in/device?code={code}").headers["Location"]
        assert to == f"../sign-in?device={code}"
        assert f'value="{code}"' in page(client.get(f"/sign-in?device={code}"))
        post_form = client.post("/sign-in", data={"name": "ann", "device": code}, headers=HERE)
        assert post_form.headers["Location"] == f"sign-in/device?code={code}"
        uid = client.get("/who").get_json()["uid"]
        shown = page(client.get(f"/sign-in/device?code={code}"))
        assert all(word in shown for word in ("laptop", "127.0.0.1", code, "read:"))
        assert "control:" not in shown and 'value="approve"' in shown
        # no other site, and no other code
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert "crossSite" in page(post(client, "approve", code, **headers), 403)
        assert "crossSite" in page(
            client.post("/sign-in/device", data={"code": code, "do": "approve"}), 403
        )
        assert "deviceCodeUnknown" in page(post(client, "approve", "BBBB-BBBB"), 400)
        assert "deviceCodeUnknown" in page(post(client, "find", "<script>"), 400)
        assert first.poll() is None and machine.stored == ""
        assert "Approved" in page(post(client, "approve", code.lower().replace("-", "")))
        assert "deviceCodeUnknown" in page(post(client, "approve", code), 400)
        assert 'value="deny"' in page(post(client, "find", match[1]))
        assert "Denied" in page(post(client, "deny", match[1]))
        out, err = first.communicate(timeout=60)
        assert first.returncode == 0, err
        said = json.loads(out)
        assert (said["schema"], said["uid"], said["scopes"]) == (
            "jobscribe.auth.login/1",
            uid,
            ["read"],
        )
        _, err = second.communicate(timeout=60)
        assert second.returncode == 125 and "denied" in err and other.stored == ""
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    (token,) = site.post("token-list", uid=uid)["tokens"]
    assert (token["name"], token["createdBy"]) == ("laptop", uid)
    secret = next(iter(json.loads(machine.stored)["sites"].values()))["token"]
    for text in (out, err, lines.text(), site.logged()):
        assert secret not in text and "jsd_" not in text
    app.extensions["jobscribe"].close()
