"""The bytes of an attachment: a few kinds are shown, all others are for downloading.

Their sender says what they are, and may lie: the browser is told not to guess, and gets them in a
sandbox where nothing runs and nothing is loaded.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from agentstore.explorer.web.visits import Visit

SHOWN: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What may be shown in a page. Not SVG, which can hold a script."""


async def page(visit: Visit) -> Response:
    """Give the bytes."""
    file = await visit.ask(visit.store.attachments.get, visit.needed("id"))
    content = await visit.ask(visit.store.attachments.read, file.id)
    shown = file.media_type in SHOWN
    name = quote((file.name or f"attachment-{file.id}")[-80:], safe="", errors="replace")
    how = "inline" if shown else "attachment"
    return Response(
        content,
        media_type=file.media_type if shown else "application/octet-stream",
        headers={
            "Content-Disposition": f"{how}; filename*=UTF-8''{name}",
            "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
        },
    )
