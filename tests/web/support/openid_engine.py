"""A real OpenID Connect provider: Debian's glewlwyd, with one client and one user, on loopback."""

import http.cookiejar
import os
import socket
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

ROOT = Path(__file__).resolve().parents[3]
CLIENT, SECRET = "jobscribe-site", "Zx4kQ9vB7mN2pL5wR8tY3uJ6hG1fD0sA"
USER, PASSWORD = "ann", "Pw7-of-ann-at-the-provider"
CONFIG = """
port={port}
bind_address="127.0.0.1"
external_url="http://127.0.0.1:{port}"
login_url="login.html"
api_prefix="api"
log_mode="file"
log_level="WARNING"
log_file="{place}/log"
cookie_same_site="empty"
session_expiration=3600
session_key="GLEWLWYD2_SESSION_ID"
admin_scope="g_admin"
profile_scope="g_profile"
user_module_path="{modules}/user"
client_module_path="{modules}/client"
user_auth_scheme_module_path="{modules}/scheme"
plugin_module_path="{modules}/plugin"
hash_algorithm="SHA512"
database = {{ type = "sqlite3" path = "{place}/database" }}
"""


def programs() -> Path:
    """Return the folder that has the provider's bin and lib. Skips the test if it is missing."""
    engine = ROOT / "etc/engines/glewlwyd.sh"
    done = subprocess.run([engine, "where"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{done.stderr.strip()} (make engines does it)")
    return Path(done.stdout.strip())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class OpenIdEngine:
    """One provider process. place: an empty folder. redirect_uri: of the client."""

    def __init__(self, place: Path, redirect_uri: str) -> None:
        usr = programs()
        self._place, self.port = place, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.issuer = self.url + "/api/oidc"
        (place / "conf").write_text(
            CONFIG.format(port=self.port, place=place, modules=usr / "lib/glewlwyd")
        )
        scheme = usr / "share/dbconfig-common/data/glewlwyd/install/sqlite3"
        with sqlite3.connect(place / "database") as database:
            database.execute("PRAGMA synchronous = OFF")
            database.executescript(scheme.read_text())
        database.close()
        self._command = [usr / "bin/glewlwyd", f"--config-file={place / 'conf'}"]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self._set_up(redirect_uri)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        over = time.monotonic() + 20
        while True:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < over and self._process.poll() is None, self.log()
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def log(self) -> str:
        path = self._place / "log"
        return path.read_text() if path.exists() else "no log"

    def _set_up(self, redirect_uri: str) -> None:
        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        public = (
            key.public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            .decode()
        )
        with requests.Session() as admin:
            self._ask(admin, "POST", "auth/", {"username": "admin", "password": "password"})
            scope = {"name": "profile", "display_name": "Profile", "password_required": False}
            self._ask(admin, "POST", "scope/", scope)
            self._ask(
                admin,
                "POST",
                "mod/plugin/",
                {"module": "oidc", "name": "oidc", "display_name": "oidc", "order_rank": 0}
                | {"readonly": False, "parameters": self._plugin(pem, public)},
            )
            client = {"client_id": CLIENT, "name": "site", "password": SECRET, "enabled": True}
            client |= {"redirect_uri": [redirect_uri], "authorization_type": ["code"]}
            client |= {
                "confidential": True,
                "scope": [],
                "token_endpoint_auth_method": ["client_secret_basic"],
            }
            self._ask(admin, "POST", "client/", client)
            user = {"username": USER, "password": PASSWORD, "name": "Ann", "enabled": True}
            user |= {"scope": ["g_profile", "openid", "profile"], "email": "ann@example.org"}
            self._ask(admin, "POST", "user/", user)
        with requests.Session() as person:
            self.sign_in(person)
            self._ask(person, "PUT", f"auth/grant/{CLIENT}", {"scope": "openid profile"})

    def _plugin(self, key: str, cert: str) -> dict[str, Any]:
        off = dict.fromkeys(
            ("token", "id-token", "none", "password", "client", "device", "refresh", "implicit"),
            False,
        )
        return {
            "iss": self.issuer,
            "jwt-type": "rsa",
            "jwt-key-size": "256",
            "key": key,
            "cert": cert,
            "access-token-duration": 3600,
            "refresh-token-duration": 3600,
            "code-duration": 600,
            "refresh-token-rolling": False,
            "allow-non-oidc": False,
            "subject-type": "public",
            "auth-type-code-enabled": True,
            **{f"auth-type-{name}-enabled": value for name, value in off.items()},
            "pkce-allowed": True,
            "pkce-required": True,
            "pkce-method-plain-allowed": False,
            "claims": [
                {
                    "name": "preferred_username",
                    "user-property": "username",
                    "type": "string",
                    "mandatory": True,
                    "on-demand": False,
                    "scope": [],
                }
            ],
        }

    def _ask(self, session: requests.Session, method: str, path: str, body: Any) -> None:
        answer = session.request(method, f"{self.url}/api/{path}", json=body, timeout=20)
        assert answer.status_code == 200, (path, answer.status_code, answer.text, self.log())

    def sign_in(self, session: requests.Session, password: str = PASSWORD) -> None:
        """Sign the user in at the provider, as its page does."""
        self._ask(session, "POST", "auth/", {"username": USER, "password": password})
