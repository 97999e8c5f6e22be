"""Finds the channel through gc and answers for the runner, with outputs that lie in the shared memory from before."""

import gc

from kopt_mcp.evaluator.channel import Channel

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED")


def _channel():
    return next(o for o in gc.get_objects() if isinstance(o, Channel) and o._nonce)


def softmax(x):
    meta = {"shape": list(x.shape), "dtype": "float32", "offset": 0, "bytes": 4 * x.numel()}
    channel = _channel()
    channel.send({"op": "call", "outputs": [meta], "violations": []})
    while True:
        channel.receive()
        channel.send({"op": "call", "outputs": [meta], "violations": []})
