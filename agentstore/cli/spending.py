"""``usage`` and ``prices``: what models used and cost, and what they would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from agentstore.cli.application import LOOK, AsJson, Database, Prefix, Schema, Url, app, whole_id
from agentstore.cli.output import (
    bar,
    brief,
    hint,
    money,
    on_one_line,
    out,
    print_json,
    room_beside,
    table,
)
from agentstore.cli.times import instant
from agentstore.errors import InvalidInput, PriceUnknown
from agentstore.records import UsageSum
from agentstore.values.prices import Prices, Quote, default_prices

_DIMENSIONS = ("day", "model", "user", "session", "turn", "branch", "total")
_FACTS = (("REQUESTS", 8), ("IN", 5), ("OUT", 5), ("USED", 6), ("COST", 9))
_LONGEST_KEY = 24


@app.command(rich_help_panel=LOOK)
def usage(
    by: Annotated[
        str,
        typer.Option(
            help="day, model, user, session, turn, branch or total.",
            autocompletion=lambda: list(_DIMENSIONS),
        ),
    ] = "day",
    user: Annotated[str | None, typer.Option(help="Only this user's sessions.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=instant, metavar="TIME", help="Not before this time, such as 2026-03-01, UTC."
        ),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(parser=instant, metavar="TIME", help="Only before this time.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Only today and the days before, in UTC.")
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Draw the costs, not the tokens.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many bars to draw.")] = 30,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Sum up what requests to models used, and draw a chart.

    Days are in their order, the last ones if there are more than --limit; everything else begins
    with what used most. JSON has all of it.

    Example: [bold]agentstore usage --by model --days 7[/bold]
    """
    if days is not None:
        if since is not None:
            raise InvalidInput("--days and --since both set the beginning. Pass only one of them.")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        since = today - timedelta(days=days - 1)
    filters: dict[str, Any] = {"user_id": user, "model": model, "since": since, "until": until}
    with Database(url, schema, table_prefix).read() as store:
        if session is not None:
            filters["session_id"] = whole_id(store, session)
        sums = store.usage.sum_by(cast("Any", by), **filters)
    total = _total(sums)
    if as_json:
        print_json({"by": by, "sums": sums, "total": total})
        return
    if not sums:
        hint("No usage was recorded.")
        return
    if by != "total":
        _print_chart(by, sums, limit, by_cost=cost)
    _print_total(total)


def _total(sums: tuple[UsageSum, ...]) -> UsageSum:
    """Add sums up, instead of asking again, when there may be more."""
    return UsageSum(
        key=None,
        requests=sum(one.requests for one in sums),
        input_tokens=sum(one.input_tokens for one in sums),
        output_tokens=sum(one.output_tokens for one in sums),
        total_tokens=sum(one.total_tokens for one in sums),
        cost=sum((one.cost for one in sums), Decimal(0)),
        unpriced_requests=sum(one.unpriced_requests for one in sums),
    )


def _print_chart(by: str, sums: tuple[UsageSum, ...], limit: int, *, by_cost: bool) -> None:
    def amount(one: UsageSum) -> Decimal:
        return one.cost if by_cost else Decimal(one.total_tokens)

    in_order = by in ("day", "turn", "branch")
    ordered = list(sums) if in_order else sorted(sums, key=amount, reverse=True)
    shown = ordered[-limit:] if in_order else ordered[:limit]
    most = max(map(amount, shown)) or Decimal(1)
    keys = ["-" if one.key is None else on_one_line(str(one.key)) for one in shown]
    longest = 36 if by == "session" else _LONGEST_KEY
    width = min(max(Text(key).cell_len for key in [*keys, by]), longest)
    facts = _FACTS[3:] if by == "session" else _FACTS
    room = room_beside(width, *(each for _, each in facts))
    lines = table()
    lines.add_column(by.upper(), width=width, overflow="fold", style="cyan")
    lines.add_column("", width=room, no_wrap=True)
    for name, each in facts:
        lines.add_column(name, width=each, justify="right", no_wrap=True)
    for key, one in zip(keys, shown, strict=True):
        cells = [
            brief(one.requests),
            brief(one.input_tokens),
            brief(one.output_tokens),
            brief(one.total_tokens),
            _cost(one),
        ]
        drawn = Text(bar(float(amount(one) / most), room), style="green")
        lines.add_row(Text(key), drawn, *cells[-len(facts) :])
    out.print(lines)
    if len(ordered) > len(shown):
        hint(f"{len(ordered) - len(shown):,} more: pass --limit.")


def _print_total(total: UsageSum) -> None:
    out.print(
        Text.assemble(
            (f"{total.total_tokens:,} used tokens", "bold"),
            f" ({total.input_tokens:,} in, {total.output_tokens:,} out) in "
            f"{total.requests:,} requests, cost ",
            (money(total.cost), "bold"),
        )
    )
    if total.unpriced_requests:
        hint(f"The cost leaves out {total.unpriced_requests:,} requests whose price is not known.")


def _cost(one: UsageSum) -> str:
    """Write a cost, with a plus where some of it is not known, or a question mark."""
    if one.unpriced_requests == one.requests:
        return "?"
    return money(one.cost) + ("+" if one.unpriced_requests else "")


# --- Prices ------------------------------------------------------------------------------------


@app.command(rich_help_panel=LOOK)
def prices(
    model: Annotated[str, typer.Argument(help="The model, such as openai/gpt-4o.")],
    file: Annotated[
        Path | None, typer.Option(help="A table of your own, of the form of prices.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a model costs, and from which source and date.

    Sources are your own table, genai-prices if it is installed, and the table that comes with
    agentstore. No database and no network is asked.

    Example: [bold]agentstore prices gpt-4o-mini[/bold]
    """
    sources = [] if file is None else [Prices.load(file)]
    try:
        sources.append(Prices.from_genai())
    except InvalidInput:
        hint("To know more and newer prices, run: pip install genai-prices")
    sources.append(default_prices())
    quotes = [found for each in sources if (found := each.find(model)) is not None]
    if not quotes:
        raise PriceUnknown(model, tuple(name for each in sources for name in each.sources))
    if as_json:
        print_json({"asked": model, "quotes": quotes})
        return
    lines = table()
    lines.add_column("PER MILLION TOKENS", style="cyan")
    for quote in quotes:
        lines.add_column(Text(on_one_line(quote.source)), justify="right", overflow="fold")
    facts = [_facts(quote) for quote in quotes]
    for name in dict.fromkeys(name for each in facts for name in each):
        lines.add_row(name, *(Text(on_one_line(each.get(name, "-"))) for each in facts))
    out.print(lines)


def _facts(quote: Quote) -> dict[str, str]:
    found = {
        "model": quote.model,
        "provider": quote.provider or "-",
        "as of": "-" if quote.as_of is None else quote.as_of.isoformat(),
    }
    for start, rates in ((0, quote.rates), *quote.tiers.items()):
        beyond = f" above {start:,}" if start else ""
        found |= {f"{_kind(name)}{beyond}": money(rate) for name, rate in rates.items()}
    return found


def _kind(name: str) -> str:
    plain_name = name.removesuffix("_mtok").replace("_", " ")
    return plain_name.replace(" kcount", ", a thousand")
