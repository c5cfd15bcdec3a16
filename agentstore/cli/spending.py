"""``usage`` and ``prices``: what models used and cost, and what they would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from agentstore.cli.application import (
    LOOK,
    AsJson,
    Database,
    Prefix,
    Schema,
    Url,
    app,
    one_of,
    whole_id,
)
from agentstore.cli.output import bar, columns, fitting, hint, out, print_json, print_table, table
from agentstore.cli.times import since_option, until_option
from agentstore.errors import InvalidInput, PriceUnknown
from agentstore.records import UsageSum
from agentstore.records.findings import counted
from agentstore.values.prices import Prices, Quote, default_prices
from agentstore.values.text.terminal import brief, money, on_one_line

_DIMENSIONS = ("day", "week", "month", "model", "user", "session", "turn", "branch", "total")
_BAR = ""
_FACTS = {_BAR: 8, "REQUESTS": 8, "IN": 5, "OUT": 5, "USED": 6, "COST": 9}
_LESS_WANTED = ("IN", "OUT", "REQUESTS", _BAR)
_LONGEST_KEY = 24
_LEAST = 19
"""Columns of the facts that are always there."""


@app.command(rich_help_panel=LOOK)
def usage(
    by: Annotated[
        str,
        one_of(_DIMENSIONS, "What to sum up by; turn and branch need --session."),
    ] = "day",
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this user's sessions.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only this model.")] = None,
    since: Annotated[datetime | None, since_option()] = None,
    until: Annotated[datetime | None, until_option()] = None,
    days: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=36_500, help="Only today and the days before, in UTC."
        ),
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Draw the costs, not the tokens.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="How many bars to draw.")
    ] = 30,
    url: Url = None,
    schema: Schema = None,
    table_prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Sum up what requests to models used, and draw a chart.

    Days are in their order, the last ones if there are more than --limit; everything else begins
    with what used most. JSON has all of it.

    Example: `agentstore usage --by model --days 7`
    """
    if by in ("turn", "branch") and session is None:
        raise InvalidInput(f"--by {by} needs a session. Pass --session ID.")
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

    in_order = by in ("day", "week", "month", "turn", "branch")
    ordered = list(sums) if in_order else sorted(sums, key=amount, reverse=True)
    shown = ordered[-limit:] if in_order else ordered[:limit]
    most = max(map(amount, shown)) or Decimal(1)
    keys = ["-" if one.key is None else on_one_line(str(one.key)) for one in shown]
    longest = 36 if by == "session" else _LONGEST_KEY
    longest = min(longest, columns() - _LEAST)
    width = min(max(Text(key).cell_len for key in [*keys, by]), longest)
    facts = fitting(_FACTS, _LESS_WANTED, columns() - width - 2)
    room = columns() - width - sum(facts.values()) - 2 * len(facts) - 2 + _FACTS[_BAR]
    lines = table()
    lines.add_column(by.upper(), width=width, overflow="fold", style="cyan")
    for name, each in facts.items():
        if name == _BAR:
            lines.add_column("", width=max(room, each), no_wrap=True)
        else:
            lines.add_column(name, width=each, justify="right", no_wrap=True)
    for key, one in zip(keys, shown, strict=True):
        cells: dict[str, Text | str] = {
            _BAR: Text(bar(float(amount(one) / most), max(room, _FACTS[_BAR])), style="green"),
            "REQUESTS": brief(one.requests),
            "IN": brief(one.input_tokens),
            "OUT": brief(one.output_tokens),
            "USED": brief(one.total_tokens),
            "COST": _cost(one),
        }
        lines.add_row(Text(key), *(cells[name] for name in facts))
    print_table(lines)
    if len(ordered) > len(shown):
        hint(f"{len(ordered) - len(shown):,} more: pass --limit.")


def _print_total(total: UsageSum) -> None:
    out.print(
        Text.assemble(
            (counted(total.total_tokens, "used token"), "bold"),
            f" ({total.input_tokens:,} in, {total.output_tokens:,} out) in "
            f"{counted(total.requests, 'request')}, cost ",
            (money(total.cost), "bold"),
        ),
        soft_wrap=not out.is_terminal,
    )
    if total.unpriced_requests:
        left_out = counted(total.unpriced_requests, "request")
        hint(f"The cost leaves out {left_out} whose price is not known.")


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

    Example: `agentstore prices gpt-4o-mini`
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
