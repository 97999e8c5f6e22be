"""A real browser without a window, for the tests that look at pages in it; they skip where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """The browser that KOPT_BROWSER names, or the first that is installed."""
    return os.environ.get("KOPT_BROWSER") or next((p for p in map(shutil.which, NAMES) if p), None)


@contextmanager
def running() -> Iterator[Any]:
    """The browser; tests that need it are skipped where it, or the library that drives it, is missing."""
    driver = pytest.importorskip("playwright.sync_api")
    found = executable()
    if found is None:
        pytest.skip(f"no browser was found: none of {', '.join(NAMES)}, and KOPT_BROWSER is not set")
    with driver.sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that root in a container does not have; the pages are our own.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page, and everything that went wrong on it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.requests.append(r.url))

    def unfold(self) -> None:
        """Open everything that is folded."""
        self.page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")


CONTRAST = """
() => {
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || ["SCRIPT", "STYLE", "title", "style"].includes(element.tagName) || !element.getClientRects().length)
      continue;
    const style = getComputedStyle(element);
    const svg = element.closest("svg");
    const front = luminance(numbers(svg ? style.fill : style.color));
    const back = luminance(behind(svg || element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    looked += 1;
    if (ratio < 4.5) poor.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return { looked, poor };
}
"""
"""Every text that is shown, with its contrast where it is below 4.5, by the formula of WCAG 2.2 (1.4.3, level AA)."""

FOCUSED = """
() => {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  return { tag: at.tagName.toLowerCase(), id: at.id, text: at.textContent.trim().slice(0, 40),
           outline: parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none",
           seen: at.getBoundingClientRect().width > 0 };
}
"""
