"""Cross entropy of (rows, vocab) logits against labels: one float32 loss a row, not their mean.

The mean would hide a wrong row among thousands of right ones.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def reference(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log(sum(exp(x))) - x[label], computed around the row's maximum; losses stay in float32 for half precision."""
    wide = logits.to(_accumulator(logits.dtype))
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    chosen = shifted.gather(-1, labels[:, None]).squeeze(-1)
    return shifted.exp().sum(dim=-1).log() - chosen


def terms(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The size of what is added up: the maximum and the chosen logit cancel; the sum's relative error stays."""
    chosen = logits.gather(-1, labels[:, None]).squeeze(-1)
    depth = _depth(logits.shape[-1])
    return 1.0 + (logits.amax(dim=-1).abs() + chosen.abs()) / depth


def _depth(vocab: int) -> float:
    return max(1.0, torch.tensor(float(vocab)).log2().item())


def inputs(make: Make, rows: int, vocab: int) -> list[Spec]:
    return [make.normal(rows, vocab), make.integers(rows, low=0, high=vocab)]


def torch_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    def widened(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")

    return torch.compile(widened, mode="max-autotune-no-cudagraphs", dynamic=False)


def liger_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_cross_entropy

    return liger_cross_entropy(logits, labels, reduction="none")


def edge(rows: int, vocab: int, dtype: str = "float32") -> Workload:
    # bfloat16 on a GPU only, as in the other kernels: Triton's interpreter does not handle it like hardware.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "vocab": vocab}, dtype, devices, timed=False)


def cuda(rows: int, vocab: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "vocab": vocab}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="cross-entropy",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 128256),  # Llama 3
        cuda(16384, 32000),  # Llama 2, Mistral
        cuda(4096, 50257, "float32"),  # GPT-2: an odd row length, so that rows start unaligned
        cuda(256, 128256),  # fewer rows than fill the device
        Workload({"rows": 16, "vocab": 5000}, "float32", devices=("cpu",)),
        edge(2, 257),
        edge(7, 2049),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
        edge(3, 50257, "bfloat16"),
    ],
    bytes="rows * vocab * itemsize + rows * (8 + 4)",  # the logits once; a label in, a loss out
    flops="4 * rows * vocab",  # compare for the maximum, subtract, exponentiate, add up
    bound="memory",
    # A sum over a vocabulary is taken in lanes and then in a tree, so that its error grows with the depth.
    reduction="max(1, log2(vocab)) ** 2",
    scale=terms,
    vary={"rows": (1, 64), "vocab": (2, 9000)},
    layouts=LAYOUTS,
    comparisons={
        "torch": torch_cross_entropy,
        "torch.compile": lambda *args: _compiled()(*args),
        **({"liger": liger_cross_entropy} if find_spec("liger_kernel") else {}),
    },
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
