"""The bytes of an attachment, or of a picture in a message: a few kinds are shown.

All others are for downloading.

Their sender says what they are, and may lie: the browser is told not to guess, and gets them in a
sandbox where nothing runs and nothing is loaded.
"""

from __future__ import annotations

import base64
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from agentstore.errors import NotFound
from agentstore.explorer.web.held import SHOWN, held_by, shown_kind
from agentstore.explorer.web.visits import Visit

_POLICY: Final = {"Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'"}


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
        headers={"Content-Disposition": f"{how}; filename*=UTF-8''{name}", **_POLICY},
    )


async def picture(visit: Visit) -> Response:
    """Give a picture that a message holds itself."""
    message = await visit.ask(visit.store.messages.get, visit.needed("id"))
    pictures = held_by(message).pictures
    number = visit.whole("n", 0, least=0, most=2**53)
    kind = shown_kind(pictures[number]) if number < len(pictures) else None
    if kind is None:
        raise NotFound("picture", str(number))
    try:
        content = base64.b64decode(pictures[number].partition(",")[2])
    except ValueError:
        raise NotFound("picture", str(number)) from None
    return Response(content, media_type=kind, headers=_POLICY)
