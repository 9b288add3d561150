// The page at /docs: shows /openapi.json and makes calls. Credentials stay in the page's memory.
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
    out.textContent = `${verb.toUpperCase()} ${url}\n${answer.status} ${answer.statusText}\n\n${shown}`.trimEnd();
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
  for (const part of path.split(/(?<=\/)/)) node.append(part, make("wbr"));
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
  const wanted = $("find").value.toLowerCase().split(/\s+/);
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
