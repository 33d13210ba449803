// Where the cells of a picture lie on its canvas, and which of them are in sight.
import { within } from "./dom.js";
import { SIDE } from "./tiles.js";

/** Most cells of a picture, each way, when all of it is shown: four tiles. */
const FINE = 512;

/** The side of the small map. */
const MAP = 92;

export class HeatSight {
  /** There is none before the first. @type {import("./heat.js").Picture} */
  picture = /** @type {any} */ (null);
  /** The cells' place on the canvas, and the size of a cell when all is shown. */
  plot = { x: 0, y: 0, w: 0, h: 0, cw: 1, ch: 1 };
  zoom = 1;
  /** The first column in sight and the first row, with parts of them. */
  x = 0;
  y = 0;

  /** The size of a cell. */
  get size() {
    return { cw: this.plot.cw * this.zoom, ch: this.plot.ch * this.zoom };
  }

  /** How many rows and columns are in sight. */
  get count() {
    return { rows: this.picture.rows / this.zoom, cols: this.picture.cols / this.zoom };
  }

  get isZoomed() {
    return this.zoom > 1.02;
  }

  /**
   * @param {HTMLElement} frame @param {(label: (n: number) => string, count: number) => number} widest of some labels
   */
  layOut(frame, widest) {
    const { plot } = this;
    const { rows, cols, rowLabel, colLabel } = this.picture;
    const wide = frame.clientWidth;
    const [least, most] = wide < 440 ? [30, 64] : [34, 112];
    plot.x = 20 + within(widest(rowLabel, rows), least, most);
    plot.y = 22 + within(widest(colLabel, cols), 22, most);
    const across = wide - plot.x - 2;
    const top = frame.getBoundingClientRect().top + scrollY;
    const down = Math.max(240, innerHeight * 0.55, Math.min(across * 1.1, innerHeight - top - plot.y - 120));
    const cell = Math.min(across / cols, down / rows, 60);
    const isFilled = cell * Math.max(rows, cols) >= 0.99 * Math.min(across, down);
    const isSquare = isFilled && Math.max(rows / cols, cols / rows) <= 3;
    plot.cw = isSquare ? cell : Math.min(across / cols, 60);
    plot.ch = isSquare ? cell : Math.min(down / rows, 60, Math.max(plot.cw, 24));
    [plot.w, plot.h] = [plot.cw * cols, plot.ch * rows];
    this.clamp();
  }

  clamp() {
    const { rows, cols } = this.picture;
    this.zoom = within(this.zoom, 1, Math.max(1, Math.max(rows, cols) / 6, 64 / this.plot.cw));
    this.x = within(this.x, 0, cols - this.count.cols);
    this.y = within(this.y, 0, rows - this.count.rows);
  }

  /** The cell at a point of the canvas, with parts. @param {number} x @param {number} y */
  cellAt(x, y) {
    const { cw, ch } = this.size;
    return { row: this.y + (y - this.plot.y) / ch, col: this.x + (x - this.plot.x) / cw };
  }

  /** Where a cell begins on the canvas. @param {number} row @param {number} col */
  pointOf(row, col) {
    const { cw, ch } = this.size;
    return { x: this.plot.x + (col - this.x) * cw, y: this.plot.y + (row - this.y) * ch };
  }

  /** @param {number} by @param {number} x @param {number} y the point that stays where it is */
  zoomBy(by, x, y) {
    const before = this.cellAt(x, y);
    this.zoom *= by;
    this.clamp();
    const after = this.cellAt(x, y);
    this.x += before.col - after.col;
    this.y += before.row - after.row;
    this.clamp();
  }

  showAll() {
    [this.zoom, this.x, this.y] = [1, 0, 0];
  }

  /** Moves the picture by pixels. @param {number} x @param {number} y */
  pan(x, y) {
    this.x -= x / this.size.cw;
    this.y -= y / this.size.ch;
    this.clamp();
  }

  /** Brings a cell into sight. @param {number} row @param {number} col */
  reveal(row, col) {
    const { rows, cols } = this.count;
    this.x = within(this.x, col + 1 - cols, col);
    this.y = within(this.y, row + 1 - rows, row);
    this.clamp();
  }

  /** How coarse the picture is: the least level with a pixel for each cell, and few tiles. */
  level(zoom = this.zoom) {
    const { picture, plot } = this;
    const pixel = Math.log2(1 / (Math.min(plot.cw, plot.ch) * zoom));
    const many = Math.log2(Math.max(picture.rows, picture.cols) / zoom / FINE);
    return Math.max(0, Math.ceil(pixel - 1e-6), Math.ceil(many - 1e-6));
  }

  /** The tiles in sight at a level. @param {number} level */
  tilesAt(level) {
    const { x, y, picture, count } = this;
    const reach = SIDE * 2 ** level;
    /** @type {[number, number][]} */
    const tiles = [];
    const end = (/** @type {number} */ from, /** @type {number} */ some, /** @type {number} */ all) =>
      Math.ceil(Math.min(all, from + some) / reach);
    for (let row = Math.floor(y / reach); row < end(y, count.rows, picture.rows); row++) {
      for (let col = Math.floor(x / reach); col < end(x, count.cols, picture.cols); col++) {
        if (!(picture.causal && col > row)) tiles.push([row, col]);
      }
    }
    return tiles;
  }

  /** Where the small map lies. */
  get map() {
    const { rows, cols } = this.picture;
    const [w, h] = [MAP * Math.min(1, cols / rows), MAP * Math.min(1, rows / cols)];
    return { x: this.plot.x + this.plot.w - w - 8, y: this.plot.y + 8, w, h };
  }

  /** Goes to a point of the small map. @param {number} x @param {number} y */
  goTo(x, y) {
    const { map, picture, count } = this;
    this.x = ((x - map.x) / map.w) * picture.cols - count.cols / 2;
    this.y = ((y - map.y) / map.h) * picture.rows - count.rows / 2;
    this.clamp();
  }
}
