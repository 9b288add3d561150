// A form that sends one message, or one again.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { asCurl } from "./api.js";
import { plain } from "./format.js";
import { asOutgoing, callOf, publish } from "./publishing.js";
import { Command, Failure, html, say } from "./ui.js";

/** `{name: value}` of lines `name=value`; throws with the line that is not like that. Pure. */
export const properties = text => Object.fromEntries(text.split("\n").filter(line => line.trim()).map(line => {
  const at = line.indexOf("=");
  if (at < 1) throw new Error(`a property is like name=value, not ${plain(line)}`);
  return [line.slice(0, at).trim(), line.slice(at + 1)];
}));

/** `full`: the topic; `partitions`: one of them is chosen; `draft`: a shown message to start from. */
export const Send = ({ full, partitions, draft, onSent }) => {
  const isOpen = useSignal(false), key = useSignal(""), payload = useSignal(""), lines = useSignal(""), partition = useSignal("0");
  const failed = useSignal(null), busy = useSignal(false);
  const binary = useSignal(null); // base64 of a payload that is no text, of a message that is sent again
  useEffect(() => {
    const again = draft.value && asOutgoing(draft.value);
    if (!again) return;
    isOpen.value = true;
    key.value = again.key ?? "";
    payload.value = again.payload ?? "";
    binary.value = again.payloadBase64 ?? null;
    lines.value = Object.entries(again.properties ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");
    draft.value = null;
    setTimeout(() => document.getElementById("send-payload")?.focus(), 0);
  }, [draft.value]);
  if (!isOpen.value) return html`<section class="panel"><h2>Send a message</h2><button onClick=${() => { isOpen.value = true; }}>Write one</button></section>`;
  const to = partitions ? `${full}-partition-${partition.value}` : full;
  const messages = () => {
    const made = properties(lines.value);
    return [{ ...(binary.value === null ? { payload: payload.value } : { payloadBase64: binary.value }), ...(key.value ? { key: key.value } : {}), ...(Object.keys(made).length ? { properties: made } : {}) }];
  };
  const send = async event => {
    event.preventDefault();
    busy.value = true;
    failed.value = null;
    try {
      const [one] = await publish(to, messages());
      if (one.error) throw Object.assign(new Error(one.error), { code: "refused" });
      say(`Stored as ${one.place}`, "good");
      onSent();
    } catch (error) { failed.value = { code: error.code ?? "not sent", reason: error.reason ?? error.message }; }
    busy.value = false;
  };
  let curl = "";
  try { const [name, params, body] = callOf(to, messages()); curl = asCurl(name, params, {}, body); } catch { /* shown when it is sent */ }
  const typed = signal => event => { signal.value = event.target.value; };
  return html`<section class="panel"><h2>Send a message</h2><form class="form" onSubmit=${send}>
    ${partitions > 0 && html`<label>partition <input type="number" min="0" max=${partitions - 1} required value=${partition.value} onInput=${typed(partition)} /></label>`}
    <label>key <input value=${key.value} autocomplete="off" spellcheck=${false} placeholder="none" onInput=${typed(key)} /></label>
    ${binary.value !== null ? html`<p class="hint">The payload is that of the message, ${atob(binary.value).length} bytes that are not text.${" "}
      <button type="button" id="send-payload" class="quiet" onClick=${() => { binary.value = null; }}>write text instead</button></p>` : html`<label>payload <textarea id="send-payload" rows="5" spellcheck=${false} value=${payload.value} onInput=${typed(payload)}></textarea></label>`}
    <label>properties <textarea rows="2" spellcheck=${false} placeholder="name=value, one a line" value=${lines.value} onInput=${typed(lines)}></textarea></label>
    <p class="hint">Consumers get it as any other message. Nothing can take it back.</p>
    <div class="buttons left"><button class="primary" disabled=${busy.value}>${busy.value ? "sending …" : "Send"}</button>
      <button type="button" onClick=${() => { isOpen.value = false; }}>Close</button></div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${curl && html`<details><summary>The same from a terminal</summary><${Command} text=${curl} /></details>`}</form></section>`;
};
