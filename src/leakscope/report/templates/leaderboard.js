// Filters, sorting and the panel of a cell; nothing leaves the page.
"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const sections = [...document.querySelectorAll("section.table")];
const rows = sections.map((section) => {
  const table = section.querySelector("table");
  const names = [...table.querySelectorAll("thead th")].slice(4).map((th) => th.textContent).join(" ");
  return [...table.tBodies[0].rows].map((tr) => ({
    tr, front: tr.classList.contains("front"),
    text: `${tr.cells[0].textContent} ${names} ${Object.values(section.dataset).join(" ")}`.toLowerCase(),
  }));
});
const words = document.getElementById("words");
const front = document.getElementById("front");
const selects = [...document.querySelectorAll("select[data-name]")];
const count = document.getElementById("count");

function filter() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0, all = 0;
  sections.forEach((section, i) => {
    const here = selects.every((s) => !s.value || section.dataset[s.dataset.name] === s.value);
    let any = false;
    for (const row of rows[i]) {
      const keep = here && (!front.checked || row.front) && wanted.every((word) => row.text.includes(word));
      row.tr.hidden = !keep;
      any ||= keep;
      shown += keep;
      all += 1;
    }
    section.hidden = !any;
  });
  count.textContent = `${shown} of ${all} rows`;
}
document.getElementById("filters").addEventListener("input", filter);
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());

document.addEventListener("click", (event) => {
  const head = event.target.closest("thead th");
  if (!head || !event.target.closest("button")) return;
  const table = head.closest("table"), column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const th of head.parentNode.cells) th.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (tr) => {
    const cell = tr.cells[column];
    return cell.tagName === "TH" ? cell.textContent.replace(/^\s*\d+\s*/, "") : cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
  };
  const order = (a, b) => {
    // By leakage a row in doubt never stands above one that is not.
    const doubt = column > 1 ? a.classList.contains("unranked") - b.classList.contains("unranked") : 0;
    if (doubt) return doubt;
    const [x, y] = [value(a), value(b)];
    if (typeof x === "string") return down ? y.localeCompare(x) : x.localeCompare(y);
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is missing stays last
    return down ? y - x : x - y;
  };
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
});

const panel = document.getElementById("panel");
const body = document.getElementById("panel-body");
function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function picture(key, name) {
  return element("img", undefined, { src: facts.pictures[key], alt: name });
}
function open() {
  const cell = facts.cells[location.hash.replace("#cell-", "")];
  if (!location.hash.startsWith("#cell-") || !cell) return;
  const [title, prefix, tail, results] = cell;
  document.getElementById("panel-title").textContent = title;
  body.replaceChildren();
  for (const [key, seed, mean, low, high, worst, flags] of results) {
    const item = element("div", undefined, { class: "item" });
    item.append(`seed ${seed}: ${mean} (${low} to ${high} over victims), worst picture ${worst} `);
    if (flags.length) item.append(element("span", flags.join(", "), { class: "flag" }));
    const record = `${facts.records}/${key.slice(0, 2)}/${key}/record.json`;
    item.append(element("a", `result ${key.slice(0, 12)}`, { href: record }));
    if (facts.pictures[key]) {
      if (facts.truths[key]) item.append(picture(facts.truths[key], "originals"));
      item.append(picture(key, "reconstructions"));
    } else {
      item.append(element("pre", `leakscope show ${key.slice(0, 12)} --store ${facts.root} --pictures pictures.png`));
    }
    const again = tail === null ? "Made in Python, or by an older version." : `${facts.commands[prefix]}${tail}`;
    item.append(element("pre", tail ? `${again} --seed ${seed}` : again));
    body.append(item);
  }
  if (!panel.open) panel.showModal();
}
panel.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
addEventListener("hashchange", open);
filter();
open();
