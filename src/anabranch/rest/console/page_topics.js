// All topics: names first, figures of the visible rows only.

import { useEffect, useRef } from "./hooks.js";
import { computed, useSignal } from "./signals.js";
import { ask, partsOf } from "./api.js";
import { plain, short, whole } from "./format.js";
import { Command, Empty, Failure, Name, html, link, remember, route, stored, every } from "./ui.js";

/** Full names of the topics that this browser's user has marked. */
const favourites = stored("favourites", "");
const kept = computed(() => new Set(favourites.value.split("\n").filter(Boolean)));
const mark = name => {
  const next = new Set(kept.value);
  if (!next.delete(name)) next.add(name);
  favourites.value = [...next].slice(-FAVOURITES_MAX).join("\n");
};

const FAVOURITES_MAX = 500, ROW = 36, VISIBLE = 60, NAMESPACES_MAX = 200, AT_ONCE = 6;

/** `work` of each item, a few at a time; results in order, null for refusals. */
const each = async (items, work) => {
  const results = new Array(items.length).fill(null);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      try { results[index] = await work(items[index]); } catch (error) { if (error.status === 401) throw error; }
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, items.length) }, worker));
  return results;
};

/** Namespaces that the caller may list. */
export const namespaces = async () => {
  const tenants = await ask("tenants");
  return (await each(tenants, tenant => ask("namespaces", { tenant }))).flat().filter(Boolean).slice(0, NAMESPACES_MAX);
};

const PARTITION = /-partition-\d+$/;

/** Rows {name, kind, parts…} of all topics, sorted by name; partitions are in their topic. */
export const topics = async () => {
  const all = await namespaces();
  const found = await each(all, async path => {
    const [tenant, namespace] = path.split("/"), params = { tenant, namespace };
    const [scalable, persistent, partitioned] = await each(
      ["scalableTopics", "persistentTopics", "partitionedTopics"], name => ask(name, params));
    const regular = (persistent ?? []).filter(name => !PARTITION.test(name));
    return [
      ...(scalable ?? []).map(name => ({ name, kind: "scalable" })),
      ...(partitioned ?? []).map(name => ({ name, kind: "partitioned" })),
      ...regular.filter(name => !(partitioned ?? []).includes(name)).map(name => ({ name, kind: "regular" })),
    ];
  });
  const rows = found.flat().filter(Boolean).map(one => ({ ...one, ...partsOf(one.name) }));
  return { namespaces: all, rows: rows.sort((a, b) => (a.name.slice(a.name.indexOf(":")) < b.name.slice(b.name.indexOf(":")) ? -1 : 1)) };
};

/** {segments, in, out, backlog, stored} of one row. */
export const figuresOf = async row => {
  if (row.kind === "scalable") {
    const tick = await ask("tick", row), all = Object.values(tick.segments);
    const add = of => all.reduce((total, one) => total + of(one), 0);
    return {
      in: add(one => one.rates.in.msg["10"]), out: add(one => one.rates.out.msg["10"]), stored: add(one => one.messages),
      backlog: Math.max(0, ...Object.values(tick.subscriptions).map(one => one.msgBacklog)),
      subscriptions: Object.keys(tick.subscriptions).length, operation: tick.operation,
    };
  }
  const stats = await ask(row.kind === "partitioned" ? "partitionedStats" : "stats", row);
  const subscriptions = Object.values(stats.subscriptions ?? {});
  return {
    in: stats.msgRateIn, out: stats.msgRateOut, stored: stats.msgInCounter,
    backlog: Math.max(0, ...subscriptions.map(one => one.msgBacklog)), subscriptions: subscriptions.length,
  };
};

/** Rows that a filter admits: words of the name, `kind:scalable`, `ns:public/default`, `is:favourite`. Pure. */
export const filtered = (rows, text, kept = new Set()) => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(row => words.every(word => {
    if (word.startsWith("kind:")) return row.kind.startsWith(word.slice(5));
    if (word === "is:favourite") return kept.has(row.name);
    if (word.startsWith("ns:")) return `${row.tenant}/${row.namespace}`.startsWith(word.slice(3));
    return row.name.toLowerCase().includes(word);
  }));
};

export const hrefOf = row => row.kind === "scalable"
  ? link(["topic", row.tenant, row.namespace, row.topic]) : link(["regular", row.kind, row.tenant, row.namespace, row.topic]);

export const TopicsPage = () => {
  const all = useSignal(null), failed = useSignal(null), figures = useSignal(new Map()), top = useSignal(0);
  const box = useRef(null), search = useRef(null);
  const { q = "", ns = "", fav = "" } = route.value.query;
  const rows = all.value ? filtered(all.value.rows, `${q} ${ns && `ns:${ns}`} ${fav && "is:favourite"}`, kept.value) : [];
  const visible = rows.slice(top.value, top.value + VISIBLE);
  const shown = useRef([]);
  shown.current = visible;
  useEffect(() => {
    document.title = "Topics · Anabranch";
    return every(15000, async () => {
      try { all.value = await topics(); failed.value = null; } catch (error) { failed.value = error; }
    });
  }, []);
  useEffect(() => every(3000, async () => {
    const now = shown.current.slice(0, 30);
    const found = await each(now, figuresOf).catch(() => []);
    const next = new Map(figures.value);
    now.forEach((row, index) => { if (found[index]) next.set(row.name, found[index]); });
    figures.value = next;
  }), [all.value === null, top.value, q, ns, fav]);
  if (failed.value && !all.value) return html`<h1>Topics</h1><${Failure} error=${failed.value} />`;
  return html`<header class="page"><h1>Topics ${all.value && html`<span class="kind">${rows.length} of ${all.value.rows.length}</span>`}</h1></header>
    <div class="controls">
      <input type="search" ref=${search} data-key="/" value=${q} placeholder="words of the name, kind:scalable  ( / )" aria-label="filter topics"
             onInput=${event => remember({ q: event.target.value })} />
      <label>namespace <select value=${ns} onChange=${event => remember({ ns: event.target.value })}>
        <option value="">all</option>${(all.value?.namespaces ?? []).map(one => html`<option value=${one} selected=${one === ns}>${plain(one)}</option>`)}</select></label>
      <button aria-pressed=${Boolean(fav)} onClick=${() => remember({ fav: fav ? "" : "1" })}>★ favourites</button>
    </div>
    ${!all.value ? html`<p class="hint">reading …</p>` : all.value.rows.length === 0 ? html`<${First} />` : html`
    <div class="scroll" ref=${box} tabindex="0" aria-label="topics" onScroll=${event => { top.value = Math.max(0, Math.floor(event.target.scrollTop / ROW) - 10); }}>
      <table class="rows"><thead><tr><th>topic</th><th>kind</th><th class="number">in msg/s</th><th class="number">out msg/s</th>
        <th class="number">stored</th><th class="number">largest backlog</th><th class="number">subscriptions</th></tr></thead>
      <tbody>
        ${top.value > 0 && html`<tr aria-hidden="true" style=${{ height: `${top.value * ROW}px` }}></tr>`}
        ${visible.map(row => {
          const one = figures.value.get(row.name);
          return html`<tr key=${row.name}><td><button class="star" aria-pressed=${kept.value.has(row.name)} aria-label=${`favourite ${plain(row.topic)}`} onClick=${() => mark(row.name)}>${kept.value.has(row.name) ? "★" : "☆"}</button><a href=${hrefOf(row)}><${Name} text=${row.topic} /></a>${" "}<small><${Name} text=${`${row.tenant}/${row.namespace}`} /></small></td>
            <td><span class="kind">${row.kind}</span>${one?.operation && html` <span class="kind busy">${one.operation.kind.toLowerCase()}</span>`}</td>
            <td class="number">${short(one?.in)}</td><td class="number">${short(one?.out)}</td><td class="number">${whole(one?.stored)}</td>
            <td class="number ${one?.backlog > 0 ? "warn" : ""}">${whole(one?.backlog)}</td><td class="number">${whole(one?.subscriptions)}</td></tr>`;
        })}
        ${rows.length > top.value + VISIBLE && html`<tr aria-hidden="true" style=${{ height: `${(rows.length - top.value - VISIBLE) * ROW}px` }}></tr>`}
      </tbody></table></div>`}`;
};

export const First = () => html`<${Empty} title="No topics yet">
  <p>Make one, send keyed messages to it, and read them in another terminal. It appears here by itself.</p>
  <${Command} text="anabranch admin scalable-topics create orders --segments 2" />
  <${Command} text="anabranch produce topic://public/default/orders --count 100000 --rate 1000 --keys 100" />
  <${Command} text="anabranch consume topic://public/default/orders --subscription audit" />
<//>`;
