"""Which machine code a candidate was compiled to: a hash, so that a result names what ran and not only its source.

The files lie where the candidate may write, and are taken as what they are: a name for what was found there once the
candidate had been timed. Only regular files are opened, without waiting and without following links, and no more than
can be read quickly.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

SUFFIXES = (".so", ".cubin", ".hsaco")
"""A library built from C, C++, CUDA or HIP, and what Triton compiles to."""
MOST_FILES, MOST_BYTES = 256, 256 << 20
_DEEPEST = 32
"""Folders in folders that are looked into."""
_LAUNCHERS = ("__triton_launcher", "cuda_utils", "hip_utils", "proton")
"""Beginnings of Triton's own libraries in its cache: they start kernels and are none."""


def digest(folders: list[Path], seed: Path) -> str | None:
    """SHA-256 over the machine code in `folders`, whatever its files are called; what `seed` holds too is left out.

    None where there is none, or more than can be read.
    """
    known = set(_hashes([seed]))
    found = _hashes(folders)
    own = sorted(set(found) - known)
    if not own or len(found) > MOST_FILES:
        return None
    return own[0] if len(own) == 1 else sha256("".join(own).encode()).hexdigest()


def _hashes(folders: list[Path]) -> list[str]:
    found: list[str] = []
    left = MOST_BYTES
    for folder in folders:
        for place, below, names in os.walk(folder):
            if len(Path(place).parts) > len(folder.parts) + _DEEPEST:
                below.clear()
            for name in names:
                if not name.endswith(SUFFIXES) or name.startswith(_LAUNCHERS) or len(found) > MOST_FILES:
                    continue
                data = _content(Path(place) / name, left)
                if data is not None:
                    left -= len(data)
                    found.append(sha256(data).hexdigest())
    return found


def _content(path: Path, most: int) -> bytes | None:
    """A regular file's bytes; None where it is none or too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            return None
        return file.read(most)
