"""The documentation for the pages: the Markdown of docs/, which the wheel contains, as one file."""

import functools
import gzip
import hashlib
from pathlib import Path

import flask
import msgspec

from ..request import packed as packed_answers

FOLDER = Path(__file__).parents[2] / "docs"
#: Below the path of the files of the pages.
NAME = "docs.json"


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its name, without `.md`."""
    return {f.stem: f.read_text(encoding="utf-8") for f in sorted(FOLDER.glob("*.md"))}


def answer() -> flask.Response:
    """Return all pages. A browser asks whether its copy is current."""
    content, packed, digest = _file()
    response = packed_answers.answer(content, packed, "application/json")
    response.headers["Cache-Control"] = "no-cache"
    response.set_etag("-".join([digest, *response.headers.getlist("Content-Encoding")]))
    response.make_conditional(flask.request)
    return response


@functools.cache
def _file() -> tuple[bytes, bytes, str]:
    """Return the file, its compressed form, and its digest."""
    content = msgspec.json.encode({"pages": pages()})
    return content, gzip.compress(content, 9, mtime=0), hashlib.sha256(content).hexdigest()[:16]
