// MQTT.js: promises around an event emitter. MQTT 3.1 (MQIsdp), 3.1.1 and 5.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { setTimeout as after } from "node:timers/promises";
import { parseArgs } from "node:util";
import mqtt from "mqtt";

const WAIT_MS = 10_000;
const ABSENT_MS = 300; // how long a message that must not come is waited for
const COUNT = 50;
const TRIES = 5; // a retained message may reach the other edge a moment after its acknowledgement
const NOT_SUPPORTED = 0x9e;

const names = ["host-a", "port-a", "host-b", "port-b", "ws-url", "tls-port", "ca", "window"];
const { values: args } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
const A = `mqtt://${args["host-a"]}:${args["port-a"]}`;
const B = `mqtt://${args["host-b"]}:${args["port-b"]}`;

class Unsupported extends Error {}

const unique = () => randomBytes(6).toString("hex");
const payloadOf = (number) => Buffer.concat([Buffer.from(`${number}:`), Uint8Array.from(Array(256).keys())]);
const payloads = Array.from({ length: COUNT }, (_, number) => payloadOf(number));

function within(promise, what, waitMs = WAIT_MS) {
  const timer = new AbortController();
  const late = after(waitMs, undefined, { signal: timer.signal }).then(() => assert.fail(`${what}: not in ${waitMs} ms`));
  return Promise.race([promise, late]).finally(() => {
    timer.abort();
    late.catch(() => {});
  });
}

// Messages in the order of their arrival, and those who wait for one.
class Inbox {
  #messages = [];
  #waiting = [];

  put(message) {
    const next = this.#waiting.shift();
    if (next) next(message);
    else this.#messages.push(message);
  }

  get(waitMs = WAIT_MS) {
    if (this.#messages.length) return Promise.resolve(this.#messages.shift());
    return within(new Promise((resolve) => this.#waiting.push(resolve)), "a message", waitMs);
  }
}

class Link {
  static async connect(url, version, { clientId, clean = true, expiry = 0, inbox = new Inbox(), ...more } = {}) {
    const client = mqtt.connect(url, {
      protocolId: version === 3 ? "MQIsdp" : "MQTT",
      protocolVersion: version,
      clientId: clientId ?? `mqttjs-${unique()}`,
      clean,
      reconnectPeriod: 0,
      connectTimeout: WAIT_MS,
      properties: version === 5 ? { sessionExpiryInterval: expiry } : undefined,
      ...more,
    });
    const link = new Link(client, version, inbox);
    const refused = once(client, "close").then(() => assert.fail(`closed instead of a CONNACK from ${url}`));
    refused.catch(() => {});
    const [connack] = await within(Promise.race([once(client, "connect"), refused]), `CONNACK from ${url}`);
    client.on("error", (error) => console.error(error));
    link.sessionPresent = connack.sessionPresent;
    return link;
  }

  constructor(client, version, inbox) {
    Object.assign(this, { client, version, inbox });
    client.on("message", (name, payload, { qos, retain, properties }) => inbox.put({ name, payload, qos, retain, properties }));
  }

  // The reason code of the SUBACK.
  async subscribe(filter, qos, properties = undefined) {
    const suback = new Promise((resolve, reject) => {
      this.client.once("close", () => reject(new Error(`closed instead of a SUBACK for ${filter}`)));
      this.client.subscribe(filter, { qos, properties }, (error, granted, packet) => {
        if (packet) resolve(packet.granted[0]);
        else if (error?.packet?.granted) resolve(error.packet.granted[0]);
        else reject(error ?? new Error("no SUBACK packet"));
      });
    });
    return within(suback, `SUBACK for ${filter}`);
  }

  async subscribed(filter, qos, properties) {
    assert.equal(await this.subscribe(filter, qos, properties), qos, `granted for ${filter}`);
  }

  // A window of them at once (MQTT.js keeps to no Receive Maximum), then wait for their acknowledgements.
  async publish(name, sent, options = { qos: 1 }) {
    const all = [sent].flat();
    while (all.length) {
      const some = all.splice(0, Number(args.window ?? 20));
      const acknowledged = some.map((payload) => this.client.publishAsync(name, payload, options));
      await within(Promise.all(acknowledged), `acknowledgements of ${name}`);
    }
  }

  // Exactly these, in this order.
  async getMany(name, wanted, qos) {
    for (const [number, payload] of wanted.entries()) {
      same(await this.inbox.get(), { name, payload, qos, retain: false }, `message ${number} of ${wanted.length}`);
    }
  }

  cut() {
    this.client.stream.destroy();
  }

  async [Symbol.asyncDispose]() {
    if (this.client.connected) await within(this.client.endAsync(), "end");
    else this.client.end(true);
  }
}

function same(got, wanted, what) {
  const { properties, ...rest } = got;
  assert.deepEqual(rest, wanted, what);
}

// Links that are disconnected properly at the end, whatever happened (`await using` needs a newer Node.js).
async function using(makers, body) {
  const links = [];
  try {
    for (const make of makers) links.push(await make());
    return await body(...links);
  } finally {
    for (const link of links) await link[Symbol.asyncDispose]();
  }
}

async function connect(version) {
  for (const url of [A, B]) {
    await using([() => Link.connect(url, version)], (link) => assert.equal(link.sessionPresent, false, "session present"));
  }
}

const exchange = (qos) => async (version, prefix) => {
  for (const [way, there, here] of [["a-b", A, B], ["b-a", B, A]]) {
    const name = `${prefix}/qos${qos}/${way}`;
    await using([() => Link.connect(here, version), () => Link.connect(there, version)], async (reader, writer) => {
      await reader.subscribed(name, qos);
      await writer.publish(name, payloads, { qos });
      await reader.getMany(name, payloads, qos);
    });
  }
};

async function retained(version, prefix) {
  const name = `${prefix}/retained/x`;
  const fresh = (body) => using([() => Link.connect(B, version)], body);
  await using([() => Link.connect(A, version)], async (writer) => {
    await writer.publish(name, "kept", { qos: 1, retain: true });
    for (let left = TRIES - 1; ; left--) {
      const found = await fresh(async (reader) => {
        await reader.subscribed(name, 1);
        const got = await reader.inbox.get(2_000).catch((error) => (left ? undefined : Promise.reject(error)));
        if (!got) return false;
        same(got, { name, payload: Buffer.from("kept"), qos: 1, retain: true }, "a new subscriber's message");
        await writer.publish(name, "live", { qos: 1, retain: true });
        same(await reader.inbox.get(), { name, payload: Buffer.from("live"), qos: 1, retain: false }, "a live message");
        return true;
      });
      if (found) break;
    }
    await writer.publish(name, "", { qos: 1, retain: true });
    for (let left = TRIES - 1; ; left--) {
      const first = await fresh(async (reader) => {
        await reader.subscribed(`${prefix}/retained/+`, 1);
        await writer.publish(`${prefix}/retained/end`, "end");
        return (await reader.inbox.get()).payload.toString();
      });
      if (first === "end") break;
      assert.ok(left, "a deleted retained message is still sent");
    }
  });
}

async function will(version, prefix) {
  const name = `${prefix}/will`;
  const withWill = (payload) => Link.connect(A, version, { will: { topic: name, payload, qos: 1, retain: false } });
  await using([() => Link.connect(B, version), () => Link.connect(A, version)], async (watcher, writer) => {
    await watcher.subscribed(name, 1);
    (await withWill("gone")).cut();
    same(await watcher.inbox.get(), { name, payload: Buffer.from("gone"), qos: 1, retain: false }, "the will");
    await using([() => withWill("never")], () => {});
    await writer.publish(name, "end");
    assert.equal((await watcher.inbox.get()).payload.toString(), "end", "after a proper DISCONNECT");
  });
}

async function shared(version, prefix) {
  const name = `${prefix}/shared`;
  const inbox = new Inbox();
  const member = (url) => () => Link.connect(url, version, { inbox });
  await using([member(A), member(B), () => Link.connect(A, version)], async (one, two, writer) => {
    for (const each of [one, two]) {
      const granted = await each.subscribe(`$share/g/${name}`, 1);
      if (granted === NOT_SUPPORTED) throw new Unsupported("SUBACK 0x9E: shared subscriptions not supported");
      assert.equal(granted, 1, "granted for the shared subscription");
    }
    await writer.publish(name, payloads);
    const got = [];
    while (got.length < COUNT) got.push((await inbox.get()).payload.toString("latin1"));
    assert.deepEqual(got.sort(), payloads.map((each) => each.toString("latin1")).sort(), "all messages, each once");
    await assert.rejects(inbox.get(ABSENT_MS), "more messages than were published");
  });
}

async function properties(version, prefix) {
  const name = `${prefix}/properties`;
  await using([() => Link.connect(B, version), () => Link.connect(A, version)], async (reader, writer) => {
    await reader.subscribed(name, 1, { subscriptionIdentifier: 7 });
    const sent = {
      payloadFormatIndicator: true,
      contentType: "text/plain",
      responseTopic: `${prefix}/answers`,
      correlationData: Buffer.from([0, 255]),
      userProperties: { b: ["2", "3"], a: "1" }, // equal names can only be neighbours in MQTT.js
    };
    await writer.publish(name, "é", { qos: 1, properties: { ...sent, messageExpiryInterval: 600 } });
    const { messageExpiryInterval, subscriptionIdentifier, ...got } = (await reader.inbox.get()).properties;
    assert.ok(messageExpiryInterval >= 590 && messageExpiryInterval <= 600, `message expiry ${messageExpiryInterval}`);
    assert.equal(subscriptionIdentifier, 7, "subscription identifier");
    assert.deepEqual({ ...got, userProperties: { ...got.userProperties } }, sent, "properties");
    assert.deepEqual(Object.keys(got.userProperties), ["b", "a"], "order of the user properties");
  });
}

async function session(version, prefix) {
  const clientId = `mqttjs-${unique()}`;
  const again = (url, clean) => () => Link.connect(url, version, { clientId, clean, expiry: clean ? 0 : 300 });
  const name = (qos) => `${prefix}/session/${qos}`;
  await using([again(B, false)], async (reader) => {
    assert.equal(reader.sessionPresent, false, "session present at the first connection");
    for (const qos of [1, 2]) await reader.subscribed(name(qos), qos);
  });
  await using([() => Link.connect(A, version)], async (writer) => {
    for (const qos of [1, 2]) await writer.publish(name(qos), payloads, { qos });
  });
  await using([again(A, false)], async (reader) => {
    if (version > 3) assert.equal(reader.sessionPresent, true, "no session present on the other edge");
    const got = { [name(1)]: [], [name(2)]: [] };
    for (let left = 2 * COUNT; left; left--) {
      const message = await reader.inbox.get();
      got[message.name].push([message.qos, message.payload]);
    }
    for (const qos of [1, 2]) {
      assert.deepEqual(got[name(qos)], payloads.map((each) => [qos, each]), `offline messages of QoS ${qos}`);
    }
  });
  await using([again(A, true)], (reader) => assert.equal(reader.sessionPresent, false, "session present after a clean start"));
}

// A transport: both ways, and a message larger than one frame.
async function over(version, prefix, near, far) {
  const sent = [payloadOf(0), Buffer.concat(Array(400).fill(payloadOf(1)))];
  await using([near, () => Link.connect(far, version)], async (link, other) => {
    await link.subscribed(`${prefix}/to`, 1);
    await other.subscribed(`${prefix}/from`, 1);
    await other.publish(`${prefix}/to`, sent);
    await link.getMany(`${prefix}/to`, sent, 1);
    await link.publish(`${prefix}/from`, sent);
    await other.getMany(`${prefix}/from`, sent, 1);
  });
}

const websocket = (version, prefix) => over(version, `${prefix}/ws`, () => Link.connect(args["ws-url"], version), A);

function tls(version, prefix) {
  const url = `mqtts://${args["host-a"]}:${args["tls-port"]}`;
  return over(version, `${prefix}/tls`, () => Link.connect(url, version, { ca: readFileSync(args.ca) }), B);
}

const checks = { connect, qos0: exchange(0), qos1: exchange(1), qos2: exchange(2), retained, will };
let failed = false;
for (const version of [3, 4, 5]) {
  const prefix = `interop/${unique()}/v${version}`;
  const all = { ...checks, ...(version === 5 && { shared, properties }), session };
  if (args["ws-url"]) all.websocket = websocket;
  if (args["tls-port"]) all.tls = tls;
  for (const [check, run] of Object.entries(all)) {
    const line = { check, version, ok: true, detail: "" };
    try {
      await run(version, prefix);
    } catch (error) {
      console.error(error);
      failed = true;
      Object.assign(line, { ok: false, detail: `${error.name}: ${error.message}`.slice(0, 500) });
      if (error instanceof Unsupported) line.unsupported = true;
    }
    console.log(JSON.stringify(line));
  }
}
process.exit(failed ? 1 : 0);
