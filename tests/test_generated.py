"""Inputs that a task's own code draws: where its generators begin, where its tensors go, and how a nest travels."""

import json
import math
import random
import sys
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator.generated import Unusable, drawn, flatten, key_of, placed, rebuild, register, seeded


@pytest.mark.parametrize("has_numpy", [True, False])
def test_a_tasks_generators_begin_at_its_seed_and_go_on_afterwards_where_they_were(
    monkeypatch: pytest.MonkeyPatch, has_numpy: bool
) -> None:
    numpy: Any = pytest.importorskip("numpy")
    if not has_numpy:
        monkeypatch.delitem(sys.modules, "numpy")

    def numbers() -> list[float]:
        return [random.random(), float(torch.rand(1)), *([float(numpy.random.rand())] if has_numpy else [])]

    before = random.getstate(), torch.get_rng_state()
    theirs = numpy.random.get_state()[1].tolist()
    found = []
    for seed in (7, 7, 8):
        with seeded(seed, "cpu"):
            found.append(numbers())
    assert found[0] == found[1] != found[2]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert numpy.random.get_state()[1].tolist() == theirs


def test_generators_go_on_where_they_were_after_a_task_that_fails() -> None:
    def fails(seed: int) -> Any:
        return random.random() / 0

    key = key_of("a task that fails")
    register(key, fails)
    before = random.getstate()
    with pytest.raises(ZeroDivisionError):
        drawn(key, 7, "cpu")
    assert torch.Generator(device="cpu").device.type == "cpu"
    assert random.getstate() == before


def test_without_a_gpu_what_a_task_puts_there_stays_here_however_it_says_so() -> None:
    def source(seed: int) -> Any:
        generator = torch.Generator(device="cuda")
        generator.manual_seed(seed)
        named = torch.randn(3, device="cuda", generator=generator)
        return {"named": named, "called": torch.ones(2).cuda(), "told": torch.zeros(4).to("cuda"), "unnamed": named + 1}

    key = key_of("a task", "that has a GPU")
    register(key, source)
    first, again, other = (drawn(key, seed, "cpu") for seed in (5, 5, 6))
    assert [tuple(t.shape) for t in first] == [(3,), (2,), (4,), (3,)]
    assert {t.device.type for t in first} == {"cpu"}
    assert first[1].tolist() == [1.0, 1.0]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.Generator(device="cpu").device.type == "cpu", "and torch's own generators are there again"


def test_what_is_only_to_be_described_is_not_drawn() -> None:
    with placed("meta"):
        made = torch.randn(1 << 20, 1 << 20, device="cuda", generator=torch.Generator(device="cuda"))
        assert made.cuda() is made
    assert (made.device.type, tuple(made.shape)) == ("meta", (1 << 20, 1 << 20))


def test_a_nest_is_the_same_after_it_has_travelled_as_text() -> None:
    tensors = [torch.arange(3.0), torch.ones(2, dtype=torch.int64)]
    data = {
        "pair": (tensors[0], [tensors[1], torch.float16]),
        3: {"numbers": (math.inf, -math.inf, 2.5, 7, True), "none": None, "text": "causal"},
    }
    found, nest = flatten(data)
    assert [t.data_ptr() for t in found] == [t.data_ptr() for t in tensors]
    told = json.loads(json.dumps(nest, allow_nan=False))
    assert rebuild(told, tensors) == data
    (odd,) = rebuild(json.loads(json.dumps(flatten((math.nan,))[1], allow_nan=False)), [])
    assert math.isnan(odd)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": [torch.zeros(2), object()]}, r"data\['x'\]\[1\] is a object; expected tensors, numbers"),
        ({(1, 2): 3}, "data is a dict; expected"),
        ([torch.zeros(2, dtype=torch.complex64)], r"data\[0\] is of the dtype complex64; expected one of float64, "),
    ],
)
def test_what_cannot_be_handed_over_is_named_with_where_it_is(data: Any, words: str) -> None:
    with pytest.raises(Unusable, match=words):
        flatten(data)


def test_on_a_gpu_what_names_no_device_goes_there_and_what_names_one_stays() -> None:
    with placed("cuda:0"):
        assert torch.get_default_device() == torch.device("cuda:0")
        assert torch.empty(2, device="cpu").device.type == "cpu"
    assert torch.get_default_device().type == "cpu"
