// Notation: every symbol with its meaning and this run's shape, every operation in its order, and where the parameters lie in
// the one buffer that holds them all. Each name leads to its numbers.
import { emptyCanvas, figure, inks, make, plural, sizeCanvas } from "./dom.js";
import { loader } from "./answer.js";
import { liveGrid } from "./grid.js";
import { barTable, share100 } from "./numbers.js";
import { formulaOf } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfNotation = { id: "notation", title: "Notation", about: "What is everything called, and what shape does it have?", open: notationView };

/** Colours of the groups of parameters: ink, and how much of it. */
const INKS = [["accent", 1], ["mlp", 1], ["accent", 0.5], ["mlp", 0.5], ["dim", 0.8], ["dim", 0.4]];

/** The height of the strip of parameters. */
const STRIP = 44;

/** @param {number[]} shape */
const sizeOf = (shape) => shape.reduce((all, n) => all * n, 1);

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function notationView(glass) {
  const notice = make("div", {});
  const symbols = make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Symbols" });
  const operations = make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Operations" });
  const canvas = make("canvas", { "aria-hidden": "true" });
  const frame = make("div", { class: "ladder can strip-of" });
  const line = make("p", { class: "cell-line" });
  const letters = make("p", { class: "note" });
  const which = make("p", { class: "note" }, "…");
  const numbers = make("div", { class: "stack" });
  const element = make("div", { class: "notation" }, notice, make("h2", {}, "Parameters, in memory order"), frame, line, make("h2", {}, "Operations"), which, operations, make("h2", {}, "Symbols"), letters, symbols);
  const params = () => /** @type {{name: string, shape: number[], group: string}[]} */ (glass.model.params);
  const groups = () => /** @type {{group: string, count: number}[]} */ (glass.model.groups);
  let [at, hovered, told, wide] = [0, -1, "", 0];
  /** Where each parameter begins and how many it has. */
  let begin = 0;
  const places = params().map(({ shape }) => ({ from: (begin += sizeOf(shape)) - sizeOf(shape), count: sizeOf(shape) }));
  const total = begin;
  const colour = (/** @type {string} */ group) => INKS[Math.max(0, groups().findIndex((one) => one.group === group)) % INKS.length] ?? ["dim", 1];

  const grid = liveGrid({
    label: "Parameters in memory", size: () => [1, params().length], at: () => [0, at],
    move: (_, n) => {
      at = n;
      draw();
      grid.tell();
    },
    open: () => glass.go({ v: "table", n: params()[at]?.name ?? "", at: "" }, "new"),
    words: (_, n) => sentence(n),
  });
  frame.append(canvas, grid.element);

  /** @param {number} n */
  function sentence(n) {
    const [param, place] = [params()[n], places[n]];
    if (!param || !place) return "";
    return `${param.name} [${param.shape.join(" × ")}], ${param.group}: ${plural(place.count, "number")} from ${figure(place.from, 0)}, ${share100(place.count / total)}`;
  }

  function draw() {
    wide = frame.clientWidth;
    if (!wide) return;
    sizeCanvas(canvas, wide, STRIP);
    const context = emptyCanvas(canvas);
    if (!context) return;
    const ink = inks(frame);
    params().forEach(({ group }, n) => {
      const { from, count } = places[n] ?? { from: 0, count: 0 };
      const [x, width] = [(from / total) * wide, (count / total) * wide];
      const [name = "dim", strength = 1] = /** @type {[string, number]} */ (colour(group));
      context.globalAlpha = strength;
      context.fillStyle = ink(name);
      context.fillRect(x, 0, Math.max(width - (width > 4 ? 1 : 0), 0.3), STRIP);
      context.globalAlpha = 1;
      if (n === hovered) {
        context.strokeStyle = ink("ink");
        context.strokeRect(x + 0.5, 0.5, Math.max(2, width - 2), STRIP - 1);
      }
    });
    const own = places[at];
    if (own) grid.put({ left: (own.from / total) * wide, top: 0, width: Math.max(4, (own.count / total) * wide), height: STRIP });
    line.textContent = sentence(hovered >= 0 ? hovered : at);
  }
  /** @param {MouseEvent} event */
  const under = (event) => {
    const number = ((event.clientX - canvas.getBoundingClientRect().left) / Math.max(1, wide)) * total;
    return places.findLastIndex(({ from }) => from <= number);
  };
  frame.addEventListener("pointermove", (event) => {
    hovered = event.pointerType === "touch" ? -1 : under(event);
    draw();
  });
  frame.addEventListener("pointerleave", () => {
    hovered = -1;
    draw();
  });
  frame.addEventListener("click", (event) => {
    const next = Math.max(0, under(event));
    // a first tap tells, a second opens; a mouse has told already
    if (hovered >= 0 || next === at) glass.go({ v: "table", n: params()[next]?.name ?? "", at: "" }, "new");
    at = next;
    draw();
  });

  /** A name that leads to its table, if there is such a tensor; in the block that is shown, without the block. @param {string} name @param {Set<string>} known */
  const linked = (name, known) => {
    const brief = name.replace(`blocks.${layer()}.`, "");
    return make("code", { class: "whole", title: name }, known.has(name) ? make("a", { href: glass.link({ v: "table", n: name, at: "" }) }, brief) : make("span", { class: "dim" }, brief));
  };

  const load = loader(notice, glass.listing, (listing) => {
    fill(/** @type {any} */ (listing));
    told = key();
  });

  const layer = () => Math.min(glass.state().l ?? 0, glass.run().depth - 1);
  const key = () => `${glass.run().id} ${layer()}`;

  /** @param {{tensors: any[], params: any[], ops: any[]}} listing */
  function fill({ tensors, params: weights, ops }) {
    const entries = new Map([...tensors, ...weights].map((one) => [one.name, one]));
    const known = new Set(entries.keys());
    const ofLayer = (/** @type {string} */ name) => name.replace(/^blocks\.\d+/, `blocks.${layer()}`);
    const head = (/** @type {string[]} */ words) => make("thead", {}, make("tr", {}, ...words.map((word) => make("th", { scope: "col" }, word))));
    const m = glass.model;
    letters.textContent = `B = 1 text, T = ${glass.run().tokens.length} tokens, C = ${m.d_model} wide${m.d_embed ? `, E = ${m.d_embed} wide the tables` : ""}, H = ${m.n_head} heads, D = ${m.d_head} a head${m.config.d_v && m.config.d_v !== m.d_head ? `, D_v = ${m.config.d_v} a value` : ""}, F = ${m.d_ff} inside the MLP, V = ${figure(m.vocab_size, 0)} tokens known${m.n_kv_head && m.n_kv_head !== m.n_head ? `, K = ${m.n_kv_head} heads of keys and values` : ""}`;
    symbols.replaceChildren(make("table", { class: "plain-table" }, head(["symbol", "what it is", "shape"]), make("tbody", {}, ...m.notation.map((/** @type {any} */ one) => {
      const name = ofLayer(one.name);
      const entry = entries.get(name);
      return make("tr", {}, make("th", { scope: "row", class: "symbol" }, ...formulaOf(entry?.symbol ?? one.symbol)), make("td", {}, one.meaning, make("br"), linked(name, known)), make("td", { class: "whole" }, one.letters, make("br"), make("span", { class: "dim" }, entry ? entry.shape.join(" × ") : "")));
    }))));
    // an op belongs to the layer whose tensors it reads: what it makes may be the next one's
    const blockOf = (/** @type {any} */ op) => Number([...op.in, op.out].map((name) => /^blocks\.(\d+)\./.exec(name)?.[1]).find((n) => n !== undefined) ?? -1);
    const numbered = ops.map((op, n) => ({ ...op, line: n + 1, layer: op.op === "embed" ? -1 : blockOf(op) }));
    const shown = numbered.filter((op) => op.layer < 0 || op.layer === layer() || op.op === "classify" || /^ln_final/.test(op.out));
    const { depth } = glass.run();
    which.textContent = `${plural(ops.length, "line")}${depth > 1 ? `; of the ${depth} blocks, which are alike, block ${layer()} is shown. Names without a block are of this one; the keys [ and ] go to others.` : ""}`;
    operations.replaceChildren(make("table", { class: "plain-table" }, head(["line", "operation", "makes", "of"]), make("tbody", {}, ...shown.map((op) => make(
      "tr", {}, make("th", { scope: "row" }, `${op.line}`), make("td", {}, make("span", { class: "dim" }, op.op), make("br"), make("span", { class: "symbol" }, ...formulaOf(op.formula ?? ""))),
      make("td", {}, linked(op.out, known), make("br"), make("span", { class: "dim whole" }, op.shape.join(" × "))),
      make("td", {}, ...op.in.filter((/** @type {string} */ name) => known.has(name)).flatMap((/** @type {string} */ name, /** @type {number} */ n) => [...(n ? [make("br")] : []), linked(name, known)])),
    )))));
  }

  function figures() {
    const most = Math.max(...groups().map(({ count }) => count));
    const table = barTable("Parameters by group", groups().map(({ group, count }) => ({ name: make("span", { title: group }, group), value: count, text: figure(count, 0) })), most);
    table.querySelectorAll(".bar").forEach((bar, n) => {
      const [name = "dim", strength = 1] = /** @type {[string, number]} */ (colour(groups()[n]?.group ?? ""));
      if (bar instanceof HTMLElement) {
        bar.style.setProperty("background", `var(--${name})`);
        bar.style.setProperty("opacity", `${strength}`);
      }
    });
    const config = Object.entries(glass.model.config).filter(([, value]) => value !== null && typeof value !== "object");
    numbers.replaceChildren(
      make("section", {}, table, make("p", { class: "sum" }, `sum ${figure(glass.model.parameters, 0)}`)),
      make("section", {}, make("h2", {}, "Configuration"), make("dl", { class: "facts-list" }, ...config.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, `${value}`))))),
    );
  }

  const watcher = new ResizeObserver(draw);
  watcher.observe(frame);
  figures();
  return {
    element,
    numbers,
    update() {
      draw();
      if (glass.run().done && told !== key()) load();
    },
    close: () => watcher.disconnect(),
    tensor: () => ({ name: params()[at]?.name ?? "", at: [] }),
  };
}
