"""Draw a workload's inputs from a seed: the same bits in the harness and in the runner.

Both sides call `draw` with the same recipe and seed on the same device, so values never travel, and a seed that the
runner has not been told yet is a set of inputs that the candidate cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from kopt_mcp.evaluator import generated
from kopt_mcp.problem import Spec

GUARD = 256
"""Bytes of red zone on each side of an input, and of an output of a C function."""
_INPUT_MARK, _OUTPUT_MARK = 0x7F, 0x5A
"""What the red zones of the first input, and of the first output of a C function, hold; see `_mark`. Beside inputs it
is huge or NaN in every floating type, so that what is read there shows."""
GAPS = ("strided", "ragged", "cut", "sliced")
"""The layouts in which rows lie apart. `strided`: whole vectors lie between two rows, or a row and what follows it are
whole vectors together, and the first begins at one. `ragged`: an odd number of elements between them, and the first row
begins anywhere. `cut`: it begins within a vector, as in `x[:, 1:]`. `sliced`: of a dimension before the last one a part
is left out, so that not all rows are equally far apart, as in `x[:, :k, :]`. How much lies between them is drawn."""
VECTOR = 8
"""Elements that a vector has at most where gaps are whole ones."""
LEAST_DIM = {"permuted": 3, "sliced": 3}
"""Least dimensions of a tensor which such a layout makes another of."""
_GAP, _LARGE_GAP = 128, 4096
"""Most elements between two rows, mostly, and now and then."""
_SPARE = 1 << 18
"""Elements that a tensor's gaps may take where it has fewer itself."""
_OFFSETS = 32
"""Elements past an aligned address before which an `offset` tensor begins."""
_LARGE_PIECE = 16
"""Most elements of a row that are large where one row is to be, and the share of a long row that they are at most."""
_SCALES = {"tiny": 1e-3, "large": 64.0}
NEARER = {"far": "large", "mixed-far": "mixed"}
"""What is drawn instead where the operation is not defined for values so far from zero, or tells nothing there."""
_FAR = {torch.float16: (768.0, 1024.0)}
_FAR_ELSE = (768.0, 4096.0)
"""Between which the scale of `far` values is drawn: above 745 the smallest double's logarithm, and the largest one's,
are left behind, and in float16 no value may become infinite."""


class Guarded:
    """The inputs of one call, with the memory around them watched."""

    def __init__(self, args: list[Any], buffers: list[torch.Tensor], first: int = _INPUT_MARK) -> None:
        self.args = args
        self.buffers = buffers
        self._first = first

    def tensors(self) -> list[torch.Tensor]:
        """The arguments that are tensors, in order."""
        return [a for a in self.args if isinstance(a, torch.Tensor)]

    def guards_intact(self) -> bool:
        """Whether no byte outside the inputs was written."""
        return bool(self.guards().all())

    def guards(self) -> torch.Tensor:
        """Of each input, whether its red zones are as they were: left on the device, so that nobody waits."""
        if not self.buffers:
            return torch.ones(0, dtype=torch.bool)
        return torch.stack([(_red_zones(b) == _mark(self._first, n)).all() for n, b in enumerate(self.buffers)])


def room(outputs: Sequence[dict[str, Any]], device: str) -> Guarded:
    """Tensors of these shapes and dtypes to be written to, with the memory around them watched."""
    places = [
        _embed(tuple(o["shape"]), getattr(torch, o["dtype"]), torch.device(device), 0, _mark(_OUTPUT_MARK, position))
        for position, o in enumerate(outputs)
    ]
    return Guarded([tensor for tensor, _ in places], [buffer for _, buffer in places], _OUTPUT_MARK)


def draw(
    inputs: Sequence[Any],
    literals: Sequence[torch.Tensor],
    seed: int,
    device: str,
    distribution: str = "normal",
    layout: str = "contiguous",
) -> Guarded:
    """Make the arguments of one call on `device`; with a number behind it (`large:1`, `strided:0`), a distribution or a
    layout is that of one argument only, beside which the others are normal, or contiguous."""
    args: list[Any] = []
    buffers: list[torch.Tensor] = []
    keys = {int(item.args["key"]) for item in inputs if isinstance(item, Spec) and item.kind == "generated"}
    sources = {key: generated.drawn(key, seed, device) for key in keys}
    for position, item in enumerate(inputs):
        if not isinstance(item, Spec):
            args.append(item)
            continue
        if item.kind == "generated":
            values = sources[int(item.args["key"])][int(item.args["index"])]
        else:
            values = _values(
                item, literals, seed * 1_000_003 + position, device, _only_at(position, distribution, "normal")
            )
        mark = _mark(_INPUT_MARK, len(buffers))
        where = _only_at(position, layout, "contiguous")
        tensor, buffer = _place(values, getattr(torch, item.dtype), where, mark, (seed, position))
        args.append(tensor)
        buffers.append(buffer)
    return Guarded(args, buffers)


def _values(spec: Spec, literals: Sequence[torch.Tensor], seed: int, device: str, distribution: str) -> torch.Tensor:
    """The values of one input, perhaps in a wider type than it has."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.kind == "literal":
        return literals[int(spec.args["index"])].to(device)
    generator = torch.Generator(device=device).manual_seed(seed % (1 << 63))
    if spec.kind == "integers":
        low, high = int(spec.args["low"]), int(spec.args["high"])
        values = torch.randint(low, high, spec.shape, generator=generator, device=device, dtype=dtype)
        return _by_rows(values, distribution, generator, lambda rows, name: _bounded(rows, name, (low, high - 1)))
    if spec.kind == "uniform":
        start, stop = spec.args["low"], spec.args["high"]
        values = torch.rand(spec.shape, generator=generator, device=device)
        return _scaled(_by_rows(values, distribution, generator, _bounded), stop - start, start)
    values = torch.randn(spec.shape, generator=generator, device=device)
    ends = _FAR.get(dtype, _FAR_ELSE)
    values = _by_rows(values, distribution, generator, lambda rows, name: _reshape(rows, name, generator, ends))
    return _scaled(values, spec.args["scale"], spec.args["shift"])


def _by_rows(
    values: torch.Tensor,
    distribution: str,
    generator: torch.Generator,
    reshape: Callable[[torch.Tensor, str], torch.Tensor],
) -> torch.Tensor:
    """Values of another distribution; of several (`tiny+equal`), each row is of one of them: which, is drawn.

    Rows of zeros are among ordinary ones, as nothing may be right but zeros where all are; a single row is of them.
    """
    names = ["zeros", "normal"] if distribution == "zeros" else distribution.split("+")
    if len(names) == 1 or values.numel() == 0 or values.dim() == 0:
        return reshape(values, names[0])
    rows = values.view(-1, values.shape[-1])
    order = torch.randperm(len(rows), generator=generator, device=values.device)
    first = 0
    if len(rows) < len(names) and distribution != "zeros":  # a single row, as of weights, is not always of the first
        first = int(torch.randint(len(names), (1,), generator=generator, device=values.device))
    for number, name in enumerate(names):
        # Only these rows: a sort of all would take four times as long.
        chosen = order[(number - first) % len(names) :: len(names)]
        rows.index_copy_(0, chosen, reshape(rows.index_select(0, chosen), name))
    return values


def _scaled(values: torch.Tensor, scale: float, shift: float) -> torch.Tensor:
    """values * scale + shift, without the passes over memory that would change nothing."""
    values = values if scale == 1 else values.mul_(scale)
    return values if shift == 0 else values.add_(shift)


def _bounded(values: torch.Tensor, distribution: str, ends: tuple[int, int] | None = None) -> torch.Tensor:
    """Those of the distributions that leave values within their bounds: what is rare in even draws (one value
    everywhere, an order, only the two `ends`) is where counters overflow and shortcuts show."""
    if distribution == "zeros":
        return values.fill_(ends[0] if ends else 0)
    if values.numel() == 0 or values.dim() == 0 or distribution not in ("equal", "sorted", "alternating"):
        return values
    if distribution != "alternating":
        return _reshape(values, distribution)
    if ends is not None:
        values.fill_(ends[0])[..., 1::2] = ends[1]
    return values


def _reshape(
    values: torch.Tensor,
    distribution: str,
    generator: torch.Generator | None = None,
    far: tuple[float, float] = _FAR_ELSE,
) -> torch.Tensor:
    """Turn standard normal values into another distribution, along the last dimension where it matters."""
    if distribution in _SCALES:
        return values.mul_(_SCALES[distribution])
    if distribution == "far":
        return _far(values, generator, far)
    if distribution in ("shifted", "zeros"):
        return _shifted(values, generator) if distribution == "shifted" else values.zero_()
    if values.numel() == 0 or values.dim() == 0:
        return values
    if distribution in ("mixed", "mixed-far"):
        scale = _between(far, generator, values.device) if distribution == "mixed-far" else _SCALES["large"]
        return values if values.dim() == 1 else _with_one_large_row(values, generator, scale)
    if distribution == "equal":
        return values[..., :1].expand_as(values).clone()
    if distribution == "outlier":
        where = values.abs().argmax(dim=-1, keepdim=True)
        return values.scatter_(-1, where, values.gather(-1, where) * 100.0)
    if distribution == "alternating":
        sign = torch.ones(values.shape[-1], device=values.device)
        sign[1::2] = -1.0
        return values.abs_().mul_(sign)
    if distribution == "sorted":
        return values.sort(dim=-1).values
    return values


def _shifted(values: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Each row far above zero or far below it: a maximum that begins at zero is right in the first kind only."""
    up = torch.randint(0, 2, values.shape[:-1], generator=generator, device=values.device)
    return values.add_((256.0 * up - 128.0)[..., None] if values.dim() else 128.0)


def _between(ends: tuple[float, float], generator: torch.Generator | None, device: torch.device) -> torch.Tensor:
    """A number between these, one as likely as its double; left on the device, so that nobody waits."""
    low, high = ends
    return low * (high / low) ** torch.rand((), generator=generator, device=device)


def _far(values: torch.Tensor, generator: torch.Generator | None, ends: tuple[float, float]) -> torch.Tensor:
    """Each row on both sides of zero, or all of it far above, or all of it far below.

    They are scaled and not shifted: beside their mean their differences stay large, so that in no sum of them more
    cancels than in one of ordinary values.
    """
    kind = torch.randint(0, 3, values.shape[:-1], generator=generator, device=values.device)
    kind = kind[..., None] if values.dim() else kind
    aside = torch.where(kind == 1, values.abs() + 1.0, -1.0 - values.abs())
    return torch.where(kind == 0, values, aside).mul_(_between(ends, generator, values.device))


def _with_one_large_row(
    values: torch.Tensor, generator: torch.Generator | None, scale: float | torch.Tensor
) -> torch.Tensor:
    """A kernel that looks at a few rows, or at a column, to choose its way must not find what matters.

    Which row it is, which piece of it, and how long that is (as often one or two elements as half of the most or all),
    is drawn: whatever follows from the values could be looked for, and whatever is long be found by a few samples.
    """
    rows, device = values.view(-1, values.shape[-1]), values.device
    count, length = rows.shape
    row = torch.randint(count, (1,), generator=generator, device=device)
    start = torch.randint(length, (1,), generator=generator, device=device)
    most = float(max(_LARGE_PIECE, length // _LARGE_PIECE))
    size = most ** torch.rand(1, generator=generator, device=device)
    piece = (torch.arange(length, device=device) - start) % length < size.floor()
    ordinary = rows.index_select(0, row)
    rows.index_copy_(0, row, torch.where(piece, scale * (ordinary.abs() + 1.0), ordinary))
    return values


def _mark(first: int, position: int) -> int:
    """A byte for each of up to 32 inputs and outputs: what is copied from beside one of them shows beside another."""
    return first ^ position % 32


def _only_at(position: int, named: str, else_: str) -> str:
    """What is named for the input at this position, where it may be meant for a single one: `strided:1`."""
    name, one, only = named.partition(":")
    return name if not one or int(only) == position else else_


def _place(
    values: torch.Tensor, dtype: torch.dtype, layout: str, mark: int, secret: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy `values`, rounded to `dtype`, into a fresh buffer with red zones, in the layout asked for.

    Args:
        secret: the seed, and which input this is: what a layout leaves open is drawn from them.
    """
    shape = tuple(values.shape)
    rng = None if layout == "contiguous" else Random(secret[0] * 1_000_003 + secret[1])
    if rng is not None and layout in GAPS and values.dim() >= LEAST_DIM.get(layout, 1) and values.numel():
        whole, part = _slice(shape, layout, rng)
        tensor, buffer = _embed(whole, dtype, values.device, 0, mark)
        buffer.fill_(mark)  # what is read between the rows shows as well
        tensor = tensor[part]
    elif layout == "permuted" and values.dim() >= LEAST_DIM["permuted"]:
        tensor, buffer = _embed((*shape[:-3], shape[-2], shape[-3], shape[-1]), dtype, values.device, 0, mark)
        tensor = tensor.transpose(-3, -2)
    else:
        offset = 0 if rng is None or layout != "offset" else rng.randrange(1, _OFFSETS, 2) * dtype.itemsize
        tensor, buffer = _embed(shape, dtype, values.device, offset, mark)
        if (strides := dense_strides(values)) is not None:
            tensor = tensor.as_strided(shape, strides)
    tensor.copy_(values)
    return tensor, buffer


def _slice(shape: tuple[int, ...], layout: str, rng: Random) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """The shape of a larger tensor, and which part of it has this shape, in one of the layouts in `GAPS`."""
    count = math.prod(shape)
    spare = max(count, _SPARE)
    first, gap = [0] * len(shape), [0] * len(shape)
    if layout == "sliced":
        at = rng.randrange(1, len(shape) - 1)
        gap[at] = rng.randint(1, max(1, min(4, spare // (count // shape[at]))))
        first[at] = rng.randint(0, gap[at])
        spare //= gap[at]
    if layout != "sliced" or rng.random() < 0.5:
        kind = layout if layout != "sliced" else rng.choice(("strided", "ragged", "cut"))
        first[-1], gap[-1] = _columns(kind, shape[-1], spare // (count // shape[-1]), rng)
    whole = tuple(size + more for size, more in zip(shape, gap, strict=True))
    return whole, tuple(slice(start, start + size) for start, size in zip(first, shape, strict=True))


def _columns(kind: str, cols: int, spare: int, rng: Random) -> tuple[int, int]:
    """Elements ahead of a row, and between one row and the next, which are to be no more than `spare`."""
    most = max(VECTOR, min(_GAP if rng.random() < 0.75 else _LARGE_GAP, spare))
    gap = rng.randint(1, most)
    if kind == "ragged":
        gap = min(gap | 1, most - 1 | 1)
        return rng.randint(0, gap), gap
    if kind == "cut" and rng.random() < 0.5:
        return rng.randrange(1, gap + 1, 2), gap
    gap = VECTOR * max(1, gap // VECTOR)
    if rng.random() < 0.5:  # together with the row
        gap += -cols % VECTOR
    if kind == "cut":
        return rng.randrange(1, gap + 1, 2), gap
    return VECTOR * rng.randint(0, gap // VECTOR), gap


def dense_strides(values: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor that fills its memory in another order than its dimensions': a transposed one."""
    if values.is_contiguous() or torch.empty_like(values, device="meta").stride() != values.stride():
        return None
    return tuple(values.stride())


def _embed(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, offset: int, mark: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor inside a byte buffer whose both ends hold the byte `mark`."""
    size = math.prod(shape) * dtype.itemsize
    buffer = torch.empty(GUARD + offset + size + GUARD, dtype=torch.uint8, device=device)
    _red_zones(buffer).fill_(mark)
    if offset:
        buffer[GUARD : GUARD + offset] = mark
    inner = buffer[GUARD + offset : GUARD + offset + size]
    return inner.view(dtype).view(shape), buffer


def _red_zones(buffer: torch.Tensor) -> torch.Tensor:
    """Both ends as one tensor: on a GPU every operation takes its time, however little there is to do."""
    return buffer.as_strided((2, GUARD), (buffer.numel() - GUARD, 1))
