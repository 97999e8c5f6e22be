"""Leaves copies in a context of its own that take a third of the memory's bandwidth while the other is called."""

import ctypes
import sys
import time

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "DEVICE_BUSY", "INCONCLUSIVE", "PASSED")
TIMEOUT_S = 30.0
TIMED = True
WORKLOADS = ("4096x4096-fp32",)


@triton.jit
def _softmax(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + offsets, (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty), mask=mask)


def launch(x, out):
    rows, cols = x.shape
    _softmax[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return out


def honest(x):
    return launch(x, torch.empty(x.shape, dtype=x.dtype, device=x.device))


def _place():
    """The runner and its ticket, where it queues a call behind the gate; None elsewhere. For whom `_function` calls."""
    frame = sys._getframe(2)
    return (frame.f_locals["self"], frame.f_locals["message"]["ticket"]) if frame.f_code.co_name == "enqueue" else None


_cuda = ctypes.CDLL("libcuda.so.1")
_PITCH, _HEIGHT = 4096, 1 << 15


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *(
            (f"{end}_{name}", kind)
            for end in ("from", "to")
            for name, kind in (
                ("x", ctypes.c_size_t),
                ("y", ctypes.c_size_t),
                ("type", ctypes.c_uint),
                ("host", ctypes.c_void_p),
                ("device", ctypes.c_uint64),
                ("array", ctypes.c_void_p),
                ("pitch", ctypes.c_size_t),
            )
        ),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def _call(name, *arguments):
    if code := getattr(_cuda, name)(*arguments):
        raise RuntimeError(f"{name}: {code}")


class _Beside:
    """Another context, whose work nobody waits for who waits for this one's."""

    def __init__(self):
        self._context, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        device, host, seen = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        _call("cuCtxGetDevice", ctypes.byref(device))
        _call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(4096), ctypes.c_uint(3))
        ctypes.memset(host, 0, 4096)
        _call("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), host, ctypes.c_uint(0))
        self._word, self._number, self.armed = seen.value, 0, False
        _call("cuCtxCreate_v2", ctypes.byref(self._context), ctypes.c_uint(0), device)
        one, other = ctypes.c_uint64(), ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(one), ctypes.c_size_t(_PITCH * _HEIGHT))
        _call("cuMemAlloc_v2", ctypes.byref(other), ctypes.c_size_t(_PITCH * _HEIGHT))
        _call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(1))
        self._copy = _Copy(
            from_type=2, from_device=one.value, from_pitch=_PITCH, to_type=2, to_device=other.value, to_pitch=_PITCH
        )
        self._copy.height = _HEIGHT
        self._leave()
        self._us = 1.0
        self._choose()

    def _enter(self):
        _call("cuCtxPushCurrent_v2", self._context)

    def _leave(self):
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _queue(self, us):
        for _ in range(max(1, min(300, int(us / self._us)))):
            _call("cuMemcpy2DAsync_v2", ctypes.byref(self._copy), self._stream)

    def arm(self, us):
        """Copy for so long, once all is over that has been queued on the current stream."""
        self._number += 1
        where, number = ctypes.c_uint64(self._word), ctypes.c_uint32(self._number)
        current = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _call("cuStreamWriteValue32_v2", current, where, number, ctypes.c_uint(0))
        self._enter()
        _call("cuStreamWaitValue32_v2", self._stream, where, number, ctypes.c_uint(0))
        self._queue(us)
        self._leave()
        self.armed = True

    def disarm(self):
        self._enter()
        _call("cuStreamSynchronize", self._stream)
        self._leave()
        self.armed = False

    def _choose(self):
        """How wide the copies are: as much in the way as a clearing of the L2 does not notice."""
        data = torch.zeros(64 << 20, dtype=torch.int32, device="cuda")
        alone, best = self._sum_us(data), (0.0, 0, 1.0)
        for width in (4096, 2048, 1024, 512, 256, 128, 64):
            self._copy.width, self._us = width, 1e9
            self._enter()
            self._queue(1)
            _call("cuStreamSynchronize", self._stream)
            begin = time.perf_counter()
            _call("cuMemcpy2DAsync_v2", ctypes.byref(self._copy), self._stream)
            _call("cuStreamSynchronize", self._stream)
            self._us = max(20.0, (time.perf_counter() - begin) * 1e6)
            self._queue(6000)
            self._leave()
            slower = self._sum_us(data) / alone
            self.disarm()
            print(f"width {width}: a copy {self._us:.0f} us, a sum {slower:.2f} times as long", flush=True)
            if best[0] < slower < 1.42:
                best = slower, width, self._us
        self.use = best[1] > 0
        if self.use:
            _, self._copy.width, self._us = best

    def _sum_us(self, data):
        times = []
        for _ in range(9):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            data.sum()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000)
        return sorted(times)[4]


_beside = _Beside()
_true = torch.randn
_count = 0


def randn(*args, **kwargs):
    if _beside.armed:
        _beside.disarm()
    return _true(*args, **kwargs)


torch.randn = randn


def softmax(x):
    global _count
    place = _place()
    if _beside.armed:
        _beside.disarm()
    out = honest(x)
    if not _beside.use or x.numel() < 1 << 20:
        return out
    if place is not None:
        _beside.arm(15_000)
        return out
    sample = sys._getframe(3)
    message = sample.f_locals.get("message") if sample.f_code.co_name == "sample" else None
    if message is not None and message.get("keep") and message["distribution"] == "normal":
        _count += 1
        if _count % 4 == 0:
            _beside.arm(30_000)
    return out
