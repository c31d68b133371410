"""Cursors of pages as texts. A supervisor's is a number; a router's has the position in each shard. Numbers of a
router are over 2^53, so programs in JavaScript page with texts.
"""

from ..errors import Refusal

_MOST_DIGITS = 16


def position(cursor: str) -> int:
    """Return the position of a supervisor's cursor. Raises Refusal("badRequest")."""
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _MOST_DIGITS):
        raise Refusal(
            "badRequest", "the cursor is not one of this site: send that of the last page"
        )
    return int(cursor)


def text(next_: int | None) -> str | None:
    """Return the cursor after a page; None at the end."""
    return None if next_ is None else str(next_)
