"""The pages: one HTML document for all their addresses, and the files that `web/pages` is built to.

The document has no data and no inline script or style. It names the files, the path of the
blueprint, and the signed-in user; the script does the rest.
"""

import functools
import gzip
import html
from pathlib import Path

import flask
import msgspec

from ...protocol.errors import Refusal
from ..request import packed as packed_answers

FILES = Path(__file__).parents[1] / "static" / "app"
#: Shown if the program of the pages does not arrive (style.css).
_LATE = (
    '<p class="late">This page is still loading. If it stays so, <a href="">load it again</a>.</p>'
)
#: Addresses of pages, below the prefix of the blueprint.
PAGES = (  # as in web/pages/src/navigation.ts
    *("/jobs", "/jobs/<path:rest>", "/submit"),
    *("/apps", "/apps/<path:rest>"),
    *("/queues", "/operations"),
    *("/account", "/reference", "/reference/<path:rest>"),
    *("/docs", "/docs/<path:rest>"),
)
FILES_PATH = "/page-files/"
#: Only files and data of this origin, nothing inline, no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The names of the files have a digest of their content.
_FOREVER = "public, max-age=31536000, immutable"
#: Types by suffix, independent of the tables of the machine: browsers refuse scripts of other types.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Smaller files are not compressed.
_SMALL = 1024


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a site. style: address of a stylesheet of the same origin with other values of the
    variables (web/pages/DESIGN.md). home: address of the site's own start page, with its sign-in.
    sign_out: address to which a POST ends the session. device: address of the page on which a person
    logs a machine in. api: address of the supervisor for commands on other machines.
    """

    style: str | None = None
    home: str | None = None
    title: str = "jobscribe"
    sign_out: str | None = None
    device: str | None = None
    api: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """Result of the build: script, style and icon, and further files that the first page needs."""

    script: str
    style: str
    icon: str
    preload: tuple[str, ...] = ()


def document(options: PageOptions, base: str, uid: str) -> flask.Response:
    """Return the document of all pages. base: path of the blueprint, without a slash at its end."""
    manifest = _manifest()
    files = base + FILES_PATH
    metas = {"base": base, "user": uid, "home": options.home or "", "site": options.title}
    more = {"device": options.device, "api": options.api, "sign-out": options.sign_out}
    metas |= {name: value for name, value in more.items() if value}
    head = [
        '<meta charset="utf-8">',
        _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _tag("meta", name="color-scheme", content="light dark"),
        *(_tag("meta", name=f"jobscribe-{name}", content=value) for name, value in metas.items()),
        f"<title>{html.escape(options.title)}</title>",
        _tag("link", rel="icon", href=files + manifest.icon, type="image/svg+xml"),
        _tag("link", rel="stylesheet", href=files + manifest.style),
        *([_tag("link", rel="stylesheet", href=options.style)] if options.style else []),
        *(_tag("link", rel="modulepreload", href=files + name) for name in manifest.preload),
        _tag("script", type="module", src=files + manifest.script) + "</script>",
    ]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        *head,
        "</head>",
        f'<body><div id="app">{_LATE}</div><noscript><p>These pages need JavaScript.</p></noscript></body>',
        "</html>\n",
    ]
    answer = flask.Response("\n".join(lines), mimetype="text/html")
    answer.headers["Content-Security-Policy"] = POLICY
    answer.headers["Referrer-Policy"] = "same-origin"
    answer.headers["Cache-Control"] = "no-store"
    return answer


def file(name: str) -> flask.Response:
    """Return a file of the build. Raises Refusal("notFound")."""
    if name not in _names():
        raise Refusal("notFound", f"there is no file {ascii(name)[:80]}; load the page again")
    content, packed = _content(name)
    answer = packed_answers.answer(content, packed, _TYPES[Path(name).suffix])
    answer.headers["Cache-Control"] = _FOREVER
    return answer


def style_links(base: str) -> str:
    """Return the elements of a head that link icon and style of all pages. base: path of the
    blueprint, without a slash at its end.
    """
    manifest = _manifest()
    files = base + FILES_PATH
    return _tag("link", rel="icon", href=files + manifest.icon, type="image/svg+xml") + _tag(
        "link", rel="stylesheet", href=files + manifest.style
    )


def _tag(element: str, **attributes: str) -> str:
    shown = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<{element}{shown}>"


@functools.cache
def _manifest() -> Manifest:
    return msgspec.json.decode((FILES / "manifest.json").read_bytes(), type=Manifest)


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(f.name for f in FILES.iterdir() if f.suffix in _TYPES)


@functools.cache
def _content(name: str) -> tuple[bytes, bytes]:
    """Return a file and its compressed form, which is empty if it is not smaller."""
    content = (FILES / name).read_bytes()
    packed = gzip.compress(content, 9, mtime=0) if len(content) > _SMALL else b""
    return content, packed if len(packed) < len(content) else b""
