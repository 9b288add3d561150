"""The page that shows `/openapi.json` and calls it: one static text, nothing fetched from elsewhere."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Anabranch: HTTP API</title>
<style>
  :root { color-scheme: light dark; --line: #8884; --accent: #2a7; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
  header { display: flex; gap: 1rem; flex-wrap: wrap; align-items: baseline; }
  input, textarea { font: inherit; padding: .25rem .5rem; border: 1px solid var(--line); border-radius: 4px; }
  #find { flex: 1; min-width: 12rem; }
  h2 { margin: 1.5rem 0 .25rem; text-transform: capitalize; }
  details { border-top: 1px solid var(--line); padding: .3rem 0; }
  summary { cursor: pointer; }
  code { font-family: ui-monospace, monospace; }
  .verb { display: inline-block; width: 4.5rem; font-weight: 600; color: var(--accent); }
  .what { opacity: .75; margin-left: .5rem; }
  form { display: grid; grid-template-columns: 12rem 1fr; gap: .4rem; margin: .5rem 0 .5rem 4.5rem; }
  form textarea { min-height: 4rem; }
  button { font: inherit; padding: .3rem 1rem; justify-self: start; }
  pre { margin-left: 4.5rem; padding: .5rem; border: 1px solid var(--line); overflow: auto; max-height: 24rem; }
</style>
<header>
  <h1>HTTP API</h1>
  <input id="find" type="search" placeholder="find a route" aria-label="find a route">
  <input id="token" type="password" placeholder="token, if needed" aria-label="token" autocomplete="off">
</header>
<main id="routes">loading …</main>
<script>
const make = (name, text, attributes = {}) => {
  const node = Object.assign(document.createElement(name), attributes);
  if (text !== undefined) node.textContent = text;
  return node;
};
const call = async (verb, path, operation, form, out) => {
  const query = new URLSearchParams();
  let url = path;
  for (const given of operation.parameters) {
    const value = form.elements[given.in + ":" + given.name].value;
    if (given.in === "path") url = url.replace(`{${given.name}}`, encodeURIComponent(value));
    else if (value !== "") query.set(given.name, value);
  }
  if ([...query].length) url += "?" + query;
  const headers = { "Accept": "application/json" };
  const token = document.getElementById("token").value;
  if (token) headers["Authorization"] = "Bearer " + token;
  const body = form.elements["body"]?.value;
  if (body) headers["Content-Type"] = "application/json";
  out.textContent = "…";
  try {
    const answer = await fetch(url, { method: verb.toUpperCase(), headers, body: body || undefined });
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
    out.textContent = `${answer.status} ${answer.statusText}\\n${shown}`;
  } catch (error) { out.textContent = String(error); }
};
const show = (verb, path, operation) => {
  const row = make("details");
  const head = make("summary");
  head.append(make("span", verb.toUpperCase(), { className: "verb" }), make("code", path),
              make("span", operation.summary, { className: "what" }));
  row.append(head);
  row.dataset.text = `${verb} ${path} ${operation.summary}`.toLowerCase();
  row.addEventListener("toggle", () => {
    if (row.children.length > 1) return;
    const form = make("form");
    for (const given of operation.parameters) {
      const options = given.schema.enum ? given.schema.enum.join(" | ") : given.schema.type || "";
      form.append(make("label", given.name), make("input", undefined,
        { name: given.in + ":" + given.name, placeholder: options, required: given.required }));
    }
    if (operation.requestBody) form.append(make("label", "body (JSON)"), make("textarea", undefined, { name: "body" }));
    const out = make("pre");
    form.append(make("span"), make("button", "Send"));
    form.addEventListener("submit", event => { event.preventDefault(); call(verb, path, operation, form, out); });
    row.append(form, out);
  });
  return row;
};
fetch("/openapi.json").then(answer => answer.json()).then(api => {
  const groups = {};
  for (const [path, verbs] of Object.entries(api.paths))
    for (const [verb, operation] of Object.entries(verbs))
      (groups[operation.tags[0]] ??= []).push(show(verb, path, operation));
  const main = document.getElementById("routes");
  main.replaceChildren();
  for (const name of Object.keys(groups).sort()) {
    const section = make("section");
    section.append(make("h2", name), ...groups[name]);
    main.append(section);
  }
  document.getElementById("find").addEventListener("input", event => {
    const wanted = event.target.value.toLowerCase();
    for (const row of main.querySelectorAll("details")) row.hidden = !row.dataset.text.includes(wanted);
  });
});
</script>
</html>
"""
