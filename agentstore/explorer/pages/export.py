"""A conversation to take away: one file, secrets redacted."""

from __future__ import annotations

from typing import cast
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from agentstore.errors import InvalidInput
from agentstore.explorer.web.sharing import FORMATS, Format, conversation_of, shared
from agentstore.explorer.web.visits import Visit

_MOST = 2_000
"""Messages; `agentstore export` takes all."""


async def page(visit: Visit) -> Response:
    """Give the file."""
    kind = visit.given("format") or FORMATS[0]
    if kind not in FORMATS:
        raise InvalidInput(f"format= must be one of {', '.join(FORMATS)}.")
    told = await conversation_of(visit, visit.needed("id"), visit.given("branch"), _MOST)
    text, about = await run_in_threadpool(shared, told, cast("Format", kind), visit.secrets)
    name = quote(f"{about[:80]}.{kind}", safe="", errors="replace")
    return Response(
        text,
        media_type="text/html" if kind == "html" else "text/markdown",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )
