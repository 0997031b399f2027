// SPDX-License-Identifier: Apache-2.0
// The data of a timeline: what profile/view.py packed, and what can be asked of it. All times are in ticks.
"use strict";

const NONE = -1;

class TimelineData {
  constructor(header, bars) {
    this.header = header;
    this.total = header.total;
    this.instructions = null; // see `take`
    this.rows = header.rows.map((row, number) => this.row(row, bars, number));
    this.occupancy = header.occupancy.map((memory, number) => ({
      ...memory, time: bars[`time ${number}`], bytes: bars[`bytes ${number}`],
    }));
    this.kindNames = header.kinds;
  }

  row(described, bars, number) {
    const start = bars[`start ${number}`], length = bars[`length ${number}`];
    const ref = bars[`ref ${number}`], kind = bars[`kind ${number}`] || null;
    return { ...described, number, start, length, ref, kind, tint: this.tints(described.lane, ref, kind), covered: null };
  }

  // The colours of bars, as indices of COLOURS, in rows that have several.
  tints(lane, ref, kind) {
    const { kinds, calls, labels } = this.header, number = (name) => COLOURS.indexOf(name);
    if (lane === "critical") {
      const tints = kinds.map(number);
      return kind.map((k) => tints[k]);
    }
    if (lane === "steps") return new Uint8Array(ref.length).fill(number("accent"));
    if (lane !== "calls") return null;
    const tints = labels.map((label) => number(CALLS[label.split(":")[0]] || "sync"));
    return Uint8Array.from(ref, (call) => tints[calls[call][0]]);
  }

  // The columns of the instructions, which arrive after the bars.
  take(columns) {
    this.instructions = columns;
    this.count = columns.text.length;
    this.firstOfCall = new Uint32Array(this.header.calls.length + 1);
    this.header.calls.forEach((call, i) => (this.firstOfCall[i + 1] = this.firstOfCall[i] + call[1]));
    this.barRow = new Int16Array(this.count).fill(-1); // where an instruction is drawn: its transfer if it has one
    this.bar = new Uint32Array(this.count);
    for (const row of this.rows) {
      if (row.lane === "calls" || row.lane === "critical" || row.lane === "steps") continue;
      for (let i = 0; i < row.ref.length; i++) {
        this.barRow[row.ref[i]] = row.number;
        this.bar[row.ref[i]] = i;
      }
    }
    this.critical = new Uint8Array(this.count);
    for (const i of columns.chain) this.critical[i] = 1;
  }

  // -- single instructions ------------------------------------------------------------------------------------------
  opcode(i) {
    return this.header.ops[this.instructions.op[i]][0];
  }

  text(i) {
    return this.header.texts[this.instructions.text[i]];
  }

  callOf(i) {
    let low = 0, high = this.firstOfCall.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.firstOfCall[middle] <= i) low = middle;
      else high = middle;
    }
    return low;
  }

  label(i) {
    return this.header.labels[this.header.calls[this.callOf(i)][0]];
  }

  source(i) {
    return this.header.sources[this.instructions.source[i]];
  }

  buffer(i) {
    const number = this.instructions.buffer[i];
    return number ? this.header.buffers[number - 1] : "";
  }

  blocker(i) {
    const back = this.instructions.blocker[i];
    return back ? i - signed(back) : NONE;
  }

  held(i) {
    const back = this.instructions.held[i];
    return back ? i - signed(back) : NONE;
  }

  cause(i) {
    return this.header.causes[this.instructions.cause[i]];
  }

  where(i) {
    return this.barRow[i] < 0 ? null : { row: this.rows[this.barRow[i]], i: this.bar[i] };
  }

  startOf(i) {
    const at = this.where(i);
    return at ? at.row.start[at.i] : 0;
  }

  // The chain of what held back instruction `i`, last to first: for a transfer that waited for another on its queue or
  // DMA engines that one, else whoever let it start. As profile/critical.py walks.
  chainTo(i) {
    const found = [];
    let byIssue = false;
    while (i !== NONE && found.length < this.count) {
      found.push(i);
      const held = byIssue ? NONE : this.held(i);
      if (held !== NONE) i = held;
      else {
        byIssue = this.cause(i) === "issue";
        i = this.blocker(i);
      }
    }
    return found;
  }

  // The instructions that waited for `i` last.
  waitingFor(i) {
    if (!this.followers) this.followers = this.index();
    return this.followers.list.subarray(this.followers.first[i], this.followers.first[i + 1]);
  }

  index() {
    const first = new Uint32Array(this.count + 1), list = new Uint32Array(this.count);
    const { blocker, held } = this.instructions;
    const back = (i) => signed(held[i] || blocker[i]);
    for (let i = 0; i < this.count; i++) if (back(i)) first[i - back(i) + 1]++;
    for (let i = 0; i < this.count; i++) first[i + 1] += first[i];
    const next = first.slice();
    for (let i = 0; i < this.count; i++) if (back(i)) list[next[i - back(i)]++] = i;
    return { first, list };
  }

  // -- search -------------------------------------------------------------------------------------------------------
  // Marks of the instructions that match: every word, anywhere in what the instruction is. "op:", "line:" and
  // "graph:" in front of a word look only at opcodes, source lines, or ops of the graph.
  search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const marks = new Uint8Array(this.count).fill(1), { text, source, op } = this.instructions;
    for (const word of words) {
      const [, field, wanted] = word.match(/^(?:(op|line|graph):)?(.*)$/);
      const has = (value) => (value.toLowerCase().includes(wanted) ? 1 : 0);
      const off = (list) => new Uint8Array(list.length);
      const any = !field, { header } = this;
      const texts = any ? Uint8Array.from(header.texts, has) : off(header.texts);
      const ops = any || field === "op" ? Uint8Array.from(header.ops, (o) => has(o[0])) : off(header.ops);
      const sources = any || field === "line" ? Uint8Array.from(header.sources, (s) => has(s.join(" "))) : off(header.sources);
      const labels = any || field === "graph" ? Uint8Array.from(header.labels, has) : off(header.labels);
      header.calls.forEach((call, number) => {
        const labelled = labels[call[0]];
        for (let i = this.firstOfCall[number]; i < Math.min(this.firstOfCall[number + 1], this.count); i++) {
          marks[i] &= labelled | texts[text[i]] | ops[op[i]] | sources[source[i]];
        }
      });
    }
    return marks;
  }

  // The rows again with only the bars whose instructions are marked.
  filtered(marks) {
    return this.rows.map((row) => {
      if (row.lane === "calls" || row.lane === "steps") return null;
      let count = 0;
      for (let i = 0; i < row.ref.length; i++) count += marks[row.ref[i]];
      const start = new Uint32Array(count), length = new Uint32Array(count), ref = new Uint32Array(count);
      const [kind, tint] = [row.kind, row.tint].map((column) => column && new Uint8Array(count));
      for (let i = 0, at = 0; at < count; i++) {
        if (!marks[row.ref[i]]) continue;
        [start[at], length[at], ref[at]] = [row.start[i], row.length[i], row.ref[i]];
        if (kind) [kind[at], tint[at]] = [row.kind[i], row.tint[i]];
        at++;
      }
      return { ...row, start, length, ref, kind, tint, covered: null };
    });
  }
}

// How much of the time the first i bars of a row cover, for every i: what makes a row of a million bars as cheap to draw
// as one of a thousand.
function coveredBy(row) {
  if (!row.covered) {
    row.covered = new Float64Array(row.length.length + 1);
    for (let i = 0; i < row.length.length; i++) row.covered[i + 1] = row.covered[i] + row.length[i];
  }
  return row.covered;
}

// The first index from `low` on whose value is at least `wanted`: steps that double, then halves.
function lowerBound(values, wanted, low = 0) {
  let step = 1, high = low;
  while (high < values.length && values[high] < wanted) {
    low = high + 1;
    high += step;
    step *= 2;
  }
  high = Math.min(high, values.length);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The first bar of a row that ends after `time`.
function firstAfter(row, time) {
  let i = lowerBound(row.start, time);
  while (i > 0 && row.start[i - 1] + row.length[i - 1] > time) i--;
  return i;
}

async function unpackColumns(text, described) {
  const packed = atob(text), bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const found = {};
  let at = 0;
  for (const [name, size, count, differences] of described) {
    const column = new { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[size](buffer, at, count);
    found[name] = differences ? summed(column) : column;
    at += Math.ceil((size * count) / 4) * 4;
  }
  return found;
}

function summed(column) {
  const found = new Uint32Array(column.length);
  for (let i = 0, value = 0; i < column.length; i++) {
    value += signed(column[i]);
    found[i] = value;
  }
  return found;
}

function signed(code) {
  return code & 1 ? -(code + 1) / 2 : code / 2;
}
