// Server-sent events over fetch: EventSource cannot send a token. Reconnects, and rests while the tab is hidden.

import { headers, needsSignIn, request } from "./api.js";

const FIRST_MS = 250, LAST_MS = 5000, SILENT_MS = 10000;

/** Splits text into events. Feed it pieces of any size; it calls `on(name, data)`. */
export const parser = on => {
  let rest = "";
  return piece => {
    rest += piece;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const fields = {};
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
      }
      rest = rest.slice(end + 2);
      if (fields.event) on(fields.event, JSON.parse(fields.data));
    }
  };
};

/**
 * Follows a stream until `close` is called. `on(name, data)` gets its events, `state(word, why)` one of "connecting",
 * "live", "lost" (it tries again) and "ended" (it does not).
 */
export const follow = (name, params, on, state) => {
  let abort = null, closed = false, timer = 0, silence = 0, delay = FIRST_MS;
  const again = why => {
    if (closed || timer) return;
    state("lost", why);
    timer = setTimeout(() => { timer = 0; open(); }, delay * (0.75 + Math.random() / 2));
    delay = Math.min(LAST_MS, delay * 2);
  };
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => { abort?.abort(); again("no answer"); }, SILENT_MS);
  };
  const open = async () => {
    if (closed || document.hidden) return;
    abort = new AbortController();
    const mine = abort;
    let ended = null;
    state("connecting");
    try {
      const [method, url] = request(name, params);
      const answer = await fetch(url, { method, headers: { ...headers(), Accept: "text/event-stream" }, signal: mine.signal });
      if (answer.status === 401) needsSignIn.value = true;
      if (!answer.ok) {
        const said = await answer.json().catch(() => ({}));
        if (answer.status >= 500 || answer.status === 429) return again(said.reason);
        closed = true;
        return state("ended", said.reason ?? answer.statusText);
      }
      const feed = parser((event, data) => {
        heard();
        delay = FIRST_MS;
        if (event === "bye") ended = data;
        else if (event === "stale") state("lost", data.reason);
        else { state("live"); on(event, data); }
      });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        feed(value);
      }
      if (ended && ended.error !== "stopping") {
        closed = true;
        if (ended.error === "authentication") needsSignIn.value = true;
        return state("ended", ended.reason);
      }
      again("the broker closed the stream");
    } catch (error) {
      if (!mine.signal.aborted) again("the broker does not answer");
    } finally {
      clearTimeout(silence);
    }
  };
  const seen = () => {
    if (closed) return;
    if (document.hidden) { abort?.abort(); clearTimeout(timer); timer = 0; }
    else { delay = FIRST_MS; clearTimeout(timer); timer = 0; abort?.abort(); open(); }
  };
  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    closed = true;
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(timer);
    clearTimeout(silence);
    abort?.abort();
  };
};
