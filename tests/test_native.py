"""Kernels in C and C++: built, refused, bound."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kopt_mcp.evaluator import native
from kopt_mcp.evaluator.native import BuildError

TWICE = """#include <stdint.h>
void twice(const float *in, float *out, int64_t n, double factor) {
    for (int64_t i = 0; i < n; i++) out[i] = factor * in[i];
}
"""
ARGUMENTS = ("in0", "out0", "n", "factor")


def source(folder: Path, text: str, name: str = "kernel.c") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def result(folder: Path, text: str) -> torch.Tensor:
    library = native.build(source(folder, text), folder, 60)
    out = torch.zeros(4)
    native.bind(library, "twice", ARGUMENTS, on_gpu=False)(
        {"in0": torch.arange(4.0), "out0": out, "n": 4, "factor": 2.0}
    )
    return out


def test_a_function_is_called_with_pointers_integers_and_doubles(tmp_path: Path) -> None:
    assert result(tmp_path, TWICE).tolist() == [0, 2, 4, 6]


def test_cpp_is_built_by_the_cpp_compiler(tmp_path: Path) -> None:
    text = 'template <int N> int id() { return N; }\nextern "C" void f(int *out) { *out = id<7>(); }\n'
    library = native.build(source(tmp_path, text, "kernel.cpp"), tmp_path, 60)
    out = torch.zeros(1, dtype=torch.int32)
    native.bind(library, "f", ("out0",), on_gpu=False)({"out0": out})
    assert out.item() == 7


def test_the_compilers_words_come_back_without_the_folder(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"kernel\.c:2:.*error") as caught:
        native.build(source(tmp_path, "#include <stdint.h>\nvoid twice(int x) { return y; }\n"), tmp_path, 60)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    "flag",
    ["-o/tmp/other.so", "-xnone", "@file", "-specs=x", "-wrapper x", "-B/tmp", "-fplugin=x.so", "-ccbin=/bin/sh"],
)
def test_a_flag_that_would_run_or_write_something_else_is_refused(tmp_path: Path, flag: str) -> None:
    with pytest.raises(BuildError, match="is not allowed in 'kopt: cflags'"):
        native.build(source(tmp_path, f"// kopt: cflags = -O2 {flag}\n{TWICE}"), tmp_path, 60)


@pytest.mark.parametrize(
    "line", ["// kopt: cflags = -DFACTOR=3", "/* kopt: cflags = -DFACTOR=3 */", "//kopt:cflags=-DFACTOR=3"]
)
def test_flags_of_the_first_line_reach_the_compiler(tmp_path: Path, line: str) -> None:
    assert result(tmp_path, f"{line}\n{TWICE.replace('factor * in', 'FACTOR * in')}").tolist() == [0, 3, 6, 9]


def test_flags_anywhere_else_do_not(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="FACTOR"):
        result(tmp_path, f"\n// kopt: cflags = -DFACTOR=3\n{TWICE.replace('factor * in', 'FACTOR * in')}")


def test_a_file_without_the_symbol_says_which_is_missing(tmp_path: Path) -> None:
    library = native.build(source(tmp_path, "static void twice(void) {}\n"), tmp_path, 60)
    with pytest.raises(BuildError, match="does not export 'twice'"):
        native.bind(library, "twice", ARGUMENTS, on_gpu=False)


def test_a_cpp_function_without_c_linkage_is_told_of_it(tmp_path: Path) -> None:
    library = native.build(source(tmp_path, "void twice() {}\n", "kernel.cpp"), tmp_path, 60)
    with pytest.raises(BuildError, match='has to be extern "C"'):
        native.bind(library, "twice", ARGUMENTS, on_gpu=False)


def test_without_the_order_of_its_arguments_a_function_is_not_called(tmp_path: Path) -> None:
    library = native.build(source(tmp_path, TWICE), tmp_path, 60)
    with pytest.raises(BuildError, match="the problem declares no `arguments`"):
        native.bind(library, "twice", (), on_gpu=False)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("const float *in0, float *out0", "takes 2 arguments and is called with 3, in0, out0, factor"),
        ("void", "takes 0 arguments"),
        (
            "const float *in0, float *out0, float factor",
            "'float factor' where it is called with factor, a number, which",
        ),
        ("const float *in0, float out0, double factor", "'float out0' where it is called with out0, a pointer to"),
        (
            "const float *in0, float *out0, double *factor",
            "'double *factor' where it is called with factor, a number; t",
        ),
    ],
)
def test_parameters_that_do_not_fit_the_call_are_found_before_it(tmp_path: Path, head: str, told: str) -> None:
    file = source(tmp_path, f"void twice({head}) {{ }}\n")
    with pytest.raises(BuildError, match=re.escape(told)):
        native.require_fitting(file, "twice", ("in0", "out0", "factor"), on_gpu=False)


@pytest.mark.parametrize(
    "head",
    [
        "const float *restrict in0, // a comment, with a comma\n float out0[], const double factor",
        "const float *in0, float *out0, int64_t factor",
        "Matrix in0, Matrix out0, real factor",
        "double in0, float *out0, int factor",
        "PARAMETERS",
    ],
)
def test_parameters_that_fit_or_cannot_be_told_are_called(tmp_path: Path, head: str) -> None:
    file = source(tmp_path, f"void twice({head});\nvoid twice({head}) {{ }}\n")
    native.require_fitting(file, "twice", ("in0", "out0", "factor"), on_gpu=False)


@pytest.mark.parametrize(
    "text",
    [
        "static inline float twice(float a) { return 2 * a; }\n"
        'extern "C" void twice(const float *in0, float *out0, int64_t n) noexcept { }\n',
        "void twice(const std::array<float, 64> *in0, float *out0, int64_t n) { }\n",
        "void twice(const float *in0, float *out0, int64_t n\n#ifdef __CUDACC__\n, void *stream\n#endif\n) { }\n",
        "void twice(const float *in0, float *out0, [[maybe_unused]] int64_t n) { }\n",
    ],
    ids=["overloaded", "a template's comma", "a condition", "an attribute"],
)
def test_what_commas_cannot_part_is_called(tmp_path: Path, text: str) -> None:
    native.require_fitting(source(tmp_path, text), "twice", ("in0", "out0", "n"), on_gpu=False)


def test_a_file_of_no_language_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"\.txt is of no language; a kernel ends in \.py, \.c, "):
        native.build(source(tmp_path, TWICE, "kernel.txt"), tmp_path, 60)


def test_a_compiler_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"did not finish within 0\.001 s"):
        native.build(source(tmp_path, TWICE), tmp_path, 0.001)


def test_a_missing_compiler_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(BuildError, match="no cuda compiler found; looked for nvcc on PATH and in"):
        native.build(source(tmp_path, "", "kernel.cu"), tmp_path, 60)


@pytest.mark.parametrize(("capability", "arch"), [((9, 0), "90a"), ((8, 6), "86"), ((10, 0), "100a"), (None, "80")])
def test_a_cuda_kernel_is_built_for_the_gpu_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, arch: str
) -> None:
    compiler(tmp_path / "cuda" / "bin" / "nvcc", monkeypatch)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with pytest.raises(BuildError) as caught:
        native.build(source(tmp_path, "// kopt: cflags = -lineinfo\n", "kernel.cu"), tmp_path, 60)
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    assert str(caught.value) == f"-shared -O3 {target} -Xcompiler -fPIC -lineinfo kernel.cu -o kernel.so\n"


def test_a_hip_kernel_is_built_by_rocms_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path / "rocm" / "bin" / "hipcc", monkeypatch)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    with pytest.raises(BuildError) as caught:
        native.build(source(tmp_path, "", "kernel.hip"), tmp_path, 60)
    assert str(caught.value) == "-shared -O3 -fPIC kernel.hip -o kernel.so\n"


def compiler(file: Path, patch: pytest.MonkeyPatch) -> None:
    """One that only says what it was called with; there is no other."""
    file.parent.mkdir(parents=True)
    file.write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n', encoding="utf-8")
    file.chmod(0o755)
    patch.setenv("PATH", str(file.parent.parent))


def test_on_a_gpu_the_stream_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "#include <stdint.h>\nvoid f(int64_t *out, int64_t n, void *stream) { out[0] = n; out[1] = (int64_t)stream; }\n"
    )
    library = native.build(source(tmp_path, text), tmp_path, 60)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=(1 << 40) + 7))
    out = torch.zeros(2, dtype=torch.int64)
    native.bind(library, "f", ("out0", "n"), on_gpu=True)({"out0": out, "n": 5})
    assert out.tolist() == [5, (1 << 40) + 7]


def test_a_build_never_serves_an_older_binary(tmp_path: Path) -> None:
    results = []
    for factor in ("2", "5"):
        folder = tmp_path / factor
        folder.mkdir()
        file = source(folder, TWICE.replace("factor * in", f"{factor} * in"))
        os.utime(file, (1, 1))  # a build system that compares dates would think it unchanged
        results.append(result(folder, file.read_text()).tolist())
    assert results == [[0, 2, 4, 6], [0, 5, 10, 15]]
