// Ledgers and cursors of a regular topic: what is stored, and where each subscription is.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { bytes, plain, whole } from "./format.js";
import { Failure, Name, Time, every, html, remember, route } from "./ui.js";

export const Ledgers = ({ params }) => route.value.query.ledgers
  ? html`<${Open} params=${params} />`
  : html`<section class="panel"><h2>Ledgers and cursors</h2><button onClick=${() => remember({ ledgers: "1" })}>Show them</button></section>`;

const Open = ({ params }) => {
  const found = useSignal(null), failed = useSignal(null);
  useEffect(() => every(5000, async () => {
    try { found.value = await ask("internalStats", params); failed.value = null; } catch (error) { failed.value = error; }
  }), []);
  const one = found.value, cursors = Object.entries(one?.cursors ?? {});
  return html`<section class="panel" aria-label="ledgers"><h2>Ledgers and cursors <button class="quiet" onClick=${() => remember({ ledgers: "" })}>Hide</button></h2>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${one && html`<p class="hint">${whole(one.numberOfEntries)} entries, ${bytes(one.totalSize)}; state ${plain(one.state)}; last confirmed <code>${plain(one.lastConfirmedEntry)}</code>.</p>
    <table><thead><tr><th class="number">ledger</th><th class="number">entries</th><th class="number">size</th><th>closed</th></tr></thead><tbody>
      ${one.ledgers.slice(-200).map(it => html`<tr key=${it.ledgerId}><td class="number">${it.ledgerId}</td><td class="number">${whole(it.entries)}</td><td class="number">${bytes(it.size)}</td>
        <td>${it.timestamp > 0 ? html`<${Time} ms=${it.timestamp} />` : "open"}</td></tr>`)}</tbody></table>
    ${one.ledgers.length > 200 && html`<p class="hint">The newest 200 of ${whole(one.ledgers.length)}.</p>`}
    <h3>Cursors</h3>${cursors.length === 0 ? html`<p class="hint">None.</p>` : html`<table><thead><tr><th>subscription</th><th>mark-delete position</th><th>acknowledged behind it</th><th>state</th></tr></thead>
      <tbody>${cursors.map(([name, it]) => html`<tr key=${name}><td><${Name} text=${name} /></td><td><code>${plain(it.markDeletePosition)}</code></td>
        <td>${plain(it.individuallyDeletedMessages || "–").slice(0, 200)}</td><td>${plain(it.state ?? "–")}</td></tr>`)}</tbody></table>`}`}</section>`;
};
