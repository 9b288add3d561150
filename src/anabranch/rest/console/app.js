// The console: navigation, keyboard, theme, sign-in, and the page that the URL names.

import { h, render } from "./preact.js";
import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { needsSignIn, signIn, signOut, token } from "./api.js";
import { BrokersPage } from "./page_brokers.js";
import { OverviewPage } from "./page_overview.js";
import { TopicPage } from "./page_topic.js";
import { TopicsPage } from "./page_topics.js";
import { Dialog, Empty, Lazy, html, link, notice, remember, route, theme, zone } from "./ui.js";

const NAV = [["", "Overview", "o"], ["topics", "Topics", "t"], ["namespaces", "Namespaces", "p"], ["brokers", "Brokers", "b"], ["metadata", "Metadata", "m"], ["operations", "Operations", "j"]];
const NEXT_THEME = { system: "light", light: "dark", dark: "system" };
const SCALES = ["time", "log", "epoch"];

const namespaces = () => import("./page_namespaces.js"), metadata = () => import("./page_metadata.js");
const operations = () => import("./page_operations.js");
const regular = () => import("./page_regular.js"), schemas = () => import("./page_schemas.js");

const Page = () => {
  const [first, ...rest] = route.value.path;
  if (!first) return html`<${OverviewPage} />`;
  if (first === "topics") return html`<${TopicsPage} />`;
  if (first === "topic" && rest.length === 3) {
    const [tenant, namespace, topic] = rest;
    return html`<${TopicPage} key=${rest.join("/")} ...${{ tenant, namespace, topic }} />`;
  }
  if (first === "regular" && rest.length === 4) {
    const [kind, tenant, namespace, topic] = rest;
    return html`<${Lazy} load=${regular} name="RegularPage" key=${rest.join("/")} ...${{ kind, tenant, namespace, topic }} />`;
  }
  if (first === "schemas" && rest.length === 4) {
    const [kind, tenant, namespace, topic] = rest;
    return html`<${Lazy} load=${schemas} name="SchemasPage" key=${`schemas ${rest.join("/")}`} ...${{ kind, tenant, namespace, topic }} />`;
  }
  if (first === "namespaces") return html`<${Lazy} load=${namespaces} name="NamespacesPage" key="namespaces" />`;
  if (first === "namespace" && rest.length === 2)
    return html`<${Lazy} load=${namespaces} name="NamespacePage" key=${`namespace ${rest.join("/")}`} tenant=${rest[0]} namespace=${rest[1]} />`;
  if (first === "brokers") return html`<${BrokersPage} />`;
  if (first === "metadata") return html`<${Lazy} load=${metadata} name="MetadataPage" key="metadata" />`;
  if (first === "operations") return html`<${Lazy} load=${operations} name="OperationsPage" key="operations" />`;
  return html`<${Empty} isPage title="There is no such page"><p><a href="#/">Overview</a></p><//>`;
};

const SignIn = () => {
  const given = useSignal(""), keep = useSignal(false);
  useEffect(() => { document.title = "Sign in · Anabranch"; }, []);
  const send = event => {
    event.preventDefault();
    if (given.value.trim()) signIn(given.value.trim(), keep.value);
  };
  return html`<form class="sign-in panel" onSubmit=${send}>
    <h1>Sign in</h1>
    ${token.value && html`<p class="failure" role="alert">The broker does not accept this token. It may have expired.</p>`}
    <label>Token <input type="password" autofocus autocomplete="off" value=${given.value} onInput=${event => { given.value = event.target.value; }} /></label>
    <label class="check"><input type="checkbox" onChange=${event => { keep.value = event.target.checked; }} /> keep for this tab</label>
    <p class="hint">The token stays in this page's memory. It is never stored in a cookie and never in the address.</p>
    <div class="buttons"><button class="primary">Sign in</button></div>
  </form>`;
};

const KEYS = [["g then o t p b m j", "overview, topics, namespaces, brokers, metadata, operations"], ["/", "filter"], ["t", "scale of the timeline"],
  ["↑ ↓", "between active segments"], ["Enter", "select a segment"], ["u", "UTC or local time"], ["d", "light, dark or as the system"], ["?", "this list"]];

const Help = ({ open }) => open.value && html`<div class="help panel" role="dialog" aria-label="keys"><h2>Keys</h2><dl>${KEYS.map(([key, text]) =>
  html`<dt><kbd>${key}</kbd></dt><dd>${text}</dd>`)}</dl><button onClick=${() => { open.value = false; }}>Close</button></div>`;

const App = () => {
  const help = useSignal(false);
  useEffect(() => {
    let going = 0;
    const pressed = event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select, dialog")) { if (event.key === "Escape") event.target.blur(); return; }
      const isGoing = Date.now() - going < 1200;
      going = 0;
      const page = isGoing && NAV.find(([, , key]) => key === event.key);
      if (page) location.hash = `#/${page[0]}`;
      else if (event.key === "g") going = Date.now();
      else if (event.key === "d") theme.value = NEXT_THEME[theme.value];
      else if (event.key === "u") zone.value = zone.value === "utc" ? "local" : "utc";
      else if (event.key === "?") help.value = !help.value;
      else if (event.key === "Escape") help.value = false;
      else if (event.key === "t" && route.value.path[0] === "topic")
        remember({ scale: SCALES[(SCALES.indexOf(route.value.query.scale ?? "time") + 1) % SCALES.length] });
      else if (event.key === "/") {
        const field = document.querySelector('[data-key="/"]');
        if (!field) return;
        field.focus();
        event.preventDefault();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const at = route.value.path[0] ?? "";
  const current = { topic: "topics", regular: "topics", schemas: "topics", namespace: "namespaces" }[at] ?? at;
  return html`
    <a class="skip" href="#main" onClick=${event => { event.preventDefault(); document.getElementById("main").focus(); }}>to the content</a>
    <aside><a class="brand" href="#/"><svg viewBox="0 0 24 24" aria-hidden="true"><path d="M2 12h5c4 0 4-7 8-7h7M7 12c4 0 4 7 8 7h7M7 12h15" /></svg> Anabranch</a>
      <nav aria-label="main">${NAV.map(([path, label]) => html`<a href=${link(path ? [path] : [])} aria-current=${current === path ? "page" : undefined}>${label}</a>`)}</nav>
      <div class="foot">
        <button class="quiet" onClick=${() => { theme.value = NEXT_THEME[theme.value]; }} title="d">theme: ${theme.value}</button>
        <button class="quiet" onClick=${() => { zone.value = zone.value === "utc" ? "local" : "utc"; }} title="u">time: ${zone.value}</button>
        <button class="quiet" onClick=${() => { help.value = !help.value; }} title="?">keys</button>
        <a href="/docs">HTTP API</a>
        ${token.value && html`<button class="quiet" onClick=${signOut}>sign out</button>`}
      </div></aside>
    <main id="main" tabindex="-1">${needsSignIn.value ? html`<${SignIn} />` : html`<${Page} />`}</main>
    <${Dialog} /><${Help} open=${help} />
    <div class="notice ${notice.value?.tone ?? ""}" role="status" aria-live="polite">${notice.value?.text}</div>`;
};

document.getElementById("app").replaceChildren();
render(h(App), document.getElementById("app"));
