// Charts of the page, as SVG: each has units, axes and a text that says what it shows.
const NS = "http://www.w3.org/2000/svg";

export function svg(tag, fields = {}, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(fields)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function picture(width, height, label, ...children) {
  return svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label}, ...children);
}

// A picture is drawn as wide as it is shown, so that its words are as large everywhere.
let wide = 560;
export function fit(width) { wide = Math.min(900, Math.max(280, width - 34)); }
const room = () => wide;

const text = (x, y, words, fields = {}) => svg("text", {x, y, ...fields}, words);

// Round steps of an axis from 0 to at least `most`: 1, 2 or 5 times a power of ten.
export function ticks(most, count = 4, whole = true) {
  const rough = Math.max(most, whole ? 1 : 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].find(each => each * power >= rough) * power;
  if (whole) step = Math.max(1, Math.round(step));
  const made = [];
  for (let at = 0; at < most + step; at += step) made.push(+at.toPrecision(6));
  return made;
}

export function short(value) {
  if (value >= 1000) return `${+(value / 1000).toPrecision(3)}k`;
  return `${+value.toPrecision(3)}`;
}

const clock = seconds => new Date(seconds * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});

// Lines over time. `series`: {name, color, values, step}; `marks`: {at, name, words}, and `marked` says what they are.
export function overTime({times, series, marks = [], marked, from, to, unit, height = 170, axis = true, limit}) {
  const width = room(), left = 46, right = 126, top = marks.length ? 38 : 24, bottom = axis ? 24 : 8;
  const most = limit ?? Math.max(...series.flatMap(each => each.values), 1);
  const levels = ticks(most, 4), highest = levels.at(-1);
  const x = at => left + (at - from) / Math.max(to - from, 1) * (width - left - right);
  const y = value => height - bottom - value / highest * (height - top - bottom);
  const parts = [text(4, 12, unit, {class: "quiet"})];
  for (const level of levels) {
    parts.push(svg("line", {class: "axis", x1: left, x2: width - right, y1: y(level), y2: y(level)}));
    parts.push(text(left - 6, y(level) + 4, short(level), {class: "quiet", "text-anchor": "end"}));
  }
  if (axis) {
    for (const share of width < 420 ? [0, 1] : [0, 0.5, 1]) {
      const at = from + share * (to - from);
      const anchor = ["start", "middle", "end"][share * 2];
      parts.push(text(x(at), height - 6, clock(at), {class: "quiet", "text-anchor": anchor}));
    }
  }
  const seen = marks.filter(each => each.at >= from && each.at <= to).sort((one, other) => one.at - other.at);
  if (seen.length) {
    parts.push(svg("line", {class: "mark", x1: width - 176, x2: width - 176, y1: 1, y2: 15}));
    parts.push(text(width - 170, 12, marked, {class: "quiet"}));
  }
  let free = left;
  for (const mark of seen) {
    parts.push(svg("line", {class: "mark", x1: x(mark.at), x2: x(mark.at), y1: top, y2: height - bottom},
      svg("title", {}, `${clock(mark.at)}: ${mark.name}: ${mark.words}`)));
    if (x(mark.at) - 20 < free) continue;
    parts.push(text(x(mark.at), top - 5, mark.name, {"text-anchor": "middle"}));
    free = x(mark.at) + 24;
  }
  const ends = [];
  for (const {name, color, values, step} of series) {
    if (!values.length) continue;
    const path = values.map((value, index) => {
      const here = `${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`;
      return index && step ? `L${x(times[index]).toFixed(1)},${y(values[index - 1]).toFixed(1)}L${here}`
        : `${index ? "L" : "M"}${here}`;
    }).join("") + `L${x(to).toFixed(1)},${y(values.at(-1)).toFixed(1)}`;
    parts.push(svg("path", {class: `line ${color}`, d: path}));
    ends.push({name: `${short(values.at(-1))} ${name}`, color, y: y(values.at(-1)) + 4});
  }
  // Names stand at the lines' ends, pushed apart where they meet.
  ends.sort((one, other) => one.y - other.y);
  ends.forEach((each, index) => { if (index) each.y = Math.max(each.y, ends[index - 1].y + 14); });
  const over = Math.max(0, (ends.at(-1)?.y ?? 0) - (height - 4));
  for (const each of ends) parts.push(text(width - right + 6, each.y - over, each.name, {class: each.color}));
  const last = series.map(each => `${each.name} ${short(each.values.at(-1) ?? 0)}`).join(", ");
  return picture(width, height, `${unit} from ${clock(from)} to ${clock(to)}; now ${last}`, ...parts);
}

// Batches by size over time: the darker, the more.
export function heat({bounds, columns, seconds}) {
  const span = Math.min(60, Math.max(6, ...columns.map(([ago]) => ago + 1)));  // no empty side while it is new
  const width = room(), left = 62, right = 20, top = 30, bottom = 24, row = 18;
  const height = top + bottom + row * bounds.length;
  const most = Math.max(...columns.flatMap(([, counts]) => counts), 1);
  const cell = (width - left - right) / span, shade = count => (0.15 + 0.85 * count / most).toFixed(2);
  const name = index => {
    const low = index ? bounds[index - 1] + 1 : 1, high = bounds[index];
    return high === null ? `≥ ${low}` : low >= high ? `${high}` : `${low}–${high}`;
  };
  const parts = [text(4, 12, "items of a batch", {class: "quiet"})];
  // What the shades mean, at the right above them.
  const largest = `${short(most)} batches in ${seconds} s`, begin = width - right - 7 * largest.length - 66;
  parts.push(text(begin - 6, 12, "1", {class: "quiet", "text-anchor": "end"}),
    ...[0, 0.25, 0.5, 0.75, 1].map((share, index) => svg("rect", {class: "cell", x: begin + 12 * index, y: 2, width: 11, height: 12, opacity: shade(share * most)})),
    text(begin + 66, 12, largest, {class: "quiet"}));
  bounds.forEach((_, index) => {
    const y = height - bottom - row * (index + 1);
    parts.push(text(left - 6, y + 12, name(index), {class: "quiet", "text-anchor": "end"}));
    for (const [ago, counts] of columns) {
      if (!counts[index] || ago >= span) continue;
      const x = width - right - cell * (ago + 1);
      parts.push(svg("rect", {class: "cell", x, y, width: Math.max(cell - 0.6, 0.6), height: row - 1,
        opacity: shade(counts[index])},
        svg("title", {}, `${name(index)} items, ${ago * seconds} s ago: ${short(counts[index])} batches in ${seconds} s`)));
    }
  });
  parts.push(svg("line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}));
  parts.push(text(left, height - 6, span * seconds >= 120 ? `${+(span * seconds / 60).toPrecision(2)} min ago` : `${span * seconds} s ago`, {class: "quiet"}));
  parts.push(text(width - right, height - 6, "now", {class: "quiet", "text-anchor": "end"}));
  const recent = columns.length ? columns[0][1] : [];
  const usual = recent.indexOf(Math.max(...recent));
  return picture(width, height, `Sizes of batches in the last ${span * seconds} s`
    + (usual >= 0 ? `; most often now ${name(usual)} items` : ""), ...parts);
}

// Time of a batch by its size, with what the objective allows.
export function curve({a, b, most, objective, allowed}) {
  const width = room(), height = 220, left = 52, right = 24, top = 26, bottom = 34;
  const large = Math.max(most ?? 0, allowed ?? 0, 8);
  const highest = ticks(Math.max(a + b * large, objective ?? 0) * 1.02, 4, false);
  const x = items => left + items / large * (width - left - right);
  const y = value => height - bottom - value / highest.at(-1) * (height - top - bottom);
  const parts = [text(4, 12, "ms", {class: "quiet"})];
  for (const level of highest) {
    parts.push(svg("line", {class: "axis", x1: left, x2: width - right, y1: y(level), y2: y(level)}));
    parts.push(text(left - 6, y(level) + 4, short(level), {class: "quiet", "text-anchor": "end"}));
  }
  for (const items of ticks(large, 6).filter(each => each <= large)) {
    parts.push(text(x(items), height - bottom + 14, short(items), {class: "quiet", "text-anchor": "middle"}));
  }
  parts.push(text((left + width - right) / 2, height - 4, "items of a batch", {class: "quiet", "text-anchor": "middle"}));
  parts.push(svg("path", {class: "line blue", d: `M${x(1)},${y(a + b)}L${x(large)},${y(a + b * large)}`}));
  const words = `a batch of n items takes ${short(a)} ms + n × ${short(b)} ms`;
  parts.push(text(left, 12, words, {class: "blue"}));
  if (objective) {
    parts.push(svg("line", {class: "limit", x1: left, x2: width - right, y1: y(objective), y2: y(objective)}));
    parts.push(text(left + 4, y(objective) - 5, `latencyObjective ${short(objective)} ms`));
  }
  if (allowed) {
    parts.push(svg("line", {class: "mark", x1: x(allowed), x2: x(allowed), y1: top, y2: height - bottom}));
    const anchor = allowed > large / 2 ? "end" : "start";
    parts.push(text(x(allowed) + (anchor === "end" ? -5 : 5), height - bottom - 6, `keeps it: up to ${short(allowed)} items`, {"text-anchor": anchor}));
  }
  return picture(width, height, words + (objective ? `; the objective is ${short(objective)} ms` : "")
    + (allowed ? `, which batches of up to ${short(allowed)} items keep` : ""), ...parts);
}

// An endpoint's requests on their way to backends: as wide as their share.
export function flows({name, shares}) {
  const width = room(), narrow = width < 480, top = 8, begin = narrow ? 70 : 130, end = narrow ? 120 : 250;
  const labels = shares.map(each => {
    const lines = [""];
    for (const word of each.words.split(/(?<=,) /)) {
      if (lines.at(-1) && lines.at(-1).length + word.length > (width - end) / 7) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    return lines;
  });
  const rows = labels.map(lines => 16 * lines.length + 34), height = top * 2 + Math.max(34, rows.reduce((sum, each) => sum + each, 0));
  const middle = height / 2;
  const served = shares.filter(each => !each.mirror), all = served.reduce((sum, each) => sum + each.share, 0) || 1;
  const thick = Math.min(34, height - 2 * top);
  const parts = [];
  let used = middle - thick / 2, above = top;
  shares.forEach((each, index) => {
    const y = above + rows[index] / 2, lines = labels[index];
    above += rows[index];
    const half = each.mirror ? 0 : Math.max(each.share / all * thick, each.share ? 1.5 : 0) / 2;
    const from = each.mirror ? middle + thick / 2 : used + half;
    used += 2 * half;
    const bend = (begin + end) / 2;
    const d = each.mirror
      ? `M${begin},${from}C${bend},${from} ${bend},${y} ${end},${y}`
      : `M${begin},${from - half}C${bend},${from - half} ${bend},${y - half} ${end},${y - half}`
        + `L${end},${y + half}C${bend},${y + half} ${bend},${from + half} ${begin},${from + half}Z`;
    parts.push(svg("path", {class: each.mirror ? "flow mirror" : "flow", d}, svg("title", {}, each.words)));
    parts.push(text(end + 8, y - 2 - 8 * (lines.length - 1), each.name, {"font-weight": 600}));
    lines.forEach((words, line) => parts.push(text(end + 8, y + 14 + 16 * line - 8 * (lines.length - 1), words,
      {class: each.bad ? "bad" : "quiet"})));
  });
  parts.push(svg("rect", {class: "node", x: 6, y: middle - 17, width: begin - 6, height: 34, rx: 6}));
  const most = Math.floor(begin / 7), shown = name.length > most ? `${name.slice(0, most - 1)}…` : name;
  parts.push(text((begin + 6) / 2, middle + 4, shown, {"text-anchor": "middle", "font-weight": 600}));
  return picture(width, height, `${name}: ` + shares.map(each => `${each.name} ${each.words}`).join("; "), ...parts);
}
