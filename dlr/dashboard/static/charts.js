"use strict";
/* What is drawn: the strip of a job's last day, its timeline, the curve of its step time, the grid of its ranks.
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
  const told = states.map(([state, begin, end]) => `${state} ${duration(end - begin)}`);
  drawn.setAttribute("aria-label", told.length ? `Up to now: ${told.slice(-6).join(", ")}` : "Nothing is known");
  return drawn;
}

function timeline(life, width) {
  const left = width < 600 ? 64 : 150, right = 12, lane = 18, gap = 6, rounds = 14, share = 60, scale = 30;
  const height = rounds + lane + gap + life.lanes.length * lane + gap + share + scale;
  const length = Math.max(life.seconds - life.knownSince, 0.001);
  const x = (at) => left + ((Math.min(Math.max(at, life.knownSince), life.seconds) - life.knownSince) / length) * (width - left - right);
  const drawn = svg("svg", {
    class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "What the job and its workers did when",
  });
  const bars = (spans, top) => {
    for (const [state, begin, end, text] of spans) {
      if (end < life.knownSince) continue;
      const bar = svg("rect", {
        x: x(begin).toFixed(1), y: top + 2, width: Math.max(x(end) - x(begin), 1).toFixed(1), height: lane - 4,
        fill: life.colors[state] || UNKNOWN,
      });
      drawn.append(titled(bar, `${state} for ${duration(end - begin)}${text ? `: ${text}` : ""}`));
    }
  };
  const label = (text, top) => {
    const most = width < 600 ? 10 : 24;
    const node = svg("text", { x: 0, y: top + 13 });
    node.textContent = text.length > most ? `${text.slice(0, most - 1)}…` : text;
    drawn.append(titled(node, text));
  };
  const bottom = height - scale;
  let labelled = -Infinity;
  for (const [number, at, members, reason] of life.rounds) {
    if (at < life.knownSince) continue;
    drawn.append(svg("line", { class: "round", x1: x(at), x2: x(at), y1: rounds, y2: bottom }));
    if (x(at) - labelled < 46 || x(at) > width - 46) continue;
    labelled = x(at);
    const node = svg("text", { class: "tick", x: x(at), y: 10 });
    node.textContent = `round ${number}`;
    drawn.append(titled(node, `round ${number}, workers ${members}${reason ? `: ${reason}` : ""}`));
  }
  label("job", rounds);
  bars(life.states, rounds);
  let top = rounds + lane + gap;
  for (const each of life.lanes) {
    label(width >= 600 && each.node ? `${each.title} (${each.node})` : each.title, top);
    bars(each.spans, top);
    for (const [at, incarnation] of each.starts) {
      if (at < life.knownSince) continue;
      const mark = svg("path", { class: "start", d: `M${x(at) - 4} ${top + lane} h8 l-4 -6 z` });
      drawn.append(titled(mark, `Pod ${incarnation} of ${each.title}, at ${duration(at)}`));
    }
    for (const [at, what, text, follows] of each.failures) {
      if (at < life.knownSince) continue;
      const size = follows ? 3 : 5, middle = top + lane / 2;
      const cross = svg("path", {
        class: follows ? "cross follows" : "cross",
        d: "M-1 -.4 L-.4 -1 L0 -.6 L.4 -1 L1 -.4 L.6 0 L1 .4 L.4 1 L0 .6 L-.4 1 L-1 .4 L-.6 0 Z",
        transform: `translate(${x(at).toFixed(1)} ${middle}) scale(${size})`, "vector-effect": "non-scaling-stroke",
      });
      drawn.append(titled(cross, `${what}, ${each.title}, at ${duration(at)}${text ? `: ${text}` : ""}`));
    }
    top += lane;
  }
  top += gap;
  const y = (part) => top + share * (1 - Math.min(part, 1));
  for (const part of [0, 0.5, 1]) {
    drawn.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(part), y2: y(part) }));
    const node = svg("text", { class: "tick", x: left - 4, y: y(part) + 4, "text-anchor": "end" });
    node.textContent = `${part * 100} %`;
    drawn.append(node);
  }
  if (life.share.length) {
    const points = life.share.map(([at, part]) => `${x(at).toFixed(1)},${y(part).toFixed(1)}`).join(" ");
    drawn.append(titled(svg("polyline", { class: "share", points }), "the share of the time so far in which the job trained"));
  }
  if (life.goodput !== null) {
    const line = svg("line", { class: "goodput", x1: left, x2: width - right, y1: y(life.goodput), y2: y(life.goodput) });
    drawn.append(titled(line, `goodput ${(life.goodput * 100).toFixed(1)} %`));
  }
  const ticks = Math.max(2, Math.floor((width - left) / 110));
  for (let number = 0; number <= ticks; number++) {
    const at = life.knownSince + (length * number) / ticks;
    const anchor = number === 0 ? "start" : number === ticks ? "end" : "middle";
    for (const [line, text] of [[14, duration(at)], [27, clock(life.submitted + at, life.seconds)]]) {
      const node = svg("text", { class: "tick", x: x(at), y: bottom + line, "text-anchor": anchor });
      node.textContent = text;
      drawn.append(node);
    }
  }
  return drawn;
}

/* uPlot's data of the step time: one mean a round as the agents kept it, and what this dashboard has seen since. */
const STEP_SERIES = [["past", "--mark"], ["mean of a round", "--quiet"], ["as seen", "--link"]];

/* Times, and of each a value for each of STEP_SERIES; a round's mean only where the job's own past is not known. */
function stepData(steps, submitted) {
  const rows = steps.past.at.map((at, place) => [at, steps.past.seconds[place], undefined, undefined]);
  if (!rows.length) for (const [begin, end, mean] of steps.rounds) rows.push([begin, null, mean, undefined], [end, null, mean, undefined], [end + 0.001, null, null, undefined]);
  for (const [at, seconds] of steps.samples) rows.push([at, undefined, undefined, seconds]);
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
        ...lines.map(([label, name]) => ({ label, stroke: color(name), width: 1.5, value: (_, value) => text(value), points: { show: data[0].length < 3 }, spanGaps: label !== "mean of a round" })),
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
