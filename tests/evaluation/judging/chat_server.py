"""A small chat server for tests, which judges by a real rule, and answers awkwardly where it is told to.

`ChatServer(rule)` runs in a thread of this process. The rule reads the task and both answers out of the question and
says what the reply is, so that a verdict depends on the answers and on nothing else.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Rule = Callable[[str, str, str], Any]
"""From the task and the answers shown as A and as B to a reply: a text, or a whole message."""

_PARTS = re.compile(r"### Task\n(.*)\n\n### Answer A\n(.*)\n\n### Answer B\n(.*)\n\n### Your decision\n", re.DOTALL)


def longer(task: str, a: str, b: str) -> str:
    """Calls the answer with more words the better one."""
    one, other = len(a.split()), len(b.split())
    name = "tie" if one == other else "A" if one > other else "B"
    return f"A has {one} words and B has {other}.\n\nVerdict: {name}"


class ChatServer:
    """A server in a thread; `with ChatServer(rule) as server: server.url`.

    Attributes:
        bodies: the requests that it read, in order.
        headers: of the last one.
        troubles: what happens to the next requests instead of a reply: a status, a dict (the answer), or None.
    """

    def __init__(self, rule: Rule = longer) -> None:
        self.rule = rule
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.troubles: list[Any] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        parts = _PARTS.search(body["messages"][0]["content"])
        assert parts is not None, "the question has not the form that was agreed"
        said = self.rule(*parts.groups())
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def _handler(server: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers = dict(self.headers)
            if self.path != "/v1/chat/completions":
                self._answer(404, {"detail": "Not Found"})
                return
            server.bodies.append(body)
            trouble = server.troubles.pop(0) if server.troubles else None
            if isinstance(trouble, int):
                self._answer(trouble, {"error": {"message": "out of order"}})
            else:
                self._answer(200, server.reply(body) if trouble is None else trouble)

        def _answer(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
