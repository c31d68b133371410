"""JSON as people write it: with `//` and `/* */` comments, and a comma after the last element.
Nothing inside a text is touched.
"""

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
    """Raises BadDescription."""
    tokens = _Tokens(text, tree)
    _begin(tokens, tree)
    # just after an opening bracket or a comma: an element may come, or the end
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
                    f"there is {_told(token)}",
                    f"a comma, or {_CLOSES[tree.in_object]}",
                )
            fresh = True
        elif tree.in_object:
            if not token.startswith('"'):
                tree.stop(tokens.line, f"there is {_told(token)}", "a key in double quotes, or }")
            tree.key(_decoded(token, tokens, tree), tokens.line)
            if (colon := tokens.next()) != ":":
                tree.stop(
                    tokens.line, f"there is {_told(colon)}", "a colon, and the value of the key"
                )
            fresh = _begin(tokens, tree)
        else:
            fresh = _begin(tokens, tree, token)
    if token := tokens.next():
        tree.stop(
            tokens.line, f"there is {_told(token)} after the end", "one object and nothing after it"
        )


class _Tokens:
    """The pieces of the text, one after another; "" at its end. line: of the newest one."""

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
                "the text has no end in its line",
                r"a quote after it; a line break in a text is written \n",
            )
        self._tree.stop(self.line, f"there is {quoted(begin[0])}", "texts in double quotes")
        return ""


def _begin(tokens: _Tokens, tree: Tree, token: str | None = None) -> bool:
    """A value, or the beginning of an object or list: then what is in it comes next."""
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
            f"there is {_told(token)}",
            "a value: a text in double quotes, a number, true, false, null, {...} or [...]",
        )
    return False


def _decoded(token: str, tokens: _Tokens, tree: Tree) -> str:
    try:
        return str(json.loads(token))
    except ValueError as e:
        tree.stop(
            tokens.line,
            f"the text cannot be read: {str(e)[:_SHOWN]}",
            r"\\ for a backslash, or one of \n \t \" \u0041",
        )
        raise


def _told(token: str) -> str:
    return quoted(token) if token else "the end of the file"
