"""`job exits`: all that exits can mean, by the table that ships; of one of them the same as
`explain-exit`. Needs no supervisor.
"""

from typing import TYPE_CHECKING

import click

from ..explain_exit import conditions, explain, row_as_data
from ..session.session import command, session

if TYPE_CHECKING:
    from ...diagnosis.exit_table import Row


@command(context_settings={"ignore_unknown_options": True})
@click.argument("code", metavar="[CODE]", required=False)
@click.option(
    "--table",
    metavar="FILE",
    type=click.Path(),
    help="With the rows of this file, which is checked (the setting exits.table).",
)
def exits(code: str | None, table: str | None) -> None:
    """List what exits can mean; or explain one, as `jobscribe explain-exit CODE` does."""
    if code is not None:
        explain(code, table)
        return
    from ...service.site.exit_table_file import load

    _list(load(table).rows)


def _list(rows: "tuple[Row, ...]") -> None:
    from ...diagnosis.causes import CAUSES

    s = session()
    if s.screen.json:
        causes = [
            {"word": c.word, "whose": c.whose, "sentence": c.sentence} for c in CAUSES.values()
        ]
        s.screen.value(
            "jobscribe.job.exits/1", {"items": [row_as_data(row) for row in rows], "causes": causes}
        )
        return
    s.screen.table(
        ("CODE", "PHRASE", "TYPE", "BEHAVIOR", "WHEN"),
        [
            (str(r.code), r.phrase, r.type, "(hint)" if r.when.log else r.behavior, conditions(r))
            for r in rows
        ],
    )
