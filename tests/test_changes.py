"""What a patch is read as: small, realistic patches with the reading that a kernel engineer would give."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_kernels import applied

from kopt_mcp.changes import off_tier, read
from kopt_mcp.errors import InputRefused

DATA = Path(__file__).parent / "data" / "changes"
SKILLS = Path(__file__).parent.parent / "skills" / "kernels"
EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Patch:
    """Replacements in one of the files of data/changes, and the kinds that they should be read as."""

    title: str
    file: str
    kinds: tuple[str, ...]
    replace: tuple[dict[str, str], ...]

    def texts(self) -> tuple[str, str]:
        old = new = (DATA / self.file).read_text()
        for change in self.replace:
            assert change["old"] in new, change["old"]
            new = new.replace(change["old"], change["new"])
        return old, new


ALL = [
    Patch(row["title"], row["file"], tuple(row["kinds"]), tuple(row["replace"]))
    for row in yaml.safe_load((DATA / "patches.yaml").read_text())
]
BY_TITLE = {patch.title: patch for patch in ALL}
KERNELS = sorted(path.name for path in DATA.iterdir() if path.suffix in (".py", ".c", ".cu"))


@pytest.mark.parametrize("patch", ALL, ids=lambda p: p.title.replace(" ", "-"))
def test_a_patch_is_read_as_an_engineer_would(patch: Patch) -> None:
    old, new = patch.texts()
    reading = read(old, new, patch.file)
    assert reading.kinds == patch.kinds, [part.text() for part in reading.parts]


def test_there_are_enough_patches_to_say_so() -> None:
    assert len({patch.title for patch in ALL}) == len(ALL) >= 30


@pytest.mark.parametrize("name", KERNELS)
def test_comments_and_formatting_are_no_change(name: str) -> None:
    old = (DATA / name).read_text()
    mark = "#" if name.endswith(".py") else "//"
    new = f"{mark} hello\n\n" + old.replace(", ", ",  ").replace(" = ", "  =  ")
    assert read(old, new, name).parts == ()


def test_a_numerical_change_in_c_names_what_differs_and_claims_no_order() -> None:
    old = "float f(float y) {\n    return expf(y) * 2;\n}\n"
    (part,) = read(old, old.replace("expf(y)", "(float)exp((double)y)"), "k.c").parts
    assert (part.kind, part.text()) == ("numerics", "numerics: double, exp, expf, float in f (line 2)")


def test_the_split_names_functions_and_lines() -> None:
    old, new = BY_TITLE["warps and eviction"].texts()
    assert [part.text() for part in read(old, new, "softmax.py").parts] == [
        "memory access: eviction_policy in _softmax_kernel (line 14)",
        "launch parameters: num_warps in softmax (line 32)",
    ]


def test_two_kernels_of_one_file_that_have_nothing_to_do_with_each_other_are_read_apart() -> None:
    forward, backward = (DATA / "softmax.py").read_text(), (DATA / "rmsnorm.py").read_text()
    old = forward + backward
    new = forward.replace("num_warps=4", "num_warps=8") + backward.replace(
        "out = x * rstd * weight", "out = x * weight * (rstd + 0)"
    )
    assert read(old, new, "both.py").kinds == ("algorithm", "launch")


def test_every_change_of_the_examples_is_one_change() -> None:
    folder = EXAMPLES / "cpu_softmax"
    kernel = (folder / "softmax.c").read_text()
    assert json.loads((folder / "patches" / "patches.json").read_text())
    for path in sorted((folder / "patches").glob("*.c")):
        assert len(read(kernel, path.read_text(), "softmax.c").parts) <= 1, path.name


def together(one: Patch, other: Patch) -> tuple[str, str] | None:
    """Both patches at once, where they do not get in each other's way."""
    old, new = one.texts()
    for change in other.replace:
        if change["old"] not in new:
            return None
        new = new.replace(change["old"], change["new"])
    return old, new


def test_independent_changes_are_told_apart_whichever_two_they_are() -> None:
    apart = [p for p in ALL if p.kinds in (("launch",), ("memory",), ("numerics",))]
    pairs = [(a, b) for a, b in itertools.combinations(apart, 2) if a.file == b.file and a.kinds != b.kinds]
    missed = {}
    for one, other in pairs:
        if (texts := together(one, other)) and {*read(*texts, one.file).kinds} != {*one.kinds, *other.kinds}:
            missed[one.title, other.title] = read(*texts, one.file).kinds
    assert len(pairs) > 80
    # Both rewrite one statement from the ground up: in doubt it is one change.
    assert missed == {("no mask where the row fills the block", "no widening"): ("algorithm",)}


@pytest.mark.parametrize("skill", sorted(SKILLS.glob("*/SKILL.md")), ids=lambda p: p.parent.name)
def test_every_change_that_a_skill_shows_is_one_change_of_its_tier(skill: Path) -> None:
    shown = skill.read_text()
    for found in re.finditer(r"\*\*Tier (\d)(?:(?!\*\*Tier).)*?```diff\n(.*?)```", shown, re.DOTALL):
        for template in skill.parent.glob("triton_*template.py"):
            old = template.read_text()
            with suppress(AssertionError):  # a change of the other template
                reading = read(old, applied(old, found.group(2)), template.name)
                told = [part.text() for part in reading.parts]
                if len(told) > 1 or off_tier(int(found.group(1)), reading):
                    pytest.fail(f"{found.group(0)[:80]}: {told}")


@pytest.mark.parametrize(
    ("title", "tier", "warned"),
    [
        ("more warps", 1, False),
        ("more warps", 4, False),
        ("more warps", 3, True),
        ("eviction policy", 1, True),
        ("tensor descriptors", 5, False),
    ],
)
def test_a_tier_that_does_not_fit_is_warned_about(title: str, tier: int, warned: bool) -> None:
    patch = BY_TITLE[title]
    assert bool(off_tier(tier, read(*patch.texts(), patch.file))) is warned


def test_the_warning_names_what_was_read_and_its_tier() -> None:
    assert off_tier(3, read(*BY_TITLE["more warps"].texts(), "softmax.py")) == (
        "filed under tier 3, but read as launch parameters (num_warps in softmax (line 32)), which is tier 1; name the "
        "tier of what is changed, so that the log says what was tried."
    )


def test_a_file_too_long_to_compare_is_not_read_and_not_refused() -> None:
    assert read("x = 1\n" * 20_002, "x = 2\n" * 20_002, "k.py").parts == ()


@given(
    st.sampled_from(KERNELS),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
)
def test_no_pair_of_texts_makes_the_reader_fail(name: str, swaps: list[tuple[int, int]]) -> None:
    old = (DATA / name).read_text()
    lines = old.split("\n")
    for one, other in swaps:
        lines[one % len(lines)], lines[other % len(lines)] = lines[other % len(lines)], lines[one % len(lines)]
    with suppress(InputRefused):
        read(old, "\n".join(lines), name)
