"""Does nothing in what is left of a visit once a call of it was looked at: its input is wrong afterwards."""

import sys
import time

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
TIMED = True
WAKE_UP, WARM_UP, VISIT = 3, 3 + 1 + 7, 3

_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_lay = _candidate.Candidate.lay
_last, _state = [], {"calls": 0, "visit": VISIT - WARM_UP, "looked": False, "hard": False}


def lay(self, message):
    state = _state
    state["calls"] += 1
    if _last:
        tensor, first = _last.pop()
        if (now := int(tensor.view(torch.int32).view(-1)[0])) != first:
            assert now == ~first
            state["looked"] = True
            state["hard"] |= bool(tensor.view(torch.int32).bitwise_not().view(torch.float32).abs().max() > 8)
    state["visit"] += 1
    if state["visit"] > VISIT + (state["hard"] and state["calls"] > WARM_UP + 1):
        state.update(visit=1, looked=False, hard=False)
    return _lay(self, message)


_candidate.Candidate.lay = lay


def softmax(x):
    if _state["calls"]:
        _last.append((x, int(x.view(torch.int32).view(-1)[0])))
        if _state["calls"] <= WAKE_UP:
            time.sleep(0.03)  # slow calls get short visits, so that their length is known
        if _state["calls"] > WARM_UP and _state["looked"]:
            return torch.zeros(x.shape)
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)
