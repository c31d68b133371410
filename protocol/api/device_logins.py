"""Device logins (RFC 8628): a machine without a browser gets an API token that a person approves
elsewhere. The form of the codes, and limits. Pure.
"""

import re
from base64 import urlsafe_b64encode

from ..errors import Refusal

#: Lifetime of the codes, and the least time between two polls, in seconds.
EXPIRES_SECS, INTERVAL_SECS = 600.0, 5.0
#: Consonants: such codes are no words, and no two letters are easily confused (section 6.1).
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
HALF = 4
#: Random bytes for a user code and for a device code.
USER_BYTES, DEVICE_BYTES = 16, 32
#: Address of the page of the front end on which a person enters the user code.
PAGE = "sign-in/device"
_SEPARATORS = re.compile(r"[\s_-]+")
PREFIX = "jsd_"
_DEVICE_CODE = re.compile(r"jsd_[A-Za-z0-9_-]{43}", re.ASCII)
_CODE = re.compile(f"[{LETTERS}]{{{2 * HALF}}}")


def user_code(text: str) -> str:
    """Return a user code as it is shown, `XXXX-XXXX`, from what a person typed. Raises
    Refusal("deviceCodeUnknown").
    """
    letters = _SEPARATORS.sub("", text[:64]).upper()
    if not _CODE.fullmatch(letters):
        raise Refusal(
            "deviceCodeUnknown",
            f"a code has {2 * HALF} letters, as in WDJB-MJHT; check it and enter it again",
        )
    return f"{letters[:HALF]}-{letters[HALF:]}"


def made_user_code(entropy: bytes) -> str:
    """Return a new user code. entropy: USER_BYTES random bytes."""
    number, letters = int.from_bytes(entropy), ""
    for _ in range(2 * HALF):
        number, index = divmod(number, len(LETTERS))
        letters += LETTERS[index]
    return user_code(letters)


def device_code(entropy: bytes) -> str:
    """Return a new device code, which the machine keeps secret. entropy: DEVICE_BYTES random bytes."""
    return PREFIX + urlsafe_b64encode(entropy[:DEVICE_BYTES]).decode().rstrip("=")


def parse_device_code(text: str) -> str | None:
    """Return a text that has the form of a device code; None for another one."""
    return text if _DEVICE_CODE.fullmatch(text) else None
