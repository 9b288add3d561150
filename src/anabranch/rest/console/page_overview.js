// The overview: one sentence on how the cluster is, what needs attention, figures, the busiest topics, brokers.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { bytes, plain, short, whole } from "./format.js";
import { ownBrokers } from "./page_brokers.js";
import { figuresOf, First, hrefOf, topics } from "./page_topics.js";
import { Chip, Failure, Name, Time, html, every, link } from "./ui.js";

const MEASURED_MAX = 60; // topics whose figures are read; the sums say so when there are more

/** Whether the metadata is being moved. The phase of PIP-454 is NOT_STARTED while the first copy runs. Pure. */
export const isMigrating = one => ["PREPARATION", "COPYING"].includes(one.phase) || (one.phase === "NOT_STARTED" && Boolean(one.subPhase));

/** What a broker's machine lacks. The limits are those of `anabranch doctor`. Pure. */
const ofMachine = ({ broker, disk, files, clockSkewMs, metadataMs, sync }) => {
  const lines = [], say = (tone, text) => lines.push({ tone, text, href: link(["brokers"]) });
  if (disk && disk.free < 0.1 * disk.total)
    say(disk.free < 0.03 * disk.total ? "bad" : "warn", `The disk of broker ${broker} has ${bytes(disk.free)} left of ${bytes(disk.total)}: free space, shorten retention, or delete topics.`);
  if (files.open > 0.8 * files.limit) say("warn", `Broker ${broker} has ${whole(files.open)} files and connections open of ${whole(files.limit)} allowed: raise its limit.`);
  if (clockSkewMs > 1000) say("warn", `The clock of broker ${broker} differs by at least ${(clockSkewMs / 1000).toFixed(1)} s: synchronize the clocks.`);
  if (metadataMs > 1000) say("warn", `A read of the metadata store took ${(metadataMs / 1000).toFixed(1)} s at broker ${broker}: look at the store and the network to it.`);
  if (sync === "none") say("warn", `Broker ${broker} confirms messages before they are on disk (storage.sync = none).`);
  return lines;
};

/** What needs attention: [{tone, text, href}], the worst first. Pure. */
export const attention = ({ brokers, measured, migration, machines = [] }) => {
  const lines = [];
  if (brokers && brokers.length === 0) lines.push({ tone: "bad", text: "No broker is registered." });
  if (brokers?.length && !brokers.some(one => one.leader)) lines.push({ tone: "bad", text: "No broker leads: wait for the election, and look at the metadata store." });
  for (const one of brokers ?? []) if (one.draining)
    lines.push({ tone: "warn", text: `Broker ${one.brokerId} is draining: it gets no new topics until it is resumed.`, href: link(["brokers"]) });
  const versions = new Set((brokers ?? []).map(one => one.version));
  if (versions.size > 1) lines.push({ tone: "warn", text: `Brokers run different versions: ${[...versions].join(", ")}. Finish the rolling update.`, href: link(["brokers"]) });
  for (const one of machines ?? []) lines.push(...ofMachine(one));
  if (migration && isMigrating(migration))
    lines.push({ tone: "warn", text: `The metadata is being moved to another store: ${migration.phase === "NOT_STARTED" ? migration.subPhase : migration.phase}.`, href: link(["metadata"]) });
  for (const { row, figures } of measured) {
    if (figures.backlog > 0 && figures.out === 0)
      lines.push({ tone: "warn", text: `${plain(row.topic)}: ${whole(figures.backlog)} messages wait, and nobody reads them: start a consumer, or delete the subscription.`, href: hrefOf(row) });
    if (figures.operation && Date.now() - figures.operation.startedAtMs > 60000)
      lines.push({ tone: "bad", text: `${plain(row.topic)}: a ${figures.operation.kind.toLowerCase()} runs for more than a minute (${figures.operation.phase}).`, href: hrefOf(row) });
  }
  return lines.sort((a, b) => (a.tone === b.tone ? 0 : a.tone === "bad" ? -1 : 1));
};

const sentence = (brokers, all, sums, lines) => {
  const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
  const parts = [brokers && count(brokers.length, "broker"), count(all.rows.length, "topic"), `${short(sums.in)} msg/s in`, `${whole(sums.backlog)} behind`];
  return `${parts.filter(Boolean).join(", ")}. ${lines.length ? "Look at what is listed below." : "Nothing needs you."}`;
};

export const OverviewPage = () => {
  const found = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    document.title = "Anabranch";
    return every(3000, async () => {
      const or = (promise, other) => promise.catch(error => { if ([0, 401].includes(error.status)) throw error; return other; });
      try {
        const [all, version, own, migration, machines] = await Promise.all([
          topics(), ask("version"), or(ownBrokers(), null), or(ask("migrationStatus"), null), or(ask("machines"), [])]);
        const brokers = own?.brokers ?? null;
        const measured = (await Promise.all(all.rows.slice(0, MEASURED_MAX).map(async row => ({ row, figures: await or(figuresOf(row), null) }))))
          .filter(one => one.figures);
        found.value = { all, version, brokers, migration, measured, machines };
        failed.value = null;
      } catch (error) { failed.value = error; }
    });
  }, []);
  const now = found.value;
  if (!now) return failed.value ? html`<h1>Overview</h1><${Failure} error=${failed.value} />` : html`<p class="hint">reading …</p>`;
  const sums = now.measured.reduce((total, { figures }) => ({
    in: total.in + figures.in, out: total.out + figures.out, backlog: total.backlog + figures.backlog, stored: total.stored + figures.stored,
  }), { in: 0, out: 0, backlog: 0, stored: 0 });
  const lines = attention(now), busiest = [...now.measured].sort((a, b) => b.figures.in - a.figures.in || b.figures.stored - a.figures.stored).slice(0, 10);
  const most = Math.max(1, ...busiest.map(one => one.figures.in));
  return html`<header class="page"><h1>Overview</h1></header>
    ${failed.value && html`<p class="lost" role="status">${plain(failed.value.reason)}. What you see is the last known state.</p>`}
    <p class="sentence ${lines.some(one => one.tone === "bad") ? "bad" : lines.length ? "warn" : "good"}">${sentence(now.brokers, now.all, sums, lines)}</p>
    ${lines.length > 0 && html`<ul class="attention">${lines.slice(0, 20).map(one => html`<li class=${one.tone}>
      ${one.href ? html`<a href=${one.href}>${one.text}</a>` : one.text}</li>`)}</ul>`}
    <div class="chips"><${Chip} label="in">${short(sums.in)} msg/s<//><${Chip} label="out">${short(sums.out)} msg/s<//>
      <${Chip} label="messages stored">${whole(sums.stored)}<//><${Chip} label="topics">${whole(now.all.rows.length)}<//>
      <${Chip} label="namespaces">${whole(now.all.namespaces.length)}<//><${Chip} label="version">${plain(now.version)}<//></div>
    ${now.all.rows.length > MEASURED_MAX && html`<p class="hint">Figures of the first ${MEASURED_MAX} topics.</p>`}
    ${now.all.rows.length === 0 ? html`<${First} />` : html`<section class="panel"><h2>Busiest topics</h2><table>
      <thead><tr><th>topic</th><th>kind</th><th class="wide">in msg/s</th><th class="number">out msg/s</th><th class="number">largest backlog</th></tr></thead>
      <tbody>${busiest.map(({ row, figures }) => html`<tr key=${row.name}><td><a href=${hrefOf(row)}><${Name} text=${row.topic} /></a>${" "}<small><${Name} text=${`${row.tenant}/${row.namespace}`} /></small></td><td><span class="kind">${row.kind}</span></td>
        <td><div class="bar"><i style=${{ width: `${100 * figures.in / most}%` }}></i><span>${short(figures.in)}</span></div></td>
        <td class="number">${short(figures.out)}</td><td class="number ${figures.backlog > 0 ? "warn" : ""}">${whole(figures.backlog)}</td></tr>`)}</tbody></table></section>`}
    ${now.brokers && html`<section class="panel"><h2>Brokers</h2><div class="tiles">${now.brokers.map(one => html`<a class="tile" href=${link(["brokers"])}>
      <strong><${Name} text=${one.brokerId} /></strong>
      <span>${one.draining ? "draining" : "serving"}${one.leader ? " · leads the cluster" : ""}</span>
      <span>${one.slots} slots · started <${Time} ms=${one.startedMs} /></span></a>`)}</div></section>`}`;
};
