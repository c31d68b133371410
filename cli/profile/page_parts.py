"""The frame of pages that need no network. Pure."""

from html import escape

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>body{{font:13px sans-serif;margin:1em}}h1{{font-size:16px}}svg{{width:100%}}
text{{font:11px monospace;pointer-events:none}}rect{{stroke:#fff;stroke-width:.5}}
.curve{{fill:none;stroke:#1664c0;stroke-width:1.5}}.axis{{stroke:#888}}</style></head>
<body><h1>{title}</h1><p>{about}</p>{body}</body></html>
"""


def page(title: str, about: str, body: str) -> str:
    """Return a page. body: trusted HTML; everything else is text."""
    return _PAGE.format(title=escape(title), about=escape(about), body=body)
