"""Parser of JSON with `//` and `/* */` comments and trailing commas. Text in quotes is unchanged."""

import json
import re
from typing import Any

from ..fields import quoted
from .document import Tree

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<mark>[{}\[\],:])"
    r'|(?P<text>"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*")'
    r"|(?P<word>[^\s{}\[\],:\"'/]+)"
)
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False}
_CLOSES = {True: "}", False: "]"}
_SHOWN = 200


def read_json(text: str, tree: Tree) -> None:
    """Parse the text into the tree. Raises InvalidDocument."""
    tokens = _Tokens(text, tree)
    _begin(tokens, tree)
    # True after an opening bracket or a comma: an element or the end may follow
    fresh = True
    while tree.depth:
        token = tokens.next()
        if token == _CLOSES[tree.in_object]:
            tree.end()
            fresh = False
        elif not fresh:
            if token != ",":
                tree.stop(
                    tokens.line,
                    f"it has {_describe(token)}",
                    f"a comma, or {_CLOSES[tree.in_object]}",
                )
            fresh = True
        elif tree.in_object:
            if not token.startswith('"'):
                tree.stop(tokens.line, f"it has {_describe(token)}", "a key in double quotes, or }")
            tree.key(_decoded(token, tokens, tree), tokens.line)
            if (colon := tokens.next()) != ":":
                tree.stop(
                    tokens.line,
                    f"it has {_describe(colon)}",
                    "a colon, and the value of the key",
                )
            fresh = _begin(tokens, tree)
        else:
            fresh = _begin(tokens, tree, token)
    if token := tokens.next():
        tree.stop(
            tokens.line,
            f"it has {_describe(token)} after the end",
            "one object and nothing after it",
        )


class _Tokens:
    """The tokens of the text; "" at its end. line: of the newest token."""

    def __init__(self, text: str, tree: Tree) -> None:
        self._text, self._tree = text, tree
        self._at = self._counted = 0
        self.line = 1

    def next(self) -> str:
        blank = _BLANK.match(self._text, self._at)
        assert blank is not None
        at = blank.end()
        self.line += self._text.count("\n", self._counted, at)
        self._counted = at
        match = _TOKEN.match(self._text, at)
        if match is None:
            self._at = at
            return "" if at == len(self._text) else self._broken(self._text[at : at + 2])
        self._at = match.end()
        return match[0]

    def _broken(self, begin: str) -> str:
        if begin == "/*":
            self._tree.stop(self.line, "the comment has no end", "*/ after it")
        if begin[0] == '"':
            self._tree.stop(
                self.line,
                "the text does not end in its line",
                r"a quote after it; write a line break in a text as \n",
            )
        self._tree.stop(self.line, f"it has {quoted(begin[0])}", "texts in double quotes")
        return ""


def _begin(tokens: _Tokens, tree: Tree, token: str | None = None) -> bool:
    """Add a value, or open an object or list. Returns whether one was opened."""
    token = tokens.next() if token is None else token
    if token == "{":
        tree.begin({}, tokens.line)
        return True
    if token == "[":
        tree.begin([], tokens.line)
        return True
    if token.startswith('"'):
        tree.value(_decoded(token, tokens, tree), tokens.line)
    elif token in _WORDS:
        tree.value(_WORDS[token], tokens.line)
    elif (number := tree.number(token, tokens.line)) is not None:
        tree.value(number, tokens.line)
    else:
        tree.stop(
            tokens.line,
            f"it has {_describe(token)}",
            "a value: a text in double quotes, a number, true, false, null, {...} or [...]",
        )
    return False


def _decoded(token: str, tokens: _Tokens, tree: Tree) -> str:
    try:
        return str(json.loads(token))
    except ValueError as e:
        tree.stop(
            tokens.line,
            f"the text is not valid: {str(e)[:_SHOWN]}",
            r"\\ for a backslash, or one of \n \t \" \u0041",
        )
        raise


def _describe(token: str) -> str:
    return quoted(token) if token else "the end of the file"
