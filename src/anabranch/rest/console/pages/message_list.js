// The list of messages: the newest ones live, or from a time or position on; filter, decoding, sending again.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { decoded } from "./avro.js";
import { bytes, clock, moment, plain, visible, whole } from "./format.js";
import { admitted, bytesOf, hexDump, indented, placeOf } from "./messages.js";
import { ORIGIN, asOutgoing, publish } from "./publishing.js";
import { Failure, Name, asked, every, html, isUtc, momentOf, remember, route, say } from "./ui.js";

const COUNT = 50, SHOWN_MAX = 1000, PREVIEW_BYTES = 4096, WHOLE_BYTES_MAX = 1 << 20;
const WAYS = [["", "newest, live"], ["start", "from the beginning"], ["time", "from a time"], ["place", "from a position"]];

/** The query of the first page of a way to look; null: something is missing. Pure. */
export const firstPage = ({ look, at, segment }) => {
  if (look === "start") return { time: 0 };
  if (look === "time") return at ? { time: at } : null;
  return /^\d+:\d+(:\d+)?$/.test(at ?? "") ? { position: at, segment: segment || undefined } : null;
};

export const MessageList = ({ params, kind, onAgain, sent }) => {
  const found = useSignal([]), failed = useSignal(null), next = useSignal(null), isEnd = useSignal(true), isRead = useSignal(false);
  const paused = useSignal(false), text = useSignal(""), opened = useSignal(null), isHex = useSignal(false), schemas = useSignal(null);
  const names = kind === "scalable" ? ["messages", "messagePage"] : ["regularMessages", "regularMessagePage"];
  const { look = "", at, segment } = route.value.query, first = look ? firstPage({ look, at, segment }) : null;
  const more = async () => {
    const query = next.value === null ? first : { after: next.value, segment: first.segment };
    const page = await ask(names[1], params, { query: { count: COUNT, ...query } });
    found.value = [...found.value, ...page.messages].slice(-SHOWN_MAX);
    next.value = page.next;
    isEnd.value = page.isEnd;
  };
  const read = async () => {
    try {
      if (!look) found.value = await ask(names[0], params, { query: { count: COUNT } });
      else if (first && (next.value === null || isEnd.value)) await more();
      isRead.value = true;
      failed.value = null;
    } catch (error) { failed.value = error; }
    if (schemas.value === null && found.value.some(one => one.schemaVersion !== null)) {
      const all = (await ask("schemas", params).catch(() => ({ getSchemaResponses: [] }))).getSchemaResponses;
      schemas.value = new Map(all.map(one => [one.version, one]));
    }
  };
  useEffect(() => {
    [found.value, next.value, isEnd.value, isRead.value] = [[], null, true, false];
    return every(2000, async () => { if (!paused.value || !isRead.value) await read(); });
  }, [look ? 0 : sent, look, at, segment]); // pages go on by themselves at the end
  const shown = admitted(found.value, text.value), dead = shown.filter(one => one.properties[ORIGIN] && canBeSent(one));
  const context = { params, kind, isHex: isHex.value, onAgain, schemas: schemas.value };
  return html`<section class="panel messages"><h2>Messages</h2>
    <div class="controls">
      <label>look <select value=${look} onChange=${event => remember({ look: event.target.value, at: "", segment: "" })}>
        ${WAYS.filter(([way]) => way !== "place" || kind !== "partitioned").map(([way, words]) => html`<option value=${way} selected=${way === look}>${words}</option>`)}</select></label>
      <${Where} look=${look} kind=${kind} />
      <input type="search" value=${text.value} placeholder="words, key:K, segment:N" aria-label="filter messages" onInput=${event => { text.value = event.target.value; }} />
      <button aria-pressed=${paused.value} onClick=${() => { paused.value = !paused.value; }}>${paused.value ? "Resume" : "Pause"}</button>
      <button onClick=${() => remember({ messages: "", look: "", at: "" })}>Hide</button>
      <button aria-pressed=${isHex.value} onClick=${() => { isHex.value = !isHex.value; }}>${isHex.value ? "Show text" : "Show bytes"}</button>
      <span class="hint">${!isRead.value ? (look && !first ? "" : "reading …") : look ? `${shown.length} of ${found.value.length} read; nothing is acknowledged`
        : `${shown.length} of the newest ${found.value.length}; nothing is acknowledged`}</span>
    </div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${onAgain && dead.length > 0 && html`<p><button onClick=${() => { asked.value = returning(context, dead); }}>Send ${whole(dead.length)} dead letter${dead.length === 1 ? "" : "s"} back …</button></p>`}
    ${shown.length > 0 && html`<div class="list" tabindex="0" aria-label="messages"><table><thead><tr><th>published</th><th>id</th>${kind === "scalable" && html`<th class="number">segment</th>`}<th>key</th><th class="wide">payload</th><th class="number">size</th></tr></thead>
    <tbody>${shown.map(one => html`<${Row} key=${nameOf(one)} one=${one} context=${context} isOpen=${opened.value === nameOf(one)}
      onToggle=${() => { opened.value = opened.value === nameOf(one) ? null : nameOf(one); }} />`)}</tbody></table></div>`}
    ${look && isRead.value && html`<div class="buttons left"><button disabled=${isEnd.value} onClick=${() => more().catch(error => { failed.value = error; })}>Read on</button>
      <span class="hint">${isEnd.value ? "This is the end; what comes next appears here." : "There are more."}</span></div>`}
  </section>`;
};

const nameOf = one => `${one.segment}/${one.partition}/${one.id}`;

const Where = ({ look, kind }) => {
  const { at = "", segment = "" } = route.value.query;
  if (look === "time")
    return html`<label>from <input type="datetime-local" step="1" aria-label="time" onChange=${event => remember({ at: momentOf(event.target.value) ?? "" })} /></label>
      ${at && html`<span class="hint">${moment(Number(at), isUtc.value)}</span>`}`;
  if (look === "place")
    return html`${kind === "scalable" && html`<label>segment <input class="small" inputmode="numeric" value=${segment} onChange=${event => remember({ segment: event.target.value.trim() })} /></label>`}
      <label>position <input class="small" value=${at} placeholder="ledger:entry" onChange=${event => remember({ at: event.target.value.trim() })} /></label>`;
  return null;
};

/** {text} of an Avro payload, {why} it cannot be decoded, or null: it is not Avro. */
const avroOf = (one, schemas) => {
  const schema = one.schemaVersion === null ? null : schemas?.get(one.schemaVersion);
  if (schema?.type !== "AVRO" || one.payload === null || one.unreadable || one.size > PREVIEW_BYTES) return null;
  try { return { text: decoded(schema.data, bytesOf(one)) }; } catch (error) { return { why: error.message }; }
};

const previewOf = (one, avro) => one.unreadable ? `(${one.unreadable})` : avro?.text ? plain(avro.text.slice(0, 160)) : one.payload === null ? "(no value)"
  : one.payload !== undefined ? plain(one.payload.slice(0, 160)) : `(${one.size} bytes that are not text)`;

const Facts = ({ one, kind }) => html`<dl class="facts"><dt>id</dt><dd><code>${one.id}</code> ${placeOf(one.id)}</dd>
  ${kind === "scalable" && html`<dt>segment</dt><dd>${one.segment}</dd>`}
  ${one.partition !== null && kind === "partitioned" && html`<dt>partition</dt><dd>${one.partition}</dd>`}
  <dt>key</dt><dd>${one.key === null ? "none" : html`<${Name} text=${one.key} />`}</dd>
  <dt>published</dt><dd>${moment(one.publishTimeMs, false)} (${moment(one.publishTimeMs, true)})</dd>
  ${one.schemaVersion !== null && html`<dt>schema</dt><dd>version ${one.schemaVersion}</dd>`}
  <dt>size</dt><dd>${whole(one.size)} bytes</dd></dl>`;

const Row = ({ one: given, context, isOpen, onToggle }) => {
  const { kind, isHex, onAgain, schemas } = context, full = useSignal(null), failed = useSignal(null);
  const one = full.value ?? given, avro = avroOf(one, schemas), isCut = one === given && one.size > PREVIEW_BYTES;
  const fetchWhole = async () => {
    try { full.value = await wholeOf(context, given); failed.value = null; } catch (error) { failed.value = error; }
  };
  return html`<tr><td title=${moment(one.publishTimeMs, isUtc.value)}>${clock(one.publishTimeMs, isUtc.value)}</td><td><code>${one.id}</code></td>
    ${kind === "scalable" && html`<td class="number">${one.segment}</td>`}
    <td>${one.key === null ? "–" : html`<${Name} text=${one.key} />`}</td>
    <td><button class="preview" aria-expanded=${isOpen} onClick=${onToggle}>${previewOf(one, avro)}</button></td><td class="number">${bytes(one.size)}</td></tr>
  ${isOpen && html`<tr class="detail"><td colspan=${kind === "scalable" ? 6 : 5}>
    <${Facts} one=${one} kind=${kind} />
    ${avro?.why && html`<p class="warn">Version ${one.schemaVersion} of the schema does not fit: ${plain(avro.why)}.</p>`}
    ${one.unreadable ? html`<p class="hint">${plain(one.unreadable)}</p>` : html`<pre tabindex="0">${isHex || (one.payloadBase64 !== undefined && !avro?.text) ? hexDump(bytesOf(one)) : visible(indented(avro?.text ?? one.payload ?? ""))}</pre>`}
    ${isCut && html`<p class="hint">The first 4 KiB of ${bytes(one.size)}.${" "}${one.size <= WHOLE_BYTES_MAX && html`<button class="quiet" onClick=${fetchWhole}>Show all of it</button>`}</p>`}
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${Object.keys(one.properties).length > 0 && html`<table><tbody>${Object.entries(one.properties).map(([name, value]) =>
      html`<tr><td><${Name} text=${name} /></td><td><${Name} text=${value} /></td></tr>`)}</tbody></table>`}
    ${onAgain && canBeSent(one) && html`<div class="buttons left"><button onClick=${async () => {
        try { onAgain(await wholeOf(context, one)); } catch (error) { failed.value = error; }
      }}>Send it again …</button>
      ${one.properties[ORIGIN] && html`<button onClick=${() => { asked.value = returning(context, [given]); }}>Send it back …</button>`}</div>`}
  </td></tr>`}`;
};

const canBeSent = one => !one.unreadable && one.payload !== null && one.size <= WHOLE_BYTES_MAX;

/** The message with its whole payload. */
const wholeOf = async ({ params, kind }, one) => {
  if ((one.payload?.length ?? 0) === one.size || one.size <= PREVIEW_BYTES) return one;
  const at = kind === "partitioned" ? { ...params, topic: `${params.topic}-partition-${one.partition}` } : params;
  const query = { count: 1, position: one.id, preview: WHOLE_BYTES_MAX, segment: one.segment ?? undefined };
  const [found] = (await ask(kind === "scalable" ? "messagePage" : "regularMessagePage", at, { query })).messages;
  if (found?.id !== one.id) throw Object.assign(new Error("this message is not stored any more"), { code: "gone" });
  return { ...found, partition: one.partition };
};

const returning = (context, dead) => {
  const targets = new Map();
  for (const one of dead) targets.set(one.properties[ORIGIN], [...(targets.get(one.properties[ORIGIN]) ?? []), one]);
  return {
    title: dead.length === 1 ? "Send this dead letter back" : "Send dead letters back", verb: "Send back",
    text: [
      ...[...targets].map(([topic, some]) => `${whole(some.length)} message${some.length === 1 ? "" : "s"} to ${plain(topic)}, as new messages at its end.`),
      "All subscriptions of that topic get them, also those that had read them. Here they stay until retention deletes them.",
    ],
    run: async () => {
      for (const [topic, some] of targets) {
        const whole = await Promise.all(some.map(one => wholeOf(context, one)));
        const bad = (await publish(topic, whole.map(asOutgoing))).filter(one => one.error);
        if (bad.length) throw Object.assign(new Error(`${bad.length} of ${some.length} were not stored: ${bad[0].error}`), { code: "refused" });
      }
      say(`${dead.length} sent back`, "good");
    },
    done: `${whole(dead.length)} sent back`,
  };
};
