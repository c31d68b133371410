"""`jobscribe job exits`: the table of exits, without a supervisor. With a code, the same as
`explain-exit`.
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
    help="Add the rows of this file (the setting exits.table); it is checked.",
)
def exits(code: str | None, table: str | None) -> None:
    """List the meanings of exits. With CODE, explain it like `jobscribe explain-exit CODE`."""
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
