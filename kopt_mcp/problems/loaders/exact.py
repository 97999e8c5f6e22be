"""Run a task's reference in float64, and find out how its rounding errors add up. Harness only.

Other people's references say float32 in many places: a cast, a buffer, an accumulator. Called on float64 arguments they
run with every such word read as float64; casts to a type of eight bits or to integers stay, since they are part of what
the task asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.reference import as_list

_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_METHODS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
_STEP = 2.0**-20
"""Relative size of the steps by which `spread` disturbs float64 arguments: small enough to be linear, and far above
what float64 rounds."""
_DRAWS = 4


class Widened(TorchFunctionMode):
    """Reads every floating type that is narrower than float64, and wider than eight bits, as float64."""

    def __enter__(self) -> Widened:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._before)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _METHODS:
            return args[0].double()
        args = tuple(torch.float64 if _narrow(a) else a for a in args)
        return function(*args, **{k: torch.float64 if _narrow(v) else v for k, v in (kwargs or {}).items()})


def _narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _NARROW


def exact(function: Callable[..., Any], native: Sequence[str] = ()) -> Callable[..., list[torch.Tensor]]:
    """`function` as a reference: in float64 when its arguments are, never recording gradients, never random.

    Args:
        native: dtypes of the arguments as the task has them; where float64 is among them nothing is widened.

    The result raises BadReference where the function fails, returns no tensors, or draws random numbers.
    """

    def reference(*args: Any) -> list[torch.Tensor]:
        wide = "float64" not in native and any(isinstance(a, torch.Tensor) and a.dtype == torch.float64 for a in args)
        before = _random_state()
        try:
            with torch.no_grad():
                if wide:
                    with Widened():
                        returned = as_list(function(*args))
                else:
                    returned = as_list(function(*args))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            how = "in float64" if wide else "on the task's own inputs"
            raise BadReference(f"the reference fails {how}: {type(error).__name__}: {str(error)[:300]}") from error
        if not all(torch.equal(a, b) for a, b in zip(before, _random_state(), strict=False)):
            raise BadReference("the reference draws random numbers (dropout?), so that no kernel can agree with it")
        if bad := [type(t).__name__ for t in returned if not isinstance(t, torch.Tensor)]:
            raise BadReference(f"the reference returns a {bad[0]}; expected a tensor, or a tuple of them")
        return returned

    return reference


def spread(reference: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    """S of the tolerance rule for a reference whose sums are not known: how far it moves when its arguments do.

    The root mean square, over a few draws, of the change when every element of every argument is off by one step, in
    units of that step. For a product A @ B this is sqrt(2 * A**2 @ B**2) on average.
    """

    def scale(*args: Any) -> list[torch.Tensor]:
        still = reference(*args)
        total = [torch.zeros_like(t, dtype=torch.float64) for t in still]
        for draw in range(_DRAWS):
            moved = reference(*[_off_by_one_step(a, 7919 * draw + position) for position, a in enumerate(args)])
            for added, a, b in zip(total, still, moved, strict=True):
                # In place where it can be: some problems fill a quarter of the device's memory.
                own = b.clone() if b.data_ptr() == a.data_ptr() else b  # a reference may return what it keeps
                added.add_(own.double().sub_(a).div_(_STEP).nan_to_num_(0.0, 0.0, 0.0).square_())
        return [t.div_(_DRAWS).sqrt_() for t in total]

    return scale


def _off_by_one_step(value: Any, seed: int) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    generator = torch.Generator(device=value.device).manual_seed(seed)
    up = torch.randint(0, 2, value.shape, generator=generator, device=value.device, dtype=torch.int8)
    return up.to(value.dtype).mul_(2.0 * _STEP).add_(1.0 - _STEP).mul_(value)


def _random_state() -> list[torch.Tensor]:
    state = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state.append(torch.cuda.get_rng_state())
    return state
