// An MCP App (SEP-1865, 2026-01-26): JSON-RPC with the client through its window; nothing else can be reached from here.
const waiting = new Map();
let number = 0;
let experiment = "";
let seen = "";
let timer = 0;

function send(message) {
  window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
}

function ask(method, params) {
  return new Promise((resolve, reject) => {
    waiting.set(++number, { resolve, reject });
    send({ id: number, method, params });
  });
}

function dress(context) {
  if (context?.theme) document.documentElement.dataset.theme = context.theme;
}

async function read(part) {
  const answer = await ask("resources/read", { uri: `report://${experiment}/${part}` });
  return answer.contents[0].text;
}

async function look() {
  clearTimeout(timer);
  try {
    const now = JSON.parse(await read("state.json"));
    if (now.tag !== seen) {
      renew(await read("view.html"));
      seen = now.tag;
    }
    live.textContent = now.done ? "" : "Live: renewed as the experiment goes on.";
    if (!now.done) timer = setTimeout(look, 5000);
  } catch (error) {
    live.textContent = error.message || "The client does not let this page read the experiment.";
  }
}

function follow(name) {
  if (!name || name === experiment) return;
  experiment = name;
  look();
}

const TOLD = {
  "ui/notifications/tool-input": (params) => follow(params.arguments?.experiment),
  "ui/notifications/tool-result": (params) => {
    follow(params.structuredContent?.experiment);
    if (!experiment) live.textContent = "Ask for the log of one experiment to see it here.";
  },
  "ui/notifications/host-context-changed": dress,
};

window.addEventListener("message", (event) => {
  if (event.source !== window.parent || event.data?.jsonrpc !== "2.0") return;
  const { id, method, params, result, error } = event.data;
  if (method === undefined) {
    const asked = waiting.get(id);
    waiting.delete(id);
    if (error) asked?.reject(new Error(error.message));
    else asked?.resolve(result);
  } else if (id === undefined) {
    TOLD[method]?.(params ?? {});
  } else if (method === "ping" || method === "ui/resource-teardown") {
    if (method !== "ping") clearTimeout(timer);
    send({ id, result: {} });
  } else {
    send({ id, error: { code: -32601, message: `there is no method ${method}` } });
  }
});

ask("ui/initialize", {
  appInfo: { name: "kopt-mcp", version: document.documentElement.dataset.version },
  appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
  protocolVersion: "2026-01-26",
}).then(({ hostContext }) => {
  dress(hostContext);
  send({ method: "ui/notifications/initialized" });
  new ResizeObserver(() => {
    const { width, height } = document.documentElement.getBoundingClientRect();
    send({ method: "ui/notifications/size-changed", params: { width: Math.ceil(width), height: Math.ceil(height) } });
  }).observe(document.documentElement);
});
