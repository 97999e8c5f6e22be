"""What goes wrong on the other side, as an evaluation status and a sentence."""

from __future__ import annotations


class Fault(Exception):
    """The candidate's fault: an evaluation status and a sentence."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class IncumbentFault(Fault):
    """The incumbent failed, which says nothing about the candidate."""
