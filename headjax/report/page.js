// Tables sort by a click on a heading, heads tell their scores, figures can be saved. Nothing is loaded from elsewhere.
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

function showTip(spot, tip) {
  tip.textContent = spot.getAttribute("aria-label");
  tip.hidden = false;
  const box = spot.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(4, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 4);
  const above = box.top - size.height - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 4 ? box.bottom + 6 : above}px`;
}

function saveFigure(button) {
  const copy = button.closest("figure").querySelector("svg").cloneNode(true);
  const style = getComputedStyle(document.documentElement);
  copy.querySelector(".spots")?.remove();
  const text = new XMLSerializer().serializeToString(copy);
  const plain = text.replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([plain], { type: "image/svg+xml" }));
  link.download = `${button.dataset.name}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
}

for (const heading of document.querySelectorAll("th button")) {
  heading.addEventListener("click", () => sortBy(heading.closest("th")));
}
const tip = document.querySelector(".tip");
for (const spot of document.querySelectorAll(".spots rect")) {
  for (const name of ["pointerenter", "focus", "click"]) spot.addEventListener(name, () => showTip(spot, tip));
  for (const name of ["pointerleave", "blur"]) spot.addEventListener(name, () => { tip.hidden = true; });
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
for (const button of document.querySelectorAll("figure .save")) {
  button.hidden = false;
  button.addEventListener("click", () => saveFigure(button));
}
