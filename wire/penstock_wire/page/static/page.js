// The page of `kubectl penstock ui`. What it shows is text alone: no HTML is made from data.
import {curve, fit, flows, heat, overTime, short} from "./charts.js";

const main = document.querySelector("#main");
let token = "", unread = [], again = null;

// ---- elements

function el(tag, fields = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name.startsWith("on")) made[name] = value;
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(child => child != null && child !== false));
  return made;
}

const link = (kind, namespace, name, words = name) =>
  el("a", {href: `#/${[kind, namespace, name].map(encodeURIComponent).join("/")}`, "data-key": `${kind}/${name}`}, words);

function age(at) {
  const seconds = Math.max(0, (Date.now() - Date.parse(at)) / 1000);
  if (Number.isNaN(seconds)) return "-";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]])
    if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  return `${Math.floor(seconds)}s`;
}

const since = at => el("time", {datetime: at, title: at}, age(at));
setInterval(() => {
  for (const time of document.querySelectorAll("time")) time.textContent = age(time.dateTime);
}, 1000);

function badge({ready, reason, pill}) {
  if (pill) return el("span", {class: `badge ${pill[0]}`}, pill[1]);
  if (ready === "-") return null;
  const kind = ready === "True" ? "good" : ready === "False" ? "bad" : "wait";
  const words = {good: "Ready", bad: "Not ready", wait: "Unknown"}[kind];
  return el("span", {class: `badge ${kind}`}, reason && reason !== "-" ? `${words}: ${reason}` : words);
}

function table(head, rows, numbers = []) {
  const cell = (tag, index, value) => {
    const kind = numbers.includes(index) ? "number" : typeof value === "string" && value.length > 40 ? "words" : null;
    return el(tag, {class: kind, scope: tag === "th" ? "col" : null}, value);
  };
  return el("table", {}, el("thead", {}, el("tr", {}, head.map((name, index) => cell("th", index, name)))),
    el("tbody", {}, rows.map(row => el("tr", {}, row.map((value, index) => cell("td", index, value ?? "-"))))));
}

const tiles = pairs => el("div", {class: "tiles"}, pairs.map(([value, words, kind]) =>
  el("div", {class: "tile"}, el("b", {class: kind}, `${value}`), el("span", {}, words))));

// A reason, which leads to what the documentation says of it.
const cause = (reason, title) => el("a", {href: `#/reasons/${encodeURIComponent(reason)}`, title, "data-key": reason}, reason);

const remedy = words => words ? el("div", {class: "remedy"}, el("b", {}, "What to do: "), words) : null;

// Each is a sentence, or the cause that conditions have.
const notes = list => list.length ? el("ul", {class: "notes"}, list.map(each => typeof each === "string" ? el("li", {}, each)
  : el("li", {}, cause(each.reason, each.kinds), each.message ? `: ${each.message}` : "", remedy(each.remedy)))) : null;

// A part of a view, made anew only if what it shows has changed; the focus stays where it was. A part without data is
// there, hidden: so the parts have one order, whatever comes first.
function panel(parent, id, title, data, make) {
  const shown = JSON.stringify([data ?? null, innerWidth]);  // charts are drawn as wide as they are shown
  let section = parent.querySelector(`:scope > [data-panel="${id}"]`);
  if (!section) {
    section = el(title ? "section" : "div", {"data-panel": id, "aria-label": title || null});
    parent.append(section);
  }
  if (section.shown === shown) return;
  section.shown = shown;
  section.hidden = data == null;
  if (section.hidden) { section.replaceChildren(); return; }
  fit(section.clientWidth);
  const key = section.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  section.replaceChildren(...[title ? el("h2", {}, title) : null, make(data)].flat().filter(Boolean));
  if (key) section.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  // What is wider than its place is scrolled by keys, too.
  section.toggleAttribute("tabindex", false);
  if (section.scrollWidth > section.clientWidth) section.tabIndex = 0;
}

// ---- the server

async function ask(method, path, body, signal) {
  const answer = await fetch(path, {method, signal, headers: {authorization: `Bearer ${token}`},
    body: body === undefined ? undefined : JSON.stringify(body)});
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.detail ?? `status ${answer.status}`), {status: answer.status});
  return said;
}

async function admit() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("token")) token = given.get("token");
  if (given.get("code")) {
    const answer = await fetch("/api/token", {method: "POST", body: given.get("code")});
    if (answer.ok) token = (await answer.json()).token;
  }
  sessionStorage.setItem("token", token);
}

// Follows a path until the view changes: waits for news, shows them, waits again. A tab that nobody sees asks nothing.
async function follow(path, show, signal) {
  let revision = 0, tries = 0;
  while (!signal.aborted) {
    try {
      while (document.hidden) await new Promise(done => document.addEventListener("visibilitychange", done, {once: true}));
      const said = await ask("GET", `${path}?since=${revision}`, undefined, signal);
      if (signal.aborted) return;
      revision = said.revision;
      tries = 0;
      unread = said.unread ?? [];
      state(unread.length ? "not all is live" : said.listed === false ? "reading the cluster …" : "live", unread.length > 0);
      problems(said.problems);
      again = () => show(said);
      try { show(said); } catch (error) { state(`cannot show this: ${error.message}`, true); }
      await new Promise(done => setTimeout(done, 250));
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 403) {
        main.replaceChildren(el("p", {}, error.message));
        return;
      }
      state(error.status ? error.message : "the command has ended, or does not answer", true);
      await new Promise(done => setTimeout(done, Math.min(1000 * 2 ** tries++, 8000)));
    }
  }
}

let resized = 0;
addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(() => again?.()); });

function state(words, off) {
  const place = document.querySelector("#state");
  if (place.textContent !== words) place.textContent = words;
  place.classList.toggle("off", off);
}

function problems(list) {
  const place = document.querySelector("#problems"), shown = JSON.stringify(list);
  if (place.shown === shown) return;
  place.shown = shown;
  place.replaceChildren(...list.map(each => el("p", {}, each)));
}

// ---- the overview

const KINDS = {ModelEndpoint: "Endpoints", ModelBackend: "Backends", TrafficSplit: "Splits and releases",
  BatchPolicy: "Batch policies", Workload: "Workloads with the label"};

const {compare} = new Intl.Collator();

function overview(signal) {
  const rows = new Map(), shown = new Map();
  const search = el("input", {type: "search", placeholder: "Find by name, namespace or words", "aria-label": "Find",
    oninput: () => arrange()});
  const bad = el("select", {"aria-label": "Which", onchange: () => arrange()},
    el("option", {value: ""}, "All"), el("option", {value: "bad"}, "What is not well"));
  const summary = el("div"), lists = el("div");
  main.replaceChildren(el("h1", {}, "Overview"), summary, el("div", {class: "find"}, search, bad), lists);

  function row(data) {
    return el("li", {}, el("span", {class: "name"}, link(data.kind, data.namespace, data.name,
      spread ? `${data.namespace}/${data.name}` : data.name)), el("span", {}, badge(data) ?? ""),
      el("span", {class: "words"}, data.details.join(", ")), data.created ? el("span", {class: "age"}, "age ", since(data.created)) : null,
      data.notes.length ? el("div", {class: "notes"}, notes(data.notes)) : null);
  }
  let spread = false, whole = false;
  const state = ({kind, ready, pill}) => pill ? {bad: 0, wait: 1}[pill[0]] ?? 2
    : ready === "False" ? 0 : ready === "True" || kind === "BatchPolicy" ? 2 : 1;

  function arrange() {
    const words = search.value.toLowerCase();
    const wanted = [...rows.values()].filter(each => (!bad.value || state(each) < 2)
      && (!words || JSON.stringify(each).toLowerCase().includes(words)));
    wanted.sort((one, other) => state(one) - state(other) || compare(one.namespace, other.namespace)
      || compare(one.name, other.name));
    for (const [kind, title] of Object.entries(KINDS)) {
      const own = wanted.filter(each => each.kind === kind);
      let section = lists.querySelector(`[data-kind="${kind}"]`);
      if (!section) {
        section = el("section", {"data-kind": kind, "aria-label": title}, el("h2"), el("ul", {class: "rows"}));
        lists.append(section);
      }
      section.hidden = !own.length;
      section.querySelector("h2").textContent = `${title} (${own.length})`;
      const list = section.querySelector("ul");
      own.forEach((each, index) => {
        const item = shown.get(`${each.kind}/${each.namespace}/${each.name}`);
        if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
      });
      while (list.children.length > own.length) list.lastChild.remove();
    }
    if (!rows.size && whole && !unread.length) lists.replaceChildren(el("p", {class: "quiet"}, "There are no resources of Penstock here."));
  }

  follow("/api/overview", said => {
    const place = said.namespace ? `namespace ${said.namespace}` : "all namespaces";
    document.querySelector("#where").textContent = `${said.server}, ${place}`;
    document.title = "Penstock";
    whole = said.listed;
    if (said.whole) { rows.clear(); shown.clear(); lists.replaceChildren(); }
    if (rows.size === 0 && Object.keys(said.rows).length) lists.replaceChildren();
    if (spread !== !said.namespace) spread = !said.namespace;
    for (const key of said.gone) { rows.delete(key); shown.get(key)?.remove(); shown.delete(key); }
    for (const [key, data] of Object.entries(said.rows)) {
      const made = row(data), old = shown.get(key);
      const focused = old?.contains(document.activeElement);
      old?.replaceWith(made);
      if (focused) made.querySelector("a").focus();
      rows.set(key, data);
      shown.set(key, made);
    }
    const all = [...rows.values()], count = (kind, ready) =>
      all.filter(each => each.kind === kind && (!ready || each.ready === "True")).length;
    const steered = colour => all.filter(each => each.kind === "TrafficSplit" && each.pill?.[0] === colour).length;
    panel(summary, "tiles", "", [["ModelEndpoint", "endpoints ready"], ["ModelBackend", "backends ready"]].map(([kind, words]) =>
      [`${count(kind, true)} of ${count(kind)}`, words, ["bad", "wait", "good"][Math.min(2, ...all.filter(each => each.kind === kind).map(state))]]).concat(
      [[steered("wait"), "waiting for a user", "wait"], [steered("bad"), "rolled back", "bad"]].filter(([releases]) => releases)
        .map(([releases, words, colour]) => [releases, `${releases > 1 ? "releases" : "release"} ${words}`, colour])), tiles);
    arrange();
  }, signal);
}

// ---- parts of several views

function head(view) {
  return [el("p", {class: "crumbs"}, el("a", {href: "#/"}, "Overview"), ` › ${view.namespace} › ${view.kind}`),
    el("h1", {}, view.name, badge(view), view.created ? el("small", {}, "age ", since(view.created)) : null),
    view.details.length ? el("p", {}, view.details.join(", ")) : null,
    view.behind ? el("p", {class: "wait"}, "The status is older than the last change of the spec.") : null,
    notes(view.notes)].filter(Boolean);
}

const conditions = list => el("details", {}, el("summary", {"data-key": "conditions"}, `${list.length} ${list.length === 1 ? "condition" : "conditions"}`),
  table(["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"], list.map(each =>
    [each.type, each.status, cause(each.reason), each.lastTransitionTime ? since(each.lastTransitionTime) : "-", each.message])));

function pods(list, load, unknown = "") {
  if (!list.length) return el("p", {class: "quiet"}, unknown ? `Routers cannot be read: ${unknown}` : unread.includes("Pod") ? "Pods cannot be read." : "There are no pods.");
  const names = ["POD", "STATE", "AGE", "RESTARTS", "NODE", ...load ? ["QUEUED", "ONGOING", "ANSWERS/S", "ITEMS A BATCH"] : []];
  const problem = list.find(each => each.problem)?.problem;
  return [table(names, list.map(each => [each.name, el("span", {class: each.ready ? "good" : "wait"}, each.state),
    each.created ? since(each.created) : "-", `${each.restarts ?? "-"}`, each.node || "-", ...load ? ["queued", "ongoing", "answers", "size"].map(name =>
      each[name] == null ? "-" : short(each[name])) : []]), [3, 5, 6, 7, 8]),
    problem ? el("p", {class: "quiet"}, `Metrics of pods cannot be read: ${problem}`) : null].filter(Boolean);
}

// How many pods of a backend are ready; null for a backend that is not known.
const readyPods = count => count != null ? `${count}` : unread.includes("ModelBackend") ? "unknown" : "there is none";

const rate = value => value == null ? "-" : `${short(value)}/s`;
// The bucket that a time lies in, in milliseconds: nothing finer was measured.
function span(bounds) {
  if (!bounds) return "-";
  const [low, high] = bounds, unit = high >= 1000 || high == null ? 1000 : 1, name = unit > 1 ? "s" : "ms";
  return high == null ? `> ${short(low / unit)} ${name}` : low ? `${short(low / unit)}–${short(high / unit)} ${name}` : `≤ ${short(high)} ms`;
}

// Two stacks side by side, so that none of their parts leaves a hole; one on a narrow screen.
function stacks(place) {
  let grid = place.querySelector(":scope > .grid");
  if (!grid) place.append(grid = el("div", {class: "grid"}, el("div"), el("div")));
  return grid.children;
}

// ---- the views of one resource

const VIEWS = {
  ModelBackend(view, place) {
    // Of a laptop's processes there is less: neither pods nor an autoscaler.
    const {wanted, ready, recommended} = view.replicas ?? {}, load = view.load;
    const answers = view.answers != null ? [short(view.answers), `answers/s${lately(view)}`]
      : [load.requestsPerMinute, "answers in the last minute"];
    panel(place, "tiles", "", [view.replicas, load, answers, view.refused, view.failed], () => tiles([
      ...view.replicas ? [[`${ready} of ${wanted}`, "pods ready", ready < wanted ? "wait" : "good"]] : [],
      ...recommended != null && recommended !== wanted ? [[recommended, "pods recommended", "wait"]] : [],
      [load.queued, "items queued now"], [load.ongoing, "items with the model now"], [load.held, "requests held by routers now"], answers,
      ...view.refused || view.failed || view.failed == null ? [] : [[0, "refused or failed in the last minute"]],
      [view.refused || null, "refused in the last minute", "wait"],
      [view.failed || null, "failed in the last minute", "bad"]].filter(([value]) => value != null)));
    const [left, right] = stacks(place);
    panel(left, "artifact", "Download", view.notes.some(each => each.reason === "Downloading") ? null : view.artifact || null, words => el("p", {}, `A pod gets the model's files: ${words}`));
    panel(left, "why", "Why this number of pods", view.terms?.length ? [view.verdict, view.meaning, view.why, view.terms,
      view.settings, view.remedy] : null, () => [el("p", {}, el("b", {}, `${view.verdict}: `), view.meaning),
      el("p", {}, view.why), bounds(wanted, view.limits), remedy(view.remedy), table(["TERM", "VALUE", "MEANING"], view.terms, [1]),
      ...view.settings.map(each => el("p", {class: "quiet"}, each))].filter(Boolean));
    panel(left, "batches", "Batch sizes", view.batches.bounds.length ? view.batches : null, heat);
    const times = view.samples.map(each => each[0]), column = index => view.samples.map(each => each[index]);
    panel(right, "time", view.replicas ? "Load and pods over time" : "Load over time", times.length ? [view.samples, view.changes, tick()] : null, () => {
      const [from, to] = period(times);
      const marks = view.changes.map(each => ({at: Date.parse(each.time) / 1000, name: `${each.from} → ${each.to}`, words: each.reason}));
      return [overTime({times, from, to, unit: "items", series: [
        {name: "queued", color: "blue", values: column(1)}, {name: "with the model", color: "orange", values: column(2)},
        ...view.replicas ? [{name: "held", color: "purple", values: column(3)}] : []], axis: !view.replicas}),
      view.replicas && overTime({times, from, to, unit: "pods", marked: "the autoscaler's changes", height: 130, series: [
        {name: "wanted", color: "purple", values: column(4), step: true},
        {name: "ready", color: "green", values: column(5), step: true}], marks})].filter(Boolean);
    });
    panel(right, "changes", "Last changes of the autoscaler", view.changes.length ? view.changes : null, list =>
      table(["AGO", "PODS", "WHY"], list.map(each => [since(each.time), `${each.from} → ${each.to}`, each.reason])));
    panel(right, "curve", "Time of a batch", view.curve, curve);
    panel(right, "errors", "Errors of the last minute", view.errors?.length ? view.errors : null, list =>
      table(["REASON", "REQUESTS", "MEANING"], list, [1]));
    panel(place, "pods", "Pods", view.pods, list => pods(list, true));
    const named = list => el("p", {}, list.flatMap(([kind, name], index) => [index ? ", " : "", `${kind} `, link(kind, view.namespace, name)]));
    panel(place, "users", "Used by", view.users?.length ? view.users : null, named);
    panel(place, "follows", "Batching settings from", view.follows ? [["BatchPolicy", view.follows]] : null, named);
  },

  ModelEndpoint(view, place) {
    const served = view.flows.filter(each => !each.mirror), known = served.every(each => each.rate != null);
    const total = served.reduce((sum, each) => sum + (each.rate ?? 0), 0), live = known && total > 0;
    const [left, right] = stacks(place);
    panel(left, "flows", "Where requests go", view.flows.length ? view.flows : null, () => flows({name: view.name,
      shares: view.flows.map(each => ({name: each.name, mirror: each.mirror, share: live ? each.rate ?? 0 : each.weight ?? 0,
        words: spoken(each), bad: each.errors?.length > 0}))}));
    panel(left, "about", "About it", [view.url, view.split], () => el("dl", {},
      el("dt", {}, "Address in the cluster"), el("dd", {}, el("code", {}, view.url || "-")),
      el("dt", {}, "Split"), el("dd", {}, view.split ? link("TrafficSplit", view.namespace, view.split) : "none")));
    panel(right, "try", "Try it", {namespace: view.namespace, name: view.name}, tryIt);
    panel(place, "table", `Backends${lately(view)}`, served, list => table(
      ["BACKEND", "WEIGHT", "READY PODS", "RATE", "P50", "P99", "HELD", "ERRORS"], list.map(each => [
        link("ModelBackend", view.namespace, each.name), `${each.weight}`, readyPods(each.readyPods), rate(each.rate), span(each.p50), span(each.p99), short(each.held),
        each.errors.length ? el("span", {class: "bad"}, each.errors.map(([reason, one]) => `${reason} ${rate(one)}`).join(", ")) : "none"]), [1, 2, 3, 4, 5, 6]));
    panel(place, "none", "Refused before a backend was chosen", view.none.errors.length ? view.none.errors : null, list =>
      el("p", {}, list.map(([reason, one]) => `${reason} ${rate(one)}`).join(", ")));
    const mirrors = view.flows.filter(each => each.mirror);
    panel(place, "mirrors", "Mirrors", mirrors.length ? mirrors : null, list => [copies(), table(
      ["MIRROR", "COPIES OF", "RATE", "DIFFER", "WHAT CAME OF THEM", "FIRST DIFFERENCE"], list.map(each => [
        link("ModelBackend", view.namespace, each.name), each.percent == null ? "-" : `${each.percent} %`,
        rate(each.rate), differ(each.differ), rest(each.summary, each.difference), each.difference || "none"]), [1, 2, 3])]);
    panel(place, "pods", "Routers", [view.routers, view.routersProblem], ([list, problem]) => pods(list, false, problem));
  },

  TrafficSplit(view, place) {
    const release = view.release;
    panel(place, "release", release ? `Release: ${release.summary}` : "Release", release ? [release, view.namespace, view.name] : null, () => steering(view, release));
    panel(place, "weights", release ? "Other weights" : "Weights", view.weights.length ? view.weights : null, list => table(
      ["BACKEND", "DESIRED", "APPLIED", "OBSERVED"], list.map(each => [link("ModelBackend", view.namespace, each.name),
        `${each.desired}`, each.applied == null ? "-" : `${each.applied}`, each.observed ?? "no requests"]), [1, 2, 3]));
    const [left, right] = stacks(place);
    panel(left, "verdicts", "What the metrics say of the candidate", release?.verdicts?.length ? release.verdicts : null,
      list => table(["METRIC", "VERDICT", "EVIDENCE"], list.map(each => [each.metric, el("span",
        {class: {Pass: "good", Fail: "bad"}[each.verdict] ?? "wait"}, each.verdict), each.message ?? ""])));
    const samples = (release?.samples ?? []).filter(([, ...metrics]) => metrics.some(([, fails]) => fails != null));
    panel(right, "evidence", "Evidence towards a verdict", samples.length ? [samples, tick()] : null, () => {
      const times = samples.map(([at]) => at), [from, to] = period(times);
      return samples.at(-1).slice(1).filter(([, fails]) => fails != null).map(([metric]) => {
        const of = index => samples.map(([, ...each]) => each.find(([name]) => name === metric)?.[index] ?? 0);
        return overTime({times, from, to, unit: `${metric}: evidence so far; at 100 % it is judged`, height: 130, limit: 100, series: [
          {name: "% for Fail", color: "orange", values: of(1), step: true}, {name: "% for Pass", color: "green", values: of(2), step: true}]});
      });
    });
    panel(place, "mirrors", "Mirrors", view.mirrors.length ? view.mirrors : null, list => [copies(), table(
      ["MIRROR", "SENT", "DIFFER", "IN WORDS", "FIRST DIFFERENCE"], list.map(each => [link("ModelBackend", view.namespace, each.name), `${each.sent ?? 0}`,
        differ(each.mismatchedPercent), rest(each.summary, each.firstDifference), each.firstDifference ?? "none"]), [1, 2])]);
    panel(place, "endpoint", "Endpoint", view.endpoint && !release ? view.endpoint : null, name => el("p", {}, link("ModelEndpoint", view.namespace, name)));
    panel(place, "events", "Events", view.eventsProblem || view.events, events => typeof events === "string"
      ? el("p", {class: "quiet"}, events) : events.length ? table(["AGO", "REASON", "MESSAGE"], events.map(each =>
        [since(each.time), each.known ? cause(each.reason) : each.reason, each.message])) : el("p", {class: "quiet"}, "There are none."));
  },

  BatchPolicy(view, place) {
    panel(place, "spec", "What it says", view.spec, list => table(["FIELD", "VALUE"], list));
    panel(place, "backends", "Backends that follow it", view.backends, list => list.length ? followers("ModelBackend", view, list)
      : el("p", {class: "quiet"}, "None."));
    panel(place, "workloads", "Workloads that follow it", view.workloads.length ? view.workloads : null, list =>
      followers("Workload", view, list));
  },

  Workload(view, place) {
    panel(place, "policy", "Policy", view.policy, name => el("p", {}, link("BatchPolicy", view.namespace, name)));
    panel(place, "batches", "Batch sizes", view.batches.bounds.length ? view.batches : null, heat);
    panel(place, "curve", "Time of a batch", view.curve, curve);
    panel(place, "pods", "Pods", view.pods, list => pods(list, true));
  },
};

// Changes every five seconds: what shows the time is drawn anew then.
const tick = () => Math.floor(Date.now() / 5000);

// The time that a chart of these covers: from the first, so that it has no empty side.
function period(times) {
  const to = Math.max(times.at(-1), Date.now() / 1000);
  return [Math.min(times[0], to - 10), to];
}

// Over what time rates are; pods of which there are many are read less often.
const lately = view => view.window ? ` (last ${Math.round(view.window)} s)` : "";

const differ = percent => percent == null ? "-" : el("span", {class: percent > 0 ? "wait" : null}, `${percent} %`);

const copies = () => el("p", {class: "quiet"}, "No client gets these answers. Of a release's verdicts, only that of the metric mismatch rests on them.");

// What a mirror's summary says besides its first difference, which stands in a column of its own.
const rest = (summary, first) => (summary || "-").replace(`, most at ${first}`, "");

function bounds(wanted, [least, most] = []) {
  if (most == null) return null;
  const at = wanted >= most ? "; it has the most" : wanted <= least ? "; it has the least" : "";
  return el("p", {}, `It may have ${least} to ${most} pods (minReplicas, maxReplicas)${at}.`);
}

// What of an endpoint's requests goes to a backend, in words.
function spoken(share) {
  const parts = share.mirror ? [`copies of ${share.percent ?? 100} %`] : [`weight ${share.weight}`];
  if (share.rate != null) parts.push(rate(share.rate));
  if (share.p50) {
    const [half, nearly] = [span(share.p50), span(share.p99)];
    parts.push(...half === nearly ? [`p50 and p99 ${half}`] : [`p50 ${half}`, `p99 ${nearly}`]);
  }
  if (share.errors?.length) parts.push(`errors ${rate(share.errors.reduce((sum, [, one]) => sum + one, 0))}`);
  return parts.join(", ");
}

// Who has a policy, and which generation of it; workloads report their load here.
function followers(kind, view, list) {
  const loads = {"QUEUED": "queued", "ONGOING": "ongoing", "ITEMS A MINUTE": "arrivalsPerMinute", "BATCHES FILLED": "batchFillPercent"};
  const shown = kind === "Workload" ? Object.entries(loads) : [];
  return table([kind === "Workload" ? "WORKLOAD" : "BACKEND", "PODS", "GENERATION", ...shown.map(([title]) => title)],
    list.map(each => [link(kind, view.namespace, each.name), `${each.pods ?? "-"}`, `${each.appliedGeneration ?? "-"}`,
      ...shown.map(([, name]) => each.load?.[name] == null ? "-" : `${each.load[name]}${name.endsWith("Percent") ? " %" : ""}`)]),
    [1, 2, 3, 4, 5, 6]);
}

function steering(view, release) {
  const said = el("span", {role: "status"});
  const steer = ([verb, words, will, problem]) => el("button", {disabled: Boolean(release.allowed || problem),
    title: release.allowed || problem || will, "data-key": verb, onclick: async () => {
      if (!confirm(`${words}? ${will}.`)) return;
      try {
        said.textContent = (await ask("POST", `/api/steer/${encodeURIComponent(view.namespace)}/${encodeURIComponent(view.name)}`, {verb})).said;
      } catch (error) { said.textContent = error.message; }
    }}, words);
  const steps = el("ol", {class: "steps"}, release.steps.map(([mark, number, words, time]) => el("li",
    {class: {"✓": "done", "▶": "here", "✗": "failed"}[mark] ?? null, "aria-current": mark === "▶" ? "step" : null},
    `${mark.trim() ? `${mark} ` : ""}${number ? `${number}. ` : "end: "}${words}${time ? ` (${time})` : ""}`)));
  const percent = value => value == null ? "-" : `${parseFloat(value)} %`;
  return [el("p", {}, release.why), remedy(release.remedy), steps,
    el("div", {class: "acts"}, release.buttons.map(steer), said),
    release.allowed ? el("p", {class: "quiet"}, `To steer the release ${release.allowed}.`) : null,
    table(["BACKEND", "ROLE", "READY PODS", "NEEDED", "SHARE ASKED FOR", "AT THE ROUTERS", "OBSERVED"], release.backends.map(each => [
      link("ModelBackend", view.namespace, each.name), each.role, readyPods(each.ready), each.needed,
      percent(each.desired), percent(each.applied), percent(each.observed)]), [2, 3, 4, 5, 6]),
    el("p", {class: "quiet"}, "Of endpoint ", link("ModelEndpoint", view.namespace, view.endpoint), ...release.started
      ? ["; began ", since(release.started), " ago"] : [], ...release.ended_at ? [", ended ", since(release.ended_at), " ago"] : [])].filter(Boolean);
}

// An example of what a schema describes; `left` bounds its parts, since the schema is the model's.
function example(schema, all, depth = 0, left = {parts: 1000}) {
  if (depth > 8 || left.parts-- < 0) return null;
  if (!schema) return 1;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1, left);
  if ("default" in schema) return schema.default;
  if ("const" in schema) return schema.const;
  if (schema.enum) return schema.enum[0];
  if (schema.examples?.length) return schema.examples[0];
  const one = (schema.anyOf || schema.oneOf || schema.allOf || [])[0];
  if (one) return example(one, all, depth + 1, left);
  switch (schema.type) {
    case "string": return "text";
    case "integer": return Math.max(1, schema.minimum ?? 1);
    case "number": return 1.5;
    case "boolean": return true;
    case "array": return [example(schema.items, all, depth + 1, left)];
    case "object": return Object.fromEntries(Object.entries(schema.properties || {})
      .map(([name, value]) => [name, example(value, all, depth + 1, left)]));
    case "null": return null;
    default: return 1;
  }
}

function tryIt({namespace, name}) {
  const where = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const path = el("input", {value: "/", "aria-label": "Path", "data-key": "path"});
  const body = el("textarea", {rows: 9, spellcheck: "false", "aria-label": "Body", "data-key": "body"});
  body.value = '{"instances": [1]}';
  const shown = el("pre", {"aria-live": "polite"});
  const send = el("button", {"data-key": "send", onclick: async () => {
    send.disabled = true;
    shown.textContent = "…";
    try {
      const {status, type, timing, milliseconds, body: answer, whole} = await ask("POST", `/api/try/${where}`,
        {method: "POST", path: path.value, body: body.value});
      shown.textContent = `${status} ${type}, ${milliseconds.toFixed(1)} ms through the API server`
        + `${timing ? `\nserver-timing: ${timing}` : ""}\n\n${answer}${whole ? "" : "\n(cut: more is not shown)"}`;
    } catch (error) { shown.textContent = error.message; }
    send.disabled = false;
  }}, "Send (POST)");
  const paths = el("select", {"aria-label": "Method", "data-key": "method", hidden: true});
  ask("GET", `/api/schema/${where}`).then(said => {
    const served = said.status === 200 ? JSON.parse(said.body) : {paths: {}};
    const bodies = new Map(Object.entries(served.paths ?? {}).filter(([, each]) => each.post).map(([at, {post}]) =>
      [at, JSON.stringify(example(post.requestBody?.content?.["application/json"]?.schema, served.components?.schemas ?? {}), null, 1)]));
    if (!bodies.size) return;
    paths.hidden = false;
    paths.append(...[...bodies.keys()].map(at => el("option", {value: at}, `POST ${at}`)));
    paths.onchange = () => { path.value = paths.value; body.value = bodies.get(paths.value); };
    paths.onchange();
  }, error => { shown.textContent ||= error.message; }).catch(() => {});
  return [el("div", {class: "find"}, paths, path, send), body, shown];
}

// What the documentation says of the reasons of conditions.
async function reasons(reason, signal) {
  document.title = "Reasons - Penstock";
  let list = [];
  try {
    list = await ask("GET", "/api/reasons", undefined, signal);
  } catch (error) {
    if (!signal.aborted) state(error.message, true);
  }
  if (signal.aborted) return;
  const groups = new Map();  // browsers before 2024 have no Map.groupBy
  for (const each of list) groups.set(each[1], [...groups.get(each[1]) ?? [], each]);
  main.replaceChildren(el("p", {class: "crumbs"}, el("a", {href: "#/"}, "Overview"), " › Reasons"),
    el("h1", {}, "Reasons of conditions, and what to do"), ...[...groups].map(([group, rows]) =>
      el("section", {"aria-label": group}, el("h2", {}, group), table(["REASON", "MEANING", "WHAT TO DO"],
        rows.map(([name, , meaning, words]) => [el("b", {id: name}, name), meaning, words || "-"])))));
  const wanted = document.getElementById(reason);
  wanted?.closest("tr").classList.add("wanted");
  wanted?.scrollIntoView({block: "center"});
}

// ---- the address

let leave = new AbortController();

async function route() {
  leave.abort();
  leave = new AbortController();
  again = null;
  const {signal} = leave;
  if (/^#(token|code)=/.test(location.hash)) {
    await admit();
    if (signal.aborted) return;  // the reader went on meanwhile
    history.replaceState(null, "", "#/");
  }
  let parts = [];
  try { parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent); } catch { /* not an address of ours */ }
  if (parts[0] === "reasons") { await reasons(parts[1], signal); return; }
  if (parts.length !== 3 || !Object.hasOwn(VIEWS, parts[0])) { overview(signal); return; }
  const [kind, , name] = parts, top = el("div"), place = el("div");
  main.replaceChildren(top, place);
  document.title = `${name} - Penstock`;
  main.focus({preventScroll: true});
  follow(`/api/view/${parts.map(encodeURIComponent).join("/")}`, said => {
    const view = said.view;
    panel(top, "gone", "", !view && said.listed ? parts : null, () => [el("p", {class: "crumbs"},
      el("a", {href: "#/"}, "Overview")), el("p", {}, `There is no ${kind} ${parts[1]}/${name}.`)]);
    place.hidden = !view;
    if (!view) { panel(top, "head", "", null); return; }
    panel(top, "head", "", [view.name, view.ready, view.reason, view.pill, view.details, view.notes, view.behind], () => head(view));
    VIEWS[kind](view, place);
    panel(place, "conditions", "Conditions", view.conditions?.length ? view.conditions : null, conditions);
  }, signal);
}

token = sessionStorage.getItem("token") ?? "";
addEventListener("hashchange", route);
await route();
