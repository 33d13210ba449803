// Text and loss: how likely each token was, and where the number of its loss comes from.
import { whyWord } from "./address.js";
import { div, emptyCanvas, figure, fill, fontOf, inks, make } from "./dom.js";
import { on, plural, remark, short, sizeCanvas, turnedText } from "./dom.js";
import { liveGrid } from "./grid.js";
import { barTable, factList, share100, streamNumbers } from "./numbers.js";
import { aimOf, awaited, expectedAt, surpriseAt } from "./runs.js";
import { piece, spelled, spoken } from "./text.js";
import { headless, OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfText = {
  id: "text", title: "Text", about: "How likely was each token?", open: (glass) => new TextView(glass),
  missing: headless(": it is an encoder, and expects no next token. Its attention and its tensors are there."),
};

/** Rows of the list of what was expected. */
const LIKELY = 10;

/** The width of a bar, at most: a short text fills the chart, too. */
const WIDEST = 120;

/** The height of the chart. */
const HIGH = 200;

class TextView extends OpenView {
  canvas = make("canvas", { "aria-hidden": "true" });
  frame = div("chart");
  summary = make("p", { class: "lead" });
  line = make("p", { class: "cell-line" });
  sum = div("sum-of");
  columns = div("two");
  element = div("text", this.summary, this.frame, this.line, this.sum, this.columns);
  box = { left: 34, wide: 0, each: 1 };
  /** @type {number | null} */
  hovered = null;
  /** What was told last, and of which run. */
  told = "";
  drawn = "";
  /** What was expected at the places that were asked for. @type {Map<string, any>} */
  known = new Map();
  likelyAsked = "";

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const { frame } = this;
    this.grid = liveGrid({
      label: "Surprise of each token",
      size: () => [1, this.run.tokens.length],
      at: () => [0, this.q],
      move: (_, q) => glass.go({ q }),
      words: (_, q) => this.sentence(q),
    });
    frame.append(this.canvas, this.grid.element);
    const hover = (/** @type {number | null} */ n) => {
      if (n === this.hovered) return;
      this.hovered = n;
      this.line.textContent = this.sentence(n ?? this.q);
      this.draw();
    };
    const under = (/** @type {MouseEvent} */ event) => {
      const n = Math.floor((event.clientX - this.canvas.getBoundingClientRect().left - this.box.left) / this.box.each);
      return n >= 0 && n < this.run.tokens.length ? n : null;
    };
    on(frame, "pointermove", (event) => hover(event.pointerType === "touch" ? null : under(event)));
    on(frame, "pointerleave", () => hover(null));
    on(frame, "click", (event) => {
      const q = under(event);
      if (q !== null) glass.go({ q });
    });
    this.onResize(frame, () => this.layOut());
  }

  /** Of each token; with another run, by how much it is more. */
  get surprises() {
    const { run, other } = this;
    return run.tokens.map((_, n) => {
      const [nats, theirs] = [surpriseAt(run, n), other ? surpriseAt(other, n) : 0];
      return nats === null || theirs === null ? null : nats - theirs;
    });
  }

  /** @param {number} n */
  label(n) {
    const label = this.glass.label(n);
    return label.length > 11 ? `${label.slice(0, 10)}…` : label;
  }

  /** @param {number} n */
  sentence(n) {
    const { run } = this;
    const nats = this.surprises[n] ?? null;
    const token = run.tokens[n];
    if (!token) return "";
    const name = `token ${n} ${spoken(token.piece)}`;
    if (nats === null && n < run.ahead) return `${name}: nothing comes before it`;
    if (nats === null) return `${name}: ${run.done ? "no prediction" : awaited(run, "its probability")}`;
    if (this.other) return `${name}: ${short(nats, 4)} nats ${nats < 0 ? "less" : "more"} than in the other`;
    return `${name}: ${figure(nats, 3)} nats, probability ${share100(Math.exp(-nats))}`;
  }

  layOut() {
    const { frame, box, canvas } = this;
    const { tokens } = this.run;
    const wide = frame.clientWidth;
    if (!wide) return;
    box.wide = wide - box.left - 2;
    box.each = Math.min(WIDEST, box.wide / tokens.length);
    const context = canvas.getContext("2d");
    if (context) context.font = fontOf(frame);
    const longest = tokens.reduce((most, _, n) => Math.max(most, context?.measureText(this.label(n)).width ?? 0), 12);
    sizeCanvas(canvas, wide, HIGH + (box.each >= 11 ? 14 + longest : 24));
    this.draw();
  }

  draw() {
    const { box, q, surprises, hovered } = this;
    const context = box.wide && surprises.length > 0 ? emptyCanvas(this.canvas) : null;
    if (!context) return;
    const ink = inks(this.frame);
    const most = Math.max(1, ...surprises.map((nats) => Math.abs(nats ?? 0)));
    const least = surprises.some((nats) => (nats ?? 0) < 0) ? -most : 0;
    const y = (/** @type {number} */ nats) => 10 + (HIGH - 10) * (1 - (nats - least) / (most - least));
    const step = [0.5, 1, 2, 5, 10, 20].find((n) => (most - least) / n <= 6) ?? 50;
    for (let nats = Math.ceil(least / step) * step; nats <= most; nats += step) {
      context.fillStyle = ink("line");
      context.fillRect(box.left, y(nats), box.wide, 1);
      context.fillStyle = ink("dim");
      context.textAlign = "right";
      context.fillText(short(nats, 2), box.left - 6, y(nats));
    }
    const gap = box.each > 6 ? 2 : box.each > 3 ? 1 : 0;
    surprises.forEach((nats, n) => {
      if (nats === null) return;
      const [top, foot] = [y(Math.max(0, nats)), y(Math.min(0, nats))];
      context.fillStyle = ink(n === q ? "accent" : n === hovered ? "ink" : "bar");
      context.fillRect(
        box.left + n * box.each, top, Math.max(0.7, box.each - gap, n === q ? 2 : 0), Math.max(1, foot - top),
      );
    });
    const { loss } = this.run;
    if (loss !== null && !this.other) {
      context.setLineDash([4, 3]);
      context.strokeStyle = ink("dim");
      context.beginPath();
      context.moveTo(box.left, y(loss));
      context.lineTo(box.left + Math.min(box.wide, box.each * surprises.length), y(loss));
      context.stroke();
      context.setLineDash([]);
    }
    this.labelTokens(context, ink);
    context.fillStyle = ink("dim");
    context.textAlign = "left";
    context.fillText("nats", 0, 4);
    this.grid.put({ left: box.left + q * box.each - 1, top: 8, width: Math.max(4, box.each), height: HIGH - 6 });
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink */
  labelTokens(context, ink) {
    const { box, q } = this;
    const count = this.run.tokens.length;
    const stride = box.each >= 11 ? 1 : ([5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * box.each > 40) ?? count);
    context.textAlign = stride > 1 ? "center" : "right";
    for (let n = 0; n < count; n += stride) {
      const middle = box.left + (n + 0.5) * box.each - (box.each > 6 ? 1 : 0);
      context.fillStyle = ink(n === q ? "accent" : "dim");
      if (stride > 1) context.fillText(`${n}`, middle, HIGH + 14);
      else turnedText(context, this.label(n), middle, HIGH + 8);
    }
  }

  /** What was likely at a place: more of it is asked for than came with the run. @param {number} position */
  likely(position) {
    const { glass, run } = this;
    const key = `${run.id} ${position}`;
    const known = this.known.get(key);
    if (known || position < 0 || !run.done || this.likelyAsked === key) return known;
    this.likelyAsked = key;
    const use = (/** @type {any} */ answer) => {
      this.known.set(key, answer);
      if (this.q === position || this.q === position + 1) glass.go({});
    };
    // without an answer, what came with the run is there
    glass.ask(`predictions?position=${position}&k=${LIKELY}`).then(use, () => (this.likelyAsked = ""));
    return null;
  }

  /** @param {string} caption @param {number} position @param {number | undefined} chosen */
  expected(caption, position, chosen) {
    const { run, glass, state } = this;
    const row = run.predictions[position];
    if (!row) return [];
    const link = (/** @type {number} */ id) => glass.link(whyWord(state, position, `${id}`));
    /** @type {[number, string, number][]} */
    const top = this.likely(position)?.top ?? row.top;
    const rows = top.map(([id, text, p]) =>
      ({ name: spelled(piece(text)), value: p, text: share100(p), chosen: id === chosen, link: link(id) }));
    const token = aimOf(run, position);
    if (chosen !== undefined && token && row.logprob !== null && !top.some(([id]) => id === chosen)) {
      const p = Math.exp(row.logprob);
      rows.push({ name: spelled(token.piece), value: p, text: share100(p), chosen: true, link: link(token.id) });
    }
    return [barTable(caption, rows, 1)];
  }

  update() {
    const { run, q, grid, other } = this;
    const now = `${run.id} ${q} ${run.predictions.length} ${run.done} ${other?.done} ${this.known.size}`;
    if (!this.box.wide || run.id !== this.drawn) this.layOut();
    this.drawn = run.id;
    this.draw();
    if (now === this.told) return;
    this.told = now;
    this.line.textContent = this.sentence(q);
    fill(this.summary, ...this.summaryParts());
    fill(this.sum, ...this.sumParts());
    const token = run.tokens[q];
    const what = run.ahead ? `Before token ${q}: what was likely` : `In place of token ${q}: what is likely`;
    const here = token ? this.expected(what, q - run.ahead, token.id) : [];
    const next = run.ahead ? this.expected(`After token ${q}: what is likely`, q, run.tokens[q + 1]?.id) : [];
    fill(this.columns, ...here, ...next);
    this.drawNumbers();
    grid.tell();
  }

  /** The loss of the text. */
  summaryParts() {
    const { loss, done, counted } = this.run;
    if (loss === null) return [done ? "Nothing to predict in this text." : "…"];
    const theirs = this.other?.loss ?? null;
    const perplexity = `perplexity ${short(Math.exp(loss), 4)}`;
    return [
      make("strong", `${short(loss, 4)} nats`),
      ` a token on the average of ${plural(counted, "token")}; ${perplexity}`,
      theirs === null ? "" : `; the other: ${short(theirs, 4)} nats`,
    ];
  }

  /** Where the loss of the chosen token comes from. */
  sumParts() {
    const before = expectedAt(this.run, this.q);
    if (!before || before.logprob === null) return [];
    const logit = before.logit === null ? "" : `= ${short(before.lse, 6)} − ${short(before.logit, 6)} `;
    const title = "log of the sum of all exp(logit), minus this token’s logit";
    const nats = make("strong", `= ${short(-before.logprob, 6)} nats`);
    return [
      make("p", { class: "equation" }, make("span", "−ln p "), make("span", { title }, logit), nats),
      remark("logsumexp of all logits, minus the logit of this token"),
    ];
  }

  drawNumbers() {
    const { run, q, glass } = this;
    const token = run.tokens[q];
    const before = expectedAt(run, q);
    const after = run.predictions[q];
    const logprob = before?.logprob ?? null;
    const facts = factList([
      ["id", token ? `${token.id}` : null],
      ["probability", logprob === null ? null : share100(Math.exp(logprob))],
      ["rank", before?.rank ? `${before.rank} of ${figure(this.model.vocab_size, 0)}` : null],
      [run.ahead ? "entropy before it" : "entropy in its place", before ? `${short(before.entropy, 4)} nats` : null],
      ["entropy after it", after && run.ahead ? `${short(after.entropy, 4)} nats` : null],
    ]);
    const name = make("h2", "Token ", `${q} `, token ? spelled(token.piece) : "");
    fill(this.numbers, make("section", name, facts), streamNumbers(glass, q));
  }

  tensor() {
    return { name: "logits", at: [0, this.q, aimOf(this.run, this.q)?.id ?? 0] };
  }
}
