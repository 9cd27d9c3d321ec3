"use strict";
/* Drawings: the strip of a job's last day, curves over time, the grid of ranks.
   Whatever comes from the cluster becomes text nodes and attributes, never markup. */

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [unit, size, smaller, smallerSize] of [["d", 86400, "h", 3600], ["h", 3600, "m", 60], ["m", 60, "s", 1]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / smallerSize);
      return `${Math.floor(whole / size)}${unit}` + (rest ? `${rest}${smaller}` : "");
    }
  }
  return `${whole}s`;
}

function clock(epochSeconds, lengthSeconds) {
  const iso = new Date(epochSeconds * 1000).toISOString();
  if (lengthSeconds < 7200) return iso.slice(11, 19);
  return lengthSeconds < 86400 ? iso.slice(11, 16) : `${iso.slice(5, 10)} ${iso.slice(11, 16)}`;
}

const short = (value) => `${Number(value.toPrecision(3))}`;

function strip(states, length) {
  const bars = states.map(([state, begin, end]) => {
    const title = svg("title", {}, `${state} for ${duration(end - begin)}, until ${duration(length - end)} ago`);
    return svg("rect", { x: begin, y: 0, width: Math.max(end - begin, length / 400), height: 10, "data-state": state }, title);
  });
  const recent = states.slice(-6).map(([state, begin, end]) => `${state} ${duration(end - begin)}`);
  const label = recent.length ? `Up to now: ${recent.join(", ")}` : "Nothing is known";
  return svg("svg", { class: "strip", viewBox: `0 0 ${length} 10`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars);
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 2592000];

/* A line over UTC; a spark has no axes. `output` shows the value under the pointer, or the last one; `most` is the smallest maximum of a scale from 0; `mark()` returns a time and a label, or null. */
function chartOf(place, output, data, width, { unit = "", most = null, spark = false, mark = () => null }) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const font = "12px system-ui, sans-serif";
  const axis = { font, stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const marked = (plot) => {
    const found = mark();
    if (!found) return;
    const x = plot.valToPos(found.at, "x", true), { ctx, bbox } = plot;
    const isRight = x > bbox.left + bbox.width / 2;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("--warn");
    ctx.fillRect(x, bbox.top, devicePixelRatio, bbox.height);
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = isRight ? "right" : "left";
    ctx.fillText(found.label, x + (isRight ? -6 : 6) * devicePixelRatio, bbox.top + bbox.height - 6 * devicePixelRatio);
    ctx.restore();
  };
  const tell = (plot) => {
    const [times, values] = plot.data, at = plot.cursor.idx ?? values.findLastIndex((value) => value !== null);
    const when = spark && plot.cursor.idx == null ? "" : ` at ${clock(times[at], 0)}`;
    output.textContent = values[at] == null ? "" : `${short(values[at])}${unit}${when}`;
  };
  return new uPlot(
    {
      width, height: spark ? 48 : 180,
      legend: { show: false },
      padding: spark ? [4, 0, 4, 0] : [8, 30, null, null], // room for half a label right of the last tick
      scales: most === null ? {} : { y: { range: (_, low, high) => (low == null ? [0, 1] : [0, Math.max(most, high * 1.15)]) } },
      axes: spark ? [{ show: false }, { show: false }] : [
        { ...axis, space: 70, size: 30, incrs: TIME_STEPS, values: (plot, values) => values.map((at) => clock(at, plot.scales.x.max - plot.scales.x.min)) },
        { ...axis, size: 52, values: (_, values) => values.map((value) => (value == null ? "" : short(value))) },
      ],
      series: [{}, { stroke: color(spark ? "--quiet" : "--link"), width: 1.5, fill: spark ? `${color("--line")}80` : null, points: { show: data[0].length < 3 }, spanGaps: true }],
      hooks: { draw: [marked], setCursor: [tell], setData: [tell], ready: [tell] },
    },
    data,
    place,
  );
}

/* From 0 (usual) to 1 (worst). */
const BADNESS = {
  state: (cell) => (cell.odd === null ? 0 : cell.odd.state === "Failed" ? 1 : 0.4 - cell.odd.place / 50), // the gravest kinds come first
  lag: (cell) => (cell.lag === null ? null : Math.min(1, Math.max(0, cell.lag * (cell.secondsPerStep || 0) - 15) / 60)),
  slowness: (cell) => (cell.slowness === null ? null : Math.min(1, Math.max(0, cell.slowness - 1.05))),
  failure: (cell) => (cell.class ? Math.max(0.15, 1 - (cell.ago || 0) / 86400) : 0),
};
const LEVELS = [["Running", "as usual"], ["Warning", "unusual"], ["Failed", "far from usual"], ["Pending", "not training"]];

/* Key of a rank's colour in LEVELS. */
function levelOf(cell, mode) {
  const badness = BADNESS[mode](cell);
  if (mode === "state" && badness) return badness < 0.5 ? "Warning" : "Failed";
  if (cell.rank === null || badness === null || !["Running", "Succeeded"].includes(cell.state)) return "Pending";
  return badness < 0.1 ? "Running" : badness < 0.5 ? "Warning" : "Failed";
}

function cellsOf(grid) {
  return grid.cells.map((row) => {
    const cell = Object.fromEntries(grid.columns.map((name, at) => [name, row[at]]));
    return { ...cell, node: grid.nodes[cell.node], state: grid.states[cell.state], class: grid.classes[cell.class], odd: cell.odd === null ? null : { ...grid.odd[cell.odd], place: cell.odd } };
  });
}

const BLOCK_GAP = 16, LEAST_SIDE = 8, MOST_SIDE = 20, MOST_HEIGHT = 480, NARROW = 500, NO_NODE = "no node";
const CHARACTER = 7, MOST_NAME = 16, MOST_ROW_LABEL = 22, LABEL_HEIGHT = 14;

/* The cells of each node, by its name, in rank order. */
function byNode(cells) {
  const found = new Map();
  for (const cell of cells) {
    if (!found.has(cell.node)) found.set(cell.node, []);
    found.get(cell.node).push(cell);
  }
  return found;
}

/* Position of each cell: one line per node, in as many columns as fit; if they do not fit, all in rank order. */
function placesOf(cells, width) {
  const rows = byNode(cells), names = [...rows.keys()].map((node) => node || NO_NODE);
  const longest = Math.max(1, ...[...rows.values()].map((row) => row.length));
  const hasRoomForNames = cells.length >= 3 * rows.size || rows.size <= 16;
  const side = cells.length > 2000 ? LEAST_SIDE : cells.length > 256 ? (width < NARROW ? LEAST_SIDE : 12) : MOST_SIDE;
  const label = Math.min(MOST_NAME, Math.max(...names.map((name) => name.length))) * CHARACTER + 8;
  const block = label + longest * side + BLOCK_GAP;
  const columns = Math.max(1, Math.floor((width + BLOCK_GAP) / block)), lines = Math.ceil(rows.size / columns);
  const isLegible = side + 2 >= LABEL_HEIGHT - 2;
  if (!hasRoomForNames || !isLegible || block > width + BLOCK_GAP || lines * (side + 2) > MOST_HEIGHT) return inRankOrder(cells, width, side, longest);
  const at = (number) => [Math.floor(number / lines) * block, (number % lines) * (side + 2)];
  return {
    side, label, height: lines * (side + 2),
    names: names.map((name, number) => [name.slice(-MOST_NAME), ...at(number)]),
    places: [...rows.values()].flatMap((row, number) => row.map((cell, place) => [cell, at(number)[0] + label + place * side, at(number)[1]])),
  };
}

/* All cells in lines, each labelled with rank and node of its first cell; nodes of equal size are not split. */
function inRankOrder(cells, width, side, perNode) {
  const nameOf = ({ rank, node }) => `${rank ?? ""} ${node || NO_NODE}`.slice(0, MOST_ROW_LABEL);
  const label = Math.max(...cells.map((cell) => nameOf(cell).length)) * CHARACTER + 8;
  const room = Math.max(1, Math.floor((width - label) / side));
  const across = perNode > 1 && perNode < room ? room - (room % perNode) : room;
  const every = Math.ceil(LABEL_HEIGHT / side);
  const firsts = cells.filter((_, at) => at % (across * every) === 0);
  return {
    side, label, height: Math.ceil(cells.length / across) * side,
    names: firsts.map((cell, number) => [nameOf(cell), 0, number * every * side]),
    places: cells.map((cell, at) => [cell, label + (at % across) * side, Math.floor(at / across) * side]),
  };
}

/* `colors`: colour by key of LEVELS. Returns the position of each cell. */
function drawRanks(canvas, cells, mode, width, colors, chosen) {
  const { side, label, names, height, places } = placesOf(cells, width);
  const ratio = devicePixelRatio || 1, style = getComputedStyle(document.body);
  canvas.width = width * ratio;
  canvas.height = Math.max(height, 1) * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const paint = canvas.getContext("2d");
  paint.scale(ratio, ratio);
  paint.font = "11px system-ui, sans-serif";
  paint.textBaseline = "middle";
  paint.fillStyle = style.getPropertyValue("--quiet");
  for (const [name, left, top] of names) paint.fillText(name, left, top + side / 2 + 1, label - 8);
  for (const [cell, left, top] of places) {
    paint.fillStyle = colors[levelOf(cell, mode)];
    paint.fillRect(left, top, side - 1, side - 1);
    if (cell.index === chosen) {
      paint.strokeStyle = style.color;
      paint.lineWidth = 2;
      paint.strokeRect(left, top, side - 1, side - 1);
    }
  }
  return { side, places };
}
