"""A row softmax as a good kernel, and the same kernel asked for with one warp, where a row cannot stay in registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out, x, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + offsets, mask=offsets < columns, other=-float("inf")).to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + offsets, exponentials / tl.sum(exponentials, axis=0), mask=offsets < columns)


def launch(x, num_warps):
    assert x.is_cuda, "the kernel runs on a GPU"
    rows, columns = x.shape
    out = torch.empty_like(x)
    with torch.cuda.device(x.device):
        softmax_kernel[(rows,)](
            out, x, columns, x.stride(0), BLOCK=triton.next_power_of_2(columns), num_warps=num_warps
        )
    return out


def softmax(x):
    print("a kernel may print")
    return launch(x, num_warps=8)


def softmax_one_warp(x):
    return launch(x, num_warps=1)


def softmax_too_many_threads(x):
    return launch(x, num_warps=64)


def softmax_twice(x):
    return softmax(softmax(x))


def softmax_persistent(x):
    properties = torch.cuda.get_device_properties(x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    blocks = properties.multi_processor_count
    softmax_kernel[(blocks,)](out.to("cuda"), x.cuda(), x.shape[1], x.stride(0), BLOCK=1024, num_warps=4)
    return out


def softmax_by_occupancy(x):
    """Sizes its grid by the registers of the compiled kernel, as Triton's fused softmax tutorial does."""
    out = torch.empty_like(x)
    compiled = softmax_kernel.warmup(out, x, x.shape[1], x.stride(0), BLOCK=1024, num_warps=4, grid=(1,))
    compiled._init_handles()
    device = triton.runtime.driver.active.utils.get_device_properties(x.device.index)
    resident = device["max_num_regs"] // (compiled.n_regs * device["warpSize"] * 4)
    softmax_kernel[(device["multiprocessor_count"] * resident,)](
        out, x, x.shape[1], x.stride(0), BLOCK=1024, num_warps=4
    )
    return out
