"""Quoting for shell scripts."""


def quoted(text: str) -> str:
    """Quote any text without NUL as one shell word."""
    return "'" + text.replace("'", "'\\''") + "'"
