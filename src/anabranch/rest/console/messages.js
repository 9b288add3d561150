// The newest messages of a topic, live until paused: filter, text or hexadecimal, properties.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { bytes, clock, moment, plain, visible, whole } from "./format.js";
import { Failure, Name, every, html, isUtc, remember, route } from "./ui.js";

const COUNT = 50, PREVIEW_BYTES = 4096;

const bytesOf = one => one.payloadBase64 !== undefined
  ? Uint8Array.from(atob(one.payloadBase64), char => char.charCodeAt(0)) : new TextEncoder().encode(one.payload ?? "");

/** 16 bytes a line: offset, hexadecimal, text. Pure. */
export const hexDump = data => {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.slice(at, at + 16)];
    const codes = part.map(byte => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(4, "0")}  ${codes}  ${part.map(byte => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
};

/** Indents JSON without reading its values, so that numbers of any size stay what they are. Other text is unchanged. */
export const indented = text => {
  try { JSON.parse(text); } catch { return text; }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let level = 0, out = "";
  const line = () => `\n${"  ".repeat(level)}`;
  tokens.forEach((token, index) => {
    const before = tokens[index - 1], next = tokens[index + 1];
    if (token === "{" || token === "[") { level++; out += token + (next === "}" || next === "]" ? "" : line()); }
    else if (token === "}" || token === "]") { level--; out += (before === "{" || before === "[" ? "" : line()) + token; }
    else if (token === ",") out += `,${line()}`;
    else out += token === ":" ? ": " : token;
  });
  return out;
};

/** Messages that a filter admits: words of key, payload, id or properties; `key:K` and `segment:N` exactly. Pure. */
export const admitted = (messages, text) => {
  const words = text.split(/\s+/).filter(Boolean);
  return messages.filter(one => words.every(word => {
    if (word.startsWith("key:")) return one.key === word.slice(4);
    if (word.startsWith("segment:")) return String(one.segment) === word.slice(8);
    return `${one.id} ${one.key ?? ""} ${one.payload ?? ""} ${JSON.stringify(one.properties)}`.toLowerCase().includes(word.toLowerCase());
  }));
};

/** Read only when it is wanted: every look reads the ends of all segments. `sent`: another value reads at once. */
export const Messages = ({ params, kind, onAgain, sent }) => route.value.query.messages
  ? html`<${Open} params=${params} kind=${kind} onAgain=${onAgain} sent=${sent} />`
  : html`<section class="panel messages"><h2>Newest messages</h2><button onClick=${() => remember({ messages: "1" })}>Show them</button></section>`;

const Open = ({ params, kind, onAgain, sent }) => {
  const found = useSignal(null), failed = useSignal(null), paused = useSignal(false), text = useSignal(""), opened = useSignal(null), isHex = useSignal(false);
  useEffect(() => every(2000, async () => {
    if (paused.value) return;
    try { found.value = await ask(kind === "scalable" ? "messages" : "regularMessages", params, { query: { count: COUNT } }); failed.value = null; }
    catch (error) { failed.value = error; }
  }), [sent]);
  const shown = admitted(found.value ?? [], text.value);
  return html`<section class="panel messages"><h2>Newest messages</h2>
    <div class="controls">
      <input type="search" value=${text.value} placeholder="words, key:K, segment:N" aria-label="filter messages" onInput=${event => { text.value = event.target.value; }} />
      <button aria-pressed=${paused.value} onClick=${() => { paused.value = !paused.value; }}>${paused.value ? "Resume" : "Pause"}</button>
      <button onClick=${() => remember({ messages: "" })}>Hide</button>
      <button aria-pressed=${isHex.value} onClick=${() => { isHex.value = !isHex.value; }}>${isHex.value ? "Show text" : "Show bytes"}</button>
      <span class="hint">${found.value ? `${shown.length} of the newest ${found.value.length}; nothing is acknowledged` : "reading …"}</span>
    </div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${shown.length > 0 && html`<div class="list" tabindex="0" aria-label="messages"><table><thead><tr><th>published</th><th>id</th>${kind === "scalable" && html`<th class="number">segment</th>`}<th>key</th><th class="wide">payload</th><th class="number">size</th></tr></thead>
    <tbody>${shown.map(one => html`<${Row} key=${`${one.segment}/${one.id}`} one=${one} kind=${kind} isHex=${isHex.value} onAgain=${onAgain} isOpen=${opened.value === `${one.segment}/${one.id}`}
      onToggle=${() => { const name = `${one.segment}/${one.id}`; opened.value = opened.value === name ? null : name; }} />`)}</tbody></table></div>`}
  </section>`;
};

const previewOf = one => one.unreadable ? `(${one.unreadable})` : one.payload === null ? "(no value)"
  : one.payload !== undefined ? plain(one.payload.slice(0, 160)) : `(${one.size} bytes that are not text)`;

/** Its place in the log, in words: "5:3:0" is message 0 of the batch that is entry 3 of ledger 5. Pure. */
export const placeOf = id => {
  const [ledger, entry, index] = id.split(":");
  return `ledger ${ledger}, entry ${entry}${index === undefined ? "" : `, message ${index} of its batch`}`;
};

const Facts = ({ one, kind }) => html`<dl class="facts"><dt>id</dt><dd><code>${one.id}</code> ${placeOf(one.id)}</dd>
  ${kind === "scalable" && html`<dt>segment</dt><dd>${one.segment}</dd>`}
  <dt>key</dt><dd>${one.key === null ? "none" : html`<${Name} text=${one.key} />`}</dd>
  <dt>published</dt><dd>${moment(one.publishTimeMs, false)} (${moment(one.publishTimeMs, true)})</dd>
  <dt>size</dt><dd>${whole(one.size)} bytes</dd></dl>`;

const Row = ({ one, kind, isHex, isOpen, onToggle, onAgain }) => html`
  <tr><td title=${moment(one.publishTimeMs, isUtc.value)}>${clock(one.publishTimeMs, isUtc.value)}</td><td><code>${one.id}</code></td>
    ${kind === "scalable" && html`<td class="number">${one.segment}</td>`}
    <td>${one.key === null ? "–" : html`<${Name} text=${one.key} />`}</td>
    <td><button class="preview" aria-expanded=${isOpen} onClick=${onToggle}>${previewOf(one)}</button></td><td class="number">${bytes(one.size)}</td></tr>
  ${isOpen && html`<tr class="detail"><td colspan=${kind === "scalable" ? 6 : 5}>
    <${Facts} one=${one} kind=${kind} />
    ${one.unreadable ? html`<p class="hint">${plain(one.unreadable)}</p>` : html`<pre>${isHex || one.payloadBase64 !== undefined ? hexDump(bytesOf(one)) : visible(indented(one.payload ?? ""))}</pre>`}
    ${one.size > PREVIEW_BYTES && html`<p class="hint">The first 4 KiB of ${bytes(one.size)}.</p>`}
    ${Object.keys(one.properties).length > 0 && html`<table><tbody>${Object.entries(one.properties).map(([name, value]) =>
      html`<tr><td><${Name} text=${name} /></td><td><${Name} text=${value} /></td></tr>`)}</tbody></table>`}
    ${onAgain && typeof one.payload === "string" && one.size <= PREVIEW_BYTES && html`<button onClick=${() => onAgain(one)}>Send it again …</button>`}
  </td></tr>`}`;
