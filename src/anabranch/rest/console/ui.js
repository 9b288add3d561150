// Small parts that all pages use: elements, names, tables, dialogs, notices, settings of this browser.

import htm from "./htm.js";
import { h } from "./preact.js";
import { useEffect, useLayoutEffect, useRef } from "./hooks.js";
import { computed, signal, useSignal } from "./signals.js";
import { ask, asCurl, request } from "./api.js";
import { ago, moment, plain } from "./format.js";

export const html = htm.bind(h);

// Settings of this browser. They hold no secrets, so local storage is right for them.
export const stored = (name, initial) => {
  const made = signal(localStorage.getItem(`anabranch-${name}`) ?? initial);
  made.subscribe(value => localStorage.setItem(`anabranch-${name}`, value));
  return made;
};
export const theme = stored("theme", "system");
export const zone = stored("zone", "local");
export const isUtc = computed(() => zone.value === "utc");
theme.subscribe(value => { document.documentElement.dataset.theme = value; });

export const now = signal(Date.now());
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);

/** The state of the URL: `#/topics?q=a` is {path: ["topics"], query: {q: "a"}}. */
const parsed = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decodeURIComponent),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
};
export const route = signal(parsed());
addEventListener("hashchange", () => { route.value = parsed(); });

export const link = (path, query = {}) => {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
};
/** Changes the query of the URL without a new entry in the history. */
export const remember = query => {
  const { path, query: old } = route.value;
  history.replaceState(null, "", link(path, { ...old, ...query }));
  route.value = parsed();
};

/** A name that others chose: isolated from the direction of its surroundings, invisible characters shown. */
export const Name = ({ text, short }) => {
  const whole = plain(text);
  return html`<bdi class="name" title=${whole}>${short ? plain(short) : whole}</bdi>`;
};

export const Time = ({ ms }) =>
  html`<time title=${moment(ms, isUtc.value)}>${ago(ms, now.value)}</time>`;

export const Chip = ({ label, children, tone }) =>
  html`<div class="chip ${tone ?? ""}"><span>${label}</span><strong>${children}</strong></div>`;

/** Instead of content; `isPage`: there is nothing else on the page. */
export const Empty = ({ title, isPage, children }) =>
  html`<div class="empty">${isPage ? html`<h1>${title}</h1>` : html`<h2>${title}</h2>`}${children}</div>`;

export const Failure = ({ error }) => html`<p class="failure" role="alert">
  <strong>${error.code}</strong> ${plain(error.reason ?? error.message)}</p>`;

export const Command = ({ text }) => html`<div class="command"><code>${text}</code>
  <button class="quiet" onClick=${event => {
    navigator.clipboard?.writeText(text);
    event.currentTarget.textContent = "copied";
  }}>copy</button></div>`;

/** A part that is read when it is first shown: `load` imports its module, `name` is what that exports. */
export const Lazy = ({ load, name, ...props }) => {
  const found = useSignal(null), failed = useSignal(null), tries = useSignal(0);
  useEffect(() => {
    load().then(module => { found.value = { Part: module[name] }; failed.value = null; }, error => { failed.value = error; });
  }, [tries.value]);
  if (found.value) return html`<${found.value.Part} ...${props} />`;
  return failed.value
    ? html`<div class="failure" role="alert"><p>This part of the console could not be loaded. Reload the page if it stays so.</p>
        <button onClick=${() => { tries.value++; }}>Try again</button></div>` : html`<p class="hint">reading …</p>`;
};

/** The value of a field for a date and time as ms since 1970, in the time zone that the page shows; null: none. */
export const momentOf = text => {
  const ms = text ? Date.parse(isUtc.value ? `${text}Z` : text) : NaN;
  return Number.isNaN(ms) ? null : ms;
};

/** Calls `work` now and every `ms` while the tab is visible; the result is its clean-up. */
export const every = (ms, work) => {
  let ended = false, timer = 0;
  const turn = async () => {
    if (ended) return;
    if (!document.hidden) await work();
    if (!ended) timer = setTimeout(turn, ms);
  };
  turn();
  return () => { ended = true; clearTimeout(timer); };
};

// What the role of this page may not do. The broker is asked, which decides as for the calls themselves.
const ANY = { segment: "0", other: "1", subscription: "s", role: "r", broker: "b", cluster: "c", timestamp: "0", seconds: "0", count: "1" };

/** Of these routes those that would be refused: {name: reason}. */
export const useRefusals = (names, params = {}) => {
  const found = useSignal({}), key = JSON.stringify([names, params]);
  useEffect(() => every(15000, async () => {
    const calls = names.map(name => request(name, { ...ANY, ...params }).join(" "));
    const told = await ask("access", {}, { query: { call: calls } }).catch(() => null); // pages show failures of their own calls
    if (told) found.value = Object.fromEntries(names.map((name, index) => [name, told.calls[index].reason]).filter(([, reason]) => reason));
  }), [key]);
  return found.value;
};

/** Attributes of a button: off, with the reason, if the call would be refused. */
export const off = reason => (reason ? { disabled: true, title: plain(reason) } : {});

/** Says what the role may not do on this page, and why. `words`: what each route does. */
export const Refused = ({ refusals, words }) => {
  const byReason = new Map();
  for (const [name, reason] of Object.entries(refusals)) byReason.set(reason, [...(byReason.get(reason) ?? []), words[name]]);
  return byReason.size > 0 && html`<div class="refused" role="note">${[...byReason].map(([reason, what]) =>
    html`<p>Not possible here: ${[...new Set(what)].join(", ")}, because ${plain(reason)}.</p>`)}</div>`;
};

// One dialog at a time: {title, text, verb, name (to be typed), danger, cli, route, params, query, body, run (instead of
// one call), done, after}
export const asked = signal(null);
export const notice = signal(null);

let notices = 0;
export const say = (text, tone = "") => {
  const number = ++notices;
  notice.value = { text, tone };
  setTimeout(() => { if (number === notices) notice.value = null; }, 6000);
};

export const operationId = () => `console-${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`;

export const Dialog = () => {
  const one = asked.value;
  return one && html`<${Box} key=${one} one=${one} />`;
};

const Box = ({ one }) => {
  const box = useRef(null), typed = useSignal(""), busy = useSignal(false), failed = useSignal(null);
  useLayoutEffect(() => { box.current.showModal(); }, []); // before keys can reach the page behind it
  const close = () => { box.current?.close(); asked.value = null; };
  const isReady = !busy.value && (!one.name || [one.name, plain(one.name)].includes(typed.value)); // as it is shown, too
  const run = async event => {
    event.preventDefault();
    if (!isReady) return;
    busy.value = true;
    failed.value = null;
    try {
      const answer = one.run ? await one.run() : await ask(one.route, one.params, { query: one.query, body: one.body });
      close();
      say(one.done ?? `${one.verb}: done`, "good");
      one.after?.(answer);
    } catch (error) {
      failed.value = error;
      busy.value = false;
    }
  };
  return html`<dialog ref=${box} onClose=${() => { asked.value = null; }} aria-labelledby="dialog-title">
    <form onSubmit=${run}>
      <h2 id="dialog-title">${one.title}</h2>
      ${one.text.map(line => html`<p>${line}</p>`)}
      ${one.name && html`<label><span>Type <${Name} text=${one.name} /> to confirm</span>
        <input autofocus autocomplete="off" spellcheck=${false} aria-label="name to confirm"
               onInput=${event => { typed.value = event.target.value; }} /></label>`}
      ${failed.value && html`<${Failure} error=${failed.value} />`}
      ${(one.cli || one.route) && html`<details><summary>The same from a terminal</summary>
        ${one.cli && html`<${Command} text=${one.cli} />`}
        ${one.route && html`<${Command} text=${asCurl(one.route, one.params, one.query, one.body)} />`}
      </details>`}
      <div class="buttons">
        <button type="button" class="quiet" onClick=${close}>Cancel</button>
        <button class=${one.danger ? "danger" : "primary"} disabled=${!isReady}>${busy.value ? "working …" : one.verb}</button>
      </div>
    </form>
  </dialog>`;
};
