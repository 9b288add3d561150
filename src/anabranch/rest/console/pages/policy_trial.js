// Try-out of an auto-scale policy: what it would do with the topic now, without doing it; then set it.

import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { plain, quoted } from "./format.js";
import { Decision } from "./page_topic.js";
import { Failure, asked, html, remember } from "./ui.js";

const POINTS = ["midpoint", "load"];

/** splitMsgRateInThreshold → "split msg rate in threshold"; the option of the command line has hyphens. */
const words = (name, between) => name.replace(/[A-Z]/g, letter => `${between}${letter.toLowerCase()}`);

const typed = (text, like) => (typeof like === "number" ? Number(text) : text);

export const PolicyTrial = ({ params, full, policy }) => {
  const changed = useSignal({}), answer = useSignal(null), failed = useSignal(null), before = useSignal(policy);
  const start = before.value; // not of the newest tick: fields must not change while somebody types
  const change = (name, value) => {
    const rest = { ...changed.value };
    if (value === start[name]) delete rest[name]; else rest[name] = value;
    changed.value = rest;
    answer.value = null;
  };
  const check = async event => {
    event.preventDefault();
    try { answer.value = await ask("tryPolicy", params, { body: changed.value }); failed.value = null; }
    catch (error) { failed.value = error; answer.value = null; }
  };
  const set = async () => {
    try {
      const own = await ask("policy", params);
      asked.value = setting(params, full, start, changed.value, { ...own, ...changed.value });
    } catch (error) { failed.value = error; }
  };
  const count = Object.keys(changed.value).length;
  return html`<h3>Try a policy</h3><p class="hint">Change values and look at what auto-scaling would do with the topic now. Nothing is done, and nothing is stored until you set it.</p>
    <form onSubmit=${check}><div class="fields">${Object.entries(start).map(([name, value]) => html`<label key=${name} class=${name in changed.value ? "changed" : ""}>${words(name, " ")}
      ${typeof value === "boolean" ? html`<input type="checkbox" checked=${changed.value[name] ?? value} onChange=${event => change(name, event.target.checked)} />`
        : typeof value === "string" ? html`<select value=${changed.value[name] ?? value} onChange=${event => change(name, event.target.value)}>${POINTS.map(one => html`<option value=${one} selected=${one === (changed.value[name] ?? value)}>${one}</option>`)}</select>`
          : html`<input type="number" min="0" step="any" required value=${changed.value[name] ?? value} onInput=${event => change(name, typed(event.target.value, value))} />`}</label>`)}</div>
      <div class="buttons left"><button class="primary">Try</button>
        <button type="button" disabled=${count === 0} onClick=${set}>Set ${count} value${count === 1 ? "" : "s"} for this topic …</button>
        <button type="button" onClick=${() => remember({ policy: "" })}>Hide</button></div></form>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${answer.value && html`<p class="verdict" role="status">It would do now: <${Decision} one=${answer.value} /></p>`}`;
};

const setting = (params, full, before, changed, body) => ({
  title: "Set the auto-scale policy of this topic", verb: "Set", route: "setPolicy", params, body,
  cli: `anabranch admin scalable-topics set-auto-scale-policy ${quoted(full)}${Object.entries(body).map(([name, value]) => ` --${words(name, "-")} ${value}`).join("")}`,
  text: [
    ...Object.entries(changed).map(([name, value]) => `${words(name, " ")}: ${plain(before[name])} → ${plain(value)}`),
    "The other values come from the namespace and the broker, as now. Splits and merges follow it from the next evaluation on.",
  ],
  done: "The policy is set",
});
