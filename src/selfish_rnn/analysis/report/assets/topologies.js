/* Topologies: a density map of every gate, and the distribution of weights over rows and columns. */
function variable(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function densityMap(gate) {
  const bytes = Uint8Array.from(atob(gate.pixels), (letter) => letter.charCodeAt(0));
  const canvas = make("canvas", { width: gate.columns, height: gate.rows, role: "img", "aria-label": "density map, gate " + gate.name });
  return { canvas, bytes };
}

function paint(maps) {
  const [low, high] = [variable("--low"), variable("--high")].map((words) => words.split(/\s+/).map(Number));
  const highest = Math.max(1, ...maps.map(({ bytes }) => bytes.reduce((first, second) => Math.max(first, second), 0)));
  for (const { canvas, bytes } of maps) {
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    bytes.forEach((byte, index) => {
      const share = byte / highest;
      for (let part = 0; part < 3; part += 1) image.data[4 * index + part] = low[part] + share * (high[part] - low[part]);
      image.data[4 * index + 3] = 255;
    });
    context.putImageData(image, 0, 0);
  }
  return highest / 255;
}

function degrees(title, distribution, gates, unit) {
  const [width, height, bottom, top] = [170, 116, 84, 18];
  const bins = distribution.random.length;
  const x = scale(distribution.from, distribution.from + bins * distribution.step, 4, width - 4, false);
  const y = scale(0, Math.max(...distribution.random, ...distribution.gates.flat()), bottom, top, false);
  const edge = (index) => x(distribution.from + index * distribution.step);
  const stairs = (shares) => shares.flatMap((share, index) => [[edge(index), y(share)], [edge(index + 1), y(share)]]);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(shape("path", { class: "random", d: path([[edge(0), bottom], ...stairs(distribution.random), [edge(bins), bottom]]) + "Z" }));
  distribution.gates.forEach((shares, index) => svg.append(shape("path", { class: "curve " + colour(index), d: path(stairs(shares)), "stroke-dasharray": dashes(index) },
    shape("title", {}, gates[index].name))));
  svg.append(shape("line", { class: "grid", x1: 4, x2: width - 4, y1: bottom, y2: bottom }));
  for (const value of ticks(distribution.from, distribution.from + bins * distribution.step, 3))
    svg.append(shape("text", { x: x(value), y: bottom + 13, "text-anchor": "middle" }, show(value)));
  svg.append(shape("text", { x: 2, y: 10 }, "share of " + unit));
  svg.append(shape("text", { x: width / 2, y: height - 3, "text-anchor": "middle" }, title));
  return svg;
}

function topologies() {
  const place = byId("topologies");
  if (!place) return;
  const grid = make("div", { class: "topologies" });
  const about = make("div", { class: "controls" });
  let maps = [];
  let reading = make("span");
  const repaint = () => { reading.textContent = paint(maps).toFixed(2); };
  const open = (number) => {
    maps = [];
    reading = make("span");
    grid.replaceChildren(...data.topologies[number].matrices.map((matrix) => {
      const several = matrix.gates.length > 1;
      const figures = matrix.gates.map((gate, index) => {
        const map = densityMap(gate);
        maps.push(map);
        const caption = several ? make("figcaption", {}, make("i", { class: "swatch " + colour(index) }), gate.name) : "";
        return make("figure", {}, map.canvas, caption);
      });
      return make("div", {}, make("h3", {}, matrix.short === matrix.name ? matrix.name : `${matrix.short} (${matrix.name})`),
        make("div", { class: "maps" }, ...figures),
        make("div", { class: "degrees" }, degrees("weights in a row", matrix.received, matrix.gates, "rows"),
          degrees("weights in a column", matrix.sent, matrix.gates, "columns")));
    }));
    scaleWords.replaceChildren("density 0", make("span", { class: "scale" }), reading);
    repaint();
  };
  const scaleWords = make("span", { class: "controls" });
  about.append(choice("topology-run", "Run", data.topologies.map((entry, index) => [index, entry.run]), 0, open), scaleWords);
  place.replaceChildren(about, grid);
  open(0);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
