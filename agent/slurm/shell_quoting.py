"""Words of a shell line."""


def quoted(text: str) -> str:
    """One word, whatever is in it (but NUL)."""
    return "'" + text.replace("'", "'\\''") + "'"
