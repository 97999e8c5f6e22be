"""Drawing inputs: the same bits on both sides, in every layout and distribution, between red zones."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from kopt_mcp.evaluator import inputs, reference
from kopt_mcp.evaluator.inputs import GAPS, GUARD, NEARER, VECTOR, draw, room
from kopt_mcp.problem import DISTRIBUTIONS, LAYOUTS, Make, Problem, Workload

MAKE = Make("float32")
ROWS = [MAKE.normal(6, 50)]


def only(
    seed: int = 1, distribution: str = "normal", layout: str = "contiguous", recipes: Sequence[object] = ROWS
) -> torch.Tensor:
    tensor: torch.Tensor = draw(recipes, [], seed, "cpu", distribution, layout).args[0]
    return tensor


def bits(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, *NEARER])
def test_another_process_draws_the_same_bits_in_the_same_layout(distribution: str) -> None:
    program = (
        "import sys, hashlib; from kopt_mcp.evaluator.inputs import draw; from kopt_mcp.problem import Make;"
        "t = draw([Make('float32').normal(6, 50)], [], 7, 'cpu', sys.argv[1], 'cut').args[0];"
        "print(hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest(), t.stride(), t.storage_offset())"
    )
    command = [sys.executable, "-c", program, distribution]
    if distribution in ("normal", "outlier", "far"):  # one process a distribution would cost seconds and tell no more
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        here = only(7, distribution, "cut")
        assert said == f"{bits(here)} {here.stride()} {here.storage_offset()}"
    assert bits(only(7, distribution)) == bits(only(7, distribution))
    assert bits(only(7, distribution)) != bits(only(8, distribution))


def test_a_draw_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    only()
    assert torch.equal(before, torch.get_rng_state())


def test_two_inputs_of_one_call_differ() -> None:
    a, b = draw([MAKE.normal(50), MAKE.normal(50)], [], 1, "cpu").args
    assert not torch.equal(a, b)


def test_distributions_are_what_their_names_say() -> None:
    assert only(distribution="tiny").abs().max() < 0.01
    assert only(distribution="large").abs().max() > 64
    assert (only(distribution="equal") == only(distribution="equal")[:, :1]).all()
    assert (only(distribution="outlier").abs().amax(dim=-1) > 50).all()
    assert (only(distribution="sorted").diff(dim=-1) >= 0).all()
    shifted = only(distribution="shifted").double()
    assert (shifted.mean(dim=-1).abs() > 100 * shifted.std(dim=-1)).all()
    assert len(shifted.mean(dim=-1).sign().unique()) == 2
    mixed = only(distribution="mixed").abs().amax(dim=-1)
    assert (mixed > 64).sum() == 1
    assert only(distribution="mixed", recipes=[MAKE.normal(50)]).abs().max() < 32
    alternating = only(distribution="alternating")
    assert (alternating[:, ::2] >= 0).all()
    assert (alternating[:, 1::2] <= 0).all()
    nothing = (only(distribution="zeros") == 0).all(dim=-1)
    assert nothing.any()
    assert not nothing.all()
    assert (only(distribution="zeros", recipes=[MAKE.normal(50)]) == 0).all()


def test_of_several_distributions_every_row_is_of_one_and_which_is_drawn() -> None:
    recipes = [MAKE.normal(8, 50)]
    names = ["tiny", "equal", "sorted"]
    whole = torch.stack([only(3, name, recipes=recipes) for name in names])
    drawn = only(3, "+".join(names), recipes=recipes)
    which = [[n for n, rows in enumerate(whole) if torch.equal(rows[row], drawn[row])] for row in range(8)]
    assert sorted(map(len, which)) == [1] * 8
    assert sorted(which.count([n]) for n in range(3)) == [2, 3, 3]
    other = only(4, "+".join(names), recipes=recipes)
    assert [bool((r.diff() == 0).all()) for r in other] != [bool((r.diff() == 0).all()) for r in drawn]
    within = only(3, "equal+alternating", recipes=[MAKE.integers(6, 50, low=-2, high=9)])
    assert sum(set(row.tolist()) == {-2, 8} for row in within) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_far_from_zero_are_beyond_what_any_exponential_holds_and_finite(dtype: str) -> None:
    recipes: list[object] = [Make(dtype).normal(40, 300)]
    scales = set()
    for seed in range(20):
        drawn = only(seed, "far", recipes=recipes).double()
        assert drawn.isfinite().all()
        assert (drawn.abs().amax(dim=-1) > 745).all()
        assert {(bool((row > 745).all()), bool((row < -745).all())) for row in drawn} == {
            (True, False), (False, True), (False, False)
        }, "rows above zero, below it, and on both sides"  # fmt: skip
        scales.add(round(float(drawn.abs().min(dim=-1).values.max())))
        piece = only(seed, "mixed-far", recipes=recipes).double()
        assert piece.isfinite().all()
        assert (piece.amax(dim=-1) > 745).sum() == 1
        assert ((piece > 745) | (piece.abs() < 10)).all()
    assert len(scales) > 10, "how far is drawn"
    assert max(scales) < (1100 if dtype == "float16" else 4300)


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, *NEARER])
def test_one_input_alone_may_have_a_distribution_beside_others_that_are_normal(distribution: str) -> None:
    recipes = [MAKE.normal(5, 33), MAKE.integers(7, high=4), MAKE.normal(5, 33)]
    ordinary, all_of_it = draw(recipes, [], 3, "cpu").args, draw(recipes, [], 3, "cpu", distribution).args
    alone = draw(recipes, [], 3, "cpu", f"{distribution}:2").args
    assert torch.equal(alone[0], ordinary[0])
    assert torch.equal(alone[1], ordinary[1])
    assert torch.equal(alone[2], all_of_it[2])


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, *NEARER, "tiny+equal"])
def test_scalars_and_empty_tensors_can_be_drawn(distribution: str) -> None:
    assert only(distribution=distribution, recipes=[MAKE.normal()]).shape == ()
    assert only(distribution=distribution, recipes=[MAKE.normal(0, 4)]).shape == (0, 4)


def test_of_several_distributions_each_is_computed_for_its_own_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def reshape(rows: torch.Tensor, name: str, *_: object) -> torch.Tensor:
        seen.append((name, len(rows)))
        return torch.full_like(rows, float(len(seen)))

    monkeypatch.setattr(inputs, "_reshape", reshape)
    drawn = only(distribution="tiny+equal+sorted", recipes=[MAKE.normal(2, 4, 5)])
    assert seen == [("tiny", 3), ("equal", 3), ("sorted", 2)]
    assert sorted(drawn[..., 0].flatten().tolist()) == [1.0] * 3 + [2.0] * 3 + [3.0] * 2


@pytest.mark.parametrize("layout", [*LAYOUTS, *GAPS])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_layout_changes_the_memory_and_not_the_values(layout: str, dtype: str) -> None:
    recipes: list[object] = [Make(dtype).normal(4, 5, 33)]
    drawn = only(layout=layout, recipes=recipes)
    assert torch.equal(drawn, only(recipes=recipes))
    assert drawn.is_contiguous() == (layout in ("contiguous", "offset"))
    assert drawn.stride(-1) == 1
    if layout in ("contiguous", "strided", "offset"):
        assert (drawn.data_ptr() % 16 == 0) == (layout != "offset")


def gaps_and_columns(layout: str, cols: int, rows: int = 6) -> list[tuple[int, int]]:
    """Of many seeds: the elements between two rows, and the column at which the first one begins."""
    found = []
    for seed in range(300):
        drawn = only(seed, layout=layout, recipes=[MAKE.normal(rows, cols)])
        found.append((drawn.stride(0) - cols, drawn.storage_offset() - GUARD // 4))
    return found


@pytest.mark.parametrize("cols", [32, 33, 50])
def test_the_gaps_between_rows_and_their_first_column_are_drawn_from_the_seed(cols: int) -> None:
    strided, ragged, cut = (gaps_and_columns(layout, cols) for layout in ("strided", "ragged", "cut"))
    for found in (strided, ragged, cut):
        gaps = [gap for gap, _ in found]
        assert all(0 <= first <= gap for gap, first in found)
        assert len(set(gaps)) > 20
        assert max(gaps.count(gap) for gap in set(gaps)) < 60, "no gap can be counted on"
        assert max(gaps) > 1000, "now and then it is large"
    assert all(first % VECTOR == 0 and (gap % VECTOR == 0 or (gap + cols) % VECTOR == 0) for gap, first in strided)
    assert any((gap + cols) % VECTOR == 0 for gap, _ in strided), "rows may all begin at whole vectors"
    assert {gap % VECTOR for gap, _ in ragged} == {1, 3, 5, 7}
    assert {first % VECTOR for _, first in ragged} == set(range(VECTOR))
    assert {first % VECTOR for _, first in cut} == {1, 3, 5, 7}, "within a vector of whatever width"
    assert {gap % VECTOR for gap, _ in cut} == set(range(VECTOR))


def test_two_inputs_of_one_call_have_gaps_of_their_own() -> None:
    recipes = [MAKE.normal(6, 50), MAKE.normal(6, 50)]
    pairs = [draw(recipes, [], seed, "cpu", layout="strided").args for seed in range(20)]
    assert any(a.stride() != b.stride() for a, b in pairs)


def test_gaps_do_not_take_far_more_memory_than_the_tensor_itself() -> None:
    for layout in ("strided", "ragged", "cut", "sliced"):
        for seed in range(20):
            (buffer,) = draw([Make("int8").normal(2, 40_000, 5)], [], seed, "cpu", layout=layout).buffers
            assert buffer.numel() < 8 * 2 * 40_000 * 5


def test_between_rows_lies_nothing_that_may_be_taken_for_a_value() -> None:
    for layout in GAPS:
        made = draw([MAKE.normal(4, 5, 33)], [], 1, "cpu", layout=layout)
        ours = {float(value) for value in made.args[0].flatten()}
        memory = made.buffers[0].view(torch.float32)
        assert all(abs(float(value)) > 1e30 for value in memory if float(value) not in ours)


def test_a_slice_in_the_middle_leaves_rows_that_are_not_equally_far_apart() -> None:
    for recipe, strides in ((MAKE.normal(4, 5, 6), set()), (MAKE.normal(2, 3, 4, 6), set())):
        for seed in range(40):
            drawn = only(seed, layout="sliced", recipes=[recipe])
            assert torch.equal(drawn, only(seed, recipes=[recipe]))
            assert any(drawn.stride(n) > drawn.shape[n + 1] * drawn.stride(n + 1) for n in range(drawn.dim() - 2))
            strides.add(drawn.stride())
        assert len(strides) > 10
    assert only(layout="sliced").is_contiguous(), "of two dimensions it is none"


def test_a_layout_may_be_that_of_one_input_only() -> None:
    a, b = draw([MAKE.normal(5, 33), MAKE.normal(5, 33)], [], 1, "cpu", layout="strided:1").args
    assert (a.is_contiguous(), b.is_contiguous()) == (True, False)
    a, b = draw([MAKE.normal(5, 33), MAKE.normal(5, 33)], [], 1, "cpu", layout="strided").args
    assert not a.is_contiguous()
    assert not b.is_contiguous()


def test_a_permuted_tensor_has_the_last_but_one_of_its_dimensions_ahead_of_the_one_before_it() -> None:
    plain, permuted = (only(layout=layout, recipes=[MAKE.normal(2, 3, 4, 5)]) for layout in ("contiguous", "permuted"))
    assert torch.equal(plain, permuted)
    assert permuted.transpose(1, 2).is_contiguous()
    assert permuted.stride() == (60, 5, 15, 1)
    assert only(layout="permuted", recipes=[MAKE.normal(3, 4, 5)]).stride() == (5, 15, 1)


def test_other_recipes_keep_to_their_domain() -> None:
    table = torch.arange(5)
    make = Make("float32")
    uniform, integers, literal, number = draw(
        [make.uniform(100, low=2.0, high=3.0), make.integers(100, low=-2, high=3), make.literal(table), 7],
        make.literals,
        1,
        "cpu",
        "large",
    ).args
    assert uniform.min() >= 2
    assert uniform.max() <= 3
    assert set(integers.tolist()) == {-2, -1, 0, 1, 2}
    assert torch.equal(literal, table)
    assert number == 7


def test_integers_are_drawn_as_one_value_in_order_and_at_their_ends() -> None:
    recipes = [MAKE.integers(6, 50, low=-2, high=9)]
    assert (only(distribution="equal", recipes=recipes) == only(distribution="equal", recipes=recipes)[:, :1]).all()
    assert (only(distribution="sorted", recipes=recipes).diff(dim=-1) >= 0).all()
    ends = only(distribution="alternating", recipes=recipes)
    assert (ends[:, ::2] == -2).all()
    assert (ends[:, 1::2] == 8).all()
    assert sum(set(row.tolist()) == {-2} for row in only(distribution="zeros", recipes=recipes)) == 3
    within = [MAKE.uniform(6, 50, low=2.0, high=3.0)]
    for distribution in DISTRIBUTIONS:
        drawn = only(distribution=distribution, recipes=within)
        assert ((drawn >= 2.0) & (drawn <= 3.0)).all(), distribution


def test_the_one_large_row_is_not_found_by_looking_at_a_column() -> None:
    found = 0
    for seed in range(100):
        values = only(seed, "mixed", recipes=[MAKE.normal(64, 512)])
        large = values.abs() >= 64
        assert large.any(dim=-1).sum() == 1
        assert 1 <= large.sum() <= 32
        found += bool(large[values[:, 0].argmax()].any())
    assert found < 20


def test_a_literal_is_a_copy_that_a_candidate_cannot_spoil() -> None:
    table = torch.arange(5)
    make = Make("float32")
    recipe = make.literal(table)
    draw([recipe], make.literals, 1, "cpu").args[0].zero_()
    assert torch.equal(draw([recipe], make.literals, 1, "cpu").args[0], table)


@pytest.mark.parametrize("layout", [*LAYOUTS, *GAPS])
@pytest.mark.parametrize("behind", [False, True])
def test_one_byte_written_beside_an_input_is_seen(layout: str, behind: bool) -> None:
    guarded = draw(ROWS, [], 1, "cpu", layout=layout)
    assert guarded.guards_intact()
    memory = torch.empty(0, dtype=torch.uint8).set_(guarded.args[0].untyped_storage())
    memory[-GUARD if behind else GUARD - 1] = 0
    assert not guarded.guards_intact()


@pytest.mark.parametrize(("dtype", "roundoff"), [(torch.float32, 2.0**-24), (torch.float64, 2.0**-53)])
def test_a_moved_input_is_one_rounding_error_off_up_or_down(dtype: torch.dtype, roundoff: float) -> None:
    value = torch.tensor([1.0, -3.0, 1e30], dtype=dtype).repeat(40)
    moved = reference._perturb(value, 0)
    off = {round(float(o), 6) for o in (moved / value.double() - 1.0) / roundoff}
    assert off <= {-1.0, 1.0} if dtype == torch.float32 else off <= {-1.0, 0.0, 1.0, 2.0, -2.0}
    assert len(off) > 1
    assert reference._perturb(7, 0) == 7


def test_of_two_elements_that_are_left_of_a_row_one_goes_up_and_one_down() -> None:
    """Far from zero all others are nothing beside them, and in a random pattern every other row hides what they do."""
    x = torch.zeros(1024, 9)
    x[:, 2], x[:, 5] = 8820.9, 8823.4
    problem = Problem(
        name="softmax",
        reference=lambda x: torch.softmax(x, -1),
        inputs=lambda make, rows: (make.normal(rows, 9),),
        workloads=[Workload({"rows": 1024})],
        bytes="72 * rows",
        flops="0",
        bound="memory",
    )
    high = [torch.softmax(x.double(), -1)]
    chance, far = (reference._farthest(problem, [x], high, far=far)[0] - high[0] for far in (False, True))
    assert float(chance.abs().amax(-1).min()) < 1e-7
    assert float(far.abs().amax(-1).min()) > 1e-5


def test_room_for_outputs_is_watched_on_both_sides() -> None:
    outputs = [{"shape": [3, 5], "dtype": "float32"}, {"shape": [7], "dtype": "int8"}]
    made = room(outputs, "cpu")
    assert [(tuple(t.shape), t.dtype) for t in made.args] == [((3, 5), torch.float32), ((7,), torch.int8)]
    for tensor in made.args:
        tensor.fill_(1)
    assert made.guards_intact()
    torch.as_strided(made.args[1], (1,), (1,), made.args[1].storage_offset() + 7).fill_(0)
    assert not made.guards_intact()


def test_what_is_copied_from_beside_one_tensor_shows_beside_every_other() -> None:
    inputs = draw([MAKE.normal(3, 5), MAKE.normal(3, 5)], [], 1, "cpu")
    outputs = room([{"shape": [3, 5], "dtype": "float32"}] * 2, "cpu")
    places = [*inputs.args, *outputs.args]
    beyond = [t.as_strided((1,), (1,), t.storage_offset() + t.numel()) for t in places]
    assert len({float(value) for value in beyond}) == 4
    beyond[2].copy_(beyond[0])
    assert (inputs.guards_intact(), outputs.guards_intact()) == (True, False)
    beyond[1].copy_(beyond[0])
    assert not inputs.guards_intact()


def test_a_few_columns_do_not_tell_whether_any_value_is_large() -> None:
    recipes = [MAKE.normal(64, 512)]
    drawn = [only(seed, "mixed", recipes=recipes) for seed in range(100)]
    assert all((values.abs().amax(dim=-1) >= 64).sum() == 1 for values in drawn)
    missed = [values for values in drawn if values[:, ::8].abs().max() < 64]
    assert 30 < len(missed) < 80, "large pieces of any length, short ones as often as long ones"
