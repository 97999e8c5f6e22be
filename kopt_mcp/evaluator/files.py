"""The files that a request names: read, held against their hashes, and loaded."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from kopt_mcp.evaluator.process import Source
from kopt_mcp.problem import Problem, ProblemError


class HarnessError(Exception):
    """The request cannot be answered; `kind` names the error class of the server that fits."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def load_problem(content: bytes, path: str) -> Problem:
    """Execute a problem file and take its `PROBLEM`.

    Raises:
        HarnessError: it does not load, or declares none.
    """
    namespace: dict[str, Any] = {"__name__": "kopt_problem", "__file__": path}
    try:
        exec(compile(content, path, "exec", dont_inherit=True), namespace)
    except ProblemError as error:
        raise HarnessError("ProblemInvalid", f"{Path(path).name}: {error}") from error
    except (Exception, SystemExit) as error:
        line = getattr(error, "lineno", None) or _line_in(error, path)
        text = f"{Path(path).name} does not load: line {line}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and Path(path).with_name(f"{error.name}.py").is_file():
            text += "; it lies beside it: put sys.path.insert(0, os.path.dirname(__file__)) ahead of the import"
        raise HarnessError("ProblemInvalid", text) from error
    problem = namespace.get("PROBLEM")
    if not isinstance(problem, Problem):
        raise HarnessError(
            "ProblemInvalid",
            f"{Path(path).name} declares no PROBLEM; assign a kopt_mcp.problem.Problem to that name.",
        )
    return problem


def _line_in(error: BaseException, path: str) -> int | None:
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1] if lines else None


def read(path: str, expected_sha256: str, what: str) -> bytes:
    """A file's bytes.

    Raises:
        HarnessError: it cannot be read, or is not the one that was hashed.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise HarnessError("WorkspaceFailed", f"the {what} {path!r} cannot be read: {error.strerror}.") from error
    if sha256(content).hexdigest() != expected_sha256:
        raise HarnessError("WorkspaceFailed", f"the {what} {path!r} is not the one that was hashed; call again.")
    return content


def source(path: str, expected_sha256: str) -> Source:
    """A candidate; see `read`."""
    return Source(read(path, expected_sha256, "kernel"), expected_sha256, Path(path).suffix)
