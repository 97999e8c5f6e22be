"""Sends an output that lies behind the end of the shared memory."""

import gc

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("CHEATED",)


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    _channel().send(
        {
            "op": "call",
            "outputs": [{"shape": list(x.shape), "dtype": "float32", "offset": 1 << 34, "bytes": 4 * x.numel()}],
            "violations": [],
        }
    )
    return x
