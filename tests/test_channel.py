"""The channel between two processes, one of which may lie."""

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from kopt_mcp.evaluator.channel import LIMIT, Channel, ChannelClosed, ChannelForged, ChannelTimeout

NONCE = "0123456789abcdef"


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, NONCE)
    yield channel, theirs
    channel.close()
    theirs.close()


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def message(n: int = 1, nonce: str = NONCE, **fields: object) -> bytes:
    return framed(json.dumps({**fields, "n": n, "nonce": nonce}).encode())


def test_a_message_arrives_as_it_was_sent() -> None:
    a, b = socket.socketpair()
    left, right = Channel(a, NONCE), Channel(b, NONCE)
    for number in range(3):
        left.send({"op": "call", "number": number})
        assert right.receive(1.0) == {"op": "call", "number": number}
    left.close()
    right.close()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (message(nonce="guess"), "nonce and number"),
        (message(n=2), "nonce and number"),
        (framed(b'{"a": 1, "a": 2, "n": 1, "nonce": "%s"}' % NONCE.encode()), "duplicate key"),
        (framed(b'{"a": {"b": 1, "b": 2}, "n": 1, "nonce": "%s"}' % NONCE.encode()), "duplicate key"),
        (framed(b'{"a": NaN, "n": 1, "nonce": "%s"}' % NONCE.encode()), "not JSON"),
        (framed(b'{"a": -Infinity, "n": 1, "nonce": "%s"}' % NONCE.encode()), "not JSON"),
        (framed(b"\x80\x04\x95"), "not JSON"),
        (framed(b"[" * 100_000), "not JSON"),
        (framed(b"[1, 2]"), "not an object"),
        (framed(b""), "not JSON"),
        (struct.pack("<I", LIMIT + 1), "the limit is"),
        (struct.pack("<I", 0xFFFFFFFF), "the limit is"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_the_protocol_forbids_is_a_forgery(ends: tuple[Channel, socket.socket], sent: bytes, words: str) -> None:
    channel, other = ends
    other.sendall(sent)
    with pytest.raises(ChannelForged, match=words):
        channel.receive(1.0)


def test_a_message_that_is_sent_again_is_a_forgery(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.sendall(message() * 2)
    assert channel.receive(1.0) == {}
    with pytest.raises(ChannelForged):
        channel.receive(1.0)


@pytest.mark.parametrize("sent", [b"", b"\x01", struct.pack("<I", 10), struct.pack("<I", 10) + b'{"a"'])
def test_an_end_in_the_middle_of_a_message_is_an_end_and_never_an_answer(
    ends: tuple[Channel, socket.socket], sent: bytes
) -> None:
    channel, other = ends
    other.sendall(sent)
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive(1.0)


@pytest.mark.parametrize("sent", [b"", struct.pack("<I", 10) + b'{"a"'])
def test_half_a_message_is_not_waited_for_for_ever(ends: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, other = ends
    other.sendall(sent)
    with pytest.raises(ChannelTimeout):
        channel.receive(0.01)


def test_no_time_left_is_a_timeout_at_once(ends: tuple[Channel, socket.socket]) -> None:
    with pytest.raises(ChannelTimeout):
        ends[0].receive(0.0)


def test_a_message_that_json_refuses_uses_no_number_up() -> None:
    a, b = socket.socketpair()
    left, right = Channel(a, NONCE), Channel(b, NONCE)
    with pytest.raises(ValueError, match="JSON"):
        left.send({"error_ratio": float("inf")})
    left.send({"op": "still here"})
    assert right.receive(1.0) == {"op": "still here"}
    left.close()
    right.close()


def test_sending_to_a_side_that_is_gone_says_so() -> None:
    a, b = socket.socketpair()
    b.close()
    channel = Channel(a)
    with pytest.raises(ChannelClosed):
        channel.send({"op": "anyone?"})
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_a_signal_to_a_side_that_is_gone_says_so() -> None:
    a, b = socket.socketpair()
    b.close()
    channel = Channel(a)
    with pytest.raises(ChannelClosed, match="Broken pipe"):
        channel.signal(b"token")
    channel.close()


@pytest.mark.parametrize("number", [b"1e999", b"-1e300", b"1" + b"0" * 400])
def test_a_doubted_side_sends_no_number_that_cannot_be_added_up(number: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, NONCE, doubted=True)
    theirs.sendall(framed(b'{"a": [{"b": %s}], "n": 1, "nonce": "%s"}' % (number, NONCE.encode())))
    with pytest.raises(ChannelForged, match="a number beyond"):
        channel.receive(1.0)
    channel.close()
    theirs.close()


def test_a_doubted_side_sends_no_text_that_a_terminal_obeys_or_a_file_refuses() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, NONCE, doubted=True)
    theirs.sendall(message(text="line\n\ttab \ud800 \x1b[2J é", inside=[{"\x00": 1.5}]))
    received = channel.receive(1.0)
    assert received == {"text": "line\n\ttab \ufffd \ufffd[2J é", "inside": [{"\ufffd": 1.5}]}
    channel.close()
    theirs.close()
