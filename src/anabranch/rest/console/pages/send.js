// A form that sends one message to a regular topic, or one again.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask, asCurl } from "./api.js";
import { plain } from "./format.js";
import { Command, Failure, html, say } from "./ui.js";

/** `{name: value}` of lines `name=value`; throws with the line that is not like that. Pure. */
export const properties = text => Object.fromEntries(text.split("\n").filter(line => line.trim()).map(line => {
  const at = line.indexOf("=");
  if (at < 1) throw new Error(`a property is like name=value, not ${plain(line)}`);
  return [line.slice(0, at).trim(), line.slice(at + 1)];
}));

export const Send = ({ params, partitions, draft, onSent }) => {
  const isOpen = useSignal(false), key = useSignal(""), payload = useSignal(""), lines = useSignal(""), partition = useSignal("0");
  const failed = useSignal(null), busy = useSignal(false);
  useEffect(() => {
    const again = draft.value;
    if (!again) return;
    isOpen.value = true;
    key.value = again.key ?? "";
    payload.value = again.payload ?? "";
    lines.value = Object.entries(again.properties).map(([name, value]) => `${name}=${value}`).join("\n");
    draft.value = null;
    setTimeout(() => document.getElementById("send-payload")?.focus(), 0);
  }, [draft.value]);
  if (!isOpen.value) return html`<section class="panel"><h2>Send a message</h2><button onClick=${() => { isOpen.value = true; }}>Write one</button></section>`;
  const to = { domain: "persistent", ...params, topic: partitions ? `${params.topic}-partition-${partition.value}` : params.topic };
  const body = () => {
    const made = properties(lines.value);
    return { messages: [{ payload: payload.value, ...(key.value ? { key: key.value } : {}), ...(Object.keys(made).length ? { properties: made } : {}) }] };
  };
  const send = async event => {
    event.preventDefault();
    busy.value = true;
    failed.value = null;
    try {
      const [one] = (await ask("publish", to, { body: body() })).messagePublishResults;
      if (one.errorCode) throw Object.assign(new Error(one.errorMsg), { code: "refused" });
      say(`Stored as ${one.messageId}`, "good");
      onSent();
    } catch (error) { failed.value = { code: error.code ?? "not sent", reason: error.reason ?? error.message }; }
    busy.value = false;
  };
  let curl = "";
  try { curl = asCurl("publish", to, {}, body()); } catch { /* shown when it is sent */ }
  const typed = signal => event => { signal.value = event.target.value; };
  return html`<section class="panel"><h2>Send a message</h2><form class="form" onSubmit=${send}>
    ${partitions > 0 && html`<label>partition <input type="number" min="0" max=${partitions - 1} required value=${partition.value} onInput=${typed(partition)} /></label>`}
    <label>key <input value=${key.value} autocomplete="off" spellcheck=${false} placeholder="none" onInput=${typed(key)} /></label>
    <label>payload <textarea id="send-payload" rows="5" spellcheck=${false} value=${payload.value} onInput=${typed(payload)}></textarea></label>
    <label>properties <textarea rows="2" spellcheck=${false} placeholder="name=value, one a line" value=${lines.value} onInput=${typed(lines)}></textarea></label>
    <p class="hint">Consumers get it as any other message. Nothing can take it back.</p>
    <div class="buttons left"><button class="primary" disabled=${busy.value}>${busy.value ? "sending …" : "Send"}</button>
      <button type="button" onClick=${() => { isOpen.value = false; }}>Close</button></div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${curl && html`<details><summary>The same from a terminal</summary><${Command} text=${curl} /></details>`}</form></section>`;
};
