// One head: scores before the mask, scores after it, and the weights that come of them, each a picture of its own;
// beside it, what the chosen token looks at, exactly.
import { button, dim, div, fill, make, remark, short } from "./dom.js";
import { edgePart, handsOn } from "./hands.js";
import { HeatMap } from "./heat.js";
import { kindOf } from "./heads.js";
import { barTable, factList, headNumbers, whyLink } from "./numbers.js";
import { awaited } from "./runs.js";
import { spelled } from "./text.js";
import { OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfHead = {
  id: "head", title: "One head", about: "Where does one head look, and why there?",
  open: (glass) => new HeadView(glass),
  needs: ({ l, h }) => [`tiles/blocks.${l ?? 0}.attn.hook_pattern 0,${h ?? 0} log8`],
};

/** From scores to weights. */
const STAGES = [
  { id: "scores", title: "Scores", tensor: "hook_raw_scores", what: "score: query · key / √d" },
  { id: "mask", title: "Mask", tensor: "hook_attn_scores", what: "score, without what a token may not see" },
  { id: "weights", title: "Weights", tensor: "hook_pattern", what: "attention weight: each row sums to 1" },
];

/** Rows of the list of what is looked at. */
const LISTED = 12;

class HeadView extends OpenView {
  title = make("h2");
  stages = make(
    "div", { class: "segments", role: "group", "aria-label": "Stage" },
    ...STAGES.map(({ id, title }) => button(title, () => this.glass.go({ s: id }), { "data-stage": id })),
  );
  steps = make(
    "div", { class: "steps", role: "group", "aria-label": "Layer and head" }, ...this.stepButtons("l"),
    ...this.stepButtons("h"),
  );
  look = this.glass.lookTools("all");
  soon = make("p", { class: "hint" });
  heat = new HeatMap(this.glass.heat, {
    label: "Attention: rows look, columns are looked at",
    at: () => [this.q, this.k],
    choose: (q, k) => this.glass.go({ q, k }),
    words: (q, k, value) =>
      `${q} ${this.glass.label(q)} → ${k} ${this.glass.label(k)}: ${value}${this.rankInWords(q, k)}`,
  });
  element = div("head", div("tools", this.title, this.steps, this.stages, this.look), this.soon, this.heat.element);
  /** The rows of the chosen token, exactly, one for each stage. @type {{key: string, rows: number[][]} | null} */
  known = null;
  /** Names the rows that were asked for last. */
  rowsAsked = "";
  keys = {
    m: () => this.glass.go({ s: STAGES[(STAGES.indexOf(this.stage) + 1) % STAGES.length]?.id ?? "weights" }),
    p: () => this.heat.pin(),
  };

  get stage() {
    return STAGES.find(({ id }) => id === this.state.s) ?? /** @type {typeof STAGES[0]} */ (STAGES[2]);
  }

  /** Names the rows of the chosen token. */
  get key() {
    return `${this.run.id} ${this.other?.id ?? ""} ${this.glass.layer} ${this.glass.head} ${this.q}`;
  }

  /** The scores, the masked scores and the weights of the chosen token, where they are known. */
  get rows() {
    return this.known?.key === this.key ? this.known.rows : null;
  }

  /** The token that is looked at: the chosen one, else the one that is looked at most. */
  get k() {
    const weights = this.state.k === null ? this.rows?.[2] : undefined;
    return weights
      ? weights.reduce((most, weight, n) => (weight > (weights[most] ?? -Infinity) ? n : most), 0)
      : this.glass.k;
  }

  /** @param {string} tensor */
  name(tensor) {
    return `blocks.${this.glass.layer}.attn.${tensor}`;
  }

  /** Which of its row a weight is, where that is known. @param {number} q @param {number} k */
  rankInWords(q, k) {
    const [, scores = [], weights = []] = (q === this.q && this.rows) || [];
    const weight = weights[k];
    const isHidden = scores[k] === -Infinity || (this.model.causal && k > q);
    if (weight === undefined || isHidden || this.stage.id !== "weights" || this.other) return "";
    const rank = weights.filter((value) => value > weight).length + 1;
    const words = ["largest", "second largest", "third largest"][rank - 1] ?? `number ${rank}`;
    return `, ${words} of ${scores.filter((score) => score !== -Infinity).length}`;
  }

  async askRows() {
    const { key, glass } = this;
    if (this.rowsAsked === key) return;
    this.rowsAsked = key;
    const row = `0,${glass.head},${this.q},*`;
    try {
      const answers = await Promise.all(STAGES.map(({ tensor }) => glass.tensor(this.name(tensor), row)));
      if (key !== this.key) return;
      const number = (/** @type {any} */ value) =>
        typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value;
      this.known = { key, rows: answers.map(({ values }) => values.map(number)) };
      glass.go({}); // the shades and the list are known now
    } catch {
      this.rowsAsked = ""; // the picture says what is wrong
    }
  }

  drawNumbers() {
    const { glass, run, q, k, rows } = this;
    const [from, to] = [run.tokens[q], run.tokens[k]];
    if (!from || !to) return;
    fill(
      this.numbers, make("h2", spelled(from.piece), dim(" looks at "), spelled(to.piece)),
      ...(rows ? this.rowNumbers(rows) : []),
      headNumbers(glass, glass.layer, glass.head, null),
    );
  }

  /** @param {number[][]} rows */
  rowNumbers(rows) {
    const { glass, run, q, k, other } = this;
    const [score, masked, weight] = rows.map((row) => row[k]);
    const isHidden = masked === -Infinity;
    const facts = factList([
      ["score", short(score, 6)], ["after the mask", isHidden ? "−∞ (hidden)" : short(masked, 6)],
      ["weight", isHidden ? "0" : short(weight, 6)],
    ]);
    const why = whyLink(glass, this.name(this.stage.tensor), [0, glass.head, q, k]);
    const hands = isHidden ? "" : handsOn(glass, edgePart([glass.layer, glass.head, q, k]));
    const weights = (rows[2] ?? []).map((value, n) => ({ value: Number.isFinite(value) ? value : 0, n }));
    const present = weights.filter(({ value }) => value !== 0);
    const top = present.toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, LISTED);
    if (top.length === 0) return [facts, hands, why, remark("No weight of its row differs.")];
    const list = top.map(({ value, n }) => {
      const name = make("span", dim(`${n} `), spelled(/** @type {any} */ (run.tokens[n]).piece));
      return { name, value, text: short(value, 4), chosen: n === k, link: glass.link({ k: n }) };
    });
    const total = (/** @type {{value: number}[]} */ some) => some.reduce((sum, { value }) => sum + value, 0);
    const rest = total(weights) - total(top);
    if (Math.abs(rest) > 5e-5) {
      const name = make("span", `${present.length - top.length} others`);
      list.push({ name, value: rest, text: short(rest, 4), chosen: false, link: "" });
    }
    const table =
      other ? barTable("Weights of its row, minus the other’s", list) : barTable("Weights of its row", list, 1);
    return [facts, hands, why, table, make("p", { class: "sum" }, `sum ${total(weights).toFixed(4)}`)];
  }

  update() {
    const { run, other, glass, stage, heat } = this;
    const scores = run.layers[glass.layer]?.heads[glass.head];
    const kind = scores ? kindOf(scores) : null;
    const name = kind ? [dim(` ${kind.name} ${kind.value.toFixed(2)}`)] : [];
    fill(this.title, `L${glass.layer}H${glass.head}`, ...name);
    for (const each of this.stages.querySelectorAll("button")) {
      each.ariaPressed = `${each.dataset["stage"] === stage.id}`;
    }
    this.element.dataset["stage"] = stage.id;
    this.look.hidden = stage.id !== "weights" || other !== null;
    const isReady = run.done && (!other || other.done);
    this.soon.textContent = awaited(run, "the picture");
    this.soon.hidden = isReady || run.trouble !== null;
    heat.element.hidden = !isReady;
    if (isReady) {
      heat.show(this.picture());
      this.askRows();
    }
    this.drawNumbers();
  }

  /** @returns {import("./heat.js").Picture} */
  picture() {
    const { glass, run, other, stage } = this;
    const { palette, spread } = glass.look();
    const isWeights = stage.id === "weights";
    const isShare = isWeights && !other;
    const count = run.tokens.length;
    return {
      name: this.name(stage.tensor), index: [0, glass.head], rows: count, cols: count,
      code: isShare ? "log8" : other ? "slog8" : "lin8", pool: isShare ? "max" : "absmax",
      palette: isShare ? palette : "diverging",
      spread: isWeights ? spread : "linear", signed: !isShare, causal: this.model.causal && stage.id !== "scores",
      what: `${other ? "difference of the " : ""}${stage.what}`, axes: ["looks", "is looked at"], rowLabel: glass.label,
      colLabel: glass.label,
    };
  }

  close() {
    this.heat.close();
  }

  shade() {
    const { rows, other, q } = this;
    const sizes = rows?.[2]?.map((value) => (Number.isFinite(value) ? Math.abs(value) : 0));
    if (!sizes) return null;
    const most = Math.max(...sizes, 1e-30);
    const shades = sizes.map((size, n) => (this.model.causal && n > q ? null : Math.sqrt(size / most)));
    const range = `up to ${most < 1e-9 ? 0 : short(most, 3)}`;
    return {
      shades, kind: "weight",
      words: `Shade: how much ${other ? "more or less " : ""}token ${q} looks at each, ${range}`,
    };
  }

  tensor() {
    return { name: this.name(this.stage.tensor), at: [0, this.glass.head, this.q, this.k] };
  }
}
