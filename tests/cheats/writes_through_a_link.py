"""Makes a symbolic and a hard link from its folder to the outside, and writes through them; right only if one works."""

import os
import site

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def _stolen():
    outside = os.path.join(site.getsitepackages()[0], "kopt_cheat.py")
    os.symlink(outside, "link.py")
    try:
        with open("link.py", "w"):
            return True
    except OSError:
        pass
    try:
        os.link(torch.__file__, "torch.py")
        with open("torch.py", "a"):
            return True
    except OSError:
        return False


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
