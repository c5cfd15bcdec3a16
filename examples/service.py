"""A small HTTP service around one store, for containers; ``docs/containers.md`` deploys it.

    POST /sessions/ID/messages   {"role": "user", "content": "hello"}
    GET  /sessions/ID/messages   the last 50 messages, as JSON
    GET  /health                 200 if the database can do its work, 503 if not

Run ``agentstore upgrade`` first. It takes all settings from ``AGENTSTORE_*`` and listens on
``PORT``, or 8000. SIGTERM ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentstore import AgentStoreError, Store


def service(store: Store, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                found = store.health(timeout=2)
                self._answer(200 if found.ok else 503, {"ok": found.ok, "reason": found.reason})
                return
            self._messages(
                lambda id: [
                    {"seq": each.seq, "role": each.role, "content": each.content}
                    for each in store.messages.history(id, 50)
                ]
            )

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            try:
                given = json.loads(self.rfile.read(size))
                role, content = given["role"], given["content"]
            except (ValueError, KeyError, TypeError):
                self._answer(400, {"error": "Send JSON with a role and a content."})
                return

            def save(id: str) -> Any:
                return {"seq": store.messages.save(id, role, content, create_session=True).seq}

            self._messages(save)

        def _messages(self, work: Any) -> None:
            match self.path.split("/"):
                case ["", "sessions", id, "messages"]:
                    pass
                case _:
                    self._answer(404, {"error": "There is no such page."})
                    return
            try:
                self._answer(200, work(id))
            except AgentStoreError as error:
                self._answer(422, {"error": str(error)})

        def _answer(self, code: int, document: Any) -> None:
            body = json.dumps(document, ensure_ascii=False).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:
            """Log no request: paths hold ids."""

    return ThreadingHTTPServer(("", port), Handler)


def main() -> None:
    with (
        Store(create=False) as store,
        service(store, int(os.environ.get("PORT", "8000"))) as server,
    ):
        # shutdown() waits for serve_forever(), which this thread is in.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"listening on port {server.server_port}", file=sys.stderr, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
