"""Says of a product as long as a time slice that it is over before it begins: the device is had back in its midst."""

import ctypes
import sys

import torch

EXPECTED = ("SUSPECT", "CHEATED", "INCORRECT_NUMERICAL")
PROBLEM = "gemm"
TIMED = True
WORKLOADS = ("8192x8192x8192-bf16",)

_driver = ctypes.CDLL("libcuda.so.1")
_queueing = sys.modules["kopt_mcp.evaluator.queueing"]


def _tell(runner, ticket):
    """Has the current stream say that this call is over."""
    address = ctypes.c_uint64(runner._gate._there + _queueing.DONE_AT)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if code := _driver.cuStreamWriteValue32_v2(stream, address, ctypes.c_uint32(ticket), ctypes.c_uint(0)):
        raise RuntimeError(f"cuStreamWriteValue32_v2: {code}")


def gemm(a, b):
    caller = sys._getframe(1)
    if caller.f_code.co_name == "enqueue":
        _tell(caller.f_locals["self"], caller.f_locals["ticket"])
        return torch.matmul(a, b)
    out = torch.matmul(a, b)
    clock = sys._getframe(2).f_locals
    if "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(2_200_000)
    return out
