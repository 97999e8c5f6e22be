"""Stands for a GPU's Triton driver: specialise, tune and compile as there, write a launch down instead of running it.

Standard library, torch and triton only; the worker loads it by path, since this package may be absent from the user's
interpreter. Hooks into Triton 3.2 to 3.9 (`CompiledKernel._init_handles`, `Autotuner.run`, `Autotuner._bench`,
`triton.compiler.compile`) and says so when one is not there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


class UnsupportedTriton(Exception):
    """This Triton lacks what the capture hooks into."""


class Capture:
    """The fake driver's memory: which launches were seen, and what the autotuner is doing."""

    def __init__(self, job: dict[str, Any], report: Any) -> None:
        self.folder = Path(job["folder"])
        self.limits: dict[str, int] = job["limits"]
        self.warp_size: int = job["target"]["warp_size"]
        self.report = report
        self.seen: set[tuple[str, tuple[int, ...]]] = set()
        self.tuner: Any = None
        self.trying = self.fits = False

    # Launches ---------------------------------------------------------------------------------------------------------

    def prepare(self, kernel: Any) -> None:
        """Take the place of `CompiledKernel._init_handles`: nothing is loaded, a launch is recorded."""
        if not hasattr(kernel, "n_regs"):
            kernel.n_regs, kernel.spills = resources(kernel)
            kernel.n_spills, kernel.n_max_threads = kernel.spills or 0, 1024
        launch = functools.partial(self.launch, kernel)
        attribute = "_run" if isinstance(vars(type(kernel)).get("run"), property) else "run"
        setattr(kernel, attribute, launch)

    def launch(self, kernel: Any, grid_x: int, grid_y: int, grid_z: int, *_: Any) -> None:
        """Write one launch down, unless it only repeats one or is a trial of the autotuner."""
        grid = (int(grid_x), int(grid_y), int(grid_z))
        if self.trying:
            self._refuse_what_does_not_fit(kernel.metadata)
        elif (kernel.hash, grid) not in self.seen:
            self.seen.add((kernel.hash, grid))
            self._write(kernel, grid)

    def _refuse_what_does_not_fit(self, metadata: Any) -> None:
        from triton.runtime.errors import OutOfResources

        wanted = {
            "shared memory": (metadata.shared, self.limits["shared_bytes"]),
            "tensor memory": (getattr(metadata, "tmem_size", 0) or 0, self.limits["tensor_columns"]),
            "threads": (metadata.num_warps * self.warp_size, self.limits["threads"]),
        }
        for name, (needed, limit) in wanted.items():
            if needed > limit:
                raise OutOfResources(needed, limit, name)

    def _write(self, kernel: Any, grid: tuple[int, ...]) -> None:
        stem = f"{len(self.seen):03}"
        self._keep_artifacts(kernel, stem)
        metadata = kernel.metadata
        tuned = self.tuner is not None and len(self.tuner.configs) > 1
        self.report.write(
            "launch",
            name=kernel.name,
            grid=(grid[0] * getattr(metadata, "num_ctas", 1), *grid[1:]),
            block_threads=metadata.num_warps * self.warp_size,
            registers=kernel.n_regs,
            spills=kernel.spills,
            shared_bytes=metadata.shared,
            tensor_columns=getattr(metadata, "tmem_size", 0) or 0,
            config=config_values(self.tuner.best_config) if tuned else {},
            remark=self._remark() if tuned else "",
            artifact=stem,
        )

    def _keep_artifacts(self, kernel: Any, stem: str) -> None:
        for kind in {"ptx", "amdgcn"} & set(kernel.asm):
            (self.folder / f"{stem}.{kind}").write_text(kernel.asm[kind])
        if sass := "cubin" in kernel.asm and _dump(kernel.asm["cubin"], "-sass"):
            (self.folder / f"{stem}.sass").write_text(sass)

    # Autotuning -------------------------------------------------------------------------------------------------------

    def _remark(self) -> str:
        configs, config = self.tuner.configs, self.tuner.best_config
        number = next((i for i, one in enumerate(configs, 1) if one is config), "?")
        values = ", ".join(f"{name}={value}" for name, value in config_values(config).items())
        return f"autotuned: this is config {number} of {len(configs)} ({values}); a device may choose another"

    @contextlib.contextmanager
    def tuning(self, tuner: Any) -> Iterator[None]:
        """While an `Autotuner.run` lasts."""
        self.tuner, self.fits = tuner, False
        try:
            yield
        finally:
            self.tuner = None

    def measure(self, kernel_call: Callable[[], object]) -> list[float]:
        """Take the place of the benchmark: the first config that fits wins, and the others are not even compiled."""
        if self.fits:
            return [float("inf")] * 3
        self.trying = True
        try:
            kernel_call()
        finally:
            self.trying = False
        self.fits = True
        return [0.0] * 3


def config_values(config: Any) -> dict[str, str]:
    """What was set, without the defaults: `BLOCK`, `num_warps`, `num_stages`."""
    return {name: str(value) for name, value in config.all_kwargs().items() if value is not None}


def resources(kernel: Any) -> tuple[int | None, int | None]:
    """Vector registers and spills of one thread, from the compiled code; None where there is no tool to read it.

    As for the driver, spills are the stack in 4-byte words, on NVIDIA and on AMD.
    """
    if "cubin" in kernel.asm:
        text, patterns = _dump(kernel.asm["cubin"], "-res-usage"), (r"\bREG:(\d+)", r"\bSTACK:(\d+)")
    else:
        text, patterns = kernel.asm["amdgcn"], (r"\.vgpr_count:\s*(\d+)", r"\.private_segment_fixed_size:\s*(\d+)")
    registers, stack = (re.search(pattern, text) for pattern in patterns)
    return registers and int(registers[1]), stack and int(stack[1]) // 4


def _dump(cubin: bytes, option: str) -> str:
    tool = cuobjdump()
    if tool is None:
        return ""
    path = Path(os.environ["TMPDIR"], "kernel.cubin")
    path.write_bytes(cubin)
    return subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=False).stdout


def cuobjdump() -> str | None:
    """The one that Triton ships, else the toolkit's."""
    import triton

    shipped = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(shipped) if shipped.exists() else shutil.which("cuobjdump")


class FakeDriver:
    """What Triton and kernels ask a driver about the device."""

    def __init__(self, target: Any, properties: dict[str, Any]) -> None:
        self.target, self.properties, self.utils = target, properties, self

    def get_device_properties(self, device: int) -> dict[str, Any]:
        """Of `driver.active.utils`: kernels size their grid by it."""
        return self.properties

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, ...]:
        return tuple(self.properties["capability"])

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> ModuleType:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Callable[..., list[float]]:
        def bench(kernel_call: Callable[[], object], **kwargs: Any) -> list[float]:
            kernel_call()
            return [0.0] * 3

        return bench

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1)

    def clear_cache(self, cache: object) -> None: ...


def install(job: dict[str, Any], capture: Capture) -> None:
    """Make Triton compile for the job's target and hand every launch to `capture`.

    Raises:
        UnsupportedTriton: a hook is not there, or Triton has no back end for the target.
    """
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target, device = GPUTarget(**job["target"]), job["device"]
    if not any(backend.compiler.supports_target(target) for backend in backends.values()):
        raise UnsupportedTriton(f"triton {triton.__version__} has no back end for {target.backend}:{target.arch}")
    properties = {
        "max_shared_mem": capture.limits["shared_bytes"],
        "max_num_regs": device["regs_per_multiprocessor"],
        "multiprocessor_count": device["multi_processor_count"],
        "warpSize": target.warp_size,
        "arch": target.arch,
        "capability": device["capability"],
    }
    driver.set_active(FakeDriver(target, properties))
    hook_triton(capture)


def hook_triton(capture: Capture) -> None:
    """Replace loading and benchmarking, and announce every compile.

    Raises:
        UnsupportedTriton: a hook is not there.
    """
    import triton.compiler
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner

    for owner, name in ((CompiledKernel, "_init_handles"), (Autotuner, "_bench"), (Autotuner, "run")):
        if not hasattr(owner, name):
            raise UnsupportedTriton(f"triton {triton.__version__} has no {owner.__name__}.{name}")
    CompiledKernel._init_handles = lambda kernel: capture.prepare(kernel)
    compile_kernel, run, bench = triton.compiler.compile, Autotuner.run, Autotuner._bench

    def announced_compile(src: Any, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("options") or {}
        name = getattr(getattr(src, "fn", None), "__name__", "kernel")
        capture.report.write("compile", name=name, num_warps=options.get("num_warps"))
        compiled = compile_kernel(src, *args, **kwargs)
        capture.report.write("compiled")
        return compiled

    def tuned_run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        with capture.tuning(tuner):
            return run(tuner, *args, **kwargs)

    def compiling_bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        # On the instance, where it hides a method, a cached property and a user's own benchmark alike.
        tuner.__dict__["do_bench"] = lambda kernel_call, **kwargs: capture.measure(kernel_call)
        return bench(tuner, *args, config=config, **meta)

    triton.compiler.compile = announced_compile
    Autotuner.run, Autotuner._bench = tuned_run, compiling_bench
