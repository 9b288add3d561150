// The metadata store, and its migration to another store: start, steps, progress, abort, comparison.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { bytes, duration, moment, plain, quoted, short, whole } from "./format.js";
import { isMigrating } from "./page_overview.js";
import { Chip, Command, Failure, Refused, Time, asked, every, html, isUtc, off, useRefusals } from "./ui.js";

const STEPS = [["PRE_COPY", "copy while writes go on"], ["VERIFY_TREE", "compare the copy"], ["CLOSE_GATES", "writes wait, brokers prepare"],
  ["COPY_CHANGES", "copy the last changes"], ["SWITCH", "brokers switch"], ["DONE", "done"]];

const MAY = { migrationStart: "move the metadata", migrationAbort: "abort a migration" };

export const MetadataPage = () => {
  const refusals = useRefusals(Object.keys(MAY));
  const found = useSignal(null), failed = useSignal(null);
  const read = async () => {
    try {
      const [store, migration] = await Promise.all([ask("internals"), ask("migrationStatus")]);
      found.value = { store, migration };
      failed.value = null;
    } catch (error) { failed.value = error; }
  };
  useEffect(() => {
    document.title = "Metadata · Anabranch";
    return every(1000, read);
  }, []);
  const now = found.value, isIdle = now && !isRunning(now.migration);
  return html`<header class="page"><h1>Metadata</h1></header>${failed.value && html`<${Failure} error=${failed.value} />`}
    ${now && html`<section class="panel"><h2>Store</h2><p><code>${plain(now.store.metadataStoreUrl)}</code></p></section>
      <${Refused} refusals=${refusals} words=${MAY} /><${Last} one=${now.migration} after=${read} refusals=${refusals} />
      ${isIdle && !refusals.migrationStart && html`<${Start} from=${now.store.metadataStoreUrl} after=${read} />`}`}`;
};

/** Also while brokers still switch: nothing else can be started then. Pure. */
const isRunning = one => isMigrating(one) || (one.phase === "COMPLETED" && !one.allSwitched);

const Last = ({ one, after, refusals }) => {
  const compared = useSignal(null), failed = useSignal(null), busy = useSignal(false);
  if (one.phase === "NOT_STARTED" && !one.subPhase)
    return html`<section class="panel"><h2>Migration to another store</h2><p class="hint">None has run. It copies everything while brokers and clients go on; writes of metadata wait for less than a second.</p></section>`;
  const verify = async () => {
    busy.value = true;
    try { compared.value = await ask("migrationVerify"); failed.value = null; } catch (error) { failed.value = error; }
    busy.value = false;
  };
  const { counts } = one, running = isRunning(one), can = isMigrating(one);
  return html`<section class="panel"><h2>Migration to another store <span class="kind ${running ? "busy" : ""}">${can ? "running" : running ? "switching" : one.phase.toLowerCase()}</span></h2>
    <p><code>${plain(one.sourceUrl)}</code> → <code>${plain(one.targetUrl)}</code></p>
    <${Steps} one=${one} running=${running} />
    ${running && counts.expected > 0 && html`<progress max=${counts.expected} value=${Math.min(counts.records, counts.expected)} aria-label="records copied"></progress>`}
    <div class="chips"><${Chip} label="records">${whole(counts.records)}${running && counts.expected > 0 ? html` <small>of about ${whole(counts.expected)}</small>` : ""}<//>
      <${Chip} label="bytes">${bytes(counts.value_bytes)}<//><${Chip} label="compared">${whole(counts.verified)}<//>
      <${Chip} label="changed during the copy">${whole(counts.changed)}<//>
      <${Chip} label="writes waited here" tone=${one.isBlocked ? "warn" : ""}>${one.blockedSeconds.toFixed(3)} s${one.isBlocked ? " and wait" : ""}<//>
      ${one.recordsPerSecond !== undefined && html`<${Chip} label="records per second">${short(one.recordsPerSecond)}<//>`}
      ${one.restSeconds !== undefined && one.restSeconds !== null && html`<${Chip} label="left of this step">about ${duration(one.restSeconds * 1000)}<//>`}
      <${Chip} label="attempt">${whole(one.attempt)}<//><${Chip} label="begun"><${Time} ms=${one.startedMs} /><//></div>
    ${one.error && html`<p class="failure">It failed, and the store in use is unchanged: ${plain(one.error)}</p>`}
    ${Object.keys(one.participants).length > 0 && html`<table><thead><tr><th>broker</th><th>state</th></tr></thead><tbody>${Object.entries(one.participants).sort().map(([name, state]) =>
      html`<tr key=${name}><td><code>${plain(name)}</code>${name === one.coordinator ? html` <span class="kind">coordinates</span>` : ""}</td><td>${plain(state.toLowerCase())}</td></tr>`)}</tbody></table>`}
    ${one.settings && html`<p>Set this for every broker before its next restart:</p><${Command} text=${`[metadata]\nurl = ${JSON.stringify(one.settings["metadata.url"])}`} />`}
    <div class="buttons left">
      ${can && html`<button class="danger" ...${off(refusals.migrationAbort)} onClick=${() => { asked.value = aborting(one, after); }}>Abort …</button>`}
      ${one.phase === "COMPLETED" && html`<button disabled=${busy.value} onClick=${verify}>${busy.value ? "comparing …" : "Compare both stores"}</button>`}</div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${compared.value && html`<p class=${compared.value.different ? "failure" : "good"} role="status">${whole(compared.value.source_records)} records in the source, ${whole(compared.value.target_records)} in the target: ${
      compared.value.different ? `${whole(compared.value.different)} keys differ, which is normal for what was written since` : "no difference"}.</p>
      ${compared.value.keys.length > 0 && html`<ul class="keys">${compared.value.keys.map(key => html`<li><code>${plain(key)}</code></li>`)}</ul>`}`}
  </section>`;
};

const Steps = ({ one, running }) => {
  const at = STEPS.findIndex(([name]) => name === one.subPhase);
  return html`<ol class="steps">${STEPS.map(([name, text], index) => {
    const state = index < at || (index === at && !running && !one.error) ? "past" : index === at ? (one.error ? "failed" : "now") : "next";
    return html`<li class=${state} aria-current=${state === "now" ? "step" : undefined} title=${moment(one.timesMs[name] ?? 0, isUtc.value)}>
      <span aria-hidden="true">${{ past: "✓", now: "●", failed: "✕", next: "○" }[state]}</span> ${text}</li>`;
  })}</ol>`;
};

const Start = ({ from, after }) => {
  const target = useSignal(""), rate = useSignal(""), isPurged = useSignal(false);
  const send = event => {
    event.preventDefault();
    asked.value = starting(from, target.value.trim(), rate.value === "" ? undefined : Number(rate.value), isPurged.value, after);
  };
  return html`<section class="panel"><h2>Move to another store</h2><form class="form" onSubmit=${send}>
    <label>URL of the new store <input required spellcheck=${false} autocomplete="off" placeholder="etcd://HOST:2379/PREFIX" onInput=${event => { target.value = event.target.value; }} /></label>
    <label>records per second at most <input type="number" min="0" max="10000000" step="1" placeholder="as the broker has time" onInput=${event => { rate.value = event.target.value; }} /></label>
    <label class="check"><input type="checkbox" onChange=${event => { isPurged.value = event.target.checked; }} /> delete what an earlier migration has left in the new store</label>
    <div class="buttons left"><button class="primary" disabled=${!target.value.trim()}>Start …</button></div></form></section>`;
};

const starting = (from, target, rate, isPurged, after) => ({
  title: "Move all metadata", verb: "Start", danger: true, name: target, route: "migrationStart", after,
  params: {}, body: { targetUrl: target, ...(rate === undefined ? {} : { rate }), purgeTarget: isPurged },
  cli: `anabranch admin metadata-migration start --target ${quoted(target)}${rate === undefined ? "" : ` --rate ${rate}`}${isPurged ? " --purge-target" : ""}`,
  text: [
    `Everything in ${plain(from)} is copied to ${plain(target)} and compared; then all brokers switch together.`,
    `Clients and brokers go on. Writes of metadata (new topics, policies, splits) wait for less than a second at the end. Until the switch it can be aborted and nothing has changed; after it there is no way back but another migration.`,
    isPurged ? "What an earlier migration has left in the new store is deleted. Data of a cluster in use is refused, not deleted." : "The new store must be empty.",
  ],
  done: "The migration has begun",
});

const aborting = (one, after) => ({
  title: "Abort the migration", verb: "Abort", danger: true, name: "abort", route: "migrationAbort", params: {}, after,
  cli: "anabranch admin metadata-migration abort",
  text: [
    `The store in use stays ${plain(one.sourceUrl)}. The copy of ${whole(one.counts.records)} records in ${plain(one.targetUrl)} is of no more use; another start with this target must delete it.`,
    "If the brokers have decided to switch already, this is refused.",
  ],
  done: "The migration is aborted",
});
