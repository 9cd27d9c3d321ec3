"use strict";
/* The page: its view, the server's updates, and keys. Texts of the cluster become text nodes, but for the timeline, an SVG in which the server has escaped them. */

const main = document.getElementById("main");
const where = document.getElementById("where");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");
const filter = document.getElementById("filter");
const keys = document.getElementById("keys");
const BIG_DRAWING = 100000; // characters of a timeline: beyond, it is drawn less often
const SLOW_REDRAW_MS = 5000;
const LOG_INTERVAL_MS = 3000;

let view = null; // what is shown: {kind, namespace, name}
let source = null; // its EventSource
let update = null; // the last of it: {page, trouble, at}
let parts = new Map(); // by name, what a part of the page was made of, so that what is as it was stays as it is
let mode = "lag";
let log = { rank: null, timer: 0 };
let charts = null; // of the steps: {names, made}

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/* Makes a part again if what it shows has changed; an element in it that has the focus keeps it. */
function part(name, shown, make) {
  const text = JSON.stringify(shown);
  if (parts.get(name) === text) return;
  parts.set(name, text);
  const place = document.getElementById(name);
  if (!place) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...[make(shown)].flat().filter((child) => child !== null));
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function route() {
  const steps = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const wanted = steps[0] === "job" && steps.length === 3
    ? { kind: "job", namespace: steps[1], name: steps[2] }
    : { kind: "fleet" };
  if (view && JSON.stringify(view) === JSON.stringify(wanted)) return;
  view = wanted;
  parts = new Map();
  update = null;
  followLog(null);
  charts = null;
  document.body.classList.toggle("job-page", view.kind === "job");
  document.body.classList.remove("stale");
  filter.hidden = view.kind === "job";
  trouble.hidden = true;
  where.textContent = view.kind === "job" ? `${view.namespace}/${view.name}` : "all jobs";
  document.title = view.kind === "job" ? `${view.name} · dlr` : "dlr";
  main.replaceChildren(el("p", { class: "quiet" }, "Asking the cluster …"));
  source?.close();
  const query = new URLSearchParams(view.kind === "job" ? { view: "job", namespace: view.namespace, name: view.name } : { view: "fleet" });
  source = new EventSource(`events?${query}`);
  source.onmessage = (event) => { update = JSON.parse(event.data); render(); };
  source.onerror = () => {
    const gave = source.readyState === EventSource.CLOSED;
    say(gave ? "The server refuses this page; open the address that dlr dashboard printed." : "dlr dashboard does not answer; it may have been ended. Trying again.");
  };
}

function say(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== (text || "")) trouble.textContent = text || "";
  document.body.classList.toggle("stale", Boolean(text));
}

function render() {
  say(update.trouble ? `${update.trouble}${update.page ? " What is shown is older." : ""}` : "");
  if (!update.page) {
    main.replaceChildren();
    parts = new Map();
    return;
  }
  if (view.kind === "fleet") renderFleet(update.page);
  else renderJob(update.page);
}

function tick() {
  if (!update) { live.textContent = ""; return; }
  const seconds = Date.now() / 1000 - update.at;
  live.textContent = update.trouble || seconds > 5 ? `${duration(seconds)} old` : "live";
  live.classList.toggle("late", Boolean(update.trouble) || seconds > 35);
}

const percent = (part) => (part === null || part === undefined ? "" : `${(part * 100).toFixed(part < 0.995 ? 1 : 0)} %`);
const short = (value) => Number(value.toPrecision(3));
const tone = (word) => ({ Failed: "bad", Faulty: "bad", Cordoned: "bad", Straggler: "warn", Warning: "warn", Recovering: "warn", Down: "bad", Pending: "warn", Restarting: "warn", Running: "good", Training: "good", Succeeded: "good", Healthy: "good" })[word] || "";

/* ---- all jobs ---- */

function renderFleet(page) {
  if (!document.getElementById("fleet")) {
    main.replaceChildren(el("h1", { id: "fleet-title" }), el("div", { id: "fleet", class: "scroll" }));
    parts = new Map();
  }
  const words = filter.value.trim().toLowerCase();
  const total = page.jobs.filter((job) => !job.isGroup).length;
  const jobs = page.jobs.filter((job) => !words || `${job.namespace}/${job.name} ${job.phase} ${job.why}`.toLowerCase().includes(words));
  const shown = jobs.filter((job) => !job.isGroup).length;
  part("fleet-title", [shown, total, page.namespace], () => {
    const place = page.namespace === null ? "all namespaces" : `namespace ${page.namespace}`;
    return document.createTextNode(`${shown === total ? "" : `${shown} of `}${total} jobs in ${place}`);
  });
  part("fleet", [jobs, page.leftOut], () => [
    jobs.length ? el("table", { class: "fleet" }, fleetHead(page.strip), el("tbody", {}, jobs.map((job) => fleetRow(job, page)))) : el("p", { class: "quiet" }, words ? "No job fits the filter." : "There are no ElasticJobs here. `dlr dashboard -A` looks in all namespaces."),
    page.leftOut ? el("p", { class: "quiet" }, `… and ${page.leftOut} older ones`) : null,
    jobs.length ? legend(page.colors, new Set(jobs.flatMap((job) => job.states.map(([state]) => state)))) : null,
  ]);
}

function fleetHead(strip) {
  return el("thead", {}, el("tr", {}, ["JOB", "PHASE", "WORKERS", `LAST ${duration(strip)}`, "GOODPUT", "STEP", "STEPS/S", "LEFT", "OUTAGES", "WHY"].map((title) => el("th", { scope: "col" }, title))));
}

function fleetRow(job, page) {
  const full = page.namespace === null ? `${job.namespace}/${job.name}` : job.name;
  const name = job.isGroup ? `└ ${full}` : full;
  const address = `#/job/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;
  const state = job.state && job.state !== job.phase ? ` (${job.state})` : "";
  const step = job.step === null || job.step === undefined ? "" : job.total ? `${job.step} of ${job.total}` : `${job.step}`;
  const cell = (label, ...children) => el("td", children.some(Boolean) ? { "data-label": label } : {}, ...children);
  return el("tr", {},
    el("td", {}, el("a", { href: address, "data-key": address, "data-row": true }, name)),
    el("td", { class: tone(job.phase) }, `${job.phase}${state}`),
    cell("workers", job.workers),
    el("td", { class: "strip-cell" }, strip(job.states, page.strip, page.colors)),
    cell("goodput", percent(job.goodput)),
    cell("step", step),
    cell("steps/s", job.secondsPerStep ? `${short(1 / job.secondsPerStep)}` : ""),
    cell("left", job.secondsLeft ? duration(job.secondsLeft) : ""),
    cell("outages", job.outages ? `${job.outages}` : ""),
    el("td", { class: "wide why" }, [job.groups, job.why].filter(Boolean).join("; ")));
}

function legend(colors, states) {
  const shown = Object.keys(colors).filter((state) => states.has(state));
  return el("ul", { class: "legend" }, shown.map((state) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = colors[state];
    return el("li", {}, swatch, state);
  }));
}

/* ---- one job ---- */

const SECTIONS = ["verdict", "groups", "life", "steps", "failures", "culprit", "waits", "ranks", "stacks", "nodes", "log", "events"];

function renderJob(page) {
  if (!document.getElementById("verdict")) {
    const section = (name) => el("section", { id: name, tabindex: -1, "aria-label": name });
    main.replaceChildren(
      section("verdict"), section("groups"), section("life"),
      el("div", { class: "columns" }, section("steps"), section("failures")),
      section("culprit"),
      el("div", { class: "columns" }, section("waits"), section("nodes")),
      section("ranks"), section("stacks"), section("log"), section("events"));
    parts = new Map();
    makeRanks();
    makeLog();
  }
  part("verdict", [page.verdict, page.also, page.advice, page.facts, page.share, page.phase, page.unread], () => verdictPart(page));
  part("groups", page.groups, (groups) => groups && groupsPart(page, groups));
  document.getElementById("groups").hidden = !page.groups;
  for (const name of ["ranks", "log"]) document.getElementById(name).hidden = Boolean(page.groups);
  renderLife(page);
  renderSteps(page);
  part("failures", [page.failures, page.lost, page.life?.submitted, page.life && page.life.seconds > 7200], () => failuresPart(page));
  part("culprit", page.culprit, culpritPart);
  document.getElementById("culprit").hidden = !page.culprit;
  part("waits", [page.evidence], () => waitsPart(page));
  part("nodes", [page.nodes, page.nodeEvidence], () => nodesPart(page));
  renderRanks(page.ranks);
  part("stacks", page.stacks && [page.stacks, page.name], stacksPart);
  document.getElementById("stacks").hidden = !page.stacks;
  part("events", page.events, eventsPart);
}

const fields = (statement) => el("span", { class: "fields" }, ` ${statement.fields.map((field) => `${field.object} ${field.path}`).join("; ")}`);
const statement = (each) => el("li", {}, each.text, fields(each), each.lines ? el("pre", {}, each.lines.join("\n")) : null);

function verdictPart(page) {
  const bar = el("div", { class: "bar" }, el("div", {}));
  if (page.share !== null) bar.firstChild.style.width = `${page.share * 100}%`;
  return [
    el("p", { class: `verdict ${page.phase === "Failed" || page.cause === page.phase ? tone(page.phase) : ""}` }, page.verdict.text),
    fields(page.verdict),
    page.also.length ? el("ul", {}, page.also.map(statement)) : null,
    page.advice.length ? el("h2", {}, "What to do") : null,
    page.advice.length ? el("ul", {}, page.advice.map((each) => el("li", {}, each.text))) : null,
    el("dl", { class: "facts" }, page.facts.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)])),
    page.share === null ? null : bar,
    page.unread.length ? el("p", { class: "warn" }, page.unread.join(" ")) : null,
  ];
}

/* The replica groups of a job: each is a job with a page of its own. */
function groupsPart(page, groups) {
  const columns = ["PHASE", "TRAINS", "ROUND", "STEP", "RESTARTS", "LAST FAILURE", "WHY"];
  return [
    el("h2", {}, "Replica groups"),
    el("div", { class: "scroll tall", tabindex: 0, "aria-label": "Replica groups" }, el("table", {},
      el("thead", {}, el("tr", {}, ["GROUP", ...columns].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, groups.map((group) => el("tr", {},
        el("td", {}, el("a", { href: `#/job/${encodeURIComponent(page.namespace)}/${encodeURIComponent(group.job)}`, "data-key": group.job }, group.job)),
        columns.map((column) => el("td", { class: column === "PHASE" ? tone(group.PHASE) : ["LAST FAILURE", "WHY"].includes(column) ? "wide" : "" }, `${group[column] ?? ""}`))))))),
  ];
}

let drawnAt = 0;
function renderLife(page) {
  const place = document.getElementById("life");
  place.hidden = !page.life;
  if (!page.life) return;
  if (page.life.drawing.length > BIG_DRAWING && Date.now() - drawnAt < SLOW_REDRAW_MS && place.firstChild) return;
  drawnAt = Date.now();
  part("life", [page.life, page.times], () => [
    el("h2", {}, "Timeline"),
    document.importNode(new DOMParser().parseFromString(page.life.drawing, "image/svg+xml").documentElement, true),
    el("p", { class: "quiet" }, timeLine(page.times),
      page.life.lanesLeftOut ? ` · ${page.life.lanesLeftOut} more workers, to which less happened` : "",
      page.life.knownSince ? ` · the first ${duration(page.life.knownSince)} are forgotten` : ""),
  ]);
}

function timeLine(times) {
  const total = Object.values(times).reduce((sum, seconds) => sum + seconds, 0) || 1;
  const longest = Object.entries(times).sort((one, other) => other[1] - one[1]);
  return longest.map(([state, seconds]) => `${state} ${duration(seconds)} (${Math.round((100 * seconds) / total)} %)`).join(", ");
}

let slowSince = null;

function renderSteps(page) {
  const place = document.getElementById("steps");
  const { steps } = page;
  const names = Object.keys(steps.past.numbers);
  const known = page.life && (steps.past.at.length || steps.samples.length);
  place.hidden = !known;
  if (!known) return;
  const { submitted } = page.life;
  slowSince = steps.slowSince === null ? null : submitted + steps.slowSince;
  const width = Math.max(260, place.clientWidth - 30);
  const data = [stepData(steps, submitted), ...names.map((name) => numberData(steps.past, name, submitted))];
  if (!charts || charts.names !== names.join("\n") || !document.getElementById("chart")) {
    const rooms = ["chart", ...names.map((_, at) => `chart-${at}`)].map((id) => el("div", { id }));
    place.replaceChildren(...rooms.flatMap((room, at) => [el("h2", {}, at ? names[at - 1] : "Step time"), room]),
      el("p", { class: "quiet" }, `${steps.past.at.length ? "The past is what rank 0's agent keeps." : "The past is not known."}${slowSince ? " The red line is where steps began to take longer." : ""}${names.length ? "" : " dlr.report(step, loss=…) plots the loss here."}`));
    const made = rooms.map((room, at) => at
      ? chartOf(room, [[names[at - 1], "--link"]], data[at], width, { height: 150 })
      : chartOf(room, STEP_SERIES, data[0], width, { unit: " s", zero: true, mark: () => slowSince }));
    charts = { names: names.join("\n"), made };
    return;
  }
  charts.made.forEach((chart, at) => {
    if (chart.width !== width) chart.setSize({ width, height: chart.height });
    chart.setData(data[at]);
  });
}

function failuresPart(page) {
  const hours = (value) => (value === null ? "" : value < 0.001 ? "< 0.001" : `${short(value)}`);
  const cost = page.lost.seconds ? `Failures cost ${duration(page.lost.seconds)}${page.lost.workerHours === null ? "" : `, ${hours(page.lost.workerHours)} worker-hours`}.` : "";
  return [
    el("h2", {}, "Failures"),
    el("p", { class: "quiet" }, page.failures.length ? cost : "Nothing has failed, as far as the job's history goes."),
    page.failures.length ? el("div", { class: "scroll tall", tabindex: 0, "aria-label": "Failures" }, el("table", {},
      el("thead", {}, el("tr", {}, ["UTC", "WORKER", "CLASS", "COST", "WORKER-HOURS", "MESSAGE"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, page.failures.map((each) => el("tr", {},
        el("td", {}, clock(page.life.submitted + each.at, page.life.seconds)),
        el("td", {}, each.worker),
        el("td", { class: "bad" }, each.class),
        el("td", {}, each.seconds === null ? "" : duration(each.seconds)),
        el("td", {}, hours(each.workerHours)),
        el("td", { class: "wide" }, each.text)))))) : null,
  ];
}

function culpritPart(culprit) {
  if (!culprit) return null;
  return [
    el("h2", {}, "Last failure"),
    el("dl", { class: "facts" }, culprit.heading.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)])),
    culprit.message.length ? el("pre", { tabindex: 0, "aria-label": "Its message" }, culprit.message.join("\n")) : null,
    culprit.log.length ? el("details", {}, el("summary", {}, "the end of its log"), el("pre", {}, culprit.log.join("\n"))) : null,
  ];
}

function stacksPart(shown) {
  if (!shown) return null;
  const [stacks, name] = shown;
  const answered = `${stacks.processes} process${stacks.processes === 1 ? "" : "es"}${stacks.asked === null ? "" : ` at ${clock(stacks.asked, 0)} UTC`}`;
  const silent = stacks.silent ? `; ${stacks.silent} worker${stacks.silent === 1 ? " has" : "s have"} not answered` : "";
  return [
    el("h2", {}, "Stacks"),
    stacks.processes
      ? el("p", {}, `${answered}, the odd ones first${silent}`)
      : el("p", { class: "quiet" }, "The command ", el("code", {}, `dlr job stacks ${name}`), " collects the stacks of all processes; they are shown here, too."),
    stacks.lines.length ? el("pre", { tabindex: 0, "aria-label": "Stacks" }, stacks.lines.join("\n")) : null,
    stacks.leftOut ? el("p", { class: "quiet" }, `… and ${stacks.leftOut} lines more`) : null,
  ];
}

function waitsPart(page) {
  const groups = page.evidence.flatMap((group) => [el("h2", {}, group.title), el("ul", {}, group.sentences.map(statement))]);
  return groups.length ? groups : [el("h2", {}, "Conditions"), el("p", { class: "quiet" }, "It waits for nothing, and has spent no budget.")];
}

function nodesPart(page) {
  return [
    el("h2", {}, "Nodes"),
    page.nodeEvidence.length ? el("ul", {}, page.nodeEvidence.map(statement)) : null,
    page.nodes.shown.length ? el("div", { class: "scroll tall", tabindex: 0, "aria-label": "Nodes" }, el("table", {},
      el("thead", {}, el("tr", {}, ["NODE", "VERDICT", "CORDON", "READY"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, page.nodes.shown.map((node) => el("tr", {},
        el("td", {}, node.name),
        el("td", { class: tone(node.verdict) }, node.verdict || "not checked"),
        el("td", { class: tone(node.cordon) }, node.cordon || ""),
        el("td", { class: node.ready === false ? "bad" : "" }, node.ready === null ? "" : node.ready ? "yes" : "no")))))) : el("p", { class: "quiet" }, "No Pod of the job has a node."),
    page.nodes.leftOut ? el("p", { class: "quiet" }, `… and ${page.nodes.leftOut} more`) : null,
  ];
}

function eventsPart(events) {
  return [
    el("h2", {}, "Events"),
    events.length ? el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, events.map((event) => el("tr", {},
      el("td", {}, event.seen), el("td", { class: tone(event.type) }, event.reason), el("td", { class: "wide" }, event.message)))))) : el("p", { class: "quiet" }, "There are none; clusters forget them after an hour."),
  ];
}

/* ---- ranks ---- */

const MODES = [["lag", "step lag"], ["slowness", "step time"], ["failure", "last failure"]];
const CELL_COLORS = { "as usual": badColor(0), "far from usual": badColor(1), unknown: badColor(null), "lower half dark: does not train": "linear-gradient(#009e73 50%, #00573f 50%)" };
let cellAt = () => undefined;

function makeRanks() {
  const canvas = el("canvas", { id: "grid", role: "img" });
  const pick = (event) => {
    const box = canvas.getBoundingClientRect();
    return cellAt(event.clientX - box.left, event.clientY - box.top);
  };
  canvas.addEventListener("mousemove", (event) => { const cell = pick(event); if (cell) document.getElementById("tip").textContent = cellLine(cell); });
  canvas.addEventListener("click", (event) => { const cell = pick(event); if (cell && cell.rank !== null) followLog(cell.rank, true); });
  document.getElementById("ranks").append(
    el("h2", {}, "Ranks on nodes"),
    el("div", { class: "tools", role: "group", "aria-label": "Colour by" }, MODES.map(([name, title]) =>
      el("button", { type: "button", "data-mode": name, onclick: () => { mode = name; parts.delete("grid"); renderRanks(update.page.ranks); } }, title))),
    el("div", { class: "ranks" }, canvas),
    legend(CELL_COLORS, new Set(Object.keys(CELL_COLORS))),
    el("p", { id: "tip", class: "quiet" }),
    el("div", { id: "worst" }));
}

function cellLine(cell) {
  const words = [cell.rank === null ? `worker ${cell.index}, no rank` : `rank ${cell.rank}`, cell.node || "no node", cell.state];
  if (cell.step !== null) words.push(`step ${cell.step}${cell.lag ? `, ${cell.lag} behind` : ""}`);
  if (cell.secondsPerStep !== null) words.push(`${cell.secondsPerStep} s a step${cell.slowness === null ? "" : ` (${cell.slowness} of the median)`}`);
  if (cell.class) words.push(`${cell.class} ${duration(cell.ago)} ago`);
  return words.join(" · ");
}

function renderRanks(grid) {
  const place = document.getElementById("ranks");
  const width = Math.max(200, place.clientWidth - 30);
  for (const button of place.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === mode);
  const shown = JSON.stringify([grid, mode, width]);
  if (parts.get("grid") === shown) return;
  parts.set("grid", shown);
  const cells = cellsOf(grid);
  const canvas = document.getElementById("grid");
  cellAt = drawRanks(canvas, cells, mode, width);
  const title = MODES.find(([name]) => name === mode)[1];
  canvas.setAttribute("aria-label", `${grid.workers} workers on ${grid.nodes.length} nodes, coloured by ${title}`);
  const tip = document.getElementById("tip");
  if (!tip.textContent) tip.textContent = `A click on a cell shows its log.${grid.perCell > 1 ? ` Each cell is the worst of ${grid.perCell} ranks.` : ""}`;
  const worst = cells.filter((cell) => (BADNESS[mode](cell) || 0) > 0.05).sort((one, other) => BADNESS[mode](other) - BADNESS[mode](one)).slice(0, 8);
  part("worst", worst, () => worst.length ? el("ul", {}, worst.map((cell) => el("li", {}, cellLine(cell), cell.rank === null ? null : el("span", {}, " ",
    el("button", { type: "button", "data-key": `log-${cell.rank}`, onclick: () => followLog(cell.rank, true) }, "log"))))) : el("p", { class: "quiet" }, grid.workers ? "No rank is unlike the others." : "The job has no workers."));
}

/* ---- log ---- */

function makeLog() {
  const rank = el("input", { id: "rank", type: "number", min: 0, placeholder: "rank", "aria-label": "Rank", onchange: (event) => followLog(event.target.value === "" ? null : Number(event.target.value)) });
  document.getElementById("log").append(
    el("h2", {}, "Log"),
    el("div", { class: "tools" }, el("label", { for: "rank" }, "of rank"), rank, el("span", { id: "log-note", class: "quiet" }, "The last 300 lines, as they come.")),
    el("pre", { id: "log-lines", tabindex: 0, "aria-label": "Lines of the log", hidden: true }));
}

async function followLog(rank, scroll) {
  clearTimeout(log.timer);
  log = { rank, timer: 0 };
  if (rank === null || !Number.isInteger(rank) || rank < 0) return;
  document.getElementById("rank").value = rank;
  const mine = log, lines = document.getElementById("log-lines"), note = document.getElementById("log-note");
  if (scroll) document.getElementById("log").scrollIntoView({ block: "nearest" });
  let answer;
  try {
    const response = await fetch(`log?${new URLSearchParams({ namespace: view.namespace, name: view.name, rank })}`);
    answer = response.ok ? await response.json() : { pod: null, lines: [], note: await response.text() };
  } catch {
    answer = { pod: null, lines: null, note: "dlr dashboard does not answer." };
  }
  if (log !== mine) return;
  note.textContent = [answer.pod, answer.note].filter(Boolean).join(": ");
  if (answer.lines !== null) {
    const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 20;
    const text = answer.lines.join("\n");
    if (lines.textContent !== text) lines.textContent = text;
    lines.hidden = !answer.lines.length;
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }
  log.timer = setTimeout(() => followLog(rank), LOG_INTERVAL_MS);
}

/* ---- keys ---- */

function step(by) {
  const stops = view.kind === "fleet"
    ? [...document.querySelectorAll("[data-row]")]
    : SECTIONS.map((name) => document.getElementById(name)).filter((each) => each && !each.hidden);
  const at = stops.findIndex((each) => each === document.activeElement || (view.kind === "job" && each.contains(document.activeElement)));
  const next = stops[Math.min(Math.max(at + by, 0), stops.length - 1)];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = {
    j: () => step(1),
    k: () => step(-1),
    u: () => { location.hash = "#/"; },
    "/": () => { if (!filter.hidden) filter.focus(); },
    r: () => document.getElementById("rank")?.focus(),
    "?": () => keys.showModal(),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

document.getElementById("help").addEventListener("click", () => keys.showModal());
document.getElementById("close").addEventListener("click", () => keys.close());
filter.addEventListener("input", () => update?.page && view.kind === "fleet" && renderFleet(update.page));
window.addEventListener("hashchange", route);
window.addEventListener("resize", () => { if (update?.page) { drawnAt = 0; render(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { charts = null; parts = new Map(); document.getElementById("chart")?.remove(); if (update?.page) render(); });
setInterval(tick, 500);
route();
