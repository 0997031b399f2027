// SPDX-License-Identifier: Apache-2.0
// The timeline of one step on a canvas. The data's layout is described in profile/view.py.
"use strict";

(async () => {
  const NONE = 0xffffffff;
  const HEIGHTS = { calls: 19, critical: 19, dma: 9 }; // of rows by lane; engines have ENGINE
  const CALLS = { dot: "tensor", attention: "gpsimd", rows: "vector" }; // whose colour a call has, by its kind
  const ENGINE = 28, GAP = 8, AXIS = 26, MAP = 34;
  const view = document.getElementById("timeline-view");
  if (!view) return;
  const canvas = view.querySelector("canvas"), tip = document.getElementById("tip");
  const context = canvas.getContext("2d");
  const header = JSON.parse(document.getElementById("timeline-header").textContent);
  const data = await unpack(document.getElementById("timeline-data").textContent, header.columns);
  const rows = layOut(header.rows, data);
  const barOf = barsOfInstructions(rows, data);
  const height = rows[rows.length - 1].y + rows[rows.length - 1].height + GAP + MAP;

  let from = 0, to = header.total; // what is shown, in ticks
  let width = 0, gutter = 0, colours = {}, coverage = null;
  let hover = null, onlyCritical = false, waiting = false;

  // -- data ---------------------------------------------------------------------------------------------------------
  async function unpack(text, columns) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const found = {};
    let at = 0;
    for (const [name, count] of columns) {
      found[name] = new Uint32Array(buffer, at, count);
      at += 4 * count;
    }
    return found;
  }

  function layOut(described, data) {
    let first = 0, y = AXIS, before = "";
    return described.map((row) => {
      const start = data.start.subarray(first, first + row.count);
      for (let i = 1; i < start.length; i++) start[i] += start[i - 1];
      if (before && row.lane !== before && !(isEngine(row.lane) && isEngine(before))) y += GAP;
      before = row.lane;
      const placed = {
        ...row, start, first, y, height: HEIGHTS[row.lane] || ENGINE,
        length: data.length.subarray(first, first + row.count),
        ref: data.ref.subarray(first, first + row.count),
        kind: data.kind.subarray(first, first + row.count),
      };
      first += row.count;
      y += placed.height;
      return placed;
    });
  }

  function isEngine(lane) {
    return !(lane in HEIGHTS);
  }

  // Where an instruction is drawn: its transfer if it has one, else on its engine.
  function barsOfInstructions(rows, data) {
    const row = new Int16Array(data.text.length).fill(-1), bar = new Uint32Array(data.text.length);
    rows.forEach((r, number) => {
      if (r.lane === "calls" || r.lane === "critical") return;
      for (let i = 0; i < r.ref.length; i++) {
        row[r.ref[i]] = number;
        bar[r.ref[i]] = i;
      }
    });
    return { row, bar };
  }

  // The first bar of a row that ends after `time`.
  function firstAfter(row, time) {
    let low = 0, high = row.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.start[middle] + row.length[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // -- drawing ------------------------------------------------------------------------------------------------------
  function resize() {
    if (width === view.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    width = view.clientWidth;
    gutter = width < 600 ? 64 : 96;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    coverage = null;
    draw();
  }

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const names = ["panel", "ink", "soft", "line", "faint", "latency",
      "tensor", "vector", "scalar", "gpsimd", "sync", "dma"];
    colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    redraw();
  }

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function scale() {
    return (width - gutter - 8) / (to - from);
  }

  function draw() {
    context.clearRect(0, 0, width, height);
    context.textBaseline = "middle";
    drawAxis();
    rows.forEach((row, number) => drawName(row, rows[number - 1]));
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter - 8, height);
    context.clip();
    for (const row of rows) {
      if (!onlyCritical || row.lane === "critical" || row.lane === "calls") drawRow(row, 1, false);
      else {
        drawRow(row, 0.2, false);
        drawRow(row, 1, true);
      }
    }
    if (hover) drawHover();
    context.restore();
    drawMap();
  }

  function drawAxis() {
    const span = to - from, room = (width - gutter) / 110;
    let step = 10 ** Math.floor(Math.log10((span * header.unit) / room));
    while ((span * header.unit) / step > room) step *= step.toString().startsWith("2") ? 2.5 : 2;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colours.soft;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    const unit = unitFor(step);
    const last = to * header.unit;
    for (let mark = Math.ceil((from * header.unit) / step) * step; mark <= last; mark += step) {
      const x = Math.round(gutter + (mark / header.unit - from) * scale()) + 0.5;
      context.beginPath();
      context.moveTo(x, AXIS - 6);
      context.lineTo(x, height - MAP - GAP);
      context.stroke();
      context.textAlign = x > width - 60 ? "right" : "left";
      context.fillText(+(mark / unit[0]).toPrecision(9) + " " + unit[1], x + (x > width - 60 ? -4 : 4), 10);
    }
  }

  function unitFor(ps) {
    return [[1e12, "s"], [1e9, "ms"], [1e6, "µs"], [1e3, "ns"], [1, "ps"]].find(([size]) => ps >= size) || [1, "ps"];
  }

  function time(ticks) {
    const ps = ticks * header.unit, [size, unit] = unitFor(ps);
    return (ps / size).toPrecision(ps / size >= 100 ? 4 : 3).replace(/\.?0+$/, (zeros) => (zeros[0] === "." ? "" : zeros)) + " " + unit;
  }

  function drawName(row, above) {
    const again = above && above.lane === row.lane;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colours.ink;
    context.textAlign = "left";
    const name = { dma: gutter < 90 ? "DMA" : "DMA queues", critical: gutter < 90 ? "critical" : "critical path" }[row.lane] || row.name;
    if (!again) context.fillText(name, 8, row.y + Math.max(row.height, 14) / 2, gutter - 12);
    context.fillStyle = colours.faint;
    context.fillRect(gutter, row.y + 1, width - gutter - 8, row.height - 2);
  }

  function colourOf(row, i) {
    if (row.lane === "calls") return colours[CALLS[header.labels[header.calls[row.ref[i]][0]].split(":")[0]] || "sync"];
    if (row.lane === "critical") return colours[header.kinds[row.kind[i]]];
    return colours[row.lane];
  }

  // Bars narrower than a pixel are added up per pixel and drawn as one: in the colour that has most of the pixel, and
  // fainter where little of it is covered.
  function drawRow(row, alpha, critical) {
    const k = scale(), y = row.y + 1, h = row.height - 2, light = row.lane === "calls" ? 0.4 * alpha : alpha;
    const inPixel = new Map();
    let pixel = -1;
    const flush = () => {
      if (!inPixel.size) return;
      let covered = 0, most = 0;
      for (const [colour, w] of inPixel) {
        covered += w;
        if (w >= most) [most, context.fillStyle] = [w, colour];
      }
      context.globalAlpha = light * (0.14 + 0.86 * Math.min(1, covered));
      context.fillRect(pixel, y, 1, h);
      inPixel.clear();
    };
    for (let i = firstAfter(row, from); i < row.start.length && row.start[i] < to; i++) {
      if (critical && !data.critical[row.ref[i]]) continue;
      const x = gutter + (row.start[i] - from) * k, w = row.length[i] * k, colour = colourOf(row, i);
      if (w < 1.5) {
        if (Math.floor(x) !== pixel) flush();
        pixel = Math.floor(x);
        inPixel.set(colour, (inPixel.get(colour) || 0) + w);
        continue;
      }
      flush();
      context.globalAlpha = light;
      context.fillStyle = colour;
      const left = Math.max(x, gutter - 1), right = Math.min(x + w, width);
      context.fillRect(left, y, right - left - (w > 3 ? 0.7 : 0), h);
      if (right - left > 30 && h > 12 && alpha === 1) drawLabel(row, i, left, right, y + h / 2);
    }
    flush();
    context.globalAlpha = 1;
  }

  function drawLabel(row, i, left, right, y) {
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    const room = Math.floor((right - left - 10) / 5.9), text = nameOf(row, i);
    if (room < 3) return;
    context.globalAlpha = 1;
    context.fillStyle = row.lane === "calls" ? colours.ink : colours.panel;
    context.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, left + 5, y + 0.5);
  }

  function nameOf(row, i) {
    const ref = row.ref[i];
    if (row.lane === "calls") return header.labels[header.calls[ref][0]];
    if (row.lane === "critical" && header.kinds[row.kind[i]] === "latency") return "latency";
    return header.ops[data.op[ref]][0];
  }

  function drawHover() {
    const { row, i } = hover, k = scale();
    const x = gutter + (row.start[i] - from) * k, w = Math.max(row.length[i] * k, 2);
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.5;
    context.strokeRect(x - 0.75, row.y + 0.25, w + 1.5, row.height - 0.5);
    if (row.lane === "calls") return;
    for (const name of ["blocker", "held"]) {
      const cause = data[name][row.ref[i]];
      if (cause === NONE || barOf.row[cause] < 0) continue;
      const other = rows[barOf.row[cause]], j = barOf.bar[cause];
      const x2 = gutter + (other.start[j] + other.length[j] - from) * k, y2 = other.y + other.height / 2;
      context.beginPath();
      context.moveTo(x2, y2);
      context.bezierCurveTo((x + x2) / 2, y2, (x + x2) / 2, row.y + row.height / 2, x, row.y + row.height / 2);
      context.stroke();
      context.strokeRect(x2 - Math.max(other.length[j] * k, 2) - 0.75, other.y + 0.25, Math.max(other.length[j] * k, 2) + 1.5, other.height - 0.5);
    }
  }

  // -- the map of the whole step, below -----------------------------------------------------------------------------
  function cover() {
    const columns = Math.max(1, Math.floor(width - gutter - 8)), k = columns / header.total, lanes = {};
    for (const row of rows) {
      if (row.lane === "calls" || row.lane === "critical" || row.lane === "sync") continue;
      const sum = (lanes[row.lane] ||= new Float32Array(columns));
      for (let i = 0; i < row.start.length; i++) {
        let a = row.start[i] * k;
        const b = Math.min((row.start[i] + row.length[i]) * k, columns);
        while (a < b) {
          const next = Math.min(Math.floor(a) + 1, b);
          sum[Math.floor(a)] += next - a;
          a = next;
        }
      }
    }
    return lanes;
  }

  function drawMap() {
    coverage ||= cover();
    const lanes = Object.entries(coverage), top = height - MAP, h = (MAP - 6) / lanes.length;
    lanes.forEach(([lane, sum], number) => {
      context.fillStyle = colours[lane];
      for (let x = 0; x < sum.length; x++) {
        if (!sum[x]) continue;
        context.globalAlpha = Math.min(1, 0.15 + 0.85 * sum[x]);
        context.fillRect(gutter + x, top + number * h, 1, h - 1);
      }
    });
    context.globalAlpha = 1;
    const k = (width - gutter - 8) / header.total, a = gutter + from * k, b = gutter + to * k;
    context.fillStyle = colours.panel;
    context.globalAlpha = 0.72;
    context.fillRect(gutter, top - 2, a - gutter, MAP);
    context.fillRect(b, top - 2, width - 8 - b, MAP);
    context.globalAlpha = 1;
    context.strokeStyle = colours.ink;
    context.lineWidth = 1;
    context.strokeRect(a + 0.5, top - 1.5, Math.max(b - a, 3) - 1, MAP - 2);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colours.soft;
    context.textAlign = "left";
    context.fillText("whole step", 8, top + MAP / 2 - 3, gutter - 12);
  }

  // -- moving -------------------------------------------------------------------------------------------------------
  function show(start, end) {
    const span = Math.min(Math.max(end - start, 60), header.total);
    from = Math.min(Math.max(start, 0), header.total - span);
    to = from + span;
    redraw();
  }

  function zoom(factor, x) {
    const at = from + (x - gutter) / scale();
    show(at - (at - from) * factor, at + (to - at) * factor);
  }

  function pan(pixels) {
    show(from + pixels / scale(), to + pixels / scale());
  }

  function inMap(y) {
    return y > height - MAP - 4;
  }

  canvas.addEventListener("wheel", (event) => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) pan(event.deltaX || event.deltaY);
    else if (event.deltaY > 0 && to - from >= header.total) return; // nothing left to zoom out of: the page scrolls
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), event.offsetX);
    event.preventDefault();
    point(event);
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
    if (inMap(event.offsetY)) centre(event.offsetX);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) return point(event);
    if (fingers.size === 2) {
      const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      const apart = Math.max(20, Math.abs(event.offsetX - other));
      zoom(Math.max(20, Math.abs(before - other)) / apart, (event.offsetX + other) / 2);
    } else if (inMap(event.offsetY)) centre(event.offsetX);
    else pan(before - event.offsetX);
    fingers.set(event.pointerId, event.offsetX);
    leave();
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      if (name === "pointerup") point(event);
    });
  }
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("dblclick", () => show(0, header.total));
  view.addEventListener("keydown", (event) => {
    const middle = gutter + (width - gutter) / 2, far = (width - gutter) / 6;
    const moves = {
      w: () => zoom(0.7, middle), "+": () => zoom(0.7, middle), s: () => zoom(1.4, middle), "-": () => zoom(1.4, middle),
      a: () => pan(-far), ArrowLeft: () => pan(-far), d: () => pan(far), ArrowRight: () => pan(far),
      0: () => show(0, header.total), Home: () => show(0, header.total),
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey) return;
    moves[event.key]();
    event.preventDefault();
  });
  document.getElementById("timeline-all").addEventListener("click", () => show(0, header.total));
  const toggle = document.getElementById("timeline-critical");
  toggle.addEventListener("click", () => {
    onlyCritical = !onlyCritical;
    toggle.setAttribute("aria-pressed", String(onlyCritical));
    redraw();
  });

  function centre(x) {
    const span = to - from >= header.total ? header.total / 12 : to - from;
    const at = ((x - gutter) / (width - gutter - 8)) * header.total;
    show(at - span / 2, at + span / 2);
  }

  // -- what is under the pointer ------------------------------------------------------------------------------------
  function point(event) {
    const found = find(event.offsetX, event.offsetY);
    if (!found) return leave();
    if (!hover || hover.row !== found.row || hover.i !== found.i) {
      hover = found;
      describe(found);
      redraw();
    }
    const box = tip.getBoundingClientRect(), x = event.clientX + 16, y = event.clientY + 18;
    tip.style.left = Math.max(12, Math.min(x, window.innerWidth - box.width - 12)) + "px";
    tip.style.top = (y + box.height > window.innerHeight - 8 ? Math.max(8, event.clientY - box.height - 14) : y) + "px";
    tip.style.visibility = "visible";
  }

  function leave() {
    tip.style.visibility = "hidden";
    if (hover) redraw();
    hover = null;
  }

  // The bar at a place, or the nearest one within a few pixels.
  function find(x, y) {
    const row = rows.find((r) => y >= r.y && y < r.y + r.height);
    if (!row || x < gutter) return null;
    const at = from + (x - gutter) / scale(), near = 4 / scale();
    const i = firstAfter(row, at);
    const after = i < row.start.length ? Math.max(0, row.start[i] - at) : Infinity;
    const before = i > 0 ? at - row.start[i - 1] - row.length[i - 1] : Infinity;
    if (Math.min(after, before) > near) return null;
    return { row, i: after <= before ? i : i - 1 };
  }

  function describe({ row, i }) {
    tip.replaceChildren();
    const ref = row.ref[i];
    const title = add(tip, "b", nameOf(row, i));
    const facts = [["when", `${time(row.start[i])}, for ${time(row.length[i])}`]];
    if (row.lane === "calls") {
      const [, count, place] = header.calls[ref];
      facts.push(["instructions", count.toLocaleString("en")], ["line", place]);
    } else {
      const [, flops, bytes] = header.ops[data.op[ref]], [place, line] = header.sources[data.source[ref]];
      title.textContent += row.lane === "dma" ? ` on ${row.name}` : ` on ${row.lane === "critical" ? "the critical path" : row.lane}`;
      add(tip, "code", header.texts[data.text[ref]]);
      if (row.lane === "critical") facts.push(["spent on", header.kinds[row.kind[i]]]);
      if (bytes) facts.push(["moves", size(bytes) + (row.lane === "dma" ? `, ${+((bytes / (row.length[i] * header.unit)) * 1e3).toPrecision(3)} GB/s` : "")]);
      if (flops) facts.push(["does", `${flops.toLocaleString("en")} FLOP`]);
      facts.push(["op", header.labels[header.calls[data.call[ref]][0]]], ["line", place]);
      if (line) facts.push(["", line]);
      facts.push(["waited for", reasons(ref)]);
    }
    const list = add(tip, "dl", "");
    for (const [name, value] of facts) {
      add(list, "dt", name);
      add(list, "dd", value);
    }
  }

  function reasons(ref) {
    const found = [];
    const name = (i) => header.ops[data.op[i]][0];
    if (data.blocker[ref] !== NONE) found.push(`${name(data.blocker[ref])} (${header.causes[data.cause[ref]]})`);
    if (data.held[ref] !== NONE) found.push(`${name(data.held[ref])} on the DMA engines`);
    return found.join(", ") || "nothing";
  }

  function size(bytes) {
    for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (bytes >= unit) return +(bytes / unit).toPrecision(3) + " " + name;
    }
    return bytes + " B";
  }

  function add(parent, name, text) {
    const element = document.createElement(name);
    element.textContent = text;
    parent.append(element);
    return element;
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  theme();
  resize();
  window.addEventListener("resize", resize);
})();
