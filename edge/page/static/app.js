// The live page: subscribes, keeps the last minute in memory, draws it. Everything shown came over MQTT.
import { MqttConnection, filterFault, matches, reasonText } from "./mqtt.js";
import { drawBars, drawLines, drawMap, palette } from "./charts.js";

const SPAN_MS = 60_000; // what the charts show
const PAST_POINTS = 1_500; // per series, however long the span of the slider: what a screen can show
const ALERTS_MAX = 200;
const POINTS_MAX = 4_000; // per series: a minute at 60 readings/s
const SERIES_MAX = 6; // as many colours as can be told apart
const DEVICES_MAX = 50_000; // beyond it the figure is a lower bound
const WINDOWS_MAX = 50_000;
const MESSAGES_MAX = 200;
const FLIGHTS_MAX = 500;
const EDGE_STALE_MS = 8_000;

const SUBSCRIPTION = { sensors: 1, analytics: 2, demo: 3, edges: 4, explorer: 5, alerts: 6, past: 7 };
const FILTERS = { sensors: "sensors/#", analytics: "analytics/stats/#", demo: "demo/status/#", edges: "$SYS/brokers/+/stats", alerts: "analytics/alerts/#" };
const OWN_FILTERS = Object.values(FILTERS);
const UNITS = {
  temp: "Temperature, °F", dewp: "Dew point, °F", humid: "Relative humidity, %", wind_speed: "Wind speed, mph", wind_dir: "Wind direction, °",
  wind_gust: "Gusts, mph", precip: "Precipitation, inches", pressure: "Pressure, hPa", visib: "Visibility, miles",
};
const HUBS = new Set(["EWR", "JFK", "LGA"]);

const $ = (id) => document.getElementById(id);
const decoder = new TextDecoder();
const whole = new Intl.NumberFormat("en");
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

// ---- what we know ----------------------------------------------------------------------------------------------

class PerSecond { // counts in the last 60 whole seconds, and the running one
  constructor() { this.counts = new Array(60).fill(0); this.second = 0; this.total = 0; }
  add(nowMs, count = 1) { this.roll(nowMs); this.counts[59] += count; this.total += count; }
  roll(nowMs) {
    const second = Math.floor(nowMs / 1000);
    const steps = Math.min(60, second - this.second);
    if (steps > 0) { this.counts.splice(0, steps); while (this.counts.length < 60) this.counts.push(0); }
    this.second = Math.max(this.second, second);
  }
  rate(nowMs) { this.roll(nowMs); return (this.counts[58] + this.counts[57] + this.counts[56]) / 3; }
}

const state = {
  messages: new PerSecond(), results: new PerSecond(),
  devices: new Set(), sites: new Map(), // site -> number of devices
  series: new Map(), // site -> Map device -> Map metric -> [[ms, value]]
  bands: new Map(), // "device metric" -> Map window id -> {from, to, mean}
  latencies: [], windows: new Set(), spark: new Map(),
  airports: new Map(), flights: [], movements: [], movementCount: 0,
  edges: new Map(), // node -> {at, in: PerSecond-like points, ...}
  edgesRefused: "", demo: null,
  alerts: new Map(), alertCount: 0, // by episode
  past: { minutes: 1, site: "", filter: "", series: new Map(), count: 0 }, // device -> Map metric -> [[ms, value]]
  explorer: { filters: new Map(), messages: [], count: 0, paused: false, isDirty: true },
};

function parse(payload) {
  try { return JSON.parse(decoder.decode(payload)); } catch { return null; }
}

function onSensor(packet, nowMs) {
  state.messages.add(nowMs);
  const levels = packet.topicName.split("/");
  if (levels.length >= 3 && state.devices.size < DEVICES_MAX) {
    const device = `${levels[1]}/${levels[2]}`;
    if (!state.devices.has(device)) {
      state.devices.add(device);
      state.sites.set(levels[1], (state.sites.get(levels[1]) ?? 0) + 1);
    }
  }
  const body = parse(packet.payload);
  if (body === null || typeof body !== "object") return;
  const lag = nowMs - body.ts;
  if (lag >= -50 && lag < 60_000) state.latencies.push([nowMs, Math.max(0, lag)]);
  if (levels.length === 3) onReading(levels[1], levels[2], body, nowMs);
  else if (levels[3] === "movement" && body.position) onMovement(body, nowMs);
}

function onReading(site, device, body, nowMs) {
  if (!state.series.has(site)) state.series.set(site, new Map());
  const devices = state.series.get(site);
  if (!devices.has(device)) {
    if (devices.size >= SERIES_MAX) return;
    devices.set(device, new Map());
  }
  const metrics = devices.get(device);
  for (const [metric, value] of Object.entries(body)) {
    if (typeof value !== "number" || !Number.isFinite(value) || metric === "ts" || metrics.size > 64) continue;
    if (!metrics.has(metric)) metrics.set(metric, []);
    const points = metrics.get(metric);
    points.push([nowMs, value]);
    if (points.length > POINTS_MAX) points.splice(0, POINTS_MAX / 4);
  }
}

function onMovement(body, nowMs) {
  const [latitude, longitude] = body.position;
  const airport = state.airports.get(body.airport) ?? { latitude, longitude, count: 0, isHub: HUBS.has(body.airport) };
  airport.count += 1;
  if (state.airports.size < 1_000) state.airports.set(body.airport, airport);
  state.movementCount += 1;
  state.flights.push({ from: body.origin, to: body.destination, kind: body.event, atMs: nowMs });
  if (state.flights.length > FLIGHTS_MAX) state.flights.splice(0, FLIGHTS_MAX / 5);
  state.movements.unshift(body);
  state.movements.length = Math.min(state.movements.length, 5);
}

function onResult(packet, nowMs) {
  const result = parse(packet.payload);
  if (!result || typeof result.id !== "string") return;
  state.results.add(nowMs);
  if (state.windows.size < WINDOWS_MAX) state.windows.add(result.id);
  const name = `${result.device} ${result.metric}`;
  const known = state.spark.get(name);
  // A window that is still open is sent again and again: of one id the highest count is the newest.
  if (known?.id === result.id && known.count > result.count) return;
  state.spark.delete(name); // so that the newest stands last
  state.spark.set(name, result);
  if (state.spark.size > 10_000) state.spark.delete(state.spark.keys().next().value);
  const from = Date.parse(result.window_start), to = Date.parse(result.window_end);
  if (!Number.isFinite(from) || !Number.isFinite(to)) return;
  if (!state.bands.has(name)) state.bands.set(name, new Map());
  const bands = state.bands.get(name);
  bands.set(result.id, [from, to, result.mean]);
  if (bands.size > 40) bands.delete(bands.keys().next().value);
  if (state.bands.size > 10_000) state.bands.delete(state.bands.keys().next().value);
}

function onAlert(packet) {
  const alert = parse(packet.payload);
  if (!alert || typeof alert.id !== "string") return;
  const known = state.alerts.get(alert.id);
  if (known && (known.state === alert.state || known.state === "cleared")) return; // a restart may repeat a record
  state.alertCount += known ? 0 : 1;
  state.alerts.delete(alert.id);
  state.alerts.set(alert.id, alert);
  if (state.alerts.size > ALERTS_MAX) state.alerts.delete(state.alerts.keys().next().value);
}

function onPast(packet) {
  const { past } = state;
  if (packet.topicName === "$replay/end") return showPast(`${plural(past.count, "message")} replayed from Kafka`);
  past.count += 1;
  const [, site, device] = packet.topicName.split("/");
  const stamp = (packet.properties.userProperties ?? []).find(([name]) => name === "headwater.timestamp_ms");
  const body = parse(packet.payload);
  if (site !== past.site || !stamp || body === null || typeof body !== "object") return undefined;
  for (const [metric, value] of Object.entries(body)) {
    if (typeof value === "number" && Number.isFinite(value) && metric !== "ts") keepPast(device, metric, [Number(stamp[1]), value]);
  }
  return undefined;
}

/** What is older than the live points: thinned to what can be seen, dropped when it is older than the span. */
function keepPast(device, metric, point) {
  const { past } = state;
  if (!past.series.has(device)) {
    if (past.series.size >= SERIES_MAX * 4) return;
    past.series.set(device, new Map());
  }
  const metrics = past.series.get(device);
  if (!metrics.has(metric)) {
    if (metrics.size > 64) return;
    metrics.set(metric, []);
  }
  const points = metrics.get(metric);
  if (points.length && point[0] < points.at(-1)[0] + (past.minutes * 60_000) / PAST_POINTS) return;
  points.push(point);
  while (points[0][0] < Date.now() - past.minutes * 60_000 - 5_000) points.shift();
}

function onEdge(packet, nowMs) {
  const stats = parse(packet.payload);
  if (!stats) return;
  const node = String(stats.node ?? packet.topicName.split("/")[2]);
  addEdge(node, stats, nowMs, "$SYS");
}

function addEdge(node, stats, nowMs, source) {
  const atMs = stats.at_ms ?? nowMs;
  const edge = state.edges.get(node) ?? { node, inbound: [], outbound: [], inRate: 0, outRate: 0, cpuShare: null, source };
  if (edge.source === "$SYS" && source !== "$SYS" && nowMs - edge.seenMs < EDGE_STALE_MS) return;
  const before = edge.source === source ? edge.stats : null;
  if (before && atMs > edge.atMs && stats.messages_received >= before.messages_received) {
    const seconds = (atMs - edge.atMs) / 1000;
    edge.inRate = (stats.messages_received - before.messages_received) / seconds;
    edge.outRate = (stats.messages_sent - before.messages_sent) / seconds;
    if (stats.cpu_s !== undefined) edge.cpuShare = (stats.cpu_s - before.cpu_s) / seconds;
    edge.inbound.push([nowMs, edge.inRate]);
    edge.outbound.push([nowMs, edge.outRate]);
    if (edge.inbound.length > 200) { edge.inbound.splice(0, 50); edge.outbound.splice(0, 50); }
  }
  Object.assign(edge, { stats, atMs, seenMs: nowMs, source });
  if (state.edges.size < 64) state.edges.set(node, edge);
}

function onDemo(packet, nowMs) {
  const status = parse(packet.payload);
  if (!status || typeof status !== "object") return;
  state.demo = { ...status, seenMs: nowMs };
  for (const edge of status.edges ?? []) addEdge(edge.node, edge, nowMs, "demo");
}

const HANDLERS = { [SUBSCRIPTION.sensors]: onSensor, [SUBSCRIPTION.analytics]: onResult, [SUBSCRIPTION.demo]: onDemo, [SUBSCRIPTION.edges]: onEdge, [SUBSCRIPTION.alerts]: onAlert, [SUBSCRIPTION.past]: onPast };

function onMessage(packet) {
  const nowMs = Date.now();
  let ids = packet.properties.subscriptionIds;
  if (!ids) { // a server without Subscription Identifiers: find out by the name
    ids = Object.keys(FILTERS).filter((name) => matches(FILTERS[name], packet.topicName)).map((name) => SUBSCRIPTION[name]);
    if ([...state.explorer.filters.keys()].some((filter) => matches(filter, packet.topicName))) ids.push(SUBSCRIPTION.explorer);
  }
  for (const id of ids) HANDLERS[id]?.(packet, nowMs);
  if (state.explorer.paused || !(ids.includes(SUBSCRIPTION.explorer) || isOwnFilter(packet.topicName))) return;
  state.explorer.count += 1;
  state.explorer.messages.unshift({ nowMs, topicName: packet.topicName, qos: packet.qos, retain: packet.retain, payload: packet.payload.slice(0, 400) });
  if (state.explorer.messages.length > MESSAGES_MAX) state.explorer.messages.length = MESSAGES_MAX;
  state.explorer.isDirty = true;
}

/** A filter of the explorer that the page has subscribed to anyway: it is not subscribed to twice. */
function isOwnFilter(topicName) {
  return OWN_FILTERS.some((filter) => state.explorer.filters.has(filter) && matches(filter, topicName));
}

// ---- drawing ---------------------------------------------------------------------------------------------------

let colours = palette();

const reading = (value) => (Math.abs(value) >= 1000 ? whole.format(Math.round(value)) : value.toFixed(1));
const plural = (count, noun) => `${whole.format(count)} ${noun}${count === 1 ? "" : "s"}`;
const number = (value) => (Math.abs(value) >= 100 || Number.isInteger(value) ? whole.format(Math.round(value)) : value.toFixed(value < 10 ? 2 : 1));

function text(id, value) {
  const element = $(id);
  if (element.textContent !== value) element.textContent = value;
}

function figure(id, value, unit) {
  const element = $(id);
  if (element.dataset.shown === value + unit) return;
  element.dataset.shown = value + unit;
  element.replaceChildren(value, ...(unit ? [Object.assign(document.createElement("small"), { textContent: unit })] : []));
}

/** Makes a table body hold exactly these rows; cells are texts or [text, class]. Rows are reused. */
function fillTable(table, rows) {
  const body = table.tBodies[0];
  table.hidden = rows.length === 0;
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((cell, column) => {
      const [value, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const td = row.cells[column] ?? row.insertCell();
      if (td.textContent !== value) td.textContent = value;
      if (td.className !== kind) td.className = kind;
    });
  });
}

function fillSelect(select, values, label, preferred) {
  const wanted = values.map(label).join("\n");
  if (select.dataset.values === wanted) return;
  const chosen = values.includes(select.value) ? select.value : values.includes(preferred) ? preferred : values[0];
  select.dataset.values = wanted;
  select.replaceChildren(...values.map((value) => new Option(label(value), value, false, value === chosen)));
}

function drawTiles(nowMs) {
  const rate = state.messages.rate(nowMs);
  figure("rate", state.messages.total ? number(rate) : "–", state.messages.total ? "/s" : "");
  drawBars($("rate-spark"), state.messages.counts.slice(0, 59), { colours, colour: colours.accent, plain: true });
  figure("devices", whole.format(state.devices.size) + (state.devices.size >= DEVICES_MAX ? "+" : ""), "");
  const sites = [...state.sites.entries()].sort((a, b) => b[1] - a[1]).slice(0, 3);
  text("devices-note", sites.map(([site, count]) => `${whole.format(count)} ${site}`).join(", ") || "none yet");
  const up = [...state.edges.values()].filter((edge) => nowMs - edge.seenMs < EDGE_STALE_MS);
  figure("edges-up", up.length ? String(up.length) : "–", state.edges.size > up.length ? `of ${state.edges.size}` : "");
  const clients = up.reduce((sum, edge) => sum + (edge.stats.connections ?? 0), 0);
  text("edges-note", up.length ? `${plural(clients, "client")} connected` : state.edgesRefused || "waiting for $SYS");
  while (state.latencies.length && (state.latencies[0][0] < nowMs - 10_000 || state.latencies.length > 5_000)) state.latencies.shift();
  const lags = state.latencies.map(([, lag]) => lag).sort((a, b) => a - b);
  figure("latency", lags.length ? number(lags[Math.floor(lags.length / 2)]) : "–", lags.length ? "ms" : "");
  text("latency-note", lags.length ? `median; 99 % within ${number(lags[Math.floor(lags.length * 0.99)])} ms` : "through Kafka, by the payload’s ts");
  figure("windows", whole.format(state.windows.size) + (state.windows.size >= WINDOWS_MAX ? "+" : ""), "");
  text("windows-note", state.results.total ? `${number(state.results.rate(nowMs))} results/s` : "none yet");
}

function drawReadings(nowMs) {
  const sites = [...state.series.keys()].sort();
  $("readings-empty").hidden = sites.length > 0;
  $("choices").hidden = !sites.length;
  if (!sites.length) return;
  fillSelect($("site"), sites, (site) => site, "weather");
  const devices = [...state.series.get($("site").value).entries()].sort(([a], [b]) => a.localeCompare(b));
  const metrics = [...new Set(devices.flatMap(([, byMetric]) => [...byMetric.keys()]))].sort();
  const site = $("site").value;
  const label = (metric) => (site === "weather" && UNITS[metric]) || metric; // units are known of the demo's only
  fillSelect($("metric"), metrics, label, "temp");
  const metric = $("metric").value;
  const oldest = nowMs - SPAN_MS - 5_000;
  const series = devices.map(([device, byMetric], index) => {
    const points = byMetric.get(metric) ?? [];
    const isBack = state.past.minutes > 1 && state.past.site === site;
    while (points.length && points[0][0] < oldest) {
      const point = points.shift();
      if (isBack) keepPast(device, metric, point);
    }
    const before = (isBack && state.past.series.get(device)?.get(metric)) || [];
    const shown = before.length ? [...before.filter(([at]) => !points.length || at < points[0][0]), ...points] : points;
    const bands = [...(state.bands.get(`${site}/${device} ${metric}`)?.values() ?? [])];
    return { device, points: shown, bands, colour: colours.series[index], index };
  });
  drawLines($("readings"), series, { nowMs, spanMs: state.past.minutes * SPAN_MS, colours });
  const hasBands = series.some(({ bands }) => bands.length);
  fillLegend(series, hasBands);
  $("readings").setAttribute("aria-label", `${label(metric)}: ${series.map(({ device, points }) => `${device} ${points.length ? number(points.at(-1)[1]) : "none"}`).join(", ")}`);
}

function fillLegend(series, hasBands) {
  const legend = $("legend");
  const key = series.map(({ device }) => device).join() + hasBands;
  if (legend.dataset.key !== key) {
    legend.dataset.key = key;
    legend.replaceChildren(...series.map(({ device, index }) => {
      const item = document.createElement("li");
      const swatch = Object.assign(document.createElement("span"), { className: `swatch c${index + 1}` });
      item.append(swatch, `${device} `, document.createElement("b"));
      return item;
    }));
    if (hasBands) {
      const item = document.createElement("li");
      item.className = "dim";
      item.append(Object.assign(document.createElement("span"), { className: "swatch band" }), "mean of a window, by Spark");
      legend.append(item);
    }
  }
  series.forEach(({ points }, index) => {
    const value = legend.children[index].querySelector("b");
    const shown = points.length ? reading(points.at(-1)[1]) : "–";
    if (value.textContent !== shown) value.textContent = shown;
  });
}

function drawMovements(nowMs) {
  $("map-empty").hidden = state.movementCount > 0;
  if (!state.movementCount) return;
  drawMap($("map"), state.airports, state.flights, { nowMs, colours, still: reducedMotion.matches });
}

function listMovements() {
  text("movements-note", state.movementCount ? `${whole.format(state.movementCount)} at ${state.airports.size} airports` : "");
  fillTable($("movements"), state.movements.map((movement) => {
    const delay = movement.delay_min;
    const shown = delay > 0 ? [`${delay} min late`, "n late"] : delay < 0 ? [`${-delay} min early`, "n early"] : ["on time", "n dim"];
    return [[movement.device, ""], [movement.flight, "dim"], `${movement.origin} → ${movement.destination}`, [movement.event === "arrival" ? "landed" : "took off", "dim"], shown];
  }));
}

function drawSpark(nowMs) {
  state.results.roll(nowMs);
  const any = state.results.total > 0;
  $("spark-empty").hidden = any;
  if (!any) return;
  text("spark-note", `${whole.format(state.results.total)} results for ${whole.format(state.spark.size)} series`);
  drawBars($("spark-bars"), state.results.counts.slice(0, 59), { colours, colour: colours.series[3] });
  const chosen = $("site").value;
  const all = [...state.spark.values()];
  const ours = all.filter(({ device }) => device.startsWith(`${chosen}/`)).sort((a, b) => (a.metric + a.device).localeCompare(b.metric + b.device));
  const metric = $("metric").value;
  const first = ours.filter((result) => result.metric === metric);
  const rows = [...first, ...all.slice(-6).filter((result) => !first.includes(result)).reverse()].slice(0, 6);
  fillTable($("spark"), rows.map((result) => [
    result.device, [result.metric, "dim"], [whole.format(result.count), "n"], [reading(result.min), "n"], [reading(result.mean), "n"], [reading(result.max), "n"],
  ]));
}

function drawAlerts() {
  $("alerts-empty").hidden = state.alerts.size > 0;
  if (!state.alerts.size) return;
  const open = [...state.alerts.values()].filter((alert) => alert.state !== "cleared").length;
  text("alerts-note", `${plural(state.alertCount, "episode")}, ${open} open`);
  fillTable($("alerts"), [...state.alerts.values()].slice(-8).reverse().map((alert) => [
    [new Date(alert.since ?? alert.at).toLocaleTimeString("en-GB"), "dim"], alert.device, [alert.metric ? `${alert.kind}: ${alert.metric}` : alert.kind, ""],
    [alert.state, alert.state === "cleared" ? "ok" : "bad"], [alert.reason ?? (alert.value === undefined ? "" : reading(alert.value)), "dim"],
  ]));
}

function drawEdges(nowMs) {
  const edges = [...state.edges.values()].sort((a, b) => a.node.localeCompare(b.node));
  $("edges-empty").hidden = edges.some(({ inbound }) => inbound.length > 1);
  if (!edges.length) return;
  text("edges-source", edges.some(({ source }) => source === "$SYS") ? "messages in from devices, per second" : "as the demo counts them");
  drawLines($("edge-chart"), edges.slice(0, SERIES_MAX).map(({ inbound }, index) => ({ points: inbound, colour: colours.series[index] })), { nowMs, spanMs: SPAN_MS, colours, fromZero: true });
  fillTable($("edges"), edges.map((edge, index) => {
    const isUp = nowMs - edge.seenMs < EDGE_STALE_MS;
    const stats = edge.stats;
    return [
      [`${isUp ? "●" : "○"} ${edge.node}`, isUp ? `e${index + 1}` : "dim"], [whole.format(stats.connections ?? 0), "n"], [isUp ? number(edge.inRate) : "–", "n"], [isUp ? number(edge.outRate) : "–", "n"],
      [whole.format(stats.messages_dropped ?? 0), stats.messages_dropped ? "n late" : "n dim"], [edge.cpuShare === null || !isUp ? "–" : `${Math.round(edge.cpuShare * 100)} %`, "n"],
    ];
  }));
}

function drawDemo(nowMs) {
  const demo = state.demo;
  const isLive = demo !== null && (nowMs - demo.seenMs < 10_000 || demo.is_over);
  $("demo").hidden = !isLive;
  if (!isLive) return;
  const simulated = demo.simulated_at ? new Date(demo.simulated_at).toLocaleString("en-GB", { timeZone: "America/New_York", weekday: "short", day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit" }) : "";
  text("demo-time", demo.is_over ? "finished" : `In New York it is ${simulated}; time runs ${whole.format(demo.speed)} times as fast`);
  const share = demo.seconds ? Math.min(1, demo.elapsed_s / demo.seconds) : 0;
  $("demo-progress").value = share;
  $("demo-meter").setAttribute("aria-valuenow", String(Math.round(share * 100)));
  text("demo-published", whole.format(demo.published));
  text("demo-delivered", whole.format(demo.delivered));
  for (const name of ["lost", "duplicated"]) {
    text(`demo-${name}`, whole.format(demo[name]));
    $(`demo-${name}`).className = demo[name] ? "bad" : "ok";
  }
  text("demo-p50", demo.p50_ms === null ? "–" : `${number(demo.p50_ms)} ms`);
  text("demo-p99", demo.p99_ms === null ? "–" : `${number(demo.p99_ms)} ms`);
}

function drawExplorer() {
  const explorer = state.explorer;
  if (!explorer.isDirty) return;
  explorer.isDirty = false;
  $("messages-empty").hidden = explorer.filters.size > 0 && explorer.messages.length > 0;
  $("messages-empty").querySelector("strong").textContent = explorer.filters.size ? "Waiting for messages." : "Nothing subscribed.";
  $("list-head").hidden = explorer.filters.size === 0;
  text("message-count", `${plural(explorer.count, "message")}${explorer.paused ? ", paused" : ""}`);
  fillTable($("messages"), explorer.messages.slice(0, 60).map((message) => [
    new Date(message.nowMs).toLocaleTimeString("en-GB") + `.${String(message.nowMs % 1000).padStart(3, "0")}`,
    message.topicName, `QoS ${message.qos}${message.retain ? " R" : ""}`, readable(message.payload),
  ]));
}

function readable(payload) {
  if (!payload.length) return "(empty)";
  const shown = decoder.decode(payload);
  if (!shown.includes("\ufffd")) return shown;
  return [...payload.slice(0, 48)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ") + (payload.length > 48 ? " …" : "");
}

let lastSlowMs = 0;
let lastChartMs = 0;
function frame() {
  requestAnimationFrame(frame);
  const nowMs = Date.now();
  if (nowMs - lastChartMs < (reducedMotion.matches ? 500 : 66)) return;
  lastChartMs = nowMs;
  drawReadings(nowMs);
  drawMovements(nowMs);
  if (nowMs - lastSlowMs < 450) return;
  lastSlowMs = nowMs;
  drawTiles(nowMs);
  drawSpark(nowMs);
  drawAlerts();
  drawEdges(nowMs);
  drawDemo(nowMs);
  listMovements();
  drawExplorer();
}

// ---- connection ------------------------------------------------------------------------------------------------

const connection = new MqttConnection();
const clientId = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

function defaultUrl() {
  const asked = new URLSearchParams(location.search).get("broker");
  return asked ?? `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/mqtt`;
}

function connect() {
  connection.connect({ url: $("url").value, clientId, userName: $("user-name").value, password: $("password").value });
}

function showState({ state: now, error, retryMs }) {
  $("connection").dataset.state = now;
  const host = (() => { try { return new URL($("url").value).host; } catch { return $("url").value; } })();
  const words = {
    connected: `Connected to ${host}`, connecting: `Connecting to ${host} …`, closed: "Not connected",
    waiting: `Trying again in ${Math.max(1, Math.round(retryMs / 1000))} s`,
  };
  text("connection-text", words[now]);
  $("connection").title = `${words[now]}. Change the connection.`;
  const trouble = $("trouble");
  if (now === "connected") trouble.hidden = true;
  else if (error) {
    trouble.hidden = false;
    trouble.textContent = now === "closed" ? `The edge did not let us in (${error}). Check the user name and password.` : `No connection: ${error}.`;
  }
  if (now === "closed" && error) openSettings();
}

function openSettings() {
  if (!$("settings").open) $("settings").showModal();
}

function onDashboardResult(name) {
  return (code, reason) => {
    if (name !== "edges") {
      if (code >= 0x80) note(`${FILTERS[name]} was refused: ${reason || reasonText(code)}`, true);
      return;
    }
    state.edgesRefused = code >= 0x80 ? "$SYS needs a grant" : "";
    if (code >= 0x80) $("edges-empty-why").textContent = "This user may not read $SYS; the edges’ own figures need a grant.";
  };
}

function note(message, isBad = false) {
  text("form-note", message);
  $("form-note").classList.toggle("bad", isBad);
}

// ---- forms -----------------------------------------------------------------------------------------------------

function addFilter(filter, qos) {
  const explorer = state.explorer;
  const fault = filterFault(filter);
  if (fault) return note(`${filter}: ${fault}`, true);
  if (explorer.filters.has(filter)) return note(`${filter} is subscribed already`);
  const item = document.createElement("li");
  const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "×" });
  remove.setAttribute("aria-label", `Unsubscribe from ${filter}`);
  item.append(filter, remove);
  remove.addEventListener("click", () => {
    explorer.filters.delete(filter);
    explorer.isDirty = true;
    item.remove();
    if (!OWN_FILTERS.includes(filter)) connection.unsubscribe(filter);
    $("filter").focus();
  });
  $("filters").append(item);
  explorer.filters.set(filter, item);
  explorer.isDirty = true;
  if (OWN_FILTERS.includes(filter)) return note(`Showing ${filter}`);
  connection.subscribe(filter, {
    qos,
    subscriptionId: SUBSCRIPTION.explorer,
    onResult: (code, reason) => {
      item.classList.toggle("refused", code >= 0x80);
      note(code >= 0x80 ? `${filter} was refused: ${reason || reasonText(code)}` : `Subscribed to ${filter}, QoS ${code}`, code >= 0x80);
    },
  });
  return undefined;
}

function showPast(message, isBad = false) {
  text("span-note", message);
  $("span-note").classList.toggle("bad", isBad);
}

/** The slider: the log is replayed into the chart, up to now; what comes after is the live flow's. */
function goBack() {
  const { past } = state;
  const minutes = Number($("span").value), site = $("site").value;
  if (past.filter) connection.unsubscribe(past.filter);
  Object.assign(past, { minutes, site, filter: "", count: 0, series: new Map() });
  if (minutes === 1 || !site || /[+#]/.test(site)) return showPast("");
  past.filter = `$replay/-${minutes}m/now/sensors/${site}/+`;
  showPast(`Replaying ${minutes} minutes …`);
  connection.subscribe(past.filter, {
    subscriptionId: SUBSCRIPTION.past,
    onResult: (code, reason) => {
      if (code >= 0x80) showPast(`The edge did not replay ${past.filter}: ${reason || reasonText(code)}`, true);
      else Object.assign(past, { count: 0, series: new Map() });
    },
  });
  return undefined;
}

function subscribeDashboard(name) {
  connection.subscribe(FILTERS[name], { subscriptionId: SUBSCRIPTION[name], onResult: onDashboardResult(name) });
}

async function publish() {
  const topicName = $("publish-name").value;
  if (/[+#]/.test(topicName)) return note("a topic name holds no + and no #", true);
  try {
    await connection.publish(topicName, $("publish-payload").value, { qos: Number($("publish-qos").value) });
    note(`Published to ${topicName}`);
  } catch (error) {
    note(`Not published: ${error.message}`, true);
  }
  return undefined;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  colours = palette();
}

// ---- start -----------------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!localStorage.getItem("theme")) setTheme(dark.matches ? "dark" : "light"); });
$("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme);
  setTheme(theme);
});

connection.addEventListener("state", (event) => showState(event.detail));
connection.addEventListener("message", (event) => onMessage(event.detail));
Object.keys(FILTERS).forEach(subscribeDashboard);

$("connection").addEventListener("click", openSettings);
$("settings-cancel").addEventListener("click", () => $("settings").close());
$("settings-form").addEventListener("submit", () => { sessionStorage.setItem("user", $("user-name").value); connect(); });
$("subscribe").addEventListener("submit", (event) => { event.preventDefault(); addFilter($("filter").value.trim(), Number($("filter-qos").value)); });
$("publish").addEventListener("submit", (event) => { event.preventDefault(); publish(); });
$("span").addEventListener("input", () => text("span-shown", `${$("span").value} min`));
$("span").addEventListener("change", goBack);
$("site").addEventListener("change", () => { if (state.past.minutes > 1) goBack(); });
$("pause").addEventListener("click", () => {
  state.explorer.paused = !state.explorer.paused;
  state.explorer.isDirty = true;
  $("pause").setAttribute("aria-pressed", String(state.explorer.paused));
  $("pause").textContent = state.explorer.paused ? "Go on" : "Pause";
});
$("clear").addEventListener("click", () => { Object.assign(state.explorer, { messages: [], count: 0, isDirty: true }); });

$("url").value = defaultUrl();
$("user-name").value = sessionStorage.getItem("user") ?? "";
addEventListener("pagehide", () => connection.close());
addEventListener("pageshow", (event) => { if (event.persisted) connect(); }); // back from the browser's cache
connect();
frame();
