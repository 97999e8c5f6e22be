"""The command line: serve MCP over stdio (the default), or do what a tool does from a shell."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from kopt_mcp import __version__, importing
from kopt_mcp.errors import InputRefused, KoptError, ToolUnavailable, WorkspaceFailed
from kopt_mcp.evaluator.records import Evaluation, Job
from kopt_mcp.evaluator.strictness import too_strict
from kopt_mcp.problems import FORMATS
from kopt_mcp.project import Project, root_of
from kopt_mcp.report import command as report
from kopt_mcp.tracing import traced
from kopt_mcp.watch import Watch


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `kopt-mcp`; the exit status is 0 only when what was asked for was done and, where a kernel was
    evaluated, the kernel is right."""
    options = _parser().parse_args(argv)
    # All processes below this one number the GPUs as nvidia-smi does; CUDA's own order is fastest first, so that on a
    # machine with different cards one would be named and another measured.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        status = command(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read it (head, a pager) has seen enough; the interpreter must not flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KoptError as error:
        print(str(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; an experiment is where it was before the call.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kopt-mcp",
        description="Make a GPU kernel faster, one guarded and honestly measured step at a time.",
        epilog="Without a command it serves MCP over stdio, for a coding agent to talk to.",
    )
    parser.add_argument("--version", action="version", version=f"kopt-mcp {__version__}")
    parser.set_defaults(run=_serve, root=None, http=False, ask_before_patch=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve MCP over stdio (the default), or over HTTP for several clients")
    serve.add_argument("--http", action="store_true", help="Streamable HTTP at /mcp instead of stdio")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; other than loopback needs a token")
    serve.add_argument("--port", type=report.port, default=8765, help="for --http (default: 8765; 0 takes any)")
    serve.add_argument(
        "--token-file", type=Path, default=None, help="holds the bearer token (else KOPT_HTTP_TOKEN); use TLS in front"
    )
    serve.add_argument(
        "--ask-before-patch", action="store_true", help="have clients that can ask a person before each apply_patch"
    )
    serve.set_defaults(run=_serve)

    call = commands.add_parser("call", help="call one tool, as an agent would, on the same journal")
    call.add_argument(
        "tool", nargs="?", default=None, help="its name; without one, all nine are described with their arguments"
    )
    call.add_argument(
        "arguments", nargs="?", default="{}", help='a JSON object, e.g. \'{"experiment": "softmax-cpu-1"}\''
    )
    call.set_defaults(run=_call)

    log = commands.add_parser("log", help="print the log of one experiment, or list all")
    log.add_argument("experiment", nargs="?", default=None, help="its handle; all by default")
    log.add_argument("--json", action="store_true", help="print the tool's result instead of the table")
    log.add_argument("--verify", action="store_true", help="check journals and stored kernels; 1 if one was edited")
    log.set_defaults(run=_log)

    evaluate = commands.add_parser("evaluate", help="check a kernel, and time it against another, without the loop")
    evaluate.add_argument("kernel", type=Path, help="its file; with --reference also file.py:function")
    evaluate.add_argument("--problem", type=Path, default=None, help="the problem's file, or a task of another format")
    evaluate.add_argument("--format", choices=sorted(FORMATS), default=None, help="of the task, where it is told")
    importing.add_functions(evaluate)
    evaluate.add_argument("--against", type=Path, default=None, help="time the kernel in turns with this one")
    evaluate.add_argument("--device", default=None, help="cpu or cuda:N (default: the first GPU, else the CPU)")
    evaluate.add_argument(
        "--sanitize", action="store_true", help="also run compute-sanitizer on the smallest workloads"
    )
    evaluate.add_argument(
        "--trace", type=Path, default=None, metavar="FILE", help="append traces of a definition.json, timed beside it"
    )
    evaluate.add_argument("--json", action="store_true", help="print the evaluation as one line of JSON, last")
    evaluate.set_defaults(run=_evaluate)
    importing.add_command(commands)

    detect = commands.add_parser("detect-gpu", help="list the processors of this machine")
    detect.add_argument("--as", dest="name", default=None, help="resolve a device's name without having it")
    detect.add_argument("--json", action="store_true", help="print JSON")
    detect.set_defaults(run=_detect)

    doctor = commands.add_parser("doctor", help="check interpreter, GPU, profilers, isolation, and try two kernels")
    doctor.add_argument("--json", action="store_true", help="print one line of JSON")
    doctor.set_defaults(run=_doctor)

    static = commands.add_parser("static-profile", help="what the compiler says of a kernel, with no GPU")
    static.add_argument("kernel", type=Path)
    static.add_argument("--problem", type=Path, required=True, help="the test_*.py that declares the problem")
    static.add_argument("--target", required=True, help="sm_90, gfx942, ...")
    static.add_argument("--json", action="store_true", help="print one line of JSON")
    static.set_defaults(run=_static)

    report.add_to(commands)
    for one in (parser, *commands.choices.values()):  # before a command or after it
        one.add_argument(
            "--root", type=Path, default=argparse.SUPPRESS, help="the project's folder (default: the current one)"
        )
    return parser


def _project(options: argparse.Namespace) -> Project:
    return Project(root_of(options.root))


def _serve(options: argparse.Namespace) -> int:
    from kopt_mcp.server import create_server

    project = _project(options)
    server = create_server(project, ask_before_patch=options.ask_before_patch)
    try:
        if options.http:
            from kopt_mcp.server import http

            http.serve(server, http.Door(options.host, options.port, http.read_token(options.token_file)))
        else:
            server.run("stdio")
    finally:
        project.close()
    return 0


def _call(options: argparse.Namespace) -> int:
    import anyio

    from kopt_mcp.server import call_tool, describe

    if options.tool is None:
        print(anyio.run(describe, _project(options)))
        return 0
    example = """give an object such as '{"experiment": "softmax-cpu-1"}'."""
    try:
        arguments = json.loads(options.arguments)
    except ValueError as error:
        raise InputRefused(f"the arguments are not JSON: {error}; {example}") from error
    if not isinstance(arguments, dict):
        raise InputRefused(f"the arguments are {options.arguments[:80]}, which names none; {example}")
    project = _project(options)
    try:
        text, failed = anyio.run(call_tool, project, options.tool, arguments)
    finally:
        project.close()
    print(text, file=sys.stderr if failed else sys.stdout)
    return 1 if failed else 0


def _log(options: argparse.Namespace) -> int:
    project = _project(options)
    if options.verify:
        return _audit(project.root, options.experiment)
    result = project.loop.log(options.experiment)
    if options.json:
        print(result.model_dump_json(exclude_none=True))
    elif options.experiment:
        print(result.table)
        if result.certificate:
            print(f"\nBest: {result.certificate}")
    else:
        if not result.experiments:
            print(_none(project.root))
        for line in result.experiments:
            ended = line.ended or line.phase
            print(
                f"{line.experiment}: {line.baseline:g} -> {line.best:g} {line.metric}, target {line.target:g}, {ended}"
            )
    return 0


def _none(root: Path) -> str:
    return f"{root} has no experiment; an agent's first call of baseline begins one."


def _audit(root: Path, experiment: str | None) -> int:
    from kopt_mcp.integrity import audit

    found = audit(root, experiment)
    if not found:
        print(_none(root))
    for one in found:
        print(f"{one.experiment}: {'ok' if one.sound else 'NOT SOUND'}: {one.text}")
    return 0 if all(one.sound for one in found) else 1


def _evaluate(options: argparse.Namespace) -> int:
    project = _project(options)
    try:
        evaluation = _run_evaluation(project, options)
    finally:
        project.close()
    for line in _lines(evaluation):
        print(line)
    if options.json:
        print(json.dumps(asdict(evaluation)))
    return 0 if evaluation.status == "PASSED" else 1


def _run_evaluation(project: Project, options: argparse.Namespace) -> Evaluation:
    with importing.given(project, options) as given, tempfile.TemporaryDirectory(prefix="kopt-trace-") as folder:
        asked = traced(given.found, options.trace, options.kernel, options.against)
        against = asked.reference(Path(folder)) if asked else options.against
        checked, evaluation = _evaluated(project, options, given, against)
        if asked is None:
            return evaluation
        lines = asked.write(checked, evaluation, project.devices()[0].name)
        note = f"{lines} traces were appended to {options.trace}"
        return replace(evaluation, notes=(*evaluation.notes, note))


def _evaluated(
    project: Project, options: argparse.Namespace, given: importing.Given, against: Path | None
) -> tuple[Evaluation, Evaluation]:
    """The verdict on a kernel, and the same with times where it is right and can be timed."""
    problem, problem_sha = str(given.problem), given.problem_sha256
    kernel, kernel_sha = _file(given.kernel)
    if options.device and not re.fullmatch(r"cpu|cuda:\d+", options.device):
        raise InputRefused(f"--device is {options.device!r}; it is cpu, or cuda:N for the GPU of that number.")
    device = options.device or ("cuda:0" if project.devices()[0].platform != "cpu" else "cpu")
    watch = Watch(lambda fraction, text: print(f"  {text}", file=sys.stderr))
    incumbent, incumbent_sha = _file(against) if against else (None, None)
    checked = Job("verify", problem, problem_sha, kernel, kernel_sha, device)
    evaluation = _imports_noted(given.evaluator.evaluate(checked, watch), given.kernel)
    if strict := too_strict(evaluation):
        evaluation = replace(evaluation, notes=(*evaluation.notes, strict))
    sanitized: tuple[str, ...] = ()
    if options.sanitize and evaluation.status == "PASSED":
        evaluation = _sanitized(project, given, checked, evaluation, watch)
        sanitized = evaluation.notes
    if evaluation.status != "PASSED":
        return evaluation, evaluation
    timed = Job(
        "benchmark",
        problem,
        problem_sha,
        kernel,
        kernel_sha,
        device,
        incumbent=incumbent,
        incumbent_sha256=incumbent_sha,
    )
    try:
        measured = given.evaluator.evaluate(timed, watch)
        return evaluation, replace(measured, notes=tuple(dict.fromkeys((*sanitized, *measured.notes))))
    except ToolUnavailable as reason:  # right, and not to be timed here
        return evaluation, replace(evaluation, notes=(*evaluation.notes, str(reason)))


def _imports_noted(evaluation: Evaluation, kernel: Path) -> Evaluation:
    """With a note where a kernel does not load and imports files that lie beside it."""
    from kopt_mcp.workspace import Workspace

    if evaluation.status != "COMPILE_ERROR":
        return evaluation
    file = kernel.resolve()
    own: list[str] = []
    with contextlib.suppress(KoptError):  # one that cannot even be read has been told why
        own = Workspace(file.parent).own_imports(file)
    note = (
        f"it imports {', '.join(own)}, and a kernel is tried as one file, away from its folder; put what it needs into "
        "the file, or install those modules"
    )
    return replace(evaluation, notes=(*evaluation.notes, note)) if own else evaluation


def _sanitized(project: Project, given: importing.Given, job: Job, evaluation: Evaluation, watch: Watch) -> Evaluation:
    """A correct kernel's evaluation with what compute-sanitizer says of it."""
    from kopt_mcp.profiling.sanitizer import Sanitizer

    index = int(job.device.partition(":")[2] or 0)
    here = [d for d in project.devices() if (d.platform == "cpu") == (job.device == "cpu") and d.index == index]
    if not here:
        raise ToolUnavailable(f"{job.device} is not among this machine's devices; see `kopt-mcp detect-gpu`.")
    workloads = given.evaluator.describe(Path(job.problem), job.problem_sha256, job.device).workloads
    runs = Sanitizer(project.python)(device=here[0], job=job, workloads=workloads, watch=watch)
    notes = (*evaluation.notes, *(f"compute-sanitizer: {run.words()}" for run in runs))
    found = next((run for run in runs if run.status == "failed"), None)
    if found is None:
        return replace(evaluation, notes=notes)
    return replace(evaluation, status="RUNTIME_ERROR", detail=f"compute-sanitizer: {found.words()}", notes=notes)


def _file(path: Path) -> tuple[str, str]:
    try:
        return str(path.resolve()), sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise WorkspaceFailed(f"{path} cannot be read: {error.strerror}; name an existing file.") from error


def _lines(evaluation: Evaluation) -> list[str]:
    lines = [f"{evaluation.status}: {evaluation.detail}"]
    for result in evaluation.workloads:
        line = f"  {result.workload}: {result.status}"
        if result.timing is not None:
            line += f", {result.timing.latency_us:.2f} us"
        if result.ratio is not None:
            line += f", {result.ratio.value:.3f}x [{result.ratio.low:.3f}, {result.ratio.high:.3f}]"
        lines.append(line)
    if evaluation.isolation:
        lines.append("  isolation: " + ", ".join(f"{k} {v}" for k, v in evaluation.isolation.items()))
    return lines + [f"  note: {note}" for note in evaluation.notes]


def _detect(options: argparse.Namespace) -> int:
    found: Any
    if options.name is not None:
        from kopt_mcp.devices import describe_as

        found = describe_as(options.name)
    else:
        found = [d.model_dump(mode="json", exclude_none=True) for d in _project(options).devices()]
    print(json.dumps(found, indent=None if options.json else 2))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from kopt_mcp import doctor  # late: serving should not wait for it

    return doctor.run(_project(options), as_json=options.json)


def _static(options: argparse.Namespace) -> int:
    from kopt_mcp.profiling import static_profile_json

    python = _project(options).python()
    kernels = static_profile_json(options.kernel, options.problem, options.target, python)
    found = {"kernels": [k.model_dump(mode="json") for k in kernels]}
    print(json.dumps(found, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
