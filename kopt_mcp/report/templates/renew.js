"use strict";
// Put a freshly rendered inner part in the place of the old one; what the reader opened, and where they are, stays.
const main = document.getElementById("main");
const live = document.getElementById("live");

function renew(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body;
  for (const old of main.querySelectorAll("details[id]")) {
    const now = fresh.querySelector("#" + CSS.escape(old.id));
    if (now) now.open = old.open;
  }
  const places = [...main.querySelectorAll("a, summary, [tabindex]")];
  const at = places.indexOf(document.activeElement);
  main.replaceChildren(...fresh.childNodes);
  if (at >= 0) [...main.querySelectorAll("a, summary, [tabindex]")][at]?.focus({ preventScroll: true });
}
