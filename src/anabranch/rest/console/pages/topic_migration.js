// Migration of a regular topic to a scalable one: the checklist of what would happen and what blocks it, then the call.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { plain, quoted, whole } from "./format.js";
import { Failure, Name, asked, every, html, link, remember, route } from "./ui.js";

const KINDS = ["STREAM", "QUEUE"];

export const TopicMigration = ({ params }) => route.value.query.migrate
  ? html`<${Checklist} params=${params} />`
  : html`<section class="panel"><h2>Migrate to a scalable topic</h2><p class="hint">In place: no copy, all messages, subscriptions and permissions stay. First comes a checklist, which changes nothing.</p>
      <button onClick=${() => remember({ migrate: "1" })}>Check</button></section>`;

const Checklist = ({ params }) => {
  const found = useSignal(null), failed = useSignal(null), isForced = useSignal(false), kinds = useSignal({});
  const query = { force: isForced.value, subscriptionType: Object.entries(kinds.value).map(([name, kind]) => `${name}:${kind.toLowerCase()}`) };
  const key = JSON.stringify(query);
  useEffect(() => every(3000, async () => {
    try { found.value = await ask("migrateTopic", params, { query: { ...query, check: true } }); failed.value = null; }
    catch (error) { failed.value = error; }
  }), [key]);
  const one = found.value;
  return html`<section class="panel" aria-label="migration"><h2>Migrate to a scalable topic</h2>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${!one ? html`<p class="hint">checking …</p>` : html`<${Report} one=${one} kinds=${kinds} />
    <form class="controls" onSubmit=${event => { event.preventDefault(); asked.value = migrating(params, one, query); }}>
      <label class="check"><input type="checkbox" checked=${isForced.value} onChange=${event => { isForced.value = event.target.checked; }} /> close clients of regular topics that are connected</label>
      <button class="primary" disabled=${!one.possible}>Migrate …</button><button type="button" onClick=${() => remember({ migrate: "" })}>Hide</button></form>`}</section>`;
};

const Report = ({ one, kinds }) => {
  const subscriptions = Object.entries(one.subscriptions), hash = one.partitionHash?.verdict;
  const blocked = one.blockers.map(it => it.kind);
  return html`<p><${Name} text=${one.topic} /> becomes <${Name} text=${one.scalableTopic} /> with ${whole(one.segments)} segment${one.segments === 1 ? "" : "s"}.</p>
    <ul class="checklist">
      ${one.blockers.map(it => html`<li class="bad" key=${it.kind}><strong>${it.kind}</strong> ${plain(it.reason)}</li>`)}
      ${!blocked.includes("v4-clients") && html`<li class="ok">${one.clients.length === 0 ? "No client is connected that knows only regular topics." : `${whole(one.clients.length)} connected clients will be closed.`}</li>`}
      ${hash && html`<li class=${one.partitionHash.hash ? "ok" : "warn"}>Keys keep their place: they are routed by ${plain(one.partitionHash.hash ?? "an unknown hash")} (${plain(hash)}).</li>`}
      ${one.possible && html`<li class="ok">Nothing blocks it.</li>`}</ul>
    ${one.clients.length > 0 && html`<h3>Connected clients</h3><table><thead><tr><th>role</th><th>name</th><th>address</th><th>client</th><th>subscription</th></tr></thead>
      <tbody>${one.clients.map((it, index) => html`<tr key=${index}><td>${plain(it.role)}</td><td><${Name} text=${it.name} /></td><td><code>${plain(it.address)}</code></td>
        <td>${plain(it.version)}</td><td>${it.subscription === null ? "–" : html`<${Name} text=${it.subscription} />`}</td></tr>`)}</tbody></table>`}
    ${subscriptions.length > 0 && html`<h3>Subscriptions</h3><table><thead><tr><th>name</th><th>becomes</th></tr></thead>
      <tbody>${subscriptions.map(([name, kind]) => html`<tr key=${name}><td><${Name} text=${name} /></td><td><select aria-label=${`type of ${plain(name)}`} value=${kind}
        onChange=${event => { kinds.value = { ...kinds.value, [name]: event.target.value }; }}>${[...new Set([...KINDS, kind])].map(word =>
          html`<option value=${word} selected=${word === kind}>${word.toLowerCase()}</option>`)}</select></td></tr>`)}</tbody></table>`}`;
};

const migrating = (params, one, query) => {
  const options = [...(query.force ? ["--force"] : []), ...query.subscriptionType.map(text => {
    const at = text.lastIndexOf(":");
    return `--subscription-type ${quoted(`${text.slice(0, at)}=${text.slice(at + 1)}`)}`;
  })].map(text => ` ${text}`).join("");
  return {
    title: "Migrate to a scalable topic", verb: "Migrate", danger: true, name: params.topic, route: "migrateTopic", params, query,
    cli: `anabranch admin scalable-topics migrate-to-scalable ${quoted(one.scalableTopic)}${options}`,
    text: [
      `${whole(Math.max(1, one.partitions))} ${one.partitions > 1 ? "partitions become" : "log becomes"} ${whole(one.segments)} segment${one.segments === 1 ? "" : "s"}; ${whole(Object.keys(one.subscriptions).length)} subscriptions continue where they are.`,
      `${one.clients.length ? `${whole(one.clients.length)} connected clients are closed. ` : ""}From then on only clients of scalable topics can use it. There is no way back.`,
    ],
    done: "The topic is scalable now",
    after: () => { location.hash = link(["topic", params.tenant, params.namespace, params.topic]); },
  };
};
