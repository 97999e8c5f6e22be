"""`kopt-mcp report`: write one experiment's page and charts, print one of them, or show the page while it grows."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt_mcp.disk import Disk
from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.project import root_of

if TYPE_CHECKING:
    from kopt_mcp.report.reading import Told

PORT = 8642


def port(text: str) -> int:
    """A port on the command line.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def add_to(commands: Any) -> None:
    """Add `report` to the command line's subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report", help="write an experiment's page and charts, or show them live"
    )
    parser.add_argument("experiment", nargs="?", default=None, help="the handle (default: the one that grew last)")
    parser.add_argument("--out", type=Path, default=None, help="the page's file (default: in the experiment's folder)")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.add_argument("--json", action="store_true", help="print one line of JSON that names the files")
    parser.add_argument(
        "--print", dest="part", choices=sorted(PARTS), default=None, help="write this one to standard output, no file"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page on loopback, renewed as the journal grows")
    parser.add_argument("--port", type=port, default=PORT, help=f"for --watch (default: {PORT}; 0 takes any)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what was asked for.

    Raises:
        ToolUnavailable: the extra that draws is not installed.
        GuardRefused: there is no such experiment.
        JournalCorrupt: its journal does not verify; nothing is drawn from one that does not.
    """
    try:
        from kopt_mcp.report import live, page, reading  # noqa: F401
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise ToolUnavailable(
            f"a report needs matplotlib and jinja2, and {missing!r} is not installed here; install both with "
            "`pip install 'kopt-mcp[report]'`, then call again."
        ) from error
    root = root_of(options.root)
    if options.watch:
        return live.serve(root, options.experiment, options.port, options.open)
    told = reading.read(root, reading.named(root, options.experiment))
    if options.part:
        sys.stdout.buffer.write(PARTS[options.part](told))
        return 0
    return _write(told, options.out or root / "experiments" / told.state.id / "report.html", options)


def _write(told: Told, out: Path, options: argparse.Namespace) -> int:
    from kopt_mcp.report import limits, reading

    disk = Disk()
    disk.make_folder(out.parent)
    disk.replace(out, _page(told))
    made = [out]
    for name, draw in (("progress.png", _progress), ("roofline.png", _roofline)):
        if name == "progress.png" or not limits.why_not(told.state):
            disk.replace(out.parent / name, draw(told))
            made.append(out.parent / name)
    if options.json:
        print(json.dumps({"experiment": told.state.id, "files": [str(path) for path in made]}))
    else:
        print(f"{told.state.id}: {reading.headline(told.state)}")
        print("\n".join(f"  {path}" for path in made))
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def _page(told: Told) -> bytes:
    from kopt_mcp.report.page import page

    return page(told).encode(errors="replace")


def _view(told: Told) -> bytes:
    from kopt_mcp.report.page import view

    return view(told).encode(errors="replace")


def _progress(told: Told) -> bytes:
    from kopt_mcp.report.drawing import to_png
    from kopt_mcp.report.progress import progress

    return to_png(progress(told))


def _roofline(told: Told) -> bytes:
    from kopt_mcp.report import limits, roofline
    from kopt_mcp.report.drawing import to_png

    if why_not := limits.why_not(told.state):
        raise ToolUnavailable(f"there is no roofline of {told.state.id!r} to draw: {why_not}")
    return to_png(roofline.roofline(told.state))


PARTS: dict[str, Callable[[Told], bytes]] = {
    "page": _page,
    "view": _view,
    "progress": _progress,
    "roofline": _roofline,
}
"""What `--print` can write: the page, its inner part, and the two charts as PNG."""
