// Namespaces with their policies; permissions of roles, with granting and revoking.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { flattened, plain, quoted } from "./format.js";
import { namespaces } from "./page_topics.js";
import { Failure, Name, Refused, asked, every, html, link, off, useRefusals } from "./ui.js";

const ACTIONS = ["produce", "consume"];

export const NamespacesPage = () => {
  const all = useSignal(null), failed = useSignal(null);
  useEffect(() => {
    document.title = "Namespaces · Anabranch";
    return every(10000, async () => { try { all.value = await namespaces(); failed.value = null; } catch (error) { failed.value = error; } });
  }, []);
  return html`<header class="page"><h1>Namespaces</h1></header>${failed.value && html`<${Failure} error=${failed.value} />`}
    ${all.value && html`<section class="panel"><table><thead><tr><th>namespace</th><th>content</th></tr></thead><tbody>${all.value.map(one => html`<tr key=${one}>
      <td><a href=${link(["namespace", ...one.split("/")])}><${Name} text=${one} /></a></td>
      <td><a href=${link(["topics"], { ns: one })}>topics</a></td></tr>`)}</tbody></table></section>`}`;
};

export const NamespacePage = ({ tenant, namespace }) => {
  const params = { tenant, namespace }, found = useSignal(null), failed = useSignal(null);
  const read = async () => {
    try {
      const [policies, permissions] = await Promise.all([ask("namespace", params),
        ask("permissions", params).catch(error => { if (error.status !== 403) throw error; return null; })]);
      found.value = { policies, permissions };
      failed.value = null;
    } catch (error) { failed.value = error; }
  };
  useEffect(() => {
    document.title = `${plain(namespace)} · Anabranch`;
    return every(10000, read);
  }, [tenant, namespace]);
  return html`<header class="page"><nav class="crumbs" aria-label="path"><a href=${link(["namespaces"])}>Namespaces</a></nav>
      <h1><${Name} text=${`${tenant}/${namespace}`} /></h1></header>
    ${failed.value && html`<${Failure} error=${failed.value} />`}
    ${found.value && html`<${Permissions} params=${params} permissions=${found.value.permissions} after=${read} />
      <section class="panel"><h2>Policies that are set</h2><table><thead><tr><th>policy</th><th>value</th></tr></thead><tbody>
        ${flattened(found.value.policies).map(([name, value]) => html`<tr key=${name}><td><code>${plain(name)}</code></td><td><code>${plain(value)}</code></td></tr>`)}</tbody></table></section>`}`;
};

const MAY = { grant: "grant permissions", revoke: "revoke permissions" };

const Permissions = ({ params, permissions, after }) => {
  const refusals = useRefusals(Object.keys(MAY), params);
  const role = useSignal(""), chosen = useSignal(["consume"]), path = `${params.tenant}/${params.namespace}`;
  if (permissions === null) return html`<section class="panel"><h2>Permissions</h2><p class="hint">You may not see the permissions of this namespace: its tenant's administrators may.</p></section>`;
  const entries = Object.entries(permissions);
  const grant = event => {
    event.preventDefault();
    asked.value = granting(params, path, role.value, permissions[role.value] ?? [], chosen.value, after);
  };
  const isReady = role.value && chosen.value.length > 0;
  return html`<section class="panel"><h2>Permissions</h2><${Refused} refusals=${refusals} words=${MAY} />
    ${entries.length === 0 ? html`<p class="hint">No role has a permission here. Administrators of the tenant may do everything without one.</p>`
      : html`<table><thead><tr><th>role</th><th>may</th><th>actions</th></tr></thead><tbody>${entries.map(([name, actions]) =>
        html`<tr key=${name}><td><${Name} text=${name} /></td><td>${plain(actions.join(", "))}</td>
          <td><div class="buttons left"><button onClick=${() => { role.value = name; chosen.value = ACTIONS.filter(one => actions.includes(one)); }}>Change</button>
          <button class="danger" ...${off(refusals.revoke)} onClick=${() => { asked.value = revoking(params, path, name, actions, after); }}>Revoke …</button></div></td></tr>`)}</tbody></table>`}
    <form class="controls grant" onSubmit=${grant}>
      <label>role <input value=${role.value} autocomplete="off" spellcheck=${false} onInput=${event => { role.value = event.target.value; }} /></label>
      ${ACTIONS.map(one => html`<label class="check"><input type="checkbox" checked=${chosen.value.includes(one)} onChange=${event => {
        chosen.value = ACTIONS.filter(it => (it === one ? event.target.checked : chosen.value.includes(it)));
      }} /> ${one}</label>`)}
      <button class="primary" disabled=${!isReady || Boolean(refusals.grant)} title=${refusals.grant ?? ""}>Grant …</button>
    </form></section>`;
};

const granting = (params, path, role, before, actions, after) => ({
  title: "Grant permissions", verb: "Grant", route: "grant", params: { ...params, role }, body: actions, after,
  cli: `anabranch admin namespaces grant-permission ${quoted(path)} --role ${quoted(role)} --actions ${actions.join(",")}`,
  text: [
    `${plain(role)} may ${actions.join(" and ")} on all topics of ${plain(path)}, present and future.`,
    before.length ? `It may ${plain(before.join(", "))} now; this takes the place of that.${before.some(one => !actions.includes(one)) ? " Connections that need what is taken away are closed." : ""}`
      : "It has no permission in this namespace now.",
  ],
  done: "The permissions are granted",
});

const revoking = (params, path, role, actions, after) => ({
  title: "Revoke permissions", verb: "Revoke", danger: true, name: role, route: "revoke", params: { ...params, role }, after,
  cli: `anabranch admin namespaces revoke-permission ${quoted(path)} --role ${quoted(role)}`,
  text: [`${plain(role)} may no longer ${plain(actions.join(" or "))} on the topics of ${plain(path)}, unless a topic grants it. Its producers and consumers there are closed at once.`],
  done: "The permissions are revoked",
});
