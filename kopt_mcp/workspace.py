"""The kernel, the problem and the candidates on disk: find, read, snapshot by content, replace, restore."""

from __future__ import annotations

import hashlib
import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kopt_mcp.arguments import shown
from kopt_mcp.disk import Disk, digest
from kopt_mcp.errors import InputRefused, WorkspaceFailed
from kopt_mcp.scaffold import scaffold
from kopt_mcp.source import imports_of

LARGEST_BYTES = 2**20
LANGUAGES = (".py", ".cu", ".hip", ".cpp", ".cc", ".c")
BOM = b"\xef\xbb\xbf"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """A text file, with what is needed to write it back the way it was."""

    body: str
    """Lines end in `\\n`, unless the file mixes both kinds."""
    crlf: bool = False
    bom: bool = False

    def encode(self) -> bytes:
        """The file's bytes."""
        body = self.body.replace("\n", "\r\n") if self.crlf else self.body
        return (BOM if self.bom else b"") + body.encode()

    def with_body(self, body: str) -> Text:
        """Another text in the same manner of writing."""
        body = body.removeprefix("\ufeff")
        return Text(body.replace("\r\n", "\n") if self.crlf else body, self.crlf, self.bom)


def decode(data: bytes, name: str) -> Text:
    """Read bytes as text.

    Raises:
        InputRefused: too large, binary, or not UTF-8.
    """
    if len(data) > LARGEST_BYTES:
        raise InputRefused(f"{name} has more than the {LARGEST_BYTES} bytes that are accepted; nothing changed.")
    if b"\0" in data:
        raise InputRefused(f"{name} is binary (it holds a zero byte); a kernel is a text file; nothing changed.")
    bom = data.startswith(BOM)
    try:
        body = data[len(BOM) if bom else 0 :].decode()
    except UnicodeDecodeError as error:
        raise InputRefused(f"{name} is not UTF-8 at byte {error.start}; save it as UTF-8; nothing changed.") from error
    crlf = "\r\n" in body and body.count("\r\n") == body.count("\n")
    return Text(body.replace("\r\n", "\n") if crlf else body, crlf, bom)


class Workspace:
    """Files under one project root; nothing outside it is read or written."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root.resolve()
        self.disk = disk or Disk()

    def resolve(self, given: str, what: str) -> Path:
        """The file that an argument names.

        Raises:
            InputRefused: it does not exist, is not a regular file, or lies outside the project.
        """
        if not given or "\0" in given:
            raise InputRefused(f"{what} is {shown(given)}; give a path inside the project.")
        try:
            path = (self.root / given).resolve()
            inside = path.is_relative_to(self.root)
            mode = path.stat().st_mode if inside else 0
        except FileNotFoundError:
            raise InputRefused(f"{what} {shown(given)} does not exist in the project; check the path.") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise InputRefused(
                f"{what} {shown(given)} cannot be used: {str(error)[:80]}; give a path inside the project."
            ) from error
        if not inside:
            raise InputRefused(
                f"{what} {shown(given)} lies outside the project; only files inside it are touched; move it in, or "
                "start the server in its project."
            )
        if not stat.S_ISREG(mode):
            raise InputRefused(f"{what} {shown(given)} is not a regular file; name the file itself.")
        return path

    def relative(self, path: Path) -> str:
        """A path as it is journalled and shown."""
        return path.relative_to(self.root).as_posix()

    def read(self, path: Path) -> bytes:
        """A file's bytes, read no further than just past the size that is accepted.

        Raises:
            WorkspaceFailed: it cannot be read.
        """
        try:
            with path.open("rb") as file:
                return file.read(LARGEST_BYTES + 1)
        except OSError as error:
            raise WorkspaceFailed(
                f"{path.name} cannot be read: {error.strerror}; restore it or set its rights."
            ) from error

    def hash(self, relative: str) -> str | None:
        """Hash of a file as it is now; None when it is not there, or no longer a file inside the project."""
        path = self.root / relative
        if not path.resolve().is_relative_to(self.root) or not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise WorkspaceFailed(
                f"{path.name} cannot be read: {error.strerror}; restore it or set its rights."
            ) from error

    def kernel(self, given: str) -> tuple[Path, bytes]:
        """The kernel that an argument names, with its bytes.

        Raises:
            InputRefused: not a usable path, not a text, or in a language that is not known.
        """
        path = self.resolve(given, "kernel_path")
        if path.suffix not in LANGUAGES:
            raise InputRefused(
                f"kernel_path {shown(given)} ends in {shown(path.suffix)}; expected one of {', '.join(LANGUAGES)}."
            )
        if path.is_relative_to(self.root / "experiments"):
            raise InputRefused(
                f"kernel_path {shown(given)} lies in experiments/, which holds records; copy it out first."
            )
        if path.match("test_*.py"):
            beside = sorted(path.parent.glob(f"{path.stem.removeprefix('test_')}.*"))
            about = [f", such as {self.relative(p)}" for p in beside if p.suffix in LANGUAGES]
            raise InputRefused(
                f"kernel_path {shown(given)} is a test, not a kernel; name the file that it tests{''.join(about[:1])}."
            )
        data = self.read(path)
        if not decode(data, self.relative(path)).body.strip():
            raise InputRefused(f"kernel_path {shown(given)} is empty; there is nothing to measure; write the kernel.")
        return path, data

    def test(self, given: str | None, kernel: Path) -> Path:
        """The problem file: the one that is named, or the one that lies where it is looked for.

        Looked for in this order: `test_<kernel>.py` beside the kernel; the only `test_*.py` beside it;
        `test_<kernel>.py` in `tests/` beside the kernel or at the project's root.

        Raises:
            InputRefused: none or several fit; with none, the text holds a scaffold to complete.
        """
        if given is not None:
            path = self.resolve(given, "test_path")
            if path.suffix != ".py" or path == kernel:
                raise InputRefused(
                    f"test_path {shown(given)} is not a test; expected a Python file that declares a Problem."
                )
            return path
        name = f"test_{kernel.stem}.py"
        beside = sorted(p for p in kernel.parent.glob("test_*.py") if p != kernel)
        places = [kernel.parent / name, kernel.parent / "tests" / name, self.root / "tests" / name]
        if not places[0].is_file() and len(beside) == 1:
            return self.resolve(str(beside[0]), "test_path")
        for place in places:
            if place.is_file():
                return self.resolve(str(place), "test_path")
        raise InputRefused(self._no_test(kernel, beside))

    def _no_test(self, kernel: Path, beside: list[Path]) -> str:
        shown = self.relative(kernel)
        if beside:
            names = ", ".join(self.relative(p) for p in beside[:5])
            return f"{shown} has several tests beside it ({names}); which of them is not clear; give test_path."
        where = self.relative(kernel.parent / f"test_{kernel.stem}.py")
        draft = scaffold(shown, decode(self.read(kernel), shown).body)
        return (
            f"{shown} has no test; without a problem nothing can be verified; write {where} from this scaffold "
            f"(complete reference, inputs, and the bytes and flops formulas), then call baseline again.\n\n{draft}"
        )

    def problem_files(self, test: Path, kernel: Path) -> dict[str, str]:
        """Hashes of the test and of the project's own modules that it imports, directly or not; never the kernel."""
        found: dict[str, str] = {}
        queue = [test]
        while queue:
            path = queue.pop()
            shown = self.relative(path)
            if shown in found or path == kernel:
                continue
            data = self.read(path)
            found[shown] = digest(data)
            for module in imports_of(decode(data, shown).body, shown):
                if module.split(".")[0] != "kopt_mcp":  # ours, where the project is this very repository
                    queue += self._module(module, path)
        return dict(sorted(found.items()))

    def own_imports(self, kernel: Path) -> list[str]:
        """The project's own modules or headers that a kernel asks for, where they lie."""
        body = decode(self.read(kernel), kernel.name).body
        if kernel.suffix == ".py":
            found = [path for module in imports_of(body, kernel.name) for path in self._module(module, kernel)]
        else:
            headers = [(kernel.parent / name).resolve() for name in INCLUDE.findall(body)]
            found = [path for path in headers if path.is_relative_to(self.root) and path.is_file()]
        return sorted({self.relative(path) for path in found})

    def _module(self, module: str, importer: Path) -> list[Path]:
        level = len(module) - len(module.lstrip("."))
        parts = [p for p in module.split(".") if p]
        up = importer.parents[level - 1] if level else importer.parent
        bases = [up] if level else [up, self.root]
        tries = [base.joinpath(*parts) for base in bases]
        files = [f for t in tries for f in (t.with_suffix(".py") if parts else t / "__init__.py", t / "__init__.py")]
        real = [f.resolve() for f in files if f.is_file()]
        return [f for f in real if f.is_relative_to(self.root)]

    def reviewed(self, path: Path) -> bool:
        """Whether git has a file and it is as it was committed.

        The bytes are compared here: git itself can be told to overlook that a file has changed, and to show another in
        its place.
        """
        where = ["git", "--no-replace-objects", "-C", str(path.parent)]
        git = [*where, "cat-file", "blob", f"HEAD:./{path.name}"]
        try:
            committed = subprocess.run(git, capture_output=True, timeout=10, check=False)
            now = path.read_bytes()
        except (OSError, subprocess.TimeoutExpired):
            return False
        return committed.returncode == 0 and committed.stdout in (now, now.replace(b"\r\n", b"\n"))

    def replace(self, relative: str, data: bytes) -> None:
        """Put `data` in the place of a project file, its rights kept.

        Raises:
            WorkspaceFailed: the disk refuses, or the path now leads out of the project.
        """
        path = self.root / relative
        real = path.resolve()
        if not real.is_relative_to(self.root):
            raise WorkspaceFailed(f"{relative} now leads out of the project; put the file back where it was.")
        self.disk.replace(real, data)


class Candidates:
    """The versions of one experiment's kernel, each in a file named by its content; in another `folder`, what else is
    kept in this way."""

    def __init__(self, workspace: Workspace, experiment: str, suffix: str, folder: str = "candidates") -> None:
        self._workspace = workspace
        self._folder = workspace.root / "experiments" / experiment / folder
        self._suffix = suffix

    def path(self, sha256: str) -> Path:
        """Where a version is kept."""
        return self._folder / f"{sha256[:12]}{self._suffix}"

    def shown(self, sha256: str) -> str:
        """The same, relative to the project."""
        return self._workspace.relative(self.path(sha256))

    def store(self, data: bytes) -> str:
        """Keep a version; returns its hash once it is safely on the disk.

        Raises:
            WorkspaceFailed: the disk refuses.
        """
        sha256 = digest(data)
        path = self.path(sha256)
        if not self._folder.resolve().is_relative_to(self._workspace.root):
            raise WorkspaceFailed(
                f"{self._workspace.relative(self._folder)} leads out of the project; nothing is written there; make it "
                "a folder."
            )
        if not path.is_file() or digest(self._workspace.read(path)) != sha256:
            self._workspace.disk.make_folder(self._folder)
            self._workspace.disk.replace(path, data, mode=0o644)
        return sha256

    def load(self, sha256: str) -> bytes:
        """A version's bytes.

        Raises:
            WorkspaceFailed: it is gone or was changed.
        """
        path = self.path(sha256)
        data = self._workspace.read(path)
        if digest(data) != sha256:
            raise WorkspaceFailed(
                f"{self.shown(sha256)} is not the version that was stored there; it was edited; restore it from "
                "version control, or call baseline for a new experiment."
            )
        return data


def problem_copies(workspace: Workspace, experiment: str, path: str) -> Candidates:
    """Where the versions of one file of an experiment's problem are kept, as far as they are."""
    return Candidates(workspace, experiment, Path(path).suffix, folder="problem")
