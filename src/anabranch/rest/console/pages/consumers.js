// Who reads a subscription: sessions and segments of a scalable topic; connections of a regular one.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { bytes, plain, short, whole } from "./format.js";
import { Failure, Name, Time, every, html, remember } from "./ui.js";

const Close = () => html`<button class="quiet" onClick=${() => remember({ consumers: "" })}>Hide</button>`;

/** [{name, session or null, ids, backlog, waiting}]: each session, then the segments that no session reads. Pure. */
export const shares = found => {
  const backlogOf = ids => ids.reduce((sum, id) => sum + (found.segments[id]?.backlog ?? 0), 0);
  const waitingOf = ids => ids.filter(id => found.waiting[id]);
  const rows = found.sessions.map(one => ({ name: one.name, session: one, ids: one.segments, backlog: backlogOf(one.segments), waiting: waitingOf(one.segments) }));
  const read = new Set(found.sessions.flatMap(one => one.segments));
  const free = Object.entries(found.segments).filter(([id, one]) => !read.has(Number(id)) && !one.drained).map(([id]) => Number(id));
  return free.length ? [...rows, { name: null, session: null, ids: free, backlog: backlogOf(free), waiting: waitingOf(free) }] : rows;
};

export const ScalableConsumers = ({ params, subscription: name }) => {
  const found = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    found.value = null;
    return every(1000, async () => {
      try { found.value = await ask("subscription", { ...params, subscription: name }); failed.value = null; }
      catch (error) { failed.value = error; }
    });
  }, [name]);
  const one = found.value;
  return html`<section class="panel" aria-label="consumers"><h2>Consumers of <${Name} text=${name} /> <${Close} /></h2>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${one && (one.type === "QUEUE" ? html`<${Queue} one=${one} />` : html`<${Sessions} one=${one} />`)}
    ${one && html`<${Segments} one=${one} />`}</section>`;
};

const Sessions = ({ one }) => {
  const rows = shares(one);
  return html`<p class="hint">Every segment is read by one consumer, in order. Generation ${whole(one.generation)} of the assignment.</p>
    ${rows.length === 0 ? html`<p class="hint">No consumer, and nothing to read.</p>` : html`<table>
    <thead><tr><th>consumer</th><th>session</th><th>segments</th><th>of these wait</th><th class="number">backlog</th></tr></thead>
    <tbody>${rows.map(it => html`<tr key=${it.name ?? ""}><td>${it.name === null ? html`<em>nobody</em>` : html`<${Name} text=${it.name} />`}</td>
      <td>${it.session === null ? "–" : it.session.connected ? "connected" : html`<span class="warn">in its grace period: it keeps its segments if it comes back</span>`}</td>
      <td>${it.ids.join(", ") || "none yet"}</td><td>${it.waiting.join(", ") || "–"}</td><td class="number">${whole(it.backlog)}</td></tr>`)}</tbody></table>`}`;
};

const Queue = ({ one }) => html`<p class="hint">All consumers of a queue read all segments; ${whole(
  Object.values(one.segments).reduce((most, it) => Math.max(most, it.consumers), 0))} are connected.</p>`;

const Segments = ({ one }) => {
  const open = Object.entries(one.segments).filter(([, it]) => !it.drained);
  return html`<h3>Segments that are not drained</h3>${open.length === 0 ? html`<p class="hint">None.</p>` : html`<table>
    <thead><tr><th class="number">segment</th><th>read by</th><th>acknowledged up to</th><th class="number">backlog</th><th>waits for</th><th class="number">connections</th></tr></thead>
    <tbody>${open.slice(0, 500).map(([id, it]) => html`<tr key=${id}><td class="number">${id}</td>
      <td>${it.consumer === null ? "–" : html`<${Name} text=${it.consumer} />`}</td><td><code>${it.position === null ? "beginning" : it.position.endsWith(":-1") ? `before ${it.position.slice(0, -2)}0` : it.position}</code></td>
      <td class="number">${it.backlog === null ? "unknown" : whole(it.backlog)}</td>
      <td>${one.waiting[id] ? `segment ${one.waiting[id].join(", ")} to be acknowledged` : "–"}</td><td class="number">${whole(it.consumers)}</td></tr>`)}</tbody></table>`}
    ${open.length > 500 && html`<p class="hint">The first 500 of ${whole(open.length)}.</p>`}`;
};

export const RegularConsumers = ({ name, one }) => {
  const all = one.consumers ?? [], ranges = all.some(it => it.keyHashRangeArrays);
  return html`<section class="panel" aria-label="consumers"><h2>Consumers of <${Name} text=${name} /> <${Close} /></h2>
    ${all.length === 0 ? html`<p class="hint">None is connected.</p>` : html`<table>
    <thead><tr><th>consumer</th><th>address</th><th>client</th><th>since</th><th class="number">unacknowledged</th><th class="number">redelivered msg/s</th>
      <th class="number">out msg/s</th><th class="number">out</th><th class="number">permits</th><th>last acknowledged</th>${ranges && html`<th>hashes</th>`}</tr></thead>
    <tbody>${all.map((it, index) => html`<tr key=${`${it.consumerName} ${it.address} ${index}`}>
      <td><${Name} text=${it.consumerName ?? ""} /> ${one.activeConsumerName === it.consumerName && html`<span class="kind">active</span>`}</td>
      <td><code>${plain(it.address ?? "–")}</code></td><td>${plain(it.clientVersion ?? "–")}</td><td><${Time} ms=${Date.parse(it.connectedSince)} /></td>
      <td class="number ${it.blockedConsumerOnUnackedMsgs ? "warn" : ""}">${whole(it.unackedMessages)}${it.blockedConsumerOnUnackedMsgs ? ", blocked" : ""}</td>
      <td class="number">${short(it.msgRateRedeliver)}</td><td class="number">${short(it.msgRateOut)}</td><td class="number">${bytes(it.bytesOutCounter)}</td>
      <td class="number">${whole(it.availablePermits)}</td><td><${Time} ms=${it.lastAckedTimestamp} /></td>
      ${ranges && html`<td>${whole((it.keyHashRangeArrays ?? []).reduce((sum, [from, to]) => sum + to - from + 1, 0))} of 65,536</td>`}</tr>`)}</tbody></table>`}</section>`;
};
