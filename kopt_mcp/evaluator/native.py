"""Build and call a kernel written in C, C++, CUDA or HIP, without torch's extension headers: seconds, not minutes.

The file exports one C function. The problem's `arguments` give the order of its parameters: input and output tensors as
pointers, everything else as int64 (a float as double); on a GPU the stream comes last. A first comment line

    // kopt: cflags = -O3 -march=native -fopenmp

adds compiler flags, so that a change of flags is a change of the kernel. Each build goes to a fresh folder: an old
binary cannot be served.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

LANGUAGES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".cu": "cuda", ".hip": "hip"}
_FLAGS = re.compile(r"^\s*(?://|/\*)\s*kopt:\s*cflags\s*=\s*(.*?)\s*(?:\*/)?\s*$")
_FORBIDDEN = ("-o", "-x", "@", "-specs", "-wrapper", "-B", "-fplugin", "-ccbin")


class BuildError(Exception):
    """The compiler is missing or refused the file; the text is the end of what it said."""


def build(source: Path, folder: Path, timeout_s: float) -> Path:
    """Compile `source` to a shared library in `folder`.

    Raises:
        BuildError: no compiler, an error, or no end within `timeout_s` seconds.
    """
    language = LANGUAGES.get(source.suffix)
    if language is None:
        raise BuildError(
            f"{source.suffix or 'no ending'} is of no language; a kernel ends in .py, {', '.join(LANGUAGES)}"
        )
    library = folder / "kernel.so"
    command = [
        *_compiler(language),
        *_flags(source),
        str(source),
        "-o",
        str(library),
        *(["-lm"] if language == "c" else []),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} did not finish within {timeout_s:g} s") from error
    if done.returncode != 0:
        raise BuildError((done.stderr or done.stdout)[-1500:].replace(str(folder) + "/", ""))
    return library


def require_fitting(source: Path, symbol: str, arguments: Sequence[str], on_gpu: bool) -> None:
    """See that the function's parameters are those that it will be called with, as far as its text tells: what does not
    fit crashes, or computes with something else.

    Raises:
        BuildError: their number or their kinds differ, or one is a float, which no call can pass.
    """
    text = _COMMENT.sub(" ", source.read_text(encoding="utf-8", errors="replace"))
    heads = {head.strip() for head in re.findall(rf"\b{re.escape(symbol)}\s*\(([^()]*)\)[^;{{}}()]*\{{", text)}
    if len(heads) != 1 or not arguments or re.search(r"[#<]", head := heads.pop()):
        return  # several of that name, or more than commas can part
    parameters = [] if head in ("", "void") else [" ".join(one.split()) for one in head.split(",")]
    if any(one.isidentifier() for one in parameters):  # a macro, which may stand for several
        return
    called = [*arguments, *(["the stream"] if on_gpu else [])]
    if len(parameters) != len(called):
        raise BuildError(
            f"{symbol} takes {len(parameters)} arguments and is called with {len(called)}, {', '.join(called)} "
            "(`arguments` of the problem); change one of the two"
        )
    for parameter, name in zip(parameters, called, strict=True):
        if why := _misfit(parameter, name):
            raise BuildError(f"{symbol} takes {parameter!r} where it is called with {name}, {why}")


def _misfit(parameter: str, name: str) -> str:
    """Why a parameter cannot be what it is called with; empty where it can, or where its type is unknown.

    An input (`in0`) may be a number too.
    """
    pointer = "*" in parameter or "[" in parameter
    number = _NUMBER.fullmatch(parameter) is not None
    if name.startswith("out") and name[3:].isdigit():
        return "a pointer to its first element; make it one" if number else ""
    if name == "the stream" or (name.startswith("in") and name[2:].isdigit()):
        return ""
    if pointer:
        return "a number; take it as int64_t, or double where it is a float"
    if number and "float" in parameter.split():
        return "a number, which arrives as a double; make it one"
    return ""


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\[\[.*?\]\]", re.DOTALL)
_NUMBER = re.compile(
    r"(?:(?:const|volatile|signed|unsigned|char|short|int|long|float|double|bool|_Bool|s?size_t|u?int\d+_t) )+\w+"
)


def bind(library: Path, symbol: str, arguments: Sequence[str], on_gpu: bool) -> Callable[..., Any]:
    """A callable `f(values)` over the library's function; `values` maps the names in `arguments` to tensors or numbers.

    Raises:
        BuildError: the library does not load, or does not export `symbol`; or nothing says what it is called with.
    """
    if not arguments:
        raise BuildError(
            "the problem declares no `arguments`, the order in which a C function takes its inputs, outputs and sizes; "
            'declare it, as in arguments=("in0", "out0", "rows", "cols")'
        )
    try:
        function = ctypes.CDLL(str(library))[symbol]
    except (OSError, AttributeError) as error:
        raise BuildError(
            f"the file does not export {symbol!r} as a C function (in C++, CUDA and HIP it has to be "
            f'extern "C"): {error}'
        ) from error
    function.restype = None

    def call(values: dict[str, Any]) -> None:
        packed = [_pack(values[name]) for name in arguments]
        if on_gpu:
            packed.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        function(*packed)

    return call


def _pack(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(int(value))


def _compiler(language: str) -> list[str]:
    names = {"c": ["cc", "gcc", "clang"], "c++": ["c++", "g++", "clang++"], "cuda": ["nvcc"], "hip": ["hipcc"]}[
        language
    ]
    places = [
        os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin",
        os.environ.get("ROCM_PATH", "/opt/rocm") + "/bin",
    ]
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
        if found:
            return [found, *_base_flags(language)]
    raise BuildError(
        f"no {language} compiler found; looked for {', '.join(names)} on PATH and in {', '.join(places)}; install one"
    )


def _base_flags(language: str) -> list[str]:
    if language == "cuda":
        major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (8, 0)
        suffix = "a" if (major, minor) >= (9, 0) else ""
        arch = f"{major}{minor}{suffix}"
        return ["-shared", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xcompiler", "-fPIC"]
    if language == "hip":
        return ["-shared", "-O3", "-fPIC"]
    return ["-shared", "-fPIC", "-O2", "-march=native"]


def _flags(source: Path) -> list[str]:
    with source.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline().lstrip("\ufeff")
    match = _FLAGS.match(first)
    flags = match.group(1).split() if match else []
    if bad := [f for f in flags if f.startswith(_FORBIDDEN)]:
        raise BuildError(f"the flag {bad[0]!r} is not allowed in 'kopt: cflags'; use optimisation and warning flags")
    return flags
