"""A user's private key, and the certificate for it: read, decrypted and looked at before anything
is said to a host.

Deriving the key from a passphrase takes a second of computing, so it is done in a thread.
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
#: rounds of bcrypt; ssh-keygen's default is 16 (24 in later ones), and each takes some milliseconds
_MAX_ROUNDS = 500
#: signing with a larger one would hold everybody up
_MAX_RSA_BITS = 8192
_NO_KEY = "what was given as a private key is none that can be read; give it as OpenSSH writes it, from BEGIN to END"
_NO_PASSPHRASE = "the private key is encrypted; give its passphrase"
_WRONG_PASSPHRASE = "the private key could not be decrypted: the passphrase is wrong"
#: at once; whoever comes later waits
_AT_ONCE = threading.Semaphore(2)


async def key_pair(
    private_key: str, passphrase: str | None, certificate: str | None, user: str
) -> asyncssh.SSHKeyPair | Refusal:
    """What to sign with. A refusal is returned, not raised: no traceback holds what is secret."""
    return await in_thread(lambda: _read(private_key, passphrase, certificate, user))


def _read(
    private_key: str, passphrase: str | None, certificate: str | None, user: str
) -> asyncssh.SSHKeyPair | Refusal:
    with _AT_ONCE:
        return _looked_at(private_key, passphrase, certificate, user)


def _looked_at(
    private_key: str, passphrase: str | None, certificate: str | None, user: str
) -> asyncssh.SSHKeyPair | Refusal:
    if (wrong := _not_readable(private_key)) is not None:
        return _refused(wrong)
    key = _unlocked(private_key, passphrase)
    if isinstance(key, str):
        return _refused(key)
    if len(key.public_data) * 8 > _MAX_RSA_BITS + 1024:
        return _refused(
            f"the private key is too long; RSA keys have at most {_MAX_RSA_BITS} bits here"
        )
    if certificate is None:
        pairs = asyncssh.load_keypairs([key])
        return pairs[0]
    if (wrong := _certificate_wrong(certificate, user)) is not None:
        return _refused(wrong)
    try:
        pairs = asyncssh.load_keypairs([(key, asyncssh.import_certificate(certificate.strip()))])
    except (asyncssh.KeyImportError, ValueError):
        return _refused(
            "the certificate is for another key than the one that was given; give those that belong together"
        )
    pair = next(p for p in pairs if p.has_cert)
    if (
        pair.algorithm == b"ssh-rsa-cert-v01@openssh.com"
    ):  # which servers of today refuse: it once meant signatures with SHA-1
        pair.algorithm, pair.sig_algorithm = b"rsa-sha2-512-cert-v01@openssh.com", b"rsa-sha2-512"
        pair.sig_algorithms = [b"rsa-sha2-512"]
    return pair


def _unlocked(private_key: str, passphrase: str | None) -> asyncssh.SSHKey | str:
    """The key, or the sentence that says why not."""
    try:
        # that an RSA key's primes are primes is not looked at: it takes half a second, and it is
        # the user's own key
        return asyncssh.import_private_key(private_key, passphrase or None, True)
    except asyncssh.KeyEncryptionError:
        return _WRONG_PASSPHRASE if passphrase else _NO_PASSPHRASE
    except asyncssh.KeyImportError as e:
        if "passphrase" in str(e).lower():
            return _NO_PASSPHRASE
    except (ValueError, TypeError, OverflowError):
        pass
    return _NO_KEY


def _not_readable(private_key: str) -> str | None:
    """Why this text is not even tried: another form, or one that would cost a day of computing."""
    lines = private_key.strip().splitlines()
    head = lines[0].strip() if lines else ""
    if head.startswith("PuTTY-User-Key-File"):
        return "the private key is in PuTTY's form; export it as an OpenSSH key (puttygen: Conversions)"
    if head.startswith(("ssh-", "ecdsa-")):
        return "what was given as a private key is a public one; give the file without '.pub'"
    if not (head.startswith("-----BEGIN ") and head.endswith("PRIVATE KEY-----")):
        return _NO_KEY
    if "BEGIN ENCRYPTED PRIVATE KEY" in head:
        return "the private key is encrypted as PKCS#8, which is not read here; 'ssh-keygen -p -f KEY' writes it as OpenSSH's own form"
    if "BEGIN OPENSSH" not in head:
        return None
    try:
        rounds = _rounds(
            base64.b64decode(
                "".join(line.strip() for line in lines[1:] if not line.startswith("-----"))
            )
        )
    except (binascii.Error, ValueError):
        return "the private key is damaged; give it from BEGIN to END, with all its lines"
    return (
        None
        if rounds <= _MAX_ROUNDS
        else f"the private key is encrypted with {rounds} rounds; at most {_MAX_ROUNDS} are computed here"
    )


def _rounds(data: bytes) -> int:
    """How often an OpenSSH key has its passphrase hashed. Format: PROTOCOL.key of OpenSSH. Raises
    ValueError.
    """
    if not data.startswith(_MAGIC):
        raise ValueError
    _cipher, rest = _string(data[len(_MAGIC) :])
    kdf, rest = _string(rest)
    options, _ = _string(rest)
    if kdf == b"none":
        return 0
    _salt, rounds = _string(options)
    return int.from_bytes(rounds[:4], "big")


def _string(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "big")
    if len(data) < 4 + length:
        raise ValueError
    return data[4 : 4 + length], data[4 + length :]


def _certificate_wrong(text: str, user: str) -> str | None:
    """What a host would refuse it for, as far as it can be seen from here."""
    try:
        certificate = load_ssh_public_identity(text.strip().encode())
    except Exception:  # of many kinds, as the bytes are anything
        return "what was given as a certificate is none that can be read; give the file that ends in '-cert.pub'"
    if not isinstance(certificate, SSHCertificate):
        return "what was given as a certificate is a public key; give the file that ends in '-cert.pub'"
    now = time.time()
    if certificate.type is not SSHCertificateType.USER:
        return "the certificate is one for hosts; give one for users"
    if now >= certificate.valid_before:
        return f"the certificate has expired at {_when(certificate.valid_before)}; get a new one from your site"
    if now < certificate.valid_after:
        return f"the certificate is not valid before {_when(certificate.valid_after)}; wait until then, or set the clock right"
    names = [name.decode("utf-8", "replace") for name in certificate.valid_principals]
    if names and user not in names:
        return f"the certificate is for {', '.join(names[:5])} and not for {user}; sign in as who it names"
    return None


def _when(secs: int) -> str:
    return (
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(secs))
        if secs < 1 << 40
        else "the end of time"
    )


def _refused(sentence: str) -> Refusal:
    return Refusal("signInRefused", sentence)
