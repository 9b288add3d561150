// The journal of changes: what was done over HTTP on any broker, by whom, when, and with which outcome.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { plain, whole } from "./format.js";
import { Failure, Name, Time, every, html, remember, route } from "./ui.js";

export const OperationsPage = () => {
  const found = useSignal(null), failed = useSignal(null), { q = "" } = route.value.query;
  useEffect(() => {
    document.title = "Operations · Anabranch";
    return every(3000, async () => {
      try { found.value = await ask("operations", {}, { query: { count: 500 } }); failed.value = null; } catch (error) { failed.value = error; }
    });
  }, []);
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = (found.value ?? []).filter(one => words.every(word => `${one.what} ${one.role ?? ""} ${one.method} ${one.path} ${one.status} ${one.error} ${one.broker}`.toLowerCase().includes(word)));
  return html`<header class="page"><h1>Operations ${found.value && html`<span class="kind">${whole(rows.length)} of ${whole(found.value.length)}</span>`}</h1></header>
    <div class="controls"><input type="search" data-key="/" value=${q} placeholder="words of the call, role or outcome ( / )" aria-label="filter operations" onInput=${event => remember({ q: event.target.value })} /></div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${found.value && (found.value.length === 0 ? html`<p class="hint">Nothing was changed over HTTP since the brokers started. What the console, the command line and programs change appears here.</p>`
      : html`<section class="panel"><table><thead><tr><th>when</th><th>role</th><th>what</th><th>call</th><th>outcome</th><th>broker</th></tr></thead>
        <tbody>${rows.slice(0, 500).map(one => html`<tr key=${`${one.broker} ${one.atMs} ${one.path}`}><td><${Time} ms=${one.atMs} /></td>
          <td>${one.role === null ? "–" : html`<${Name} text=${one.role} />`}</td><td>${plain(one.what)}</td><td class="call"><code>${one.method} ${plain(one.path)}</code></td>
          <td>${one.status < 400 ? html`<span class="good">done</span>` : html`<span class="failure">${one.status} ${plain(one.error)}</span><br /><small>${plain(one.reason)}</small>`}</td>
          <td class="nowrap"><${Name} text=${one.broker} /></td></tr>`)}</tbody></table></section>`)}
    <p class="hint">Each broker keeps its newest 500 changes until it stops; its log has all of them.</p>`;
};
