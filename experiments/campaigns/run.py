"""Drive the product over MCP through campaigns: kernels with a list of patches that an engineer wrote beforehand.

    python experiments/campaigns/run.py OUT [NAME ...]

Each folder beside this file holds a `campaign.yaml` and its patches. A campaign runs in a project folder of its own,
against a server of its own, on the next free GPU; several GPUs work through the list side by side. What the servers
wrote (`experiments/<id>/`) ends up in OUT, with the best kernel as `best.py` and the client's `transcript.txt`; copied
into this repository's `experiments/`, `table.py` makes a line of each.

campaign.yaml: `kernel` and `test` (paths from the project's root), `metric`, `target` (in the metric's unit) or
`pct_of_peak`, optionally `workloads`, and `patches`: a list of what `apply_patch` takes, where `file` names the whole
new text, and optionally a `keep_reason` for `decide`. `paid` lists the numbers of those that `experiments/compare.py`
applies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import anyio
import yaml
from mcp import Client
from mcp.client.stdio import StdioServerParameters

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Refused(Exception):
    """A tool refused what the campaign relies on."""


class Campaign:
    """One kernel's way through the loop, with a transcript."""

    def __init__(self, name: str, gpu: int, gpus: int, out: Path) -> None:
        self.name = name
        self.plan: dict[str, Any] = yaml.safe_load((HERE / name / "campaign.yaml").read_text(encoding="utf-8"))
        self.project = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.kernel = f"{name.replace('-', '_')}.py"
        self.out = out
        self.experiment = ""
        self._begin = time.perf_counter()
        self._lines: list[str] = []
        self._server = server(self.project, gpu, gpus)

    async def run(self) -> str:
        """From the baseline to the end; the log's table."""
        shutil.copy(ROOT / self.plan["kernel"], self.project / self.kernel)
        test = ROOT / self.plan["test"]
        shutil.copy(test, self.project / test.name)
        for journal in (ROOT / "experiments").glob("*-*/journal.jsonl"):  # no second experiment of the same name
            place = self.project / "experiments" / journal.parent.name
            place.mkdir(parents=True)
            (place / "elsewhere").touch()
        self._commit()
        try:
            async with Client(self._server, read_timeout_seconds=1200) as client:
                table = await self._loop(client)
        except Exception:
            self._say(traceback.format_exc())
            table = "it broke off"
        finally:  # also when the time is up
            self._keep()
        return table

    async def _loop(self, client: Client) -> str:
        wanted = {"target_metric": self.plan["metric"]}
        for key, argument in (("target", "target_value"), ("pct_of_peak", "target_pct_of_peak"), ("workloads",) * 2):
            if key in self.plan:
                wanted[argument] = self.plan[key]
        test = Path(self.plan["test"]).name
        patches = self.plan["patches"]
        last = await self.call(
            client,
            "baseline",
            kernel_path=self.kernel,
            test_path=test,
            gpu="nvidia",
            max_iterations=len(patches),
            **wanted,
        )
        self.experiment = last["experiment"]
        for patch in patches:
            if last.get("ended"):
                break
            last = await self._iteration(client, patch, last)
        if not last.get("ended"):
            await self.call(client, "decide", stop=True, reason="the campaign has no further patch")
        return str((await self.call(client, "log"))["table"])

    async def _iteration(self, client: Client, patch: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
        if "apply_patch" not in last["next"]:
            await self.call(client, "profile")
            await self.call(client, "diagnose")
        given = {key: value for key, value in patch.items() if key not in ("file", "keep_reason")}
        if "file" in patch:
            given["content"] = (HERE / self.name / patch["file"]).read_text(encoding="utf-8")
        try:
            await self.call(client, "apply_patch", **given)
        except Refused:
            return last  # the guard has its reason, which is in the journal: the next idea
        if (await self.call(client, "verify"))["correct"]:
            await self.call(client, "benchmark")
        keep = {"keep_reason": patch["keep_reason"]} if "keep_reason" in patch else {}
        try:
            return await self.call(client, "decide", **keep)
        except Refused:
            return await self.call(client, "decide")

    async def call(self, client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
        """One tool call.

        Raises:
            Refused: with the tool's words.
        """
        begin = time.perf_counter()
        if self.experiment:
            arguments = {"experiment": self.experiment, **arguments}
        result = await client.call_tool(tool, arguments)
        answer: dict[str, Any] = result.structured_content or {}
        self._say(f"{tool:<12} {time.perf_counter() - begin:6.1f} s  {said(answer)}")
        if result.is_error:
            raise Refused(f"{tool}: {answer}")
        return answer

    def _say(self, text: str) -> None:
        line = f"{self.name:<18} {time.perf_counter() - self._begin:6.1f}  {text}"
        self._lines.append(line)
        print(line, flush=True)

    def _commit(self) -> None:
        """Make the project a repository, so that the server sees that nobody has touched the problem since."""
        git = ["git", "-C", str(self.project), "-c", "user.name=campaign", "-c", "user.email=campaign@localhost"]
        if shutil.which("git"):
            for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", f"{self.name} as shipped"]):
                subprocess.run([*git, *command], check=True)

    def _keep(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        for folder in (self.project / "experiments").glob("*-*"):
            if (folder / "journal.jsonl").is_file():
                target = self.out / folder.name
                shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.ncu-rep"))
                shutil.copy(self.project / self.kernel, target / "best.py")
                (target / "transcript.txt").write_text("\n".join(self._lines) + "\n", encoding="utf-8")
        shutil.rmtree(self.project, ignore_errors=True)


def said(answer: dict[str, Any]) -> str:
    """One line about an answer."""
    if "error" in answer:
        return f"REFUSED {answer['error']['text']}"
    keys = (
        *("status", "value", "baseline", "target", "metric", "gain_pct", "gain_low_pct", "rung", "bound", "summary"),
        *("iteration", "reason", "detail"),
    )
    return "  ".join(f"{key}={answer[key]}" for key in keys if answer.get(key) not in (None, ""))[:400]


def server(project: Path, gpu: int, gpus: int) -> StdioServerParameters:
    """A server that sees one GPU and its share of the cores."""
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "KOPT_PYTHON": sys.executable,
        "KOPT_MEMORY": "project",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "kopt_mcp", "--root", str(project)]
    share = (os.cpu_count() or 1) // gpus
    if share and shutil.which("taskset"):
        command = ["taskset", "-c", f"{gpu * share}-{(gpu + 1) * share - 1}", *command]
    return StdioServerParameters(command=command[0], args=command[1:], env=env)


def gpus_here() -> int:
    """How many GPUs the driver lists."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return listed.count("GPU ")


async def main(options: argparse.Namespace) -> None:
    """Every GPU takes the next campaign when it has finished one."""
    there = sorted(path.parent.name for path in HERE.glob("*/campaign.yaml"))
    names = options.names or there
    if unknown := set(names) - set(there):
        sys.exit(f"no campaign is called {', '.join(sorted(unknown))}; there are {', '.join(there)}.")
    gpus = gpus_here()
    tables: dict[str, str] = {}

    async def work(gpu: int) -> None:
        while names:
            name = names.pop(0)
            tables[name] = await Campaign(name, gpu, gpus, options.out).run()

    with anyio.move_on_after(options.seconds):
        async with anyio.create_task_group() as group:
            for gpu in options.gpus or range(gpus):
                group.start_soon(work, gpu)
    for name, table in tables.items():
        print(f"\n{name}\n{table}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="campaigns to run, in this order (default: all)")
    parser.add_argument("--gpus", type=int, nargs="*", help="numbers of the GPUs to use (default: all)")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after so long (default: %(default)s)")
    anyio.run(main, parser.parse_args())
