// The page's MQTT client against bytes of the standard and a WebSocket that is only an object. Run by test_page_files.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const mqtt = await import(pathToFileURL(`${process.env.PAGE_DIR}/mqtt.js`).href);
const { Framer, MqttConnection, PACKET, decodePacket, encodeConnect, encodePublish, encodeSubscribe, encodeVariableInteger, filterFault, matches } = mqtt;

const bytes = (...values) => Uint8Array.from(values);

test("variable byte integers of the standard's table 1-1", () => {
  for (const [value, wanted] of [[0, [0]], [127, [127]], [128, [0x80, 1]], [16383, [0xff, 0x7f]], [16384, [0x80, 0x80, 1]], [268435455, [0xff, 0xff, 0xff, 0x7f]]]) {
    assert.deepEqual(encodeVariableInteger(value), wanted);
  }
});

test("CONNECT, SUBSCRIBE and PUBLISH byte for byte", () => {
  assert.deepEqual([...encodeConnect({ clientId: "c", keepAlive: 30 })],
    [0x10, 22, 0, 4, 77, 81, 84, 84, 5, 2, 0, 30, 8, 0x27, 0, 0x10, 0, 0, 0x21, 3, 0xe8, 0, 1, 99]);
  assert.deepEqual([...encodeSubscribe(1, [{ filter: "a/#", qos: 1 }], 5)], [0x82, 11, 0, 1, 2, 0x0b, 5, 0, 3, 97, 47, 35, 1]);
  assert.deepEqual([...encodePublish({ topicName: "a", payload: "é", qos: 1, packetId: 258 })], [0x32, 8, 0, 1, 97, 1, 2, 0, 0xc3, 0xa9]);
});

test("packets come out whatever the chunking", () => {
  const publish = encodePublish({ topicName: "a/b", payload: "x".repeat(200), qos: 1, packetId: 7 });
  const stream = Uint8Array.from([...publish, 0xd0, 0, ...publish]);
  for (let size = 1; size <= stream.length; size += 13) {
    const framer = new Framer();
    const packets = [];
    for (let at = 0; at < stream.length; at += size) packets.push(...framer.feed(stream.subarray(at, at + size)));
    assert.deepEqual(packets.map(({ type }) => type), [PACKET.PUBLISH, PACKET.PINGRESP, PACKET.PUBLISH]);
    assert.equal(packets[2].topicName, "a/b");
    assert.equal(packets[2].payload.length, 200);
  }
});

test("properties and reason codes", () => {
  const publish = decodePacket(0x30, bytes(0, 1, 97, 10, 0x0b, 5, 0x0b, 0x80, 1, 0x26, 0, 0, 0, 0, 33));
  assert.deepEqual(publish.properties.subscriptionIds, [5, 128]);
  const suback = decodePacket(0x90, bytes(0, 1, 0, 1, 0x87));
  assert.deepEqual(suback.reasonCodes, [1, 0x87]);
  const disconnect = decodePacket(0xe0, bytes(0x8e, 5, 0x1f, 0, 2, 104, 105));
  assert.equal(disconnect.properties.reasonString, "hi");
});

test("what is malformed ends in an error, not in a hang", () => {
  assert.throws(() => new Framer().feed(bytes(0x30, 0xff, 0xff, 0xff, 0xff)), /Remaining Length/);
  assert.throws(() => new Framer().feed(bytes(0x30, 0xff, 0xff, 0xff, 0x7f)), /larger/);
  assert.throws(() => new Framer().feed(bytes(0x30, 2, 0, 9)), /too short/);
  assert.throws(() => decodePacket(0x30, bytes(0, 1, 0xff, 0)), TypeError); // not UTF-8
  assert.throws(() => decodePacket(0x20, bytes(0, 0, 2, 0x7e, 0)), /unknown property/);
});

test("filters", () => {
  for (const [filter, name, wanted] of [["a/#", "a", true], ["a/+", "a", false], ["+/b", "a/b", true], ["#", "$SYS/x", false], ["$SYS/#", "$SYS/x", true], ["a/+/c", "a//c", true], ["a", "a/b", false]]) {
    assert.equal(matches(filter, name), wanted, `${filter} ${name}`);
  }
  assert.equal(filterFault("a/+/#"), "");
  for (const filter of ["", "a#", "#/a", "a/b+", "a\0"]) assert.notEqual(filterFault(filter), "");
});

class FakeSocket {
  static last = null;
  readyState = 1;
  sent = [];
  constructor(url, protocols) { this.url = url; this.protocols = protocols; FakeSocket.last = this; }
  send(data) { this.sent.push(data); }
  close() { this.readyState = 3; }
  hear(...values) { this.onmessage({ data: bytes(...values).buffer }); }
}

function connected(serverProperties = [0]) {
  const connection = new MqttConnection(FakeSocket);
  const states = [];
  connection.addEventListener("state", ({ detail }) => states.push(detail));
  connection.connect({ url: "ws://edge/mqtt", clientId: "c" });
  FakeSocket.last.onopen();
  FakeSocket.last.hear(0x20, 2 + serverProperties.length, 0, 0, ...serverProperties);
  return { connection, socket: FakeSocket.last, states };
}

test("a QoS 1 message is acknowledged and handed on; subscriptions follow CONNACK", () => {
  const { connection, socket } = connected();
  assert.deepEqual(socket.protocols, ["mqtt"]);
  const messages = [];
  connection.addEventListener("message", ({ detail }) => messages.push(detail));
  connection.subscribe("a", { subscriptionId: 3 });
  assert.equal(socket.sent[1][0], 0x82);
  socket.hear(0x32, 7, 0, 1, 97, 0, 9, 0, 33);
  assert.deepEqual([...socket.sent[2]], [0x40, 2, 0, 9]);
  assert.equal(messages[0].topicName, "a");
  connection.close();
});

test("publish resolves with PUBACK and rejects with a refusal or a lost connection", async () => {
  const { connection, socket } = connected();
  const good = connection.publish("a", "1", { qos: 1 });
  socket.hear(0x40, 2, 0, 1);
  await good;
  const bad = connection.publish("a", "2", { qos: 1 });
  socket.hear(0x40, 4, 0, 2, 0x87, 0);
  await assert.rejects(bad, /not authorized/);
  const lost = connection.publish("a", "3", { qos: 1 });
  socket.onclose({ reason: "", code: 1006 });
  await assert.rejects(lost, /1006/);
  assert.equal(connection.state, "waiting");
  connection.close();
});

test("a refused password is final, a closed connection is tried again and subscribed again", async () => {
  const connection = new MqttConnection(FakeSocket);
  connection.connect({ url: "ws://edge/mqtt", clientId: "c" });
  FakeSocket.last.hear(0x20, 3, 0, 0x86, 0);
  assert.equal(connection.state, "closed");

  const { connection: second, socket } = connected();
  second.subscribe("a/#");
  socket.onclose({ reason: "", code: 1006 });
  assert.equal(second.state, "waiting");
  await new Promise((resolve) => second.addEventListener("state", ({ detail }) => detail.state === "connecting" && resolve()));
  FakeSocket.last.hear(0x20, 3, 0, 0, 0);
  assert.equal(second.state, "connected");
  assert.equal(FakeSocket.last.sent[0][0], 0x82, "subscribed again");
  second.close();
});

test("without Subscription Identifiers at the server none is sent", () => {
  const { connection, socket } = connected([2, 0x29, 0]);
  connection.subscribe("a", { subscriptionId: 3 });
  assert.deepEqual([...socket.sent[1]], [0x82, 7, 0, 1, 0, 0, 1, 97, 0]);
  connection.close();
});

test("a text frame and garbage end the connection", () => {
  for (const data of ["text", bytes(0, 0).buffer]) {
    const { connection, socket } = connected();
    socket.onmessage({ data });
    assert.equal(connection.state, "waiting");
    connection.close();
  }
});
