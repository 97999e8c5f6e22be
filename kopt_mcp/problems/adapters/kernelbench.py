"""KernelBench: a candidate is a class `ModelNew`, built from `get_init_inputs()` and called like a module.

Our flat arguments are the tensors of `get_inputs()`, then the state of `Model` (parameters and buffers, by name), then
which size of the problem it is and which set of weights. A module is built for each set of weights, under the seed that
`Model` was built under, and is then given the state itself: by name, or by order where only the names differ.
"""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import key_of, placed, rebuild, register, seeded

CANDIDATE = "ModelNew"
_MODULES = 2
"""How many modules are kept: the timed one and the one that is being checked."""


def prepare(spec: Mapping[str, Any]) -> None:
    """Have inputs that no recipe describes drawn by the problem's own `get_inputs`."""
    for size in spec["sizes"]:
        task = executed(spec["source"], size["constants"])
        register_inputs(spec["source"], size["constants"], task, spec["dtype"])


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate's `forward` as a function of flat arguments."""
    candidate = getattr(module, CANDIDATE, None)
    if not isinstance(candidate, type) or not issubclass(candidate, torch.nn.Module):
        raise ImportError(f"the kernel file defines no class {CANDIDATE!r} that is a torch.nn.Module")
    modules: OrderedDict[tuple[int, int], torch.nn.Module] = OrderedDict()
    sizes, tasks = spec["sizes"], [executed(spec["source"], size["constants"]) for size in spec["sizes"]]

    def call(*args: Any) -> Any:
        which, weights = args[-2:]
        size = sizes[which]
        built = modules.get((which, weights))
        if built is None:
            state = dict(zip(spec["state"], args[size["inputs"] : -2], strict=True))
            built = _built(candidate, tasks[which], state, spec, weights)
            modules[which, weights] = built
            if len(modules) > _MODULES:
                modules.popitem(last=False)
        with torch.no_grad():
            return built(*rebuild(size["nest"], args))

    return call


def _built(
    candidate: Callable[..., torch.nn.Module],
    task: Mapping[str, Any],
    state: dict[str, torch.Tensor],
    spec: Mapping[str, Any],
    weights: int,
) -> torch.nn.Module:
    """A module with the state of `Model`."""
    with seeded(spec["seed"] + weights, "cpu"), placed("cpu"):
        built = constructed(candidate, task)
    built = built.to(spec["device"], getattr(torch, spec["dtype"]))
    built.train(spec["mode"] == "train")
    own = state_of(built)
    names = _pairs({n: tuple(t.shape) for n, t in own.items()}, {n: tuple(t.shape) for n, t in state.items()})
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.data.copy_(state[names[name]])
    return built


def _pairs(own: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """Which state of `Model` each parameter and buffer of the candidate takes."""
    if own == given:
        return {name: name for name in own}
    if list(own.values()) == list(given.values()):
        return dict(zip(own, given, strict=True))
    lacks = sorted(f"{n}{list(s)}" for n, s in given.items() if own.get(n) != s)[:4]
    extra = sorted(f"{n}{list(s)}" for n, s in own.items() if given.get(n) != s)[:4]
    raise ValueError(
        f"the state of {CANDIDATE} is not that of Model, which it must be given to compute the same: Model has "
        f"{', '.join(lacks) or 'no other'}, {CANDIDATE} has {', '.join(extra) or 'none of these'}; name parameters and "
        "buffers as Model does, or register others with persistent names in the same order"
    )


def constructed(make: Callable[..., torch.nn.Module], task: Mapping[str, Any]) -> torch.nn.Module:
    """A module from `get_init_inputs()`."""
    given = task["get_init_inputs"]()
    return make(**given) if isinstance(given, dict) else make(*given)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; those that are one and the same once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def register_inputs(source: str, constants: Mapping[str, Any], task: Mapping[str, Any], dtype: str) -> int:
    """Have inputs of one size drawn by `get_inputs()`, its floating tensors in `dtype`; the key that they get."""
    key = key_of("kernelbench", dtype, source, repr(sorted(constants.items())))
    register(key, lambda seed: _cast(list(task["get_inputs"]()), getattr(torch, dtype)))
    return key


def _cast(data: Any, dtype: torch.dtype) -> Any:
    if isinstance(data, (list, tuple)):
        return type(data)(_cast(one, dtype) for one in data)
    return data.to(dtype) if isinstance(data, torch.Tensor) and data.dtype.is_floating_point else data


def executed(source: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    """What a problem's source defines, with some of its constants replaced."""
    tree = ast.parse(source)
    for node in tree.body:
        names = [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Assign) and (told := [name for name in names if name in constants]):
            value = ast.parse(repr(constants[told[0]]), mode="eval").body
            node.value = ast.copy_location(value, node.value)
    ast.fix_missing_locations(tree)
    namespace: dict[str, Any] = {"__name__": "kernelbench_problem"}
    with placed("cpu"):
        exec(compile(tree, "<the problem>", "exec"), namespace)
    return namespace
