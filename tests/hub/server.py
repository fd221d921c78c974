"""A Hub on loopback that the real huggingface_hub client talks to: routes over a Store, faults, and a request log."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import JSONResponse

from .routes import HubRoutes, failure
from .store import Store

Scope = dict[str, Any]


@dataclass
class Fault:
    """What goes wrong with requests whose "METHOD path" matches: an answer, a reset, or a lost answer.

    ``status`` answers in place of the route. ``reset_after`` breaks the connection once so many bytes of the body
    came; ``lose_answer`` lets the route do its work and breaks the connection instead of answering.
    ``before`` runs first, such as another user's commit.
    """

    pattern: str
    status: int | None = None
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    said: str = "injected"
    body: dict[str, Any] | None = None
    reset_after: int | None = None
    lose_answer: bool = False
    before: Callable[[], object] | None = None


@dataclass
class Logged:
    """One request: the bytes of its body and of its answer, and the answer's status (0: the connection was reset)."""

    method: str
    path: str
    host: str
    token: str
    agent: str
    received: int = 0
    sent: int = 0
    status: int = 0


class ResetError(Exception):
    """The connection was broken on purpose."""


class HubServer(HubRoutes):
    """The server; ``store`` is what it holds, ``faults`` what goes wrong next, ``log`` what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.faults: list[Fault] = []
        self.log: list[Logged] = []

    def reset(self, folder: Path) -> None:
        self.store, self.faults, self.log, self.ranges = Store(folder), [], [], True
        self.xet, self.originals = None, {}

    def count(self, pattern: str) -> int:
        """How many requests of the log match."""
        return sum(re.search(pattern, f"{item.method} {item.path}") is not None for item in self.log)

    def received(self, pattern: str) -> int:
        return sum(item.received for item in self.log if re.search(pattern, f"{item.method} {item.path}"))

    def sent(self, pattern: str = "") -> int:
        return sum(item.sent for item in self.log if re.search(pattern, f"{item.method} {item.path}"))

    def application(self) -> Callable[..., Any]:
        inner = self.routes()

        async def application(scope: Scope, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return await inner(scope, receive, send)
            headers = {key.decode(): value.decode() for key, value in scope["headers"]}
            path = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
            said = [headers.get(name, "") for name in ("host", "authorization", "user-agent")]
            line = Logged(scope["method"], path, *said)
            self.log.append(line)
            fault = next((f for f in self.faults if f.times and re.search(f.pattern, f"{line.method} {path}")), None)
            if fault is not None:
                fault.times -= 1
                if fault.before is not None:
                    fault.before()
            gone = False

            def reset() -> None:
                nonlocal gone
                gone = True
                line.status = 0
                send.__self__.transport.abort()  # a real RST, as from a broken network
                raise ResetError

            async def counted_receive() -> Any:
                message = await receive()
                line.received += len(message.get("body", b""))
                if fault is not None and fault.reset_after is not None and line.received >= fault.reset_after:
                    reset()
                return message

            async def counted_send(message: Any) -> None:
                if gone:
                    return
                if fault is not None and fault.lose_answer:
                    reset()
                line.status = message.get("status", line.status)
                line.sent += len(message.get("body", b""))
                await send(message)

            try:
                if fault is not None and fault.status is not None:
                    while (await counted_receive()).get("more_body"):
                        pass
                    answer = failure(fault.status, fault.said, **fault.headers)
                    if fault.body is not None:
                        answer = JSONResponse(fault.body, fault.status, headers=fault.headers)
                    return await answer(scope, counted_receive, counted_send)
                await inner(scope, counted_receive, counted_send)
            except ResetError:
                return None

        return application

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(self.application(), log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(10)
            listener.close()
