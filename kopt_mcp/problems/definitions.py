"""A problem that a definition with symbolic axes describes, as FlashInfer-Bench and SOL-ExecBench write them.

Harness only.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator.generated import placed
from kopt_mcp.problem import DTYPES, Input, Make, Problem, ProblemError, Spec, Workload
from kopt_mcp.problems import executed
from kopt_mcp.problems.adapters import flashinfer as adapter
from kopt_mcp.problems.counting import bound_of, counted, devices_of
from kopt_mcp.problems.exact import exact, spread
from kopt_mcp.problems.reading import bytes_of
from kopt_mcp.problems.workloads import Definition, Tensor, names_of
from kopt_mcp.problems.workloads import Workload as Given

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


def problem_of(
    name: str, definition: Definition, given: Sequence[Given], precision: Any, data_file: Callable[[str], Path]
) -> Problem:
    """The `Problem` of a definition and its workloads.

    Raises:
        ProblemError: see `flashinfer.load`.
    """
    module = _reference(definition)
    described = [_described(definition, one) for one in given]
    spec: dict[str, Any] = {
        "reference": definition.reference,
        "custom": definition.custom if any(one["custom"] for one in described) else None,
        "inputs": len(definition.inputs),
        "outputs": [t.name for t in definition.outputs],
        "workloads": described,
    }
    adapter.register_all(spec, getattr(module, definition.custom) if definition.custom else None)
    files = _Files(data_file)
    recipes = [_inputs(definition, one, files, spec, number) for number, one in enumerate(given)]
    native = sorted({t.dtype for t in definition.inputs})

    def called(*args: Any) -> list[torch.Tensor]:
        own = [a.clone() if isinstance(a, torch.Tensor) else a for a in args[:-1]]
        device = next((str(a.device) for a in args if isinstance(a, torch.Tensor)), "cpu")
        with placed(device):
            returned = module.run(*own)
        made = adapter.outputs_of(returned, spec["outputs"], described[args[-1]]["outputs"], device)
        return list(made) if isinstance(made, tuple) else [made]

    reference = exact(called, native)
    workloads = _workloads(definition, given, recipes, module, described)
    largest = max(workloads, key=lambda w: float(w.params["moved"]))
    dense = all(isinstance(i, Spec) and i.kind in ("normal", "uniform") for one in recipes for i in one if _is_spec(i))
    partial = any(w.params["partial"] for w in workloads)
    return Problem(
        name=name,
        reference=reference,
        inputs=lambda make, which, **_: [*(_made(i, make) for i in recipes[which]), which],
        workloads=workloads,
        bytes="moved",
        flops="operations",
        bound=bound_of(
            float(largest.params["moved"]),
            counted(lambda *args: module.run(*args), _empty(recipes[workloads.index(largest)])),
        ),
        entry=adapter.CANDIDATE,
        precision=precision,
        reduction="longest",
        scale=spread(reference),
        certain=("bytes",) if dense and not partial else (),
        adapter="flashinfer",
        adapter_spec=spec,
    )


def _reference(definition: Definition) -> Any:
    path = Path(tempfile.mkdtemp(prefix="task-")) / adapter.FILE
    path.write_text(definition.reference, encoding="utf-8")
    with placed("cuda" if torch.cuda.is_available() else "cpu"):
        module = executed(path, path.stem)
    for needed in ("run", *([definition.custom] if definition.custom else ())):
        if not callable(getattr(module, needed, None)):
            raise ProblemError(f"{definition.name}: field 'reference' defines no {needed}; expected a function.")
    return module


def _described(definition: Definition, given: Given) -> dict[str, Any]:
    """What the adapter must know of a workload."""
    axes = definition.axes(given.axes)
    scalars = {n: s["value"] for n, s in given.inputs.items() if s["type"] == "scalar"}
    rows = [
        {"name": t.name, "shape": list(_shape(t, axes)), "dtype": t.dtype}
        for t in definition.inputs
        if given.inputs[t.name]["type"] == "random" and _is_shares(t, definition)
    ]
    return {
        "axes": {**axes, **scalars},
        "custom": [n for n, s in given.inputs.items() if s["type"] == "custom"],
        "rows": rows,
        "outputs": [[list(_shape(t, axes)), t.dtype] for t in definition.outputs],
    }


def _shape(tensor: Tensor, axes: dict[str, int]) -> tuple[int, ...]:
    return tuple(axes[name] for name in tensor.axes or ())


Recipe = Spec | torch.Tensor | int | float | bool
"""How one input comes about: drawn, the same in every call, or a number."""


def _inputs(definition: Definition, given: Given, files: _Files, spec: dict[str, Any], number: int) -> list[Recipe]:
    axes = definition.axes(given.axes)
    workload = spec["workloads"][number]
    recipes: list[Recipe] = []
    for tensor in definition.inputs:
        source, shape = given.inputs[tensor.name], _shape(tensor, axes)
        if source["type"] == "scalar":
            recipes.append(source["value"])
        elif source["type"] == "safetensors":
            recipes.append(files.read(str(source["path"]), str(source["tensor_key"]), shape, tensor))
        elif source["type"] == "custom":
            args: dict[str, float] = {
                "key": adapter.custom_key(spec, workload),
                "index": workload["custom"].index(tensor.name),
            }
            recipes.append(Spec("generated", shape, tensor.dtype, args))
        else:
            recipes.append(_random(tensor, shape, definition))
    return recipes


def _random(tensor: Tensor, shape: tuple[int, ...], definition: Definition) -> Recipe:
    """Values that an input of this name and type can have; a norm's weight is about one, a variance above zero."""
    if not getattr(torch, tensor.dtype).is_floating_point:
        high = 2 if tensor.dtype == "bool" else _LARGEST_INTEGER.get(tensor.dtype, _INTEGERS)
        low = 0 if tensor.dtype in ("bool", "uint8") else -high
        return Spec("integers", shape, tensor.dtype, {"low": low, "high": high})
    if _is_shares(tensor, definition):
        rows = {"name": tensor.name, "shape": list(shape), "dtype": tensor.dtype}
        return Spec("generated", shape, tensor.dtype, {"key": adapter.rows_key(rows), "index": 0})
    name, description = tensor.name.rstrip("0123456789"), tensor.description.lower()
    if name in ("attention_mask", "causal_mask") and len(shape) >= 2 and shape[-1] == shape[-2]:
        dtype = getattr(torch, tensor.dtype)
        return torch.full(shape, torch.finfo(dtype).min, dtype=dtype).triu(1)
    if name.endswith("_mask") and any(word in description for word in ("binary", "{0, 1}", "0 or 1", "1.0 for valid")):
        return Spec("integers", shape, tensor.dtype, {"low": 0, "high": 2})
    if name.rpartition("_")[2] in _POSITIVE:
        return Spec("uniform", shape, tensor.dtype, {"low": 0.1, "high": 2.0})
    if name in _DECAY and any(word in f"{definition.op_type} {definition.name}".lower() for word in _RECURRENT):
        return Spec("uniform", shape, tensor.dtype, dict(zip(("low", "high"), _DECAY[name], strict=True)))
    if {"cos", "sin"} & set(name.split("_")):
        return Spec("uniform", shape, tensor.dtype, {"low": -1.0, "high": 1.0})
    if "norm" in name and name.endswith("weight"):
        return Spec("normal", shape, tensor.dtype, {"scale": 0.25, "shift": 1.0})
    if len(shape) >= 2 and name.rpartition("_")[2] in _WEIGHTS:
        return Spec("normal", shape, tensor.dtype, {"scale": max(1, shape[-1]) ** -0.5, "shift": 0.0})
    return Spec("normal", shape, tensor.dtype, {"scale": 1.0, "shift": 0.0})


def _is_shares(tensor: Tensor, definition: Definition) -> bool:
    """Whether rows of it add up to one."""
    drawn = definition.op_type == "sampling" and tensor.name == "probs"
    return bool(tensor.axes) and (drawn or tensor.name in _SHARES)


def _is_spec(recipe: Recipe) -> bool:
    return isinstance(recipe, (Spec, torch.Tensor))


def _made(recipe: Recipe, make: Make) -> Input:
    return make.literal(recipe) if isinstance(recipe, torch.Tensor) else recipe


def _workloads(
    definition: Definition, given: Sequence[Given], recipes: list[list[Recipe]], module: Any, described: list[Any]
) -> list[Workload]:
    floating = [t.dtype for t in (*definition.inputs, *definition.outputs) if getattr(torch, t.dtype).is_floating_point]
    dtype = (floating or [definition.outputs[0].dtype])[0]
    made = []
    for number, name in enumerate(names_of(given)):
        costs = counted(lambda *args: module.run(*args), _empty(recipes[number]))
        tensors = [r for r in recipes[number] if isinstance(r, (Spec, torch.Tensor))]
        read = sum(math.prod(t.shape) * DTYPES[_dtype(t)] for t in tensors)
        written = sum(math.prod(shape) * DTYPES[kind] for shape, kind in described[number]["outputs"])
        params = {
            "which": number,
            "moved": read + written,
            "operations": costs.flops if costs else 0.0,
            "longest": costs.longest if costs else 1,
            "partial": costs is None or costs.partial,
        }
        made.append(Workload(params, dtype, devices_of(read + written, dtype), name=name))
    return made


def _dtype(recipe: Spec | torch.Tensor) -> str:
    return recipe.dtype if isinstance(recipe, Spec) else str(recipe.dtype).removeprefix("torch.")


def _empty(recipes: list[Recipe]) -> list[Any]:
    """Tensors of these shapes, without values."""
    return [
        torch.empty(r.shape, dtype=getattr(torch, _dtype(r)), device="meta")
        if isinstance(r, (Spec, torch.Tensor))
        else r
        for r in recipes
    ]


class _Files:
    """Tensors from `.safetensors` files, each file read once: a header of JSON after its length, then the bytes."""

    def __init__(self, find: Callable[[str], Path]) -> None:
        self._find = find
        self._read: dict[str, tuple[dict[str, Any], bytes]] = {}

    def read(self, name: str, key: str, shape: tuple[int, ...], tensor: Tensor) -> torch.Tensor:
        """One tensor, whose shape and dtype must be the definition's.

        Raises:
            ProblemError: the file is none, or does not hold it.
        """
        header, data = self._opened(name)
        found = header.get(key)
        if not isinstance(found, dict):
            raise ProblemError(f"{name} holds no tensor {key[:60]!r}; it holds {sorted(header)[:12]}.")
        kind, size = _TORCH.get(str(found.get("dtype")), str(found.get("dtype"))), found.get("shape")
        if kind != tensor.dtype or size != list(shape):
            raise ProblemError(f"{name}: {key[:60]!r} is {kind} {size}; expected {tensor.dtype} {list(shape)}.")
        first, last = found.get("data_offsets", (0, 0))
        if not 0 <= first <= last <= len(data) or last - first != math.prod(shape) * DTYPES[tensor.dtype]:
            raise ProblemError(f"{name}: the bytes of {key[:60]!r} are not all there; fetch the file again.")
        if first == last:
            return torch.empty(shape, dtype=getattr(torch, tensor.dtype))
        return torch.frombuffer(bytearray(data[first:last]), dtype=getattr(torch, tensor.dtype)).reshape(shape)

    def _opened(self, name: str) -> tuple[dict[str, Any], bytes]:
        if name not in self._read:
            data = bytes_of(self._find(name))
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
            self._read[name] = (header, data[8 + size :])
        return self._read[name]
