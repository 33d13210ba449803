// The map: what the model does with the prompt, in one screen. Rows are layers: what each head looks at, how much
// attention and MLP write, and how long each token's vector is after it.
import { whyWord } from "./address.js";
import { anchor, dim, div, emptyCanvas, fill, inks, make, on, plural, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { DIFFERENCES, drawHead, followHeads, headSheets, kindOf } from "./heads.js";
import { labelHeads, noHabit, rowHeight, weightScale } from "./heads.js";
import { legendOf, palette } from "./colours.js";
import { headNumbers, share100, signed, streamNumbers, tensorLink, tokenNumbers } from "./numbers.js";
import { surpriseAt } from "./runs.js";
import { piece, spelled } from "./text.js";
import { OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfMap =
  { id: "map", title: "Map", about: "What does the model do with this text?", open: (glass) => new MapView(glass) };

class MapView extends OpenView {
  sheetOf = headSheets();
  canvas = make("canvas", { "aria-hidden": "true" });
  frame = div("ladder");
  reading = div("reading");
  above = make("p", { class: "flow" });
  below = make("p", { class: "flow" });
  legend = div("legend-of");
  element = div("map", this.reading, this.above, this.frame, this.legend, this.below);
  /** @type {{l: number, h: number} | null} */
  hovered = null;
  told = "";
  size = { thumb: 0, pitch: 0, row: 0, left: 40, top: 20, strip: 0, stripAt: 0 };

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const { frame } = this;
    this.grid = liveGrid({
      label: "Heads: rows are layers",
      size: () => [this.run.depth, this.run.heads],
      at: () => [glass.layer, glass.head],
      move: (l, h) => glass.go({ l, h }),
      open: () => glass.go({ v: "head", l: glass.layer, h: glass.head }, "new"),
      words: (l, h) => headInWords(this.run, l, h),
    });
    frame.append(this.canvas, this.grid.element);
    const headUnder = (/** @type {PointerEvent} */ event) => {
      const { l, h } = this.under(event) ?? {};
      return l === undefined || h === undefined ? null : { l, h };
    };
    followHeads(frame, headUnder, (head) => {
      this.hovered = head;
      this.draw();
      this.drawNumbers();
    });
    on(frame, "pointermove", (event) => frame.classList.toggle("can", this.under(event) !== null));
    on(frame, "click", (event) => {
      const under = this.under(event);
      if (!under) return;
      const { l, h, q } = under;
      if (h === undefined) return glass.go({ q: q ?? 0 });
      // a first tap tells, a second opens; a mouse has told already
      const isAgain = this.state.l === l && this.state.h === h;
      if (isAgain || this.hovered) return glass.go({ v: "head", l, h }, "new");
      glass.go({ l, h });
    });
    this.onResize(frame, () => this.layOut());
  }

  layOut() {
    const { size, frame } = this;
    const { depth, heads } = this.run;
    const wide = frame.clientWidth;
    if (!wide || !heads) return;
    const strip = wide > 520 ? Math.max(200, wide * 0.3) : 0;
    // all layers in sight, where that leaves room to see something
    const high = rowHeight(frame, depth, 110) - 14;
    size.pitch = Math.min((wide - size.left - strip) / heads, Math.max(high, depth > 6 ? 34 : 60), 150);
    size.thumb = Math.max(6, size.pitch - (size.pitch > 30 ? 5 : 2));
    size.row = size.pitch + (size.thumb > 34 ? 14 : 0);
    size.stripAt = size.left + size.pitch * heads + 18;
    size.strip = strip ? Math.min(wide - size.stripAt - 2, 560) : 0;
    sizeCanvas(this.canvas, wide, size.top + size.row * depth + 2);
    this.draw();
  }

  /** The length of each token's vector after a layer; with another run, by how much it is more. @param {number} l */
  lengths(l) {
    const theirs = this.other?.layers[l]?.norms["resid_post"];
    const ours = this.run.layers[l]?.norms["resid_post"] ?? [];
    return theirs ? ours.map((norm, q) => norm - (theirs[q] ?? norm)) : ours;
  }

  draw() {
    const { size, run, glass } = this;
    const context = size.thumb ? emptyCanvas(this.canvas) : null;
    if (!context) return;
    const ink = inks(this.frame);
    context.fillStyle = ink("dim");
    context.fillText("layer", 0, 8);
    labelHeads(context, run.heads, size);
    context.textAlign = "left";
    // the first token's vector is often far longer than the others: they set the measure
    const most = run.layers.reduce((longest, _, l) => {
      const lengths = this.lengths(l);
      return lengths.slice(lengths.length > 1 ? 1 : 0).reduce((a, norm) => Math.max(a, Math.abs(norm)), longest);
    }, 1e-30);
    if (size.strip) this.drawStripHead(context, ink, most);
    this.drawLegend();
    for (let l = 0; l < run.depth; l++) {
      const y = size.top + l * size.row;
      context.fillStyle = ink("dim");
      context.textAlign = "right";
      context.fillText(`${l}`, size.left - 12, y + size.thumb / 2);
      context.textAlign = "left";
      for (let h = 0; h < run.heads; h++) this.drawHead(context, ink, l, h);
      const layer = run.layers[l];
      if (!layer || !size.strip) continue;
      this.drawWrites(context, ink, layer.norms, y);
      this.drawLengths(context, ink, this.lengths(l), { y, most });
    }
    const box = size.thumb + 4;
    this.grid.put({
      left: size.left + glass.head * size.pitch - 2, top: size.top + glass.layer * size.row - 2, width: box,
      height: box,
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {number} most */
  drawStripHead(context, ink, most) {
    const { stripAt, strip } = this.size;
    for (const [n, word] of ["attn", "mlp"].entries()) {
      context.fillStyle = ink(n ? "mlp" : "accent");
      context.fillRect(stripAt + 38 * n, 5, 7, 7);
      context.fillStyle = ink("dim");
      context.fillText(word, stripAt + 38 * n + 10, 8);
    }
    const what = strip > 320 && !this.other ? "length of each token’s vector" : "length";
    context.fillText(`${what}, ${this.other ? "±" : "0 to "}${short(most, 3)}`, stripAt + WRITES, 8);
  }

  drawLegend() {
    const look = this.glass.look();
    const isDifference = this.other !== null;
    const strip = ". attn, mlp: length of what is written as a share of the stream’s; a full bar is 1 or more";
    const weights = `${isDifference ? "difference of weights" : "weight"}: rows look, columns are looked at`;
    const colours = palette(isDifference ? "diverging" : look.palette, look.dark);
    const scale = isDifference ? DIFFERENCES : weightScale(look.spread);
    fill(this.legend, legendOf(colours, scale, weights + (this.size.strip ? strip : "")));
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {number} l @param {number} h
   */
  drawHead(context, ink, l, h) {
    const { run, hovered } = this;
    const { left, top, pitch, row, thumb } = this.size;
    const [x, y] = [left + h * pitch, top + l * row];
    const layer = run.layers[l];
    const sheet = layer && this.sheetOf(run, this.other, l, this.glass.look());
    context.fillStyle = ink("panel");
    context.fillRect(x, y, thumb, thumb);
    if (sheet) drawHead(context, sheet, run.side, h, { x, y, size: thumb });
    context.strokeStyle = ink("line");
    context.strokeRect(x - 0.5, y - 0.5, thumb + 1, thumb + 1);
    const scores = layer?.heads[h];
    const kind = scores && thumb > 34 ? kindOf(scores) : null;
    if (kind && kind.key !== "entropy") {
      const value = thumb > 74 ? ` ${kind.value.toFixed(2).replace(/^0/, "")}` : "";
      context.fillStyle = ink("dim");
      context.save();
      context.font = context.font.replace("11px", "10px");
      context.fillText(kind.name + value, x, y + thumb + 9);
      context.restore();
    }
    if (hovered?.l === l && hovered.h === h) {
      context.strokeStyle = ink("accent");
      context.strokeRect(x - 1.5, y - 1.5, thumb + 3, thumb + 3);
    }
  }

  /**
   * How much attention and MLP add, beside what was there.
   * @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink
   * @param {Record<string, number[]>} norms @param {number} y
   */
  drawWrites(context, ink, norms, y) {
    const { stripAt: x, thumb } = this.size;
    const wide = WRITES - 16;
    const thick = Math.min(7, thumb / 4);
    // beside attention, the feed-forward network reads what the block does
    const stream = norms["resid_mid"] ?? norms["resid_pre"];
    [meanRatio(norms["attn_out"], norms["resid_pre"]), meanRatio(norms["mlp_out"], stream)].forEach((share, n) => {
      const top = y + (thumb * (n + 0.5)) / 2 - thick / 2;
      context.fillStyle = ink("line");
      context.fillRect(x, top, wide, thick);
      context.fillStyle = ink(n ? "mlp" : "accent");
      context.fillRect(x, top, wide * Math.min(1, share), thick);
    });
  }

  /**
   * A bar for each token; of differences, up and down from the middle.
   * @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {number[]} lengths
   * @param {{y: number, most: number}} scale
   */
  drawLengths(context, ink, lengths, { y, most }) {
    const { q, size } = this;
    const isDifference = this.other !== null;
    const x = size.stripAt + WRITES;
    const each = barWidth(size.strip - WRITES, lengths.length);
    const room = size.thumb / (isDifference ? 2 : 1);
    const foot = y + room;
    lengths.forEach((norm, n) => {
      const high = Math.max(1, room * Math.min(1, Math.abs(norm) / most));
      const wide = Math.max(each - (each > 5 ? 1 : 0), n === q ? 2 : 0.5);
      context.fillStyle = ink(n === q ? "accent" : "bar");
      context.fillRect(x + n * each, isDifference && norm < 0 ? foot : foot - high, wide, high);
    });
    context.fillStyle = ink("line");
    context.fillRect(x, foot, each * lengths.length, 1);
  }

  /**
   * The head under the pointer, or the token in the strip.
   * @param {MouseEvent} event @returns {{l: number, h?: number, q?: number} | null}
   */
  under(event) {
    const { canvas, size, run } = this;
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const [l, h] = [Math.floor((y - size.top) / size.row), Math.floor((x - size.left) / size.pitch)];
    if (l < 0 || l >= run.depth) return null;
    if (h >= 0 && h < run.heads) return { l, h };
    const q = Math.floor((x - size.stripAt - WRITES) / barWidth(size.strip - WRITES, run.tokens.length));
    return size.strip && q >= 0 && q < run.tokens.length ? { l, q } : null;
  }

  drawNumbers() {
    const { glass, run, q } = this;
    const { l, h } = this.state;
    const head = this.hovered ?? (l !== null && h !== null ? { l: glass.layer, h: glass.head } : null);
    const sheet = head && this.sheetOf(run, this.other, head.l, glass.look());
    const numbers = head && run.layers[head.l] ? [headNumbers(glass, head.l, head.h, sheet)] : [];
    fill(this.numbers, ...numbers, tokenNumbers(glass, q), streamNumbers(glass, q));
  }

  update() {
    const { run, glass } = this;
    const now = `${run.id} ${this.q} ${run.layers.length} ${run.predictions.length} ${run.done} ${this.other?.done}`;
    if (now !== this.told) {
      this.told = now;
      fill(this.reading, ...[expectation(glass), facts(glass), habits(glass)].filter((line) => line !== null));
      drawFlow(glass, this.above, this.below);
      if (!this.size.thumb || run.layers.length < 2) this.layOut();
    }
    this.draw();
    this.drawNumbers();
    this.grid.tell();
  }

  tensor() {
    const { layer, head, q, k } = this.glass;
    return { name: `blocks.${layer}.attn.hook_pattern`, at: [0, head, q, k] };
  }
}

/** Room for what a layer writes. */
const WRITES = 86;

/** @param {number} wide @param {number} count */
const barWidth = (wide, count) => Math.min(40, wide / count);

/** @param {number[] | undefined} part @param {number[] | undefined} whole */
function meanRatio(part = [], whole = []) {
  return part.reduce((sum, norm, n) => sum + norm / (whole[n] || Infinity), 0) / Math.max(1, part.length);
}

/** @param {import("./runs.js").Run} run @param {number} l @param {number} h */
function headInWords(run, l, h) {
  const scores = run.layers[l]?.heads[h];
  if (!scores) return `L${l}H${h}: not there yet`;
  const kind = kindOf(scores);
  const even = scores.entropy === null ? "" : `, evenness ${short(scores.entropy, 2)}`;
  return `L${l}H${h}: ${kind ? `${kind.name} ${short(kind.value, 2)}` : "mixed"}${even}`;
}

/** What a head of a kind looks at. @type {Record<string, string>} */
const HABITS = {
  previous: "the token before", self: "the token itself", first: "the first token",
  duplicate: "earlier tokens that are the same",
  induction: "what followed an earlier token that is the same",
};

/** What the model expects at the chosen token; null where it expects nothing. @param {Glass} glass */
function expectation(glass) {
  const { run, q, state } = glass;
  const [next, ...others] = run.predictions[q]?.top.slice(0, 4) ?? [];
  const token = run.tokens[q];
  if (!next || !token) return null;
  const why = (/** @type {number} */ id) => glass.link(whyWord(state, q, `${id}`));
  const [id, text, p] = next;
  const likeliest = make("a", { class: "likeliest", href: why(id) }, make("strong", spelled(piece(text))));
  const rest = others.flatMap(([other, word, share]) =>
    ["  ", make("span", { class: "dim whole" }, anchor(why(other), spelled(piece(word))), ` ${share100(share)}`)]);
  return make(
    "p", { class: "lead" }, run.ahead ? "After " : "In place of ", spelled(token.piece), " it expects ", likeliest,
    dim(` ${share100(p)}`), ...rest,
    dim("  Click a word to see why."),
  );
}

/** How well the model expected the text; null where that is not known. @param {Glass} glass */
function facts(glass) {
  const { run, other } = glass;
  const line = make("p");
  const worst = largestAt(run, (n) => surpriseAt(run, n) ?? -1);
  if (run.loss !== null && worst.value >= 0) {
    line.append(`${short(run.loss, 3)} nats a token, perplexity ${short(Math.exp(run.loss), 3)}; least expected: `);
    if (worst.token) {
      line.append(anchor(glass.link({ q: worst.n }), spelled(worst.token.piece)), ` (${short(worst.value, 3)} nats).`);
    }
  }
  if (other) {
    const difference = (/** @type {number} */ n) => (surpriseAt(run, n) ?? 0) - (surpriseAt(other, n) ?? 0);
    const { n, token, value } = largestAt(run, (position) => Math.abs(difference(position)));
    const link = token && value !== 0 ? anchor(glass.link({ q: n }), spelled(token.piece)) : null;
    if (link) line.append(" Surprise differs most at ", link, ` (${signed(difference(n))} nats).`);
  }
  return line.hasChildNodes() ? line : null;
}

/**
 * The first token at which something is largest.
 * @param {import("./runs.js").Run} run @param {(position: number) => number} valueAt
 */
function largestAt({ tokens }, valueAt) {
  const n = [...tokens.keys()].reduce((most, position) => (valueAt(position) > valueAt(most) ? position : most), 0);
  return { n, token: tokens[n], value: tokens[n] ? valueAt(n) : -1 };
}

/** What heads look at, with links to those that do so most; null where there are none yet. @param {Glass} glass */
function habits(glass) {
  const { run } = glass;
  /**
   * By what they look at, and whether most of the weight is there.
   * @type {Map<string, {l: number, h: number, value: number}[]>}
   */
  const heads = new Map();
  run.layers.forEach((layer, l) => layer?.heads.forEach((scores, h) => {
    const kind = kindOf(scores);
    if (!kind || kind.key === "entropy") return;
    const habit = `${kind.value > 0.5 ? "mostly" : "partly"} at ${HABITS[kind.name] ?? kind.name}`;
    heads.set(habit, [...(heads.get(habit) ?? []), { l, h, value: kind.value }]);
  }));
  const listed = [...heads].map(([habit, some]) => {
    const best = some.sort((a, b) => b.value - a.value).slice(0, 3);
    const links = best.flatMap(({ l, h }, n) => [n ? ", " : "", anchor(glass.link({ v: "head", l, h }), `L${l}H${h}`)]);
    const looks = `${plural(some.length, "head")} ${some.length === 1 ? "looks" : "look"} ${habit} (`;
    return make("span", looks, ...links, some.length > 3 ? ", …" : "", ")");
  });
  if (listed.length > 0) return make("p", ...listed.flatMap((span, n) => (n ? ["; ", span] : [span])), ".");
  return run.done && run.tokens.length > 1 ? make("p", noHabit(run)) : null;
}

/**
 * What comes before and after the layers, with links to the tensors.
 * @param {Glass} glass @param {HTMLElement} above @param {HTMLElement} below
 */
function drawFlow(glass, above, below) {
  const { d_model: width, vocab_size: vocabulary, final_norm: norm, lm_head: head } = glass.model;
  const { tokens: { length }, depth } = glass.run;
  const tensor = (/** @type {string} */ name, /** @type {number} */ size) => {
    const link = tensorLink(glass, name);
    link.append(dim(` ${length} × ${size}`));
    return link;
  };
  const embedded = [tensor("hook_embed", width), " + position → ", tensor("blocks.0.hook_resid_pre", width)];
  const normed = norm ? [" → ", tensor("ln_final.hook_out", width)] : [];
  const logits = head ? [" → ", tensor("logits", vocabulary)] : [];
  fill(above, plural(length, "token"), " → ", ...embedded);
  fill(below, tensor(`blocks.${depth - 1}.hook_resid_post`, width), ...normed, ...logits);
}
