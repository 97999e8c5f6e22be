"""One server, many clients: who is let in, and that each gets its own answers."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from fakes import Project, kernel
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from kopt_mcp.errors import InputRefused, WorkspaceFailed
from kopt_mcp.server import create_server
from kopt_mcp.server.http import TOKEN_VARIABLE, Door, app, read_token, serve

TOKEN = "a-token-that-nobody-guesses"
CLIENTS = 8
CALLS = int(os.environ.get("KOPT_HTTP_CALLS", "12"))
"""Of each client; 200 in a long run."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def served(project: Project, door: Door | None = None) -> Iterator[int]:
    """The server in a thread of its own; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app(create_server(project), door or Door()), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


# Who is let in


def status_of(port: int, body: bytes | None = None, **headers: str) -> int:
    """What the server answers to one request made by hand; a header's name has _ for -."""
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/mcp", body if body is not None else PING, sent)
        return connection.getresponse().status
    finally:
        connection.close()


PING = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"by hand","version":"1"}}}'
)


def test_on_loopback_only_loopback_names_and_pages_are_let_in(project: Project) -> None:
    with served(project) as port:
        assert status_of(port) == 200
        assert status_of(port, Host=f"localhost:{port}", Origin=f"http://localhost:{port}") == 200
        assert status_of(port, Host=f"[::1]:{port}") == 200
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "localhost.evil.example",
            "192.0.2.1",
            "",
            "localhost:x@e",
        ):
            assert status_of(port, Host=host) in (400, 421), host
        for origin in ("http://evil.example", f"http://127.0.0.1.evil.example:{port}", "null", "http://192.0.2.1"):
            assert status_of(port, Origin=origin) == 403, origin


def test_a_body_of_ten_megabytes_is_refused_declared_or_not(project: Project) -> None:
    with served(project) as port:
        large = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"' + b"a" * 10_000_000 + b'"}}'
        assert status_of(port, large) == 413
        pieces = httpx2.Client(timeout=30)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        chunks = (large[at : at + 65536] for at in range(0, len(large), 65536))
        with pieces, suppress(httpx2.TransportError):  # refused while the rest was still being sent
            assert pieces.post(f"http://127.0.0.1:{port}/mcp", content=chunks, headers=headers).status_code == 413
        assert status_of(port) == 200


def test_with_a_token_nobody_comes_in_without_it(project: Project) -> None:
    with served(project, Door(token=TOKEN)) as port:
        assert status_of(port, Authorization=f"Bearer {TOKEN}") == 200
        assert status_of(port, Authorization=f"bearer {TOKEN}") == 200
        for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", TOKEN, f"Basic {TOKEN}", "Bearer \xe9"):
            assert status_of(port, Authorization=wrong) == 401, wrong
        assert status_of(port) == 401
        assert status_of(port, b"x" * 10_000_000) == 401


def test_beyond_loopback_an_address_or_the_machines_own_name_is_asked_for(project: Project) -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    with served(project, Door("0.0.0.0", token=TOKEN)) as port:
        assert status_of(port, Host="192.0.2.1:80", **token) == 200
        assert status_of(port, Host=socket.gethostname(), **token) == 200
        assert status_of(port, Host="192.0.2.1", Origin="http://192.0.2.1", **token) == 200
        assert status_of(port, Host="evil.example", **token) == 421
        assert status_of(port, Host="192.0.2.1", Origin="http://192.0.2.2", **token) == 403
        assert status_of(port, Host="192.0.2.1") == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gpu-box"])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(InputRefused, match="there is no token; anybody could run code here; give --token-file"):
        Door(host)
    with pytest.raises(InputRefused, match="the token has 6 characters"):
        Door(host, token="secret")
    assert Door(host, token=TOKEN).token == TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_on_loopback_no_token_is_needed(host: str) -> None:
    assert Door(host).is_loopback


def test_the_token_is_read_from_a_file_that_only_its_owner_reads_or_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o640)
    with pytest.raises(InputRefused, match="can be read by other users; run `chmod 600`"):
        read_token(file, {})
    file.chmod(0o600)
    environment = {TOKEN_VARIABLE: "another-one-of-sixteen"}
    assert read_token(file, environment) == TOKEN
    assert environment == {}
    assert read_token(None, {TOKEN_VARIABLE: TOKEN}) == TOKEN
    assert read_token(None, {}) is None
    with pytest.raises(InputRefused, match="cannot be read"):
        read_token(tmp_path / "none", {})


def test_a_port_that_is_taken_is_refused_in_words(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkspaceFailed, match=f"127.0.0.1:{port} cannot be listened on"):
            serve(create_server(project), Door(port=port))


# Many at once


@pytest.mark.anyio
async def test_no_answer_is_lost_or_crossed_while_a_benchmark_runs(project: Project) -> None:
    names = [project.diagnosed() for _ in range(CLIENTS)]
    project.patch(names[0], kernel(2.0))
    project.loop.verify(names[0])
    running, release = threading.Event(), threading.Event()

    def hold(job: Any, watch: Any) -> None:
        if job.kind == "benchmark":
            running.set()
            assert release.wait(300)

    project.evaluator.before = hold
    answers: list[Any] = []

    async def benchmark(port: int) -> None:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            answers.append(await client.call_tool("benchmark", {"experiment": names[0]}))

    with served(project) as port:
        async with anyio.create_task_group() as group:
            group.start_soon(benchmark, port)
            await anyio.to_thread.run_sync(running.wait)
            async with anyio.create_task_group() as others:
                for number, name in enumerate(names):
                    others.start_soon(converse, port, number, name)
            assert answers == []
            release.set()
    (timed,) = answers
    assert (timed.is_error, timed.structured_content["experiment"]) == (False, names[0])
    assert timed.structured_content["verdict"] == "better"


async def converse(port: int, number: int, name: str) -> None:
    """One client's calls, each with an answer that can only be its own; every other client is of the older era."""
    async with Client(f"http://127.0.0.1:{port}/mcp", mode=("auto", "legacy")[number % 2]) as client:
        for count in range(CALLS):
            mine = f"nobody-{number}-{count}"
            match count % 4:
                case 0:
                    answer = await client.call_tool("log", {"experiment": name})
                    assert answer.structured_content is not None
                    assert (answer.is_error, answer.structured_content["experiment"]) == (False, name)
                case 1:
                    answer = await client.call_tool("verify", {"experiment": mine})
                    assert answer.is_error
                    assert text_of(answer).startswith(f"experiment '{mine}' is not known")
                case 2:
                    (content,) = (await client.read_resource(f"experiment://{name}/journal.jsonl")).contents
                    assert f'"{name}' in text_of_resource(content) or "baseline" in text_of_resource(content)
                case 3:
                    answer = await client.call_tool("log", {"read": mine})
                    assert answer.is_error
                    assert mine in text_of(answer)


def text_of(answer: Any) -> str:
    return str(answer.content[0].text)


def text_of_resource(content: Any) -> str:
    return str(content.text)


@pytest.mark.anyio
async def test_the_device_is_held_against_the_other_clients_too(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(2.0))
    (project.root / "other.py").write_text(kernel(), encoding="utf-8")
    (project.root / "test_other.py").write_bytes((project.root / "test_softmax.py").read_bytes())
    running, release = threading.Event(), threading.Event()

    def hold(job: Any, watch: Any) -> None:
        running.set()
        assert release.wait(300)

    project.evaluator.before = hold
    answers: list[Any] = []

    async def call(port: int, tool: str, arguments: dict[str, Any]) -> None:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            answers.append(await client.call_tool(tool, arguments))

    with served(project) as port:
        async with anyio.create_task_group() as group:
            group.start_soon(call, port, "verify", {"experiment": name})
            await anyio.to_thread.run_sync(running.wait)
            await call(port, "baseline", {"kernel_path": "other.py", "target_value": 5.0, "target_metric": "gbps"})
            release.set()
    busy, right = answers
    assert re.match("device NVIDIA H200 has been held for .* one step runs at a time", text_of(busy))
    assert right.structured_content["correct"] is True


@pytest.mark.anyio
async def test_a_client_with_the_token_works_as_over_stdio(project: Project) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with served(project, Door(token=TOKEN)) as port:
        async with httpx2.AsyncClient(headers=headers, timeout=30) as transport:
            url = f"http://127.0.0.1:{port}/mcp"
            async with Client(streamable_http_client(url, http_client=transport)) as client:
                begun = await client.call_tool(
                    "baseline", {"kernel_path": "softmax.py", "target_metric": "gbps", "target_value": 500.0}
                )
    assert begun.structured_content is not None
    assert begun.structured_content["next"] == ["profile", "diagnose"]


@pytest.mark.anyio
async def test_a_client_that_hangs_up_ends_its_step(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(2.0))
    started, ended = threading.Event(), threading.Event()

    def hang(job: Any, watch: Any) -> None:
        watch.on_cancel(ended.set)
        started.set()
        assert ended.wait(60)

    project.evaluator.before = hang
    with served(project) as port:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "verify", {"experiment": name})
            await anyio.to_thread.run_sync(started.wait)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(ended.wait, 60)
        project.evaluator.before = lambda job, watch: None
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            again = await client.call_tool("verify", {"experiment": name})
    assert again.structured_content is not None
    assert again.structured_content["correct"] is True


# The command


@pytest.mark.anyio
async def test_the_command_serves_says_where_and_ends_at_an_interrupt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kopt_mcp", "--root", str(tmp_path), "serve", "--http", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as process:
        assert process.stderr is not None
        found = re.fullmatch(
            r"serving MCP at (http://127\.0\.0\.1:\d+/mcp); end with Ctrl-C\.\n", process.stderr.readline()
        )
        assert found is not None
        async with Client(found[1]) as client:
            assert text_of(await client.call_tool("log", {})).startswith('{"experiments":[]')
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_command_refuses_an_open_port_without_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kopt_mcp", "--root", str(tmp_path), "serve", "--http", "--host", "0.0.0.0"]
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("--host '0.0.0.0' can be reached from other machines and there is no token;")
