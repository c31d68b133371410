"""A real HTTP server in threads that receives webhooks in tests. It answers as the test sets,
optionally with TLS.
"""

import contextlib
import datetime
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def ok(handler: http.server.BaseHTTPRequestHandler) -> None:
    reply(handler, 200, b"thank you")


def reply(
    handler: http.server.BaseHTTPRequestHandler, code: int, body: bytes = b"", **headers: str
) -> None:
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


class Receiver:
    """`answer`: handles each request after it is recorded. `got`: headers and bodies, in order."""

    def __init__(self, answer: Answer = ok, tls: tuple[Path, Path] | None = None) -> None:
        self.answer = answer
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                with contextlib.suppress(OSError):
                    receiver.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@contextlib.contextmanager
def receiver(answer: Answer = ok, tls: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    made = Receiver(answer, tls)
    try:
        yield made
    finally:
        made.close()


def certificates(folder: Path) -> tuple[Path, tuple[Path, Path]]:
    """Return the authority's certificate and a signed certificate for 127.0.0.1 with its key."""
    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("of this test", "127.0.0.1")
    ]
    files = []
    for n in range(2):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[n])
            .issuer_name(names[0])
            .public_key(keys[n].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=n == 0, path_length=None), critical=True)
            # Python 3.13 and later require the key usage and the key identifiers
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=n == 0,
                    crl_sign=n == 0,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(keys[n].public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()),
                critical=False,
            )
        )
        if n:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
        file = folder / f"{('ca', 'cert')[n]}.pem"
        file.write_bytes(
            builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        files.append(file)
    key = folder / "key.pem"
    key.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files[0], (files[1], key)
