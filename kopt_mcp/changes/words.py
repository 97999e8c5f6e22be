"""The vocabulary by which a change is read: which names, arguments and words belong to which kind."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

TABLE: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))

LAUNCH_ARGUMENTS = frozenset(TABLE["launch_arguments"])
LAUNCH_CALLS = frozenset(TABLE["launch_calls"])
MEMORY_ARGUMENTS = frozenset(TABLE["memory_arguments"])
HINTS = frozenset(TABLE["hints"])
MEMORY_CALLS = frozenset(TABLE["memory_calls"]) | HINTS
TYPES = frozenset(TABLE["types"])
INDEX_TYPES = frozenset(TABLE["index_types"])
NUMERIC_ARGUMENTS = frozenset(TABLE["numeric_arguments"])
MATH = frozenset(TABLE["math"])
SCHEDULING_WORDS = frozenset(TABLE["scheduling_words"])
SCHEDULING_ARGUMENTS = frozenset(TABLE["scheduling_arguments"])
CARRIERS = frozenset(TABLE["carriers"])
ALLOCATIONS = frozenset(TABLE["allocations"])
EMPTY_CALLS = frozenset(TABLE["empty_calls"])
ASSEMBLY = frozenset(TABLE["assembly"])
PROGRAM = frozenset(TABLE["program"])
HOST_HELPERS = frozenset(TABLE["host_helpers"])
MODULES = frozenset(TABLE["modules"])

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
