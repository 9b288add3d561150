// Numbers, times and hostile text for people. Pure.

const UNITS = ["", "k", "M", "G", "T", "P"];

/** 1234567 → "1.23 M"; below 1000 without decimals unless it is a fraction. */
export const short = number => {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size < 1000) return size >= 10 || Number.isInteger(number) ? String(Math.round(number)) : number.toFixed(1);
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(size) / 3));
  return `${(number / 1000 ** power).toPrecision(3)} ${UNITS[power]}`;
};

/** Whole numbers with separators; exact also beyond 2^53, because texts and BigInts stay what they are. */
export const whole = number =>
  number === null || number === undefined ? "–" : BigInt(typeof number === "number" ? Math.round(number) : number)
    .toLocaleString("en-US");

export const bytes = number => {
  if (number === null || number === undefined) return "–";
  if (number < 1024) return `${Math.round(number)} B`;
  const power = Math.min(5, Math.floor(Math.log2(number) / 10));
  return `${(number / 1024 ** power).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
};

export const hex = position => position.toString(16).padStart(4, "0");

/** 93_000 ms → "1 min 33 s". */
export const duration = ms => {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
};

export const ago = (ms, now) => (ms > 0 ? `${duration(now - ms)} ago` : "–");

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

/** 2026-11-19 04:05:06, in UTC or in the browser's zone. */
export const moment = (ms, utc) => {
  if (!(ms > 0)) return "–";
  const d = new Date(ms);
  const [y, mo, da, h, mi, s] = utc
    ? [d.getUTCFullYear(), d.getUTCMonth(), d.getUTCDate(), d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds()]
    : [d.getFullYear(), d.getMonth(), d.getDate(), d.getHours(), d.getMinutes(), d.getSeconds()];
  return `${y}-${pad(mo + 1)}-${pad(da)} ${pad(h)}:${pad(mi)}:${pad(s)}${utc ? " UTC" : ""}`;
};

export const clock = (ms, utc) => moment(ms, utc).slice(11, 19);

const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const escape = found => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** A word for a POSIX shell; for bash, ksh or zsh if it has characters that are not shown, because a terminal obeys them. */
export const quoted = text => {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (text.search(UNSAFE) >= 0) return `$'${text.replace(/[\\']/g, "\\$&").replace(UNSAFE, escape)}'`;
  return `'${text.replaceAll("'", "'\\''")}'`;
};

/** Text of others on one line, with control, bidi and invisible characters shown as escapes. */
export const plain = text => String(text).replace(UNSAFE, escape);

/** As `plain`, on as many lines as it has. */
export const visible = text => String(text).replace(UNSAFE, found => (found === "\n" || found === "\t" ? found : escape(found)));

/** Values of policies as rows of a table: nested objects by their dotted path; what is not set is left out. */
export const flattened = (value, path = "") =>
  value === null || value === undefined ? []
    : typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? Object.entries(value).flatMap(([key, one]) => flattened(one, path ? `${path}.${key}` : key))
      : [[path, typeof value === "object" ? JSON.stringify(value) : String(value)]];
