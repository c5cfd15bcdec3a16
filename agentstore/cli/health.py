"""``stats``: what there is."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from agentstore.cli.application import AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.output import out, print_json, say


@app.command()
def stats(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Show how much the database holds.

    Example: [bold]agentstore stats --json[/bold]
    """
    database = Database(url, schema, table_prefix)
    with database.open() as store:
        totals = store.usage.totals()
    if as_json:
        print_json(
            {
                "rows": dict(totals.rows),
                "sessions_by_status": dict(totals.sessions_by_status),
                "tokens": totals.tokens,
                "cost": f"{totals.cost:f}",
            }
        )
        return
    table = Table(title=escape(str(database)), title_justify="left", title_style="bold")
    table.add_column("table")
    table.add_column("rows", justify="right")
    for name, rows in totals.rows.items():
        if rows:
            table.add_row(name, f"{rows:,}")
    out.print(table)
    by_status = ", ".join(f"{n:,} {status}" for status, n in totals.sessions_by_status.items())
    say(f"sessions: {by_status or 'none'}")
    say(f"tokens: {totals.tokens:,}   cost: {totals.cost:f}")
