"""Two servers on the loopback interface that can break off: a model hub, and a proxy before another HTTP server."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

LoopbackT = TypeVar("LoopbackT", bound="Loopback")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Request:
    """What a client asked for."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Loopback:
    """A server; what it was asked for, and how it is to misbehave.

    Faults are by the end of the path, for GET only, and happen once.
    """

    requests: list[Request] = field(default_factory=list[Request])
    cut: dict[str, int] = field(default_factory=dict[str, int])
    """Close the connection after so many bytes of the body."""
    hold: dict[str, int] = field(default_factory=dict[str, int])
    """Send so many bytes of the body, then wait for ``release``."""
    status: dict[str, int] = field(default_factory=dict[str, int])
    """Answer with this status and nothing else."""
    holding: threading.Event = field(default_factory=threading.Event)
    """Set once a request is held."""
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def got(self, end: str) -> list[Request]:
        """The GET requests for a path, by its end."""
        return [r for r in self.requests if r.method == "GET" and r.path.endswith(end)]

    def answer(self, request: Request, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        raise NotImplementedError

    def fault(self, table: dict[str, int], request: Request) -> int | None:
        """Takes a fault out of its table if the request meets it."""
        if request.method != "GET":
            return None
        return next((table.pop(end) for end in list(table) if request.path.endswith(end)), None)


@dataclass
class Hub(Loopback):
    """A model hub with one model, as far as the hub's own client asks."""

    model: str = "acme/tiny"
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    gated: bool = False

    def answer(self, request: Request, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        path = request.path.lstrip("/")
        if path in (f"api/models/{self.model}", f"api/models/{self.model}/revision/main"):
            return self._json({"id": self.model, "sha": COMMIT, "siblings": [self._sibling(f) for f in self.files]})
        if path == f"api/models/{self.model}/tree/{COMMIT}":
            return self._json([self._entry(name) for name in self.files])
        name = path.removeprefix(f"{self.model}/resolve/{COMMIT}/")
        if path == name:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"Repository not found"
        if self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"Access to this model is restricted"
        content = self.files[name]
        start = int(request.range.removeprefix("bytes=").rstrip("-")) if request.range else 0
        return (
            206 if start else 200,
            {"ETag": f'"{self._digest(name)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"},
            content[start:],
        )

    def _digest(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def _sibling(self, name: str) -> dict[str, Any]:
        entry = self._entry(name)
        return {"rfilename": name, "size": entry["size"], "blobId": entry["oid"]}

    def _entry(self, name: str) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": self._digest(name)}

    @staticmethod
    def _json(value: object) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


@dataclass
class Proxy(Loopback):
    """Passes everything on to another server on the loopback interface."""

    upstream: str = ""

    def answer(self, request: Request, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=10)
        connection.request(request.method, headers["X-Path"], body, {k: v for k, v in headers.items() if k != "X-Path"})
        response = connection.getresponse()
        dropped = ("connection", "transfer-encoding", "content-length")
        kept = {k: v for k, v in response.getheaders() if k.lower() not in dropped}
        return response.status, kept, response.read()


@contextmanager
def running(server: LoopbackT) -> Generator[LoopbackT, None, None]:
    """Runs a server on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            # A client that was killed is no error here.
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def _serve(self) -> None:
            given = self.headers
            request = Request(
                self.command, unquote(urlsplit(self.path).path), given.get("Range"), given.get("Authorization")
            )
            server.requests.append(request)
            sent = self.rfile.read(int(given.get("Content-Length") or 0))
            if status := server.fault(server.status, request):
                code, headers, body = status, dict[str, str](), b""
            else:
                code, headers, body = server.answer(request, {**dict(given.items()), "X-Path": self.path}, sent)
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if (length := server.fault(server.cut, request)) is not None:
                self.wfile.write(body[:length])
                self.close_connection = True
                return
            if (length := server.fault(server.hold, request)) is not None:
                self.wfile.write(body[:length])
                body = body[length:]
                server.holding.set()
                server.release.wait(60)
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        server.url = f"http://127.0.0.1:{http_server.server_port}"
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.release.set()
            http_server.shutdown()
            thread.join()
