"""A web application to look at what agents did: ``explorer(store)``, and ``agentstore ui``.

- ``application`` has the table of pages, makes the ASGI application of it, and says to the browser
  what it may do.
- ``pages`` has the pages but for those of a conversation (``conversation``, ``cards``,
  ``contents``), of users and memories (``users``), and of what two states differ in
  (``differences``).
- ``sharing`` is the door of ``agentstore ui``, its token or a password, and one conversation as a
  file.
- ``rendering`` is what the pages share: the templates' environment, messages as HTML, charts, and
  ``Visit``, a request as a page sees it.

To add a page, write ``async def NAME(visit: Visit) -> Response`` in ``pages``, put a template,
which extends ``base.html``, into the folder of templates, and add one line to ``PAGES`` in
``application``. A page asks the store by ``await visit.ask(visit.store.sessions.list, limit=50)``,
which works for a ``Store`` and for an ``AsyncStore``, and returns
``await visit.page("NAME.html", ...)``. What takes long to make of what was read is made by
``await visit.make(function, ...)``, in a thread.

The invariants:

- Nothing is written: pages call methods that read, and routes answer GET and HEAD alone. With
  ``edit`` there is one more route, which takes forms of the explorer's own pages.
- Every page is bounded: lists are paged by cursors, texts are cut with a link to the rest, and
  what is made of a text is at most so many times as long; see ``Allowance``.
- All pages are on one level, and what names something is in the query: ``session?id=...``. So links
  are relative, whatever the prefix under which the application is mounted, and ids may be any text.
- Nothing that is stored becomes markup: templates escape, and the policy lets no script run but
  the explorer's own files, and no request leave for elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentstore.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from agentstore.aio import AsyncRepositories
    from agentstore.transactions import Repositories

__all__ = ["explorer", "needing_extra"]


def explorer(store: Repositories | AsyncRepositories, *, edit: bool = False) -> ASGIApp:
    """Give the explorer of a store as an ASGI application, to run or to mount in another one.

    It has no login of its own: whoever reaches it sees everything that the store shows. Mount it
    behind your application's login, with ``store.scoped(user_id)`` for what one user may see.

    Args:
        store: A ``Store`` or an ``AsyncStore``, or one of a scope. The explorer never closes it.
        edit: If True, everybody who reaches it may set marks, ratings and notes of messages, and
            try tasks again. Run it in one process then: its forms hold a token of that process.
            Each change is logged, with the id and who sent it: in its session, as a call of the
            tool ``explorer``, and by the logger ``agentstore.explorer``.

    Raises:
        InvalidInput: The extra ``ui`` is not installed.
    """
    with needing_extra():
        from agentstore.explorer.application import application
    return application(store, edit=edit)


@contextmanager
def needing_extra() -> Iterator[None]:
    """Import what the extra ``ui`` brings.

    Raises:
        InvalidInput: It is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidInput(
            f"The explorer needs {error.name}. Run: pip install 'agentstore-db[ui]', or "
            "'.[ui]' in a checkout"
        ) from error
