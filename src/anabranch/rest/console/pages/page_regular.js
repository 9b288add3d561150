// A regular topic: figures, subscriptions with their consumers, sending, messages, migration to a scalable topic.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { bytes, plain, quoted, short, whole } from "./format.js";
import { RegularConsumers } from "./consumers.js";
import { Ledgers } from "./ledgers.js";
import { Messages } from "./messages.js";
import { MoveCursor } from "./move_cursor.js";
import { TopicMigration } from "./topic_migration.js";
import { Send } from "./send.js";
import { Chip, Failure, Name, Refused, asked, every, html, link, off, remember, route, useRefusals } from "./ui.js";

const MAY = { regularSkipAll: "skip messages", regularSeek: "move subscriptions", regularUnsubscribe: "delete subscriptions", publish: "send",
  regularMessages: "read messages", migrateTopic: "migrate" };

export const RegularPage = ({ kind, tenant, namespace, topic }) => {
  const params = { tenant, namespace, topic }, full = `persistent://${tenant}/${namespace}/${topic}`, stats = useSignal(null), failed = useSignal(null), draft = useSignal(null), sent = useSignal(0);
  useEffect(() => {
    document.title = `${plain(topic)} · Anabranch`;
    return every(2000, async () => {
      try { stats.value = await ask(kind === "partitioned" ? "partitionedStats" : "stats", params); failed.value = null; }
      catch (error) { failed.value = error; }
    });
  }, [kind, tenant, namespace, topic]);
  const refusals = useRefusals(Object.keys(MAY), { domain: "persistent", ...params });
  const one = stats.value, subscriptions = Object.entries(one?.subscriptions ?? {});
  const named = wanted => subscriptions.find(([name]) => name === wanted);
  const shown = named(route.value.query.consumers), moved = named(route.value.query.move);
  return html`<header class="page"><nav class="crumbs" aria-label="path"><a href=${link(["topics"])}>Topics</a>${" / "}<a href=${link(["topics"], { ns: `${tenant}/${namespace}` })}><${Name} text=${`${tenant}/${namespace}`} /></a></nav>
      <h1><${Name} text=${topic} /> <span class="kind">${kind}</span></h1>
      <a href=${link(["schemas", kind, tenant, namespace, topic])}>Schemas</a></header>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    <${Refused} refusals=${refusals} words=${MAY} />
    ${one && html`<div class="chips"><${Chip} label="in">${short(one.msgRateIn)} msg/s<//><${Chip} label="in, bytes">${bytes(one.msgThroughputIn)}/s<//>
      <${Chip} label="out">${short(one.msgRateOut)} msg/s<//><${Chip} label="received">${whole(one.msgInCounter)}<//>
      <${Chip} label="stored">${bytes(one.storageSize)}<//><${Chip} label="producers">${whole((one.publishers ?? []).length)}<//></div>
    <section class="panel"><h2>Subscriptions</h2>${subscriptions.length === 0 ? html`<p class="hint">None.</p>` : html`<table>
      <thead><tr><th>name</th><th>type</th><th class="number">backlog</th><th class="number">unacknowledged</th><th class="number">out msg/s</th><th class="number">consumers</th><th>actions</th></tr></thead>
      <tbody>${subscriptions.map(([name, it]) => html`<tr key=${name}><td><${Name} text=${name} /></td><td>${plain(it.type ?? "–")}</td>
        <td class="number">${whole(it.msgBacklog)}</td><td class="number">${whole(it.unackedMessages)}</td><td class="number">${short(it.msgRateOut)}</td>
        <td class="number">${whole((it.consumers ?? []).length)}</td>
        <td><div class="buttons left"><button aria-pressed=${shown?.[0] === name} onClick=${() => remember({ consumers: shown?.[0] === name ? "" : name })}>Consumers</button>
          ${kind === "regular" && html`<button ...${off(refusals.regularSkipAll)} onClick=${() => { asked.value = skipping(params, full, name, it); }}>Skip all …</button>
            <button ...${off(refusals.regularSeek)} aria-pressed=${moved?.[0] === name} onClick=${() => remember({ move: moved?.[0] === name ? "" : name })}>Move …</button>
            <button class="danger" ...${off(refusals.regularUnsubscribe)} onClick=${() => { asked.value = unsubscribing(params, full, name, it); }}>Delete …</button>`}</div></td></tr>`)}</tbody></table>`}</section>
    ${shown && html`<${RegularConsumers} name=${shown[0]} one=${shown[1]} />`}
    ${moved && kind === "regular" && html`<${MoveCursor} kind=${kind} params=${params} full=${full} subscription=${moved[0]} backlog=${moved[1].msgBacklog} key=${moved[0]} />`}
    ${!refusals.publish && html`<${Send} full=${full} partitions=${kind === "partitioned" ? one.metadata.partitions : 0} draft=${draft} onSent=${() => { sent.value++; }} />`}
    ${!refusals.regularMessages && html`<${Messages} params=${params} kind=${kind} sent=${sent.value} onAgain=${refusals.publish ? null : message => { draft.value = message; }} />`}
    ${kind === "regular" && html`<${Ledgers} params=${params} />`}
    ${!refusals.migrateTopic && html`<${TopicMigration} params=${params} />`}`}`;
};

const skipping = (params, full, name, it) => ({
  title: "Skip all messages", verb: "Skip all", danger: true, name, route: "regularSkipAll", params: { ...params, subscription: name },
  cli: `anabranch admin subscriptions clear-backlog ${quoted(full)} --subscription ${quoted(name)}`,
  text: [`${whole(it.msgBacklog)} messages that ${plain(name)} has not acknowledged will not be delivered to it.`], done: "The backlog is cleared",
});

const unsubscribing = (params, full, name, it) => ({
  title: "Delete this subscription", verb: "Delete", danger: true, name, route: "regularUnsubscribe", params: { ...params, subscription: name }, query: { force: true },
  cli: `anabranch admin subscriptions delete ${quoted(full)} --subscription ${quoted(name)} --force`,
  text: [`Its position is lost, with ${whole(it.msgBacklog)} unread messages. Its ${whole((it.consumers ?? []).length)} consumers are closed.`], done: "The subscription is deleted",
});
