"""Tables that notebooks show for objects of the client. Pure; nothing here sends requests."""

from collections.abc import Mapping

#: Characters of a value.
_MAX_VALUE = 300


def table(title: str, rows: Mapping[str, object]) -> str:
    """Return an HTML table without scripts or styles. All texts are escaped; rows with None are
    left out.
    """
    import html

    def text(value: object) -> str:
        return html.escape(str(value)[:_MAX_VALUE])

    cells = "".join(
        f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>"
        for name, value in rows.items()
        if value is not None
    )
    return f"<table><caption>{text(title)}</caption>{cells}</table>"
