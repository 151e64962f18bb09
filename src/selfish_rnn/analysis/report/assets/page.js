/* Sortable tables, and start of the page. */
function sortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      for (const cell of headings) cell.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const key = (row) => row.cells[column].dataset.value;
      const order = [...body.rows].sort((first, second) => {
        const [a, b] = [key(first), key(second)];
        if (a === undefined && b === undefined) {
          const text = first.cells[column].textContent.localeCompare(second.cells[column].textContent, "en", { numeric: true });
          return up ? text : -text;
        }
        if (a === undefined || b === undefined) return a === undefined ? 1 : -1;
        return up ? a - b : b - a;
      });
      body.append(...order);
    });
  });
}

document.querySelector("nav").append(...[...document.querySelectorAll("section")].map((section) =>
  make("a", { href: "#" + section.id }, section.querySelector("h2").textContent)));
document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".copy").forEach((button) => button.addEventListener("click", () => {
  const text = button.previousElementSibling;
  getSelection().selectAllChildren(text);
  button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
}));
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
controls();
legend();
draw();
topologies();
let drawnAt = chart.clientWidth;
addEventListener("resize", () => {
  if (chart.clientWidth !== drawnAt) { drawnAt = chart.clientWidth; draw(); }
});
