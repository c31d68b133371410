"""The page that a browser gets in place of JSON while no supervisor serves its request: it says so, and loads
itself again. Pure.
"""

import html

#: Seconds after which the page is loaded again.
RELOAD_SECS = 2
CONTENT_TYPE = "text/html; charset=utf-8"
#: Nothing of the page is active, and it loads nothing.
POLICY = "default-src 'none'; frame-ancestors 'none'"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="{secs}">
<meta name="viewport" content="width=device-width">
<title>Please wait</title>
</head>
<body>
<h1>Please wait</h1>
<p>{sentence}.</p>
<p>Jobs continue. This page loads itself again in {secs} seconds.</p>
</body>
</html>
"""


def is_wanted(method: str, accept: str, status: int) -> bool:
    """Return whether a person waits for a refused request: a browser that loads a page, while the server cannot
    serve it (503).
    """
    return status == 503 and method in ("GET", "HEAD") and "text/html" in accept


def page(sentence: str) -> bytes:
    """Return the page. sentence: why, without a full stop."""
    text = html.escape(sentence[:1].upper() + sentence[1:])
    return _PAGE.format(secs=RELOAD_SECS, sentence=text).encode()


def headers() -> dict[str, str]:
    """Return the headers of the page, beside its length."""
    return {
        "Content-Type": CONTENT_TYPE,
        "Retry-After": str(RELOAD_SECS),
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
