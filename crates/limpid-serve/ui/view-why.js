// Arithmetic: any cell of any tensor as the sum behind it, in parts and terms, and what is done with the sum. Each
// operand leads to its own sum.
import { curveChart } from "./curve.js";
import { anchor, dim, div, fill, make, remark, scrolling, short } from "./dom.js";
import { barCell, barTable, factList, numberCell, placeInput, signed, signedBar, tensorLink } from "./numbers.js";
import { formulaOf, readable } from "./text.js";
import { nearestIn, OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfWhy = {
  id: "why", title: "Arithmetic", about: "What is the sum behind a number?",
  open: (glass) => new WhyView(glass),
  needs: ({ n, at }) => (n && at ? [`explain/${encodeURIComponent(n)}?at=${at}`] : []),
};

/** Terms that are shown at first. */
const FIRST_TERMS = 16;

/** @param {number | string} value */
const exactly = (value) => short(typeof value === "string" ? value.replace("inf", "Infinity") : value, 6);

class WhyView extends OpenView {
  heading = make("h2", "…");
  places = div("leading");
  body = div("lesson", make("p", { class: "hint" }, "Adding up …"));
  element = div("why", div("tools", this.heading, this.places), this.notice, this.body);
  chart = curveChart();
  /** The tensor that the fields are for. */
  laid = "";
  /** The cell that was shown last. */
  placed = "";

  get name() {
    return this.state.n || (this.model.lm_head ? "logits" : `blocks.${this.run.depth - 1}.hook_resid_post`);
  }

  get entry() {
    return this.listing.find(({ name }) => name === this.name);
  }

  /** The cell: what the address says, else what is chosen elsewhere. @returns {number[]} */
  get cell() {
    const { entry, q } = this;
    const said = this.state.at.split(",").filter((word) => /^\d+$/.test(word)).map(Number);
    if (!entry) return said;
    const isToken = entry.name === "logits" || entry.name === "probs";
    const token = isToken ? this.run.predictions[q]?.top[0]?.[0] : 0;
    /** @type {Record<string, number | null | undefined>} */
    const chosen = { pos: q, query_pos: q, key_pos: this.glass.k, head: this.state.h, d_vocab: token };
    return entry.shape.map((/** @type {number} */ size, /** @type {number} */ n) =>
      Math.min(size - 1, said[n] ?? chosen[entry.axes?.[n]] ?? 0));
  }

  /** The address of a cell's sum. @param {{name: string, at: number[]}} cell */
  link({ name, at }) {
    return this.glass.link({ v: "why", n: name, at: at.join() });
  }

  update() {
    if (!this.run.done) return;
    if (this.listing.length > 0) this.show();
    else this.load();
  }

  show() {
    const { glass, name, cell, q } = this;
    // the chosen token moves the cell with it, and a cell the chosen token
    const axis = this.entry?.axes?.findIndex(isPosition) ?? -1;
    const placed = `${name} ${cell}`;
    const isMoved = placed !== this.placed;
    const position = cell[axis];
    this.placed = placed;
    if (position !== undefined && position !== q && position < this.run.tokens.length) {
      return glass.go(isMoved ? { q: position } : { at: cell.map((n, i) => (i === axis ? q : n)).join() });
    }
    const key = `${glass.runs} ${placed}`;
    if (key !== this.asked) this.lay(cell);
    const ask = () => glass.askBoth(`explain/${encodeURIComponent(name)}?at=${cell}`);
    this.askOnce(key, ask, ([ours, theirs]) => this.draw(ours, theirs), (trouble) => {
      fill(this.body);
      fill(this.numbers);
      const near = nearestIn(trouble);
      return near && near !== name ? [anchor(glass.link({ n: near, at: "" }), near)] : [];
    });
  }

  /** Fields for the cell, one an axis. @param {number[]} cell */
  lay(cell) {
    const { entry, name } = this;
    if (this.laid !== name) {
      this.laid = name;
      fill(this.places, ...(entry?.shape ?? []).map((/** @type {number} */ size, /** @type {number} */ n) =>
        this.placeField(entry.axes?.[n] ?? `axis ${n}`, n, size)));
    }
    const shown = cell.filter((_, n) => entry?.shape[n] !== 1);
    this.places.querySelectorAll("input").forEach((input, n) => (input.value = `${shown[n] ?? 0}`));
  }

  /** @param {string} axis @param {number} n its place among the axes @param {number} size */
  placeField(axis, n, size) {
    if (size === 1) return "";
    return make("label", `${axis} `, placeInput(axis, size, (place) => {
      const next = this.cell.with(n, place);
      this.glass.go({ n: this.name, at: next.join(), ...(isPosition(axis) ? { q: place } : {}) });
    }));
  }

  /** A number that leads to where it comes from. @param {any} operand */
  operand({ to, value }) {
    const title = to ? `${to.name} [${to.at.join(", ")}]` : null;
    return to ? make("a", { href: this.link(to), title }, exactly(value)) : make("span", exactly(value));
  }

  /** @param {any} ours @param {any} theirs of the run that is compared with */
  draw(ours, theirs) {
    const { name, at, value, formula, parts, curve } = ours;
    fill(this.heading, make("code", name), dim(` [${at.join(", ")}] = `), exactly(value));
    const words = ours.words.split("\x60").flatMap((/** @type {string} */ text, /** @type {number} */ n) =>
      (n % 2 ? [make("code", text)] : readable(text, false)));
    /** @type {any[]} */
    const terms = parts.flatMap((/** @type {any} */ part) => part.terms.map((/** @type {any} */ term) =>
      ({ ...term, part: part.label })));
    terms.sort((a, b) => Math.abs(Number(b.value)) - Math.abs(Number(a.value)));
    const sum = parts.reduce((/** @type {number} */ all, /** @type {any} */ part) => all + Number(part.value), 0);
    fill(
      this.body, ...(formula ? [make("p", { class: "formula" }, ...formulaOf(formula))] : []), make("p", ...words),
      ...(parts.length > 1 || theirs ? [partTable(parts, theirs)] : []), ...this.termTables(ours, terms),
      this.sums(ours, sum), ...(curve ? this.curve(ours, sum) : []),
    );
    fill(this.numbers, this.facts(ours, theirs), ...this.operandLinks(ours, terms));
  }

  /** @param {any} ours @param {any[]} terms the largest first */
  termTables({ parts, shown, of: count }, terms) {
    const most = Math.max(...terms.map(({ value }) => Math.abs(Number(value)) || 0), 1e-30);
    const rows = terms.map(({ part, label, left, right, value }) => {
      const name = parts.length > 1 && !label.startsWith(part) ? `${part}, ${label}` : label;
      const factor = right ? ["× ", this.operand(right)] : [];
      return make(
        "tr", make("th", { scope: "row" }, name), numberCell(this.operand(left)), numberCell(...factor),
        numberCell(`= ${exactly(value)}`), barCell(signedBar(Number(value) || 0, most)),
      );
    });
    const table =
      (/** @type {HTMLElement[]} */ some, /** @type {string} */ caption, /** @type {string | null} */ kind) =>
      scrolling(
        caption,
        make(
          "table", { class: "plain-table terms" }, make("caption", { class: kind }, caption),
          make("tbody", ...some),
        ),
      );
    const all = count === 1 ? "The only term" : `All ${count} terms`;
    const what = shown < count ? `The ${shown} largest of ${count} terms` : all;
    const more = rows.slice(FIRST_TERMS);
    return [
      ...(rows.length > 0 ? [table(rows.slice(0, FIRST_TERMS), what, null)] : []),
      ...(
        more.length > 0
          ? [make("details", make("summary", `${more.length} more`), table(more, "More terms", "unseen"))]
          : []
      ),
    ];
  }

  /** What is done with the sum, line by line. @param {any} ours @param {number} sum */
  sums({ shown, of: count, remainder, parts, steps, exact, value, rounding }, sum) {
    /** @type {[Node | string, Node | string | null][]} */
    const lines = [];
    if (shown < count) lines.push(["terms that are not shown", exactly(remainder)]);
    if (parts.length > 0) lines.push(["sum", exactly(sum)]);
    for (const { operation, label, by, result, to } of steps ?? []) {
      const step = make("span", `${operation} ${by ? "" : label}`, ...(by ? [this.operand(by), ` ${label}`] : []));
      lines.push([step, make("span", "= ", this.operand({ value: result, to }))]);
    }
    lines.push(
      ["in 64 bits", exactly(exact ?? Number(value) - Number(rounding))], ["rounding of 32 bits", exactly(rounding)],
    );
    const list = factList([...lines, [make("strong", "value"), make("strong", exactly(value))]]);
    list.classList.add("sums");
    return list;
  }

  /** The function that the sum goes through. @param {any} ours @param {number} sum */
  curve({ curve, steps, value, op }, sum) {
    const x = Number(steps?.[0]?.operation === curve.function ? sum : (curve.at ?? sum));
    const becomes = `${exactly(x)} becomes ${exactly(value)}`;
    this.chart.show({
      x: curve.x, y: curve.y, dot: { x, y: Number(value) }, bars: null, words: `${curve.function ?? op}: ${becomes}`,
    });
    return [remark(`${curve.function ?? ""}: ${becomes}`), this.chart.element];
  }

  /** @param {any} ours @param {any} theirs */
  facts({ name, at, value, op }, theirs) {
    const { about, symbol } = this.entry ?? {};
    return make(
      "section", make("h2", tensorLink(this.glass, name, at.join())), ...(about ? [remark(about)] : []),
      factList([
        ["value", exactly(value)], ["the other’s", theirs ? exactly(theirs.value) : null], ["made by", op],
        ["symbol", symbol ? make("span", { class: "symbol" }, ...formulaOf(symbol)) : null],
      ]),
    );
  }

  /** Links to the sums of the operands, one a tensor. @param {any} ours @param {any[]} terms */
  operandLinks({ steps }, terms) {
    const cells = [
      ...terms.flatMap(({ left, right }) => [left?.to, right?.to]),
      ...(steps ?? []).flatMap((/** @type {any} */ { by, to }) => [by?.to, to]),
    ];
    /** @type {Map<string, any>} */
    const first = new Map();
    for (const cell of cells) if (cell && !first.has(cell.name)) first.set(cell.name, cell);
    const links =
      [...first.values()].map((cell) => make("p", anchor(this.link(cell), make("code", cell.name))));
    return links.length > 0 ? [make("section", make("h2", "Go to"), ...links)] : [];
  }

  close() {
    this.chart.close();
  }

  tensor() {
    return { name: this.name, at: this.cell };
  }
}

/** Whether an axis is that of the token that looks. @param {string} axis */
const isPosition = (axis) => /^(query_)?pos$/.test(axis);

/** The parts of a sum, beside those of the other run. @param {any[]} parts @param {any} theirs */
function partTable(parts, theirs) {
  const others = new Map((theirs?.parts ?? []).map((/** @type {any} */ part) => [part.label, Number(part.value)]));
  const rows = parts.map(({ label, value }) => {
    const other = others.get(label);
    const more = other === undefined ? "" : ` (${signed(Number(value) - other)})`;
    return { name: label, value: Number(value) || 0, text: `${exactly(value)}${more}` };
  });
  return barTable(
    theirs ? "Parts of the sum (and by how much they are more than the other’s)" : "Parts of the sum", rows,
  );
}
