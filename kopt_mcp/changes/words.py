"""The vocabulary by which a change is read: which names, arguments and words belong to which kind."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAUNCH_ARGUMENTS = _words("num_warps num_stages num_ctas maxnreg waves_per_eu matrix_instr_nonkdim kpack num_threads")
"""Arguments of a launch or of triton.Config."""
LAUNCH_CALLS = _words("autotune heuristics Config")
"""Calls and decorators whose arguments are launch parameters."""
MEMORY_ARGUMENTS = _words(
    "mask other cache_modifier eviction_policy volatile boundary_check padding_option order strides offsets"
)
"""Arguments of loads, stores and block pointers."""
HINTS = _words("multiple_of max_contiguous max_constancy assume")
"""What tells the compiler about addresses."""
MEMORY_CALLS = _words("load store make_block_ptr advance contiguous prefetch trans stride") | HINTS
"""Calls that move data or describe where it lies."""
TYPES = _words(
    "float64 float32 float16 bfloat16 float8e4nv float8e5 float8e4b8 float8e5b16 tf32 half double float int8 uint8 "
    "__half __nv_bfloat16 hip_bfloat16 half2 element_ty"
)
"""Types that values are computed in."""
INDEX_TYPES = _words("int32 int64 uint32 uint64")
"""Types of indices, whose width is a matter of addresses."""
NUMERIC_ARGUMENTS = _words(
    "dtype out_dtype acc input_precision allow_tf32 max_num_imprecise_acc fp_downcast_rounding enable_fp_fusion "
    "allow_flush_denorm ieee_rounding"
)
"""Arguments that set a type or an accuracy."""
MATH = _words(
    "exp exp2 log log2 rsqrt sqrt sqrt_rn div_rn fdiv fast_expf fast_dividef rcp tanh fast_tanhf sigmoid erf fma "
    "expf exp2f __expf __exp2f __logf log2f logf __fdividef rsqrtf sqrtf __frcp_rn __fsqrt_rn tanhf fmaf __fmaf_rn "
    "ex2"
)
"""Functions that stand for one another at another accuracy and speed."""
SCHEDULING_WORDS = _words(
    "program_id num_programs atomic_add atomic_max atomic_min atomic_cas multi_processor_count NUM_SMS num_sms "
    "SPLIT_K split_k swizzle2d static_range CUDAGraph GROUP_M GROUP_SIZE_M NUM_SM NUM_PROGRAMS persistent "
    "PERSISTENT debug_barrier ROWS_PER_PROGRAM NUM_SPLITS"
)
"""What says which block does which work, and when."""
SCHEDULING_ARGUMENTS = _words("flatten loop_unroll_factor disallow_acc_multi_buffer disable_licm")
"""Arguments of loops."""
CARRIERS = _words("axis keep_dims keepdims dim shape key")
"""Arguments that follow a change of layout or of the autotuner, and are none on their own."""
ALLOCATIONS = _words("empty empty_like zeros zeros_like new_empty new_zeros full empty_strided")
"""Calls that make a buffer."""
EMPTY_CALLS = _words("static_assert device_assert static_print device_print print")
"""Calls that compute nothing."""
ASSEMBLY = _words("inline_asm_elementwise inline_asm")
"""Calls that hold assembly."""
PROGRAM = _words("program_id num_programs")
"""What a program knows of its own place."""
HOST_HELPERS = _words(
    "max min int len abs round cdiv next_power_of_2 element_size size stride numel bool divmod "
    "get_device_properties range isinstance"
)
"""What the host calls to work out a launch."""
MODULES = _words("tl triton torch libdevice math language extra range")
"""Names in front of others."""

LAUNCH_NAMES = re.compile(
    r"(?ix)_?(?: (?:block|tile|chunk|threads?|warps?|group|grid|stages?)(?:_?(?:size|dims?|shape|per_block|per_row))?"
    r"(?:_?(?:[mnkxyzdhwq]|kv|rows?|cols?|\d+))? | (?:n|num|n_|num_)(?:threads|warps|stages|blocks|ctas)"
    r" | (?:rows|cols|m|n|k|x|y)_?(?:block|tile))"
)
"""Names of tile sizes, thread counts and grids, matched whole."""
LAUNCH_CODE = re.compile(
    r"<<<|\b__launch_bounds__|\bdim3\b|\bnum_threads\b|\bmaxntid|\bminnctapersm|\bset_num_threads\b"
)
MEMORY_NAMES = re.compile(r"(?i)_?(?:.*_)?(?:mask|offs|offset|offsets|ptrs?|pointers?|strides?|cols_idx|idx|index)")
MEMORY_CODE = re.compile(
    r"\b(?:__ld(?:g|cs|ca|cg|cv|lu)|__st(?:cs|cg|wt|wb)|__restrict(?:__)?|restrict|__shared__|alignas|__align__)\b"
    r"|\b(?:float|double|int|uint|half|short|char|uchar|ushort|bfloat16_?)[248]\b|\breinterpret_cast\b"
    r"|\b__builtin_(?:nontemporal_\w+|prefetch|assume_aligned)\b|\b_mm\d*_(?:stream|prefetch|load|store)\w*"
    r"|\b(?:aligned_alloc|posix_memalign|pragma GCC ivdep|stride\w*|PAD\w*|padding)\b"
)
NUMERIC_CODE = re.compile(
    r"\b(?:__(?:exp|exp2|log|log2|log10|pow|sin|cos|tan)f|__fdividef|__f(?:rcp|sqrt|div|mul|add)_r[nzud]|rsqrtf?)\b"
    r"|fast-math|fassociative-math|fp-?contract|float_control|\bfast_\w+f\b"
)
SCHEDULING_NAMES = re.compile(r"(?i)_?(?:pid|tile|program)(?:_?\w+)?")
SCHEDULING_CODE = re.compile(
    r"\bgridDim\b|\bblockIdx\b|\batomic[A-Z]\w+|\bpragma (?:unroll|omp)|\bgrid_group\b|\bthis_grid\b|\bcudaGraph\w*"
    r"|\bmultiProcessorCount\b|\bcudaStream(?:Create|Begin)\w*|\bpthread_|\bstd::thread\b|\bfopenmp\b|\bfunroll\S*"
)


def is_launch_name(name: str) -> bool:
    """Whether a variable or argument holds a tile size, a number of warps or a grid."""
    return name in LAUNCH_ARGUMENTS or LAUNCH_NAMES.fullmatch(name) is not None


def are_launch_names(target: str) -> bool:
    """Whether all that an assignment binds are such."""
    return all(is_launch_name(name.strip()) for name in target.strip("()").split(","))
