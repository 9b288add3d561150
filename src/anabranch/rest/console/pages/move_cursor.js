// Moves the cursor of a subscription: to a time, past old messages, past a number of them. The consequence comes first.

import { useSignal } from "./signals.js";
import { ask } from "./api.js";
import { moment, plain, quoted, whole } from "./format.js";
import { Failure, Name, asked, html, isUtc, momentOf, remember } from "./ui.js";

const WAYS = { time: "to a time", start: "to the beginning", expire: "past everything older than a time", skip: "past the next entries" };

/** `backlog`: messages that it has to read now. Of a scalable topic a cursor only goes to a time. */
export const MoveCursor = ({ kind, params, full, subscription: name, backlog }) => {
  const way = useSignal("time"), time = useSignal(null), count = useSignal("1"), failed = useSignal(null);
  const ways = Object.entries(WAYS).filter(([one]) => kind !== "scalable" || one === "time" || one === "start");
  const needsTime = way.value === "time" || way.value === "expire";
  const preview = async event => {
    event.preventDefault();
    try {
      const from = way.value === "start" ? 0 : time.value;
      const counted = way.value === "skip" ? null : await ask(kind === "scalable" ? "messageCount" : "regularMessageCount", params, { query: { time: from } });
      asked.value = moving({ kind, params: { ...params, subscription: name }, full, name, backlog, way: way.value, from, counted, count: Number(count.value) });
      failed.value = null;
    } catch (error) { failed.value = error; }
  };
  return html`<section class="panel" aria-label="move cursor"><h2>Move <${Name} text=${name} /> <button class="quiet" onClick=${() => remember({ move: "" })}>Hide</button></h2>
    <form class="controls" onSubmit=${preview}>
      <label>where <select value=${way.value} onChange=${event => { way.value = event.target.value; }}>${ways.map(([one, words]) => html`<option value=${one} selected=${one === way.value}>${words}</option>`)}</select></label>
      ${needsTime && html`<label>time <input type="datetime-local" step="1" required onChange=${event => { time.value = momentOf(event.target.value); }} /></label>`}
      ${way.value === "skip" && html`<label>entries <input class="small" type="number" min="1" required value=${count.value} onInput=${event => { count.value = event.target.value; }} /></label>`}
      <button class="primary" disabled=${needsTime && time.value === null}>Preview …</button></form>
    ${failed.value && html`<${Failure} error=${failed.value} />`}</section>`;
};

const moving = ({ kind, params, full, name, backlog, way, from, counted, count }) => {
  const common = { params, verb: "Move", done: "The subscription is moved" }, sub = `--subscription ${quoted(name)}`;
  const seconds = Math.max(0, Math.round((Date.now() - from) / 1000));
  if (way === "skip") return {
    ...common, title: "Skip entries", verb: "Skip", danger: true, name, route: "regularSkip", params: { ...params, count },
    cli: `anabranch admin subscriptions skip ${quoted(full)} ${sub} --count ${count}`,
    text: [`The next ${whole(count)} entries (a batch is one) will not be delivered to ${plain(name)}. It has ${whole(backlog)} messages to read now.`],
    done: "The entries are skipped",
  };
  if (way === "expire") return {
    ...common, title: "Expire old messages", verb: "Expire", danger: true, name, route: "regularExpire", params: { ...params, seconds },
    cli: `anabranch admin subscriptions expire-messages ${quoted(full)} ${sub} --expireTime ${seconds}s`,
    text: [`What ${plain(name)} has not acknowledged of the ${whole(counted.total - counted.from)} messages before ${moment(from, isUtc.value)} will not be delivered to it. ${whole(counted.from)} messages are newer; it has ${whole(backlog)} to read now.`],
    done: "Old messages are expired",
  };
  const back = counted.from >= backlog;
  return {
    ...common, title: way === "start" ? "Rewind to the beginning" : "Move to a time", danger: !back, ...(back ? {} : { name }),
    route: kind === "scalable" ? "seek" : "regularSeek",
    ...(kind === "scalable" ? { query: { timestamp: from } } : { params: { ...params, timestamp: from } }),
    cli: kind === "scalable" ? `anabranch admin scalable-topics seek ${quoted(full)} ${sub} --time ${seconds}s` : `anabranch admin subscriptions reset-cursor ${quoted(full)} ${sub} --time ${seconds}s`,
    text: [
      `${plain(name)} has ${whole(backlog)} messages to read now. Afterwards it has ${whole(counted.from)}: those published ${way === "start" ? "since the oldest one that is stored" : `at ${moment(from, isUtc.value)} or later`}.`,
      back ? `About ${whole(counted.from - backlog)} of them are delivered to it again.` : `At least ${whole(backlog - counted.from)} that it has not read will not be delivered to it.`,
    ],
  };
};
