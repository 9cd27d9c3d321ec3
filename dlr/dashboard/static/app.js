"use strict";
/* The page: its view, the server's updates, and keys. Texts from the cluster become text nodes, except in the timeline, an SVG in which the server has escaped them. */

const $ = (id) => document.getElementById(id);
const [main, where, live, trouble, filter, keys] = ["main", "where", "live", "trouble", "filter", "keys"].map($);
const BIG_DRAWING = 100000; // characters of a timeline beyond which it is drawn less often
const SLOW_REDRAW_MS = 5000;
const LOG_INTERVAL_MS = 3000;

let view = null; // the present view: {kind, namespace, name}
let source = null; // its EventSource
let update = null; // its last update: {page, trouble, at}
let parts = new Map(); // data of each part of the page, by name, so that unchanged parts are kept
let mode = "state";
let log = { rank: null, timer: 0 };
let charts = null; // of the steps: {key, made}

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const state = (word, text = word) => (word ? el("span", { class: "state", "data-state": word }, text) : null);
const command = (text) => el("code", {}, text);
const quiet = (...children) => el("p", { class: "quiet" }, ...children);
const jobAddress = (namespace, name) => `#/job/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
const percent = (part) => (part === null || part === undefined ? "" : `${(part * 100).toFixed(part < 0.995 ? 1 : 0)} %`);

const isEmpty = (content) => content === null || content === undefined || content === "";

/* Removes the columns that are empty in all rows. */
function filledTableOf(name, columns, rows) {
  const kept = columns.map((_, at) => rows.some((row) => !isEmpty(row[at])));
  return tableOf(name, columns.filter((_, at) => kept[at]), rows.map((row) => row.filter((_, at) => kept[at])));
}

/* `columns`: [title, class] of each; `rows`: the cells of each, texts or elements. On a phone a cell without a class shows its title. */
function tableOf(name, columns, rows, { classes = "", below = [] } = {}) {
  const cell = (content, at) => {
    const [title, kind] = columns[at];
    return el("td", { class: kind, "data-label": isEmpty(content) || (kind && kind !== "num") ? null : title.toLowerCase() }, content);
  };
  return el("div", { class: `scroll ${classes}`, tabindex: classes.includes("tall") ? 0 : null, role: "region", "aria-label": name },
    el("table", { class: classes },
      el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)))),
      el("tbody", {}, rows.flatMap((row, at) => [
        el("tr", {}, row.map(cell)),
        below[at] ? el("tr", { class: "below" }, el("td", { colspan: columns.length }, below[at])) : null,
      ]))));
}

const leftOut = (count, what) => (count ? quiet(`… and ${count} more ${what}`) : null);

/* Rebuilds a part if its data have changed; the focus and open details are kept. */
function part(name, shown, make) {
  const text = JSON.stringify(shown);
  if (parts.get(name) === text) return;
  parts.set(name, text);
  const place = $(name);
  if (!place) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const open = place.querySelector("details")?.open;
  place.replaceChildren(...[make(shown)].flat().filter((child) => child !== null));
  if (open) place.querySelector("details").open = true;
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
  document.body.classList.remove("stale");
  filter.hidden = view.kind === "job";
  trouble.hidden = true;
  where.textContent = view.kind === "job" ? `${view.namespace}/${view.name}` : "";
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

/* ---- all jobs ---- */

function renderFleet(page) {
  if (!$("fleet")) {
    main.replaceChildren(el("h1", { id: "fleet-title" }), el("div", { id: "states", class: "row", role: "group", "aria-label": "Jobs by state" }), el("div", { id: "fleet" }));
    parts = new Map();
  }
  const words = filter.value.trim().toLowerCase();
  const jobs = page.jobs.filter((job) => !words || `${job.namespace}/${job.name} ${job.phase} ${job.state} ${job.why}`.toLowerCase().includes(words));
  where.textContent = page.namespace ?? "all namespaces";
  part("fleet-title", page.headline, document.createTextNode.bind(document));
  part("states", [page.jobs.map((job) => !job.isGroup && job.state), words], () => statesPart(page.jobs, words));
  part("fleet", [jobs, page.leftOut], () => jobs.length ? fleetPart(jobs, page) : noJobsPart(page, words));
}

/* Number of jobs in each state; a button filters by state. */
function statesPart(jobs, words) {
  const counts = new Map();
  for (const job of jobs) if (!job.isGroup) counts.set(job.state, (counts.get(job.state) || 0) + 1);
  return [...counts].map(([word, count]) => {
    const pressed = words === word.toLowerCase();
    const press = () => { filter.value = pressed ? "" : word; renderFleet(update.page); };
    return el("button", { type: "button", "data-key": word, "aria-pressed": pressed, onclick: press }, state(word, `${count} ${word}`));
  });
}

function noJobsPart(page, words) {
  if (words) return quiet("No job fits the filter.");
  return [
    el("p", {}, "Submit one: ", command("dlr job submit -f job.yaml")),
    page.namespace === null ? null : el("p", {}, "Look in all namespaces: ", command("dlr dashboard -A")),
  ];
}

function fleetPart(jobs, page) {
  const columns = [["JOB", "name"], ["STATE", "word"], ["WORKERS", "num"], [`LAST ${duration(page.strip)}`, "strip-cell"], ["STEP", "num"], ["S/STEP", "num"], ["LEFT", "num"], ["GOODPUT", "num"], ["FAILURES", "num"]];
  const rows = jobs.map((job) => {
    const address = jobAddress(job.namespace, job.name);
    const name = page.namespace === null ? `${job.namespace}/${job.name}` : job.name;
    return [
      [job.isGroup ? "└ " : "", el("a", { href: address, "data-key": address, "data-row": true }, name)],
      state(job.verdict.state, job.state),
      job.workers,
      strip(job.states, page.strip),
      job.step === null || job.step === undefined ? "" : job.total ? `${job.step} of ${job.total}` : `${job.step}`,
      job.secondsPerStep ? short(job.secondsPerStep) : "",
      job.secondsLeft ? duration(job.secondsLeft) : "",
      percent(job.goodput),
      job.failures ? `${job.failures}` : "",
    ];
  });
  const below = jobs.map((job) => [state(job.verdict.state, job.verdict.text), [job.groups, job.why].filter(Boolean).map((text) => `. ${text}`)].flat());
  return [tableOf("Jobs", columns, rows, { classes: "fleet", below }), leftOut(page.leftOut, "older jobs")];
}

/* ---- one job ---- */

const FEW_NODES = 8, FEW_RANKS = 16, MOST_WORST = 12;
const SECTIONS = ["top", "findings", "groups", "life", "failures", "changes", "steps", "ranks", "nodes", "waits", "stacks", "log", "events"];
const TITLES = { top: "Summary", findings: "Findings", groups: "Replica groups", life: "Timeline", steps: "Curves", failures: "Failures", changes: "Planned changes", ranks: "Ranks", nodes: "Nodes", waits: "Conditions", stacks: "Stacks", log: "Log", events: "Events" };

function renderJob(page) {
  if (!$("top")) {
    const section = (name) => el("section", { id: name, tabindex: -1, "aria-label": TITLES[name] });
    const made = Object.fromEntries(SECTIONS.map((name) => [name, section(name)]));
    main.replaceChildren(...SECTIONS.filter((name) => name !== "waits").map((name) => name === "nodes" ? el("div", { class: "columns" }, made.nodes, made.waits) : made[name]));
    parts = new Map();
    makeRanks();
    makeLog();
    if (page.logRank !== null) followLog(page.logRank);
  }
  part("top", [page.headline, page.odd, page.figures, page.facts, page.unread], () => topPart(page));
  optional("findings", page.findings.length && [page.findings, page.phase], () => findingsPart(page));
  optional("groups", page.groups, () => groupsPart(page));
  for (const name of ["ranks", "log"]) $(name).hidden = !page.ranks.workers;
  renderLife(page);
  renderSteps(page);
  optional("failures", page.failures.length && [page.failures, page.failureCount, page.culprit, page.life.seconds > 7200], () => failuresPart(page));
  optional("changes", page.changes.length && [page.changes, page.life.seconds > 7200], () => changesPart(page));
  renderRanks(page.ranks);
  optional("nodes", (page.nodes.shown.length || page.nodeEvidence.length) && [page.nodes, page.nodeEvidence], () => nodesPart(page));
  optional("waits", page.evidence.length && page.evidence, () => page.evidence.flatMap((group) => [el("h2", {}, group.title), sentences(group.sentences)]));
  optional("stacks", page.stacks && (page.stacks.processes || page.odd.length) && page.stacks, () => stacksPart(page.stacks, page));
  part("events", page.events, eventsPart);
}

/* A part that is left out if it is empty. */
function optional(name, shown, make) {
  $(name).hidden = !shown;
  if (shown) part(name, shown, make);
}

const sentences = (all) => el("ul", { class: "plain" }, all.map((each) => el("li", {}, each.text)));
const facts = (all) => el("dl", { class: "facts" }, all.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]));

function topPart(page) {
  const figure = ({ label, value, note, share }) => el("div", {},
    el("dt", {}, label), el("dd", { class: "value" }, value),
    share === null ? null : el("dd", {}, el("progress", { max: 1, value: share, "aria-label": label })),
    el("dd", { class: "quiet" }, note));
  return [
    el("h1", { class: "state", "data-state": page.headline.state }, page.headline.text),
    page.odd.length ? el("ul", { class: "odd" }, page.odd.map((each) => el("li", {}, state(each.state, each.what), ` ${each.text}`))) : null,
    el("dl", { class: "figures" }, page.figures.map(figure)),
    facts(page.facts.filter(([label]) => label !== "World")),
    el("details", {}, el("summary", {}, "Details"), facts(page.facts.filter(([label]) => label === "World"))),
    page.unread.length ? el("p", { "data-state": "Warning" }, page.unread.join(" ")) : null,
  ];
}

function findingsPart({ findings, phase }) {
  return el("ul", { class: "findings" }, findings.map((each, at) => {
    const [lead, ...rest] = each.text.split(": ");
    return el("li", { "data-state": at ? "Pending" : ["Failed", "Suspended"].includes(phase) ? phase : "Warning" },
      el("strong", {}, lead), rest.length ? `: ${rest.join(": ")}` : "", each.advice.map((text) => el("p", { class: "quiet" }, text)));
  }));
}

/* The replica groups of a job: each is a job with a page of its own. */
function groupsPart(page) {
  const columns = [["GROUP", "name"], ["PHASE", "word"], ["TRAINS", ""], ["ROUND", "num"], ["STEP", "num"], ["RESTARTS", "num"], ["LAST FAILURE", "wide"], ["WHY", "wide"]];
  const link = (group) => el("a", { href: jobAddress(page.namespace, group.job), "data-key": group.job }, group.job);
  const { shown, leftOut: more } = page.groups;
  const rows = shown.map((group) => [link(group), state(group.PHASE), group.TRAINS, group.ROUND, group.STEP, group.RESTARTS, group["LAST FAILURE"], group.WHY]);
  return [el("h2", {}, TITLES.groups), tableOf(TITLES.groups, columns, rows, { classes: "tall" }),
    leftOut(more, `groups: dlr job status ${page.name} -n ${page.namespace} | less`)];
}

let drawnAt = 0;
function renderLife(page) {
  $("life").hidden = !page.life;
  if (!page.life || (page.life.drawing.length > BIG_DRAWING && Date.now() - drawnAt < SLOW_REDRAW_MS && $("life").firstChild)) return;
  drawnAt = Date.now();
  part("life", [page.life, page.times], () => [
    el("h2", {}, TITLES.life),
    document.importNode(new DOMParser().parseFromString(page.life.drawing, "image/svg+xml").documentElement, true),
    quiet([
      timeLine(page.times),
      page.life.lanesLeftOut && `${page.life.lanesLeftOut} ${page.life.isEventful ? "more workers, to which less" : "workers, to which nothing"} happened`,
      page.life.knownSince && `the first ${duration(page.life.knownSince)} are forgotten`,
    ].filter(Boolean).join(" · ")),
  ]);
}

function timeLine(times) {
  const total = Object.values(times).reduce((sum, seconds) => sum + seconds, 0) || 1;
  const longest = Object.entries(times).sort((one, other) => other[1] - one[1]);
  return longest.map(([word, seconds]) => `${word} ${duration(seconds)} (${Math.round((100 * seconds) / total)} %)`).join(", ");
}

let slow = null;

/* Step time and numbers at full size; below, small, the usage of rank 0's Pod, and in words the present usage of all Pods. */
function renderSteps(page) {
  const place = $("steps"), { past, usage, slowSince } = page.steps, names = Object.keys(past.numbers);
  const known = page.life && past.at.length > 1; // a line has two points
  place.hidden = !known && !usage;
  if (!known) {
    part("steps", usage, () => (usage ? [el("h2", {}, "Usage"), quiet(usage)] : []));
    return;
  }
  const { submitted } = page.life;
  slow = slowSince === null ? null : { at: submitted + slowSince, label: "slower from here" };
  const times = past.at.map((at) => at + submitted);
  const data = [past.seconds, ...names.map((name) => past.numbers[name]), ...past.usage.map((each) => each.values)].map((values) => [times, values]);
  const key = [...names, "", ...past.usage.map((each) => each.label)].join("\n");
  if (charts?.key !== key || !$("chart")) {
    const figure = (name, unit, at) => el("figure", {}, el("figcaption", {}, name, unit && el("span", {}, unit), el("output", {})), el("div", { id: at ? `chart-${at - 1}` : "chart" }));
    const large = ["Step time", ...names].map((name, at) => figure(name, at ? "" : "seconds", at));
    const small = past.usage.map((each, at) => figure(each.label, "", large.length + at));
    parts.delete("steps");
    place.replaceChildren(el("div", { class: "columns" }, large),
      names.length ? "" : quiet("For a curve of the loss, call ", command("dlr.report(step, loss=loss)"), "."),
      el("div", { class: "sparks" }, small), el("p", { id: "usage", class: "quiet" }));
    charts = { key, made: null };
    charts.made = [...large, ...small].map((each, at) => chartOf(each.lastChild, each.querySelector("output"), data[at], each.clientWidth, optionsOf(past.usage[at - large.length], at)));
  } else {
    charts.made.forEach((chart, at) => {
      const width = chart.root.parentElement.clientWidth;
      if (chart.width !== width) chart.setSize({ width, height: chart.height });
      chart.setData(data[at]);
    });
  }
  const line = [past.usage.length && "Curves of rank 0's Pod, from 0 up.", usage].filter(Boolean).join(" ");
  if ($("usage").textContent !== line) $("usage").textContent = line;
}

function optionsOf(figure, at) {
  if (figure) return { unit: ` ${figure.unit}`, spark: true, most: figure.unit === "%" ? 100 : 0 };
  return at ? {} : { unit: " s", most: 0, mark: () => slow };
}

function failuresPart(page) {
  const all = page.failureCount > page.failures.length ? `, the last ${page.failures.length} of ${page.failureCount}` : "";
  const columns = [["UTC", ""], ["WORKER", ""], ["CLASS", "word"], ["LOST", "num"], ["MESSAGE", "wide"]];
  const rows = page.failures.map((each) => [
    clock(page.life.submitted + each.at, page.life.seconds), each.worker, el("span", { "data-state": "Failed" }, each.class),
    each.seconds === null ? "" : duration(each.seconds), each.text]);
  return [el("h2", {}, TITLES.failures + all), tableOf(TITLES.failures, columns, rows, { classes: "tall" }), page.culprit && culpritPart(page)];
}

/* Planned changes, with the pause of training that each took, without the colours of failures. */
function changesPart(page) {
  const columns = [["UTC", ""], ["STATE", "word"], ["PAUSE", "num"], ["WHY", "wide"]];
  const rows = page.changes.map((each) => [
    clock(page.life.submitted + each.at, page.life.seconds), state(each.state), each.seconds ? duration(each.seconds) : "none", each.text]);
  return [el("h2", {}, TITLES.changes), tableOf(TITLES.changes, columns, rows, { classes: "tall" })];
}

function culpritPart({ culprit, phase }) {
  return el("details", { open: phase === "Failed" },
    el("summary", {}, "Traceback and log of the last failure"),
    facts(culprit.heading),
    [culprit.message, culprit.log].filter((lines) => lines.length).map((lines) => el("pre", { tabindex: 0, "aria-label": "Its lines" }, lines.join("\n"))));
}

function stacksPart(stacks, page) {
  const answered = `${stacks.processes} process${stacks.processes === 1 ? "" : "es"}${stacks.asked === null ? "" : ` at ${clock(stacks.asked, 0)} UTC`}`;
  const silent = stacks.silent ? `; ${stacks.silent} worker${stacks.silent === 1 ? " has" : "s have"} not answered` : "";
  return [
    el("h2", {}, TITLES.stacks),
    stacks.processes ? el("p", {}, `${answered}, the odd ones first${silent}`) : quiet("See where each process is: ", command(`dlr job stacks ${page.name} -n ${page.namespace}`)),
    stacks.lines.length ? el("pre", { tabindex: 0, "aria-label": TITLES.stacks }, stacks.lines.join("\n")) : null,
    leftOut(stacks.leftOut, "lines"),
  ];
}

/* A table of the nodes in trouble; if there are few nodes, of all that were checked. */
function nodesPart(page) {
  const columns = [["NODE", ""], ["VERDICT", "word"], ["CORDON", "word"], ["READY", ""]];
  const { shown, leftOut: more, unchecked } = page.nodes;
  const odd = shown.filter((node) => node.cordon || node.ready === false || !["Healthy", null].includes(node.verdict));
  const listed = shown.length > FEW_NODES ? odd : shown.filter((node) => node.verdict || odd.includes(node));
  const rows = listed.map((node) => [
    node.name, node.verdict ? state(node.verdict) : "not checked", node.cordon ? state("Cordoned", node.cordon) : "",
    node.ready === null ? "" : node.ready ? "yes" : state("Failed", "no")]);
  return [
    el("h2", {}, TITLES.nodes),
    shown.length ? quiet(`${shown.length + more} in use, ${odd.length || "none"} in trouble`, unchecked ? el("span", {}, `; ${unchecked} not checked: `, command(`dlr node-check --job ${page.name}`)) : "")
      : quiet("No Pod of the job has a node."),
    page.nodeEvidence.length ? sentences(page.nodeEvidence) : null,
    rows.length ? tableOf(TITLES.nodes, columns, rows, { classes: "tall" }) : null,
  ];
}

function eventsPart({ shown, routine }) {
  const table = (title, events) => tableOf(title, [["SEEN", "word"], ["REASON", "word"], ["MESSAGE", "wide"]],
    events.map((event) => [event.seen, el("span", { "data-state": event.type }, event.reason), event.message]));
  return [
    el("h2", {}, TITLES.events),
    shown.length ? table(TITLES.events, shown) : quiet(routine.length ? "None but those that every Pod has." : "None in the last hour."),
    routine.length ? el("details", {}, el("summary", {}, "Starts and ends of Pods"), table("Starts and ends of Pods", routine)) : null,
  ];
}

/* ---- ranks ---- */

const AT_EASE = ["Running", "Succeeded", "Standby"];
const MODES = [["state", "state"], ["lag", "step lag"], ["slowness", "step time"], ["failure", "last failure"]];
let drawn = { side: 1, places: [] };
let chosen = null; // index of a worker

function makeRanks() {
  const canvas = el("canvas", { id: "grid", role: "img", tabindex: 0 });
  const pick = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return drawn.places.find(([, left, top]) => x >= left && x < left + drawn.side && y >= top && y < top + drawn.side)?.[0];
  };
  const open = (cell) => { if (cell && cell.rank !== null) followLog(cell.rank, true); };
  canvas.addEventListener("mousemove", (event) => choose(pick(event)));
  canvas.addEventListener("click", (event) => open(pick(event)));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open(drawn.places.find(([cell]) => cell.index === chosen)?.[0]);
    if (!event.key.startsWith("Arrow") || !drawn.places.length) return;
    event.preventDefault();
    choose(drawn.places[neighbour(event.key)]?.[0]);
  });
  $("ranks").append(
    el("h2", {}, "Ranks on nodes"),
    el("div", { class: "row" },
      el("div", { class: "row", role: "group", "aria-label": "Colour by" }, MODES.map(([name, title]) =>
        el("button", { type: "button", "data-mode": name, onclick: () => { mode = name; renderRanks(update.page.ranks); } }, title))),
      LEVELS.map(([word, title]) => state(word, title))),
    canvas,
    el("p", { id: "tip", class: "quiet", role: "status" }),
    el("div", { id: "worst" }));
}

/* Index in `drawn` of the cell that an arrow key reaches from the chosen one. */
function neighbour(key) {
  const at = drawn.places.findIndex(([cell]) => cell.index === chosen);
  if (at < 0) return 0;
  const [, x, y] = drawn.places[at];
  return {
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    ArrowUp: drawn.places.findLastIndex(([, left, top]) => left === x && top < y),
    ArrowDown: drawn.places.findIndex(([, left, top]) => left === x && top > y),
  }[key];
}

function choose(cell) {
  if (!cell || cell.index === chosen) return;
  chosen = cell.index;
  $("tip").textContent = cellLine(cell);
  renderRanks(update.page.ranks);
}

function cellLine(cell) {
  const words = [cell.rank === null ? `worker ${cell.index}, no rank` : `rank ${cell.rank}`, cell.node || "no node", cell.odd ? `${cell.odd.what}, ${cell.state}` : cell.state];
  if (cell.step !== null) words.push(`step ${cell.step}${cell.lag ? `, ${cell.lag} behind` : ""}`);
  if (cell.secondsPerStep !== null) words.push(`${cell.secondsPerStep} s a step${cell.slowness === null ? "" : ` (${cell.slowness} of the median)`}`);
  const used = usageOf(cell).map((text, at) => text && `${["CPU cores", "memory", "GPU", "GPU memory"][at]} ${text}`).filter(Boolean);
  words.push(...used);
  if (cell.class) words.push(`${cell.class} ${duration(cell.ago)} ago`);
  return words.join(" · ");
}

function renderRanks(grid) {
  const place = $("ranks"), width = Math.max(200, place.clientWidth);
  for (const button of place.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === mode);
  const shown = JSON.stringify([grid, mode, width, chosen]);
  if (parts.get("grid") === shown) return;
  parts.set("grid", shown);
  const cells = cellsOf(grid), canvas = $("grid");
  const colors = Object.fromEntries([...place.querySelectorAll(".state")].map((each) => [each.dataset.state, getComputedStyle(each).getPropertyValue("--fill")]));
  drawn = drawRanks(canvas, cells, mode, width, colors, chosen);
  const title = MODES.find(([name]) => name === mode)[1];
  canvas.setAttribute("aria-label", `${grid.workers} workers on ${grid.nodes.length} nodes, coloured by ${title}; arrow keys move, Enter opens the log`);
  canvas.hidden = !cells.length;
  if (!$("tip").textContent && grid.perCell > 1) $("tip").textContent = `Each cell is the worst of ${grid.perCell} ranks.`;
  const badness = (cell) => (AT_EASE.includes(cell.state) && !cell.odd ? 0 : 2) + (BADNESS[mode](cell) || 0);
  const worst = [...cells].sort((one, other) => badness(other) - badness(one));
  const listed = cells.length <= FEW_RANKS ? worst : worst.filter((cell) => badness(cell) > 0.05).slice(0, MOST_WORST);
  part("worst", [listed, grid.workers], () => listed.length ? worstPart(listed) : quiet(grid.workers ? "No rank is unlike the others." : "The job has no workers."));
}

function worstPart(cells) {
  const columns = [["RANK", "num"], ["NODE", ""], ["STATE", "word"], ["STEP", "num"], ["BEHIND", "num"], ["S/STEP", "num"], ["OF MEDIAN", "num"], ["CORES", "num"], ["MEMORY", "num"], ["GPU", "num"], ["GPU MEMORY", "num"], ["LAST FAILURE", ""], ["", ""]];
  const rows = cells.map((cell) => [
    cell.rank ?? `worker ${cell.index}`, cell.node, cell.odd ? state(cell.odd.state, cell.odd.what) : state(cell.state), cell.step, cell.lag || "", cell.secondsPerStep, Math.abs((cell.slowness ?? 1) - 1) < 0.05 ? "" : cell.slowness, ...usageOf(cell), cell.class && `${cell.class} ${duration(cell.ago)} ago`,
    cell.rank === null ? "" : el("button", { type: "button", "data-key": `log-${cell.rank}`, "aria-label": `Log of rank ${cell.rank}`, onclick: () => followLog(cell.rank, true) }, "Log")]);
  return filledTableOf("Ranks, the odd ones first", columns, rows);
}

/* CPU, memory, GPU and GPU memory with their units. */
function usageOf({ cpu, memory, gpu, gpuMemory }) {
  const units = ["", " GiB", " %", " GiB"];
  return [cpu, memory, gpu, gpuMemory].map((value, at) => (value === null ? "" : `${value}${units[at]}`));
}

/* ---- log ---- */

function makeLog() {
  const rank = el("input", { id: "rank", type: "number", min: 0, onchange: (event) => followLog(event.target.value === "" ? null : Number(event.target.value)) });
  $("log").append(
    el("h2", {}, "Log"),
    el("div", { class: "row" }, el("label", { for: "rank" }, "Rank"), rank, el("span", { id: "log-note", class: "quiet" }, "Type a rank, or choose one above.")),
    el("pre", { id: "log-lines", tabindex: 0, "aria-label": "Lines of the log", hidden: true }));
}

async function followLog(rank, scroll) {
  clearTimeout(log.timer);
  log = { rank, timer: 0 };
  if (rank === null || !Number.isInteger(rank) || rank < 0) return;
  $("rank").value = rank;
  const mine = log, lines = $("log-lines"), note = $("log-note");
  if (scroll) $("log").scrollIntoView({ block: "nearest" });
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
    : SECTIONS.map((name) => $(name)).filter((each) => each && !each.hidden);
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
    r: () => $("rank")?.focus(),
    "?": () => keys.showModal(),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

$("help").addEventListener("click", () => keys.showModal());
$("close").addEventListener("click", () => keys.close());
filter.addEventListener("input", () => update?.page && view.kind === "fleet" && renderFleet(update.page));
window.addEventListener("hashchange", route);
window.addEventListener("resize", () => { if (update?.page) { drawnAt = 0; render(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { charts = null; parts = new Map(); $("chart")?.remove(); if (update?.page) render(); });
setInterval(tick, 500);
route();
