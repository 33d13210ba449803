// All heads beside each other: as pictures, or coloured by a score; by layer, or the most telling first.
import { div, emptyCanvas, fill, inks, make, on, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { DIFFERENCES, SCORES, drawHead, followHeads, headSheets } from "./heads.js";
import { kindOf, labelHeads, rowHeight, scoreOf, weightScale } from "./heads.js";
import { inkOn } from "./heat-paint.js";
import { headNumbers } from "./numbers.js";
import { legendOf, palette, placeOf } from "./colours.js";
import { OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfHeads =
  { id: "heads", title: "All heads", about: "What does each head look at?", open: (glass) => new HeadsView(glass) };

/** The height of the word below a head. */
const WORD = 13;

/** What heads are coloured by. */
const COLOURS = [{ key: "pattern", name: "attention" }, ...SCORES];

class HeadsView extends OpenView {
  sheetOf = headSheets();
  canvas = make("canvas", { "aria-hidden": "true" });
  frame = div("mosaic");
  legend = div("legend-of");
  line = make("p", { class: "cell-line" });
  colour = make("select", { "aria-label": "Coloured by" }, ...COLOURS.map(({ key, name }) =>
    make("option", { value: key }, name)));
  order = make(
    "select", { "aria-label": "Order" }, make("option", { value: "layer" }, "layer"),
    ...SCORES.map(({ key, name }) => make("option", { value: key }, name)),
  );
  element = div(
    "heads", div(
      "tools", make("label", "Colour ", this.colour), make("label", "Order ", this.order),
      this.glass.lookTools("all"),
    ),
    this.frame, this.line, this.legend,
  );
  size = { pitch: 0, thumb: 0, row: 0, left: 34, top: 20, columns: 1 };
  /** @type {{l: number, h: number} | null} */
  hovered = null;

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const { frame, size } = this;
    const headAt = (/** @type {number} */ row, /** @type {number} */ col) => this.heads[row * size.columns + col];
    this.grid = liveGrid({
      label: "Heads",
      size: () => [Math.ceil(this.heads.length / size.columns), size.columns],
      at: () => this.place,
      move: (row, col) => glass.go(headAt(row, col) ?? this.heads.at(-1) ?? {}),
      open: () => glass.go({ v: "head", ...this.chosen }, "new"),
      words: (row, col) => this.sentence(headAt(row, col) ?? { l: 0, h: 0 }),
    });
    frame.append(this.canvas, this.grid.element);
    on(this.colour, "change", () => glass.go({ m: this.colour.value }));
    on(this.order, "change", () => glass.go({ o: this.order.value }));
    const under = (/** @type {MouseEvent} */ event) => {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top - size.top) / size.row);
      const col = Math.floor((event.clientX - box.left - size.left) / size.pitch);
      return row >= 0 && col >= 0 && col < size.columns ? (headAt(row, col) ?? null) : null;
    };
    followHeads(frame, under, (head) => {
      this.hovered = head;
      this.draw();
      this.tell();
    });
    on(frame, "click", (event) => {
      const head = under(event);
      if (!head) return;
      const { l, h } = this.state;
      if (this.hovered || (l === head.l && h === head.h)) glass.go({ v: "head", ...head }, "new");
      else glass.go(head);
    });
    this.onResize(frame, () => this.layOut());
  }

  /** The heads in their order: rows of a grid. @returns {{l: number, h: number}[]} */
  get heads() {
    const { run } = this;
    const all =
      Array.from({ length: run.depth * run.heads }, (_, n) => ({ l: Math.floor(n / run.heads), h: n % run.heads }));
    const { o } = this.state;
    if (o === "layer") return all;
    const score = (/** @type {{l: number, h: number}} */ { l, h }) => {
      const scores = run.layers[l]?.heads[h];
      return (scores && scoreOf(scores, o)) ?? -Infinity;
    };
    return all.sort((a, b) => score(b) - score(a));
  }

  get chosen() {
    return { l: this.glass.layer, h: this.glass.head };
  }

  /** Where the chosen head is. @returns {[number, number]} */
  get place() {
    const { l, h } = this.chosen;
    const n = Math.max(0, this.heads.findIndex((head) => head.l === l && head.h === h));
    return [Math.floor(n / this.size.columns), n % this.size.columns];
  }

  /** @param {{l: number, h: number}} head */
  sentence({ l, h }) {
    const scores = this.run.layers[l]?.heads[h];
    if (!scores) return `L${l}H${h}`;
    const kind = kindOf(scores);
    const name = SCORES.find(({ key }) => key === this.state.m)?.name;
    const value = scoreOf(scores, this.state.m);
    const shown = name ? `, ${name} ${value === null ? "undefined here" : short(value, 4)}` : "";
    const named = kind ? `${kind.name} ${short(kind.value, 3)}` : "mixed";
    return `L${l}H${h}: ${named}${shown}, largest weight ${short(scores.max, 4)}`;
  }

  layOut() {
    const { run, frame, size } = this;
    const wide = frame.clientWidth;
    if (!wide || !run.heads) return;
    const high = rowHeight(frame, run.depth, 110);
    size.columns = run.heads;
    // all rows in sight, with a word below each head where there is room for one
    size.pitch = Math.min((wide - size.left) / run.heads, Math.max(1.35 * high - WORD, 44), 260);
    size.thumb = Math.max(6, size.pitch - (size.pitch > 30 ? 6 : 2));
    size.row = size.pitch + (size.thumb > 34 ? WORD : 0);
    sizeCanvas(this.canvas, wide, size.top + size.row * run.depth + 2);
    this.draw();
  }

  /** @returns {import("./colours.js").Scale} */
  get scale() {
    const { m } = this.state;
    const isDifference = this.other !== null;
    if (m === "pattern") return isDifference ? DIFFERENCES : weightScale(this.glass.look().spread);
    const distances = this.run.layers.flatMap((layer) => (layer?.heads ?? []).map(({ distance }) => distance ?? 0));
    const most = m === "distance" ? Math.max(1, ...distances) : 1;
    return { spread: "linear", low: isDifference ? -most : 0, high: most, signed: isDifference };
  }

  draw() {
    const { size, run, other } = this;
    const context = size.thumb ? emptyCanvas(this.canvas) : null;
    if (!context) return;
    const { m, o } = this.state;
    const isByLayer = o === "layer";
    const look = this.glass.look();
    const paint = {
      context, ink: inks(this.frame), look, scale: this.scale,
      colours: palette(other ? "diverging" : look.palette, look.dark),
    };
    if (isByLayer) this.labelLayers(paint);
    this.heads.forEach((head, n) => {
      const x = size.left + (n % size.columns) * size.pitch;
      const y = size.top + Math.floor(n / size.columns) * size.row;
      this.drawHead(paint, head, { x, y, size: size.thumb });
      if (size.thumb <= 34) return;
      const { l, h } = head;
      const scores = run.layers[l]?.heads[h];
      const kind = scores && kindOf(scores);
      const name = kind && kind.key !== "entropy" ? kind.name : "";
      context.fillStyle = paint.ink("dim");
      context.textAlign = "left";
      context.fillText(isByLayer ? name : `L${l}H${h}`, x, y + size.thumb + 9);
    });
    const [row, col] = this.place;
    const box = size.thumb + 4;
    this.grid.put({
      left: size.left + col * size.pitch - 2, top: size.top + row * size.row - 2, width: box, height: box,
    });
    const isPattern = m === "pattern";
    const pooled = short(run.tokens.length / run.side, 3);
    const coarse =
      isPattern && run.side < run.tokens.length ? `; each cell is the largest of ${pooled} × ${pooled}` : "";
    const score = COLOURS.find(({ key }) => key === m)?.name ?? m;
    const about = isPattern ? "attention weight: rows look, columns are looked at" : score;
    fill(this.legend, legendOf(paint.colours, paint.scale, about + coarse, { masked: isPattern && this.model.causal }));
  }

  /** @param {Paint} paint */
  labelLayers({ context, ink }) {
    const { size, run } = this;
    context.fillStyle = ink("dim");
    context.textAlign = "left";
    context.fillText("layer", 0, 8);
    context.textAlign = "right";
    for (let l = 0; l < run.depth; l++) {
      context.fillText(`${l}`, size.left - 10, size.top + l * size.row + size.thumb / 2);
    }
    labelHeads(context, run.heads, size);
  }

  /**
   * A head as a picture or as the colour of a score.
   * @param {Paint} paint @param {{l: number, h: number}} head @param {{x: number, y: number, size: number}} place
   */
  drawHead({ context, ink, look, scale, colours }, { l, h }, place) {
    const { run, other, hovered } = this;
    const { m } = this.state;
    const { x, y, size } = place;
    const layer = run.layers[l];
    const scores = layer?.heads[h];
    const theirs = other?.layers[l]?.heads[h];
    const score = scores ? scoreOf(scores, m) : null;
    context.fillStyle = ink("panel");
    context.fillRect(x, y, size, size);
    if (m === "pattern") {
      const sheet = layer && this.sheetOf(run, other, l, look);
      if (sheet) drawHead(context, sheet, run.side, h, place);
    } else if (score !== null) {
      const value = score - (theirs ? (scoreOf(theirs, m) ?? 0) : 0);
      const entry = 3 * Math.round(255 * placeOf(value, scale));
      const [red = 0, green = 0, blue = 0] = colours.subarray(entry, entry + 3);
      context.fillStyle = `rgb(${red} ${green} ${blue})`;
      context.fillRect(x, y, size, size);
      const text =
        (Math.abs(value) < 9.95 ? value.toFixed(2) : short(value, 2)).replace("-", "−").replace(/^(−?)0\./, "$1.");
      context.fillStyle = inkOn(red, green, blue);
      context.textAlign = "center";
      if (size > 26) context.fillText(text, x + size / 2, y + size / 2);
    }
    context.strokeStyle = ink(hovered?.l === l && hovered.h === h ? "accent" : "line");
    context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
  }

  tell() {
    const { run, other, glass } = this;
    const head = this.hovered ?? this.chosen;
    this.line.textContent = this.sentence(head);
    fill(this.numbers, headNumbers(glass, head.l, head.h, this.sheetOf(run, other, head.l, glass.look())));
  }

  update() {
    const { m, o } = this.state;
    [this.colour.value, this.order.value] = [m, o];
    if (!this.size.thumb) this.layOut();
    this.draw();
    this.tell();
    this.grid.tell();
  }

  tensor() {
    const { layer, head, q, k } = this.glass;
    return { name: `blocks.${layer}.attn.hook_pattern`, at: [0, head, q, k] };
  }
}

/**
 * What heads are drawn with.
 * @typedef {{
 *   context: CanvasRenderingContext2D, ink: (name: string) => string,
 *   look: {palette: string, spread: string, dark: boolean}, scale: import("./colours.js").Scale, colours: Uint8Array,
 * }} Paint
 */
