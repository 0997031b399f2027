// SPDX-License-Identifier: Apache-2.0
// A timeline whose stretch and chosen instruction are in the address, and its source: a line shows its instructions,
// an instruction its line.
(() => {
  const root = document.querySelector(".beside .timeline"), source = document.querySelector(".source");
  if (!root) return;
  const asked = new URLSearchParams(location.search);
  let timer = 0, started = false;

  function note(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === undefined) asked.delete(name);
      else asked.set(name, value);
    }
    clearTimeout(timer);
    timer = setTimeout(() => history.replaceState(null, "", `?${asked}`), 150);
  }

  const rows = new Map(); // of the source, by the number that instructions have
  for (const row of source ? source.querySelectorAll("tr.timed") : []) {
    for (const number of row.dataset.sources.split(",")) rows.set(Number(number), row);
  }

  function choose(row, seen) {
    source?.querySelector("tr.chosen")?.classList.remove("chosen");
    if (!row) return;
    row.classList.add("chosen");
    if (seen) source.scrollTop = row.offsetTop - source.clientHeight / 2; // the page stays where it is
  }

  function showLine(timeline, row) {
    const wanted = new Set(row.dataset.sources.split(",").map(Number)), of = timeline.data.instructions.source;
    const marks = new Uint8Array(timeline.data.count);
    timeline.found = [];
    for (let i = 0; i < marks.length; i++) {
      if (!wanted.has(of[i])) continue;
      marks[i] = 1;
      if (timeline.data.barRow[i] >= 0) timeline.found.push(i);
    }
    timeline.match = -1;
    timeline.find("output").textContent = `${timeline.found.length.toLocaleString("en")} of this line`;
    timeline.mark("search", marks);
    choose(row, false);
    note({ line: row.dataset.sources.split(",")[0], i: undefined });
  }

  function begin() {
    if (started || root.dataset.ready !== "yes") return;
    started = true;
    const timeline = root.timeline, { show, select, clear } = timeline;
    timeline.show = function (from, to) {
      show.call(this, from, to);
      const whole = this.from === 0 && this.to === this.limit;
      note({ from: whole ? undefined : Math.round(this.from), to: whole ? undefined : Math.round(this.to) });
    };
    timeline.select = function (instruction, how) {
      select.call(this, instruction, how);
      choose(rows.get(this.data.instructions.source[instruction]), true);
      note({ i: instruction, line: undefined });
    };
    timeline.clear = function () {
      clear.call(this);
      choose(null);
      note({ i: undefined, line: undefined });
    };
    for (const row of source ? source.querySelectorAll("tr.timed") : []) {
      row.querySelector("button").addEventListener("click", () => showLine(timeline, row));
    }
    const number = (name) => (asked.has(name) ? Number(asked.get(name)) : NaN);
    const [from, to, i, line] = ["from", "to", "i", "line"].map(number);
    if (Number.isInteger(i) && i >= 0 && i < timeline.data.count) timeline.select(i);
    else if (rows.has(line)) showLine(timeline, rows.get(line));
    if (from < to) timeline.show(from, to);
    root.dataset.beside = "yes";
  }

  new MutationObserver(begin).observe(root, { attributes: true, attributeFilter: ["data-ready"] });
  begin();
})();
