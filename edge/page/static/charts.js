// Drawing on canvases: lines over time, bars per second, a map of movements. No state beyond what a frame needs.

/** Fits a canvas to its place on the page at the screen's resolution; returns [context, width, height] in CSS pixels. */
function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11.5px system-ui, 'DejaVu Sans', sans-serif";
  return [context, width, height];
}

/** The page's colours, read once per theme. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return {
    ink: colour("--ink"), soft: colour("--soft"), grid: colour("--grid"), card: colour("--card"), accent: colour("--accent"),
    warn: colour("--warn"), good: colour("--good"),
    series: ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"].map(colour),
  };
}

/** Round numbers for an axis: about `count` of them between low and high. */
export function ticks(low, high, count) {
  const span = high - low || 1;
  const rough = span / count;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((candidate) => candidate >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

const short = (value) => (Math.abs(value) >= 10000 ? `${Math.round(value / 1000)}k` : String(value));

/**
 * Lines over the last `spanMs`. series: [{points: [[ms, value]...], bands: [[fromMs, toMs, value]...], colour}].
 * A band is a window's mean: a thick bar behind the line.
 */
export function drawLines(canvas, series, { nowMs, spanMs, colours, fromZero = false }) {
  const [context, width, height] = prepare(canvas);
  const left = 44, right = 8, top = 8, bottom = 22;
  const startMs = nowMs - spanMs;
  let low = Infinity, high = -Infinity;
  for (const { points, bands = [] } of series) {
    for (const [at, value] of points) if (at >= startMs) { low = Math.min(low, value); high = Math.max(high, value); }
    for (const [, to, value] of bands) if (to >= startMs) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (low > high) return;
  if (fromZero) low = Math.min(0, low);
  const margin = (high - low || Math.abs(high) || 1) * 0.08;
  high += margin;
  if (!fromZero) low -= margin;
  const x = (ms) => left + ((ms - startMs) / spanMs) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);

  context.strokeStyle = colours.grid;
  context.fillStyle = colours.soft;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const value of ticks(low, high, Math.max(2, Math.floor(height / 55)))) {
    const at = Math.round(y(value)) + 0.5;
    context.beginPath(); context.moveTo(left, at); context.lineTo(width - right, at); context.stroke();
    context.fillText(short(value), left - 7, at);
  }
  context.textBaseline = "alphabetic";
  const stepMs = spanMs / (width > 420 ? 6 : 3);
  for (let ago = 0; ago <= spanMs; ago += stepMs) {
    context.textAlign = ago === 0 ? "right" : ago === spanMs ? "left" : "center";
    const shown = spanMs >= 120_000 ? `−${Number((ago / 60_000).toFixed(1))} min` : `−${Math.round(ago / 1000)} s`;
    context.fillText(ago === 0 ? "now" : shown, x(nowMs - ago), height - 5);
  }

  context.save();
  context.beginPath(); context.rect(left, 0, width - left - right, height - bottom + 1); context.clip();
  for (const { bands = [], colour } of series) {
    context.strokeStyle = colour;
    context.globalAlpha = 0.28;
    context.lineWidth = 7;
    for (const [from, to, value] of bands) {
      context.beginPath(); context.moveTo(x(from), y(value)); context.lineTo(x(to), y(value)); context.stroke();
    }
  }
  context.globalAlpha = 1;
  context.lineJoin = "round";
  for (const { points, colour } of series) {
    context.strokeStyle = colour;
    context.lineWidth = 1.8;
    context.beginPath();
    points.forEach(([at, value], index) => (index ? context.lineTo(x(at), y(value)) : context.moveTo(x(at), y(value))));
    context.stroke();
    const last = points.at(-1);
    if (last) {
      context.fillStyle = colour;
      context.beginPath(); context.arc(Math.min(x(last[0]), width - right - 4), y(last[1]), 3.4, 0, 7); context.fill();
    }
  }
  context.restore();
}

/** Bars, one per second, the newest at the right; `plain` leaves out the axis. */
export function drawBars(canvas, values, { colours, colour, plain = false }) {
  const [context, width, height] = prepare(canvas);
  const left = plain ? 0 : 40, bottom = plain ? 0 : 18, top = plain ? 4 : 8;
  const high = Math.max(1, ...values) * 1.05;
  const step = (width - left) / values.length;
  const y = (value) => height - bottom - (value / high) * (height - top - bottom);
  if (!plain) {
    context.strokeStyle = colours.grid;
    context.fillStyle = colours.soft;
    context.textAlign = "right";
    for (const value of ticks(0, high, 3)) {
      if (!Number.isInteger(value)) continue;
      const at = Math.round(y(value)) + 0.5;
      context.beginPath(); context.moveTo(left, at); context.lineTo(width, at); context.stroke();
      context.fillText(short(value), left - 6, at + 4);
    }
    context.textAlign = "left"; context.fillText(`−${values.length} s`, left, height - 4);
    context.textAlign = "right"; context.fillText("now", width, height - 4);
  }
  context.fillStyle = colour;
  context.globalAlpha = plain ? 0.3 : 0.9;
  values.forEach((value, index) => {
    if (value > 0) context.fillRect(left + index * step + 0.5, y(value), Math.max(1, step - 1.5), height - bottom - y(value));
  });
  context.globalAlpha = 1;
}

const BOUNDS = { west: -126, east: -64, south: 17, north: 50 };
const FLIGHT_MS = 2600;

/**
 * Airports as dots (area by movements), flights as arcs that fade. airports: Map code -> {latitude, longitude, count},
 * flights: [{from, to, atMs}] with codes. Places outside the map (Hawaii, Alaska) stand at its border.
 */
export function drawMap(canvas, airports, flights, { nowMs, colours, still }) {
  const [context, width, height] = prepare(canvas);
  const squeeze = Math.cos((38 * Math.PI) / 180);
  const scale = Math.min((width - 24) / ((BOUNDS.east - BOUNDS.west) * squeeze), (height - 20) / (BOUNDS.north - BOUNDS.south));
  const middle = [(BOUNDS.west + BOUNDS.east) / 2, (BOUNDS.south + BOUNDS.north) / 2];
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const place = ({ latitude, longitude }) => [
    width / 2 + (clamp(longitude, BOUNDS.west, BOUNDS.east) - middle[0]) * squeeze * scale,
    height / 2 - (clamp(latitude, BOUNDS.south, BOUNDS.north) - middle[1]) * scale,
  ];
  for (const flight of flights) {
    const from = airports.get(flight.from), to = airports.get(flight.to);
    const age = (nowMs - flight.atMs) / FLIGHT_MS;
    if (!from || !to || age > 1 || age < 0) continue;
    const [x0, y0] = place(from), [x1, y1] = place(to);
    const bend = [(x0 + x1) / 2, (y0 + y1) / 2 - Math.hypot(x1 - x0, y1 - y0) * 0.18];
    context.strokeStyle = colours.series[flight.kind === "arrival" ? 2 : 0];
    context.globalAlpha = 0.5 * (1 - age);
    context.lineWidth = 1.1;
    context.beginPath(); context.moveTo(x0, y0); context.quadraticCurveTo(...bend, x1, y1); context.stroke();
    if (still) continue;
    const t = age, u = 1 - t;
    context.globalAlpha = 0.9 * (1 - age * 0.6);
    context.fillStyle = context.strokeStyle;
    context.beginPath();
    context.arc(u * u * x0 + 2 * u * t * bend[0] + t * t * x1, u * u * y0 + 2 * u * t * bend[1] + t * t * y1, 1.8, 0, 7);
    context.fill();
  }
  const busiest = [...airports.entries()].sort((a, b) => b[1].count - a[1].count);
  const most = busiest[0]?.[1].count ?? 1;
  for (const [, airport] of busiest) {
    const [x, y] = place(airport);
    context.globalAlpha = 0.8;
    context.fillStyle = airport.isHub ? colours.series[1] : colours.series[0];
    context.beginPath(); context.arc(x, y, 1.6 + 5.5 * Math.sqrt(airport.count / most), 0, 7); context.fill();
  }
  context.globalAlpha = 1;
  context.textAlign = "left";
  const taken = [];
  for (const [code, airport] of busiest.slice(0, 24)) {
    const [x, y] = place(airport);
    const box = [x + 6, y - 10, x + 36, y + 5];
    const hit = taken.some(([l, t, r, b]) => box[0] < r && box[2] > l && box[1] < b && box[3] > t);
    if (hit || box[2] > width) continue;
    taken.push(box);
    context.lineWidth = 3;
    context.strokeStyle = colours.card;
    context.strokeText(code, x + 8, y + 3);
    context.fillStyle = colours.ink;
    context.fillText(code, x + 8, y + 3);
  }
}
