"""Everything that can be refused or can fail, as one tree.

    KoptError               the text is for the model: fact; cause; next step
      x InputRefused        an argument or a configuration key is wrong; nothing ran
      x GuardRefused        a rule of the loop forbids this call now; nothing ran
      x ProblemInvalid      the test file does not declare a usable problem
      x ToolUnavailable     a program that is needed is missing or may not be used
      x DeviceBusy          somebody else holds the device
      x EvaluatorFailed     the evaluator itself broke; says nothing about the candidate
      x Cancelled           the caller gave the call up
      x WorkspaceFailed     the disk, the folder or the kernel file is not usable
      x JournalCorrupt      the journal's middle does not verify; never "re-initialised"

A candidate's fault is never an exception: it is the `status` of an `Evaluation`.
"""

from __future__ import annotations


class KoptError(Exception):
    """A failure whose text may be shown to the agent as it is."""


class InputRefused(KoptError):
    """An argument, a path or a configuration key is not acceptable."""


class GuardRefused(KoptError):
    """A rule of the loop forbids the call in the experiment's present state."""


class ProblemInvalid(KoptError):
    """The problem file is missing, does not load, or would accept wrong kernels (`survivors`: which, and why)."""

    def __init__(self, text: str, survivors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.survivors = survivors


class ToolUnavailable(KoptError):
    """A profiler, compiler or interpreter is missing or may not be used."""


class DeviceBusy(KoptError):
    """Another process holds the device lock, or runs work on the device."""


class EvaluatorFailed(KoptError):
    """The harness broke or did not answer; the candidate is neither right nor wrong."""


class Cancelled(KoptError):
    """The caller cancelled; the experiment is where it was before the call."""


class WorkspaceFailed(KoptError):
    """A file could not be read, written or restored."""


class JournalCorrupt(KoptError):
    """A journal line other than a torn last one does not verify."""
