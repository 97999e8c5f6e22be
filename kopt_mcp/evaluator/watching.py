"""What a call must hand back, and what it must leave alone: the runner's own checks of a candidate.

They run beside the candidate, which may bend them: what they find counts against it, and what they do not find proves
nothing. The proof is in the bytes that the harness compares.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kopt_mcp.evaluator.inputs import GUARD
from kopt_mcp.evaluator.lying import Lying, share

_M_PERTURB, _M_MMAP_MAX, _M_TRIM_THRESHOLD = -6, -4, -1
"""Parameters of glibc's mallopt: fill allocated memory with a byte, so that unwritten outputs show; take large blocks
from the heap, and never give it back: otherwise every timed call would pay for the page faults of a fresh output."""
_SMALLEST = float(torch.finfo(torch.float64).tiny)
"""Added to 1, it changes nothing unless numbers are rounded upwards. Whether denormal numbers are flushed is not looked
at: a compiler's start-up code does that where a library built with -ffast-math is loaded, as torch.compile's are."""
_LATE_STRIDE, _LATE_MOST = 61, 8192
"""Spacing of the elements that arrive late, and about how many there are at most: too few to warm the L2."""


class Structure(Exception):
    """What a candidate returned is not what it must return; `kind` is an evaluation status."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def plain_outputs(returned: Any, inputs: Iterable[torch.Tensor], device: str) -> list[torch.Tensor]:
    """What a call returned, as a list of tensors.

    Raises:
        Structure: something else than plain, dense, materialised tensors of their own memory came back.
    """
    outputs = parts(returned)
    own = {t.untyped_storage().data_ptr() for t in inputs}
    for position, tensor in enumerate(outputs):
        _check_plain(tensor, position, device)
        if tensor.numel() and tensor.untyped_storage().data_ptr() in own:
            raise Structure(
                "INCORRECT_NUMERICAL",
                f"output {position} shares the memory of an input; return memory of its own, and nothing for an input "
                "that the problem has changed in place",
            )
    require_own_memory([Lying.of(t) for t in outputs])
    return outputs


def parts(returned: Any) -> list[Any]:
    """One output or several: what a tuple holds, if it has names too as that of `torch.max`, not what it computes."""
    if issubclass(type(returned), (tuple, list)):
        return list((tuple if issubclass(type(returned), tuple) else list).__iter__(returned))
    return [] if returned is None else [returned]


def require_own_memory(outputs: list[Lying]) -> None:
    """See that each element of each output has memory of its own, as whoever changes one must rely on.

    Raises:
        Structure: it has not.
    """
    for position, lying in enumerate(outputs):
        if lying.repeats_itself():
            text = (
                f"output {position} has elements that share memory (strides {lying.strides}); call .contiguous() on it"
            )
            raise Structure("INCORRECT_SHAPE", text)
    if share(outputs):
        raise Structure("INCORRECT_NUMERICAL", "two outputs share memory")


def _check_plain(tensor: Any, position: int, device: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise Structure("INCORRECT_SHAPE", f"output {position} is a {type(tensor).__name__}, expected a tensor")
    if type(tensor) is not torch.Tensor:
        raise Structure(
            "CHEATED", f"output {position} is a {type(tensor).__name__}, a tensor subclass that may be lazy"
        )
    if not all(_is_compilers(n, v) for n, v in tensor.__dict__.items()) or tensor.layout is not torch.strided:
        raise Structure("CHEATED", f"output {position} carries attributes of its own or is not dense")
    if tensor.device.type != torch.device(device).type:
        raise Structure("INCORRECT_SHAPE", f"output {position} is on {tensor.device}, expected {device}")
    if tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        raise Structure("CHEATED", f"output {position} has no memory behind it")


def _is_compilers(name: str, value: Any) -> bool:
    """Whether torch.compile noted this, of an output whose size it has seen change."""
    return name.startswith("_dynamo_") and type(value) is set and all(type(one) is int for one in value)


def sums(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Two check sums of each tensor's bits, left on its device so that nobody waits for them."""
    found = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().view(-1)
        words = flat.view(torch.int64) if flat.nbytes % 8 == 0 else flat.view(torch.uint8).to(torch.int64)
        found += [words.sum(), words[::3].sum()]
    return torch.stack(found) if found else torch.empty(0, dtype=torch.int64)


def fingerprint(tensors: Iterable[torch.Tensor]) -> list[int]:
    """`sums` as numbers, to see whether an output changed after it was returned."""
    return [int(s) for s in sums(tensors).tolist()]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal bit by bit."""
    return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def late(tensors: list[torch.Tensor]) -> Callable[[], None]:
    """Make a few elements of each input wrong now, and return what makes them right.

    Called between the wait and the start of a timed call, it keeps a candidate from working ahead on another stream:
    what has been read too early is wrong.
    """
    pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor in tensors:
        if tensor.is_contiguous() and tensor.numel():
            piece = tensor.view(-1)[:: max(_LATE_STRIDE, tensor.numel() // _LATE_MOST | 1)]  # odd: in all columns
            pieces.append((piece, piece.clone()))
            piece.copy_(_other_values(piece))

    def finish() -> None:
        for piece, values in pieces:
            piece.copy_(values)

    return finish


def _other_values(values: torch.Tensor) -> torch.Tensor:
    """Values that differ, and that are as legal: of integers, which may be indices, only their order changes."""
    return -1 - values if values.dtype.is_floating_point else values.roll(1)


class Poison:
    """Fill memory that the candidate may get for its outputs with a pattern."""

    def __init__(self, byte: int, outputs: list[dict[str, Any]], device: str) -> None:
        self._byte, self._outputs, self._device = byte, outputs, device

    def __enter__(self) -> None:
        if self._device == "cpu":
            _perturb(self._byte)
            return
        blocks = [
            torch.full((o["bytes"] + 2 * GUARD,), self._byte, dtype=torch.uint8, device=self._device)
            for o in self._outputs
            for _ in range(2)
        ]
        del blocks

    def __exit__(self, *_: object) -> None:
        if self._device == "cpu":
            _perturb(0)


def keep_the_heap() -> None:
    """Have glibc serve large blocks from memory that has been touched before."""
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def _perturb(byte: int) -> None:
    # glibc fills with the complement of the byte that it is given.
    _mallopt(_M_PERTURB, (byte ^ 0xFF) if byte else 0)


def _mallopt(parameter: int, value: int) -> None:
    """Set a parameter of glibc's allocator; other C libraries have none, and go without."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(parameter, value)


def global_state() -> dict[str, Any]:
    """Everything global that a candidate might change to its advantage, or to the reference's."""
    state: dict[str, Any] = {
        "the random number generator's state": torch.get_rng_state(),
        "torch's default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "the float32 matmul precision": torch.get_float32_matmul_precision(),
        "which way numbers are rounded": (1.0 + _SMALLEST, 1.0 - _SMALLEST),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["the CUDA random number generator's state"] = torch.cuda.get_rng_state()
        state["the current CUDA stream"] = torch.cuda.current_stream().cuda_stream
        state["torch.backends.cudnn.allow_tf32"] = torch.backends.cudnn.allow_tf32
        matmul = torch.backends.cuda.matmul
        state["reduced precision reductions"] = (
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        )
    return state


def state_changes(before: dict[str, Any]) -> list[list[str]]:
    """What of the global state is not as it was: violations as the runner reports them."""
    after = global_state()
    return [["CHEATED", f"it changed {name}"] for name, value in before.items() if not _equal(value, after[name])]


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)
