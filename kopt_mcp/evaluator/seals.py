"""Words of a runner's memory that must stay as they were before the candidate came, read from outside.

On a GPU a runner draws inputs, evicts caches and times calls itself. A candidate that puts another function in the
place of one of these need not lie in anything that is compared. So the runner names, before it knows its candidate, the
words that bind its names to its functions and its functions to their code; the harness reads them out of its memory,
then and at moments that nobody in the runner knows. What is looked at is memory: nothing is asked, so nothing can lie.

What this does not see: machine code that was rewritten, and work done beside code that is as it was.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import gc
import json
import json.decoder
import json.encoder
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from kopt_mcp.evaluator.faults import Fault

_WORD = 8
_HEAD = 2 * _WORD
"""Bytes of an object's reference count and type."""
_OURS = ("problem", *(f"evaluator.{m}" for m in ("candidate", "channel", "generated", "inputs", "native", "on_device")))
_OURS += tuple(f"evaluator.{m}" for m in ("operators", "outbox", "queueing", "runner", "timing", "watching"))
"""Modules of ours that a runner's answers go through."""
_CLOCKS = "kopt_mcp.evaluator.timing"
"""The module in which a changed constant would be a changed time."""
_USED, _KEYS = 2 * _WORD, 4 * _WORD
"""Where a dict holds its length, and the address of its table; the same from CPython 3.10 to 3.14."""
_ITEMS = 3 * _WORD
"""Where a list holds the address of its items."""
_HEAP_TYPE = 1 << 9
"""Of a class's flags, that it was made by Python code."""
_MOST_PIECES = 1024
"""What one `process_vm_readv` may be asked for."""

Piece = tuple[int, int]
"""An address and a number of bytes."""
Read = Callable[[], bytes]
"""All the pieces, one behind the other; raises `OSError`."""
Reader = Callable[[int, list[Piece]], Read]
"""For a process and pieces of its memory."""


class Unsealable(Exception):
    """This interpreter lays its objects out in another way than is known here."""


class Seal(NamedTuple):
    """A piece of memory, and what it would mean if it changed."""

    name: str
    address: int
    size: int


class Seals:
    """The harness's side: what the pieces held when no candidate was there, and whether they still do."""

    def __init__(self, pid: int, seals: Sequence[Seal], reader: Reader | None = None) -> None:
        """Read by the system's own call unless another way is given.

        Raises:
            OSError: the process's memory may not be read.
        """
        self._seals = sorted(seals, key=lambda seal: seal.address)
        self._read = (reader or Memory)(pid, _merged(self._seals))
        self._before = self._read()

    def require_unbroken(self) -> None:
        """Compare, whatever the process is doing.

        Raises:
            Fault: `CHEATED`, the candidate changed the evaluator's own code.
        """
        try:
            now = self._read()
        except OSError as error:
            if error.errno == errno.ESRCH:
                return  # it has ended: whoever waits for its answer says so
            raise Fault("CHEATED", "the candidate moved what the evaluator has in its memory") from None
        if now != self._before:
            raise Fault("CHEATED", f"it changed {self._broken(now)} in the evaluator's own code, in its process")

    def _broken(self, now: bytes) -> str:
        at = end = 0
        for seal in self._seals:
            fresh = max(0, seal.address + seal.size - max(end, seal.address))
            if now[at : at + fresh] != self._before[at : at + fresh]:
                return seal.name
            at, end = at + fresh, max(end, seal.address + seal.size)
        return "something"


def _merged(seals: Sequence[Seal]) -> list[Piece]:
    """The pieces to read, those that touch or overlap as one."""
    pieces: list[Piece] = []
    for _, address, size in seals:
        start, length = pieces[-1] if pieces else (0, 0)
        if pieces and address <= start + length:
            pieces[-1] = (start, max(length, address + size - start))
        else:
            pieces.append((address, size))
    return pieces


def of_modules(modules: Sequence[ModuleType], classes: Mapping[str, type]) -> list[Seal]:
    """Seal each module's names, the classes and functions that they are bound to here, and more classes by name.

    Raises:
        Unsealable: objects are not where they are expected.
    """
    seals: list[Seal] = []
    for module in modules:
        vars(module).setdefault("__warningregistry__", {})  # the one name that Python itself may add
        seals += _dict(module.__name__, vars(module))
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__:
                seals += _value(f"{module.__name__}.{name}", value)
    for name, kind in classes.items():
        seals += _class(name, kind)
    return seals


def of_runner(items: list[Any], channel: Any, clock: Any) -> list[Seal]:
    """All that a sample goes through: the evaluator's modules, those that it speaks through, and its own objects.

    Raises:
        Unsealable: objects are not where they are expected.
    """
    import torch

    ours = [sys.modules[f"kopt_mcp.{name}"] for name in _OURS]
    speaking = [json, json.encoder, json.decoder, struct, time, builtins]
    classes = {"socket": socket.socket, "torch.cuda.Event": torch.cuda.Event, "torch.Tensor": torch.Tensor}
    seals = of_modules([*ours, *speaking], classes)
    seals += _instance("the candidate's call", items[0], ("device", "_shared", "_outbox", "_made_clock", "_operators"))
    seals += _instance("the channel", channel, ("_sock", "_nonce"))
    seals += _instance("the clock", clock, tuple(type(clock).__slots__))
    return [*seals, *_first_item("the candidate's call", items), *_tracing(), *_monitoring()]


def _value(name: str, value: Any) -> Iterator[Seal]:
    if isinstance(value, FunctionType):
        yield from _function(name, value)
    elif isinstance(value, type):
        yield from _class(name, value)


def _class(name: str, kind: type) -> Iterator[Seal]:
    """What its names are bound to, and from which classes it has the others; one made in C cannot be changed."""
    if not kind.__flags__ & _HEAP_TYPE:
        return
    tables = [d for d in gc.get_referents(kind) if isinstance(d, dict) and d.keys() == vars(kind).keys()]
    if not tables:
        raise Unsealable(f"no table of {name}")
    yield from _dict(name, tables[0])
    yield from _words(name, kind, [type(kind), kind.__mro__, kind.__bases__], start=_WORD)
    for key, value in vars(kind).items():
        inner = value.fget if isinstance(value, property) else value
        if isinstance(inner, FunctionType):
            yield from _function(f"{name}.{key}", inner)


def _function(name: str, function: FunctionType) -> Iterator[Seal]:
    bound = [function.__code__, function.__globals__, function.__defaults__, function.__closure__]
    words = list(_words(name, function, [v for v in bound if v is not None]))
    yield Seal(name, words[0].address, words[-1].address + _WORD - words[0].address)
    if function.__module__ == _CLOCKS:
        yield from _code(name, function.__code__)
    for cell in function.__closure__ or ():
        yield from _words(name, cell, [cell.cell_contents])
    if function.__kwdefaults__:
        yield from _dict(name, function.__kwdefaults__)


def _code(name: str, code: CodeType) -> Iterator[Seal]:
    """Its constants and names; not its instructions, which the interpreter itself rewrites."""
    yield from _words(name, code, [code.co_consts, code.co_names])
    for values in (code.co_consts, code.co_names):
        size = values.__sizeof__() - tuple.__basicsize__
        if values and own_memory(id(values) + tuple.__basicsize__, size) != struct.pack(
            f"@{len(values)}P", *map(id, values)
        ):
            raise Unsealable("a tuple is laid out differently")
        yield Seal(f"a constant of {name}", id(values) + tuple.__basicsize__, size)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _code(name, inner)


def _dict(name: str, table: dict[str, Any]) -> Iterator[Seal]:
    """Its length, where its entries lie, and all of them."""
    if not table:
        return
    keys = int.from_bytes(own_memory(id(table) + _KEYS, _WORD), sys.byteorder)
    size = dict.__sizeof__(table) - object.__sizeof__({}) if keys else 0
    length = int.from_bytes(own_memory(id(table) + _USED, _WORD), sys.byteorder)
    if not keys or size <= 0 or length != len(table):
        raise Unsealable(f"a dict is laid out differently: {name}")
    memory = own_memory(keys, size)
    found = [memory.find(struct.pack("@PP", id(k), id(v))) for k, v in table.items()]
    if min(found) < 0:
        raise Unsealable(f"no entries of {name}")
    yield Seal(f"the names of {name}", id(table) + _USED, _WORD)
    yield Seal(f"the names of {name}", id(table) + _KEYS, _WORD)
    for at, key in zip(found, table, strict=True):
        yield Seal(f"{name}.{key}", keys + at, 2 * _WORD)


def _instance(name: str, one: Any, slots: Sequence[str]) -> Iterator[Seal]:
    """Its class, and what some of its slots hold."""
    yield from _words(name, one, [type(one), *(getattr(one, s) for s in slots)], start=_WORD)


def _first_item(name: str, items: list[Any]) -> Iterator[Seal]:
    start = int.from_bytes(own_memory(id(items) + _ITEMS, _WORD), sys.byteorder)
    if own_memory(start, _WORD) != struct.pack("@P", id(items[0])):
        raise Unsealable("a list is laid out differently")
    yield Seal(name, id(items) + _ITEMS, _WORD)
    yield Seal(name, start, _WORD)


def _words(name: str, one: Any, values: Sequence[Any], start: int = _HEAD) -> Iterator[Seal]:
    """Those words of an object that point to the values: where they lie differs between versions of CPython."""
    memory = own_memory(id(one), type.__sizeof__(one) if isinstance(one, type) else one.__sizeof__())
    wanted = {id(v) for v in values}
    places = range(start, len(memory) - len(memory) % _WORD, _WORD)
    found = {at: int.from_bytes(memory[at : at + _WORD], sys.byteorder) for at in places}
    if wanted - set(found.values()):
        raise Unsealable(f"{name} is laid out differently")
    yield from (Seal(name, id(one) + at, _WORD) for at, word in found.items() if word in wanted)


def _tracing() -> Iterator[Seal]:
    """Where a thread keeps the functions that are told of every call: found by setting them."""
    current = ctypes.pythonapi.PyThreadState_Get
    current.restype = ctypes.c_void_p
    state = int(current())
    found = [_address_of(state, sys.getprofile, sys.setprofile), _address_of(state, sys.gettrace, sys.settrace)]
    yield from (Seal("the functions that trace every call", at, _WORD) for at in found)


def _address_of(state: int, get: Callable[[], Any], put: Callable[[Any], None]) -> int:
    before, probe = get(), _Probe()
    put(probe)
    memory = own_memory(state, _THREAD_BYTES)
    put(before)
    if (at := memory.find(struct.pack("@P", id(probe)))) < 0:
        raise Unsealable("a thread's state is laid out differently")
    return state + at


_THREAD_BYTES, _INTERPRETER_BYTES, _PAGE = 512, 1 << 20, 4096
"""Of a thread's state, and of the interpreter's, what is looked through."""


def _monitoring() -> Iterator[Seal]:
    """Where the names of tools are kept that are told of every call (sys.monitoring, from CPython 3.12)."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        return
    free = next(tool for tool in range(_TOOLS) if monitoring.get_tool(tool) is None)
    name = "".join(("a name of ", "our own"))
    current = ctypes.pythonapi.PyInterpreterState_Get
    current.restype = ctypes.c_void_p
    state = int(current())
    monitoring.use_tool_id(free, name)
    memory = _readable(state, _INTERPRETER_BYTES)
    monitoring.free_tool_id(free)
    at = memory.find(struct.pack("@P", id(name)))
    if at < 0:
        raise Unsealable("the interpreter's state is laid out differently")
    yield Seal("the tools that are told of every call", state + at - free * _WORD, _TOOLS * _WORD)


_TOOLS = 6
"""How many tools there may be."""


def _readable(address: int, most: int) -> bytes:
    """Memory of this process, as far as there is some."""
    memory = b""
    end = address + _PAGE - address % _PAGE
    with contextlib.suppress(Unsealable):
        while len(memory) < most:
            memory += own_memory(address + len(memory), end - address - len(memory))
            end += 16 * _PAGE
    return memory


class _Probe:
    def __call__(self, *_: object) -> None:
        return None


def own_memory(address: int, size: int) -> bytes:
    """Memory of this process, without harm where nothing is."""
    try:
        return Memory(os.getpid(), [(address, size)])()
    except OSError as error:
        raise Unsealable(f"memory that cannot be read: {error.strerror}") from None


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Memory:
    """Reads pieces of another process's memory, again and again."""

    def __init__(self, pid: int, pieces: list[Piece]) -> None:
        self._pid = pid
        self._parts = [pieces[at : at + _MOST_PIECES] for at in range(0, len(pieces), _MOST_PIECES)]
        self._spans = [(_Span * len(part))(*(_Span(*piece) for piece in part)) for part in self._parts]
        self._buffer = ctypes.create_string_buffer(sum(size for _, size in pieces))

    def __call__(self) -> bytes:
        """The pieces, one behind the other.

        Raises:
            OSError: they may not be read, or are not there.
        """
        at = 0
        for part, spans in zip(self._parts, self._spans, strict=True):
            size = sum(size for _, size in part)
            self._fill(_Span(ctypes.addressof(self._buffer) + at, size), spans)
            at += size
        return self._buffer.raw

    def _fill(self, here: _Span, there: ctypes.Array[_Span]) -> None:
        try:
            count = _libc().process_vm_readv(self._pid, ctypes.byref(here), 1, there, len(there), 0)
        except AttributeError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if count != here.size:
            code = ctypes.get_errno() if count < 0 else errno.EFAULT
            raise OSError(code, os.strerror(code))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc
