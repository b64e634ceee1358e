"use strict";
document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.scheme
    ? root.dataset.scheme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
});

// Methods: a switch hides everything drawn of one, in all figures at once; resting on it dims the others.
// What stands inside a single method stays as it is.
const switches = [...document.querySelectorAll("[data-switch]")];
const drawn = [...document.querySelectorAll(".switched [data-method]")];
const shared = drawn.filter((part) => !part.closest(".multiples")); // where methods cover one another
function show(box) {
  for (const part of drawn) {
    if (part.dataset.method === box.dataset.switch) part.classList.toggle("off", !box.checked);
  }
}
function dim(label) {
  for (const part of shared) part.classList.toggle("dim", label !== null && part.dataset.method !== label);
}
for (const box of switches) {
  box.addEventListener("change", () => { show(box); dim(null); });
  box.parentElement.addEventListener("mouseenter", () => dim(box.checked ? box.dataset.switch : null));
  box.parentElement.addEventListener("mouseleave", () => dim(null));
  show(box); // a browser may remember unchecked boxes when a page is opened again
}
for (const button of document.querySelectorAll("[data-all]")) {
  button.addEventListener("click", () => {
    for (const box of switches) {
      box.checked = button.dataset.all === "true";
      show(box);
    }
  });
}

// Tables: a press on a heading sorts by it, a second one the other way round. Rows without a number stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  for (const button of table.tHead.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const head = button.parentElement, column = Number(button.dataset.column), text = button.dataset.kind === "text";
      const first = "descending" in button.dataset ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      for (const one of table.tHead.querySelectorAll("th")) one.setAttribute("aria-sort", one === head ? order : "none");
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => {
        const cell = row.cells[column], found = cell && cell.dataset.value;
        return found === undefined ? null : text ? found : Number(found);
      };
      const compare = (a, b) => {
        const one = value(a), two = value(b);
        const lacks = (x) => x === null || Number.isNaN(x);
        if (lacks(one) || lacks(two)) return Number(lacks(one)) - Number(lacks(two));
        return sign * (text ? one.localeCompare(two) : one - two);
      };
      body.append(...[...body.rows].sort(compare));
    });
  }
}

// A link to a method opens it.
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
window.addEventListener("hashchange", openTarget);
openTarget();
