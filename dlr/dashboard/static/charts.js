"use strict";
/* Drawings: the strip of a job's last day, the curve of its step time, the grid of its ranks.
   Whatever comes from the cluster becomes text nodes and attributes, never markup. */

const SVG = "http://www.w3.org/2000/svg";
const UNKNOWN = "#888888";

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function titled(node, text) {
  const title = document.createElementNS(SVG, "title");
  title.textContent = text;
  node.prepend(title);
  return node;
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

function strip(states, length, colors) {
  const drawn = svg("svg", { class: "strip", viewBox: `0 0 ${length} 10`, preserveAspectRatio: "none", role: "img" });
  for (const [state, begin, end] of states) {
    const bar = svg("rect", {
      x: begin, y: 0, width: Math.max(end - begin, length / 400), height: 10, fill: colors[state] || UNKNOWN,
    });
    drawn.append(titled(bar, `${state} for ${duration(end - begin)}, until ${duration(length - end)} ago`));
  }
  const recent = states.map(([state, begin, end]) => `${state} ${duration(end - begin)}`);
  drawn.setAttribute("aria-label", recent.length ? `Up to now: ${recent.slice(-6).join(", ")}` : "Nothing is known");
  return drawn;
}

/* uPlot's data of the step time: the points that an agent kept, and what this dashboard has seen since. */
const STEP_SERIES = [["past", "--mark"], ["as seen", "--link"]];

/* Times, and of each a value for each of STEP_SERIES. */
function stepData(steps, submitted) {
  const rows = steps.past.at.map((at, place) => [at, steps.past.seconds[place], undefined]);
  for (const [at, seconds] of steps.samples) rows.push([at, undefined, seconds]);
  rows.sort((one, other) => one[0] - other[0]);
  return [rows.map((row) => row[0] + submitted), ...STEP_SERIES.map((_, at) => rows.map((row) => row[at + 1]))];
}

function numberData(past, name, submitted) {
  return [past.at.map((at) => at + submitted), past.numbers[name]];
}

/* `lines`: [label, colour variable] of each; `mark()`: a time at which a line is drawn, or null. */
function chartOf(place, lines, data, width, { height = 190, unit = "", zero = false, mark = () => null }) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const text = (value) => (value == null ? "–" : `${Number(value.toPrecision(3))}${unit}`);
  const marked = (plot) => {
    const at = mark();
    if (at === null) return;
    const x = plot.valToPos(at, "x", true);
    plot.ctx.save();
    plot.ctx.strokeStyle = color("--bad");
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, plot.bbox.top);
    plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
    plot.ctx.stroke();
    plot.ctx.restore();
  };
  return new uPlot(
    {
      width, height,
      padding: [null, 30, null, null], // half a time is right of the last tick
      scales: zero ? { y: { range: (_, low, high) => (low == null ? [0, 1] : [0, high * 1.15]) } } : {},
      axes: [{ ...axis, space: 70, values: (plot, values) => values.map((at) => clock(at, plot.scales.x.max - plot.scales.x.min)) }, { ...axis, size: 64, values: (_, values) => values.map(text) }],
      series: [
        { label: "UTC", value: (_, at) => (at == null ? "–" : clock(at, 0)) },
        ...lines.map(([label, name]) => ({ label, stroke: color(name), width: 1.5, value: (_, value) => text(value), points: { show: data[0].length < 3 }, spanGaps: true })),
      ],
      hooks: { draw: [marked] },
    },
    data,
    place,
  );
}

/* Of 0 (as usual) to 1 (as bad as it gets). */
const BADNESS = {
  lag: (cell) => (cell.lag === null ? null : Math.min(1, Math.max(0, cell.lag * (cell.secondsPerStep || 0) - 15) / 60)),
  slowness: (cell) => (cell.slowness === null ? null : Math.min(1, Math.max(0, cell.slowness - 1.05))),
  failure: (cell) => (cell.class ? Math.max(0.15, 1 - (cell.ago || 0) / 86400) : 0),
};

function badColor(badness) {
  if (badness === null) return "#9a9a9a";
  const from = [0, 158, 115], middle = [240, 228, 66], to = [213, 94, 0];
  const [one, other, part] = badness < 0.5 ? [from, middle, badness * 2] : [middle, to, badness * 2 - 1];
  return `rgb(${one.map((value, at) => Math.round(value + (other[at] - value) * part)).join(" ")})`;
}

function cellsOf(grid) {
  return grid.cells.map((row) => {
    const cell = Object.fromEntries(grid.columns.map((name, at) => [name, row[at]]));
    return { ...cell, node: grid.nodes[cell.node], state: grid.states[cell.state], class: grid.classes[cell.class] };
  });
}

const MOST_ROWS = 64;
const LABEL_WIDTH = 130;
const RASTER_HEIGHT = 320;

/* A row a node where they are few, else all in rank order. Gives what lies where, for pointer and keys. */
function drawRanks(canvas, cells, mode, width) {
  const nodes = [...new Set(cells.map((cell) => cell.node))];
  const byNode = nodes.length <= MOST_ROWS && nodes.length > 0;
  const labels = byNode && width > 420 ? LABEL_WIDTH : 0;
  const rows = byNode ? nodes.map((node) => cells.filter((cell) => cell.node === node)) : [cells];
  const longest = Math.max(...rows.map((row) => row.length), 1);
  const room = width - labels;
  const side = byNode ? room / longest : Math.sqrt((room * RASTER_HEIGHT) / longest);
  const size = Math.max(6, Math.min(22, Math.floor(side)));
  const across = Math.max(1, Math.floor(room / size));
  const places = [], names = [];
  let line = 0;
  rows.forEach((row, number) => {
    if (byNode) names.push([nodes[number] || "no node", line]);
    row.forEach((cell, at) => places.push([cell, labels + (at % across) * size, (line + Math.floor(at / across)) * size]));
    line += Math.max(1, Math.ceil(row.length / across));
  });
  const ratio = window.devicePixelRatio || 1, height = Math.max(line, 1) * size;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const paint = canvas.getContext("2d");
  paint.scale(ratio, ratio);
  paint.font = `${Math.min(11, size)}px system-ui, sans-serif`;
  paint.textBaseline = "middle";
  paint.fillStyle = getComputedStyle(document.body).color;
  if (labels) for (const [name, at] of names) paint.fillText(name.slice(0, 20), 0, (at + 0.5) * size, labels - 6);
  for (const [cell, left, top] of places) {
    paint.fillStyle = badColor(BADNESS[mode](cell));
    paint.fillRect(left + 0.5, top + 0.5, size - 1, size - 1);
    if (cell.rank === null || cell.state !== "Running") {
      paint.fillStyle = "rgb(0 0 0 / 45%)";
      paint.fillRect(left + 0.5, top + size / 2, size - 1, size / 2 - 0.5);
    }
  }
  return (x, y) => places.find(([, left, top]) => x >= left && x < left + size && y >= top && y < top + size)?.[0];
}
