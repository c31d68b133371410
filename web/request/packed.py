"""Compressed answers."""

import flask


def answer(content: bytes, packed: bytes, mimetype: str) -> flask.Response:
    """Return the compressed form to a browser that takes it. packed: empty if there is none."""
    takes_gzip = bool(packed) and flask.request.accept_encodings["gzip"] > 0
    response = flask.Response(packed if takes_gzip else content)
    response.headers["Content-Type"] = mimetype
    response.headers["Vary"] = "Accept-Encoding"
    if takes_gzip:
        response.headers["Content-Encoding"] = "gzip"
    return response
