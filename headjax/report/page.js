// Tables sort by a click on a heading; of the named figures of a section a menu shows one.
"use strict";

function sortBy(heading) {
  const table = heading.closest("table"), body = table.tBodies[0], place = heading.cellIndex;
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const value = (row) => row.cells[place].dataset.value ?? "";
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");  // what is missing stays below
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return ascending ? order : -order;
  };
  body.append(...[...body.rows].sort(compare));
}

for (const heading of document.querySelectorAll("th button")) {
  heading.addEventListener("click", () => sortBy(heading.closest("th")));
}

for (const section of document.querySelectorAll("section")) {
  const named = [...section.querySelectorAll("figure[data-name]")];
  if (named.length < 2) continue;
  const label = document.createElement("label"), menu = document.createElement("select");
  const show = () => named.forEach((figure, place) => { figure.hidden = place !== menu.selectedIndex; });
  menu.append(...named.map((figure) => new Option(figure.dataset.name)));
  menu.addEventListener("change", show);
  label.className = "menu";
  label.append("Show ", menu);
  named[0].before(label);
  show();
}
