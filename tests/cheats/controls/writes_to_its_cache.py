"""Keeps a tuning result, not an output, in its cache folder."""

import json
import os
import pathlib

import torch

_file = pathlib.Path(os.environ["XDG_CACHE_HOME"], "tuned.json")
_step = json.loads(_file.read_text())["step"] if _file.exists() else 32
_file.write_text(json.dumps({"step": _step}))


def softmax(x):
    return torch.cat([torch.softmax(part, dim=-1) for part in x.split(_step)])
