// Namespaces with policies and permissions; the metadata store with its migration; regular topics.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { plain, short, bytes, whole } from "./format.js";
import { Messages } from "./messages.js";
import { namespaces } from "./page_topics.js";
import { Chip, Failure, Name, asked, every, html, link } from "./ui.js";

/** Values of policies as rows of a table: nested objects by their dotted path; what is not set is left out. */
export const flattened = (value, path = "") =>
  value === null || value === undefined ? []
    : typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? Object.entries(value).flatMap(([key, one]) => flattened(one, path ? `${path}.${key}` : key))
      : [[path, typeof value === "object" ? JSON.stringify(value) : String(value)]];

export const NamespacesPage = () => {
  const all = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    document.title = "Namespaces · Anabranch";
    return every(10000, async () => { try { all.value = await namespaces(); } catch (error) { failed.value = error; } });
  }, []);
  return html`<header class="page"><h1>Namespaces</h1></header>${failed.value && html`<${Failure} error=${failed.value} />`}
    ${all.value && html`<section class="panel"><table><thead><tr><th>namespace</th><th>content</th></tr></thead><tbody>${all.value.map(one => html`<tr key=${one}>
      <td><a href=${link(["namespace", ...one.split("/")])}><${Name} text=${one} /></a></td>
      <td><a href=${link(["topics"], { ns: one })}>topics</a></td></tr>`)}</tbody></table></section>`}`;
};

export const NamespacePage = ({ tenant, namespace }) => {
  const found = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    document.title = `${plain(namespace)} · Anabranch`;
    return every(10000, async () => {
      try {
        const params = { tenant, namespace };
        const [policies, permissions] = await Promise.all([ask("namespace", params), ask("permissions", params).catch(() => null)]);
        found.value = { policies, permissions };
      } catch (error) { failed.value = error; }
    });
  }, [tenant, namespace]);
  return html`<header class="page"><nav class="crumbs" aria-label="path"><a href=${link(["namespaces"])}>Namespaces</a></nav>
      <h1><${Name} text=${`${tenant}/${namespace}`} /></h1></header>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${found.value && html`<section class="panel"><h2>Permissions</h2>${Object.keys(found.value.permissions ?? {}).length === 0
        ? html`<p class="hint">No role has a permission here${found.value.permissions === null ? " that you may see" : ""}.</p>`
        : html`<table><thead><tr><th>role</th><th>may</th></tr></thead><tbody>${Object.entries(found.value.permissions).map(([role, actions]) =>
          html`<tr key=${role}><td><${Name} text=${role} /></td><td>${plain(actions.join(", "))}</td></tr>`)}</tbody></table>`}</section>
      <section class="panel"><h2>Policies that are set</h2><table><thead><tr><th>policy</th><th>value</th></tr></thead><tbody>
        ${flattened(found.value.policies).map(([name, value]) => html`<tr key=${name}><td><code>${plain(name)}</code></td><td><code>${plain(value)}</code></td></tr>`)}</tbody></table></section>`}`;
};

export const MetadataPage = () => {
  const found = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    document.title = "Metadata · Anabranch";
    return every(2000, async () => {
      try {
        const [store, migration] = await Promise.all([ask("internals"), ask("migrationStatus")]);
        found.value = { store, migration };
        failed.value = null;
      } catch (error) { failed.value = error; }
    });
  }, []);
  return html`<header class="page"><h1>Metadata</h1></header>${failed.value && html`<${Failure} error=${failed.value} />`}
    ${found.value && html`<section class="panel"><h2>Store</h2><p><code>${plain(found.value.store.metadataStoreUrl)}</code></p></section>
      <section class="panel"><h2>Migration to another store</h2>
        <div class="chips">${flattened(found.value.migration).map(([name, value]) => html`<${Chip} label=${plain(name)}>${plain(value)}<//>`)}</div>
        <p class="hint">Start one from a terminal: <code>anabranch admin metadata-migration start --target URL</code>. Its phases appear here.</p></section>`}`;
};

export const RegularPage = ({ kind, tenant, namespace, topic }) => {
  const params = { tenant, namespace, topic }, stats = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    document.title = `${plain(topic)} · Anabranch`;
    return every(2000, async () => {
      try { stats.value = await ask(kind === "partitioned" ? "partitionedStats" : "stats", params); failed.value = null; }
      catch (error) { failed.value = error; }
    });
  }, [kind, tenant, namespace, topic]);
  const one = stats.value, subscriptions = Object.entries(one?.subscriptions ?? {});
  const skip = (name, it) => {
    asked.value = {
      title: "Skip all messages", verb: "Skip all", danger: true, name, route: "regularSkipAll", params: { ...params, subscription: name },
            text: [`${whole(it.msgBacklog)} messages that ${plain(name)} has not acknowledged will not be delivered to it.`], done: "The backlog is cleared",
    };
  };
  return html`<header class="page"><nav class="crumbs" aria-label="path"><a href=${link(["topics"])}>Topics</a>${" / "}<a href=${link(["topics"], { ns: `${tenant}/${namespace}` })}><${Name} text=${`${tenant}/${namespace}`} /></a></nav>
      <h1><${Name} text=${topic} /> <span class="kind">${kind}</span></h1></header>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${one && html`<div class="chips"><${Chip} label="in">${short(one.msgRateIn)} msg/s<//><${Chip} label="in, bytes">${bytes(one.msgThroughputIn)}/s<//>
      <${Chip} label="out">${short(one.msgRateOut)} msg/s<//><${Chip} label="received">${whole(one.msgInCounter)}<//>
      <${Chip} label="stored">${bytes(one.storageSize)}<//><${Chip} label="producers">${whole((one.publishers ?? []).length)}<//></div>
    <section class="panel"><h2>Subscriptions</h2>${subscriptions.length === 0 ? html`<p class="hint">None.</p>` : html`<table>
      <thead><tr><th>name</th><th>type</th><th class="number">backlog</th><th class="number">unacknowledged</th><th class="number">out msg/s</th><th class="number">consumers</th><th>actions</th></tr></thead>
      <tbody>${subscriptions.map(([name, it]) => html`<tr key=${name}><td><${Name} text=${name} /></td><td>${plain(it.type ?? "–")}</td>
        <td class="number">${whole(it.msgBacklog)}</td><td class="number">${whole(it.unackedMessages)}</td><td class="number">${short(it.msgRateOut)}</td>
        <td class="number" title=${(it.consumers ?? []).map(c => plain(`${c.consumerName} ${c.address ?? ""}`)).join("\n")}>${whole((it.consumers ?? []).length)}</td>
        <td>${kind === "regular" && html`<button onClick=${() => skip(name, it)}>Skip all …</button>`}</td></tr>`)}</tbody></table>`}</section>
    <${Messages} params=${params} kind=${kind} />`}`;
};
