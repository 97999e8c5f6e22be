"""A model on loopback that plays an agent: it calls what a script says and reads what comes back.

It speaks as much of the Anthropic Messages and of the OpenAI Responses protocol as Claude Code and Codex need for one
conversation. It is also the proxy that a client is told to use for everything else: such requests are noted and
refused, so that nothing leaves the machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

MOST_SEARCHES = 50
"""How often a client that still connects to the server is asked for its tools."""
_READERS = ("ReadMcpResourceTool", "read_mcp_resource")


@dataclass(frozen=True)
class Call:
    """One tool of the server to call; with `uri` alone, one of its resources to read."""

    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    uri: str = ""


Script = Generator[Call, str, str]
"""Yields calls, is sent each one's result as the model sees it, returns the agent's last words."""


@dataclass(frozen=True)
class Use:
    """A call as the client knows it."""

    id: str
    name: str
    namespace: str
    arguments: dict[str, Any]


class Conversation:
    """One script, played once, and all that was seen."""

    def __init__(self, script: Script, server: str = "kopt") -> None:
        self.url = ""
        self.offered: dict[str, tuple[str, str]] = {}
        """The server's tools: by our name, the client's name and its namespace."""
        self.turns: list[tuple[Call, str]] = []
        self.elsewhere: list[str] = []
        """What the client wanted from other hosts."""
        self.failure = ""
        self._script = script
        self._server = server
        self._call: Call | None = None
        self._use: Use | None = None
        self._numbers = count(1)
        self._searches = 0

    def offer(self, name: str, namespace: str = "") -> None:
        """Note a tool that the client offers, if it is the server's."""
        own = namespace.rstrip("_").endswith(f"__{self._server}") or f"_{self._server}__" in name
        if own or name in _READERS:
            self.offered["" if name in _READERS else name.rpartition("__")[2]] = (name, namespace)

    def answer(self, results: dict[str, str], search: str = "") -> Use | str:
        """What the agent does next: a call, or its last words.

        Args:
            results: what the client says that calls have returned, by their ids.
            search: the client's tool that looks for tools that it has not offered yet.
        """
        if self._use is not None and self._use.id not in results:
            return self._use  # the client asks again
        if not self._ready():
            return self._search(search)
        try:
            if self._call is None or self._use is None:
                self._call = next(self._script)
            else:
                result = results[self._use.id]
                self.turns.append((self._call, result))
                self._call = self._script.send(result)
        except StopIteration as end:
            return str(end.value)
        except (KeyError, ValueError) as error:  # not what the script counts on
            self.failure = f"{self._call}: {type(error).__name__} {error}: {self.turns[-1][1][:1000]}"
            return self.failure
        self._use = self._used(self._call)
        return self._use

    def _ready(self) -> bool:
        return self._call is not None or {"baseline", ""} <= set(self.offered)

    def _search(self, search: str) -> Use | str:
        self._searches += 1
        if not search or self._searches > MOST_SEARCHES:
            self.failure = f"the client offered no tools of the server: {sorted(self.offered)}"
            return self.failure
        query = f"select:{_READERS[0]}" if "baseline" in self.offered else f"+{self._server}"
        arguments = {"query": query, "max_results": 20} if search == "ToolSearch" else {}
        self._use = Use(f"call_{next(self._numbers)}", search, "", arguments)
        return self._use

    def _used(self, call: Call) -> Use:
        name, namespace = self.offered[call.tool]
        arguments = {"server": self._server, "uri": call.uri} if call.uri else call.arguments
        return Use(f"call_{next(self._numbers)}", name, namespace, arguments)


@contextmanager
def playing(script: Script) -> Iterator[Conversation]:
    """Serve one conversation on a free port of loopback; its address is `url`."""
    conversation = Conversation(script)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(conversation))
    conversation.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield conversation
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(conversation: Conversation) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path.startswith("/v1/messages/count_tokens"):
                self._send("application/json", b'{"input_tokens": 1}')
            elif self.path.startswith(("/v1/messages", "/v1/responses")):
                speak = _messages if self.path.startswith("/v1/messages") else _responses
                with lock:
                    events = speak(conversation, json.loads(body))
                text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
                self._send("text/event-stream", text.encode())
            else:
                self._refuse()

        def _refuse(self) -> None:
            if not self.path.startswith("/"):  # an absolute address, or CONNECT's host: meant for a proxy
                conversation.elsewhere.append(f"{self.command} {self.path}")
            self.send_error(403 if not self.path.startswith("/") else 404)

        do_GET = do_HEAD = do_PUT = do_CONNECT = _refuse  # the names that http.server looks for

        def _send(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    return Handler


def _messages(conversation: Conversation, request: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer of the Anthropic Messages API, as its stream of events."""
    blocks = [b for m in request["messages"] if isinstance(m["content"], list) for b in m["content"]]
    results = {b["tool_use_id"]: b["content"] for b in blocks if b["type"] == "tool_result"}
    found = [b for content in results.values() if isinstance(content, list) for b in content]
    names = [b["tool_name"] for b in found if b["type"] == "tool_reference"]
    names += [tool["name"] for tool in request.get("tools", [])]
    for name in names:
        conversation.offer(name)
    if not names:  # a title for the session, or the like
        answer: Use | str = "softmax"
    else:
        search = "ToolSearch" if "ToolSearch" in names else ""
        answer = conversation.answer({key: _text(content) for key, content in results.items()}, search)
    if isinstance(answer, str):
        block, deltas = {"type": "text", "text": ""}, [{"type": "text_delta", "text": answer}]
    else:
        block = {"type": "tool_use", "id": answer.id, "name": answer.name, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}]
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"], "content": []}
    reason = {"stop_reason": "end_turn" if isinstance(answer, str) else "tool_use", "stop_sequence": None}
    return [
        {"type": "message_start", "message": {**start, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": usage},
        {"type": "message_stop"},
    ]


def _responses(conversation: Conversation, request: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer of the OpenAI Responses API, as its stream of events."""
    for tool in request.get("tools", []):
        for inner in tool.get("tools", []):
            conversation.offer(inner["name"], tool["name"])
        if "name" in tool:
            conversation.offer(tool["name"])
    outputs = [item for item in request["input"] if item["type"] == "function_call_output"]
    results = {item["call_id"]: _text(item["output"]) for item in outputs}
    answer = conversation.answer(results, "list_mcp_resources")  # which waits until the servers have started
    if isinstance(answer, str):
        said = [{"type": "output_text", "text": answer, "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant", "content": said}
    else:
        item = {"type": "function_call", "id": f"fc_{answer.id}", "call_id": answer.id, "name": answer.name}
        item["arguments"] = json.dumps(answer.arguments)
        if answer.namespace:
            item["namespace"] = answer.namespace
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "usage": usage, "output": [item]}},
    ]


def _text(content: Any) -> str:
    """A result as text, whichever way the client puts it."""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content or [])
