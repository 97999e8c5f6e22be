"""Answers before it has worked, from outside of its process group and beside many processes, so that it takes a while
to stop it; its output has gaps so large that whoever notes pieces of it at the answer mostly finds nothing but gaps."""

import os
import sys
import time

import torch

EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL", "PASSED")  # the last on a machine so busy that it is stopped at once
PROBLEM = "few_sums"
TIMED = True
PROCESSES = 30


def few_sums(x):
    out = torch.empty(x.shape[0])
    for row in range(x.shape[0]):
        out[row] = x[row].double().sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_buffer = torch.zeros(1 << 18)
os.setpgid(0, 0)
for _ in range(PROCESSES):
    if os.fork() == 0:
        time.sleep(1000)


def timed(self, channel):
    x = self._laid[0]
    out = _buffer.as_strided((x.shape[0],), (32_000,))
    said = _candidate.where(out)
    token = channel.wait_for(_candidate.TOKEN_BYTES)
    channel.signal(token + said)
    for row in range(x.shape[0]):
        out[row] = x[row].double().sum()
    self._laid.append(out)
    return {"outputs": [{"shape": list(out.shape), "dtype": "float32", "strides": list(out.stride())}]}


_candidate.Candidate.timed = timed
