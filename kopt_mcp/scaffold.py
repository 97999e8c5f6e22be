"""A problem file to complete, with what a kernel's text tells filled in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kopt_mcp.csource import Token, tokens
from kopt_mcp.source import entry_of

_DTYPES = {"double": "float64", "__half": "float16", "half": "float16", "__nv_bfloat16": "bfloat16", "int": "int32"}
_STREAMS = {"cudaStream_t", "hipStream_t"}
_SIZES = ((4096, 4096), (127, 1000))
"""A large workload to time, and an awkward one to be right on."""


@dataclass(frozen=True)
class Signature:
    """How a kernel is called: its tensors by name, then its sizes."""

    entry: str
    inputs: tuple[str, ...]
    sizes: tuple[str, ...] = ("rows", "cols")
    arguments: tuple[str, ...] = ()
    """In C: the order of the call, in the words of `Problem.arguments`."""
    dtype: str = "float32"


def scaffold(kernel: str, text: str) -> str:
    """A problem file for `kernel` that parses and only lacks its reference and its cost."""
    found = _signature(kernel, text)
    entry, sizes = found.entry, ", ".join(found.sizes)
    shape = f"make.normal({sizes})"
    passed = found.sizes if found.arguments else ()
    names = ", ".join((*found.inputs, *passed))
    drawn = ", ".join((*[shape] * len(found.inputs), *passed))
    order = ", ".join(f'"{word}"' for word in found.arguments)
    return f'''"""What {kernel} must compute."""

from kopt_mcp.problem import Problem, Workload


def reference({names}):
    """Trusted and slow; must also work in float64."""
    raise NotImplementedError("write {entry} with plain torch operations")


def inputs(make, {sizes}):
    return [{drawn}]


PROBLEM = Problem(
    name="{entry.replace("_", "-")}",
    entry="{entry}",
    reference=reference,
    inputs=inputs,{
        f"""
    arguments=({order}),"""
        if order
        else ""
    }
    workloads=[
        Workload({_params(found.sizes, _SIZES[0])}, "{found.dtype}"),
        Workload({_params(found.sizes, _SIZES[1])}, "{found.dtype}", timed=False),
    ],
    bytes="{len(found.inputs) + 1} * {" * ".join(found.sizes)} * itemsize",
    flops="{" * ".join(found.sizes)}",
    bound="memory",
)
test_{entry} = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
'''


def _params(sizes: Sequence[str], values: Sequence[int]) -> str:
    chosen = [*values, *[16] * len(sizes)][: len(sizes)] if len(sizes) > 1 else [values[0] * values[1]]
    return "{" + ", ".join(f'"{name}": {value}' for name, value in zip(sizes, chosen, strict=True)) + "}"


def _signature(kernel: str, text: str) -> Signature:
    entry, arguments = entry_of(text, kernel)
    if kernel.endswith(".py"):
        return Signature(entry, arguments or ("x",))
    return _of_c(entry, _parameters(tokens(text), entry))


def _of_c(entry: str, parameters: Sequence[Sequence[Token]]) -> Signature:
    """Constant pointers are inputs, other pointers outputs, numbers sizes; a stream is passed by the evaluator."""
    inputs: list[str] = []
    sizes: list[str] = []
    order: list[str] = []
    dtype = "float32"
    for words in ([token.text for token in parameter] for parameter in parameters):
        if _STREAMS & set(words) or not words:
            continue
        name = words[-1]
        if "*" not in words:
            sizes.append(name)
            order.append(name)
        elif "const" in words:
            order.append(f"in{len(inputs)}")
            inputs.append(name)
            dtype = next((kind for word, kind in _DTYPES.items() if word in words), dtype)
        else:
            order.append(f"out{sum(word.startswith('out') for word in order)}")
    if not inputs or not sizes:
        return Signature(entry, ("x",), arguments=("in0", "out0", "rows", "cols"))
    return Signature(entry, tuple(inputs), tuple(sizes), tuple(order), dtype)


def _parameters(stream: Sequence[Token], entry: str) -> list[list[Token]]:
    """The parameters of the function `entry` where it is defined or declared first; none where it is not found."""
    for at, (word, mark) in enumerate(pairwise(stream)):
        if word.text == entry and mark.text == "(":
            inside: list[list[Token]] = [[]]
            for token in stream[at + 2 :]:
                if token.text == ")":
                    return inside
                if token.text == ",":
                    inside.append([])
                else:
                    inside[-1].append(token)
    return []
