"use strict";
// Put a freshly rendered inner part in the place of the old one; what the reader opened, and where they are, stays.
const main = document.getElementById("main");
const live = document.getElementById("live");
const REACHED = "a, summary, [tabindex]"; // by keyboard

function renew(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body;
  for (const old of main.querySelectorAll("details[id]")) {
    const now = fresh.querySelector("#" + CSS.escape(old.id));
    if (now) now.open = old.open;
  }
  const focused = document.activeElement;
  const inside = focused?.closest("main [id]");
  const at = inside ? [...inside.querySelectorAll(REACHED)].indexOf(focused) : -1;
  main.replaceChildren(...fresh.childNodes);
  if (at >= 0) document.getElementById(inside.id)?.querySelectorAll(REACHED)[at]?.focus({ preventScroll: true });
}
