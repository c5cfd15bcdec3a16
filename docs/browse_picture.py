"""Draws docs/pictures/browse.svg: ``python -m docs.browse_picture``."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from agentstore import AsyncStore, Store
from agentstore.cli.output import instant
from agentstore.tui.application import Browser

PICTURE = Path(__file__).parent / "pictures" / "browse.svg"
_FONTS = "ui-monospace, Menlo, Consolas, monospace"
_ANSWER = """Take the train on **Saturday**:

| day | sky | °C |
|---|---|--:|
| Saturday | clear | 21 |
| Sunday | rain from noon | 15 |

```python
trip = plan("北京", days=2, indoors=["Sunday"])
```
"""


def fill(url: str) -> None:
    """Make a conversation to look at."""
    steps = count()
    begin = datetime.now(UTC) - timedelta(minutes=3)
    with Store(url, clock=lambda: begin + timedelta(seconds=next(steps))) as store:
        alice = store.users.create("Alice", id="alice")
        store.sessions.create(alice.id, id="trip", title="A weekend in 北京", model="gpt-4o")
        store.messages.save("trip", "user", "Which day is better for a trip to Beijing?")
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "forecast", "arguments": '{"city": "北京", "days": 2}'},
        }
        store.messages.save("trip", "assistant", None, tool_calls=[call], token_count=21)
        days = '[{"day": "Saturday", "sky": "clear"}, {"day": "Sunday", "sky": "rain from noon"}]'
        store.messages.save("trip", "tool", days, tool_call_id="call_1", token_count=38)
        said = store.messages.save("trip", "assistant", _ANSWER, token_count=96, cost="0.0021")
        store.marks.update("trip", "liked", ids=[said.id])
        store.usage.record("trip", input_tokens=1_840, output_tokens=117, cost="0.0052")


async def draw(url: str) -> str:
    """Give the conversation as a picture that asks nobody for anything."""
    async with AsyncStore(url, read_only=True) as store:
        browser = Browser(store, "agent.db", instant, "trip")
        async with browser.run_test(size=(80, 24)) as pilot:
            picture = ""
            while "Saturday" not in picture or "used" not in picture:
                await pilot.pause(0.1)
                picture = browser.export_screenshot(title="agentstore browse", simplify=True)
    picture = re.sub(r"<!-- .*? -->\s*", "", picture)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]+;", f"font-family: {_FONTS};", picture)


def main() -> None:
    """Write the picture."""
    os.environ.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/agent.db"
        fill(url)
        PICTURE.write_text(asyncio.run(draw(url)), encoding="utf-8")


if __name__ == "__main__":
    main()
