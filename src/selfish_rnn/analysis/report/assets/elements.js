/* Elements, scales and ticks. The files of this folder are joined into one script. */
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8;
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const byId = (id) => document.getElementById(id);

/* Elements. Text is never interpreted as markup. */
const SVG = "http://www.w3.org/2000/svg";
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function shape(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const colour = (index) => "c" + (index % COLOURS);
const dashes = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];

/* Scales and ticks. */
function scale(low, high, from, to, log) {
  const forward = log ? Math.log : (value) => value;
  const [a, b] = [forward(low), forward(high)];
  return (value) => from + ((forward(value) - a) / (b - a || 1)) * (to - from);
}
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) values.push(+value.toPrecision(12));
  return values;
}
function logTicks(low, high, count) {
  const values = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    for (const factor of [1, 1.5, 2, 3, 5, 7]) if (factor * power >= low && factor * power <= high) values.push(+(factor * power).toPrecision(6));
  return values.length < 3 ? ticks(low, high, count) : values;
}
function show(value) {
  if (value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e6)) return String(+value.toPrecision(4));
  return value.toExponential(1);
}
function path(points) {
  let pen = "M";
  return points.map(([x, y]) => {
    if (y === null) { pen = "M"; return ""; }
    const part = pen + x.toFixed(1) + " " + y.toFixed(1);
    pen = "L";
    return part;
  }).join("");
}

function choice(id, words, options, chosen, change) {
  const select = make("select", { id }, ...options.map(([value, label]) => make("option", { value }, label)));
  select.value = chosen;
  select.addEventListener("change", () => change(select.value));
  return make("label", {}, words + " ", select);
}
