// A sweep: which activations of another text, put into the run of this one, bring back the word that the other text
// leads to.
import { troubleNote } from "./answer.js";
import { button, dim, div, figure, fill, isFocused, make, on } from "./dom.js";
import { onEnter, onSubmit, plural, remark, say, short, within } from "./dom.js";
import { numberMap } from "./number-map.js";
import { tokenNumbers } from "./numbers.js";
import { runPrompt } from "./runs.js";
import { Trouble, asTrouble } from "./source.js";
import { piece, spelled } from "./text.js";
import { textTable } from "./view-walks.js";
import { OpenView } from "./view.js";

/** @type {import("./view.js").View} */
export const viewOfSweep = {
  id: "sweep", title: "Sweep", about: "Which activations make the difference between this text and another?",
  open: (glass) => new SweepView(glass),
  missing: (model) => {
    if (!model.lm_head) return "This model has no unembedding: there is no answer that a patch could bring back.";
    return model.saved && !model.sweep ? "This file does not hold a sweep." : null;
  },
};

/** What can be patched, in words. */
const SITES = [
  ["resid_pre", "stream before a layer"], ["resid_mid", "stream within a layer"],
  ["attn_out", "what attention adds"], ["mlp_out", "what the MLP adds"], ["z", "what heads carry"],
  ["q", "queries"], ["k", "keys"], ["v", "values"], ["pattern", "attention weights"],
];

/** What has a number for each head. */
const OF_HEADS = ["z", "q", "k", "v", "pattern"];

/** Cells of which a table is made. */
const WRITTEN = 10_000;

/** Milliseconds without a letter after which a text is read. */
const READING = 300;

/**
 * A sweep as it comes in.
 * @typedef {object} Swept
 * @property {string} key which text by which model
 * @property {string} clean
 * @property {any} start
 * @property {any} measured
 * @property {any[]} rows
 * @property {any} done
 * @property {Trouble | null} trouble
 * @property {AbortController | null} flight
 */

/** Tokens of the clean text. @typedef {{text: string, tokens: any[], trouble: Trouble | null}} Clean */

/** What outlives a view: a cell that is chosen changes the run, and so opens the view anew. */
const KEPT = {
  sweep: /** @type {Swept | null} */ (null),
  clean: /** @type {Clean} */ ({ text: "", tokens: [], trouble: null }),
  changed: () => {},
  /** Whether the focus was in the map. */
  inMap: false,
};

class SweepView extends OpenView {
  clean = make("textarea", {
    id: "sweep-clean", rows: "2", dir: "auto",
    placeholder: "A text with the same number of tokens that leads to another word",
  });
  site = this.select("site", "Patch", SITES);
  by = this.select("by", "Grid", [["head", ""], ["position", ""]]);
  metric = this.select("metric", "Measure", [["", "an answer"], ["loss", "the loss"], ["kl", "KL from the clean run"]]);
  answer = this.input("answer", "Answer", "likeliest after the clean text");
  foil = this.input("foil", "Rather than", "likeliest after this text");
  to = this.input("to", "By paths to", "all paths: no tensor");
  toHeads = this.input("toh", "Heads of that tensor", "all");
  position = this.input("pos", "Measured at token", "the last");
  /**
   * Fields by their names in the address, and what they are if it has none.
   * @type {[HTMLInputElement | HTMLSelectElement, string, string][]}
   */
  fields = [
    [this.site, "site", "resid_pre"], [this.by, "by", "head"], [this.metric, "metric", ""], [this.answer, "answer", ""],
    [this.foil, "foil", ""], [this.to, "to", ""], [this.toHeads, "toh", ""], [this.position, "pos", ""],
  ];
  estimate = make("input", { type: "checkbox" });
  send = make("button", { type: "submit" }, "Sweep");
  words = [make("label", "Answer ", this.answer), make("label", "rather than ", this.foil)];
  pair = div("pair");
  form = make(
    "form", { class: "sweep-form" },
    make("label", { for: "sweep-clean" }, "Clean text: its activations are put into the run of the text on this page"),
    this.clean, this.pair,
    div(
      "tools", make("label", "Patch ", this.site), make("label", "Grid ", this.by),
      make("label", "Measure ", this.metric), ...this.words, make("label", "by paths to ", this.to),
      make("label", "heads ", this.toHeads), make("label", "at token ", this.position),
      make("label", this.estimate, " estimate from gradients"), this.send,
    ),
  );
  line = make("p", { class: "note", role: "status" });
  cell = make("p");
  peaks = make("div");
  table = make("details", make("summary", "As a table"));
  map = numberMap(this.glass.dark, {
    label: "What each patch restores: Enter applies it to the run",
    at: () => this.chosen,
    choose: (row, col) => this.set({ cell: `${row}.${col}` }),
    words: (row, col, value) => this.cellInWords(row, col, value),
    open: () => this.applyCell(),
  });
  results = div("stack", this.line, this.map.element, this.cell, this.peaks, this.table);
  element = div("sweep", this.form, this.notice, this.results);
  reading = 0;
  /** What the peaks were laid out of. */
  laidOut = "";

  /** @param {import("./glass.js").Glass} glass */
  constructor(glass) {
    super(glass);
    on(this.estimate, "change", () => this.set({ est: this.estimate.checked ? "1" : "" }));
    on(this.clean, "input", () => {
      clearTimeout(this.reading);
      this.reading = setTimeout(() => this.takeClean(), READING);
    });
    onEnter(this.clean, () => this.form.requestSubmit());
    onSubmit(this.form, () => this.submit());
    on(this.table, "toggle", () => this.fillTable());
    KEPT.changed = () => {
      if (this.element.isConnected) this.show();
    };
  }

  /** @param {string} name @param {string} label @param {string[][]} choices */
  select(name, label, choices) {
    const options = choices.map(([value = "", text = ""]) => make("option", { value }, text));
    const select = make("select", { "aria-label": label }, ...options);
    on(select, "change", () => this.set({ [name]: select.value }));
    return select;
  }

  /** @param {string} name @param {string} label @param {string} placeholder */
  input(name, label, placeholder) {
    const look = { "aria-label": label, placeholder, size: "22", autocomplete: "off", spellcheck: "false" };
    const input = make("input", { type: "text", ...look });
    on(input, "change", () => this.set({ [name]: input.value }));
    return input;
  }

  get key() {
    return JSON.stringify([this.model.fingerprint, this.run.tokens.map(({ id }) => id)]);
  }

  /** The sweep that is shown: the last one, if it was of this text. */
  get swept() {
    return KEPT.sweep?.key === this.key ? KEPT.sweep : null;
  }

  /** Whether what is patched has heads. */
  get isOfHeads() {
    return OF_HEADS.includes(this.site.value);
  }

  /** The chosen cell. @returns {[number, number]} */
  get chosen() {
    const [row = 0, col = 0] = (this.more["cell"] ?? "").split(".").map(Number);
    const { rows, cols } = this.grid ?? { rows: 1, cols: 1 };
    return [within(row || 0, 0, rows - 1), within(col || 0, 0, cols - 1)];
  }

  /** How the grid lies on the page: rows of layers, or of their heads; words or heads beside each other. */
  get grid() {
    const { swept } = this;
    return swept?.start ? gridOf(swept) : null;
  }

  /** @param {number} row @param {number} col @param {string} value */
  cellInWords(row, col, value) {
    const { swept, grid } = this;
    if (!swept || !grid) return "";
    const { layer, head, pos, n } = grid.place(row, col);
    const name = head === null ? `layer ${layer}` : `L${layer}H${head}`;
    const positions = pos === null ? [] : [`position ${pos} (${this.glass.label(pos)})`];
    const where = [name, ...positions].join(", ");
    const metric = swept.rows[layer]?.metric[n];
    if (metric === undefined) return `${where}: not computed yet`;
    return `${where}: restores ${value} of the difference (${swept.measured?.metric ?? "metric"} ${short(metric, 5)})`;
  }

  /** Puts the step of the chosen cell into the run. */
  applyCell() {
    const { swept, grid } = this;
    if (!swept || !grid || swept.start.to) return;
    const { layer, head, pos } = grid.place(...this.chosen);
    const place = { ...(head === null ? {} : { head }), ...(pos === null ? {} : { pos }) };
    KEPT.inMap = this.map.element.contains(document.activeElement);
    this.apply([{ patch: swept.start.tensors[layer], ...place, from: { prompt: swept.clean } }]);
  }

  /** @param {object[]} steps */
  apply(steps) {
    this.glass.go({ i: JSON.stringify(steps), q: this.swept?.start.position ?? null }, "new");
    say("The run is changed by this step.");
  }

  takeClean() {
    clearTimeout(this.reading);
    this.set({ clean: this.clean.value });
    this.readClean();
  }

  /** Reads the tokens of the clean text; more of its run is not needed. */
  async readClean() {
    const text = this.more["clean"] ?? "";
    if (text === KEPT.clean.text || this.model.saved) return;
    /** @type {Clean} */
    const clean = { text, tokens: [], trouble: null };
    KEPT.clean = clean;
    const changed = () => {
      if (clean === KEPT.clean) KEPT.changed();
    };
    if (text !== "") {
      const controller = new AbortController();
      const { run, ended } = runPrompt(this.glass.source, { prompt: text }, () => {
        if (run.tokens.length === 0) return;
        clean.tokens = run.tokens;
        controller.abort();
        changed();
      }, controller.signal);
      await ended;
      clean.trouble = run.tokens.length > 0 ? null : run.trouble;
    }
    changed();
  }

  submit() {
    if (KEPT.sweep?.flight) KEPT.sweep.flight.abort();
    else if (this.clean.value === "") this.clean.focus();
    else {
      this.takeClean();
      this.sweep();
    }
  }

  /** What is asked of the server. */
  get question() {
    const { answer, foil, metric, to, position } = this;
    const words = { ...(answer.value && { answer: answer.value }), ...(foil.value && { foil: foil.value }) };
    const toHeads = (this.toHeads.value.match(/\d+/g) ?? []).map(Number);
    return {
      clean: this.clean.value, corrupt: this.run.tokens.map(({ id }) => id), site: this.site.value,
      ...(this.isOfHeads && { by: this.by.value }),
      ...(metric.value ? { metric: metric.value } : words),
      ...(to.value && { to: to.value, to_head: toHeads }),
      ...(position.value && { position: Number(position.value) }),
      ...(this.estimate.checked && { estimate: true }),
    };
  }

  async sweep(confirm = false) {
    KEPT.sweep?.flight?.abort();
    const flight = new AbortController();
    const clean = this.clean.value;
    /** @type {Swept} */
    const swept = { key: this.key, clean, start: null, measured: null, rows: [], done: null, trouble: null, flight };
    KEPT.sweep = swept;
    const changed = () => {
      if (swept === KEPT.sweep) KEPT.changed();
    };
    this.show();
    try {
      await this.glass.source.stream("sweeps", { ...this.question, ...(confirm && { confirm }) }, (event) => {
        if (event.event === "start") swept.start = event;
        else if (event.event === "metric") swept.measured = event;
        else if (event.event === "row") swept.rows[event.layer] = event;
        else if (event.event === "done") swept.done = event;
        changed();
      }, flight.signal);
      say(swept.done?.peaks[0]?.sentence ?? "");
    } catch (fault) {
      if (!flight.signal.aborted) swept.trouble = asTrouble(fault);
      if (swept.trouble?.message.startsWith("`answer`")) this.answer.focus();
    }
    swept.flight = null;
    changed();
  }

  update() {
    this.readClean();
    this.show();
    // a saved page shows the sweep that it keeps; a live one may begin with one
    if ((this.model.sweep || this.more["go"] === "1") && !KEPT.sweep) this.sweep();
  }

  show() {
    const { swept } = this;
    this.showForm();
    this.showPair();
    this.tellTrouble(swept?.trouble ?? null);
    this.results.hidden = !swept?.start || (swept.trouble !== null && swept.rows.length === 0);
    if (!swept || this.results.hidden) return;
    this.tellLine(swept);
    this.drawMap(swept);
    this.offer(swept);
    this.table.hidden = !swept.done;
  }

  showForm() {
    const { more, site, by, isOfHeads } = this;
    if (!isFocused(this.clean)) this.clean.value = more["clean"] ?? "";
    for (const [field, name, usual] of this.fields) {
      if (!isFocused(field) || field instanceof HTMLSelectElement) field.value = more[name] || usual;
    }
    this.estimate.checked = more["est"] === "1";
    const last = site.value === "pattern" ? "query" : "position";
    const grids = isOfHeads ? ["layer × head", `layer × head × ${last}`] : ["layer × position", ""];
    [...by.options].forEach((option, n) => (option.textContent = grids[n] ?? ""));
    by.disabled = !isOfHeads;
    if (!isOfHeads) by.value = "head";
    this.words.forEach((label) => (label.hidden = this.metric.value !== ""));
    this.send.textContent = KEPT.sweep?.flight ? "Stop" : "Sweep";
  }

  /** Both texts in tokens, one below the other; those that differ stand out. */
  showPair() {
    const { tokens, trouble, text } = KEPT.clean;
    const here = this.run.tokens;
    if (text === "" || (tokens.length === 0 && !trouble)) return fill(this.pair);
    if (trouble) return fill(this.pair, make("p", { class: "fault" }, trouble.message));
    /** @param {string} name @param {any[]} own @param {any[]} others */
    const row = (name, own, others) => {
      const words = own.map(({ id, piece }, n) => make(id === others[n]?.id ? "span" : "mark", {}, spelled(piece)));
      return div("pair-line", dim(`${name}, ${plural(own.length, "token")}: `), ...words.flatMap((word) =>
        [word, " "]));
    };
    fill(this.pair, row("clean", tokens, here), row("this text", here, tokens));
    if (tokens.length === here.length) return;
    const lengths = `The clean text has ${plural(tokens.length, "token")}, this one ${figure(here.length, 0)}`;
    const why = "both need the same number, because a patch keeps its position";
    this.pair.append(make("p", { class: "fault", role: "alert" }, `${lengths}: ${why}.`));
  }

  /** @param {Trouble | null} trouble */
  tellTrouble(trouble) {
    const isLarge = trouble?.code === "sweep_too_large";
    const told = trouble && isLarge ? new Trouble(trouble.message.replace(/: send.*$/, ".")) : trouble;
    // what stands there already stays: a screen reader says it once
    if (told && this.notice.textContent?.includes(told.message)) return;
    const ways = isLarge ? [button("Run it anyway", () => this.sweep(true), { class: "quiet" })] : [];
    fill(this.notice, ...(told ? [troubleNote(told, null, ...ways)] : []));
  }

  /** What was swept, and how far. @param {Swept} swept */
  tellLine({ start, measured, done, rows, flight }) {
    const cost = start.estimate ? "estimated from gradients" : `at most ${figure(start.token_layers, 0)} token-layers`;
    const paths = start.to ? `By paths to ${start.to}. ` : "";
    const over = measured?.foil ? [" over ", spelled(piece(measured.foil[1]))] : [];
    const words = measured?.answer ? [" of ", spelled(piece(measured.answer[1])), ...over] : [];
    const computed = rows.filter((row) => row).length;
    const progress = ` Layer ${computed} of ${start.shape[0]}${flight ? " …" : ": stopped."}`;
    const ends = done ? ` Clean ${short(done.clean, 5)}, this text ${short(done.corrupt, 5)}.` : progress;
    const what = `${plural(start.cells, "cell")}, ${cost}. ${paths}Measured: ${measured?.metric ?? "…"}`;
    fill(this.line, what, ...words, `.${ends}`);
  }

  /** @param {Swept} swept */
  drawMap(swept) {
    const { key, clean, start, measured } = swept;
    const { rows, cols, rowName, hasPositions, restored } = gridOf(swept);
    const cells = Array.from({ length: rows * cols }, (_, n) => restored(Math.floor(n / cols), n % cols));
    const columns = start.axes.includes("query_pos") ? "query" : "position";
    const asked = [start.site, start.axes, clean, measured, start.estimate];
    this.map.show({
      identity: `${key} ${JSON.stringify(asked)} ${swept.rows.filter((row) => row).length}`, rows, cols,
      values: cells.map((value) => value ?? 0), hidden: cells.map((value) => value === undefined), signed: true,
      most: cells.reduce((most, value) => Math.max(most, Math.abs(Number(value)) || 0), 1), palette: "diverging",
      what: "share of the difference that is restored",
      axes: [rows > start.shape[0] ? "layer.head" : "layer", hasPositions ? columns : "head"],
      rowLabel: rowName, colLabel: (n) => (hasPositions ? this.glass.label(n) : `${n}`),
    });
    const live = KEPT.inMap && this.map.element.querySelector(".live-cell");
    KEPT.inMap = false;
    // whoever came here by keys goes on from the same cell
    if (live instanceof HTMLElement) live.focus({ preventScroll: true });
  }

  /** What can be applied to the run. @param {Swept} swept */
  offer(swept) {
    const { start, done } = swept;
    const look = { class: "quiet", title: "Enter, or a click on the cell" };
    const apply = button("Apply this cell to the run", () => this.applyCell(), look);
    fill(this.cell, ...(gridOf(swept).restored(...this.chosen) === undefined || start.to ? [] : [apply]));
    const shown = JSON.stringify([done, this.state.i]);
    if (this.laidOut === shown) return;
    this.laidOut = shown;
    fill(this.peaks);
    if (done) {
      const items = done.peaks.map((/** @type {any} */ { sentence, interventions }) => {
        const label = `Apply it to the run: ${sentence}`;
        const act =
          button("Apply it to the run", () => this.apply(interventions), { class: "quiet", "aria-label": label });
        return make("li", `${sentence} `, act);
      });
      if (done.note) this.peaks.append(make("p", done.note));
      const title = make("h2", done.note ? "The largest changes" : "What restores the most");
      this.peaks.append(title, make("ul", { class: "plain" }, ...items));
    }
    const changed = "The run is changed by the steps beside the text.";
    const about = this.state.i ? changed : "The run of the page’s text, unchanged.";
    fill(this.numbers, remark(about), tokenNumbers(this.glass, start.position));
  }

  fillTable() {
    const { grid, swept } = this;
    if (!this.table.open || !swept || !grid) return;
    const { rows, cols, rowName, hasPositions, restored } = grid;
    const count = within(Math.floor(WRITTEN / cols), 1, rows);
    const lines = Array.from({ length: count }, (_, row) =>
      [rowName(row), ...Array.from({ length: cols }, (_, col) => short(restored(row, col), 4))]);
    const columns =
      Array.from({ length: cols }, (_, n) => (hasPositions ? `${n} ${this.glass.label(n)}` : `head ${n}`));
    const heads = [rows > swept.start.shape[0] ? "layer.head" : "layer", ...columns];
    const table = textTable("What part of the difference each patch restores", heads, lines);
    fill(this.table, make("summary", "As a table"), table);
    const left = rows - count;
    if (left > 0) this.table.append(remark(`${plural(left, "more row")}: \`limpid sweep --json\` has all.`));
  }

  close() {
    this.map.close();
  }
}

/** @param {Swept} swept */
function gridOf({ start: { axes, shape }, rows: computed }) {
  const size = (/** @type {string} */ axis) => (axes.includes(axis) ? shape[axes.indexOf(axis)] : 0);
  const [layers, heads, positions] = [size("layer"), size("head"), size("pos") || size("query_pos")];
  const hasPositions = positions > 0;
  const hasBoth = heads > 0 && hasPositions;
  const headOf = (/** @type {number} */ row, /** @type {number} */ col) =>
    hasBoth ? row % heads : heads > 0 ? col : null;
  /** What a cell is of; `n`: its place in its layer's answer. @param {number} row @param {number} col */
  const place = (row, col) => {
    const inLayer = axes[1] === "head" ? (row % heads) * positions + col : col * heads + (row % heads);
    const layer = hasBoth ? Math.floor(row / heads) : row;
    return { layer, head: headOf(row, col), pos: hasPositions ? col : null, n: hasBoth ? inLayer : col };
  };
  return {
    place, rows: hasBoth ? layers * heads : layers, cols: positions || heads, hasPositions,
    rowName: (/** @type {number} */ row) => (hasBoth ? `${Math.floor(row / heads)}.${row % heads}` : `${row}`),
    /** What part of the difference a cell restores. @param {number} row @param {number} col */
    restored(row, col) {
      const { layer, n } = place(row, col);
      return computed[layer]?.recovered[n];
    },
  };
}
