"""``reindex``: the search index, made anew."""

from __future__ import annotations

from agentstore.cli.application import AsJson, Database, Prefix, Schema, Url, app
from agentstore.cli.output import print_json, progress, say


@app.command()
def reindex(
    url: Url = None, schema: Schema = None, table_prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Make the search index anew, while the database is in use.

    Example: [bold]agentstore reindex --url postgresql://me@localhost/agents[/bold]
    """
    database = Database(url, schema, table_prefix)
    with database.open() as store, progress(0) as bar:
        task = bar.add_task("indexing", total=None)
        messages = store.search.reindex(
            lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        print_json({"messages": messages})
    else:
        say(f"{messages:,} messages of {database} are indexed.")
