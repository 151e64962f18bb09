/* The chart of the curves. */
const state = { measure: "valid", axis: "epoch", mean: true, hidden: new Set(), at: null, part: 0 };
const seeds = data.groups.map((_, group) => data.runs.filter((run) => run.group === group));
const severalSeeds = seeds.some((runs) => runs.length > 1);
state.mean = severalSeeds;

/* The first epochs are far above the others, and would compress them. */
const PARTS = [[0.2, "without the first fifth"], [0, "all epochs"], [0.5, "the second half"]];
const shortest = Math.min(...data.runs.map((run) => run.epoch.length));
state.part = shortest >= 10 ? 0.2 : 0;
const skipped = () => Math.floor(state.part * shortest);

/* Lines to draw: one per group (mean, lowest and highest of its seeds) or one per run. */
function lines() {
  if (!state.mean) {
    return data.runs.map((run) => ({
      key: "run " + run.name, label: run.name, group: run.group, x: run[state.axis], y: run[state.measure], epochs: run.epoch,
      starts: run.averaging,
    }));
  }
  return data.groups.map((label, group) => {
    const runs = seeds[group];
    const longest = runs.reduce((first, second) => (second.epoch.length > first.epoch.length ? second : first));
    const at = (key) => longest.epoch.map((_, index) => runs.map((run) => run[key][index]).filter((value) => Number.isFinite(value)));
    const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
    const values = at(state.measure);
    return {
      key: "group " + group, label, group, x: at(state.axis).map(average), y: values.map(average), epochs: longest.epoch,
      low: values.map((seeds) => (seeds.length ? Math.min(...seeds) : null)),
      high: values.map((seeds) => (seeds.length ? Math.max(...seeds) : null)),
      starts: runs.flatMap((run) => run.averaging), many: runs.length > 1,
    };
  });
}

function later(line) {
  const from = skipped();
  const cut = (values) => values && values.slice(from);
  return { ...line, x: cut(line.x), y: cut(line.y), low: cut(line.low), high: cut(line.high), epochs: cut(line.epochs) };
}

/* Perplexities of word frequencies alone: for one run unless far above the curve, for several if among the curves. */
function unigrams(measure, highest) {
  const most = data.runs.length === 1 ? 5 * highest : highest;
  const values = measure.key === "valid" || measure.key === "train" ? data.runs.map((run) => run.unigram) : [];
  return [...new Set(values)].filter((value) => Number.isFinite(value) && value < most);
}

const chart = byId("chart");
const tip = make("div", { class: "tip", hidden: "" });
let points = null;

function draw() {
  const measure = data.measures.find((entry) => entry.key === state.measure);
  const width = Math.max(280, Math.min(1080, chart.clientWidth));
  const height = Math.round(Math.max(240, Math.min(420, width * 0.5)));
  const box = { left: 52, right: width - 12, top: 26, bottom: height - 42 };
  const shown = lines().filter((line) => !state.hidden.has(line.key)).map(later).filter((line) => line.x.length);
  const xs = shown.flatMap((line) => line.x).filter((value) => value !== null);
  const ys = shown.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || [])]).filter((value) => Number.isFinite(value));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": `${measure.label} by ${state.axis}` });
  points = null;
  tip.hidden = true;
  if (!ys.length) {
    svg.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing is switched on."));
    chart.replaceChildren(svg, tip);
    return;
  }
  const unigram = unigrams(measure, Math.max(...ys));
  let [low, high] = [Math.min(...ys, ...unigram), Math.max(...ys, ...unigram)];
  const log = measure.log && low > 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const room = log ? (high / low) ** 0.04 : (high - low) * 0.05;
  [low, high] = log ? [low / room, high * room] : [low - room, high + room];
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const x = scale(first, last, box.left, box.right, false);
  const y = scale(low, high, box.bottom, box.top, log);
  for (const value of log ? logTicks(low, high, 6) : ticks(low, high, 6)) {
    svg.append(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, show(value)));
  }
  for (const value of ticks(first, last, width / 90)) {
    if (state.axis === "epoch" && value % 1) continue;
    svg.append(shape("line", { class: "grid", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 }));
    svg.append(shape("text", { x: x(value), y: box.bottom + 18, "text-anchor": "middle" }, show(value)));
  }
  svg.append(shape("text", { x: 2, y: 12 }, measure.label + (log ? " (logarithmic)" : "")));
  svg.append(shape("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" },
    state.axis === "epoch" ? "epoch" : "minutes of training"));
  if (state.axis === "epoch") {
    for (const epoch of new Set(data.runs.flatMap((run) => run.restarts.filter((restart) => restart >= first))))
      svg.append(shape("line", { class: "restart", x1: x(epoch), x2: x(epoch), y1: box.top, y2: box.bottom }));
  }
  for (const value of unigram) {
    svg.append(shape("line", { class: "unigram", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: box.right, y: y(value) - 5, "text-anchor": "end" }, "word frequencies alone: " + show(value)));
  }
  for (const line of shown) {
    const group = shape("g", { class: colour(line.group), "data-line": line.key });
    if (line.many) {
      const edge = line.x.map((value, index) => [value, index]).filter(([value, index]) => value !== null && line.high[index] !== null);
      const there = edge.map(([value, index]) => [x(value), y(line.high[index])]);
      const back = edge.reverse().map(([value, index]) => [x(value), y(line.low[index])]);
      group.append(shape("path", { class: "band", d: path([...there, ...back]) + "Z" }));
    }
    const drawn = line.x.map((value, index) => [x(value), Number.isFinite(line.y[index]) ? y(line.y[index]) : null]);
    group.append(shape("path", { class: "curve", d: path(drawn), "stroke-dasharray": dashes(line.group) }));
    for (const epoch of new Set(line.starts)) {
      const [cx, cy] = drawn[line.epochs.indexOf(epoch)] || [0, null];
      if (cy !== null) group.append(shape("circle", { class: "start", cx, cy, r: 4.5 }, shape("title", {}, `averaging starts in epoch ${epoch}`)));
    }
    svg.append(group);
  }
  const cursor = shape("g");
  svg.append(cursor);
  chart.replaceChildren(svg, tip);
  points = { svg, cursor, shown, x, y, box, width, measure };
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    const wanted = ((event.clientX - place.left) / place.width) * width;
    const nearest = (line) => line.x.reduce((best, value, index) => (Math.abs(x(value) - wanted) < Math.abs(x(line.x[best]) - wanted) ? index : best), 0);
    read(Math.max(...shown.map(nearest)));
  });
  svg.addEventListener("pointerleave", () => read(null));
  svg.addEventListener("blur", () => read(null));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const longest = Math.max(...shown.map((line) => line.x.length));
    read(Math.max(0, Math.min(longest - 1, state.at === null ? longest - 1 : state.at + move)));
  });
}

/* Show the value of every curve at an index. */
function read(index) {
  state.at = index;
  if (!points) return;
  const { cursor, shown, x, y, box, width } = points;
  cursor.replaceChildren();
  tip.hidden = index === null;
  if (index === null) return;
  const lines = shown.filter((line) => Number.isFinite(line.y[index])).sort((first, second) => first.y[index] - second.y[index]);
  if (!lines.length) { tip.hidden = true; return; }
  const at = x(lines[0].x[index]);
  cursor.append(shape("line", { class: "cursor", x1: at, x2: at, y1: box.top, y2: box.bottom }));
  for (const line of lines)
    cursor.append(shape("circle", { class: "dot " + colour(line.group), cx: x(line.x[index]), cy: y(line.y[index]), r: 3.5 }));
  const rows = lines.slice(0, 12).map((line) => make("div", {},
    make("span", {}, make("i", { class: "swatch " + colour(line.group) }), line.label), make("b", {}, show(line.y[index]))));
  if (lines.length > 12) rows.push(make("div", {}, `and ${lines.length - 12} more`));
  tip.replaceChildren(make("div", {}, make("b", {}, `epoch ${lines[0].epochs[index]}`)), ...rows);
  const side = at > width / 2 ? "right" : "left";
  const edge = `${((side === "left" ? at : width - at) / width) * 100}%`;
  tip.style.left = side === "left" ? `calc(${edge} + 12px)` : "auto";
  tip.style.right = side === "right" ? `calc(${edge} + 12px)` : "auto";
}

function legend() {
  byId("legend").replaceChildren(...lines().map((line) => {
    const button = make("button", { type: "button", "aria-pressed": String(!state.hidden.has(line.key)) },
      shape("svg", { class: colour(line.group), viewBox: "0 0 24 8", "aria-hidden": "true" },
        shape("path", { class: "curve", d: "M0 4L24 4", "stroke-dasharray": dashes(line.group) })), line.label);
    button.addEventListener("click", () => {
      const wasHidden = state.hidden.delete(line.key);
      if (!wasHidden) state.hidden.add(line.key);
      button.setAttribute("aria-pressed", String(wasHidden));
      draw();
    });
    return button;
  }));
}

function controls() {
  const parts = [
    choice("measure", "Show", data.measures.map((entry) => [entry.key, entry.label]), state.measure, (value) => { state.measure = value; draw(); }),
    choice("axis", "by", [["epoch", "epoch"], ["minutes", "minutes of training"]], state.axis, (value) => { state.axis = value; draw(); }),
    choice("part", "for", PARTS, state.part, (value) => { state.part = Number(value); draw(); }),
  ];
  if (severalSeeds) {
    const box = make("input", { type: "checkbox", id: "mean" });
    box.checked = state.mean;
    box.addEventListener("change", () => { state.mean = box.checked; legend(); draw(); });
    parts.push(make("label", {}, box, " average the seeds (the band is from lowest to highest)"));
  }
  byId("controls").replaceChildren(...parts);
}
