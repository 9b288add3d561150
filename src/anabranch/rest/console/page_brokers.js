// Brokers of the cluster, with drain and resume; and the settings of the broker that serves this page.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ApiError, ask } from "./api.js";
import { bytes, plain, quoted, whole } from "./format.js";
import { Failure, Name, Refused, Time, asked, every, html, off, useRefusals } from "./ui.js";

/** {cluster, brokers} of the cluster that serves this page: others may be registered, and only it answers. */
export const ownBrokers = async () => {
  let refused = null;
  for (const cluster of await ask("clusters")) {
    try { return { cluster, brokers: await ask("brokers", { cluster }) }; } catch (error) {
      if (error.status !== 404) throw error;
      refused = error;
    }
  }
  throw refused ?? new ApiError(404, "not-found", "no cluster is registered");
};

const MAY = { drain: "drain brokers", resume: "resume brokers" };

const Machine = ({ one }) => one ? html`<td class="number">${one.disk ? html`${bytes(one.disk.free)} <small>of ${bytes(one.disk.total)}</small>` : "–"}</td>
  <td class="number">${whole(one.files.open)} <small>of ${whole(one.files.limit)}</small></td><td class="number">${one.clockSkewMs > 50 ? `± ${whole(one.clockSkewMs)} ms` : "equal"}</td>
  <td class="number">${one.metadataMs.toFixed(1)} ms</td>` : html`<td colspan="4">–</td>`;

export const BrokersPage = () => {
  const refusals = useRefusals(Object.keys(MAY));
  const machines = useSignal(new Map()), found = useSignal(null), failed = useSignal(null), settings = useSignal(null), text = useSignal("");
  const read = async () => {
    try {
      found.value = await ownBrokers();
      settings.value ??= await ask("settings");
      machines.value = new Map((await ask("machines")).map(one => [one.broker, one]));
      failed.value = null;
    } catch (error) { failed.value = error; }
  };
  useEffect(() => { document.title = "Brokers · Anabranch"; return every(5000, read); }, []);
  const act = (one, drain) => {
    asked.value = {
      title: drain ? `Drain ${one.brokerId}` : `Resume ${one.brokerId}`, verb: drain ? "Drain" : "Resume",
      route: drain ? "drain" : "resume", params: { cluster: found.value.cluster, broker: one.brokerId },
      text: [drain ? `The topics of ${whole(one.slots)} slots move to the other brokers; their clients connect again there. It gets no new topics until it is resumed.`
        : "Topics may move to this broker again."],
      cli: `anabranch admin brokers ${drain ? "drain" : "resume"} ${quoted(one.id)}`, after: read,
    };
  };
  const rows = Object.entries(settings.value ?? {}).filter(([name]) => name.includes(text.value));
  return html`<header class="page"><h1>Brokers</h1></header>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    <${Refused} refusals=${refusals} words=${MAY} />
    ${found.value && html`<section class="panel"><table><thead><tr><th>broker</th><th>state</th><th class="number">slots</th><th class="number">load</th>
      <th class="number">disk free</th><th class="number">open files</th><th class="number">clock</th><th class="number">store answers in</th><th>version</th><th>started</th><th>clients connect to</th><th>actions</th></tr></thead><tbody>
      ${found.value.brokers.map(one => html`<tr key=${one.id}><td><${Name} text=${one.brokerId} /> ${one.leader && html`<span class="kind">leader</span>`}</td>
        <td>${one.draining ? "draining" : "serving"}</td><td class="number">${whole(one.slots)}</td><td class="number">${one.load.toFixed(2)}</td>
        <${Machine} one=${machines.value.get(one.brokerId)} /><td>${plain(one.version)}</td><td><${Time} ms=${one.startedMs} /></td><td><code>${plain(one.serviceUrl)}</code></td>
        <td>${one.draining ? html`<button ...${off(refusals.resume)} onClick=${() => act(one, false)}>Resume …</button>`
          : html`<button disabled=${found.value.brokers.length < 2 || Boolean(refusals.drain)} title=${refusals.drain ?? (found.value.brokers.length < 2 ? "there is no other broker for the topics" : "")}
              onClick=${() => act(one, true)}>Drain …</button>`}</td></tr>`)}</tbody></table></section>`}
    ${settings.value && html`<section class="panel"><h2>Settings of this broker</h2>
      <div class="controls"><input type="search" data-key="/" placeholder="name of a setting ( / )" aria-label="filter settings" onInput=${event => { text.value = event.target.value; }} /></div>
      <table><thead><tr><th>setting</th><th>value</th></tr></thead><tbody>${rows.map(([name, value]) =>
        html`<tr key=${name}><td><code>${name}</code></td><td><code>${plain(value)}</code></td></tr>`)}</tbody></table></section>`}`;
};
