"""HTML of the sign-in pages, for browsers with and without scripts. No decisions are made here."""

import html
from collections.abc import Callable, Mapping

import flask

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..blueprint.pages import style_links
from ..request import error_responses
from ..request.context import FrontEndContext

#: Longest value of a form's field.
MAX_FIELD = 1024
Show = Callable[[], flask.Response]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} - jobscribe</title>{links}</head>
<body><header class="bar"><h1 class="mark">jobscribe</h1></header>
<main class="welcome"><div class="card"><h2>{title}</h2>
{content}</div></main></body></html>
"""


def page(title: str, content: str, *, status: int = 200, base: str = "./") -> flask.Response:
    """Return a page. content: HTML, in which the caller has escaped all foreign text. base: the
    address of the site, relative to the page.
    """
    body = _PAGE.format(
        title=html.escape(title), content=content, links=style_links(base.rstrip("/"))
    )
    answer = flask.Response(body, status=status, mimetype="text/html")
    answer.headers["Cache-Control"] = "no-store"
    return answer


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>\n"


def form(action: str, fields: str, buttons: Mapping[str, str]) -> str:
    """Return a form. fields: HTML. buttons: value to label; the field is named `do`."""
    shown = " ".join(
        f'<button name="do" value="{html.escape(value)}">{html.escape(label)}</button>'
        for value, label in buttons.items()
    )
    return f'<form method="post" action="{html.escape(action)}">\n{fields}{shown}\n</form>\n'


def field(name: str, label: str, *, kind: str = "text", value: str = "", complete: str = "") -> str:
    focus = " autofocus" if kind == "text" else ""
    return (
        f'<p><label>{html.escape(label)} <input name="{name}" type="{kind}" value="{html.escape(value)}"'
        f' autocomplete="{complete or "off"}" autocapitalize="none" spellcheck="false" required{focus}'
        f' maxlength="{MAX_FIELD}"></label></p>\n'
    )


def hidden(name: str, value: str) -> str:
    return f'<input type="hidden" name="{name}" value="{html.escape(value)}">\n'


def link(address: str, text: str) -> str:
    return f'<p><a href="{html.escape(address)}">{html.escape(text)}</a></p>\n'


def answered(site: FrontEndContext, show: Show, *, base: str = "./") -> flask.Response:
    """Return the result of `show`. A refusal becomes a page with its code, and is counted and
    logged. Other exceptions are logged and answered as `internal`.
    """
    try:
        return show()
    except Refusal as e:
        refusal = e
    except ClientError as e:
        refusal = error_responses.from_supervisor(e)
    except Exception as e:
        site.counts.add("internal")
        site.log.exception("{} {} failed", flask.request.method, flask.request.path, error=e)
        refusal = Refusal(
            "internal", "an internal error occurred; the log of this site has details"
        )
    if refusal.code != "internal":
        site.counts.add("refused." + refusal.code)
        site.log(
            "{} {} refused: {}: {}",
            flask.request.method,
            flask.request.path,
            refusal.code,
            refusal.sentence,
        )
    return refused(refusal, base=base)


def refused(refusal: Refusal, *, base: str = "./") -> flask.Response:
    """Return the page of a refusal: sentence, advice and code."""
    body = error_responses.body(refusal)
    content = (
        paragraph(f"{refusal.sentence}.")
        + paragraph(f"Next: {body['advice']}.")
        + paragraph(f"Code: {refusal.code}")
        + link(f"{base}sign-in", "Sign in")
        + link(base, "To the page")
    )
    answer = page("This did not work", content, status=refusal.http, base=base)
    if "retryAfterSecs" in refusal.more:
        answer.headers["Retry-After"] = str(refusal.more["retryAfterSecs"])
    return answer


def posted(name: str, *, limit: int = MAX_FIELD) -> str:
    """Return a field of the posted form. Raises Refusal("badRequest") for a long or missing one."""
    value = flask.request.form.get(name, "")
    if not 0 < len(value) <= limit:
        raise Refusal("badRequest", f"the field {name} must have 1 to {limit} characters")
    return value
