// A small MQTT 5.0 client over WebSocket: connect, subscribe, publish QoS 0 and 1, ping, reconnect with backoff.
// No dependency, no DOM: it runs in a browser and in Node (for its tests). Clause ids are those of MQTT 5.0.

export const PACKET = {
  CONNECT: 1, CONNACK: 2, PUBLISH: 3, PUBACK: 4, SUBSCRIBE: 8, SUBACK: 9, UNSUBSCRIBE: 10, UNSUBACK: 11,
  PINGREQ: 12, PINGRESP: 13, DISCONNECT: 14,
};
const PACKET_BYTES_MAX = 1 << 20; // what we tell the edge we take; a dashboard needs no larger message
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15000];
const KEEP_ALIVE_S = 30;
const CONNECT_TIMEOUT_MS = 10000;

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true });

export const REASONS = {
  0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error", 0x83: "implementation specific error",
  0x84: "unsupported protocol version", 0x85: "client identifier not valid", 0x86: "bad user name or password",
  0x87: "not authorized", 0x88: "server unavailable", 0x89: "server busy", 0x8a: "banned", 0x8b: "server shutting down",
  0x8d: "keep alive timeout", 0x8e: "session taken over", 0x8f: "topic filter invalid", 0x90: "topic name invalid",
  0x91: "packet identifier in use", 0x93: "receive maximum exceeded", 0x95: "packet too large", 0x97: "quota exceeded",
  0x98: "administrative action", 0x99: "payload format invalid", 0x9a: "retain not supported",
  0x9b: "QoS not supported", 0x9c: "use another server", 0x9d: "server moved",
  0x9e: "shared subscriptions not supported", 0x9f: "connection rate exceeded",
  0xa1: "subscription identifiers not supported", 0xa2: "wildcard subscriptions not supported",
};

export function reasonText(code) {
  return REASONS[code] ?? `reason 0x${code.toString(16)}`;
}

// ---- encoding --------------------------------------------------------------------------------------------------

export function encodeVariableInteger(value) {
  const bytes = [];
  do {
    const low = value % 128;
    value = Math.floor(value / 128);
    bytes.push(value > 0 ? low | 0x80 : low);
  } while (value > 0);
  return bytes;
}

function utf8(text) {
  const bytes = encoder.encode(text);
  if (bytes.length > 65535) throw new RangeError("an MQTT string holds at most 65,535 bytes");
  return [bytes.length >> 8, bytes.length & 0xff, ...bytes];
}

const u16 = (value) => [value >> 8, value & 0xff];
const u32 = (value) => [(value >>> 24) & 0xff, (value >>> 16) & 0xff, (value >>> 8) & 0xff, value & 0xff];

function packet(type, flags, ...parts) {
  const size = parts.reduce((sum, part) => sum + part.length, 0);
  const head = [(type << 4) | flags, ...encodeVariableInteger(size)];
  const bytes = new Uint8Array(head.length + size);
  bytes.set(head);
  let at = head.length;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

export function encodeConnect({ clientId, userName, password, keepAlive = KEEP_ALIVE_S }) {
  const flags = 0x02 | (userName ? 0x80 : 0) | (password ? 0x40 : 0); // Clean Start
  const properties = [0x27, ...u32(PACKET_BYTES_MAX), 0x21, ...u16(1000)]; // Maximum Packet Size, Receive Maximum
  return packet(
    PACKET.CONNECT, 0,
    [...utf8("MQTT"), 5, flags, ...u16(keepAlive), properties.length, ...properties],
    utf8(clientId), userName ? utf8(userName) : [], password ? utf8(password) : [],
  );
}

export function encodeSubscribe(packetId, filters, subscriptionId) {
  const properties = subscriptionId ? [0x0b, ...encodeVariableInteger(subscriptionId)] : [];
  const entries = filters.flatMap(({ filter, qos = 0 }) => [...utf8(filter), qos]);
  return packet(PACKET.SUBSCRIBE, 2, [...u16(packetId), ...encodeVariableInteger(properties.length), ...properties], entries);
}

export function encodeUnsubscribe(packetId, filters) {
  return packet(PACKET.UNSUBSCRIBE, 2, [...u16(packetId), 0], filters.flatMap(utf8));
}

export function encodePublish({ topicName, payload, qos = 0, retain = false, packetId = 0, dup = false }) {
  const bytes = typeof payload === "string" ? encoder.encode(payload) : payload;
  const flags = (dup ? 8 : 0) | (qos << 1) | (retain ? 1 : 0);
  return packet(PACKET.PUBLISH, flags, utf8(topicName), qos ? u16(packetId) : [], [0], bytes);
}

const encodePuback = (packetId) => packet(PACKET.PUBACK, 0, u16(packetId));
const PINGREQ_BYTES = packet(PACKET.PINGREQ, 0);
const DISCONNECT_BYTES = packet(PACKET.DISCONNECT, 0);

// ---- decoding --------------------------------------------------------------------------------------------------

export class ProtocolError extends Error {}

// [MQTT5 2.2.2.2] how the value of each property is laid out
const PROPERTY = {
  0x01: ["payloadFormat", "u8"], 0x02: ["messageExpiry", "u32"], 0x03: ["contentType", "text"],
  0x08: ["responseTopic", "text"], 0x09: ["correlationData", "binary"], 0x0b: ["subscriptionIds", "varint"],
  0x11: ["sessionExpiry", "u32"], 0x12: ["assignedClientId", "text"], 0x13: ["serverKeepAlive", "u16"],
  0x15: ["authMethod", "text"], 0x16: ["authData", "binary"], 0x1a: ["responseInformation", "text"],
  0x1c: ["serverReference", "text"], 0x1f: ["reasonString", "text"], 0x21: ["receiveMaximum", "u16"],
  0x22: ["topicAliasMaximum", "u16"], 0x23: ["topicAlias", "u16"], 0x24: ["maximumQos", "u8"],
  0x25: ["retainAvailable", "u8"], 0x26: ["userProperties", "pair"], 0x27: ["maximumPacketSize", "u32"],
  0x28: ["wildcardAvailable", "u8"], 0x29: ["subscriptionIdsAvailable", "u8"], 0x2a: ["sharedAvailable", "u8"],
};

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  take(count) {
    if (this.at + count > this.bytes.length) throw new ProtocolError("packet too short");
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
  get left() { return this.bytes.length - this.at; }
  u8() { return this.take(1)[0]; }
  u16() { const [high, low] = this.take(2); return (high << 8) | low; }
  u32() { const [a, b, c, d] = this.take(4); return ((a << 24) | (b << 16) | (c << 8) | d) >>> 0; }
  binary() { return this.take(this.u16()); }
  text() { return strict.decode(this.binary()); }
  pair() { return [this.text(), this.text()]; }
  varint() {
    let value = 0;
    for (let shift = 0; shift < 4; shift += 1) {
      const byte = this.u8();
      value += (byte & 0x7f) * 128 ** shift;
      if (byte < 0x80) return value;
    }
    throw new ProtocolError("variable byte integer longer than four bytes"); // [MQTT5-1.5.5]
  }
  properties() {
    const found = {};
    const inner = new Reader(this.take(this.varint()));
    while (inner.left) {
      const entry = PROPERTY[inner.varint()];
      if (!entry) throw new ProtocolError("unknown property");
      const [name, kind] = entry;
      const value = inner[kind]();
      if (name === "subscriptionIds" || name === "userProperties") (found[name] ??= []).push(value);
      else found[name] = value;
    }
    return found;
  }
}

/** Decodes one whole packet body. Returns an object with `type` and the packet's fields. */
export function decodePacket(firstByte, body) {
  const type = firstByte >> 4;
  const reader = new Reader(body);
  switch (type) {
    case PACKET.CONNACK: {
      const sessionPresent = (reader.u8() & 1) === 1;
      return { type, sessionPresent, reasonCode: reader.u8(), properties: reader.properties() };
    }
    case PACKET.PUBLISH: {
      const qos = (firstByte >> 1) & 3;
      const topicName = reader.text();
      const packetId = qos ? reader.u16() : 0;
      const properties = reader.properties();
      const retain = (firstByte & 1) === 1;
      return { type, topicName, qos, retain, packetId, properties, payload: reader.take(reader.left) };
    }
    case PACKET.PUBACK:
      return { type, packetId: reader.u16(), reasonCode: reader.left ? reader.u8() : 0 };
    case PACKET.SUBACK:
    case PACKET.UNSUBACK: {
      const packetId = reader.u16();
      const properties = reader.properties();
      return { type, packetId, properties, reasonCodes: [...reader.take(reader.left)] };
    }
    case PACKET.DISCONNECT: {
      const reasonCode = reader.left ? reader.u8() : 0;
      return { type, reasonCode, properties: reader.left ? reader.properties() : {} };
    }
    case PACKET.PINGRESP:
      return { type };
    default:
      throw new ProtocolError(`unexpected packet type ${type}`);
  }
}

/** Cuts a stream of binary frames into packets: a frame may hold many packets or a part of one [MQTT5-6.0.0-1..4]. */
export class Framer {
  #rest = new Uint8Array(0);
  feed(chunk) {
    let bytes = chunk;
    if (this.#rest.length) {
      bytes = new Uint8Array(this.#rest.length + chunk.length);
      bytes.set(this.#rest);
      bytes.set(chunk, this.#rest.length);
    }
    const packets = [];
    let at = 0;
    for (;;) {
      const next = this.#packetAt(bytes, at);
      if (!next) break;
      packets.push(decodePacket(bytes[at], bytes.subarray(next.start, next.end)));
      at = next.end;
    }
    this.#rest = bytes.slice(at);
    return packets;
  }
  #packetAt(bytes, at) {
    let size = 0;
    for (let index = 1; index <= 4; index += 1) {
      if (at + index >= bytes.length) return null;
      const byte = bytes[at + index];
      size += (byte & 0x7f) * 128 ** (index - 1);
      if (byte < 0x80) {
        if (size > PACKET_BYTES_MAX) throw new ProtocolError("packet larger than the Maximum Packet Size");
        const start = at + index + 1;
        return start + size <= bytes.length ? { start, end: start + size } : null;
      }
    }
    throw new ProtocolError("malformed Remaining Length");
  }
}

/** Whether a Topic Filter matches a Topic Name [MQTT5-4.7.1, 4.7.2]. */
export function matches(filter, topicName) {
  const wanted = filter.split("/");
  const names = topicName.split("/");
  if (names[0].startsWith("$") && (wanted[0] === "#" || wanted[0] === "+")) return false; // [MQTT5-4.7.2-1]
  for (let level = 0; level < wanted.length; level += 1) {
    if (wanted[level] === "#") return true;
    if (level >= names.length || (wanted[level] !== "+" && wanted[level] !== names[level])) return false;
  }
  return names.length === wanted.length;
}

/** What is wrong with a Topic Filter, or an empty string. */
export function filterFault(filter) {
  if (!filter) return "a topic filter has at least one character";
  if (filter.includes("\0")) return "a topic filter holds no null character";
  const levels = filter.split("/");
  for (const [index, level] of levels.entries()) {
    if (level.includes("#") && (level !== "#" || index < levels.length - 1)) return "# stands alone, as the last level";
    if (level.includes("+") && level !== "+") return "+ stands alone in its level";
  }
  return "";
}

// ---- connection ------------------------------------------------------------------------------------------------

/**
 * One connection that comes back by itself. Events (CustomEvent.detail):
 *   state {state: "connecting" | "connected" | "waiting" | "closed", error, retryMs}, message {topicName, payload, ...}
 * Subscriptions are kept and made again after a reconnect; a QoS 1 publish that was not acknowledged is rejected.
 */
export class MqttConnection extends EventTarget {
  #socket = null;
  #framer = null;
  #options = null;
  #attempt = 0;
  #timers = new Set();
  #pending = new Map(); // packet id -> {resolve, reject}
  #subscriptions = new Map(); // filter -> {filter, qos, subscriptionId, onResult}
  #packetId = 0;
  #pingOutstanding = false;
  #lastError = "";
  state = "closed";
  server = {};
  received = 0;
  receivedBytes = 0;

  constructor(WebSocketClass = globalThis.WebSocket) {
    super();
    this.WebSocketClass = WebSocketClass;
  }

  connect(options) {
    this.close();
    this.#options = options;
    this.#attempt = 0;
    this.#open();
  }

  close() {
    this.#clearTimers();
    const socket = this.#socket;
    this.#socket = null;
    if (socket && socket.readyState === 1) {
      socket.send(DISCONNECT_BYTES);
      socket.close(1000);
    } else if (socket) socket.close();
    this.#failPending("closed");
    this.#setState("closed");
  }

  subscribe(filter, { qos = 0, subscriptionId = 0, onResult = () => {} } = {}) {
    const subscription = { filter, qos, subscriptionId, onResult };
    this.#subscriptions.set(filter, subscription);
    if (this.state === "connected") this.#sendSubscribe(subscription);
  }

  unsubscribe(filter) {
    if (!this.#subscriptions.delete(filter) || this.state !== "connected") return;
    this.#request((packetId) => encodeUnsubscribe(packetId, [filter])).catch(() => {});
  }

  publish(topicName, payload, { qos = 0, retain = false } = {}) {
    if (this.state !== "connected") return Promise.reject(new Error("not connected"));
    if (qos === 0) {
      this.#socket.send(encodePublish({ topicName, payload, retain }));
      return Promise.resolve();
    }
    return this.#request((packetId) => encodePublish({ topicName, payload, qos: 1, retain, packetId }));
  }

  #open() {
    this.#setState("connecting");
    this.#framer = new Framer();
    this.#pingOutstanding = false;
    let socket;
    try {
      socket = new this.WebSocketClass(this.#options.url, ["mqtt"]);
    } catch (error) {
      this.#setState("closed", error.message); // not a WebSocket address: asking again does not help
      return;
    }
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#later(CONNECT_TIMEOUT_MS, () => this.state === "connecting" && this.#lost(socket, "no answer within 10 s"));
    socket.onopen = () => socket.send(encodeConnect(this.#options));
    socket.onmessage = (event) => this.#received(socket, event.data);
    socket.onclose = (event) => this.#lost(socket, event.reason || this.#lastError || `connection closed (${event.code})`);
    socket.onerror = () => { this.#lastError ||= `no WebSocket at ${this.#options.url}`; };
  }

  #received(socket, data) {
    if (socket !== this.#socket) return;
    try {
      if (typeof data === "string") throw new ProtocolError("text frame"); // [MQTT5-6.0.0-1]
      this.receivedBytes += data.byteLength;
      for (const packet of this.#framer.feed(new Uint8Array(data))) this.#handle(socket, packet);
    } catch (error) {
      if (!(error instanceof ProtocolError) && !(error instanceof TypeError)) throw error;
      this.#lost(socket, error.message);
    }
  }

  #handle(socket, packet) {
    switch (packet.type) {
      case PACKET.PUBLISH:
        this.received += 1;
        if (packet.qos === 1) socket.send(encodePuback(packet.packetId));
        this.dispatchEvent(new CustomEvent("message", { detail: packet }));
        break;
      case PACKET.CONNACK:
        this.#connected(socket, packet);
        break;
      case PACKET.PUBACK:
      case PACKET.SUBACK:
      case PACKET.UNSUBACK:
        this.#answered(packet);
        break;
      case PACKET.PINGRESP:
        this.#pingOutstanding = false;
        break;
      case PACKET.DISCONNECT:
        this.#lost(socket, packet.properties.reasonString || reasonText(packet.reasonCode));
        break;
      default:
        break;
    }
  }

  #connected(socket, packet) {
    if (packet.reasonCode >= 0x80) {
      const text = packet.properties.reasonString || reasonText(packet.reasonCode);
      // A wrong password does not become right by asking again.
      const final = [0x84, 0x85, 0x86, 0x87, 0x8a, 0x8c].includes(packet.reasonCode);
      this.#lost(socket, `refused: ${text}`, final);
      return;
    }
    this.#attempt = 0;
    this.#lastError = "";
    this.server = packet.properties;
    this.#clearTimers();
    this.#setState("connected");
    const keepAlive = packet.properties.serverKeepAlive ?? KEEP_ALIVE_S;
    if (keepAlive) this.#every((keepAlive * 1000) / 2, () => this.#ping(socket));
    for (const subscription of this.#subscriptions.values()) this.#sendSubscribe(subscription);
  }

  #ping(socket) {
    if (this.#pingOutstanding) {
      this.#lost(socket, "no answer to a ping");
      return;
    }
    this.#pingOutstanding = true;
    socket.send(PINGREQ_BYTES);
  }

  #sendSubscribe({ filter, qos, subscriptionId, onResult }) {
    const id = this.server.subscriptionIdsAvailable === 0 ? 0 : subscriptionId;
    this.#request((packetId) => encodeSubscribe(packetId, [{ filter, qos }], id)).then(
      (packet) => onResult(packet.reasonCodes[0], packet.properties.reasonString),
      () => {},
    );
  }

  #request(build) {
    let packetId = this.#packetId;
    do packetId = (packetId % 65535) + 1; while (this.#pending.has(packetId));
    this.#packetId = packetId;
    return new Promise((resolve, reject) => {
      this.#pending.set(packetId, { resolve, reject });
      this.#socket.send(build(packetId));
    });
  }

  #answered(packet) {
    const waiting = this.#pending.get(packet.packetId);
    this.#pending.delete(packet.packetId);
    if (packet.type === PACKET.PUBACK && packet.reasonCode >= 0x80) waiting?.reject(new Error(reasonText(packet.reasonCode)));
    else waiting?.resolve(packet);
  }

  #lost(socket, error, final = false) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    socket.onclose = null;
    socket.close();
    this.#clearTimers();
    this.#failPending(error);
    if (final) {
      this.#setState("closed", error);
      return;
    }
    const retryMs = BACKOFF_MS[Math.min(this.#attempt, BACKOFF_MS.length - 1)] * (0.75 + Math.random() / 2);
    this.#attempt += 1;
    this.#setState("waiting", error, retryMs);
    this.#later(retryMs, () => this.#open());
  }

  #failPending(error) {
    for (const { reject } of this.#pending.values()) reject(new Error(error));
    this.#pending.clear();
  }

  #setState(state, error = "", retryMs = 0) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, error, retryMs } }));
  }

  #later(ms, action) {
    const timer = setTimeout(() => { this.#timers.delete(timer); action(); }, ms);
    this.#timers.add(timer);
  }

  #every(ms, action) {
    this.#timers.add(setInterval(action, ms));
  }

  #clearTimers() {
    for (const timer of this.#timers) { clearTimeout(timer); clearInterval(timer); }
    this.#timers.clear();
  }
}
