// SPDX-License-Identifier: Apache-2.0
// Drawing a timeline on a canvas: rows of bars, the memories beneath them, and the map of the whole step.
"use strict";

const AXIS = 26, GAP = 9, MAP = 36, MEMORY = 40, EDGE = 8;
const HEIGHTS = { steps: 22, calls: 18, critical: 20 }; // of rows by lane; engines have ENGINE, DMA queues less
const ENGINE = 26;
const CALLS = { dot: "tensor", attention: "gpsimd", rows: "vector" }; // whose colour a call has, by its kind
const SHADES = 24; // of how much of a pixel is covered
const COLOURS = ["panel", "ink", "soft", "line", "faint", "latency", "tensor", "vector", "scalar", "gpsimd", "sync", "cc", "dma",
  "accent", "reference"];

class TimelinePainter {
  constructor(canvas, data) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.data = data;
    this.width = this.gutter = 0;
    this.colours = {};
    this.sums = new Float64Array(COLOURS.length);
    this.map = null; // the overview, drawn once
    this.place();
  }

  // -- layout -------------------------------------------------------------------------------------------------------
  place() {
    const queues = this.data.rows.filter((row) => row.lane === "dma").length;
    const dma = queues > 40 ? 4 : queues > 20 ? 6 : 9;
    let y = AXIS, before = "";
    for (const row of this.data.rows) {
      const group = row.lane in HEIGHTS || row.lane === "dma" ? row.lane : "engine";
      if (before && group !== before) y += GAP;
      before = group;
      row.group = group;
      row.y = y;
      row.height = HEIGHTS[row.lane] || (row.lane === "dma" ? dma : ENGINE);
      row.light = group === "calls" || group === "steps";
      y += row.height;
    }
    for (const memory of this.data.occupancy) {
      memory.y = y + GAP;
      y = memory.y + MEMORY;
    }
    this.bottom = y + GAP;
    this.height = this.bottom + MAP;
  }

  resize(width) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.gutter = width < 600 ? 66 : 112;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = this.height + "px";
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.map = null;
  }

  theme() {
    this.map = null;
    const style = getComputedStyle(document.documentElement);
    for (const name of COLOURS) this.colours[name] = style.getPropertyValue("--" + name).trim();
  }

  get room() {
    return this.width - this.gutter - EDGE;
  }

  x(time) {
    return this.gutter + ((time - this.from) * this.room) / (this.to - this.from);
  }

  time(x) {
    return this.from + ((x - this.gutter) * (this.to - this.from)) / this.room;
  }

  // -- everything ---------------------------------------------------------------------------------------------------
  // state: from, to; layer: rows of marked bars or null; hover and selected: {row, i} or null; chain: instructions.
  draw(state) {
    const c = this.context;
    Object.assign(this, { from: state.from, to: state.to });
    c.clearRect(0, 0, this.width, this.height);
    c.textBaseline = "middle";
    this.axis();
    this.names();
    c.save();
    c.beginPath();
    c.rect(this.gutter, 0, this.room, this.height);
    c.clip();
    this.data.rows.forEach((row, number) => {
      const marked = state.layer && state.layer[number];
      this.row(row, state.layer && !row.light ? 0.16 : 1, !state.layer || row.light);
      if (marked) this.row(marked, 1, true);
    });
    if (state.chain) this.links(state.chain);
    for (const memory of this.data.occupancy) this.memory(memory);
    for (const at of [state.selected, state.hover]) if (at) this.mark(at, at === state.selected);
    c.restore();
    this.whole();
  }

  axis() {
    const c = this.context, unit = this.data.header.unit, span = (this.to - this.from) * unit, marks = this.room / 110;
    let step = 10 ** Math.floor(Math.log10(span / marks));
    step *= [1, 2, 5, 10].find((factor) => span / (step * factor) <= marks);
    const [scale, name] = unitFor(step);
    c.font = "11px system-ui, sans-serif";
    c.lineWidth = 1;
    for (let mark = Math.ceil((this.from * unit) / step) * step; mark <= this.to * unit; mark += step) {
      const x = Math.round(this.x(mark / unit)) + 0.5, right = x > this.width - 64;
      c.strokeStyle = this.colours.line;
      c.beginPath();
      c.moveTo(x, AXIS - 6);
      c.lineTo(x, this.bottom - GAP);
      c.stroke();
      c.fillStyle = this.colours.soft;
      c.textAlign = right ? "right" : "left";
      c.fillText(`${+(mark / scale).toPrecision(9)} ${name}`, x + (right ? -4 : 4), 10);
    }
  }

  names() {
    const c = this.context, short = this.gutter < 90;
    c.textAlign = "left";
    let before = null;
    for (const row of this.data.rows) {
      c.fillStyle = this.colours.faint;
      c.fillRect(this.gutter, row.y + 1, this.room, row.height - 1.5);
      const first = !before || before.group !== row.group || (row.group === "engine") || row.name !== before.name;
      const fits = row.height >= 11 || !before || before.group !== row.group || row.y - this.named >= 11;
      if (first && fits && (row.group !== "calls" || !before || before.group !== "calls")) {
        c.font = row.group === "dma" ? "10px system-ui, sans-serif" : "12px system-ui, sans-serif";
        c.fillStyle = row.group === "dma" ? this.colours.soft : this.colours.ink;
        const name = row.lane === "critical" && short ? "critical" : row.name;
        c.fillText(name, 8, row.y + row.height / 2, this.gutter - 12);
        this.named = row.y;
      }
      before = row;
    }
    for (const memory of this.data.occupancy) {
      c.font = "12px system-ui, sans-serif";
      c.fillStyle = this.colours.ink;
      c.fillText(memory.name.toUpperCase(), 8, memory.y + 12, this.gutter - 12);
      c.font = "10px system-ui, sans-serif";
      c.fillStyle = this.colours.soft;
      c.fillText(sizeText(memory.capacity), 8, memory.y + 27, this.gutter - 12);
      c.fillStyle = this.colours.faint;
      c.fillRect(this.gutter, memory.y, this.room, MEMORY);
    }
  }

  // -- bars ---------------------------------------------------------------------------------------------------------
  // Bars of less than a pixel and a half are drawn together, per pixel, fainter where they cover little of it.
  row(row, alpha, labels) {
    const c = this.context, k = this.room / (this.to - this.from), y = row.y + 1, h = row.height - 1.5;
    const strength = (row.light ? 0.42 : 1) * alpha, covered = row.tint ? null : coveredBy(row);
    const { start, length } = row, count = start.length, wide = 1.5 / k;
    let run = { shade: 0, colour: "", from: 0, to: 0 };
    const flush = () => {
      if (run.shade) {
        c.globalAlpha = strength * (0.16 + (0.84 * run.shade) / SHADES);
        c.fillStyle = run.colour;
        c.fillRect(run.from, y, run.to - run.from, h);
      }
      run = { shade: 0, colour: "", from: 0, to: 0 };
    };
    for (let i = firstAfter(row, this.from); i < count && start[i] < this.to; ) {
      if (length[i] >= wide) {
        flush();
        c.globalAlpha = strength;
        this.wide(row, i++, k, y, h, labels && alpha === 1);
        continue;
      }
      const pixel = Math.floor(this.gutter + (start[i] - this.from) * k);
      const edge = this.from + (pixel + 1 - this.gutter) / k;
      let end = lowerBound(start, edge, i), colour, ticks;
      if (length[end - 1] >= wide) end--;
      if (covered) [colour, ticks] = [this.colours[row.lane], covered[end] - covered[i]];
      else [colour, ticks] = this.mixture(row, i, end);
      const shade = Math.max(1, Math.ceil(Math.min(1, ticks * k) * SHADES));
      if (shade !== run.shade || colour !== run.colour || pixel !== run.to) {
        flush();
        run = { shade, colour, from: pixel, to: pixel + 1 };
      } else run.to = pixel + 1;
      i = end;
    }
    flush();
    c.globalAlpha = 1;
  }

  wide(row, i, k, y, h, labels) {
    const c = this.context, x = this.gutter + (row.start[i] - this.from) * k, w = row.length[i] * k;
    const left = Math.max(x, this.gutter - 1), right = Math.min(x + w, this.width);
    c.fillStyle = this.colourOf(row, i);
    c.fillRect(left, y, right - left - (w > 4 ? 0.8 : 0), h);
    if (labels && right - left > 30 && h > 12 && (row.lane === "calls" || row.lane === "steps" || this.data.instructions)) {
      this.label(row, i, left, right, y + h / 2);
    }
  }

  // The colour that has most of bars [i, end), and how much all of them cover.
  mixture(row, i, end) {
    const sums = this.sums.fill(0), { tint, length } = row;
    let ticks = 0, most = tint[i];
    for (; i < end; i++) {
      sums[tint[i]] += length[i];
      ticks += length[i];
    }
    for (let t = 0; t < sums.length; t++) if (sums[t] > sums[most]) most = t;
    return [this.colours[COLOURS[most]], ticks];
  }

  colourOf(row, i) {
    return this.colours[row.tint ? COLOURS[row.tint[i]] : row.lane];
  }

  label(row, i, left, right, y) {
    const c = this.context, space = Math.floor((right - left - 10) / 5.9), text = this.nameOf(row, i);
    if (space < 3) return;
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "left";
    c.globalAlpha = 1;
    c.fillStyle = row.light ? this.colours.ink : this.colours.panel;
    c.fillText(text.length > space ? text.slice(0, space - 1) + "…" : text, left + 5, y + 0.5);
  }

  nameOf(row, i) {
    if (row.lane === "steps") return this.data.header.steps[row.ref[i]];
    if (row.lane === "calls") return this.data.header.labels[this.data.header.calls[row.ref[i]][0]];
    if (row.lane === "critical" && this.data.kindNames[row.kind[i]] === "latency") return "latency";
    return this.data.opcode(row.ref[i]);
  }

  // -- what is pointed at, and its chain ----------------------------------------------------------------------------
  mark({ row, i }, strong) {
    const c = this.context, x = this.x(row.start[i]), w = Math.max(this.x(row.start[i] + row.length[i]) - x, 2);
    c.strokeStyle = this.colours.ink;
    c.lineWidth = strong ? 2 : 1.5;
    c.strokeRect(x - 0.75, row.y + 0.25, w + 1.5, row.height - 0.5);
  }

  // Lines along a chain of instructions, last to first, as far as it can be seen.
  links(chain) {
    const c = this.context, shown = [];
    for (let n = 0; n < chain.length && shown.length < 900; n++) {
      const at = this.data.where(chain[n]);
      if (!at || at.row.start[at.i] > this.to) continue;
      shown.push(at);
      if (at.row.start[at.i] + at.row.length[at.i] < this.from) break;
    }
    if (shown.length < 2 || shown.length >= 900) return;
    c.strokeStyle = this.colours.ink;
    c.lineWidth = 1.2;
    c.globalAlpha = 0.75;
    c.beginPath();
    for (let n = 0; n + 1 < shown.length; n++) {
      const [to, from] = [shown[n], shown[n + 1]];
      const x1 = this.x(from.row.start[from.i] + from.row.length[from.i]), y1 = from.row.y + from.row.height / 2;
      const x2 = this.x(to.row.start[to.i]), y2 = to.row.y + to.row.height / 2, bend = Math.max(8, Math.abs(x2 - x1) / 2);
      c.moveTo(x1, y1);
      c.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    }
    c.stroke();
    c.globalAlpha = 1;
  }

  // -- the memories -------------------------------------------------------------------------------------------------
  memory(memory) {
    const c = this.context, { time, bytes, capacity } = memory, base = memory.y + MEMORY;
    const pixels = Math.ceil(this.room), k = (this.to - this.from) / this.room;
    c.fillStyle = this.colours.reference;
    c.globalAlpha = 0.65;
    c.beginPath();
    c.moveTo(this.gutter, base);
    let i = Math.max(0, lowerBound(time, this.from + 1) - 1);
    for (let pixel = 0; pixel <= pixels; pixel++) {
      const until = this.from + (pixel + 1) * k;
      let most = bytes[i] || 0;
      for (; i + 1 < time.length && time[i + 1] <= until; i++) most = Math.max(most, bytes[i + 1]);
      const y = base - Math.min(1, most / capacity) * (MEMORY - 2);
      c.lineTo(this.gutter + pixel, y);
      c.lineTo(this.gutter + pixel + 1, y);
    }
    c.lineTo(this.width, base);
    c.fill();
    c.globalAlpha = 1;
  }

  bytesAt(memory, time) {
    return memory.bytes[Math.max(0, lowerBound(memory.time, time + 1) - 1)] || 0;
  }

  // -- the map of the whole step, below -----------------------------------------------------------------------------
  whole() {
    const c = this.context, top = this.height - MAP, k = this.room / this.data.total;
    this.map ||= this.overview();
    c.drawImage(this.map, 0, top, this.width, MAP);
    const a = this.gutter + this.from * k, b = this.gutter + Math.min(this.to, this.data.total) * k;
    c.globalAlpha = 0.72;
    c.fillStyle = this.colours.panel;
    c.fillRect(this.gutter, top - 2, a - this.gutter, MAP);
    c.fillRect(b, top - 2, this.width - EDGE - b, MAP);
    c.globalAlpha = 1;
    c.strokeStyle = this.colours.ink;
    c.lineWidth = 1;
    c.strokeRect(a + 0.5, top - 1.5, Math.max(b - a, 3) - 1, MAP - 2);
    c.font = "12px system-ui, sans-serif";
    c.fillStyle = this.colours.soft;
    c.textAlign = "left";
    c.fillText("overview", 8, top + MAP / 2 - 3, this.gutter - 12);
  }

  overview() {
    const image = document.createElement("canvas"), ratio = this.canvas.width / this.width, lanes = Object.entries(this.cover());
    image.width = this.canvas.width;
    image.height = Math.round(MAP * ratio);
    const c = image.getContext("2d"), h = (MAP - 6) / Math.max(1, lanes.length);
    c.scale(ratio, ratio);
    lanes.forEach(([lane, sum], number) => {
      c.fillStyle = this.colours[lane];
      for (let x = 0; x < sum.length; x++) {
        if (!sum[x]) continue;
        c.globalAlpha = Math.min(1, 0.15 + 0.85 * sum[x]);
        c.fillRect(this.gutter + x, number * h, 1, h - 1);
      }
    });
    return image;
  }

  // How much of each pixel's time each lane is at work, from 0 to 1.
  cover() {
    const columns = Math.max(1, Math.floor(this.room)), k = columns / this.data.total, lanes = {};
    for (const row of this.data.rows) {
      if (row.light || row.lane === "critical" || row.lane === "sync") continue;
      const sum = new Float32Array(columns), all = (lanes[row.lane] ||= new Float32Array(columns)), covered = coveredBy(row);
      for (let x = 0, i = 0; x < columns; x++) {
        const end = lowerBound(row.start, (x + 1) / k, i);
        sum[x] += (covered[end] - covered[i]) * k;
        i = end;
        if (sum[x] > 1 && x + 1 < columns) [sum[x + 1], sum[x]] = [sum[x] - 1, 1]; // a bar goes on in the next pixel
        all[x] = Math.min(1, all[x] + sum[x]);
      }
    }
    return lanes;
  }
}

function unitFor(ps) {
  return [[1e12, "s"], [1e9, "ms"], [1e6, "µs"], [1e3, "ns"], [1, "ps"]].find(([size]) => ps >= size) || [1, "ps"];
}

function timeText(ps) {
  const [size, unit] = unitFor(ps), value = ps / size;
  return `${+value.toPrecision(value >= 100 ? 4 : 3)} ${unit}`;
}

function sizeText(bytes) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= unit) return `${+(bytes / unit).toPrecision(3)} ${name}`;
  }
  return bytes + " B";
}
