// SPDX-License-Identifier: Apache-2.0
// Lanes of ranks on a canvas: as many DOM nodes for 64 lanes as for two, and bars are drawn only where they are seen.
"use strict";

class RankLanes {
  constructor(root) {
    this.root = root;
    this.view = root.querySelector(".view");
    this.canvas = root.querySelector("canvas");
    this.said = root.querySelector("output");
    this.data = JSON.parse(root.querySelector("script").textContent);
    this.lane = this.data.lanes.length > 24 ? 22 : 34;
    this.top = 22;
    [this.from, this.to] = [0, this.data.total];
    this.hover = null;
    this.slowest = 0; // milliseconds of the slowest frame, for tests
    this.listen();
    this.resize();
    root.dataset.ready = "yes";
  }

  // -- drawing ----------------------------------------------------------------------------------------------------
  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.view.clientWidth;
    this.left = this.width < 520 ? 74 : 118;
    this.height = this.top + this.lane * this.data.lanes.length + 4;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.cssText = `display:block;width:${this.width}px;height:${this.height}px`;
    this.paper = this.canvas.getContext("2d");
    this.paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  colour(value) {
    return this.style.getPropertyValue(value.slice(4, -1)).trim() || "#888";
  }

  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * (this.width - this.left - 8);
  }

  draw() {
    const began = performance.now();
    const paper = this.paper;
    this.style = getComputedStyle(this.view);
    const ink = this.style.color;
    paper.clearRect(0, 0, this.width, this.height);
    paper.font = "12px system-ui, sans-serif";
    this.axis(ink);
    paper.save();
    paper.beginPath();
    paper.rect(this.left, 0, this.width - this.left, this.height);
    paper.clip();
    const purposes = this.data.purposes.map(([, value]) => this.colour(value));
    const [computes, waits] = [this.colour("var(--tensor)"), this.colour("var(--edge)")];
    const half = (this.lane - 6) / 2;
    this.data.lanes.forEach((lane, index) => {
      const y = this.top + index * this.lane + 2;
      this.spans(lane.waits, y, 2 * half + 1, waits);
      this.spans(lane.busy, y, half, computes);
      for (const bar of lane.sent) this.bar(bar[0], bar[1], y + half + 1, half, purposes[bar[2]]);
    });
    this.links(ink);
    paper.restore();
    this.names(ink);
    this.slowest = Math.max(this.slowest, performance.now() - began);
  }

  spans(flat, y, height, colour) {
    const near = (0.6 * (this.to - this.from)) / this.width; // gaps that no screen shows
    for (let i = 0; i < flat.length; ) {
      const start = flat[i];
      let end = flat[i + 1];
      for (i += 2; i < flat.length && flat[i] - end < near; i += 2) end = flat[i + 1];
      this.bar(start, end, y, height, colour);
    }
  }

  bar(start, end, y, height, colour) {
    if (end < this.from || start > this.to) return;
    const left = Math.max(this.x(start), this.left);
    this.paper.fillStyle = colour;
    this.paper.fillRect(left, y, Math.max(Math.min(this.x(end), this.width) - left, 0.6), height);
  }

  links(ink) {
    const paper = this.paper;
    const middle = (lane) => this.top + lane * this.lane + this.lane * 0.72;
    let free = -Infinity; // lines closer than this to the last one would be a wall
    [paper.strokeStyle, paper.fillStyle, paper.lineWidth] = [ink, ink, 1];
    for (const [start, end, first, last, arrow] of this.data.links) {
      if (end < this.from || start > this.to) continue;
      const [x, until] = [this.x(start), this.x(end)];
      if (!arrow && x < free) continue;
      if (!arrow) free = x + 3;
      paper.globalAlpha = arrow ? 0.75 : 0.3;
      paper.beginPath();
      paper.moveTo(x, middle(first));
      paper.lineTo(arrow ? until : x, middle(last));
      paper.stroke();
      if (arrow) this.head(x, middle(first), until, middle(last));
    }
    paper.globalAlpha = 1;
  }

  head(x, y, toX, toY) {
    const turn = Math.atan2(toY - y, toX - x);
    const paper = this.paper;
    paper.beginPath();
    paper.moveTo(toX, toY);
    for (const side of [-0.45, 0.45]) paper.lineTo(toX - 7 * Math.cos(turn + side), toY - 7 * Math.sin(turn + side));
    paper.fill();
  }

  names(ink) {
    const paper = this.paper;
    [paper.fillStyle, paper.textAlign, paper.textBaseline] = [ink, "left", "middle"];
    this.data.lanes.forEach((lane, index) => {
      const y = this.top + (index + 0.5) * this.lane;
      paper.fillText(lane.name, 2, y, this.left - 8);
    });
  }

  axis(ink) {
    const paper = this.paper;
    [paper.fillStyle, paper.strokeStyle, paper.textAlign, paper.textBaseline] = [ink, ink, "center", "middle"];
    const marks = Math.max(2, Math.floor((this.width - this.left) / 130));
    const step = this.round((this.to - this.from) / marks);
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const x = this.x(time);
      if (x > this.width - 30) continue;
      paper.fillText(this.time(time, step), Math.max(x, this.left + 14), 9);
      paper.globalAlpha = 0.12;
      paper.fillRect(x, this.top - 4, 1, this.height);
      paper.globalAlpha = 1;
    }
  }

  round(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
  }

  time(ps, step) {
    const [size, unit] = this.data.total >= 1e9 ? [1e9, "ms"] : this.data.total >= 1e6 ? [1e6, "µs"] : [1e3, "ns"];
    return `${(ps / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size))))} ${unit}`;
  }

  // -- moving -----------------------------------------------------------------------------------------------------
  zoom(factor, at = (this.from + this.to) / 2) {
    const width = Math.min(this.data.total, Math.max(1000, (this.to - this.from) * factor));
    const share = (at - this.from) / (this.to - this.from);
    this.show(at - share * width, width);
  }

  show(from, width) {
    this.from = Math.max(0, Math.min(from, this.data.total - width));
    this.to = this.from + width;
    this.draw();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / (this.width - this.left - 8);
    return [this.from + share * (this.to - this.from), Math.floor((event.clientY - box.top - this.top) / this.lane)];
  }

  tell(event) {
    const [time, index] = this.at(event);
    const lane = this.data.lanes[index];
    const bar = lane && lane.sent.find(([start, end]) => start <= time && time <= end);
    const length = (span) => this.time(span, span / 100 || 1);
    this.said.textContent = bar
      ? `${lane.name}: ${bar[3]}, ${this.data.purposes[bar[2]][0]}, ${length(bar[1] - bar[0])}`
      : lane ? lane.name : "";
  }

  listen() {
    const keys = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.zoom(Infinity),
      ArrowLeft: () => this.show(this.from - (this.to - this.from) / 5, this.to - this.from),
      ArrowRight: () => this.show(this.from + (this.to - this.from) / 5, this.to - this.from),
    };
    this.view.addEventListener("keydown", (event) => {
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); }
    });
    this.view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && Math.abs(event.deltaY) < Math.abs(event.deltaX)) return;
      this.zoom(Math.exp(event.deltaY * 0.002), this.at(event)[0]);
      event.preventDefault();
    }, { passive: false });
    let held = null;
    this.view.addEventListener("pointerdown", (event) => { held = [event.clientX, this.from]; });
    window.addEventListener("pointerup", () => { held = null; });
    this.view.addEventListener("pointermove", (event) => {
      if (held) {
        const width = this.to - this.from;
        this.show(held[1] - ((event.clientX - held[0]) / (this.width - this.left - 8)) * width, width);
      }
      this.tell(event);
    });
    const does = { in: () => this.zoom(0.5), out: () => this.zoom(2), all: () => this.zoom(Infinity) };
    for (const button of this.root.querySelectorAll("button")) {
      button.addEventListener("click", () => does[button.dataset.do]());
    }
    new ResizeObserver(() => this.width !== this.view.clientWidth && this.resize()).observe(this.view);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
}

for (const root of document.querySelectorAll(".ranks")) root.lanes = new RankLanes(root);
