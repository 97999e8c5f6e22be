"""How tensors lie in memory: whether each element has some of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Lying:
    """Where a tensor's elements are: an address in bytes, shape and strides in elements, bytes of one element."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Lying:
        """As a tensor says."""
        return cls(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.element_size())

    @property
    def end(self) -> int:
        """The address behind the last element."""
        if 0 in self.shape:
            return self.address
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.address + (last + 1) * self.itemsize

    def repeats_itself(self) -> bool:
        """Whether elements may share memory, as in an expanded tensor: no dimension steps over those within it."""
        reach = 0
        for stride, count in sorted((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1):
            if stride <= reach and 0 not in self.shape:
                return True
            reach += (count - 1) * stride
        return False


def share(tensors: Sequence[Lying]) -> bool:
    """Whether two of these tensors, none of which repeats itself, have an element's memory in common."""
    group: list[Lying] = []
    for one in sorted((t for t in tensors if 0 not in t.shape), key=lambda t: t.address):
        if group and one.address >= max(t.end for t in group):
            group.clear()
        group.append(one)
        if len(group) > 1 and _collide(group):
            return True
    return False


def _collide(group: list[Lying]) -> bool:
    """Count who has each byte: pieces of one buffer may lie between each other."""
    begin = group[0].address
    owners = torch.zeros(max(t.end for t in group) - begin, dtype=torch.uint8)
    for one in group:
        strides = [s * one.itemsize for s in one.strides]
        owners.as_strided([*one.shape, one.itemsize], [*strides, 1], one.address - begin).add_(1)
    return bool((owners > 1).any())
