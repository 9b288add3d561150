"""The page that shows `/openapi.json` and makes calls: static HTML without external resources.

It is served without authentication, because a browser that opens an address sends no token. The document and every call
need the credentials that the user enters; they stay in the page's memory.
"""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Anabranch: HTTP API</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; --line: #8884; --soft: #8881; --get: #1a7f5a; --put: #8a6100; --post: #1b62b5;
          --delete: #b3261e; --page: Canvas; }
  @media (prefers-color-scheme: dark) {
    :root { --get: #5fd3a5; --put: #e2b64c; --post: #7db4f5; --delete: #ff8a80; }
  }
  * { box-sizing: border-box; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 0 1rem 4rem; }
  header { position: sticky; top: 0; background: var(--page); padding: 1rem 0 .75rem; z-index: 1;
           border-bottom: 1px solid var(--line); }
  .bar { display: flex; gap: .75rem; flex-wrap: wrap; align-items: center; }
  h1 { font-size: 1.4rem; margin: 0; }
  #version { opacity: .7; }
  input, textarea, select { font: inherit; padding: .3rem .5rem; border: 1px solid var(--line); border-radius: 4px;
                            min-width: 0; width: 100%; background: var(--page); color: inherit; }
  .bar input { width: auto; flex: 1 1 14rem; }
  nav { display: flex; flex-wrap: wrap; gap: .25rem .9rem; margin-top: .6rem; }
  nav a { color: inherit; opacity: .8; text-underline-offset: 3px; }
  h2 { margin: 1.75rem 0 .25rem; font-size: 1.15rem; scroll-margin-top: 8rem; }
  details { border-top: 1px solid var(--line); }
  summary { cursor: pointer; display: grid; grid-template-columns: 4.5rem minmax(0, 1fr) minmax(0, 22rem); gap: .75rem;
            padding: .35rem .25rem; align-items: baseline; list-style: none; }
  summary::-webkit-details-marker { display: none; }
  summary:hover, details[open] > summary { background: var(--soft); }
  code, pre, textarea { font-family: ui-monospace, monospace; font-size: .9em; }
  summary code { overflow-wrap: anywhere; }
  .verb { font-weight: 650; font-size: .85em; }
  .get { color: var(--get); } .put { color: var(--put); } .post { color: var(--post); }
  .delete { color: var(--delete); }
  .what { opacity: .8; }
  form { display: grid; grid-template-columns: minmax(6rem, 12rem) minmax(0, 32rem); gap: .45rem .75rem;
         margin: .6rem 0 .6rem 5.25rem; align-items: center; }
  form textarea { min-height: 5rem; }
  form small { opacity: .7; }
  button { font: inherit; padding: .3rem 1.2rem; justify-self: start; border: 1px solid var(--line); border-radius: 4px;
           cursor: pointer; }
  pre { margin: 0 0 .8rem 5.25rem; padding: .6rem .75rem; border: 1px solid var(--line); border-radius: 4px;
        overflow: auto; max-height: 26rem; white-space: pre-wrap; overflow-wrap: anywhere; }
  pre:empty { display: none; }
  .bad { border-color: var(--delete); }
  #notice { margin: 2rem 0; }
  :focus-visible { outline: 2px solid var(--post); outline-offset: 1px; }
  @media (max-width: 48rem) {
    header { position: static; }
    summary { grid-template-columns: 4.5rem minmax(0, 1fr); row-gap: 0; }
    .what { grid-column: 2; }
    form { margin-left: 0; grid-template-columns: minmax(0, 1fr); }
    pre { margin-left: 0; }
  }
</style>
<header>
  <div class="bar">
    <h1>Anabranch HTTP API</h1><span id="version"></span>
    <input id="find" type="search" placeholder="find a route: words of its path or text" aria-label="find a route">
    <input id="token" type="password" placeholder="token, or user:password" aria-label="token, or user:password"
           autocomplete="off">
  </div>
  <nav id="sections" aria-label="sections"></nav>
</header>
<main id="routes"><p id="notice" role="status">loading …</p></main>
<script>
const $ = id => document.getElementById(id);
const make = (name, text, attributes = {}) => {
  const node = Object.assign(document.createElement(name), attributes);
  if (text !== undefined) node.textContent = text;
  return node;
};
const credentials = () => {
  const given = $("token").value.trim();
  if (!given) return {};
  const isPassword = given.includes(":") && !given.startsWith("ey");
  const bytes = String.fromCharCode(...new TextEncoder().encode(given));
  return { "Authorization": isPassword ? "Basic " + btoa(bytes) : "Bearer " + given };
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
  const headers = { "Accept": "application/json", ...credentials() };
  const body = form.elements["body"]?.value;
  if (body) headers["Content-Type"] = "application/json";
  out.className = "";
  out.textContent = "…";
  try {
    const answer = await fetch(url, { method: verb.toUpperCase(), headers, body: body || undefined });
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
    out.className = answer.ok ? "" : "bad";
    out.textContent = `${verb.toUpperCase()} ${url}\\n${answer.status} ${answer.statusText}\\n\\n${shown}`.trimEnd();
  } catch (error) { out.className = "bad"; out.textContent = String(error); }
};
const field = given => {
  const name = given.in + ":" + given.name, { schema } = given;
  const options = schema.enum ?? (schema.type === "boolean" ? ["true", "false"] : null);
  if (!options)
    return make("input", undefined, { name, required: given.required, inputMode: schema.type === "integer" ?
      "numeric" : "text", placeholder: (schema.type ?? "text") + (given.required ? "" : ", optional") });
  const choice = make("select", undefined, { name });
  if (!given.required) choice.append(make("option", "", { value: "" }));
  for (const option of options) choice.append(make("option", option));
  return choice;
};
const example = schema => {
  if (schema.example !== undefined) return schema.example;
  if (schema.oneOf) return example(schema.oneOf[0]);
  if (schema.enum) return schema.enum[0];
  switch (schema.type) {
    case "boolean": return true;
    case "integer": return 1;
    case "array": return [example(schema.items ?? {})];
    case "object": return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([k, v]) => [k, example(v)]));
    default: return "text";
  }
};
const fill = (row, verb, path, operation) => {
  const form = make("form");
  for (const given of operation.parameters) {
    const label = make("label");
    label.append(make("span", given.name), make("small", given.in === "query" ? " (query)" : ""));
    form.append(label, field(given));
  }
  if (operation.requestBody) {
    const schema = operation.requestBody.content["application/json"].schema;
    const text = schema.type || schema.oneOf || schema.example !== undefined ? JSON.stringify(example(schema)) : "";
    form.append(make("label", "body (JSON)"), make("textarea", undefined, { name: "body", placeholder: text }));
  }
  const out = make("pre");
  form.append(make("span"), make("button", "Send"));
  form.addEventListener("submit", event => { event.preventDefault(); call(verb, path, operation, form, out); });
  row.append(form, out);
};
const breakable = path => {
  const node = make("code");
  for (const part of path.split(/(?<=\\/)/)) node.append(part, make("wbr"));
  return node;
};
const show = (verb, path, operation) => {
  const row = make("details"), head = make("summary");
  head.append(make("span", verb.toUpperCase(), { className: "verb " + verb }), breakable(path),
              make("span", operation.summary, { className: "what" }));
  row.append(head);
  row.dataset.text = `${verb} ${path} ${operation.summary}`.toLowerCase();
  row.addEventListener("toggle", () => { if (row.children.length === 1) fill(row, verb, path, operation); });
  return row;
};
const find = () => {
  const wanted = $("find").value.toLowerCase().split(/\\s+/);
  for (const section of document.querySelectorAll("section")) {
    let left = 0;
    for (const row of section.querySelectorAll("details"))
      left += !(row.hidden = !wanted.every(word => row.dataset.text.includes(word)));
    section.hidden = left === 0;
  }
};
const load = async () => {
  const answer = await fetch("/openapi.json", { headers: credentials() });
  if (!answer.ok) {
    $("routes").replaceChildren(make("p", answer.status === 401 ?
      "Sign in: put a token, or user:password, into the field above." : `${answer.status} ${await answer.text()}`,
      { id: "notice", role: "status" }));
    return;
  }
  const api = await answer.json(), groups = {};
  for (const [path, verbs] of Object.entries(api.paths))
    for (const [verb, operation] of Object.entries(verbs))
      (groups[operation.tags[0]] ??= []).push(show(verb, path, operation));
  $("version").textContent = api.info.version;
  $("routes").replaceChildren();
  $("sections").replaceChildren();
  for (const name of Object.keys(groups).sort()) {
    const section = make("section");
    section.append(make("h2", name, { id: "at-" + name }), ...groups[name]);
    $("routes").append(section);
    $("sections").append(make("a", `${name} ${groups[name].length}`, { href: "#at-" + name }));
  }
  find();
};
$("find").addEventListener("input", find);
$("token").addEventListener("change", load);
load().catch(error => { $("routes").textContent = String(error); });
</script>
</html>
"""
