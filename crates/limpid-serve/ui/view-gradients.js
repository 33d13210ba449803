// Gradients: how a word's logit, or its difference from another's, would follow a small change of the stream or of a
// head.
import { whyIn, whyWord, wordAsked } from "./address.js";
import { div, fill, make, on, short } from "./dom.js";
import { numberMap } from "./number-map.js";
import { tokenNumbers } from "./numbers.js";
import { piece, spelled } from "./text.js";
import { textTable } from "./view-walks.js";
import { headless, OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfGradients = {
  id: "gradients", title: "Gradients", about: "Where would a small change move this word the most?",
  open: (glass) => new GradientsView(glass),
  missing: headless(": there is no logit to follow back."),
  needs: (state, glass) => [gradientsQuestion(state, glass)],
};

/**
 * The word that the path follows here, as the server takes it.
 * @param {import("./address.js").State} state
 * @param {Glass} glass
 */
function gradientsQuestion(state, glass) {
  const last = glass.run.tokens.length - 1;
  const q = Math.min(state.q ?? last, last);
  const { target, foil } = whyIn(state, q, last);
  return [`gradients?position=${q}`, wordAsked(target), foil && `foil=${foil}`].filter((part) => part).join("&");
}

class GradientsView extends OpenView {
  sentence = make("p", { class: "lead" });
  another = make("a", "Another word");
  body = div("stack");
  table = make("details", make("summary", "As tables"));
  measure = make(
    "select", { "aria-label": "Heads by" },
    make("option", { value: "heads" }, "size of the gradient"),
    make("option", { value: "attribution" }, "gradient × activation"),
  );
  element = div("gradients stack", this.notice, this.sentence, this.body, this.table);
  /** The chosen cell of the stream. @type {[number, number]} */
  cell = [0, 0];
  /** @type {any} */
  shown = null;

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    this.stream = numberMap(glass.dark, {
      label: "Size of the gradient of the residual stream",
      at: () => this.cell,
      choose: (row, col) => {
        this.cell = [row, col];
        this.show();
      },
      words: (row, col, value) => `${stageOf(row)}, token ${this.label(col)}: ${value}`,
    });
    this.heads = numberMap(glass.dark, {
      label: "Gradients of the heads",
      at: () => [glass.layer, glass.head],
      choose: (l, h) => glass.go({ l, h }),
      open: () => glass.go({ v: "head" }, "new"),
      words: (l, h, value) => `L${l}H${h}: ${value}`,
    });
    const measures = div("tools", make("label", "Heads by ", this.measure));
    const [stream, heads] = [make("h2", "The residual stream"), make("h2", "The heads")];
    this.body.append(stream, this.stream.element, heads, measures, this.heads.element);
    on(this.measure, "change", () => this.show());
    on(this.table, "toggle", () => this.drawTables());
  }

  /** @param {number} position */
  label(position) {
    return `${position} ${this.glass.label(position)}`;
  }

  update() {
    const question = gradientsQuestion(this.state, this.glass);
    const ask = async () => {
      this.shown = null;
      fill(this.sentence, "Computing gradients …");
      return this.state.i === "" ? this.glass.ask(question) : null;
    };
    const use = (/** @type {any} */ answer) => {
      this.shown = answer;
      this.table.open = false;
      const why = "Gradients are computed for the model as it is: take the steps away to see them.";
      if (!answer) fill(this.notice, make("p", { class: "hint" }, why));
      this.hide(!answer);
      this.show();
    };
    this.askOnce(`${this.run.id} ${question}`, ask, use, () => this.hide(true));
    this.show();
  }

  /** @param {boolean} isHidden */
  hide(isHidden) {
    this.body.hidden = this.table.hidden = this.sentence.hidden = isHidden;
  }

  show() {
    if (!this.shown) return;
    const { glass, run, shown, measure } = this;
    const { target, foil, position, stream } = shown;
    const words = [spelled(piece(target[1])), ...(foil ? [" less that of ", spelled(piece(foil[1]))] : [])];
    this.another.setAttribute(
      "href", glass.link(whyWord(this.state, this.q, `${target[0]}`, `${foil?.[0] ?? "none"}`)),
    );
    fill(
      this.sentence, `The ${foil ? "logit" : "log-probability"} of `, ...words,
      ` after ${this.label(position)}: the brighter a place, the more a small change there would move it. ` +
      "A gradient speaks of small changes only; a sweep or a change of the run tells what a large one does. ",
      this.another,
    );
    const { palette } = glass.look();
    const usual = { hidden: [], palette };
    this.stream.show({
      ...usual, identity: this.asked, rows: run.depth + 1, cols: run.tokens.length, values: stream.flat(),
      signed: false, most: largest(stream),
      what: "length of the gradient", axes: ["stage", "token"], rowLabel: (n) => (n === 0 ? "embed" : `${n - 1}`),
      colLabel: glass.label,
    });
    const signed = measure.value === "attribution";
    const values = shown[measure.value];
    this.heads.show({
      ...usual, identity: this.asked + measure.value, rows: run.depth, cols: run.heads, values: values.flat(), signed,
      most: largest(values),
      what: signed ? "gradient × activation" : "length of the gradient", axes: ["layer", "head"], rowLabel: String,
      colLabel: String,
    });
    fill(this.numbers, tokenNumbers(glass, position));
  }

  drawTables() {
    const { shown, table, run } = this;
    if (!table.open || !shown) return;
    const rows = (/** @type {any[][]} */ values, /** @type {(n: number) => string} */ name) =>
      values.map((row, n) => [name(n), ...row.map((value) => short(value, 4))]);
    const heads = (/** @type {string} */ title, /** @type {any[][]} */ values) =>
      textTable(title, ["layer", ...(values[0] ?? []).map((_, h) => `head ${h}`)], rows(values, String));
    fill(
      table, make("summary", "As tables"),
      textTable(
        "Length of the gradient of the residual stream", ["stage", ...run.tokens.map((_, n) => this.label(n))],
        rows(shown.stream, stageOf),
      ),
      heads("Length of the gradient at each head", shown.heads),
      heads("Gradient × activation of each head", shown.attribution),
    );
  }

  close() {
    this.stream.close();
    this.heads.close();
  }
}

/** @param {number} row */
const stageOf = (row) => (row === 0 ? "before the layers" : `after layer ${row - 1}`);

/** @param {any[][]} values */
const largest = (values) => Math.max(1e-30, ...values.flat().map((value) => Math.abs(Number(value)) || 0));
