// SPDX-License-Identifier: Apache-2.0
// A timeline that can be moved, searched and followed. Its parts are in timeline_data.js and timeline_paint.js.
"use strict";

class Timeline {
  constructor(root) {
    this.root = root;
    this.find = (name) => root.querySelector(name);
    this.view = this.find(".view");
    this.canvas = this.find("canvas");
    this.tip = this.find(".tip");
    this.detail = this.find(".detail");
    this.hover = this.selected = this.layer = this.chain = this.marks = null;
    this.mode = ""; // what the marks are: "", "critical", "search" or "chain"
    this.fingers = new Map();
    this.slowest = 0; // milliseconds of the slowest frame, for tests
  }

  async start() {
    const text = (name) => this.find("script" + name).textContent;
    const header = JSON.parse(text(".data-header"));
    const bars = await unpackColumns(text(".data-bars"), header.columns[0]);
    this.data = new TimelineData(header, bars);
    this.painter = new TimelinePainter(this.canvas, this.data);
    this.peers = [];
    [this.from, this.to] = [0, (this.limit = this.data.total)];
    this.painter.theme();
    this.listen();
    this.resize();
    performance.mark("timeline-drawn");
    await new Promise((resolve) => setTimeout(resolve)); // let the picture reach the screen
    this.data.take(await unpackColumns(text(".data-instructions"), header.columns[1]));
    this.redraw();
    performance.mark("timeline-ready");
    this.root.dataset.ready = "yes";
  }

  // -- drawing ------------------------------------------------------------------------------------------------------
  resize() {
    if (this.painter.width === this.view.clientWidth) return;
    this.painter.resize(this.view.clientWidth);
    this.draw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const began = performance.now();
    this.painter.draw(this);
    this.slowest = Math.max(this.slowest, performance.now() - began);
  }

  // -- moving -------------------------------------------------------------------------------------------------------
  show(from, to) {
    const span = Math.min(Math.max(to - from, 60), this.limit);
    this.from = Math.min(Math.max(from, 0), this.limit - span);
    this.to = this.from + span;
    this.redraw();
    for (const peer of this.peers) {
      if (peer.from === this.from && peer.to === this.to) continue;
      [peer.from, peer.to] = [this.from, this.to];
      peer.redraw();
    }
  }

  // Timelines that are compared show the same stretch of time; those that share a unit can.
  join(peers) {
    const same = peers.filter((peer) => peer !== this && peer.data.header.unit === this.data.header.unit);
    this.peers = same;
    this.limit = Math.max(this.data.total, ...same.map((peer) => peer.data.total));
    this.to = this.limit;
    this.redraw();
  }

  all() {
    this.show(0, this.limit);
  }

  zoom(factor, x = this.painter.gutter + this.painter.room / 2) {
    const at = this.painter.time(x);
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(pixels) {
    const time = (pixels * (this.to - this.from)) / this.painter.room;
    this.show(this.from + time, this.to + time);
  }

  // Bring a bar into sight; zoom in when it is too narrow to be seen among its neighbours.
  reveal({ row, i }, close) {
    const middle = row.start[i] + row.length[i] / 2, span = this.to - this.from;
    const wanted = close || row.length[i] * 400 < span ? Math.max(row.length[i] * 30, 2000 / this.data.header.unit) : span;
    const inside = row.start[i] >= this.from + span / 20 && row.start[i] + row.length[i] <= this.to - span / 20;
    if (inside && wanted === span) return this.redraw();
    this.show(middle - wanted / 2, middle + wanted / 2);
  }

  // -- marking ------------------------------------------------------------------------------------------------------
  mark(mode, marks) {
    this.mode = marks ? mode : "";
    this.marks = marks;
    this.layer = marks && this.data.filtered(marks);
    this.find("[data-do=critical]")?.setAttribute("aria-pressed", String(this.mode === "critical"));
    this.redraw();
  }

  critical() {
    if (!this.data.instructions) return;
    const on = this.mode !== "critical";
    this.chain = null;
    this.mark("critical", on ? this.data.critical : null);
  }

  search(query) {
    if (!this.data.instructions) return;
    this.found = null;
    const out = this.find("output");
    if (!query.trim()) {
      out.textContent = "";
      this.mark("", null);
      return;
    }
    const marks = this.data.search(query), found = [];
    for (let i = 0; i < marks.length; i++) if (marks[i] && this.data.barRow[i] >= 0) found.push(i);
    this.found = found;
    this.match = -1;
    this.chain = null;
    out.textContent = `${found.length.toLocaleString("en")} of ${marks.length.toLocaleString("en")}`;
    this.mark("search", marks);
  }

  // The next or previous match, in order of the program.
  step(by) {
    if (!this.found || !this.found.length) return;
    const start = this.match < 0 && by < 0 ? 0 : this.match;
    this.match = (start + by + this.found.length) % this.found.length;
    this.find("output").textContent = `${(this.match + 1).toLocaleString("en")} of ${this.found.length.toLocaleString("en")}`;
    this.select(this.found[this.match], { keep: true });
  }

  // -- selecting ----------------------------------------------------------------------------------------------------
  // Show an instruction and the chain of those that held it back. keep: leave the marks of a search alone. stay: do not
  // move to it.
  select(instruction, { keep = false, stay = false } = {}) {
    const at = this.data.where(instruction);
    this.instruction = instruction;
    this.selected = at;
    this.chain = this.data.chainTo(instruction);
    if (!keep) {
      const marks = new Uint8Array(this.data.count);
      for (const i of this.chain) marks[i] = 1;
      this.mark("chain", marks);
    }
    this.describeSelected();
    if (at && !stay) this.reveal(at);
    else this.redraw();
  }

  clear() {
    this.instruction = undefined;
    this.selected = this.chain = this.hover = this.found = null;
    this.find("input").value = this.find("output").textContent = "";
    this.detail.hidden = true;
    this.tip.style.visibility = "hidden";
    this.mark("", null);
  }

  // To what the selected instruction waited for (back) or to the first that waited for it.
  follow(back) {
    if (this.instruction === undefined) return;
    const next = back ? this.chain[1] : this.data.waitingFor(this.instruction)[0];
    if (next !== undefined) this.select(next);
  }

  // The bar next to the selected one in its row; the first one in sight when nothing is selected.
  neighbour(by) {
    if (!this.data.instructions) return;
    let at = this.selected;
    if (!at) {
      const row = this.data.rows.find((r) => r.group === "engine" && r.start.length);
      if (!row) return;
      at = { row, i: Math.min(firstAfter(row, this.from), row.start.length - 1) - by };
    }
    const i = at.i + by;
    if (i >= 0 && i < at.row.start.length) this.select(at.row.ref[i]);
  }

  // The row above or below, at the same time.
  other(by) {
    if (!this.selected) return this.neighbour(1);
    const rows = this.data.rows.filter((r) => (r.group === "engine" || r.group === "dma") && r.start.length);
    const row = rows[rows.indexOf(this.selected.row) + by];
    if (row) this.select(row.ref[Math.min(firstAfter(row, this.selected.row.start[this.selected.i]), row.start.length - 1)]);
  }

  // -- words --------------------------------------------------------------------------------------------------------
  describeSelected() {
    const { data, instruction: i, chain } = this, at = this.selected;
    this.detail.hidden = false;
    this.detail.replaceChildren();
    const close = add(this.detail, "button", "×");
    close.className = "close";
    close.ariaLabel = "close";
    close.onclick = () => this.clear();
    this.facts(this.detail, at || { row: { lane: "engine", name: "no time" }, i: 0 }, i);
    const links = add(this.detail, "div", "");
    links.className = "links";
    const link = (text, to) => (add(links, "button", text).onclick = () => this.select(to));
    if (chain.length > 1) link(`← it waited for ${data.opcode(chain[1])}`, chain[1]);
    const after = data.waitingFor(i);
    for (const next of after.subarray(0, 4)) link(`${data.opcode(next)} waited for it →`, next);
    if (after.length > 4) add(links, "span", `and ${(after.length - 4).toLocaleString("en")} more`);
    add(this.detail, "p", this.story()).className = "say";
  }

  // The chain in a sentence: how long it is, and whose time it is.
  story() {
    const { data, chain } = this, spent = new Map();
    for (let n = 0; n < chain.length; n++) {
      const at = data.where(chain[n]), next = n ? data.startOf(chain[n - 1]) : at ? at.row.start[at.i] + at.row.length[at.i] : 0;
      const lane = at ? at.row.lane : "sync";
      spent.set(lane, (spent.get(lane) || 0) + Math.max(0, next - data.startOf(chain[n])));
    }
    const total = [...spent.values()].reduce((a, b) => a + b, 0) || 1;
    const parts = [...spent].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([lane, t]) => `${lane} ${Math.round((100 * t) / total)} %`);
    return `Held back by a chain of ${(chain.length - 1).toLocaleString("en")} instructions, each by the one before: from one start to the next ${parts.join(", ")}.`;
  }

  facts(parent, { row, i }, ref) {
    const { data } = this, { header } = data, tick = header.unit, facts = [];
    const title = add(parent, "b", row.start ? this.painter.nameOf(row, i) : data.opcode(ref));
    if (row.start) facts.push(["when", `${timeText(row.start[i] * tick)}, for ${timeText(row.length[i] * tick)}`]);
    if (row.lane === "steps") return this.list(parent, facts);
    if (row.lane === "calls") {
      const [, count, place] = header.calls[ref];
      facts.push(["instructions", count.toLocaleString("en")], ["line", header.places[place]]);
      return this.list(parent, facts);
    }
    const [, flops, bytes] = header.ops[data.instructions.op[ref]], [place, line] = data.source(ref);
    title.textContent += row.lane === "critical" ? " on the critical path" : ` on ${row.name}`;
    add(parent, "code", data.text(ref));
    if (row.lane === "critical") facts.push(["spent on", data.kindNames[row.kind[i]]]);
    const rate = row.lane === "dma" && row.length[i] ? `, ${+((bytes / (row.length[i] * tick)) * 1e3).toPrecision(3)} GB/s` : "";
    if (bytes) facts.push(["moves", sizeText(bytes) + rate]);
    if (flops) facts.push(["does", `${flops.toLocaleString("en")} FLOP`]);
    facts.push(["graph op", data.label(ref)], ["line", place]);
    if (line) facts.push(["", line]);
    facts.push(["waited for", this.reasons(ref)]);
    return this.list(parent, facts);
  }

  list(parent, facts) {
    const list = add(parent, "dl", "");
    for (const [name, value] of facts) {
      add(list, "dt", name);
      add(list, "dd", value);
    }
  }

  reasons(i) {
    const { data } = this, found = [], blocker = data.blocker(i), held = data.held(i), buffer = data.buffer(i);
    const why = { operand: "to write", reuse: "to read", overwrite: "to write before it writes", issue: "on the same engine", port: "at the memory port" };
    if (blocker !== NONE) {
      const cause = data.cause(i), name = data.opcode(blocker), tensor = buffer ? ` ${buffer}` : "";
      if (cause === "operand") found.push(`${name} ${why.operand}${tensor || " its operand"}`);
      else if (cause === "reuse") found.push(`${name} to be done with${tensor || " a tile"}, which this overwrites`);
      else if (cause === "overwrite") found.push(`${name} ${why.overwrite}${tensor ? `: ${tensor}` : ""}`);
      else found.push(`${name} ${why[cause] || ""}`);
    }
    if (held !== NONE) found.push(`${data.opcode(held)} on the queue or its DMA engines`);
    return found.join("; ") || "nothing";
  }

  // -- the pointer --------------------------------------------------------------------------------------------------
  // The bar at a place, or the nearest one within a few pixels.
  at(x, y) {
    const row = this.data.rows.find((r) => y >= r.y && y < r.y + r.height);
    if (!row || x < this.painter.gutter || !row.start.length) return null;
    const time = this.painter.time(x), near = (4 * (this.to - this.from)) / this.painter.room, i = firstAfter(row, time);
    const after = i < row.start.length ? Math.max(0, row.start[i] - time) : Infinity;
    const before = i > 0 ? time - row.start[i - 1] - row.length[i - 1] : Infinity;
    if (Math.min(after, before) > near) return null;
    return { row, i: after <= before ? i : i - 1 };
  }

  point(event) {
    const x = event.offsetX, y = event.offsetY, found = this.data.instructions && this.at(x, y);
    const memory = this.data.occupancy.find((m) => y >= m.y && y < m.y + MEMORY);
    if (!found && !memory) return this.leave();
    const same = found && this.hover && this.hover.row === found.row && this.hover.i === found.i;
    if (!same) {
      this.hover = found;
      this.tip.replaceChildren();
      if (found) this.facts(this.tip, found, found.row.ref[found.i]);
      else this.tipOfMemory(memory, this.painter.time(x));
      this.redraw();
    }
    const box = this.tip.getBoundingClientRect(), left = event.clientX + 16, top = event.clientY + 18;
    this.tip.style.left = Math.max(12, Math.min(left, window.innerWidth - box.width - 12)) + "px";
    this.tip.style.top = (top + box.height > window.innerHeight - 8 ? Math.max(8, event.clientY - box.height - 14) : top) + "px";
    this.tip.style.visibility = "visible";
  }

  tipOfMemory(memory, time) {
    const used = this.painter.bytesAt(memory, time);
    add(this.tip, "b", memory.name.toUpperCase());
    this.list(this.tip, [
      ["when", timeText(time * this.data.header.unit)],
      ["in use", `${sizeText(used)}, ${((100 * used) / memory.capacity).toFixed(1)} % of ${sizeText(memory.capacity)}`],
    ]);
  }

  leave() {
    this.tip.style.visibility = "hidden";
    if (this.hover) this.redraw();
    this.hover = null;
  }

  inMap(y) {
    return y > this.painter.height - MAP - 4;
  }

  centre(x) {
    const span = this.to - this.from >= this.data.total ? this.data.total / 12 : this.to - this.from;
    const at = ((x - this.painter.gutter) / this.painter.room) * this.data.total;
    this.show(at - span / 2, at + span / 2);
  }

  // -- events -------------------------------------------------------------------------------------------------------
  listen() {
    const on = (name, act, options) => this.canvas.addEventListener(name, act, options);
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", (event) => this.fingers.delete(event.pointerId));
    on("pointerleave", () => this.leave());
    on("dblclick", () => this.all());
    this.view.addEventListener("keydown", (event) => this.key(event));
    const input = this.find("input");
    let timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.search(input.value), 120);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.clear();
      if (event.key !== "Enter") return;
      clearTimeout(timer);
      if (!this.found) this.search(input.value);
      this.step(event.shiftKey ? -1 : 1);
    });
    const acts = { all: () => this.all(), critical: () => this.critical(), next: () => this.step(1), previous: () => this.step(-1) };
    for (const button of this.root.querySelectorAll("[data-do]")) button.onclick = acts[button.dataset.do];
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.painter.theme();
      this.redraw();
    });
    new ResizeObserver(() => this.resize()).observe(this.view);
  }

  wheel(event) {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) this.pan(event.deltaX || event.deltaY);
    else if (event.deltaY > 0 && this.to - this.from >= this.limit) return; // nothing to zoom out of: the page scrolls
    else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), event.offsetX);
    event.preventDefault();
    this.point(event);
  }

  press(event) {
    this.fingers.set(event.pointerId, event.offsetX);
    this.pressed = { x: event.offsetX, y: event.offsetY };
    this.canvas.setPointerCapture(event.pointerId);
    if (this.inMap(event.offsetY)) this.centre(event.offsetX);
  }

  move(event) {
    const before = this.fingers.get(event.pointerId);
    if (before === undefined) return this.point(event);
    if (this.fingers.size === 2) {
      const [other] = [...this.fingers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      const apart = Math.max(20, Math.abs(event.offsetX - other));
      this.zoom(Math.max(20, Math.abs(before - other)) / apart, (event.offsetX + other) / 2);
    } else if (this.inMap(this.pressed.y)) this.centre(event.offsetX);
    else if (event.offsetX !== before) this.pan(before - event.offsetX);
    this.fingers.set(event.pointerId, event.offsetX);
    this.leave();
  }

  release(event) {
    this.fingers.delete(event.pointerId);
    const still = this.pressed && Math.hypot(event.offsetX - this.pressed.x, event.offsetY - this.pressed.y) < 4;
    if (!still || this.inMap(event.offsetY) || !this.data.instructions) return;
    const found = this.at(event.offsetX, event.offsetY);
    if (!found) return this.instruction === undefined ? undefined : this.clear();
    if (found.row.light) this.show(found.row.start[found.i] - found.row.length[found.i] / 10, found.row.start[found.i] + found.row.length[found.i] * 1.1);
    else this.select(found.row.ref[found.i], { stay: true });
    this.leave();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = this.painter.room / 6;
    const acts = {
      w: () => this.zoom(0.7), "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), s: () => this.zoom(1.4), "-": () => this.zoom(1.4),
      a: () => this.pan(-far), ArrowLeft: () => this.pan(-far), d: () => this.pan(far), ArrowRight: () => this.pan(far),
      0: () => this.all(), Home: () => this.all(), c: () => this.critical(), b: () => this.follow(true), f: () => this.follow(false),
      "[": () => this.neighbour(-1), "]": () => this.neighbour(1), ArrowUp: () => this.other(-1), ArrowDown: () => this.other(1),
      n: () => this.step(1), N: () => this.step(-1), Escape: () => this.clear(), "/": () => this.find("input").focus(),
      Enter: () => this.selected && this.reveal(this.selected, true),
    };
    if (!acts[event.key]) return;
    acts[event.key]();
    event.preventDefault();
  }
}

function add(parent, name, text) {
  const element = document.createElement(name);
  element.textContent = text;
  parent.append(element);
  return element;
}

const timelines = [...document.querySelectorAll(".timeline")].map((root) => (root.timeline = new Timeline(root)));
Promise.all(timelines.map((timeline) => timeline.start())).then(() => {
  const linked = timelines.filter((timeline) => timeline.root.closest(".linked"));
  for (const timeline of linked) timeline.join(linked);
});
