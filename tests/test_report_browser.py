"""The page in a real browser: it loads nothing, complains of nothing, can be read in dark and light and by keyboard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as headless
import fakes
import pytest
from browser import CONTRAST, FOCUSED, Opened
from fakes import Project

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from test_report import hostile_experiment

from kopt_mcp.report.page import page
from kopt_mcp.report.reading import read

ROOT = Path(__file__).resolve().parent.parent
RUNS = ("softmax-h200-1", "softmax-h200-2")
FOCUSABLE = "a[href], summary, [tabindex='0']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with headless.running() as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Address of the page of each finished run, as it is opened from a disk."""
    folder = tmp_path_factory.mktemp("pages")
    for name in RUNS:
        (folder / f"{name}.html").write_text(page(read(ROOT, name)), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_from_disk_loads_nothing_complains_of_nothing_and_can_be_read(
    browser: Any, written: dict[str, str], name: str, scheme: str
) -> None:
    opened = Opened(browser, color_scheme=scheme, viewport={"width": 1200, "height": 900})
    opened.page.goto(written[name])
    assert opened.page.locator("figure svg").count() == 2
    assert all(box["height"] > 300 for box in (s.bounding_box() for s in opened.page.locator("figure svg").all()))
    opened.unfold()
    seen = opened.page.evaluate(CONTRAST)
    assert seen["looked"] > 150
    assert seen["poor"] == []
    assert opened.complaints == []
    assert opened.requests == [written[name]]


def test_dark_is_dark_and_light_is_light(browser: Any, written: dict[str, str]) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        opened = Opened(browser, color_scheme=scheme)
        opened.page.goto(written["softmax-h200-2"])
        backgrounds.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backgrounds == ["rgb(246, 247, 248)", "rgb(16, 19, 22)"]


@pytest.mark.parametrize("width", [390, 820, 1600])
def test_the_page_is_never_wider_than_its_window(browser: Any, written: dict[str, str], width: int) -> None:
    opened = Opened(browser, viewport={"width": width, "height": 800})
    opened.page.goto(written["softmax-h200-1"])
    opened.unfold()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_everything_is_reached_by_keyboard_and_shows_that_it_is(browser: Any, written: dict[str, str]) -> None:
    opened = Opened(browser)
    opened.page.goto(written["softmax-h200-2"])
    visible = opened.page.locator(FOCUSABLE).filter(visible=True).count()
    opened.page.keyboard.press("Tab")
    first = opened.page.evaluate(FOCUSED)
    assert (first["text"], first["seen"]) == ("Skip to the result", True)
    reached = 1
    while True:
        opened.page.keyboard.press("Tab")
        at = opened.page.evaluate(FOCUSED)
        if at["tag"] == "body":
            break
        assert at["outline"], at
        reached += 1
    assert reached == visible


def test_an_iteration_is_opened_and_closed_by_keyboard(browser: Any, written: dict[str, str]) -> None:
    opened = Opened(browser)
    opened.page.goto(written["softmax-h200-2"])
    iteration = opened.page.locator("#iteration-1")
    assert iteration.get_attribute("open") is None
    iteration.locator("summary").focus()
    opened.page.keyboard.press("Enter")
    assert iteration.get_attribute("open") is not None
    assert iteration.locator(".diff").is_visible()
    opened.page.keyboard.press("Enter")
    assert iteration.get_attribute("open") is None


def test_hostile_text_does_nothing_in_a_browser(browser: Any, project: Project) -> None:
    name = hostile_experiment(project)
    path = project.root / "report.html"
    path.write_text(page(read(project.root, name)), encoding="utf-8")
    opened = Opened(browser)
    opened.page.goto(path.as_uri())
    opened.unfold()
    assert opened.page.locator("text=onerror=alert(2)").count() > 5
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_a_script_that_got_into_the_page_would_not_run(browser: Any, written: dict[str, str], tmp_path: Path) -> None:
    document = page(read(ROOT, "softmax-h200-2"))
    path = tmp_path / "injected.html"
    path.write_text(document.replace("</main>", "<script>alert(1)</script><img src=x onerror=alert(2)></main>"))
    opened = Opened(browser)
    opened.page.goto(path.as_uri())
    assert not [c for c in opened.complaints if c.startswith("dialog")]
    assert any("Content Security Policy" in c for c in opened.complaints)


@pytest.fixture
def served(project: Project) -> Iterator[str]:
    """Address of the live pages of the project."""
    import socket

    import uvicorn

    from kopt_mcp.report.live import application

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(project.root), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_the_live_page_follows_the_experiment_and_keeps_what_the_reader_opened(
    browser: Any, project: Project, served: str
) -> None:
    name = project.baseline(max_iterations=9).experiment
    project.iterate(name, fakes.kernel(1.2), hypothesis="the first change")
    project.iterate(name, fakes.kernel(1.3), hypothesis="the second change")
    opened = Opened(browser)
    opened.page.clock.install()
    opened.page.goto(f"{served}/{name}")
    opened.page.locator("#iteration-1 > summary").focus()
    opened.page.keyboard.press("Enter")
    opened.page.locator("#iteration-2 > summary").click()  # the best one was open
    opened.page.locator("#iteration-1 > summary").focus()
    project.iterate(name, fakes.kernel(1.5), hypothesis="the third change")
    opened.page.clock.run_for(2100)
    opened.page.locator("#iteration-3").wait_for()
    assert opened.page.locator("#iteration-1").get_attribute("open") is not None
    assert opened.page.locator("#iteration-2").get_attribute("open") is None
    assert opened.page.evaluate("document.activeElement.parentElement.id") == "iteration-1"
    assert opened.page.locator("#live").text_content().startswith("Renewed")
    assert opened.complaints == []


def test_the_live_page_says_when_its_server_has_stopped(browser: Any, project: Project, served: str) -> None:
    name = project.baseline().experiment
    opened = Opened(browser)
    opened.page.clock.install()
    opened.page.goto(f"{served}/{name}")
    assert opened.page.locator("#live").text_content() == "Live: renewed as the experiment goes on."
    opened.context.set_offline(True)
    opened.page.clock.run_for(2100)
    opened.page.get_by_text("The server has stopped").wait_for()
    assert opened.page.locator("h1").is_visible()
