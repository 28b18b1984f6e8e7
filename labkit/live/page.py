"""A run as a page for a browser: the notebook's views, fed by a small server on this machine that reads its folder.

The page asks for `events` once and is told all there is, then what is new (server-sent events); after a cut it connects
anew by itself. The server answers GET alone, on loopback, below a secret path, and to its own name alone.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from string import Template
from typing import Any, Final

from labkit.core.errors import LabkitError
from labkit.live.feeds import Feed, FeedMessage, GanttFeed, HeatMapFeed, SignalsFeed, decisions_of, source
from labkit.live.follow import EVERY_S, FollowedRun
from labkit.live.model import cards_of

FEEDS: Final[dict[str, type[Feed]]] = {"signals": SignalsFeed, "gantt": GanttFeed, "heat_map": HeatMapFeed}
SCRIPTS: Final = {f"{name}.js": feed.scripts for name, feed in FEEDS.items()} | {
    name: (name,) for name in ("cards.js", "decisions.js", "status.js", "page.js")
}
STYLES: Final = ("live.css", "page.css")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MOST_CONNECTIONS: Final = 12
MOST_THREADS: Final = 16
MAKES_ROOM_S: Final = 1.0
"""Seconds within which the thread of a connection that was closed for another ends."""
IDLE_S: Final = 10.0
"""Seconds without a request, or without room for an answer, after which a connection is closed."""
BEAT_S: Final = 15.0
"""Seconds after which a page that hears nothing is told so: a closed one is noticed then."""


def page_of(run: FollowedRun) -> str:
    """Return the page of a run, without what changes."""
    info = run.info
    kind = "simulated" if info.backend == "simulator" else "on machines"
    about = f"{info.scheduler} on {info.trace or run.jobs.name}, {run.cluster}; {kind}, seed {info.seed}"
    return Template(source("page.html")).substitute(title=escape(info.run), about=escape(about))


class RunFeeds:
    """What one page is told of a run."""

    def __init__(self, run: FollowedRun) -> None:
        self._run = run
        self._feeds = {name: feed(run) for name, feed in FEEDS.items()}
        self._values: dict[str, Any] = {}

    def everything(self) -> Iterator[str]:
        """Return all there is, as messages in JSON."""
        self._values = {}
        yield from self._changed()
        for name, feed in self._feeds.items():
            yield _rows(name, feed.everything())

    def news(self) -> Iterator[str]:
        """Return the news since the last call."""
        yield from self._changed()
        for name, feed in self._feeds.items():
            yield _rows(name, feed.news())

    def _changed(self) -> Iterator[str]:
        run = self._run
        status = run.status
        now = {
            "status": [status.state, status.text], "cards": cards_of(run.model, run.now_s),
            "decisions": decisions_of(run.model), "notes": run.notes(),
        }  # fmt: skip
        for view, value in now.items():
            if self._values.get(view) != value:
                yield json.dumps({"view": view, "value": value})
        self._values = now


def _rows(view: str, message: FeedMessage) -> str:
    content, rows = message
    return json.dumps({"view": view, "content": content, "rows": b64encode(rows).decode()})


class RunPage:
    """A server of the page of one run, on loopback; `serve` until the run and its readers are done, or Ctrl-C.

    `run`: it is brought up to date by `serve`; `port`: 0: any that is free.
    """

    def __init__(self, run: FollowedRun, *, port: int = 0) -> None:
        self.run = run
        self.changed = threading.Condition()
        self.n_changes = 0
        self.over = False
        self.secret = secrets.token_urlsafe(16)
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.page = self
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}/{self.secret}/"
        """Where the page is, with its secret."""

    def __enter__(self) -> RunPage:
        threading.Thread(target=self._server.serve_forever, name="labkit page", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.over = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def update(self) -> None:
        """Look at the run's folder, and tell pages that are open what is new."""
        if self.run.update():
            with self.changed:
                self.n_changes += 1
                self.changed.notify_all()

    def serve(self) -> None:
        """Follow the run until the caller is interrupted."""
        stopped = threading.Event()
        while not stopped.wait(EVERY_S):
            self.update()

    def messages(self) -> Iterator[str]:
        """Yield the messages to one page; empty: a heartbeat without news."""
        feed = RunFeeds(self.run)
        seen = self.n_changes
        yield from feed.everything()
        while not self.over:
            with self.changed:
                heard = self.changed.wait_for(lambda: self.over or self.n_changes != seen, BEAT_S)  # noqa: B023
                seen = self.n_changes
            yield from feed.news() if heard and not self.over else ("",)


class _Server(ThreadingHTTPServer):
    """A thread for each connection, at most `MOST_THREADS`: the oldest that has not named the secret makes room."""

    daemon_threads = True
    page: RunPage

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lock = threading.Condition()
        self._n_threads = 0
        self._strangers: dict[socket.socket, None] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; close it where there are too many."""
        with self._lock:
            if self._n_threads >= MOST_CONNECTIONS and self._strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end
                self._lock.wait_for(lambda: self._n_threads < MOST_THREADS, MAKES_ROOM_S)
            taken = self._n_threads < MOST_THREADS
            if taken:
                self._n_threads += 1
                self._strangers[request] = None
        if taken:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._n_threads -= 1
                self._strangers.pop(request, None)
                self._lock.notify()

    def admit(self, request: socket.socket) -> None:
        """Keep a connection that has named the secret."""
        with self._lock:
            self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke: a terminal shows the run."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of the page, its scripts and styles, and its events."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server_version, sys_version = "labkit", ""

    def do_GET(self) -> None:
        """Answer a request of the page."""
        page = self.server.page
        begin, _, name = self.path.lstrip("/").partition("/")
        if self.headers.get("Host") != page.host or not secrets.compare_digest(begin.encode(), page.secret.encode()):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "no such page; the address is in the terminal\n")
            return
        self.server.admit(self.connection)
        if name == "":
            self._send(HTTPStatus.OK, "text/html", page_of(page.run))
        elif name == "events":
            self._tell(page)
        elif name in SCRIPTS:
            self._send(HTTPStatus.OK, "text/javascript", source(*SCRIPTS[name]))
        elif name in STYLES:
            self._send(HTTPStatus.OK, "text/css", source(name))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", f"the page has no '{name[:100]}'\n")

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self._begin(status, kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", POLICY)

    def _tell(self, page: RunPage) -> None:
        self._begin(HTTPStatus.OK, "text/event-stream")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        with suppress(OSError, LabkitError):
            for message in page.messages():
                self.wfile.write(f"data: {message}\n\n".encode() if message else b": still here\n\n")
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests: a terminal shows the run."""
