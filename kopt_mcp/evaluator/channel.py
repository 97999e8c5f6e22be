"""Length-prefixed JSON between two processes, one of which may lie.

Never pickle, never stdout: a message is four bytes of length and that many bytes of JSON. The side that trusts nothing
sets a nonce, expects it and a running number in every answer, and refuses duplicate keys and oversized messages.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

LIMIT = 4 << 20
"""Largest message in bytes; tensors travel through shared memory, not through messages."""


_LARGEST = 1 << 64


class ChannelClosed(Exception):
    """The other side is gone, without a last message."""


class ChannelForged(Exception):
    """A message that the protocol forbids: wrong nonce or number, duplicate keys, not JSON, too long."""


class ChannelTimeout(Exception):
    """No complete message within the time allowed."""


class Channel:
    """One end of a connection. `nonce` and the running number are checked on what is received, if given.

    With `doubted` numbers and texts are too: one that cannot be added up, or shown, must not get any further.
    """

    __slots__ = ("_doubted", "_nonce", "_received", "_sent", "_sock")

    def __init__(self, sock: socket.socket, nonce: str = "", doubted: bool = False) -> None:
        self._sock = sock
        self._nonce = nonce
        self._doubted = doubted
        self._sent = 0
        self._received = 0

    def fileno(self) -> int:
        """For `select`."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close this end; the other end reads the end of the stream."""
        self._sock.close()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            ChannelClosed: the other side is gone; ValueError: it holds NaN or an infinity, which JSON has not.
        """
        body = json.dumps({**message, "n": self._sent + 1, "nonce": self._nonce}, allow_nan=False).encode()
        self._sent += 1  # only now: a message that cannot be written must not use a number up
        try:
            self._sock.settimeout(None)
            self._sock.sendall(struct.pack("<I", len(body)) + body)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message.

        Raises:
            ChannelClosed: the stream ended; ChannelTimeout; ChannelForged.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = struct.unpack("<I", self._exactly(4, deadline))
        if length > LIMIT:
            raise ChannelForged(f"a message of {length} bytes; the limit is {LIMIT}")
        message = _parse(self._exactly(length, deadline), self._doubted)
        self._received += 1
        if message.pop("n", None) != self._received or message.pop("nonce", None) != self._nonce:
            raise ChannelForged("a message that does not carry the expected nonce and number")
        return message

    def signal(self, data: bytes) -> None:
        """Send bytes that are no message: where a call is timed, a message would take too long.

        Raises:
            ChannelClosed: the other side is gone.
        """
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def wait_for(self, count: int, timeout_s: float | None = None) -> bytes:
        """So many bytes of the other side's `signal`; the exceptions of `receive`."""
        return self._exactly(count, None if timeout_s is None else time.monotonic() + timeout_s)

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        chunks: list[bytes] = []
        while count:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ChannelTimeout
            try:
                self._sock.settimeout(left)
                chunk = self._sock.recv(min(count, 1 << 20))
            except TimeoutError as error:
                raise ChannelTimeout from error
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not chunk:
                raise ChannelClosed("the other side ended without a last message")
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)


def plain(text: str) -> str:
    """A text without what a terminal would obey or no file would take: control characters, halves of pairs."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _sober(value: Any) -> Any:
    """A value with its texts made plain, and no number in it that could become infinite by being added up."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_sober(one) for one in value]
    if isinstance(value, dict):
        return {plain(name): _sober(one) for name, one in value.items()}
    if isinstance(value, (int, float)) and not -_LARGEST < value < _LARGEST:
        raise ChannelForged("a number beyond all that is measured here")
    return value


def _parse(body: bytes, doubted: bool = False) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [k for k, _ in pairs]
        if len(set(keys)) != len(keys):
            raise ChannelForged("a message with a duplicate key")
        return dict(pairs)

    try:
        message = json.loads(body, object_pairs_hook=unique, parse_constant=_refuse_constant)
        message = _sober(message) if doubted else message
    except (ValueError, RecursionError) as error:
        raise ChannelForged("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise ChannelForged("a message that is not an object")
    return message


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
