// Messages of a topic: the part of the page that loads the list when it is wanted, and pure functions of it.

import { Lazy, html, remember, route } from "./ui.js";

const list = () => import("./message_list.js");

export const bytesOf = one => one.payloadBase64 !== undefined
  ? Uint8Array.from(atob(one.payloadBase64), char => char.charCodeAt(0)) : new TextEncoder().encode(one.payload ?? "");

/** 16 bytes a line: offset, hexadecimal, text. Pure. */
export const hexDump = data => {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.slice(at, at + 16)];
    const codes = part.map(byte => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(4, "0")}  ${codes}  ${part.map(byte => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
};

/** Indents JSON without reading its values, so that numbers of any size stay what they are. Other text is unchanged. */
export const indented = text => {
  try { JSON.parse(text); } catch { return text; }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let level = 0, out = "";
  const line = () => `\n${"  ".repeat(level)}`;
  tokens.forEach((token, index) => {
    const before = tokens[index - 1], next = tokens[index + 1];
    if (token === "{" || token === "[") { level++; out += token + (next === "}" || next === "]" ? "" : line()); }
    else if (token === "}" || token === "]") { level--; out += (before === "{" || before === "[" ? "" : line()) + token; }
    else if (token === ",") out += `,${line()}`;
    else out += token === ":" ? ": " : token;
  });
  return out;
};

/** Messages that a filter admits: words of key, payload, id or properties; `key:K` and `segment:N` exactly. Pure. */
export const admitted = (messages, text) => {
  const words = text.split(/\s+/).filter(Boolean);
  return messages.filter(one => words.every(word => {
    if (word.startsWith("key:")) return one.key === word.slice(4);
    if (word.startsWith("segment:")) return String(one.segment) === word.slice(8);
    return `${one.id} ${one.key ?? ""} ${one.payload ?? ""} ${JSON.stringify(one.properties)}`.toLowerCase().includes(word.toLowerCase());
  }));
};

/** Its place in the log, in words: "5:3:0" is message 0 of the batch that is entry 3 of ledger 5. Pure. */
export const placeOf = id => {
  const [ledger, entry, index] = id.split(":");
  return `ledger ${ledger}, entry ${entry}${index === undefined ? "" : `, message ${index} of its batch`}`;
};

/** Read only when it is wanted: every look reads all segments. `sent`: another value reads at once. */
export const Messages = props => route.value.query.messages
  ? html`<${Lazy} load=${list} name="MessageList" ...${props} />`
  : html`<section class="panel messages"><h2>Messages</h2><button onClick=${() => remember({ messages: "1" })}>Show them</button></section>`;
