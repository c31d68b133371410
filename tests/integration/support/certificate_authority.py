"""A certificate authority for tests."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs server certificates for addresses."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(
            self.name, self.key.public_key(), x509.BasicConstraints(ca=True, path_length=0), None
        )

    def _sign(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePublicKey,
        constraints: x509.BasicConstraints,
        names: x509.SubjectAlternativeName | None,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(constraints, critical=True)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, folder: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """Issue a server certificate. Return the paths of the certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
        certificate = self._sign(
            name, key.public_key(), x509.BasicConstraints(ca=False, path_length=None), names
        )
        cert_file, key_file = folder / "cert.pem", folder / "key.pem"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key_file.chmod(0o600)
        return cert_file, key_file

    def write(self, file: Path) -> Path:
        file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return file
