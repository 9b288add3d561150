// Sends messages to any topic, for the form and for dead letters that go back.

import { ask, partsOf } from "./api.js";

/** [route, parameters, body] of the call that sends messages to the topic of this full name. Pure. */
export const callOf = (topic, messages) => topic.startsWith("topic://")
  ? ["publishScalable", partsOf(topic), { messages }]
  : ["publish", { domain: topic.split("://")[0], ...partsOf(topic) }, { messages }];

/** Sends them; what each became: [{place, error}]. */
export const publish = async (topic, messages) => {
  const [name, params, body] = callOf(topic, messages), answer = await ask(name, params, { body });
  return name === "publish"
    ? answer.messagePublishResults.map(one => (one.errorCode ? { error: one.errorMsg } : { place: one.messageId }))
    : answer.results.map(one => (one.error ? { error: one.error } : { place: `${one.messageId} of segment ${one.segment}` }));
};

/** A shown message as one to send: without the properties that dead-letter producers add. Pure. */
export const asOutgoing = one => {
  const properties = Object.fromEntries(Object.entries(one.properties).filter(([name]) => !ADDED.includes(name)));
  return {
    ...(one.payloadBase64 === undefined ? { payload: one.payload ?? "" } : { payloadBase64: one.payloadBase64 }),
    ...(one.key === null ? {} : { key: one.key }), ...(Object.keys(properties).length ? { properties } : {}),
  };
};
export const ORIGIN = "REAL_TOPIC";
const ADDED = [ORIGIN, "REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_ID", "RECONSUMETIMES", "DELAY_TIME", "EXCEPTION"];
