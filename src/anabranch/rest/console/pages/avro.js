// Avro's binary encoding as JSON text, by the schema that a message names. Text, so that longs of 64 bits stay exact. Pure.

const DEPTH_MAX = 64, ITEMS_MAX = 100000;

class Input {
  constructor(data) { this.data = data; this.at = 0; this.items = 0; }
  byte() {
    if (this.at >= this.data.length) throw new Error("it ends too early");
    return this.data[this.at++];
  }
  take(count) {
    if (count < 0n || count > BigInt(this.data.length - this.at)) throw new Error("it ends too early");
    const part = this.data.subarray(this.at, this.at + Number(count));
    this.at += Number(count);
    return part;
  }
  long() {
    let value = 0n, shift = 0n;
    for (;;) {
      const byte = this.byte();
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 128) return BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));
      shift += 7n;
      if (shift > 63n) throw new Error("a number has more than 64 bits");
    }
  }
  float(size) {
    const part = this.take(BigInt(size)), view = new DataView(part.buffer, part.byteOffset, size);
    return size === 4 ? view.getFloat32(0, true) : view.getFloat64(0, true);
  }
}

const hexOf = data => JSON.stringify(`0x${[...data].map(byte => byte.toString(16).padStart(2, "0")).join("")}`);
const textOf = data => JSON.stringify(new TextDecoder("utf-8", { fatal: true }).decode(data));
const real = number => (Number.isFinite(number) ? String(number) : JSON.stringify(String(number)));

const fullName = (schema, space) => (schema.name.includes(".") || !space ? schema.name : `${space}.${schema.name}`);

const blocks = (input, one) => {
  const found = [];
  for (;;) {
    let count = input.long();
    if (count === 0n) return found;
    if (count < 0n) { count = -count; input.long(); }
    for (; count > 0n; count--) {
      if (++input.items > ITEMS_MAX) throw new Error(`it has more than ${ITEMS_MAX} items`);
      found.push(one());
    }
  }
};

const PRIMITIVE = {
  null: () => "null",
  boolean: input => (input.byte() ? "true" : "false"),
  int: input => String(input.long()),
  long: input => String(input.long()),
  float: input => real(input.float(4)),
  double: input => real(input.float(8)),
  bytes: input => hexOf(input.take(input.long())),
  string: input => textOf(input.take(input.long())),
};

const value = (input, schema, named, space, depth) => {
  if (depth > DEPTH_MAX) throw new Error("it is nested too deeply");
  const inner = (other, at = space) => value(input, other, named, at, depth + 1);
  if (Array.isArray(schema)) {
    const index = input.long();
    if (index < 0n || index >= BigInt(schema.length)) throw new Error("a union has no such branch");
    return inner(schema[Number(index)]);
  }
  if (typeof schema === "string") {
    if (PRIMITIVE[schema]) return PRIMITIVE[schema](input);
    const known = named.get(schema) ?? named.get(`${space}.${schema}`);
    if (!known) throw new Error(`the schema has no type ${schema}`);
    return value(input, known.schema, named, known.space, depth + 1);
  }
  const { type } = schema;
  if (type === "record" || type === "error" || type === "enum" || type === "fixed") {
    const own = schema.namespace ?? (schema.name.includes(".") ? schema.name.slice(0, schema.name.lastIndexOf(".")) : space);
    named.set(fullName(schema, own), { schema, space: own });
    if (type === "fixed") return hexOf(input.take(BigInt(schema.size)));
    if (type === "enum") {
      const symbol = schema.symbols[Number(input.long())];
      if (symbol === undefined) throw new Error("an enum has no such symbol");
      return JSON.stringify(symbol);
    }
    return `{${schema.fields.map(field => `${JSON.stringify(field.name)}:${inner(field.type, own)}`).join(",")}}`;
  }
  if (type === "array") return `[${blocks(input, () => inner(schema.items)).join(",")}]`;
  if (type === "map") return `{${blocks(input, () => `${textOf(input.take(input.long()))}:${inner(schema.values)}`).join(",")}}`;
  return inner(type);
};

/** JSON text of a payload. Throws with the reason if it does not fit the schema. */
export const decoded = (definition, data) => {
  const input = new Input(data), text = value(input, JSON.parse(definition), new Map(), "", 0);
  if (input.at !== data.length) throw new Error(`${data.length - input.at} bytes are left`);
  return text;
};
