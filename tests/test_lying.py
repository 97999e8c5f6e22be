"""Whether the elements of outputs have memory of their own."""

import pytest
import torch

from kopt_mcp.evaluator.lying import Lying, share

BUFFER = torch.zeros(6, 8)


@pytest.mark.parametrize(
    ("tensor", "repeats"),
    [
        (BUFFER, False),
        (BUFFER.t(), False),
        (BUFFER[:, 1:3], False),
        (BUFFER[:, ::2], False),
        (torch.zeros(1, 3).expand(1, 1, 3), False),
        (torch.zeros(0).expand(4, 0), False),
        (torch.zeros(()), False),
        (torch.zeros(3, 1).expand(3, 4), True),
        (torch.zeros(1).expand(2), True),
        (torch.zeros(9).unfold(0, 3, 1), True),
    ],
)
def test_an_expanded_tensor_repeats_itself_and_a_slice_does_not(tensor: torch.Tensor, repeats: bool) -> None:
    assert Lying.of(tensor).repeats_itself() == repeats


@pytest.mark.parametrize(
    ("tensors", "shared"),
    [
        ([BUFFER[:, :3], BUFFER[:, 3:]], False),
        ([BUFFER[:, ::2], BUFFER[:, 1::2]], False),
        ([BUFFER[:3], torch.zeros(1 << 20), BUFFER[3:]], False),
        ([BUFFER[:0], BUFFER], False),
        ([], False),
        ([BUFFER, BUFFER], True),
        ([BUFFER[:, :3], BUFFER[:, 2:]], True),
        ([BUFFER[0], torch.zeros(4), BUFFER.view(torch.float64)[:2, :1]], True),
    ],
)
def test_pieces_of_one_buffer_share_nothing_unless_they_overlap(tensors: list[torch.Tensor], shared: bool) -> None:
    assert share([Lying.of(t) for t in tensors]) == shared


@pytest.mark.parametrize(
    ("tensor", "size"),
    [(BUFFER, 192), (BUFFER.t(), 192), (BUFFER[:2, :3], 4 * 11), (BUFFER[:0], 0), (torch.zeros(3, 0), 0)],
)
def test_a_tensor_ends_behind_its_last_element_or_where_it_begins(tensor: torch.Tensor, size: int) -> None:
    assert Lying.of(tensor).end == tensor.data_ptr() + size


def test_memory_that_lies_far_apart_is_not_counted_through() -> None:
    near, same = (Lying(64, (4,), (1,), 4) for _ in range(2))
    assert share([Lying(1 << 60, (4,), (1,), 4), near, same])
    assert not share([Lying(1 << 60, (4,), (1,), 4), near])
