"""The runner's side of `seals`: which words of its memory bind names to functions, and functions to their code.

Found by what they hold, since where they lie differs between versions of CPython.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import json.decoder
import json.encoder
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kopt_mcp.evaluator.peeking import Unreadable, own_memory, readable
from kopt_mcp.evaluator.seals import Seal

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


def of_modules(modules: Sequence[ModuleType], classes: Mapping[str, type]) -> list[Seal]:
    """Seal each module's names, the classes and functions that they are bound to here, and more classes by name.

    Raises:
        Unreadable: objects are not where they are expected.
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
        Unreadable: objects are not where they are expected.
    """
    import torch

    ours = [sys.modules[f"kopt_mcp.{name}"] for name in _OURS]
    speaking = [json, json.encoder, json.decoder, struct, time, builtins]
    classes = {"socket": socket.socket, "torch.cuda.Event": torch.cuda.Event, "torch.Tensor": torch.Tensor}
    seals = of_modules([*ours, *speaking], classes)
    slots = ["device", "_shared", "_outbox", "_made_clock", "_operators"]
    if items[0]._gate is not None:
        slots.append("_gate")
    seals += _instance("the candidate's call", items[0], slots)
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
        raise Unreadable(f"no table of {name}")
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
            raise Unreadable("a tuple is laid out differently")
        yield Seal(f"a constant of {name}", id(values) + tuple.__basicsize__, size)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _code(name, inner)


def _dict(name: str, table: dict[str, Any]) -> Iterator[Seal]:
    """Its length, where its entries lie, and all of them; it must not be empty."""
    keys = int.from_bytes(own_memory(id(table) + _KEYS, _WORD), sys.byteorder)
    size = dict.__sizeof__(table) - object.__sizeof__({}) if keys else 0
    length = int.from_bytes(own_memory(id(table) + _USED, _WORD), sys.byteorder)
    if not keys or size <= 0 or length != len(table):
        raise Unreadable(f"a dict is laid out differently: {name}")
    memory = own_memory(keys, size)
    found = [memory.find(struct.pack("@PP", id(k), id(v))) for k, v in table.items()]
    if min(found) < 0:
        raise Unreadable(f"no entries of {name}")
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
        raise Unreadable("a list is laid out differently")
    yield Seal(name, id(items) + _ITEMS, _WORD)
    yield Seal(name, start, _WORD)


def _words(name: str, one: Any, values: Sequence[Any], start: int = _HEAD) -> Iterator[Seal]:
    """Those words of an object that point to the values: where they lie differs between versions of CPython."""
    # What `__sizeof__` says of a class counts a table that lies elsewhere: behind the class itself are others' words.
    kind = type(one)
    memory = own_memory(id(one), kind.__basicsize__ if isinstance(one, type) else one.__sizeof__())
    wanted = {id(v) for v in values}
    places = range(start, len(memory) - len(memory) % _WORD, _WORD)
    found = {at: int.from_bytes(memory[at : at + _WORD], sys.byteorder) for at in places}
    if wanted - set(found.values()):
        raise Unreadable(f"{name} is laid out differently")
    yield from (Seal(name, id(one) + at, _WORD) for at, word in found.items() if word in wanted)


def _tracing() -> Iterator[Seal]:
    """Where a thread keeps the functions that are told of every call: found by setting them."""
    current = ctypes.pythonapi.PyThreadState_Get
    current.restype = ctypes.c_void_p
    state = int(current())
    found = [_address_of(state, sys.getprofile, sys.setprofile), _address_of(state, sys.gettrace, sys.settrace)]
    yield from (Seal("the functions that trace every call", at, _WORD) for at in found)


def _address_of(state: int, get: Callable[[], Any], put: Callable[[Any], None]) -> int:
    before, probe = get(), lambda *_: None
    put(probe)
    memory = own_memory(state, _THREAD_BYTES)
    put(before)
    if (at := memory.find(struct.pack("@P", id(probe)))) < 0:
        raise Unreadable("a thread's state is laid out differently")
    return state + at


_THREAD_BYTES, _INTERPRETER_BYTES = 512, 1 << 20
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
    memory = readable(state, _INTERPRETER_BYTES)
    monitoring.free_tool_id(free)
    at = memory.find(struct.pack("@P", id(name)))
    if at < 0:
        raise Unreadable("the interpreter's state is laid out differently")
    yield Seal("the tools that are told of every call", state + at - free * _WORD, _TOOLS * _WORD)


_TOOLS = 6
"""How many tools there may be."""
