// Notation: every symbol with its meaning and this run's shape, every operation in its order, and where the parameters
// lie in the one buffer that holds them all. Each name leads to its numbers.
import { anchor, dim, div, emptyCanvas, figure, fill, inks } from "./dom.js";
import { make, on, plural, remark, scrolling, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { barTable, factList, headings, share100 } from "./numbers.js";
import { formulaOf } from "./text.js";
import { OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfNotation = {
  id: "notation", title: "Notation", about: "What is everything called, and what shape does it have?",
  open: (glass) => new NotationView(glass),
};

/** Colours of the groups of parameters: ink, and how much of it. */
/** @type {[string, number][]} */
const INKS = [["accent", 1], ["mlp", 1], ["accent", 0.5], ["mlp", 0.5], ["dim", 0.8], ["dim", 0.4]];

/** The height of the strip of parameters. */
const STRIP = 44;

/** @param {number[]} shape */
const sizeOf = (shape) => shape.reduce((all, n) => all * n, 1);

class NotationView extends OpenView {
  symbols = scrolling("Symbols");
  operations = scrolling("Operations");
  canvas = make("canvas", { "aria-hidden": "true" });
  frame = div("ladder can strip-of");
  line = make("p", { class: "cell-line" });
  letters = remark();
  which = remark("…");
  element = div(
    "notation", this.notice, make("h2", "Parameters, in memory order"), this.frame, this.line,
    make("h2", "Operations"), this.which, this.operations, make("h2", "Symbols"), this.letters, this.symbols,
  );
  /** @type {{name: string, shape: number[], group: string}[]} */
  params = this.model.params;
  /** @type {{group: string, count: number}[]} */
  groups = this.model.groups;
  /** Where each parameter begins, and how many numbers it has. */
  extents = extentsOf(this.params);
  total = this.params.reduce((sum, { shape }) => sum + sizeOf(shape), 0);
  chosen = 0;
  /** The one under the pointer; -1: none. */
  hovered = -1;
  told = "";

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const { frame } = this;
    const open = (/** @type {number} */ n) => glass.go({ v: "table", n: this.params[n]?.name ?? "", at: "" }, "new");
    this.grid = liveGrid({
      label: "Parameters in memory",
      size: () => [1, this.params.length],
      at: () => [0, this.chosen],
      move: (_, n) => {
        this.chosen = n;
        this.draw();
        this.grid.tell();
      },
      open: () => open(this.chosen),
      words: (_, n) => this.sentence(n),
    });
    frame.append(this.canvas, this.grid.element);
    const hover = (/** @type {number} */ n) => {
      this.hovered = n;
      this.draw();
    };
    on(frame, "pointermove", (event) => hover(event.pointerType === "touch" ? -1 : this.under(event)));
    on(frame, "pointerleave", () => hover(-1));
    on(frame, "click", (event) => {
      const next = Math.max(0, this.under(event));
      // a first tap tells, a second opens; a mouse has told already
      if (this.hovered >= 0 || next === this.chosen) open(next);
      this.chosen = next;
      this.draw();
    });
    this.onResize(frame, () => this.draw());
    this.drawNumbers();
  }

  /** The colour of a group of parameters: ink, and how much of it. @param {string} group @returns {[string, number]} */
  colour(group) {
    return INKS[Math.max(0, this.groups.findIndex((each) => each.group === group)) % INKS.length] ?? ["dim", 1];
  }

  /** @param {number} n */
  sentence(n) {
    const [param, extent] = [this.params[n], this.extents[n]];
    if (!param || !extent) return "";
    const { from, count } = extent;
    const numbers = `${plural(count, "number")} from ${figure(from, 0)}, ${share100(count / this.total)}`;
    return `${param.name} [${param.shape.join(" × ")}], ${param.group}: ${numbers}`;
  }

  draw() {
    const { frame, canvas, hovered, chosen, extents } = this;
    const wide = frame.clientWidth;
    if (!wide) return;
    sizeCanvas(canvas, wide, STRIP);
    const context = emptyCanvas(canvas);
    if (!context) return;
    const ink = inks(frame);
    const scale = wide / this.total;
    extents.forEach(({ from, count }, n) => {
      const [x, width] = [from * scale, count * scale];
      const [name, strength] = this.colour(this.params[n]?.group ?? "");
      context.globalAlpha = strength;
      context.fillStyle = ink(name);
      context.fillRect(x, 0, Math.max(width - (width > 4 ? 1 : 0), 0.3), STRIP);
      context.globalAlpha = 1;
      if (n !== hovered) return;
      context.strokeStyle = ink("ink");
      context.strokeRect(x + 0.5, 0.5, Math.max(2, width - 2), STRIP - 1);
    });
    const extent = extents[chosen];
    if (extent) {
      this.grid.put({ left: extent.from * scale, top: 0, width: Math.max(4, extent.count * scale), height: STRIP });
    }
    this.line.textContent = this.sentence(hovered >= 0 ? hovered : chosen);
  }

  /** @param {MouseEvent} event */
  under(event) {
    const { left, width } = this.frame.getBoundingClientRect();
    const number = ((event.clientX - left) / Math.max(1, width)) * this.total;
    return this.extents.findLastIndex(({ from }) => from <= number);
  }

  get key() {
    return `${this.run.id} ${this.glass.layer}`;
  }

  /** @param {any} listing */
  useListing({ tensors, params, ops }) {
    const entries = new Map([...tensors, ...params].map((entry) => [entry.name, entry]));
    this.letters.textContent = lettersOf(this.model, this.run.tokens.length);
    this.drawSymbols(entries);
    this.drawOperations(ops, entries);
    this.told = this.key;
  }

  /**
   * A name that leads to its table, if there is such a tensor; in the block that is shown, without the block.
   * @param {string} name @param {Map<string, any>} entries
   */
  linked(name, entries) {
    const brief = name.replace(`blocks.${this.glass.layer}.`, "");
    const link = anchor(this.glass.link({ v: "table", n: name, at: "" }), brief);
    return make("code", { class: "whole", title: name }, entries.has(name) ? link : dim(brief));
  }

  /** @param {Map<string, any>} entries */
  drawSymbols(entries) {
    const rows = this.model.notation.map((/** @type {any} */ { name: anyName, symbol, meaning, letters }) => {
      const name = anyName.replace(/^blocks\.\d+/, `blocks.${this.glass.layer}`);
      const entry = entries.get(name);
      const shape = dim(entry ? entry.shape.join(" × ") : "");
      return make(
        "tr", make("th", { scope: "row", class: "symbol" }, ...formulaOf(entry?.symbol ?? symbol)),
        make("td", meaning, make("br"), this.linked(name, entries)),
        make("td", { class: "whole" }, letters, make("br"), shape),
      );
    });
    const head = headings(["symbol", "what it is", "shape"]);
    fill(this.symbols, make("table", { class: "plain-table" }, head, make("tbody", ...rows)));
  }

  /** @param {any[]} ops @param {Map<string, any>} entries */
  drawOperations(ops, entries) {
    const { layer } = this.glass;
    const { depth } = this.run;
    const shown = ops.map((op, n) => ({ ...op, line: n + 1 })).filter((op) => {
      const block = blockOf(op);
      return block < 0 || block === layer || op.op === "classify" || /^ln_final/.test(op.out);
    });
    const rows = shown.map(({ op, line, formula, in: inputs, out, shape }) => {
      const operands = inputs.filter((/** @type {string} */ name) => entries.has(name));
      const links = operands.flatMap((/** @type {string} */ name, /** @type {number} */ n) =>
        [n ? make("br") : "", this.linked(name, entries)]);
      return make(
        "tr", make("th", { scope: "row" }, `${line}`),
        make("td", dim(op), make("br"), make("span", { class: "symbol" }, ...formulaOf(formula ?? ""))),
        make("td", this.linked(out, entries), make("br"), make("span", { class: "dim whole" }, shape.join(" × "))),
        make("td", ...links),
      );
    });
    const block = `of the ${depth} blocks, which are alike, block ${layer} is shown`;
    const alike = `; ${block}. Names without a block are of this one; the keys [ and ] go to others.`;
    this.which.textContent = `${plural(ops.length, "line")}${depth > 1 ? alike : ""}`;
    const head = headings(["line", "operation", "makes", "of"]);
    fill(this.operations, make("table", { class: "plain-table" }, head, make("tbody", ...rows)));
  }

  drawNumbers() {
    const { groups, model } = this;
    const rows = groups.map(({ group, count }) =>
      ({ name: make("span", { title: group }, group), value: count, text: figure(count, 0) }));
    const table = barTable("Parameters by group", rows, Math.max(...groups.map(({ count }) => count)));
    table.querySelectorAll(".bar").forEach((bar, n) => {
      const [name, strength] = this.colour(groups[n]?.group ?? "");
      if (!(bar instanceof HTMLElement)) return;
      bar.style.setProperty("background", `var(--${name})`);
      bar.style.setProperty("opacity", `${strength}`);
    });
    const config = Object.entries(model.config).filter(([, value]) => value !== null && typeof value !== "object");
    const facts = factList(config.map(([name, value]) => [name, `${value}`]));
    fill(
      this.numbers, make("section", table, make("p", { class: "sum" }, `sum ${figure(model.parameters, 0)}`)),
      make("section", make("h2", "Configuration"), facts),
    );
  }

  update() {
    this.draw();
    if (this.run.done && this.told !== this.key) this.load();
  }

  tensor() {
    return { name: this.params[this.chosen]?.name ?? "", at: [] };
  }
}

/** @param {{shape: number[]}[]} params */
function extentsOf(params) {
  let begin = 0;
  return params.map(({ shape }) => {
    const [from, count] = [begin, sizeOf(shape)];
    begin += count;
    return { from, count };
  });
}

/** The block whose tensors an op reads, since what it makes may be the next one's; -1: none. @param {any} op */
function blockOf({ op, in: inputs, out }) {
  if (op === "embed") return -1;
  const blocks = [...inputs, out].map((name) => /^blocks\.(\d+)\./.exec(name)?.[1]);
  return Number(blocks.find((block) => block !== undefined) ?? -1);
}

/** What the letters of shapes stand for. @param {any} model @param {number} count of tokens */
function lettersOf({ d_model, d_embed, n_head, d_head, d_ff, n_kv_head, vocab_size, config }, count) {
  const keyHeads = n_kv_head && n_kv_head !== n_head ? `K = ${n_kv_head} heads of keys and values` : "";
  const values = config.d_v && config.d_v !== d_head ? `D_v = ${config.d_v} a value` : "";
  return [
    "B = 1 text", `T = ${count} tokens`, `C = ${d_model} wide`, d_embed && `E = ${d_embed} wide the tables`,
    `H = ${n_head} heads`, `D = ${d_head} a head`,
    values, `F = ${d_ff} inside the MLP`, `V = ${figure(vocab_size, 0)} tokens known`, keyHeads,
  ].filter((part) => part).join(", ");
}
