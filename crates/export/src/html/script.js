"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  });

  /* A cell that begins with a number sorts by it; dashes and names come below all numbers. */
  const keyOf = (row, column) => {
    const text = row.cells[column].textContent;
    const number = /^(?:<=)?([-+]?\d+(?:\.\d+)?)/.exec(text);
    return number ? Number(number[1]) : text;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return 1;
    return typeof b === "number" ? -1 : a.localeCompare(b);
  };
  const sort = (head) => {
    const table = head.closest("table");
    const column = head.cellIndex;
    const descending = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(keyOf(a, column), keyOf(b, column)) * (descending ? -1 : 1));
    table.tBodies[0].append(...rows);
  };
  for (const head of document.querySelectorAll(".sortable thead th")) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(head);
      }
    });
  }
})();
