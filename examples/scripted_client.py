"""An MCP client that plays an agent: it makes a softmax faster over stdio, with a list of patches instead of a model.

    python examples/scripted_client.py                      # the C softmax on a CPU, the Triton one where there is CUDA
    python examples/scripted_client.py --device cuda --target 3800 --workload 32768x4096-bf16

Among the patches are real gains, a wrong kernel that has to be caught, and a change that gains nothing. The project
that it works on is a copy under `--project`; its log ends up in `experiments/README.md` there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

HERE = Path(__file__).resolve().parent
FASTER = 3.0
"""Without a target, the CPU kernel is to become this many times as fast as it is measured first."""
HEADER = f"{'step':<12} {'seconds':>7}  what happened"


class Refused(Exception):
    """A tool refused what the script relies on."""


class Agent:
    """Calls tools and shows what comes back."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.experiment = ""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """One tool call with its progress.

        Raises:
            Refused: with the tool's words.
        """
        begin = time.perf_counter()
        if self.experiment:
            arguments = {"experiment": self.experiment, **arguments}
        result = await self._client.call_tool(tool, arguments, progress_callback=self._progress)
        answer: dict[str, Any] = result.structured_content or {}
        if result.is_error:
            raise Refused(f"{tool} was refused: {answer['error']['text']}")
        self._line(f"{tool:<12} {time.perf_counter() - begin:>7.1f}  {_said(tool, answer)}\n")
        return answer

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if sys.stdout.isatty():
            self._line(f"{'':<12} {'':>7}  ... {message or ''}"[:100])

    @staticmethod
    def _line(text: str) -> None:
        sys.stdout.write(("\r\033[K" if sys.stdout.isatty() else "") + text)
        sys.stdout.flush()


def _said(tool: str, answer: dict[str, Any]) -> str:
    """One line about an answer."""
    if tool == "detect_gpu":
        return str(answer["devices"][0]["name"])
    if tool == "baseline":
        text = "{baseline:.4g} {metric}, target {target:.4g} ({target_source}), noise {noise_pct:.2g} %"
        return text.format(**answer)
    if tool == "profile":
        return f"rung {answer['rung']}: {answer['why']}"
    if tool == "diagnose":
        return str(answer["summary"])
    if tool == "apply_patch":
        return "iteration {iteration}: +{added} -{removed} lines".format(**answer)
    if tool == "verify":
        return f"{answer['status']}: {answer['detail']}"
    if tool == "benchmark" and answer.get("value") is not None:
        return "{value:.4g} {metric}, {gain_pct:+.1f} % [{gain_low_pct:+.1f}, {gain_high_pct:+.1f}]".format(**answer)
    if tool == "decide":
        return f"{answer['status']}: {answer['reason']}" + (" (reverted)" if answer["reverted"] else "")
    return str(answer.get("status", ""))


async def optimise(client: Client, options: argparse.Namespace, kernel: str, patches: list[dict[str, Any]]) -> str:
    """The loop, as the skill describes it; returns the log's table."""
    agent = Agent(client)
    print(HEADER)
    await agent.call("detect_gpu")
    workloads = {"workloads": [options.workload]} if options.workload else {}
    begun = await agent.call(
        "baseline",
        kernel_path=kernel,
        gpu="cpu" if options.device == "cpu" else "nvidia",
        target_metric="gbps",
        target_value=options.target,
        **workloads,
    )
    agent.experiment = begun["experiment"]
    ended = None
    for patch in patches:
        await _look(agent, begun)
        await agent.call("apply_patch", **patch)
        verified = await agent.call("verify")
        if verified["correct"]:
            await agent.call("benchmark")
        begun = await agent.call("decide")
        ended = begun.get("ended")
        if ended:
            break
    if not ended:
        await agent.call("decide", stop=True, reason="the script has no further patch")
    return str((await agent.call("log"))["table"])


async def _look(agent: Agent, last: dict[str, Any]) -> None:
    """Profile and diagnose where that is due: after a new best, not after a change that was taken back."""
    if "apply_patch" not in last["next"]:
        await agent.call("profile")
        await agent.call("diagnose")


def prepare(options: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Copy kernel and problem to the project; the kernel's name and the patches."""
    project: Path = options.project
    if options.device == "cpu":
        source, problem, kernel = HERE / "cpu_softmax", HERE / "cpu_softmax" / "test_softmax.py", "softmax.c"
    else:
        source, kernel = HERE / "triton_softmax", "softmax.py"
        problem = HERE.parent / "skills" / "kernels" / "softmax" / "test_softmax.py"
    project.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / kernel, project / kernel)
    shutil.copy(problem, project / problem.name)
    patches = json.loads((source / "patches" / "patches.json").read_text(encoding="utf-8"))
    for patch in patches:
        if "file" in patch:
            patch["content"] = (source / "patches" / patch.pop("file")).read_text(encoding="utf-8")
    return kernel, patches


def speed_now(project: Path, kernel: str) -> float:
    """What the problem's own command line says of the kernel, in GB/s."""
    command = [sys.executable, "test_softmax.py", "--kernel", kernel, "--json"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{kernel} is not right to begin with: {done.stderr or done.stdout}")
    return float(json.loads(done.stdout.splitlines()[-1])["gbps"])


def has_cuda() -> bool:
    """Whether this interpreter's torch sees a CUDA device; asked in a process of its own."""
    code = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


async def main(options: argparse.Namespace) -> int:
    """Run the demonstration; 0 when the target was met."""
    options.device = options.device or ("cuda" if has_cuda() else "cpu")
    kernel, patches = prepare(options)
    if options.target is None and options.device == "cpu":
        now = speed_now(options.project, kernel)
        options.target = round(FASTER * now, 3)
        print(f"{kernel} runs at {now:.3g} GB/s; the target is {FASTER:g} times that.\n")
    options.target = options.target or 800.0
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kopt_mcp", "--root", str(options.project)],
        env={**os.environ, "KOPT_PYTHON": sys.executable, "KOPT_MEMORY": "project"},
    )
    async with Client(server) as client:
        try:
            table = await optimise(client, options, kernel, patches)
        except Refused as refusal:
            table = str(refusal)
    print(f"\n{table}")
    final = [line for line in table.splitlines() if line.startswith("Final:")]
    return 0 if final and final[-1].rstrip(".").endswith("target met") else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a softmax faster over MCP, with scripted patches.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default=None, help="default: cuda where there is one")
    parser.add_argument("--target", type=float, default=None, help="GB/s (default: 800 on cuda, 3 times now on cpu)")
    parser.add_argument("--workload", default=None, help="one workload of the problem instead of all")
    parser.add_argument("--project", type=Path, default=Path("demo"), help="where to work (default: %(default)s)")
    options = parser.parse_args()
    options.project = options.project.resolve()
    return options


if __name__ == "__main__":
    sys.exit(anyio.run(main, parse()))
