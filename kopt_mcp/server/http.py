"""The same server over Streamable HTTP: one process, one project, many clients, the same locks.

The SDK brings the protocol, the limit of a body and uvicorn. What stands here is who may come in: requests to a name of
this machine, from no foreign web page, and, where the port is open to other machines, with the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import stat
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kopt_mcp.errors import InputRefused, WorkspaceFailed
from kopt_mcp.server.place import App

MOST_BYTES = 4 << 20
"""Of one request's body: twice the largest patch that is accepted, with room for the escapes of JSON."""
LEAST_TOKEN = 16
"""Characters; a shorter token can be guessed."""
TOKEN_VARIABLE = "KOPT_HTTP_TOKEN"
CLOSING_S = 1
"""How long open streams may go on after an interrupt."""


@dataclass(frozen=True)
class Door:
    """Where the server listens and who may come in."""

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None

    def __post_init__(self) -> None:
        """Refuse to be opened to other machines without a token.

        Raises:
            InputRefused: no token, or one that can be guessed.
        """
        if self.token is None and not self.is_loopback:
            raise InputRefused(
                f"--host {self.host!r} can be reached from other machines and there is no token; anybody could run "
                f"code here; give --token-file FILE or set {TOKEN_VARIABLE} (e.g. from `openssl rand -hex 32`)."
            )
        if self.token is not None and (len(self.token) < LEAST_TOKEN or not self.token.isascii()):
            raise InputRefused(
                f"the token has {len(self.token)} characters; expected at least {LEAST_TOKEN}, ASCII only; make one "
                "with `openssl rand -hex 32`."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def names(self, host: str) -> bool:
        """Whether a Host header names this server.

        A page that has its own name point here (DNS rebinding) sends that name. It cannot send an address: whoever
        sends one has asked for it.
        """
        name = _hostname(host)
        if name is None:
            return False
        if self.is_loopback:
            return is_loopback(name)
        return name in (self.host.lower(), "localhost", socket.gethostname().lower()) or _address(name) is not None

    def is_own(self, origin: str, host: str) -> bool:
        """Whether an Origin header is of a page that this server's own address could have served."""
        name = _hostname(urlsplit(origin).netloc)
        return name is not None and (name == _hostname(host) or (self.is_loopback and is_loopback(name)))

    def admits(self, authorization: str) -> bool:
        """Whether an Authorization header carries the token; compared in a time that tells nothing of it."""
        if self.token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self.token.encode())
        return right and scheme.lower() == "bearer"


class Gate:
    """Lets in what the door admits; before anything of the body is read."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's own start and end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: MutableMapping[str, object]) -> PlainTextResponse | None:
        headers, door = Headers(scope=scope), self._door
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not door.names(hosts[0]):
            return PlainTextResponse("This is not the host that was asked for.\n", 421)
        if not all(door.is_own(origin, hosts[0]) for origin in origins):
            return PlainTextResponse("Requests from foreign web pages are refused.\n", 403)
        if not door.admits(headers.get("authorization", "")):
            return PlainTextResponse("The token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
        return None


def app(server: MCPServer[App], door: Door) -> ASGIApp:
    """The ASGI application; MCP is at /mcp."""
    # The gate has looked at Host and Origin; the SDK's own look knows no names but those of the loopback.
    looked_at = None if door.is_loopback else TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner = server.streamable_http_app(host=door.host, max_request_body_size=MOST_BYTES, transport_security=looked_at)
    return Gate(inner, door)


def serve(server: MCPServer[App], door: Door) -> None:
    """Serve until interrupted.

    Raises:
        WorkspaceFailed: the address cannot be had.
    """
    import uvicorn

    try:
        family = socket.AF_INET6 if ":" in door.host else socket.AF_INET
        listening = socket.create_server((door.host, door.port), family=family, backlog=128)
    except OSError as error:
        raise WorkspaceFailed(
            f"{door.host}:{door.port} cannot be listened on: {error.strerror}; choose another --host or --port."
        ) from error
    port = listening.getsockname()[1]
    shown = f"[{door.host}]" if ":" in door.host else door.host
    print(f"serving MCP at http://{shown}:{port}/mcp; end with Ctrl-C.", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        app(server, door),
        log_level="critical",  # the SDK says itself what fails; uvicorn only adds traces of calls that the end cut off
        access_log=False,
        timeout_graceful_shutdown=CLOSING_S,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listening])


def read_token(file: Path | None, environment: MutableMapping[str, str] | None = None) -> str | None:
    """The token from a file, else from the environment, where it is then removed: no process started later sees it.

    It is never an argument, which every user of the machine could read.

    Raises:
        InputRefused: the file cannot be read, or others can read it too.
    """
    environment = os.environ if environment is None else environment
    inherited = environment.pop(TOKEN_VARIABLE, "").strip()
    if file is None:
        return inherited or None
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputRefused(f"--token-file {str(file)!r} cannot be read: {error}; name a text file.") from error
    if stat.S_IMODE(mode) & 0o077:
        raise InputRefused(f"--token-file {str(file)!r} can be read by other users; run `chmod 600` on it.")
    return text


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine for itself only."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _hostname(netloc: str) -> str | None:
    """The host in `host:port`, lower case, without brackets; None where it is none."""
    try:
        parts = urlsplit(f"//{netloc}")
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    return None if parts.username is not None or parts.path else parts.hostname
