// The lens: what the model would say after each layer if that were its last. Rows are tokens, columns are stages.
import { anchor, dim, div, fill, isModified, make, on, plural, remark, short } from "./dom.js";
import { cellByKey } from "./grid.js";
import { barTable, factList, share100 } from "./numbers.js";
import { awaited, onOneLine } from "./runs.js";
import { piece, spelled, spoken } from "./text.js";
import { headless, OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfLens = {
  id: "lens", title: "Lens", about: "What would it say after each layer?", open: (glass) => new LensView(glass),
  missing: headless(", so no layer can be read as an expectation. Its attention and its tensors are there."),
  needs(state, glass) {
    const count = glass.run.tokens.length;
    const from = Math.floor(Math.min(state.q ?? count - 1, count - 1) / WINDOW) * WINDOW;
    return [`lens?positions=${from}:${Math.min(count, from + WINDOW)}&k=5`];
  },
};

/** Tokens that are asked for at once, and so shown. */
const WINDOW = 32;

class LensView extends OpenView {
  head = make("thead");
  body = make("tbody");
  table = make(
    "table", { role: "grid", class: "lens-table", "aria-label": "The likeliest token after each layer" }, this.head,
    this.body,
  );
  note = remark("Reading every layer …");
  pages = remark();
  line = make("p", { class: "cell-line" });
  legend = remark(
    `Shade: how likely that token is. Ring: it is the token that ${this.model.causal ? "follows" : "stands there"}. ` +
      "Line at the left: from this stage on, the likeliest token stays the same.",
  );
  element = div("lens", this.notice, this.pages, div("wide", this.table), this.line, this.legend, this.note);
  /** Answers of both runs, by window. @type {Map<string, [any, any]>} */
  known = new Map();
  laid = "";

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const cellUnder = (/** @type {Event} */ { target }) => {
      const cell = target instanceof Element ? target.closest("[data-at]") : null;
      const [q, stage] = cell?.getAttribute("data-at")?.split(",").map(Number) ?? [];
      return q === undefined || stage === undefined ? null : { cell, q, stage };
    };
    on(this.body, "click", (event) => {
      const under = cellUnder(event);
      if (!under) return;
      if (under.cell instanceof HTMLElement) under.cell.focus({ preventScroll: true });
      this.choose(under.q, under.stage);
    });
    on(this.body, "pointerover", (event) => {
      const { q, stage } = cellUnder(event) ?? this;
      this.line.textContent = this.sentence(q, stage);
    });
    on(this.body, "pointerleave", () => (this.line.textContent = this.sentence(this.q, this.stage)));
    on(this.body, "keydown", (event) => {
      if (isModified(event) || !this.stages.length) return;
      const next = cellByKey(event, [this.q, this.stage], [this.run.tokens.length, this.stages.length], 1);
      if (next) this.choose(...next);
    });
  }

  /** The first token that is shown. */
  get from() {
    return Math.floor(this.q / WINDOW) * WINDOW;
  }

  get to() {
    return Math.min(this.run.tokens.length, this.from + WINDOW);
  }

  get key() {
    return `${this.glass.runs} ${this.from}`;
  }

  get ours() {
    return this.known.get(this.key)?.[0];
  }

  /** @returns {string[]} */
  get stages() {
    return this.ours?.stages ?? [];
  }

  /** The chosen stage: else the last. */
  get stage() {
    const said = Number(this.more["stage"] ?? NaN);
    return Number.isInteger(said) && said >= 0 && said < this.stages.length ? said : this.stages.length - 1;
  }

  /** @param {number} stage */
  stageInWords(stage) {
    const name = this.stages[stage] ?? "";
    return name === "embed" ? "before the layers" : `after layer ${name}`;
  }

  /** @param {number} q @param {number} stage */
  choose(q, stage) {
    this.glass.go({ q, ...this.with({ stage: `${stage}` }) });
  }

  update() {
    if (!this.run.done) {
      this.note.textContent = awaited(this.run, "the lens");
      return;
    }
    const { key, other, glass } = this;
    const question = `lens?positions=${this.from}:${this.to}&k=5`;
    const ask = () =>
      other?.tokens.length === this.run.tokens.length
        ? glass.askBoth(question)
        : Promise.all([glass.ask(question), null]);
    if (!this.known.has(key)) {
      this.askOnce(key, ask, (answers) => {
        this.known.set(key, answers);
        glass.go({}); // the shades are known now
      });
    }
    this.show();
  }

  /** What it would say at a token after a stage. @param {number} q @param {number} stage */
  cellAt(q, stage) {
    return this.ours?.positions[q - this.from]?.cells[stage];
  }

  /** @param {number} q @param {number} stage */
  sentence(q, stage) {
    const cell = this.cellAt(q, stage);
    if (!cell) return "…";
    const [, text, p] = cell.top[0];
    const target = `; the token that ${this.model.causal ? "follows" : "stands there"} has rank ${cell.rank}`;
    const rank = cell.rank === null || cell.rank === undefined ? "" : target;
    return `${q} ${this.glass.label(q)}, ${this.stageInWords(stage)}: ${spoken(piece(text))} ${share100(p)}${rank}`;
  }

  show() {
    const { ours, key, body, q, stage } = this;
    this.legend.hidden = this.table.hidden = !ours;
    const laid = `${key} ${q} ${stage}`;
    if (!ours || this.laid === laid) return;
    const hasFocus = body.contains(document.activeElement);
    if (!this.laid.startsWith(key)) this.drawTable();
    this.laid = laid;
    for (const before of body.querySelectorAll("[aria-selected], [tabindex='0']")) {
      before.ariaSelected = null;
      before.setAttribute("tabindex", "-1");
    }
    const chosen = body.querySelector(`[data-at="${q},${stage}"]`);
    const sentence = this.sentence(q, stage);
    chosen?.setAttribute("aria-selected", "true");
    chosen?.setAttribute("tabindex", "0");
    chosen?.setAttribute("aria-label", sentence);
    if (hasFocus && chosen instanceof HTMLElement) chosen.focus();
    this.line.textContent = sentence;
    this.drawNumbers();
  }

  drawTable() {
    const { ours, from, to, glass } = this;
    this.note.textContent = ours.note;
    const stages =
      this.stages.map((name, stage) => make("th", { scope: "col", title: this.stageInWords(stage) }, name));
    fill(this.head, make("tr", make("td", { class: "dim" }, "token \\ after layer"), ...stages));
    fill(this.body, ...ours.positions.map((/** @type {any} */ row, /** @type {number} */ n) =>
      this.rowOf(row, from + n)));
    const count = this.run.tokens.length;
    const before = from > 0 ? [anchor(glass.link({ q: from - WINDOW }), "before"), " "] : [];
    const after = to < count ? [anchor(glass.link({ q: to }), "after")] : [];
    fill(this.pages, ...(count > WINDOW ? [`Tokens ${from} to ${to - 1} of ${count}. `, ...before, ...after] : []));
  }

  /** @param {any} row @param {number} q */
  rowOf({ cells, settled }, q) {
    const token = this.run.tokens[q];
    const boxes = cells.map((/** @type {any} */ cell, /** @type {number} */ stage) => {
      const [, text, p] = cell.top[0];
      const kind = [cell.rank === 1 ? "ring" : "", stage === settled ? "settled" : ""].join(" ").trim() || null;
      const box = make(
        "td", { role: "gridcell", tabindex: "-1", "data-at": `${q},${stage}`, class: kind }, onOneLine(piece(text)),
      );
      box.style.setProperty("--shade", `${p}`);
      return box;
    });
    return make("tr", make("th", { scope: "row" }, dim(`${q} `), token ? spelled(token.piece) : ""), ...boxes);
  }

  drawNumbers() {
    const { q, stage, glass } = this;
    const [row, other] = (this.known.get(this.key) ?? []).map((answer) => answer?.positions[q - this.from]);
    const cell = row?.cells[stage];
    if (!cell) return fill(this.numbers);
    const token = this.run.tokens[q];
    const bars = (/** @type {string} */ caption, /** @type {any} */ { top }) => barTable(
      caption,
      top.map((/** @type {any} */ [id, text, p]) =>
        ({ name: spelled(piece(text)), value: p, text: share100(p), chosen: id === row.target?.[0] })),
      1,
    );
    const what = this.model.causal ? "what follows" : "what stands there";
    const facts = factList([
      ["entropy", `${short(cell.entropy, 4)} nats`], ["KL from it to the last", `${short(cell.kl, 4)} nats`],
      [`rank of ${what}`, cell.rank ? `${cell.rank}` : null], ["stays from", this.stageInWords(row.settled)],
    ]);
    const parts = [make(
      "section", make("h2", token ? spelled(token.piece) : "", dim(` ${this.stageInWords(stage)}`)),
      bars(`What it would expect ${this.model.causal ? "next" : "here"}`, cell),
      ...(other?.cells[stage] ? [bars("The other", other.cells[stage])] : []), facts,
    )];
    if (row.target) {
      const rows = row.cells.map(
        (/** @type {any} */ { p }, /** @type {number} */ n) => ({
          name: this.stages[n] ?? "", value: p ?? 0, text: share100(p ?? 0), chosen: n === stage,
          link: glass.link(this.with({ stage: `${n}` })),
        }),
      );
      parts.push(
        make(
          "section",
          barTable(`Probability of ${what} (${onOneLine(piece(row.target[1]))}), stage by stage`, rows, 1),
        ),
      );
    }
    fill(this.numbers, ...parts);
  }

  shade() {
    const { from, to, stage } = this;
    if (!this.ours) return null;
    const shades =
      this.run.tokens.map((_, n) => (n >= from && n < to ? (this.cellAt(n, stage)?.top[0][2] ?? null) : null));
    const words = `Shade: how sure it would be ${this.stageInWords(stage)}, of ${plural(to - from, "token")}`;
    return { shades, kind: "weight", words };
  }

  tensor() {
    const name = this.stages[this.stage] ?? "";
    const stream = name === "embed" || name === "" ? "blocks.0.hook_resid_pre" : `blocks.${name}.hook_resid_post`;
    return { name: stream, at: [0, this.q, 0] };
  }
}
