"""Files with the credentials of a user for one image registry. Pure; no message shows their content."""

import msgspec

from ...protocol.jobs.registry_login import RegistryLogin, registry_name

FORM = "three lines: the registry, the user name, the password"
#: Maximum bytes of a file with credentials or one secret.
MAX_BYTES = 64 * 1024


def parse_auth_file(content: bytes) -> RegistryLogin | None:
    """Return the credentials in a file of OpenPAI's form. None if it has another form."""
    try:
        lines = [line.strip() for line in content.decode().splitlines()]
    except UnicodeDecodeError:
        return None
    while lines and not lines[-1]:
        lines.pop()
    return login(*lines) if len(lines) == 3 else None


def parse_secret_file(content: bytes) -> str | None:
    """Return the secret in a file: its text without the line break at its end, as a shell reads it."""
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return None
    return text if text and text.isprintable() else None


def login(registry: str, username: str, password: str) -> RegistryLogin | None:
    """Return credentials; None if a part is missing or too long."""
    try:
        return msgspec.convert(
            {"registry": registry_name(registry), "username": username, "password": password},
            RegistryLogin,
        )
    except msgspec.ValidationError:
        return None
