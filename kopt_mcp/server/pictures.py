"""Pictures and pages of an experiment, as resources, beside an answer, and as an app for clients that show one.

What draws is an extra and heavy: it is never loaded here but run as a process of its own, at the lowest priority, since
a benchmark may be going on beside it. A page is drawn when somebody asks for it, and again only once the journal has
grown.

    report://<experiment>/page.html, progress.png, roofline.png     as `kopt-mcp report` writes them
    report://<experiment>/view.html, state.json                     the page's inner part, and whether it is still true
    ui://kopt/experiment                                            the app (SEP-1865), which reads the last two
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.apps import Apps
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.types import ImageContent

from kopt_mcp import __version__
from kopt_mcp.errors import Cancelled, GuardRefused, InputRefused, KoptError, ToolUnavailable
from kopt_mcp.results import LogResult
from kopt_mcp.server.place import App, Workplace
from kopt_mcp.watch import Watch

APP = "ui://kopt/experiment"
META = {"ui": {"resourceUri": APP}}
"""Of the tools whose answer the app shows."""
PARTS = {
    "page.html": ("page", "text/html", "The whole report: log, charts, diffs, diagnoses, certificates."),
    "view.html": ("view", "text/html", "The report's inner part, without styles."),
    "progress.png": ("progress", "image/png", "The metric of every iteration, with target and roof."),
    "roofline.png": ("roofline", "image/png", "What each workload reached below the device's roofs."),
}
LONGEST_S = 120
TEMPLATES = Path(__file__).resolve().parent.parent / "report" / "templates"


class Pictures:
    """What is drawn of one project's experiments; kept until the journal grows."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._one_at_a_time = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[str, bytes]] = {}

    def tag(self, experiment: str) -> str:
        """Names the state of an experiment's journal.

        Raises:
            InputRefused: there is no such experiment.
        """
        from kopt_mcp.experiments import NAME, begun

        journal = self._root / "experiments" / experiment / "journal.jsonl"
        if not NAME.fullmatch(experiment) or not begun(journal):
            raise InputRefused(f"experiment {experiment[:100]!r} is not known; log lists those that there are.")
        found = journal.stat()
        return f"{found.st_size}-{found.st_mtime_ns}"

    def draw(self, experiment: str, part: str, watch: Watch | None = None) -> bytes:
        """One part of `kopt-mcp report --print`.

        Raises:
            InputRefused: there is no such experiment.
            ToolUnavailable: it could not be drawn; the text says why, and what to install if that is it.
            Cancelled: the watch was cancelled; the process that drew has been ended.
        """
        watch = watch or Watch()
        tag = self.tag(experiment)
        while not self._one_at_a_time.acquire(timeout=0.2):
            _go_on(watch)
        try:
            kept = self._kept.get((experiment, part))
            if kept is None or kept[0] != tag:
                kept = self._kept[experiment, part] = tag, self._drawn(experiment, part, watch)
        finally:
            self._one_at_a_time.release()
        return kept[1]

    def _drawn(self, experiment: str, part: str, watch: Watch) -> bytes:
        # -P: nothing in the folder that the server happens to stand in is taken for a module of ours.
        command = ["nice", "-n", "19", sys.executable, "-P", "-m", "kopt_mcp", "--root", str(self._root)]
        command += ["report", experiment, "--print", part]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
            with process, watch.ending(process.kill):
                late = threading.Timer(LONGEST_S, process.kill)
                late.start()
                out, err = process.communicate()
                late.cancel()
        except OSError as error:
            raise ToolUnavailable(f"nothing can be drawn here: {error}; read the log without a picture.") from error
        _go_on(watch)
        if process.returncode != 0:
            why = err.decode(errors="replace").strip()[-1000:]
            raise ToolUnavailable(
                why or f"the {part} of {experiment!r} was not drawn within {LONGEST_S} s; call again."
            )
        return out


def of_log(pictures: Pictures, result: LogResult, watch: Watch) -> list[ImageContent]:
    """The progress chart of the experiment that the log is of."""
    if result.experiment is None:
        raise InputRefused("chart is of one experiment and none was named; give experiment, as log alone lists them.")
    data = base64.b64encode(pictures.draw(result.experiment, "progress", watch)).decode()
    return [ImageContent(type="image", data=data, mime_type="image/png")]


def register(server: MCPServer[App], place: Workplace, pictures: Pictures) -> None:
    """The pictures and pages as resources."""
    for name, (part, mime_type, about) in PARTS.items():
        template = server.resource(f"report://{{experiment}}/{name}", name=name, description=about, mime_type=mime_type)
        template(_reading(partial(pictures.draw, part=part), as_text=mime_type == "text/html"))

    def state(experiment: str) -> bytes:
        done = place.loop.log(experiment).phase == "done"
        return json.dumps({"tag": pictures.tag(experiment), "done": done}).encode()

    about = "Names the state of the journal, and whether the experiment is over."
    name = "state.json"
    template = server.resource(
        f"report://{{experiment}}/{name}", name=name, description=about, mime_type="application/json"
    )
    template(_reading(state, as_text=True))


def app() -> Apps:
    """The app's page: it holds no data of its own, and asks the client for the experiment that a tool answered with."""
    apps = Apps()
    about = "An experiment as it goes on: progress, log, roofline, diffs, diagnoses, certificates."
    apps.add_html_resource(APP, _page(), name="experiment", title="Experiment", description=about, prefers_border=True)
    return apps


def _page() -> str:
    text = {
        name: (TEMPLATES / name).read_text(encoding="utf-8") for name in ("app.html", "style.css", "renew.js", "app.js")
    }
    script = text["renew.js"] + text["app.js"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shell = text["app.html"].replace("VERSION", __version__).replace("DIGEST", digest)
    return shell.replace("STYLE\n", text["style.css"]).replace("SCRIPT", script)


def _reading(made: Callable[[str], bytes], *, as_text: bool) -> Callable[[str], str | bytes]:
    """A resource's function, whose refusals are a resource's."""

    def read(experiment: str) -> str | bytes:
        try:
            data = made(experiment)
        except (InputRefused, GuardRefused) as error:
            raise ResourceNotFoundError(str(error)) from error
        except KoptError as error:
            raise ResourceError(str(error)) from error
        return data.decode() if as_text else data

    return read


def _go_on(watch: Watch) -> None:
    if watch.cancelled:
        raise Cancelled("the call was cancelled while it drew; nothing of the experiment has changed.")
