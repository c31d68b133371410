"""A user's private key and its certificate: read, decrypted and checked before a host is contacted.

Key derivation from a passphrase takes a second of CPU time, so it runs in a thread.
"""

import base64
import binascii
import threading
import time

import asyncssh
from cryptography.hazmat.primitives.serialization import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from ....protocol.errors import Refusal
from ....runtime.one_shot_thread import in_thread

_MAGIC = b"openssh-key-v1\0"
#: Maximum bcrypt rounds. ssh-keygen's default is 16 (24 in later versions); each takes some
#: milliseconds.
_MAX_ROUNDS = 500
#: Signing with a larger key would block the event loop.
_MAX_RSA_BITS = 8192
_NO_KEY = "the private key is unreadable; give it in OpenSSH's format, complete from BEGIN to END"
_NO_PASSPHRASE = "the private key is encrypted; give its passphrase"
_WRONG_PASSPHRASE = "the private key could not be decrypted: the passphrase is wrong"
#: limits concurrent key derivations
_KDF_SLOTS = threading.Semaphore(2)


async def key_pair(
    private_key: str, passphrase: str | None, certificate: str | None, user: str
) -> asyncssh.SSHKeyPair | Refusal:
    """Return the key pair for signing. A refusal is returned, not raised, so that no traceback
    holds secrets.
    """
    return await in_thread(lambda: _read(private_key, passphrase, certificate, user))


def _read(
    private_key: str, passphrase: str | None, certificate: str | None, user: str
) -> asyncssh.SSHKeyPair | Refusal:
    with _KDF_SLOTS:
        return _load_pair(private_key, passphrase, certificate, user)


def _load_pair(
    private_key: str, passphrase: str | None, certificate: str | None, user: str
) -> asyncssh.SSHKeyPair | Refusal:
    if (problem := _format_problem(private_key)) is not None:
        return _refused(problem)
    key = _decrypt(private_key, passphrase)
    if isinstance(key, str):
        return _refused(key)
    if len(key.public_data) * 8 > _MAX_RSA_BITS + 1024:
        return _refused(
            f"the private key is too long; RSA keys have at most {_MAX_RSA_BITS} bits here"
        )
    if certificate is None:
        pairs = asyncssh.load_keypairs([key])
        return pairs[0]
    if (problem := _certificate_problem(certificate, user)) is not None:
        return _refused(problem)
    try:
        pairs = asyncssh.load_keypairs([(key, asyncssh.import_certificate(certificate.strip()))])
    except (asyncssh.KeyImportError, ValueError):
        return _refused(
            "the certificate belongs to another key; give the certificate and its own key"
        )
    pair = next(p for p in pairs if p.has_cert)
    # servers refuse this algorithm, because it stands for SHA-1 signatures
    if pair.algorithm == b"ssh-rsa-cert-v01@openssh.com":
        pair.algorithm, pair.sig_algorithm = b"rsa-sha2-512-cert-v01@openssh.com", b"rsa-sha2-512"
        pair.sig_algorithms = [b"rsa-sha2-512"]
    return pair


def _decrypt(private_key: str, passphrase: str | None) -> asyncssh.SSHKey | str:
    """Return the key, or a sentence with the reason for a failure."""
    try:
        # skip the primality check of RSA keys: it takes half a second, and the key is the user's
        # own
        return asyncssh.import_private_key(private_key, passphrase or None, True)
    except asyncssh.KeyEncryptionError:
        return _WRONG_PASSPHRASE if passphrase else _NO_PASSPHRASE
    except asyncssh.KeyImportError as e:
        if "passphrase" in str(e).lower():
            return _NO_PASSPHRASE
    except (ValueError, TypeError, OverflowError):
        pass
    return _NO_KEY


def _format_problem(private_key: str) -> str | None:
    """Return why this text is not decoded: an unsupported format, or too many key derivation
    rounds.
    """
    lines = private_key.strip().splitlines()
    head = lines[0].strip() if lines else ""
    if head.startswith("PuTTY-User-Key-File"):
        return (
            "the private key is in PuTTY's format; "
            "export it as an OpenSSH key (puttygen: Conversions)"
        )
    if head.startswith(("ssh-", "ecdsa-")):
        return "a public key was given instead of a private key; give the file without '.pub'"
    if not (head.startswith("-----BEGIN ") and head.endswith("PRIVATE KEY-----")):
        return _NO_KEY
    if "BEGIN ENCRYPTED PRIVATE KEY" in head:
        return (
            "the private key is encrypted as PKCS#8, which is not supported; "
            "'ssh-keygen -p -f KEY' converts it to OpenSSH's format"
        )
    if "BEGIN OPENSSH" not in head:
        return None
    try:
        rounds = _rounds(
            base64.b64decode(
                "".join(line.strip() for line in lines[1:] if not line.startswith("-----"))
            )
        )
    except (binascii.Error, ValueError):
        return "the private key is damaged; give it complete, with all lines from BEGIN to END"
    return (
        None
        if rounds <= _MAX_ROUNDS
        else f"the private key is encrypted with {rounds} rounds; at most {_MAX_ROUNDS} are allowed"
    )


def _rounds(data: bytes) -> int:
    """Return the number of passphrase hashing rounds of an OpenSSH key (format: PROTOCOL.key of
    OpenSSH). Raises ValueError.
    """
    if not data.startswith(_MAGIC):
        raise ValueError
    _cipher, rest = _read_string(data[len(_MAGIC) :])
    kdf, rest = _read_string(rest)
    options, _ = _read_string(rest)
    if kdf == b"none":
        return 0
    _salt, rounds = _read_string(options)
    return int.from_bytes(rounds[:4], "big")


def _read_string(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "big")
    if len(data) < 4 + length:
        raise ValueError
    return data[4 : 4 + length], data[4 + length :]


def _certificate_problem(text: str, user: str) -> str | None:
    """Return why a host would refuse this certificate, as far as can be checked here."""
    try:
        certificate = load_ssh_public_identity(text.strip().encode())
    except Exception:  # invalid bytes raise many kinds of errors
        return "the certificate is unreadable; give the file that ends in '-cert.pub'"
    if not isinstance(certificate, SSHCertificate):
        return "a public key was given instead of a certificate; give the file that ends in '-cert.pub'"
    now = time.time()
    if certificate.type is not SSHCertificateType.USER:
        return "the certificate is a host certificate; give a user certificate"
    if now >= certificate.valid_before:
        return (
            f"the certificate expired at {_format_time(certificate.valid_before)}; "
            "get a new one from your site"
        )
    if now < certificate.valid_after:
        return (
            f"the certificate is not valid before {_format_time(certificate.valid_after)}; "
            "wait until then, or correct the clock"
        )
    names = [name.decode("utf-8", "replace") for name in certificate.valid_principals]
    if names and user not in names:
        return (
            f"the certificate is for {', '.join(names[:5])} and not for {user}; "
            "sign in as a user that it names"
        )
    return None


def _format_time(secs: int) -> str:
    return (
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(secs))
        if secs < 1 << 40
        else "the end of time"
    )


def _refused(sentence: str) -> Refusal:
    return Refusal("signInRefused", sentence)
