// Positions and embeddings: what the model adds to tell places apart, as a picture and as curves, and how alike tokens
// are to it, before the layers and after any of them.
import { button, dim, div, emptyCanvas, fill, inks, isFocused, make, on, remark, short, sizeCanvas } from "./dom.js";
import { HeatMap } from "./heat.js";
import { factList, tensorLink, whyLink } from "./numbers.js";
import { spelled } from "./text.js";
import { OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfEmbed = {
  id: "embed", title: "Embeddings",
  about: "How does the model tell positions apart, and which tokens are similar to it?",
  open: (glass) => new EmbedView(glass),
};

/** Dashes of curves, so that they can be told without colours. */
const DASHES = [[], [7, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2]];

/** The height of the chart of curves. */
const TALL = 210;

class EmbedView extends OpenView {
  positions = button("Positions", () => this.glass.go({ s: "positions" }));
  likeness = button("Likeness", () => this.glass.go({ s: "likeness" }));
  which = make("select", { "aria-label": "Of which vectors" });
  look = this.glass.lookTools("sequential");
  heading = make("h2", "…");
  about = remark("…");
  heat = new HeatMap(this.glass.heat, {
    label: "Rows are positions",
    at: () => (this.showsPositions ? [this.position, this.dimension] : [this.q, this.glass.k]),
    choose: (row, col) =>
      this.glass.go(this.showsPositions ? { q: row, ...this.with({ d: `${col}` }) } : { q: row, k: col }),
    words: (row, col, value) => this.cellInWords(row, col, value),
  });
  canvas = make("canvas", { role: "img", "aria-label": "Curves are loading" });
  chart = div("chart", this.canvas);
  field = make("input", { type: "text", inputmode: "numeric", size: "14", "aria-label": "Dimensions of the curves" });
  curves = make(
    "section", { class: "curves" }, div("tools", make("label", "Curves of dimensions ", this.field)), this.chart,
  );
  element = div(
    "embed",
    div(
      "tools", this.heading,
      make("div", { class: "segments", role: "group", "aria-label": "Picture" }, this.positions, this.likeness),
      this.which, this.look,
    ),
    this.about, this.notice, this.heat.element, this.curves,
  );
  /** The numbers of the curves. @type {{dimension: number, values: number[]}[]} */
  lines = [];
  keys = { p: () => this.heat.pin(), m: () => this.glass.go({ s: this.showsPositions ? "likeness" : "positions" }) };

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    on(this.which, "change", () => this.set({ of: this.which.value }));
    on(this.field, "change", () => this.set({ d: this.field.value }));
    this.onResize(this.chart, () => this.plot());
  }

  /** The tensor of the positions: a table that was learned is longer than the text. */
  get table() {
    const find = (/** @type {string} */ wanted) => this.listing.find(({ name }) => name === wanted);
    return (this.model.saved ? undefined : find("pos_embed.weight")) ?? find("hook_pos_embed");
  }

  get showsPositions() {
    return this.state.s !== "likeness" && this.table !== undefined;
  }

  get position() {
    return Math.min(this.q, (this.table?.shape.at(-2) ?? 1) - 1);
  }

  get width() {
    return this.table?.shape.at(-1) ?? 1;
  }

  get dimension() {
    return Math.min(this.dimensions[0] ?? 0, this.width - 1);
  }

  /** Those that have a curve. */
  get dimensions() {
    const { width } = this;
    const said = (this.more["d"] ?? "").split(/[\s,;]+/).filter((word) => /^\d+$/.test(word)).map(Number);
    const usual = [0, 1, Math.floor(width / 4), Math.floor(width / 2)];
    const wanted = said.some((n) => n < width) ? said : usual;
    return [...new Set(wanted.filter((n) => n < width))].slice(0, DASHES.length);
  }

  /** Vectors that can be compared: a row for each token of the prompt. */
  get vectors() {
    return this.listing.filter(({ name, axes, same_as: same }) =>
      !same && /^batch,pos,d_(model|embed)$/.test(axes?.join() ?? "") &&
      (/^hook_/.test(name) || /hook_resid_(mid|post)$/.test(name)));
  }

  /** The vectors that are compared. */
  get compared() {
    const find = (/** @type {string | undefined} */ wanted) => this.vectors.find(({ name }) => name === wanted);
    return find(this.more["of"]) ?? find("hook_embed") ?? this.vectors[0];
  }

  /** What comes before the place on the positions' axes. */
  get leading() {
    return this.table?.shape.length === 3 ? [0] : [];
  }

  /** @param {number} row @param {number} col @param {string} value */
  cellInWords(row, col, value) {
    const { label } = this.glass;
    if (this.showsPositions) return `position ${row}, dimension ${col}: ${value}`;
    return `${row} ${label(row)} and ${col} ${label(col)}: cosine ${value}`;
  }

  askCurves() {
    const { table, dimensions } = this;
    const key = `${this.run.id} ${this.other?.id ?? ""} ${table.name} ${dimensions}`;
    const columns = () => dimensions.map((d) => this.glass.tensor(table.name, [...this.leading, "*", d].join()));
    this.askOnce(key, () => Promise.all(columns()), (answers) => {
      this.lines = answers.map(({ values }, n) => ({ dimension: dimensions[n] ?? 0, values: values.map(Number) }));
      this.plot();
    });
  }

  plot() {
    const { lines, chart, canvas } = this;
    const wide = chart.clientWidth;
    if (!wide || lines.length === 0) return;
    sizeCanvas(canvas, wide, TALL);
    const context = emptyCanvas(canvas);
    if (!context) return;
    const ink = inks(chart);
    const count = lines[0]?.values.length ?? 1;
    const most = Math.max(1e-12, ...lines.flatMap(({ values }) => values.map(Math.abs)));
    const [left, right, foot] = [48, 44, TALL - 22];
    const x = (/** @type {number} */ n) => left + (count > 1 ? (n / (count - 1)) * (wide - left - right) : 0);
    const y = (/** @type {number} */ value) => 8 + ((foot - 8) * (1 - value / most)) / 2;
    for (const value of [-most, 0, most]) {
      context.fillStyle = ink("line");
      context.fillRect(left, y(value), wide - left - right, 1);
      context.fillStyle = ink("dim");
      context.textAlign = "right";
      context.fillText(short(value, 3), left - 6, y(value));
    }
    context.textAlign = "center";
    for (const n of [0, Math.floor((count - 1) / 2), count - 1]) context.fillText(`${n}`, x(n), foot + 12);
    context.fillText("position", x((count - 1) / 4), foot + 12);
    context.fillStyle = ink("edge");
    context.fillRect(x(this.position), 8, 1, foot - 8);
    let free = -Infinity; // where a name has room
    const ends = lines.map(({ dimension, values }, n) => ({ dimension, values, n, end: y(values.at(-1) ?? 0) }));
    for (const { dimension, values, n, end } of ends.sort((a, b) => a.end - b.end)) {
      context.strokeStyle = context.fillStyle = ink(n % 2 ? "mlp" : "accent");
      context.globalAlpha = n < 2 ? 1 : 0.75;
      context.lineWidth = 1.6;
      context.setLineDash(DASHES[n] ?? []);
      context.beginPath();
      values.forEach((value, t) => context.lineTo(x(t), y(value)));
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      context.textAlign = "left";
      free = Math.max(end, free + 12);
      context.fillText(`${dimension}`, x(count - 1) + 8, free);
    }
    const about = lines.map(({ dimension, values }) => {
      const range = `from ${short(Math.min(...values), 3)} to ${short(Math.max(...values), 3)}`;
      return `Dimension ${dimension}: ${range}, at position ${this.position} ${short(values[this.position] ?? 0, 4)}`;
    });
    canvas.ariaLabel = `Curves over ${count} positions. ${about.join(". ")}.`;
  }

  drawNumbers() {
    const { glass, run, table, position, compared } = this;
    if (this.showsPositions) {
      const place = [...this.leading, position, this.dimension];
      const values = this.lines.map(({ dimension, values: curve }) =>
        /** @type {[string, string]} */ ([`dimension ${dimension}`, short(curve[position] ?? NaN, 6)]));
      return fill(this.numbers, make(
        "section", make("h2", `Position ${position}`), remark(table.about ?? ""), factList(values),
        make("p", tensorLink(glass, table.name, place.join())), whyLink(glass, table.name, place),
      ));
    }
    const [q, k] = [run.tokens[this.q], run.tokens[glass.k]];
    if (!q || !k || !compared) return fill(this.numbers);
    fill(this.numbers, make(
      "section", make("h2", spelled(q.piece), dim(" and "), spelled(k.piece)),
      remark(
        "Cosine of the angle between two vectors: 1 if they point the same way, 0 if they have nothing in common, " +
        "−1 if they are opposed.",
      ),
      make("p", tensorLink(glass, `cos(${compared.name})`)),
    ));
  }

  update() {
    if (this.listing.length > 0) this.show();
    else if (this.run.done) this.load();
  }

  show() {
    const { showsPositions, table, compared, which } = this;
    const shown = showsPositions ? table : compared;
    this.positions.ariaPressed = `${showsPositions}`;
    this.likeness.ariaPressed = `${!showsPositions}`;
    this.positions.disabled = table === undefined;
    this.positions.title = table ? "" : "This model adds no vectors for positions";
    which.hidden = showsPositions;
    this.curves.hidden = !showsPositions;
    if (!shown) return;
    const names = this.vectors.map(({ name }) => name);
    if (which.dataset["names"] !== names.join()) {
      which.dataset["names"] = names.join();
      fill(which, ...names.map((name) => make("option", { value: name }, inPlain(name))));
    }
    which.value = compared?.name ?? "";
    this.look.hidden = this.other !== null || !showsPositions;
    this.heat.show(showsPositions ? this.positionsPicture(shown) : this.likenessPicture(shown));
    if (showsPositions) {
      if (!isFocused(this.field)) this.field.value = this.dimensions.join(", ");
      this.askCurves();
      this.plot();
    }
    this.drawNumbers();
  }

  /** @param {any} table @returns {import("./heat.js").Picture} */
  positionsPicture({ name, shape, about = "" }) {
    const isDifference = this.other !== null;
    const [rows, cols] = shape.slice(-2);
    this.heading.textContent = `${name === "hook_pos_embed" ? "What is added" : "The table"} for positions`;
    this.about.textContent = `${rows} positions × ${cols} dimensions. ${about}.`;
    return {
      ...this.usualPicture(), name, index: this.leading, rows, cols,
      palette: isDifference ? "diverging" : this.state.pal || "viridis",
      what: isDifference ? "difference of the values" : "value: 0 is in the middle of the palette",
      axes: ["position", "dimension"], rowLabel: String, colLabel: String,
    };
  }

  /** @param {any} vectors @returns {import("./heat.js").Picture} */
  likenessPicture({ name }) {
    const count = this.run.tokens.length;
    const { label } = this.glass;
    const none =
      "This model adds no vectors for positions: it rotates queries and keys by position, or has no positions.";
    this.heading.textContent = `How similar tokens are: ${inPlain(name)}`;
    this.about.textContent = this.table ? "" : none;
    return {
      ...this.usualPicture(), name: `cos(${name})`, index: [0], rows: count, cols: count, palette: "diverging",
      what: this.other ? "difference of the cosines" : "cosine", axes: ["token", "token"], rowLabel: label,
      colLabel: label,
    };
  }

  usualPicture() {
    const code = /** @type {"slog8" | "lin8"} */ (this.other ? "slog8" : "lin8");
    return { code, pool: /** @type {const} */ ("absmax"), spread: "linear", signed: true, causal: false };
  }

  close() {
    super.close();
    this.heat.close();
  }

  tensor() {
    if (this.showsPositions) return { name: this.table.name, at: [...this.leading, this.position, this.dimension] };
    return this.compared ? { name: `cos(${this.compared.name})`, at: [0, this.q, this.glass.k] } : null;
  }
}

/** @param {string} name of a tensor of the stream */
function inPlain(name) {
  const [, layer, part] = /^blocks\.(\d+)\.hook_resid_(\w+)$/.exec(name) ?? [];
  if (layer) return `the stream ${part === "mid" ? "inside" : "after"} layer ${layer}`;
  if (name === "hook_embed") return "the tokens’ own vectors";
  return name === "hook_pos_embed" ? "the positions’ vectors" : name;
}
