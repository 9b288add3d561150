// A scalable topic: figures, the segment timeline, the selected segment, subscriptions, auto-scaling, actions.

import { useEffect } from "./hooks.js";
import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { duration, plain, quoted, short, bytes, whole } from "./format.js";
import { Messages } from "./messages.js";
import { follow } from "./stream.js";
import { Timeline } from "./timeline.js";
import { merged, segmentsOf } from "./timeline_layout.js";
import { rangeOf } from "./timeline_paint.js";
import { Chip, Empty, Failure, Lazy, Name, Refused, Time, asked, html, link, now, off, operationId, remember, route, useRefusals } from "./ui.js";

const consumers = () => import("./consumers.js"), trial = () => import("./policy_trial.js");
const sending = () => import("./send.js"), cursor = () => import("./move_cursor.js");

const MAY = { split: "split", merge: "merge", remove: "delete the topic", skipAll: "skip messages", seek: "move subscriptions", unsubscribe: "delete subscriptions",
  publishScalable: "send", messages: "read messages", setPolicy: "set policies" };

export const TopicPage = ({ tenant, namespace, topic }) => {
  const params = { tenant, namespace, topic }, full = `topic://${tenant}/${namespace}/${topic}`;
  const segments = useSignal(new Map()), tick = useSignal(null), status = useSignal({ word: "connecting" });
  const selected = useSignal(null), second = useSignal(null), draft = useSignal(null), sent = useSignal(0), moving = useSignal(null);
  useEffect(() => {
    document.title = `${plain(topic)} · Anabranch`;
    let incarnation = null;
    const whole = async () => {
      const found = await ask("timeline", params);
      segments.value = merged(new Map(), segmentsOf(found.columns, found.rows));
    };
    return follow("events", params, (name, data) => {
      if (name === "layout") {
        const isOther = data.incarnation !== incarnation;
        incarnation = data.incarnation;
        const next = merged(isOther ? new Map() : segments.value, segmentsOf(data.columns, data.rows));
        segments.value = next;
        if (next.size !== data.count) whole().catch(() => {}); // retention has deleted some; the next tick shows errors
      } else tick.value = data;
    }, (word, why) => { status.value = { word, why, since: Date.now() }; });
  }, [full]);
  const refusals = useRefusals(Object.keys(MAY), params);
  const chosen = segments.value.get(selected.value), cut = chosen && (moving.value ?? (chosen.start + chosen.end + 1) >> 1);
  const choose = (id, extend) => {
    moving.value = null;
    if (extend && id !== null && selected.value !== null && id !== selected.value) second.value = id;
    else { second.value = null; selected.value = id === selected.value ? null : id; }
  };
  if (status.value.word === "ended" && !segments.value.size)
    return html`<${Empty} isPage title="This topic cannot be shown"><p>${plain(status.value.why)}</p>
      <p><a href=${link(["topics"])}>All topics</a></p><//>`;
  const names = Object.keys(tick.value?.subscriptions ?? {}), wanted = route.value.query.subscription;
  const reading = route.value.query.consumers, moved = route.value.query.move;
  const subscription = names.includes(wanted) ? wanted : names[0];
  const stale = status.value.word === "lost" || status.value.word === "ended";
  return html`
    <header class="page">
      <nav class="crumbs" aria-label="path"><a href=${link(["topics"])}>Topics</a>${" / "}<a href=${link(["topics"], { ns: `${tenant}/${namespace}` })}><${Name} text=${`${tenant}/${namespace}`} /></a></nav>
      <h1><${Name} text=${topic} /> <span class="kind">scalable</span> <${Live} status=${status.value} /></h1>
      <a href=${link(["schemas", "scalable", tenant, namespace, topic])}>Schemas</a>
    </header>
    ${stale && html`<p class="lost" role="status">No newer figures since ${duration(now.value - (tick.value?.t ?? status.value.since))}: ${plain(status.value.why ?? "")}. What you see is the last known state.</p>`}
    <${Refused} refusals=${refusals} words=${MAY} />
    <${Figures} tick=${tick.value} segments=${segments.value} />
    <${Operation} tick=${tick.value} />
    <${Timeline} segments=${segments.value} tick=${tick.value} selected=${selected.value} onSelect=${choose}
                 subscription=${subscription} stale=${stale} cut=${cut} onCut=${position => { moving.value = position; }} />
    <${Selection} params=${params} full=${full} segments=${segments.value} tick=${tick.value}
                  first=${selected.value} second=${second.value} refusals=${refusals} cut=${cut} />
    <${Subscriptions} params=${params} full=${full} tick=${tick.value} segments=${segments.value} refusals=${refusals} />
    ${names.includes(reading) && html`<${Lazy} load=${consumers} name="ScalableConsumers" key=${`consumers ${reading}`} params=${params} subscription=${reading} />`}
    ${names.includes(moved) && html`<${Lazy} load=${cursor} name="MoveCursor" key=${`move ${moved}`} kind="scalable" params=${params} full=${full} subscription=${moved} backlog=${tick.value.subscriptions[moved].msgBacklog} />`}
    ${!refusals.publishScalable && html`<${Lazy} load=${sending} name="Send" full=${full} partitions=${0} draft=${draft} onSent=${() => { sent.value++; }} />`}
    ${!refusals.messages && html`<${Messages} params=${params} kind="scalable" sent=${sent.value} onAgain=${refusals.publishScalable ? null : message => { draft.value = message; }} />`}
    <${Scaling} params=${params} full=${full} tick=${tick.value} />
    <section class="panel"><h2>This topic</h2><div class="buttons left">
      <button class="danger" ...${off(refusals.remove)} onClick=${() => { asked.value = deletion(params, full, tick.value, segments.value); }}>Delete topic …</button></div></section>`;
};

const Live = ({ status }) => html`<span class="live ${status.word}" role="status">${
  { live: "live", connecting: "connecting …", lost: "reconnecting …", ended: "ended" }[status.word]}</span>`;

const sum = (tick, of) => Object.values(tick?.segments ?? {}).reduce((total, one) => total + (of(one) ?? 0), 0);

const Figures = ({ tick, segments }) => {
  const active = [...segments.values()].filter(one => one.sealedEpoch < 0).length;
  const behind = Object.entries(tick?.subscriptions ?? {}).sort((a, b) => b[1].msgBacklog - a[1].msgBacklog)[0];
  return html`<div class="chips">
    <${Chip} label="active segments">${active}<//>
    <${Chip} label="sealed">${segments.size - active}<//>
    <${Chip} label="epoch">${tick?.epoch ?? "–"}<//>
    <${Chip} label="in">${short(sum(tick, one => one.rates.in.msg["10"]))} msg/s<//>
    <${Chip} label="in, bytes">${bytes(sum(tick, one => one.rates.in.bytes["10"]))}/s<//>
    <${Chip} label="out">${short(sum(tick, one => one.rates.out.msg["10"]))} msg/s<//>
    <${Chip} label="stored">${whole(sum(tick, one => one.messages))}<//>
    <${Chip} label="largest backlog" tone=${behind?.[1].msgBacklog > 0 ? "warn" : ""}>${behind
      ? html`${whole(behind[1].msgBacklog)} <small><${Name} text=${behind[0]} /></small>` : "no subscription"}<//>
  </div>`;
};

const Operation = ({ tick }) => {
  const running = tick?.operation, last = tick?.lastOperation;
  if (running) return html`<p class="operation" role="status"><strong>${running.kind}</strong> of segment
    ${running.parents.join(", ")} → ${running.children.join(", ")} · phase ${running.phase} ·
    ${duration(now.value - running.startedAtMs)}${running.reason && ` · ${plain(running.reason)}`}</p>`;
  return last && html`<p class="operation quiet">Last change: <strong>${last.kind}</strong> ${last.outcome.toLowerCase()}${" "}<${Time} ms=${last.finishedAtMs} />${last.reason && ` · ${plain(last.reason)}`}</p>`;
};

const areNeighbours = (a, b) => a.end + 1 === b.start || b.end + 1 === a.start;

const Selection = ({ params, full, segments, tick, first, second, refusals, cut }) => {
  const one = segments.get(first), other = segments.get(second);
  if (!one) return html`<p class="hint">Select a segment to split it, and drag the line where it shall be cut; shift-click a neighbour to merge both.${" "}<kbd>↑</kbd> <kbd>↓</kbd> move between active segments.</p>`;
  const isActive = one.sealedEpoch < 0, figures = tick?.segments[one.id];
  const children = [...segments.values()].filter(it => it.parents.includes(one.id)).map(it => it.id);
  const neighbours = [...segments.values()].filter(it => it.sealedEpoch < 0 && areNeighbours(it, one));
  return html`<section class="panel selection" aria-label="selected segment">
    <h2>Segment ${one.id} <code>${rangeOf(one)}</code> <span class="kind">${isActive ? "active" : "sealed"}</span></h2>
    <div class="chips">
      <${Chip} label="share of the keys">${((one.end - one.start + 1) / 655.36).toFixed(2)} %<//>
      <${Chip} label="created"><${Time} ms=${one.createdAtMs} /><//>
      ${!isActive && html`<${Chip} label="sealed"><${Time} ms=${one.sealedAtMs} /><//>`}
      ${figures && html`<${Chip} label="in">${short(figures.rates.in.msg["10"])} msg/s<//>
        <${Chip} label="stored">${whole(figures.messages)}<//>
        <${Chip} label="producers">${figures.producers}<//><${Chip} label="consumers">${figures.consumers}<//>`}
      <${Chip} label="parents">${one.parents.join(", ") || "none"}<//>
      <${Chip} label="children">${children.join(", ") || "none"}<//>
    </div>
    ${isActive && html`<div class="buttons left">
      <button class="primary" ...${off(refusals.split)} onClick=${() => { asked.value = splitting(params, full, one, figures, cut); }}>Split …</button>
      ${other && areNeighbours(one, other) && other.sealedEpoch < 0
        ? html`<button class="primary" ...${off(refusals.merge)} onClick=${() => { asked.value = merging(params, full, one, other, tick); }}>Merge ${one.id} and ${other.id} …</button>`
        : neighbours.map(it => html`<button ...${off(refusals.merge)} onClick=${() => { asked.value = merging(params, full, one, it, tick); }}>Merge with ${it.id} …</button>`)}
    </div>`}
  </section>`;
};

const splitting = (params, full, one, figures, cut) => {
  const isMiddle = cut === (one.start + one.end + 1) >> 1, shares = [cut - one.start, one.end + 1 - cut].map(size => `${(size / 655.36).toFixed(2)} %`);
  return {
    title: `Split segment ${one.id}`, verb: "Split", route: "split", params: { ...params, segment: one.id },
    query: { operationId: operationId(), at: isMiddle ? undefined : cut.toString(16) },
    cli: `anabranch admin scalable-topics split-segment ${quoted(full)} --segment-id ${one.id}${isMiddle ? "" : ` --at ${cut.toString(16)}`}`,
    text: [
      `Two segments take its place: ${rangeOf({ start: one.start, end: cut - 1 })} with ${shares[0]} of the keys, and ${rangeOf({ start: cut, end: one.end })} with ${shares[1]}.`,
      `${figures?.producers ?? 0} producers continue with the new segments. Consumers of ordered subscriptions read the ${whole(figures?.messages ?? 0)} messages of segment ${one.id} to their end first.`,
      "No message is lost, doubled or reordered.",
    ],
    done: `Segment ${one.id} is split`,
  };
};

const merging = (params, full, one, other, tick) => ({
  title: `Merge segments ${one.id} and ${other.id}`, verb: "Merge", route: "merge",
  params: { ...params, segment: Math.min(one.id, other.id), other: Math.max(one.id, other.id) },
  query: { operationId: operationId() },
  cli: `anabranch admin scalable-topics merge-segments ${quoted(full)} --segments ${one.id},${other.id}`,
  text: [
    `One segment with ${rangeOf({ start: Math.min(one.start, other.start), end: Math.max(one.end, other.end) })} takes the place of both; together they receive ${short((tick?.segments[one.id]?.rates.in.msg["10"] ?? 0) + (tick?.segments[other.id]?.rates.in.msg["10"] ?? 0))} messages per second now.`,
    "Consumers of ordered subscriptions read both to their end first. No message is lost, doubled or reordered.",
  ],
  done: "The segments are merged",
});

const deletion = (params, full, tick, segments) => ({
  title: "Delete this topic", verb: "Delete", danger: true, name: params.topic, route: "remove", params, query: { force: true },
  cli: `anabranch admin scalable-topics delete ${quoted(full)} --force`,
  text: [`${whole(sum(tick, one => one.messages))} messages in ${segments.size} segments and ${Object.keys(tick?.subscriptions ?? {}).length} subscriptions are lost. Connected clients are closed.`],
  done: "The topic is deleted", after: () => { location.hash = "#/topics"; },
});

const Subscriptions = ({ params, full, tick, segments, refusals }) => {
  const found = Object.entries(tick?.subscriptions ?? {});
  const ringOrder = [...segments.values()].filter(one => one.sealedEpoch < 0).sort((a, b) => a.start - b.start);
  return html`<section class="panel"><h2>Subscriptions</h2>
    ${found.length === 0 ? html`<p class="hint">None. A subscription keeps what it has not read; a consumer creates one:
      <code>anabranch consume ${plain(quoted(full))} --subscription audit</code></p>` : html`<table>
      <thead><tr><th>name</th><th>type</th><th class="number">backlog</th><th>by active segment</th><th class="number">consumers</th><th>waiting</th><th>actions</th></tr></thead>
      <tbody>${found.map(([name, one]) => html`<tr key=${name}>
        <td><${Name} text=${name} /></td><td>${one.type.toLowerCase()}</td>
        <td class="number">${whole(one.msgBacklog)}</td>
        <td><${Strip} order=${ringOrder} one=${one} /></td>
        <td class="number" title=${Object.keys(one.consumers).map(plain).join("\n")}>${one.consumerCount || Object.values(one.segments).reduce((most, it) => Math.max(most, it.consumers), 0)}</td>
        <td>${Object.keys(one.waiting).length ? html`${Object.keys(one.waiting).length} segments` : "–"}</td>
        <td><div class="buttons left">
          <button onClick=${() => remember({ subscription: name, metric: "state" })}>Show state</button>
          <button aria-pressed=${route.value.query.consumers === name} onClick=${() => remember({ consumers: route.value.query.consumers === name ? "" : name })}>Consumers</button>
          <button ...${off(refusals.skipAll)} onClick=${() => { asked.value = skipping(params, full, name, one); }}>Skip all …</button>
          <button ...${off(refusals.seek)} aria-pressed=${route.value.query.move === name} onClick=${() => remember({ move: route.value.query.move === name ? "" : name })}>Move …</button>
          <button class="danger" ...${off(refusals.unsubscribe)} onClick=${() => { asked.value = unsubscribing(params, full, name, one); }}>Delete …</button>
        </div></td></tr>`)}</tbody></table>`}
  </section>`;
};

/** The backlog of each active segment along the ring, as bars. */
const Strip = ({ order, one }) => {
  const values = order.map(it => one.segments[it.id]?.backlog ?? 0), most = Math.max(1, ...values);
  return html`<div class="strip" role="img" aria-label=${`backlog by segment: ${values.join(", ")}`}>${order.map((it, index) =>
    html`<i title=${`segment ${it.id}: ${values[index]}`} style=${{ flexGrow: String(it.end - it.start + 1), height: `${2 + 20 * values[index] / most}px` }}></i>`)}</div>`;
};

const skipping = (params, full, name, one) => ({
  title: "Skip all messages", verb: "Skip all", danger: true, name, route: "skipAll", params: { ...params, subscription: name },
  cli: `anabranch admin scalable-topics clear-backlog ${quoted(full)} --subscription ${quoted(name)}`,
  text: [`${whole(one.msgBacklog)} messages that ${plain(name)} has not acknowledged will not be delivered to it.`],
  done: "The backlog is cleared",
});

const unsubscribing = (params, full, name, one) => ({
  title: "Delete this subscription", verb: "Delete", danger: true, name, route: "unsubscribe",
  params: { ...params, subscription: name }, query: { force: true },
  cli: `anabranch admin scalable-topics delete-subscription ${quoted(full)} --subscription ${quoted(name)} --force`,
  text: [`Its position is lost, with ${whole(one.msgBacklog)} unread messages. Its consumers are closed.`],
  done: "The subscription is deleted",
});

const LIMITS = [["splitMsgRateInThreshold", "splits above, in"], ["splitMsgRateOutThreshold", "splits above, out"],
  ["mergeMsgRateInThreshold", "merges below, in"], ["mergeMsgRateOutThreshold", "merges below, out"]];

/** One line of a decision: what, which segments, why, and what else was wanted and suppressed. */
export const Decision = ({ one }) => html`${plain(one.action)}${one.segments ? ` of ${one.segments.join(", ")}` : ""}: ${plain(one.detail || one.reason)}${
  (one.suppressed ?? []).map(it => html`<br /><small>${plain(it.kind)} of ${it.segments.join(", ")} (${plain(it.reason)}) suppressed by ${plain(it.suppressedBy)}: ${plain(it.detail)}</small>`)}`;

const Scaling = ({ params, full, tick }) => {
  const scaling = tick?.autoScale, policy = scaling?.policy;
  if (!scaling) return null;
  if (scaling.error) return html`<section class="panel"><h2>Auto-scaling</h2><p class="failure">${plain(scaling.error)}</p></section>`;
  return html`<section class="panel"><h2>Auto-scaling</h2>
    <div class="chips">
      <${Chip} label="state">${policy.enabled ? "on" : "off"}<//>
      <${Chip} label="segments">${policy.minSegments} – ${policy.maxSegments}<//>
      ${LIMITS.map(([key, label]) => html`<${Chip} label=${label}>${short(policy[key])} msg/s<//>`)}
      <${Chip} label="cooldown after a split">${duration(policy.splitCooldownSeconds * 1000)}<//>
    </div>
    <p>Now: <${Decision} one=${scaling.now} />${scaling.now.dueAtMs > 0 && html` (due in ${duration(scaling.now.dueAtMs - now.value)})`}</p>
    ${scaling.decisions.length > 0 && html`<table><thead><tr><th>when</th><th>decision</th></tr></thead><tbody>
      ${scaling.decisions.map(one => html`<tr><td><${Time} ms=${one.atMs} /></td><td><${Decision} one=${one} /></td></tr>`)}</tbody></table>`}
    ${route.value.query.policy ? html`<${Lazy} load=${trial} name="PolicyTrial" params=${params} full=${full} policy=${policy} />`
      : html`<button onClick=${() => remember({ policy: "1" })}>Try a policy</button>`}
  </section>`;
};
