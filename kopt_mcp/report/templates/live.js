// Ask for the page's inner part every two seconds; the answer is empty until the journal has grown.
const path = location.pathname.replace(/\/$/, "") + "/view";
let tag = main.dataset.tag ? `"${main.dataset.tag}"` : "";

async function look() {
  try {
    const answer = await fetch(path, { headers: { "If-None-Match": tag }, cache: "no-store" });
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      renew(await answer.text());
      live.textContent = "Renewed " + new Date().toLocaleTimeString() + ".";
    } else if (answer.status !== 304) {
      live.textContent = "The journal cannot be shown just now; the page is as it last was.";
    }
  } catch {
    live.textContent = "The server has stopped; the page is as it last was.";
  }
  setTimeout(look, 2000);
}

if (tag) {
  live.textContent = "Live: renewed as the experiment goes on.";
  setTimeout(look, 2000);
}
