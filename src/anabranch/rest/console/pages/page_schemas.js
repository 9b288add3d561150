// Schemas of a topic: all versions, a check of a new one against the strategy in force, adding, deleting.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { plain, quoted, visible, whole } from "./format.js";
import { indented } from "./messages.js";
import { Empty, Failure, Name, Refused, Time, asked, every, html, link, off, useRefusals } from "./ui.js";

const TYPES = ["AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "STRING", "BYTES", "KEY_VALUE", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"];
const WITHOUT_DEFINITION = TYPES.filter(one => !["AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE"].includes(one));

const MAY = { schemaAdd: "add schemas", schemaDelete: "delete schemas" };

export const SchemasPage = ({ kind, tenant, namespace, topic }) => {
  const params = { tenant, namespace, topic }, found = useSignal(null), failed = useSignal(null);
  const read = async () => {
    try { found.value = (await ask("schemas", params)).getSchemaResponses; failed.value = null; } catch (error) { failed.value = error; }
  };
  useEffect(() => {
    document.title = `Schemas of ${plain(topic)} · Anabranch`;
    return every(5000, read);
  }, [tenant, namespace, topic]);
  const refusals = useRefusals(Object.keys(MAY), params);
  const all = found.value && [...found.value].reverse();
  const home = kind === "scalable" ? ["topic", tenant, namespace, topic] : ["regular", kind, tenant, namespace, topic];
  return html`<header class="page"><nav class="crumbs" aria-label="path"><a href=${link(["topics"])}>Topics</a>${" / "}<a href=${link(home)}><${Name} text=${`${tenant}/${namespace}/${topic}`} /></a></nav>
      <h1>Schemas of <${Name} text=${topic} /></h1></header>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${all && (all.length === 0
      ? html`<${Empty} title="No schema yet"><p>Producers and consumers may send any bytes. The first client with a schema, or you below, adds version 0.</p><//>`
      : html`<section class="panel"><h2>Versions</h2>${all.map((one, index) => html`<${Version} key=${one.version} one=${one} isNewest=${index === 0} />`)}
          <div class="buttons left"><button class="danger" ...${off(refusals.schemaDelete)} onClick=${() => { asked.value = deleting(params, all, read); }}>Delete all versions …</button></div></section>`)}
    <${Refused} refusals=${refusals} words=${MAY} />
    ${all && !refusals.schemaAdd && html`<${Propose} params=${params} newest=${all[0]} after=${read} />`}`;
};

const Version = ({ one, isNewest }) => html`<details class="detail" open=${isNewest}><summary>version ${whole(one.version)} · ${plain(one.type)} · <${Time} ms=${one.timestamp} />${isNewest ? " · newest" : ""}</summary>
  ${one.data && html`<pre tabindex="0">${visible(indented(one.data))}</pre>`}
  ${Object.keys(one.properties).length > 0 && html`<table><tbody>${Object.entries(one.properties).map(([name, value]) =>
    html`<tr><td><${Name} text=${name} /></td><td><${Name} text=${value} /></td></tr>`)}</tbody></table>`}</details>`;

const Propose = ({ params, newest, after }) => {
  const kind = useSignal(newest?.type ?? "AVRO"), text = useSignal(""), verdict = useSignal(null), failed = useSignal(null);
  const body = () => ({ type: kind.value, schema: WITHOUT_DEFINITION.includes(kind.value) ? "" : text.value, properties: {} });
  const check = async event => {
    event.preventDefault();
    verdict.value = null;
    try { verdict.value = await ask("schemaCheck", params, { body: body() }); failed.value = null; } catch (error) { failed.value = error; }
  };
  const add = () => { asked.value = adding(params, body(), newest, after); };
  const one = verdict.value;
  return html`<section class="panel"><h2>Check or add a version</h2><form class="form" onSubmit=${check}>
    <label>type <select value=${kind.value} onChange=${event => { kind.value = event.target.value; verdict.value = null; }}>${TYPES.map(word =>
      html`<option value=${word} selected=${word === kind.value}>${word}</option>`)}</select></label>
    ${!WITHOUT_DEFINITION.includes(kind.value) && html`<label>definition <textarea rows="8" spellcheck=${false} value=${text.value}
      placeholder='{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
      onInput=${event => { text.value = event.target.value; verdict.value = null; }}></textarea></label>
      ${newest?.data && html`<button type="button" class="quiet" onClick=${() => { text.value = indented(newest.data); kind.value = newest.type; verdict.value = null; }}>take the newest version</button>`}`}
    <div class="buttons left"><button>Check</button><button type="button" class="primary" disabled=${!one?.compatibility} title=${one ? "" : "check it first"} onClick=${add}>Add …</button></div>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${one && html`<p role="status" class=${one.compatibility ? "good" : "failure"}>${one.compatibility ? "It would be accepted" : `It would be refused: ${plain(one.reason ?? "")}`} (strategy ${plain(one.schemaCompatibilityStrategy)}).</p>`}
  </form></section>`;
};

const nameOf = ({ tenant, namespace, topic }) => quoted(`persistent://${tenant}/${namespace}/${topic}`);

const adding = (params, body, newest, after) => ({
  title: "Add a schema version", verb: "Add", route: "schemaAdd", params, body, after,
  cli: `anabranch admin schemas upload ${nameOf(params)} --filename schema.json`,
  text: [newest ? `It becomes the newest version after version ${whole(newest.version)}, unless a version has this definition already. Clients that connect are checked against it.`
    : "It becomes version 0. From then on clients with a schema that is not compatible are refused."],
  done: "The schema is stored",
});

const deleting = (params, all, after) => ({
  title: "Delete all schema versions", verb: "Delete", danger: true, name: params.topic, route: "schemaDelete", params, query: { force: true }, after,
  cli: `anabranch admin schemas delete ${nameOf(params)} --force`,
  text: [`${whole(all.length)} version${all.length === 1 ? " is" : "s are"} lost. Consumers cannot decode stored messages by them any more, and the next client decides what the schema is.`],
  done: "The schemas are deleted",
});
