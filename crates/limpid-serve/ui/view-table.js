// Any tensor as a table: every number exact, asked for as far as it is in sight. And the whole of it to take away.
import { anchor, button, dim, div, figure, fill, isFocused } from "./dom.js";
import { isModified, make, on, remark, say, short, within } from "./dom.js";
import { troubleNote } from "./answer.js";
import { cellByKey } from "./grid.js";
import { cellNumbers, placeInput } from "./numbers.js";
import { seedTable } from "./seed-table.js";
import { Trouble, asTrouble } from "./source.js";
import { nearestIn, OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfTable = {
  id: "table", title: "Table", about: "What are the numbers of a tensor?",
  open: (glass) => new TableView(glass),
  needs: ({ n }) => (n ? [`tensors/${encodeURIComponent(n)}`] : []),
};

/** Sizes of a cell, of the labels, and of what is asked for at once. */
const SIZES = { row: 24, column: 88, label: 104, head: 26, rows: 32, cols: 16 };

/** Names in the list at most. */
const NAMES = 40;

/** The word of the state that holds a place on an axis. @type {Record<string, "q" | "k" | "h">} */
const SHARED = { pos: "q", query_pos: "q", key_pos: "k", head_index: "h", head: "h" };

class TableView extends OpenView {
  search = new TensorSearch(this.glass, () => this.listing);
  places = div("leading");
  about = remark();
  scroller = make("div", { class: "cells", tabindex: "-1" });
  space = div("space");
  head = make("div", { class: "row headings", role: "row" });
  body = make("div", { role: "rowgroup" });
  grid = make(
    "div", { role: "grid", class: "sheet" }, make("div", { role: "rowgroup", class: "top" }, this.head), this.body,
    this.space,
  );
  element = div(
    "table", div("tools", this.search.element, this.places), this.about, this.notice, this.scroller,
    make(
      "p", { class: "files" }, "Save as ", ...["csv", "npy", "safetensors"].map((format) => this.saveLink(format)),
      this.copyButton(),
    ),
  );
  /** The tensor that is shown. @type {any} */
  entry = null;
  /** Names the numbers that are shown. */
  identity = "";
  isAsking = false;
  drawing = 0;
  /** Numbers, by block. @type {Map<string, (number | string)[]>} */
  blocks = new Map();

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const { scroller, body } = this;
    scroller.append(this.grid);
    const scrolled = () => {
      this.drawing = 0;
      this.layAndAsk();
    };
    on(scroller, "scroll", () => (this.drawing ||= requestAnimationFrame(scrolled)), { passive: true });
    on(body, "click", (event) => {
      const [row, col] =
        (event.target instanceof HTMLElement && event.target.dataset["at"]?.split(",").map(Number)) || [];
      if (row === undefined || col === undefined) return;
      this.choose(this.placeOf(row, col));
      this.lay();
      this.focusCell();
    });
    on(body, "keydown", (event) => {
      if (isModified(event) || !this.entry) return;
      const next = cellByKey(event, this.chosen, [this.rows, this.cols]);
      if (!next) return;
      this.choose(this.placeOf(...next));
      this.reveal();
      this.layAndAsk();
      this.focusCell();
    });
    this.onResize(scroller, () => this.layAndAsk());
  }

  /** @param {string} format */
  saveLink(format) {
    const link = make("a", { href: "#", class: "file" }, format);
    on(link, "click", (event) => {
      event.preventDefault();
      const { name = "" } = this.entry ?? {};
      const question = `tensors/${encodeURIComponent(name)}?at=${this.placeOf("*", "*")}&format=${format}`;
      this.glass.save(question, `${name}.${format}`).catch((fault) => this.tell(asTrouble(fault)));
    });
    return link;
  }

  copyButton() {
    return button("Copy as table", () => this.copy(), { class: "quiet", hidden: navigator.clipboard ? null : "" });
  }

  /** @returns {string[]} */
  get axes() {
    return this.entry?.axes ?? this.shape.map(() => "");
  }

  /** @returns {number[]} */
  get shape() {
    return this.entry?.shape ?? [];
  }

  get rows() {
    return this.shape.at(this.shape.length > 1 ? -2 : 0) ?? 1;
  }

  get cols() {
    return this.shape.length > 1 ? (this.shape.at(-1) ?? 1) : 1;
  }

  /** The chosen place, one number an axis: what the page knows by another name comes first. @returns {number[]} */
  get place() {
    const said = this.state.at.split(",").map(Number);
    const words = wordsOf(this.axes);
    return this.shape.map((size, n) => {
      const word = words[n];
      const shared = word === "q" ? this.q : word && this.state[word];
      const place = shared ?? said[n] ?? 0;
      return within(Number.isInteger(place) ? place : 0, 0, size - 1);
    });
  }

  /** The chosen row and column. @returns {[number, number]} */
  get chosen() {
    const { place } = this;
    return place.length > 1 ? [place.at(-2) ?? 0, place.at(-1) ?? 0] : [place[0] ?? 0, 0];
  }

  /** A place in the matrix that is shown. @template {string | number} T @param {T} row @param {T} col */
  placeOf(row, col) {
    const rank = this.shape.length;
    return [...this.place.slice(0, Math.max(0, rank - 2)), ...(rank > 1 ? [row, col] : rank === 1 ? [row] : [])];
  }

  /** @param {(number | string)[]} place */
  choose(place) {
    /** @type {Partial<import("./address.js").State>} */
    const changes = { at: place.join(), n: this.entry.name };
    wordsOf(this.axes).forEach((word, n) => {
      if (word) changes[word] = Number(place[n] ?? 0);
    });
    this.glass.go(changes);
  }

  /** @param {Trouble} trouble */
  tell(trouble) {
    const near = nearestIn(trouble);
    const again = this.listing.length > 0 ? () => this.draw() : this.load;
    fill(this.notice, near ? troubleNote(trouble, null, this.linkTo(near)) : troubleNote(trouble, again));
  }

  /** @param {string} name */
  linkTo(name) {
    return anchor(this.glass.link({ n: name, at: "" }), name);
  }

  /** @param {{tensors: any[], params: any[]}} listing */
  useListing(listing) {
    super.useListing(listing);
    this.search.showListing();
  }

  update() {
    if (this.listing.length > 0) this.draw();
    else if (this.run.done) this.load();
  }

  draw() {
    const { name } = this.search;
    this.drawing = 0;
    if (this.listing.length === 0) return;
    const entry =
      this.listing.find((each) => each.name === name) ?? (/^cos\(.+\)$/.test(name) ? this.cosine(name) : null);
    if (!entry) return this.tellMissing(name);
    const isFresh = this.entry?.name !== name;
    this.entry = entry;
    const identity = `${this.run.id} ${this.other?.id ?? ""} ${name} ${this.placeOf("*", "*")}`;
    if (identity !== this.identity) {
      this.identity = identity;
      this.blocks.clear();
      this.isAsking = false;
      fill(this.notice);
      if (isFresh) {
        this.scroller.scrollTo(0, 0);
        this.search.showName();
      }
      this.describe();
      this.reveal();
    }
    this.layAndAsk();
    this.drawNumbers();
  }

  /** @param {string} name */
  tellMissing(name) {
    const near = this.search.nearest(name);
    this.entry = null;
    for (const part of [this.body, this.head, this.numbers, this.about, this.places]) fill(part);
    const link = make("span", "The nearest: ", this.linkTo(near));
    fill(this.notice, troubleNote(new Trouble(`There is no tensor “${name}”.`), null, link));
    this.search.field.value = name;
  }

  /** The cosines of every two rows of a tensor. @param {string} name */
  cosine(name) {
    const inner = this.listing.find((each) => `cos(${each.name})` === name);
    if (!inner) return null;
    const count = inner.shape.length > 1 ? inner.shape.at(-2) : 1;
    const axis = inner.axes?.[inner.shape.length - 2] ?? "row";
    const about = `Cosine of the angle between every two rows of ${inner.name}`;
    return { name, shape: [count, count], axes: [axis, axis], about, formula: "x·y / (|x| |y|)" };
  }

  describe() {
    const { entry, shape, axes, grid, rows, cols } = this;
    const sizes = shape.map((size) => figure(size, 0)).join(" × ");
    fill(
      this.about, entry.about ? `${entry.about} · ` : "", entry.letters ? `${entry.letters} = ` : "", sizes,
      entry.symbol ? ` · ${entry.symbol}` : "",
      ...(entry.formula ? [" · ", make("code", entry.formula)] : []),
    );
    fill(this.places, ...shape.slice(0, Math.max(0, shape.length - 2)).map((size, n) => {
      if (size === 1) return "";
      const input = placeInput(axes[n] ?? `axis ${n}`, size, (place) => this.choose(this.place.with(n, place)));
      input.value = `${this.place[n]}`;
      return make("label", `${axes[n]?.replace("_index", "") || `axis ${n}`} `, input);
    }));
    grid.ariaLabel = entry.name;
    grid.ariaRowCount = `${rows + 1}`;
    grid.ariaColCount = `${cols + 1}`;
    this.space.style.setProperty("width", `${SIZES.label + cols * SIZES.column}px`);
    this.space.style.setProperty("height", `${SIZES.head + rows * SIZES.row}px`);
    this.scroller.style.setProperty("height", `${SIZES.head + rows * SIZES.row + 14}px`);
  }

  /** The rows and columns in sight. */
  get sight() {
    const { scrollTop, scrollLeft, clientHeight, clientWidth } = this.scroller;
    /** @param {number} scrolled @param {number} room @param {number} size @param {number} count */
    const range = (scrolled, room, size, count) => {
      const from = within(Math.floor(scrolled / size), 0, count - 1);
      return [from, Math.max(from + 1, Math.min(count, from + Math.ceil(room / size) + 1))];
    };
    const [r0 = 0, r1 = 0] = range(scrollTop, clientHeight - SIZES.head, SIZES.row, this.rows);
    const [c0 = 0, c1 = 0] = range(scrollLeft, clientWidth - SIZES.label, SIZES.column, this.cols);
    return { r0, c0, r1, c1 };
  }

  /** @param {number} row @param {number} col */
  number(row, col) {
    const [r, c] = [Math.floor(row / SIZES.rows), Math.floor(col / SIZES.cols)];
    const wide = Math.min(SIZES.cols, this.cols - c * SIZES.cols);
    return this.blocks.get(`${r} ${c}`)?.[(row % SIZES.rows) * wide + (col % SIZES.cols)];
  }

  /** @param {number} row */
  rowLabel(row) {
    const axis = this.axes.at(this.shape.length > 1 ? -2 : 0) ?? "";
    return /^((query|key)_)?pos$/.test(axis) ? `${row} ${this.glass.label(row)}` : `${row}`;
  }

  /** @param {number} col */
  colLabel(col) {
    return this.axes.at(-1) === "key_pos" ? `${col} ${this.glass.label(col)}` : `${col}`;
  }

  layAndAsk() {
    this.lay();
    this.ask();
  }

  lay() {
    if (!this.entry) return;
    const { axes, body } = this;
    const { r0, c0, r1, c1 } = this.sight;
    const [row, col] = this.chosen;
    const hasFocus = body.contains(document.activeElement);
    const columns = Array.from({ length: c1 - c0 }, (_, n) => c0 + n);
    this.grid.style.setProperty("--x", `${c0 * SIZES.column}px`);
    this.head.ariaRowIndex = "1";
    const corner = make(
      "div", { role: "columnheader", class: "corner", "aria-colindex": "1" },
      `${axes.at(-2) ?? ""} \\ ${axes.at(-1) ?? ""}`,
    );
    const heads = columns.map((c) => {
      const look = { role: "columnheader", "aria-colindex": `${c + 2}`, class: c === col ? "on" : null };
      return make("div", look, this.colLabel(c));
    });
    fill(this.head, corner, ...heads);
    fill(body, ...Array.from({ length: r1 - r0 }, (_, n) => {
      const r = r0 + n;
      const label =
        make("div", { role: "rowheader", "aria-colindex": "1", class: r === row ? "on" : null }, this.rowLabel(r));
      const cells = columns.map((c) => this.cell(r, c, r === row && c === col));
      const line = make("div", { role: "row", class: "row", "aria-rowindex": `${r + 2}` }, label, ...cells);
      line.style.setProperty("top", `${SIZES.head + r * SIZES.row}px`);
      return line;
    }));
    // the grid is one stop of the tab key, in sight or not
    (this.focusable ?? body.querySelector("[role='gridcell']"))?.setAttribute("tabindex", "0");
    if (hasFocus) this.focusCell();
  }

  /** @param {number} row @param {number} col @param {boolean} isChosen */
  cell(row, col, isChosen) {
    const value = this.number(row, col);
    const isWord = typeof value === "string";
    return make("div", {
      role: "gridcell", "aria-colindex": `${col + 2}`, tabindex: isChosen ? "0" : "-1",
      "aria-selected": isChosen ? "true" : null, "data-at": `${row},${col}`, class: isWord ? "odd" : null,
    }, value === undefined ? "…" : isWord ? inWord(value) : six(value));
  }

  /** @returns {HTMLElement | null} */
  get focusable() {
    return this.body.querySelector("[tabindex='0']");
  }

  focusCell() {
    this.focusable?.focus({ preventScroll: true });
  }

  async ask() {
    if (!this.entry || this.isAsking) return;
    const { r0, c0, r1, c1 } = this.sight;
    const missing = [];
    for (let r = Math.floor(r0 / SIZES.rows); r * SIZES.rows < r1; r++) {
      for (let c = Math.floor(c0 / SIZES.cols); c * SIZES.cols < c1; c++) {
        if (!this.blocks.has(`${r} ${c}`)) missing.push({ r, c });
      }
    }
    if (missing.length === 0) return;
    const range = (/** @type {number[]} */ blocks, /** @type {number} */ size, /** @type {number} */ count) =>
      /** @type {[number, number]} */ ([Math.min(...blocks) * size, Math.min(count, (Math.max(...blocks) + 1) * size)]);
    const rows = range(missing.map(({ r }) => r), SIZES.rows, this.rows);
    const cols = range(missing.map(({ c }) => c), SIZES.cols, this.cols);
    const { identity } = this;
    this.isAsking = true;
    try {
      const values = await this.part(rows, cols);
      if (identity !== this.identity) return;
      this.take(values, rows, cols);
      this.isAsking = false;
      this.layAndAsk();
      this.drawNumbers();
    } catch (fault) {
      if (identity === this.identity) this.tell(asTrouble(fault));
    } finally {
      if (identity === this.identity) this.isAsking = false;
    }
  }

  /** Asks for a part of the matrix that is shown. @param {[number, number]} rows @param {[number, number]} cols */
  async part(rows, cols) {
    return (await this.glass.tensor(this.entry.name, this.placeOf(rows.join(":"), cols.join(":")).join())).values;
  }

  /**
   * Cuts a part into blocks.
   * @param {(number | string)[]} values @param {[number, number]} rows @param {[number, number]} cols
   */
  take(values, [y0, y1], [x0, x1]) {
    for (let y = y0; y < y1; y += SIZES.rows) {
      for (let x = x0; x < x1; x += SIZES.cols) {
        const block = [];
        const wide = Math.min(x1, x + SIZES.cols) - x;
        for (let r = y; r < Math.min(y1, y + SIZES.rows); r++) {
          const from = (r - y0) * (x1 - x0) + x - x0;
          block.push(...values.slice(from, from + wide));
        }
        this.blocks.set(`${y / SIZES.rows} ${x / SIZES.cols}`, block);
      }
    }
  }

  drawNumbers() {
    if (!this.entry) return;
    const value = this.number(...this.chosen);
    const text = typeof value === "string" ? inWord(value) : value === undefined ? null : short(value, 8);
    fill(this.numbers, cellNumbers(this.glass, this.entry, this.place, text));
  }

  /** Brings the chosen cell into sight. */
  reveal() {
    const { scroller } = this;
    const [row, col] = this.chosen;
    const [y, x] = [row * SIZES.row, col * SIZES.column];
    const [high, wide] =
      [scroller.clientHeight - SIZES.head - SIZES.row, scroller.clientWidth - SIZES.label - SIZES.column];
    scroller.scrollTop = within(scroller.scrollTop, y - high, y);
    scroller.scrollLeft = within(scroller.scrollLeft, x - wide, x);
  }

  async copy() {
    try {
      const text = await seedTable(this.rows, this.cols, (rows, cols) => this.part(rows, cols));
      await navigator.clipboard.writeText(text);
      say("copied");
    } catch (fault) {
      this.tell(asTrouble(fault));
    }
  }

  tensor() {
    return this.entry ? { name: this.entry.name, at: this.place } : null;
  }
}

/** The field that finds a tensor by parts of its name or of what is said about it. */
class TensorSearch {
  field = make("input", {
    type: "search", id: "tensor-name", placeholder: "Find a tensor", autocomplete: "off", spellcheck: "false",
    role: "combobox", "aria-expanded": "false", "aria-controls": "tensor-names", "aria-label": "Tensor",
  });
  names = make("ul", { id: "tensor-names", class: "names", hidden: "", "aria-label": "Tensors" });
  element = div("combo", this.field, this.names);
  /** The name that the arrow keys chose; -1: none. */
  picked = -1;

  /** @param {Glass} glass @param {() => any[]} listing every tensor */
  constructor(glass, listing) {
    this.glass = glass;
    this.listing = listing;
    const { field, names } = this;
    on(field, "focus", () => {
      field.select();
      this.offer();
    });
    on(field, "input", () => this.offer());
    on(field, "blur", () => {
      this.shut();
      field.value = this.name;
    });
    on(field, "keydown", (event) => this.press(event));
    on(names, "mousedown", (event) => {
      event.preventDefault();
      const item = event.target instanceof Element ? event.target.closest("li") : null;
      if (item?.dataset["name"]) this.take(item.dataset["name"]);
    });
  }

  /** The tensor that the address says. */
  get name() {
    return this.glass.state.n || (this.glass.run.depth ? "blocks.0.hook_resid_pre" : "");
  }

  showListing() {
    if (isFocused(this.field)) this.offer();
    else this.field.value = this.name;
  }

  showName() {
    if (!isFocused(this.field)) this.field.value = this.name;
  }

  /** The names that fit what is typed. */
  offer() {
    const { field, names } = this;
    const words = field.value.trim().toLowerCase().split(/\s+/);
    const fit = this.listing().filter(
      ({ name, about }) => words.every((word) => [name, about ?? ""].some((text) => text.toLowerCase().includes(word))),
    );
    const shown = fit.slice(0, NAMES);
    this.picked = -1;
    field.removeAttribute("aria-activedescendant");
    names.setAttribute("role", shown.length ? "listbox" : "presentation");
    const items = shown.map(({ name, shape }, n) =>
      make(
        "li", { role: "option", id: `tensor-${n}`, "aria-selected": "false", "data-name": name },
        make("code", name), dim(` ${shape.join(" × ")}`),
      ));
    const rest = fit.length === 0 ? "No tensor has that name" : `and ${fit.length - shown.length} more`;
    const more =
      fit.length === 0 || fit.length > shown.length ? [make("li", { class: "dim", role: "presentation" }, rest)] : [];
    fill(names, ...items, ...more);
    names.hidden = false;
    field.ariaExpanded = "true";
  }

  shut() {
    this.names.hidden = true;
    this.field.ariaExpanded = "false";
  }

  /** @param {string} name */
  take(name) {
    this.shut();
    this.glass.go({ n: name, at: "" }, "new");
    this.field.blur();
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    /** @type {HTMLElement[]} */
    const options = [...this.names.querySelectorAll("li[role='option']")].filter((item) => item instanceof HTMLElement);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      options[this.picked]?.setAttribute("aria-selected", "false");
      this.picked = (this.picked + (event.key === "ArrowDown" ? 1 : -1) + options.length) % Math.max(1, options.length);
      options[this.picked]?.setAttribute("aria-selected", "true");
      options[this.picked]?.scrollIntoView({ block: "nearest" });
      this.field.setAttribute("aria-activedescendant", `tensor-${this.picked}`);
    } else if (event.key === "Enter") {
      const typed = this.field.value.trim();
      const isName = this.listing().some(({ name }) => name === typed);
      const first = isName ? typed : options[0]?.dataset["name"];
      this.take(options[this.picked]?.dataset["name"] ?? first ?? typed);
    } else if (event.key === "Escape") {
      event.preventDefault();
      this.field.blur();
    }
  }

  /**
   * The nearest name, by the pairs of letters that two names have in common.
   * @param {string} wanted @returns {string}
   */
  nearest(wanted) {
    const pairs = (/** @type {string} */ text) => new Set([...text.slice(1)].map((letter, n) => text[n] + letter));
    const known = pairs(wanted);
    const likeness = (/** @type {string} */ name) => {
      const theirs = pairs(name);
      return (2 * [...known].filter((pair) => theirs.has(pair)).length) / (known.size + theirs.size + 1e-9);
    };
    const names = this.listing().map(({ name }) => name);
    return names.reduce((best, name) => (likeness(name) > likeness(best) ? name : best), names[0] ?? "");
  }
}

/** The words of the state that hold a place on each axis: each once. @param {string[]} axes */
function wordsOf(axes) {
  const words = axes.map((axis) => SHARED[axis]);
  return words.map((word, n) => (words.indexOf(word) === n ? word : undefined));
}

/** @param {number | string} value */
function six(value) {
  const number = Number(value);
  const size = Math.abs(number);
  const isPlain = size === 0 || (size >= 1e-5 && size < 1e6);
  return (isPlain ? number.toFixed(6) : number.toExponential(3).replace("e+", "e")).replaceAll("-", "−");
}

/** @param {number | string} value */
function inWord(value) {
  return value === "inf" ? "∞" : value === "-inf" ? "−∞" : `${value}`;
}
