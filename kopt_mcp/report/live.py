"""The page over HTTP, on loopback and for reading only; it renews itself when the journal has grown.

A page of another site may make the browser ask us, under a name of its own that it lets point to this machine: only our
own names are answered. Nothing can be changed through it, whoever asks.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import webbrowser
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from kopt_mcp.errors import GuardRefused, KoptError, ToolUnavailable
from kopt_mcp.experiments import Experiments
from kopt_mcp.report import reading
from kopt_mcp.report.page import FOLDER, document, listing, policy, view
from kopt_mcp.workspace import Workspace

HOSTS = ["127.0.0.1", "localhost"]
SCRIPT = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("renew.js", "live.js"))
HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": policy(SCRIPT, "'self'") + "; frame-ancestors 'none'",
}


class Pages:
    """The rendered pages of one project; one that was rendered is kept until its journal has grown."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._experiments = Experiments(Workspace(root))
        self._drawing = threading.Lock()  # matplotlib is not made for two threads
        self._kept: dict[str, tuple[str, str]] = {}

    def tag(self, name: str) -> str:
        """Names the state of an experiment's journal; another state has another name."""
        path = self._experiments.journal(name).path
        try:
            found = path.stat()
        except OSError:
            return ""
        return hashlib.sha256(f"{name} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:24]

    def view(self, name: str) -> tuple[str, str]:
        """The inner part of an experiment's page, and the tag of the journal that it tells of."""
        if not self._experiments.has(name):
            raise GuardRefused(f"there is no experiment {name!r}; it is not in experiments/; go to / for the list.")
        tag = self.tag(name)
        with self._drawing:
            kept = self._kept.get(name)
            if kept is None or kept[0] != tag:
                kept = self._kept[name] = tag, view(reading.read(self._root, name))
        return kept[1], kept[0]

    def list(self) -> str:
        """The inner part of the list of experiments."""
        return listing(list(self._experiments.states()))


def application(root: Path) -> Starlette:
    """The pages of the project at `root`: `/`, `/NAME`, and `/NAME/view` for what a page renews itself with."""
    pages = Pages(root)

    def index(request: Request) -> Response:
        return _document("Experiments", pages.list(), "")

    def whole(request: Request) -> Response:
        name = request.path_params["name"]
        return _document(name, *pages.view(name))

    def part(request: Request) -> Response:
        name = request.path_params["name"]
        known = request.headers.get("if-none-match")
        if known and known == f'"{pages.tag(name)}"':
            return Response(status_code=304, headers=HEADERS)
        inner, tag = pages.view(name)
        return HTMLResponse(inner, headers={**HEADERS, "ETag": f'"{tag}"'})

    return Starlette(
        routes=[Route("/", index), Route("/{name}", whole), Route("/{name}/view", part)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)],
        exception_handlers={KoptError: _refused},
    )


def serve(root: Path, name: str | None, port: int, open_: bool) -> int:
    """Serve until interrupted; prints the address once it answers there.

    Raises:
        GuardRefused: there is no such experiment.
        ToolUnavailable: the port cannot be had.
    """
    path = reading.named(root, name) if name else ""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise ToolUnavailable(
            f"port {port} of 127.0.0.1 cannot be had: {error}; give another with --port, or 0 for any that is free."
        ) from error
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/{path}"
    print(f"{address} (read-only; stop with Ctrl-C)", flush=True)
    if open_:
        webbrowser.open(address)
    uvicorn.Server(uvicorn.Config(application(root), log_level="warning")).run(sockets=[listener])
    return 0


def _document(name: str, inner: str, tag: str) -> Response:
    return HTMLResponse(document(name, inner, SCRIPT, "'self'", tag), headers=HEADERS)


def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 404 if isinstance(error, GuardRefused) else 500, headers=HEADERS)
