// Calls of the public REST API. ROUTES names every route that the console uses; a test holds them against the broker's.

import { quoted } from "./format.js";
import { signal } from "./signals.js";

export const ROUTES = {
  access: "GET /anabranch/v1/access",
  version: "GET /admin/v2/brokers/version",
  clusters: "GET /admin/v2/clusters",
  brokers: "GET /admin/v2/brokers/{cluster}/details",
  machines: "GET /anabranch/v1/machines",
  operations: "GET /anabranch/v1/operations",
  drain: "POST /admin/v2/brokers/{cluster}/{broker}/drain",
  resume: "DELETE /admin/v2/brokers/{cluster}/{broker}/drain",
  settings: "GET /admin/v2/brokers/configuration/runtime",
  internals: "GET /admin/v2/brokers/internal-configuration",
  migrationStatus: "GET /admin/v2/metadata/migration/status",
  migrationStart: "POST /admin/v2/metadata/migration/start",
  migrationAbort: "POST /admin/v2/metadata/migration/abort",
  migrationVerify: "POST /admin/v2/metadata/migration/verify",
  tenants: "GET /admin/v2/tenants",
  namespaces: "GET /admin/v2/namespaces/{tenant}",
  namespace: "GET /admin/v2/namespaces/{tenant}/{namespace}",
  permissions: "GET /admin/v2/namespaces/{tenant}/{namespace}/permissions",
  grant: "POST /admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
  revoke: "DELETE /admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
  scalableTopics: "GET /admin/v2/scalable/{tenant}/{namespace}",
  persistentTopics: "GET /admin/v2/persistent/{tenant}/{namespace}",
  partitionedTopics: "GET /admin/v2/persistent/{tenant}/{namespace}/partitioned",
  create: "PUT /admin/v2/scalable/{tenant}/{namespace}/{topic}",
  remove: "DELETE /admin/v2/scalable/{tenant}/{namespace}/{topic}",
  timeline: "GET /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/timeline",
  tick: "GET /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/tick",
  events: "GET /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/events",
  messages: "GET /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages",
  regularMessages: "GET /anabranch/v1/persistent/{tenant}/{namespace}/{topic}/messages",
  messagePage: "GET /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages/page",
  regularMessagePage: "GET /anabranch/v1/persistent/{tenant}/{namespace}/{topic}/messages/page",
  messageCount: "GET /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages/count",
  regularMessageCount: "GET /anabranch/v1/persistent/{tenant}/{namespace}/{topic}/messages/count",
  publishScalable: "POST /anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages",
  autoscale: "GET /admin/v2/scalable/{tenant}/{namespace}/{topic}/autoscale",
  tryPolicy: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/autoscale/try",
  policy: "GET /admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy",
  setPolicy: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy",
  split: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/split/{segment}",
  merge: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/merge/{segment}/{other}",
  migrateTopic: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/migrate",
  subscription: "GET /admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}",
  subscribe: "PUT /admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}",
  unsubscribe: "DELETE /admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}",
  seek: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/seek",
  skipAll: "POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/skip-all",
  stats: "GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/stats",
  partitionedStats: "GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitioned-stats",
  internalStats: "GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/internalStats",
  regularSeek: "POST /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor/{timestamp}",
  regularExpire: "POST /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/expireMessages/{seconds}",
  regularSkip: "POST /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip/{count}",
  regularUnsubscribe: "DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}",
  regularSkipAll: "POST /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all",
  publish: "POST /topics/{domain}/{tenant}/{namespace}/{topic}",
  schemas: "GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas",
  schemaCheck: "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility",
  schemaAdd: "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
  schemaDelete: "DELETE /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
};

export class ApiError extends Error {
  constructor(status, code, reason) {
    super(reason);
    Object.assign(this, { status, code, reason });
  }
}

// The token stays in memory; "keep for this tab" puts it into session storage, which other tabs do not see.
const KEPT = "anabranch-token";
export const token = signal(sessionStorage.getItem(KEPT) ?? "");
export const needsSignIn = signal(false);

export const signIn = (given, keep) => {
  if (keep) sessionStorage.setItem(KEPT, given); else sessionStorage.removeItem(KEPT);
  token.value = given;
  needsSignIn.value = false;
};

export const signOut = () => {
  signIn("", false);
  needsSignIn.value = true;
};

export const headers = () => {
  // Any broker of a cluster answers: a page cannot follow a redirect to another port.
  const made = { Accept: "application/json", "X-Anabranch-Relay": "1" };
  if (token.value) made.Authorization = `Bearer ${token.value}`;
  return made;
};

/** Method and path of a route with its parameters and query filled in. */
export const request = (name, params = {}, query = {}) => {
  const [method, pattern] = ROUTES[name].split(" ");
  const path = pattern.replace(/\{(\w+)\}/g, (_, key) => encodeURIComponent(params[key]));
  const values = Object.entries(query).flatMap(([key, value]) => [value].flat().map(one => [key, one]));
  const text = new URLSearchParams(values.filter(([, value]) => value !== undefined)).toString();
  return [method, text ? `${path}?${text}` : path];
};

/** Calls a route; the answer's JSON, or null without one. Throws ApiError. */
export const ask = async (name, params, { query, body, signal: abort } = {}) => {
  const [method, url] = request(name, params, query);
  const init = { method, headers: headers(), signal: abort };
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(url, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "the broker does not answer");
  }
  return answered(answer);
};

const answered = async answer => {
  const text = await answer.text();
  if (answer.ok) {
    if (!text) return null;
    try { return JSON.parse(text); } catch { return text; }
  }
  if (answer.status === 401) needsSignIn.value = true;
  let said = {};
  try { said = JSON.parse(text); } catch { /* a proxy's page */ }
  throw new ApiError(answer.status, said.error ?? `http-${answer.status}`, said.reason ?? answer.statusText);
};

/** The names of a topic as parameters of a route. */
export const partsOf = name => {
  const [, rest] = name.includes("://") ? name.split("://") : [null, name];
  const [tenant, namespace, ...topic] = rest.split("/");
  return { tenant, namespace, topic: topic.join("/") };
};

/** The same call for a terminal. */
export const asCurl = (name, params, query, body) => {
  const [method, url] = request(name, params, query);
  const auth = token.value ? ' -H "Authorization: Bearer $TOKEN"' : "";
  const data = body === undefined ? "" : ` -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
  return `curl -X ${method}${auth}${data} '${location.origin}${url.replaceAll("'", "%27")}'`;
};
