"""Texts of apps for job commands and workers: the name of the file with a stored result, and text of
the app in messages. No imports, because each job command loads this module.
"""

#: Name of the file with a sequential model's result in the run directory.
RESULT = "out.json"
_LINE_CHARS = 500


def one_line(text: str) -> str:
    """Return the text on one line, shortened, with valid characters."""
    line = " ".join(text.split())
    return whole(line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + "...")


def whole(text: str) -> str:
    """Show lone surrogates, which no message can carry, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
