// A matrix of any size as a picture: tiles at the fineness that the screen can show, with pan, zoom, a small map,
// labels, a legend, and the exact number of the cell under the pointer. The picture is of codes; every number written
// is exact.
import { button, div, fontOf, make, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { HeatPainter } from "./heat-paint.js";
import { HeatPointer } from "./heat-pointer.js";
import { HeatSight } from "./heat-sight.js";
import { HeatTiles } from "./heat-tiles.js";

/** @typedef {import("./tiles.js").Tile} Tile */
/** @typedef {import("./glass-source.js").TileWanted} TileWanted */

/**
 * A picture: which matrix, and how it looks. `index` is a place on the leading axes; `causal`: nothing lies above the
 * diagonal.
 * @typedef {object} Picture
 * @property {string} name
 * @property {number[]} index
 * @property {number} rows
 * @property {number} cols
 * @property {"log8" | "lin8" | "slog8"} code
 * @property {"max" | "absmax" | "mean"} pool
 * @property {string} palette
 * @property {string} spread
 * @property {boolean} signed
 * @property {boolean} causal
 * @property {string} what the numbers are
 * @property {[string, string]} axes what rows and columns are
 * @property {(row: number) => string} rowLabel
 * @property {(col: number) => string} colLabel
 */

/**
 * What it needs of the page.
 * @typedef {object} HeatHost
 * @property {(picture: Picture, wanted: TileWanted[], onTile: (tile: Tile) => void, signal: AbortSignal) =>
 *   Promise<void>} tiles
 * @property {(picture: Picture, rows: [number, number], cols: [number, number]) => Promise<(number | string)[]>} exact
 * @property {(picture: Picture) => string} identity names the numbers, not the look
 * @property {ReturnType<typeof import("./tiles.js").tileCache>} cache
 * @property {() => boolean} dark
 */

/**
 * What can be done with its cells.
 * @typedef {object} HeatCells
 * @property {string} label
 * @property {() => [number, number]} at the chosen one
 * @property {(row: number, col: number) => void} choose
 * @property {(row: number, col: number, value: string) => string} words a cell and its number in words
 * @property {() => void} [open] what Enter or a click on the chosen one does
 */

/** Milliseconds that a pointer rests before the exact number is asked for. */
const REST = 80;

/** Most labels that are measured. */
const MEASURED = 96;

/** How much larger a button makes the picture. */
const LARGER = 1.6;

export class HeatMap {
  canvas = make("canvas", { "aria-hidden": "true" });
  readout = make("p", { class: "cell-line" });
  legend = div("legend-of");
  trouble = make("div");
  frame = div("heat");
  sight = new HeatSight();
  /** The cell under the pointer. @type {{row: number, col: number} | null} */
  hovered = null;
  drawing = 0;
  waiting = 0;

  /** @param {HeatHost} host @param {HeatCells} cells */
  constructor(host, cells) {
    this.host = host;
    this.cells = cells;
    this.tiles =
      new HeatTiles(host, this.sight, { changed: () => this.draw(), trouble: this.trouble, frame: this.frame });
    const [smaller, larger, all] = [() => this.zoom(1 / LARGER), () => this.zoom(LARGER), () => this.showAll()];
    this.grid = liveGrid({
      label: cells.label,
      size: () => [this.sight.picture?.rows ?? 1, this.sight.picture?.cols ?? 1],
      at: cells.at,
      move: (row, col) => {
        cells.choose(row, col);
        this.reveal(row, col);
      },
      words: (row, col) => this.inWords(row, col),
      ...(cells.open ? { open: cells.open } : {}),
      keys: { "+": larger, "=": larger, "-": smaller, 0: all },
    });
    const tools = make(
      "div", { class: "zoom", role: "group", "aria-label": "Zoom" },
      button("−", smaller, { "aria-label": "Smaller", title: "Smaller (-)" }),
      button("Fit", all, { title: "All of it (0)" }),
      button("+", larger, { "aria-label": "Larger", title: "Larger (+)" }),
    );
    this.frame.append(this.canvas, this.grid.element);
    const under = div("under", this.readout, tools);
    this.element = div("heat-view", this.trouble, this.frame, under, this.legend);
    this.painter = new HeatPainter(this);
    this.watcher = new ResizeObserver(() => this.layOut());
    this.watcher.observe(this.frame);
    new HeatPointer(this);
  }

  /** @param {Picture} picture */
  show(picture) {
    const { sight, tiles } = this;
    const identity = this.host.identity(picture);
    const isResized = sight.picture?.rows !== picture.rows || sight.picture?.cols !== picture.cols;
    sight.picture = picture;
    if (identity !== tiles.identity) {
      tiles.begin(identity);
      this.hovered = null;
      this.frame.dataset["painted"] = "0";
      this.readout.textContent = "";
      if (isResized) sight.showAll();
      this.layOut();
    }
    this.redraw();
    this.tell();
    this.grid.tell();
  }

  layOut() {
    const { sight, canvas, frame } = this;
    const wide = frame.clientWidth;
    if (!sight.picture || wide === 0) return;
    const context = canvas.getContext("2d");
    if (context) context.font = fontOf(frame);
    sight.layOut(frame, (label, count) => {
      let most = 0;
      for (let n = 0; n < Math.min(count, MEASURED); n++) {
        most = Math.max(most, context?.measureText(label(n)).width ?? 0);
      }
      return Math.ceil(most);
    });
    sizeCanvas(canvas, wide, Math.ceil(sight.plot.y + sight.plot.h + 8));
    this.redraw();
  }

  draw() {
    this.drawing ||= requestAnimationFrame(() => {
      this.drawing = 0;
      this.painter.paint();
    });
  }

  /** Draws what is in sight now, and asks for what is not here. */
  redraw() {
    this.draw();
    this.tiles.load(() => this.hovered);
  }

  /**
   * @param {number} by @param {number} x
   * @param {number} y the point that stays where it is: the middle if it is not said
   */
  zoom(by, x = this.sight.plot.x + this.sight.plot.w / 2, y = this.sight.plot.y + this.sight.plot.h / 2) {
    if (!this.sight.picture) return;
    this.sight.zoomBy(by, x, y);
    this.redraw();
  }

  showAll() {
    this.sight.showAll();
    this.redraw();
  }

  /** @param {number} row @param {number} col */
  reveal(row, col) {
    if (!this.sight.picture || this.sight.zoom === 1) return;
    this.sight.reveal(row, col);
    this.redraw();
  }

  /** @param {{row: number, col: number} | null} cell the one under the pointer */
  hover(cell) {
    this.hovered = cell;
    this.tell();
  }

  /** A cell in words, with its exact number. @param {number} row @param {number} col */
  async inWords(row, col) {
    const { picture } = this.sight;
    if (!picture) return "";
    if (picture.causal && col > row) return this.cells.words(row, col, "hidden by the mask");
    const value = await this.tiles.exactly(row, col);
    return this.cells.words(row, col, value === null ? "…" : short(value, 6));
  }

  /** Tells the number of the cell under the pointer, or else of the chosen one: first roughly. */
  tell() {
    clearTimeout(this.waiting);
    this.draw();
    const told = () => (this.hovered ? [this.hovered.row, this.hovered.col] : this.cells.at());
    const [row = 0, col = 0] = told();
    const key = `${row},${col}`;
    const isKnown = this.tiles.known.has(key);
    const rough = this.tiles.roughly(row, col);
    if (rough !== null && !isKnown && !Number.isNaN(rough)) {
      this.readout.textContent = this.cells.words(row, col, `≈ ${short(rough, 2)}`);
    }
    this.waiting = setTimeout(async () => {
      const words = await this.inWords(row, col);
      if (key === told().join()) this.readout.textContent = words;
    }, isKnown ? 0 : REST);
  }

  /** Chooses what is under the pointer. */
  pin() {
    if (this.hovered) this.cells.choose(this.hovered.row, this.hovered.col);
  }

  close() {
    this.watcher.disconnect();
    this.tiles.flight?.controller.abort();
    cancelAnimationFrame(this.drawing);
    clearTimeout(this.waiting);
  }
}
