// Paints a picture: its tiles, the numbers in cells that have room for them, labels, the small map.
import { legendOf, placeOf } from "./colours.js";
import { emptyCanvas, fill, fontOf, inks, turnedText } from "./dom.js";
import { SIDE } from "./tiles.js";

/** @typedef {import("./tiles.js").Tile} Tile */
/** @typedef {CanvasRenderingContext2D} Context */

/** Pixels of a cell in which a number can be read. */
const ROOM = 38;

/** Between labels. */
const STRIDES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

/** What a cell of a coarse picture is of the cells that it stands for. */
const POOLS = { mean: "mean", max: "largest", absmax: "largest in size" };

export class HeatPainter {
  shownLegend = "";

  /** @param {import("./heat.js").HeatMap} heat */
  constructor(heat) {
    this.heat = heat;
    this.ink = inks(heat.frame);
  }

  get sight() {
    return this.heat.sight;
  }

  get tiles() {
    return this.heat.tiles;
  }

  paint() {
    const { sight, heat } = this;
    const { plot, size } = sight;
    const context = sight.picture && plot.w > 0 ? emptyCanvas(heat.canvas) : null;
    if (!context) return;
    this.ink = inks(heat.frame);
    const level = sight.level();
    const painted = this.paintTiles(context, level);
    this.writeNumbers(context, painted.length);
    context.strokeStyle = this.ink("line");
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
    this.label(context);
    if (sight.isZoomed) this.paintMap(context);
    this.markChosen();
    this.tellLegend(level);
    heat.frame.dataset["cells"] = [plot.x, plot.y, size.cw, size.ch, sight.x, sight.y].join(" ");
    heat.frame.dataset["level"] = `${level}`;
    heat.frame.dataset["painted"] = `${painted.length}`;
  }

  /** @param {Context} context @param {{x: number, y: number, w: number, h: number}} box @param {() => void} paint */
  clipped(context, { x, y, w, h }, paint) {
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.fillStyle = this.ink("panel");
    context.fillRect(x, y, w, h);
    context.imageSmoothingEnabled = false;
    paint();
    context.restore();
  }

  /** @param {Context} context @param {number} level @returns {Tile[]} those of the level that are here */
  paintTiles(context, level) {
    const { sight, tiles } = this;
    const ratio = devicePixelRatio || 1;
    const snap = (/** @type {number} */ x) => Math.round(x * ratio) / ratio;
    /** @type {Tile[]} */
    const painted = [];
    // what was painted when all was shown lies under what comes now, and in the small map
    const whole = sight.level(1);
    this.clipped(context, sight.plot, () => {
      for (const each of whole > level ? [whole, level] : [level]) {
        const step = 2 ** each;
        for (const [row, col] of sight.tilesAt(each)) {
          const tile = tiles.tile(each, row, col);
          if (!tile) continue;
          const { low, high, code, infinite, masked } = tile;
          const { span } = tiles;
          tiles.span = { low, high, code, infinite: infinite || !!span?.infinite, masked: masked || !!span?.masked };
          const from = sight.pointOf(tile.row0 * step, tile.col0 * step);
          const to = sight.pointOf((tile.row0 + tile.rows) * step, (tile.col0 + tile.cols) * step);
          const [x, y] = [snap(from.x), snap(from.y)];
          context.drawImage(tiles.pixelsOf(tile), x, y, snap(to.x) - x, snap(to.y) - y);
          if (each === level) painted.push(tile);
          if (infinite && sight.size.cw * step > 3) this.hatch(context, tile, step);
        }
      }
    });
    return painted;
  }

  /** Marks what is not finite. @param {Context} context @param {Tile} tile @param {number} step */
  hatch(context, tile, step) {
    const { cw, ch } = this.sight.size;
    context.strokeStyle = "#fff";
    context.lineWidth = 1;
    context.beginPath();
    tile.data.forEach((code, n) => {
      if (code !== 255) return;
      const [row, col] = [tile.row0 + Math.floor(n / tile.cols), tile.col0 + (n % tile.cols)];
      const { x, y } = this.sight.pointOf(row * step, col * step);
      context.moveTo(x, y + ch * step);
      context.lineTo(x + cw * step, y);
    });
    context.stroke();
  }

  /** Exact numbers in cells that have room for them. @param {Context} context @param {number} painted tiles */
  writeNumbers(context, painted) {
    const { sight, tiles } = this;
    const { picture, count, size } = sight;
    if (size.cw < ROOM || size.ch < 16 || painted === 0) return;
    const [r0, c0] = [Math.max(0, Math.floor(sight.y)), Math.max(0, Math.floor(sight.x))];
    const r1 = Math.min(picture.rows, Math.ceil(sight.y + count.rows));
    const c1 = Math.min(picture.cols, Math.ceil(sight.x + count.cols));
    const [colours, scale] = [tiles.palette(), tiles.scale()];
    context.font = `${Math.min(12, size.cw / 3.4)}px ui-monospace, Menlo, Consolas, monospace`;
    context.textAlign = "center";
    let isMissing = false;
    for (let row = r0; row < r1; row++) {
      for (let col = c0; col < c1; col++) {
        const value = tiles.known.get(`${row},${col}`);
        isMissing ||= value === undefined;
        if (!Number.isFinite(Number(value)) || (picture.causal && col > row)) continue;
        const entry = 3 * Math.round(255 * placeOf(Number(value), scale));
        const [red = 0, green = 0, blue = 0] = colours.subarray(entry, entry + 3);
        context.fillStyle = inkOn(red, green, blue);
        const { x, y } = sight.pointOf(row + 0.5, col + 0.5);
        context.fillText(inCell(Number(value), scale.high), x, y);
      }
    }
    if (isMissing) tiles.askCells([r0, r1], [c0, c1]);
  }

  /** @param {Context} context */
  label(context) {
    const { plot, picture } = this.sight;
    context.font = fontOf(this.heat.frame);
    this.labelAxis(context, true);
    this.labelAxis(context, false);
    context.fillStyle = this.ink("dim");
    context.textAlign = "left";
    context.fillText(`${picture.axes[1]} →`, plot.x, 8);
    context.textAlign = "right";
    turnedText(context, `← ${picture.axes[0]}`, 8, plot.y);
  }

  /** @param {Context} context @param {boolean} isDown whether the labels are those of rows */
  labelAxis(context, isDown) {
    const { heat, sight } = this;
    const { plot, picture, zoom } = sight;
    const [row, col] = heat.cells.at();
    const [count, size, from, chosen, pointed] = isDown
      ? [picture.rows, sight.size.ch, sight.y, row, heat.hovered?.row]
      : [picture.cols, sight.size.cw, sight.x, col, heat.hovered?.col];
    const apart = isDown ? 28 : 44;
    const stride = STRIDES.find((n) => n * size >= (size >= 11 ? 11 : apart)) ?? count;
    /** @param {number} n @param {boolean} isSpecial */
    const write = (n, isSpecial) => {
      const place = (n + 0.5 - from) * size;
      if (place < 0 || place > (isDown ? plot.h : plot.w)) return;
      const name = isDown ? picture.rowLabel : picture.colLabel;
      const text = cutTo(context, stride === 1 || isSpecial ? name(n) : `${n}`, (isDown ? plot.x : plot.y) - 20);
      context.fillStyle = this.ink(isSpecial ? "accent" : "dim");
      context.textAlign = isDown ? "right" : "left";
      if (isDown) context.fillText(text, plot.x - 6, plot.y + place);
      else turnedText(context, text, plot.x + place, plot.y - 6);
    };
    // the chosen one takes the room of its neighbours
    const special = [pointed, chosen].filter((n) => n !== undefined);
    const first = Math.max(0, Math.ceil((from - 0.5) / stride) * stride);
    for (let n = first; n < count && n < from + count / zoom; n += stride) {
      if (special.every((other) => Math.abs(other - n) * size >= 13)) write(n, false);
    }
    if (pointed !== undefined) write(pointed, true);
    if (pointed === undefined || pointed === chosen || Math.abs(pointed - chosen) * size >= 13) write(chosen, true);
  }

  /** @param {Context} context */
  paintMap(context) {
    const { sight, tiles } = this;
    const { map, picture, count } = sight;
    const { x, y, w, h } = map;
    const whole = sight.level(1);
    const step = 2 ** whole;
    const [across, down] = [w / picture.cols, h / picture.rows];
    this.clipped(context, map, () => {
      context.imageSmoothingEnabled = true;
      const reach = SIDE * step;
      for (let row = 0; row * reach < picture.rows; row++) {
        for (let col = 0; col * reach < picture.cols; col++) {
          const tile = tiles.tile(whole, row, col);
          if (!tile) continue;
          const [left, top] = [x + col * reach * across, y + row * reach * down];
          context.drawImage(tiles.pixelsOf(tile), left, top, tile.cols * step * across, tile.rows * step * down);
        }
      }
    });
    context.strokeStyle = this.ink("edge");
    context.strokeRect(x, y, w, h);
    for (const [ink = "", width = 1] of [["panel", 5], ["accent", 2]]) {
      context.strokeStyle = this.ink(`${ink}`);
      context.lineWidth = Number(width);
      context.strokeRect(x + sight.x * across, y + sight.y * down, count.cols * across, count.rows * down);
    }
    context.lineWidth = 1;
  }

  /** Puts the live cell over the chosen one. */
  markChosen() {
    const { sight, heat } = this;
    const { plot } = sight;
    const { cw, ch } = sight.size;
    const [row, col] = heat.cells.at();
    const { x, y } = sight.pointOf(row, col);
    const isInside = x > plot.x - cw && x < plot.x + plot.w && y > plot.y - ch && y < plot.y + plot.h;
    heat.grid.put(isInside ? { left: x, top: y, width: Math.max(cw, 5), height: Math.max(ch, 5) } : null);
  }

  /** @param {number} level */
  tellLegend(level) {
    const { heat, tiles } = this;
    const { span } = tiles;
    const { picture } = this.sight;
    const scale = tiles.scale();
    const look = [picture.palette, scale, span?.masked, span?.infinite, heat.host.dark(), level, picture.what];
    const shown = JSON.stringify(look);
    if (shown === this.shownLegend || !span) return;
    this.shownLegend = shown;
    const cells = 2 ** level;
    const coarse = level ? `; a cell of the picture is the ${POOLS[picture.pool]} of ${cells} × ${cells}` : "";
    fill(heat.legend, legendOf(tiles.palette(), scale, picture.what + coarse, span));
  }
}

/** The colour of a number on a colour. @param {number} red @param {number} green @param {number} blue */
export const inkOn = (red, green, blue) => (0.3 * red + 0.59 * green + 0.11 * blue > 130 ? "#10141a" : "#fff");

/** A number as short as a cell needs, beside the largest of all. @param {number} value @param {number} most */
function inCell(value, most) {
  const text = value.toFixed(most >= 100 ? 0 : most >= 10 ? 1 : most >= 0.1 ? 2 : most >= 0.01 ? 3 : 4);
  return value !== 0 && Number(text) === 0 ? "·" : text.replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** @param {Context} context @param {string} text @param {number} room */
function cutTo(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}
