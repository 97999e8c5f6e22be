"""A definition of FlashInfer-Bench or SOL-ExecBench as a problem.

The definition says shapes and types, so that bytes are counted from it; its reference is run in float64, whatever it
says of float32. Inputs that are random are drawn by recipes of ours, inputs from files are the same in every call,
inputs that the definition draws itself are drawn by its own function under our seeds. A candidate returns its outputs,
or writes into those that it is handed, which its signature tells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from kopt_mcp.evaluator.generated import key_of, placed
from kopt_mcp.problem import DTYPES, Make, Problem, ProblemError, Spec
from kopt_mcp.problems.adapters import flashinfer as adapter
from kopt_mcp.problems.definitions import Definition, Tensor, data_file, definition_of, names_of, workloads_of
from kopt_mcp.problems.definitions import Workload as Given
from kopt_mcp.problems.loaders import Recipe, TaskWorkload, device_of, floating, problem_of, size_of, staged
from kopt_mcp.problems.loaders.counting import counted
from kopt_mcp.problems.loaders.exact import exact, spread
from kopt_mcp.problems.reading import bytes_of, slug

_LARGEST_INTEGER = {"int8": 128, "uint8": 256}
_INTEGERS = 1024
_WEIGHTS = ("weight", "weights", "proj", "projs")
_POSITIVE = ("rstd", "std", "variance", "var")
_SHARES = ("attn_weights", "attention_weights", "routing_weights")
_RECURRENT = ("ssm", "mamba", "scan", "delta", "gdn")
_DECAY = {"A_log": (-5.0, -1.0), "A": (-1.0, -0.001), "g": (-5.0, 0.0)}
_LARGEST_HEADER = 16 << 20
_TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
_TORCH |= {"I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}

Tensors = Callable[[str], tuple[dict[str, Any], bytes]]
"""Opens a `.safetensors` file by the name that a workload gives it: its header, and the bytes behind that."""


def load(path: Path, *, precision: Literal["ieee", "tf32"] = "ieee") -> Problem:
    """Execute a definition's reference and express it as a `Problem`.

    Args:
        precision: `tf32` lets float32 products be rounded to 10 bits.
    """
    definition = definition_of(path)
    given = workloads_of(path, definition)
    needed = ["run", *([definition.custom] if definition.custom else ())]
    what = f"{definition.name}: field 'reference'"
    module = staged({f"{adapter.MODULE}.py": definition.reference}, f"{adapter.MODULE}.py", needed, what)
    told = [_told(definition, one) for one in given]
    for one in told:
        adapter.register_inputs(getattr(module, definition.custom or "", None), one)
    opened = cache(lambda name: _opened(name, data_file(path, name)))
    workloads = [
        _workload(*one, definition, opened, module.run) for one in zip(names_of(given), given, told, strict=True)
    ]
    outputs = [t.name for t in definition.outputs]
    dtypes = [getattr(torch, t.dtype) for t in definition.outputs]

    def called(*args: Any) -> list[torch.Tensor]:
        own = [a.clone() if isinstance(a, torch.Tensor) else a for a in args[:-1]]
        device = device_of(args)
        with placed(device):
            returned = module.run(*own)
        made = adapter.outputs_of(returned, outputs, dtypes, device)
        return list(made) if isinstance(made, tuple) else [made]

    reference = exact(called, [t.dtype for t in definition.inputs])
    return problem_of(
        slug(definition.name),
        workloads,
        precision=precision,
        reference=reference,
        scale=spread(reference),
        entry=adapter.CANDIDATE,
        adapter="flashinfer",
        adapter_spec={
            "reference": definition.reference,
            "custom": definition.custom,
            "inputs": len(definition.inputs),
            "outputs": outputs,
            "workloads": told,
        },
    )


def _told(definition: Definition, given: Given) -> dict[str, Any]:
    """What the adapter must know of a workload."""
    axes = definition.axes(given.axes)
    scalars = {n: s["value"] for n, s in given.inputs.items() if s["type"] == "scalar"}
    custom = [n for n, s in given.inputs.items() if s["type"] == "custom"]
    random = [t for t in definition.inputs if given.inputs[t.name]["type"] == "random"]
    return {
        "axes": {**axes, **scalars},
        "custom": custom,
        "key": key_of("flashinfer", definition.reference, repr(custom), repr(sorted({**axes, **scalars}.items()))),
        "rows": [_rows(t, _shape(t, axes)) for t in random if _is_shares(t, definition)],
        "outputs": [[list(_shape(t, axes)), t.dtype] for t in definition.outputs],
    }


def _shape(tensor: Tensor, axes: dict[str, int]) -> tuple[int, ...]:
    return tuple(axes[name] for name in tensor.axes or ())


def _rows(tensor: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    key = key_of("rows", repr(shape), tensor.dtype, tensor.name)
    return {"key": key, "shape": list(shape), "dtype": tensor.dtype}


def _workload(
    name: str, given: Given, told: dict[str, Any], definition: Definition, opened: Tensors, run: Callable[..., Any]
) -> TaskWorkload:
    axes = definition.axes(given.axes)
    recipes: list[Recipe] = []
    for tensor in definition.inputs:
        source, shape = given.inputs[tensor.name], _shape(tensor, axes)
        if source["type"] == "scalar":
            recipes.append(source["value"])
        elif source["type"] == "safetensors":
            recipes.append(_from_file(source["path"], source["tensor_key"], shape, tensor, opened))
        elif source["type"] == "custom":
            index = told["custom"].index(tensor.name)
            recipes.append(Spec("generated", shape, tensor.dtype, {"key": told["key"], "index": index}))
        else:
            recipes.append(_random(tensor, shape, definition))
    written = sum(math.prod(shape) * DTYPES[dtype] for shape, dtype in told["outputs"])
    dtype = floating([t.dtype for t in (*definition.inputs, *definition.outputs)])
    return TaskWorkload(name, dtype, recipes, size_of(recipes) + written, counted(lambda *args: run(*args), recipes))


def _random(tensor: Tensor, shape: tuple[int, ...], definition: Definition) -> Recipe:
    """Values that an input of this name and type can have; a norm's weight is about one, a variance above zero."""
    make = Make(tensor.dtype)
    if not getattr(torch, tensor.dtype).is_floating_point:
        high = 2 if tensor.dtype == "bool" else _LARGEST_INTEGER.get(tensor.dtype, _INTEGERS)
        low = 0 if tensor.dtype in ("bool", "uint8") else -high
        return make.integers(*shape, low=low, high=high, dtype=tensor.dtype)
    if _is_shares(tensor, definition):
        return Spec("generated", shape, tensor.dtype, {"key": _rows(tensor, shape)["key"], "index": 0})
    name, description = tensor.name.rstrip("0123456789"), tensor.description.lower()
    last = name.rpartition("_")[2]
    if name in ("attention_mask", "causal_mask") and len(shape) >= 2 and shape[-1] == shape[-2]:
        dtype = getattr(torch, tensor.dtype)
        return torch.full(shape, torch.finfo(dtype).min, dtype=dtype).triu(1)
    if name.endswith("_mask") and any(word in description for word in ("binary", "{0, 1}", "0 or 1", "1.0 for valid")):
        return make.integers(*shape, high=2, dtype=tensor.dtype)
    if last in _POSITIVE:
        return make.uniform(*shape, low=0.1, high=2.0)
    if name in _DECAY and any(word in f"{definition.op_type} {definition.name}".lower() for word in _RECURRENT):
        return make.uniform(*shape, low=_DECAY[name][0], high=_DECAY[name][1])
    if {"cos", "sin"} & set(name.split("_")):
        return make.uniform(*shape, low=-1.0, high=1.0)
    if "norm" in name and name.endswith("weight"):
        return make.normal(*shape, scale=0.25, shift=1.0)
    if len(shape) >= 2 and last in _WEIGHTS:
        return make.normal(*shape, scale=max(1, shape[-1]) ** -0.5)
    return make.normal(*shape)


def _is_shares(tensor: Tensor, definition: Definition) -> bool:
    """Whether rows of it add up to one."""
    drawn = definition.op_type == "sampling" and tensor.name == "probs"
    return bool(tensor.axes) and (drawn or tensor.name in _SHARES)


def _opened(name: str, path: Path) -> tuple[dict[str, Any], bytes]:
    """A `.safetensors` file: a header of JSON after its length, then the bytes."""
    data = bytes_of(path)
    size = int.from_bytes(data[:8], "little")
    if data.startswith(b"version https://git-lfs"):
        raise ProblemError(f"{name} is a pointer of Git LFS; fetch the file itself (git lfs pull).")
    if not 2 <= size <= min(_LARGEST_HEADER, len(data) - 8):
        raise ProblemError(f"{name} is no safetensors file; expected one.")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise ProblemError(f"{name} is no safetensors file: its header is not JSON.") from error
    if not isinstance(header, dict):
        raise ProblemError(f"{name} is no safetensors file: its header is no object.")
    return header, data[8 + size :]


def _from_file(name: str, key: str, shape: tuple[int, ...], tensor: Tensor, opened: Tensors) -> torch.Tensor:
    """A tensor of a file, whose shape and dtype must be the definition's."""
    header, data = opened(name)
    found = header.get(key)
    if not isinstance(found, dict):
        raise ProblemError(f"{name} holds no tensor {key[:60]!r}; it holds {sorted(header)[:12]}.")
    kind, size = _TORCH.get(str(found.get("dtype")), str(found.get("dtype"))), found.get("shape")
    if kind != tensor.dtype or size != list(shape):
        raise ProblemError(f"{name}: {key[:60]!r} is {kind} {size}; expected {tensor.dtype} {list(shape)}.")
    match found.get("data_offsets"):
        case [int(first), int(last)] if 0 <= first <= last <= len(data):
            content = bytearray(data[first:last])
        case _:
            content = bytearray()
    if len(content) != math.prod(shape) * DTYPES[tensor.dtype]:
        raise ProblemError(f"{name}: the bytes of {key[:60]!r} are not all there; fetch the file again.")
    dtype = getattr(torch, tensor.dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype)
