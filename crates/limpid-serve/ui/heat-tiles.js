// The numbers of a picture: tiles of codes as far as they are in sight, painted once, and exact numbers by cell.
import { troubleNote } from "./answer.js";
import { colourOfCodes, palette } from "./colours.js";
import { fill, make } from "./dom.js";
import { asTrouble } from "./source.js";
import { SIDE, valueInTile, valuesOfCodes } from "./tiles.js";

/** @typedef {import("./tiles.js").Tile} Tile */

export class HeatTiles {
  /** Names the numbers of the picture. */
  identity = "";
  /**
   * What the codes span.
   * @type {{low: number, high: number, code: number, infinite: boolean, masked: boolean} | null}
   */
  span = null;
  /** @type {{controller: AbortController, keys: Set<string>} | null} */
  flight = null;
  /** @type {WeakMap<Tile, {look: string, pixels: HTMLCanvasElement}>} */
  painted = new WeakMap();
  /** Exact numbers by cell. @type {Map<string, number | string>} */
  known = new Map();
  /** The cells whose numbers were asked for last. */
  cellsAsked = "";

  /**
   * @param {import("./heat.js").HeatHost} host
   * @param {import("./heat-sight.js").HeatSight} sight
   * @param {{changed: () => void, trouble: HTMLElement, frame: HTMLElement}} page
   */
  constructor(host, sight, { changed, trouble, frame }) {
    this.host = host;
    this.sight = sight;
    this.changed = changed;
    this.trouble = trouble;
    this.frame = frame;
  }

  /** Begins with other numbers. @param {string} identity */
  begin(identity) {
    this.identity = identity;
    this.known.clear();
    this.span = null;
    this.cellsAsked = "";
  }

  /** @param {number} level @param {number} row @param {number} col */
  keyOf(level, row, col) {
    return `${this.identity} ${level} ${row} ${col}`;
  }

  /** @param {number} level @param {number} row @param {number} col */
  tile(level, row, col) {
    return this.host.cache.get(this.keyOf(level, row, col));
  }

  /** @returns {import("./colours.js").Scale} */
  scale() {
    const { spread, signed, code } = this.sight.picture;
    const { low, high } = this.span ?? { low: 0, high: 1 };
    const most = signed ? Math.max(Math.abs(low), Math.abs(high)) : high;
    return { spread, signed, low: code === "log8" ? 0 : low, high: most };
  }

  palette() {
    return palette(this.sight.picture.palette, this.host.dark());
  }

  /**
   * Asks for the tiles in sight that are not here.
   * @param {() => {row: number, col: number} | null} hovered what is near to it comes first
   */
  async load(hovered) {
    const { host, sight, identity } = this;
    const { picture } = sight;
    if (!picture || sight.plot.w === 0) return;
    const level = sight.level();
    const wanted = sight.tilesAt(level).filter(([row, col]) => !this.tile(level, row, col));
    const { flight: before } = this;
    if (before && wanted.some(([row, col]) => before.keys.has(this.keyOf(level, row, col)))) return;
    this.stop();
    if (wanted.length === 0) return;
    const { rows, cols } = sight.count;
    const near = hovered() ?? { row: sight.y + rows / 2, col: sight.x + cols / 2 };
    const middle = (/** @type {number} */ tile) => (tile + 0.5) * SIDE * 2 ** level;
    const far = (/** @type {[number, number]} */ [row, col]) =>
      Math.hypot(middle(row) - near.row, middle(col) - near.col);
    wanted.sort((a, b) => far(a) - far(b));
    const keys = wanted.map(([row, col]) => this.keyOf(level, row, col));
    const flight = { controller: new AbortController(), keys: new Set(keys) };
    this.flight = flight;
    fill(this.trouble);
    this.frame.ariaBusy = "true";
    try {
      const { name, index, pool, code } = picture;
      const tiles = wanted.map((tile) => ({ name, index, tile, level, pool, code }));
      await host.tiles(picture, tiles, (tile) => {
        const key = keys[tile.index];
        if (key === undefined) return;
        host.cache.put(key, tile);
        if (identity === this.identity) this.changed();
      }, flight.controller.signal);
      if (flight === this.flight) this.flight = null;
      if (identity === this.identity) this.load(hovered);
    } catch (fault) {
      if (flight === this.flight) this.flight = null;
      if (flight.controller.signal.aborted || identity !== this.identity) return;
      fill(this.trouble, troubleNote(asTrouble(fault), () => this.load(hovered)));
    } finally {
      if (!this.flight) this.frame.ariaBusy = null;
    }
  }

  stop() {
    this.flight?.controller.abort();
    this.flight = null;
  }

  /** A tile in the colours of the picture. @param {Tile} tile */
  pixelsOf(tile) {
    const scale = this.scale();
    const look = `${this.sight.picture.palette} ${this.host.dark()} ${scale.spread} ${scale.low} ${scale.high}`;
    const before = this.painted.get(tile);
    if (before?.look === look) return before.pixels;
    const pixels = before?.pixels ?? make("canvas", { width: `${tile.cols}`, height: `${tile.rows}` });
    const codes = valuesOfCodes(tile.code, tile.low, tile.high);
    const colours = new Uint32Array(colourOfCodes(codes, scale, this.palette()).buffer);
    const image = new ImageData(tile.cols, tile.rows);
    const words = new Uint32Array(image.data.buffer);
    for (let n = 0; n < words.length; n++) words[n] = colours[tile.data[n] ?? 0] ?? 0;
    pixels.getContext("2d")?.putImageData(image, 0, 0);
    this.painted.set(tile, { look, pixels });
    return pixels;
  }

  /** The number of a cell by its tile: as near as a code is. @param {number} row @param {number} col */
  roughly(row, col) {
    for (let level = 0; level < 12; level++) {
      const [r, c] = [Math.floor(row / 2 ** level), Math.floor(col / 2 ** level)];
      const tile = this.tile(level, Math.floor(r / SIDE), Math.floor(c / SIDE));
      if (tile) return valueInTile(tile, r - tile.row0, c - tile.col0);
    }
    return null;
  }

  /**
   * The number of a cell; null where other numbers are shown by then, or it cannot be had.
   * @param {number} row @param {number} col
   */
  async exactly(row, col) {
    const { identity, known } = this;
    const key = `${row},${col}`;
    if (!known.has(key)) {
      const [value] = await this.host.exact(this.sight.picture, [row, row + 1], [col, col + 1]).catch(() => []);
      if (identity !== this.identity || value === undefined) return null;
      known.set(key, value);
    }
    return known.get(key) ?? null;
  }

  /** Asks for the numbers of some cells, once. @param {[number, number]} rows @param {[number, number]} cols */
  askCells([r0, r1], [c0, c1]) {
    const { identity } = this;
    const asked = `${identity} ${r0} ${r1} ${c0} ${c1}`;
    if (asked === this.cellsAsked) return;
    this.cellsAsked = asked;
    this.host.exact(this.sight.picture, [r0, r1], [c0, c1]).then((values) => {
      if (identity !== this.identity) return;
      values.forEach((value, n) => this.known.set(`${r0 + Math.floor(n / (c1 - c0))},${c0 + (n % (c1 - c0))}`, value));
      this.changed();
    }, () => {}); // the picture is there without them
  }
}
