// A matrix of any size as a picture: tiles at the fineness that the screen can show, with pan, zoom, a small map, labels,
// a legend, and the exact number of the cell under the pointer. The picture is of codes; every number written is exact.
import { troubleNote } from "./answer.js";
import { button, inks, make, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { colourOfCodes, legendOf, palette, placeOf } from "./colours.js";
import { asTrouble } from "./source.js";
import { SIDE, valueInTile, valuesOfCodes } from "./tiles.js";

/** @typedef {import("./tiles.js").Tile} Tile */
/** @typedef {import("./colours.js").Scale} Scale */

/**
 * A picture: which matrix, and how it looks. `index` is a place on the leading axes; `causal`: nothing lies above the diagonal.
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
 * @property {(picture: Picture, wanted: import("./glass-source.js").TileWanted[], onTile: (tile: Tile) => void, signal: AbortSignal) => Promise<void>} tiles
 * @property {(picture: Picture, rows: [number, number], cols: [number, number]) => Promise<(number | string)[]>} exact
 * @property {(picture: Picture) => string} identity names the numbers, not the look
 * @property {ReturnType<typeof import("./tiles.js").tileCache>} cache
 * @property {() => boolean} dark
 */

/** Milliseconds that a pointer rests before the exact number is asked for. */
const REST = 80;

/** Most cells of a picture, each way, when all of it is shown: four tiles. */
const FINE = 512;

/** The side of the small map. */
const MAP = 92;

/** Pixels of a cell in which a number can be read. */
const ROOM = 38;

/**
 * @param {HeatHost} host
 * @param {object} does
 * @param {string} does.label
 * @param {() => [number, number]} does.at the chosen cell
 * @param {(row: number, col: number) => void} does.choose
 * @param {(row: number, col: number, value: string) => string} does.words a cell and its number in words
 * @param {() => void} [does.open] what Enter or a click on the chosen cell does
 */
export function heatMap(host, does) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const readout = make("p", { class: "cell-line" });
  const legend = make("div", { class: "legend-of" });
  const trouble = make("div", {});
  const frame = make("div", { class: "heat" });
  const zoomBy = (/** @type {number} */ by) => zoom(by, plot.x + plot.w / 2, plot.y + plot.h / 2);
  const tools = make(
    "div", { class: "zoom", role: "group", "aria-label": "Zoom" },
    button("−", () => zoomBy(1 / 1.6), { "aria-label": "Smaller", title: "Smaller (-)" }),
    button("Fit", fit, { title: "All of it (0)" }),
    button("+", () => zoomBy(1.6), { "aria-label": "Larger", title: "Larger (+)" }),
  );
  const grid = liveGrid({
    label: does.label, size: () => [picture?.rows ?? 1, picture?.cols ?? 1], at: does.at,
    move: (row, col) => {
      does.choose(row, col);
      intoView(row, col);
    },
    words: (row, col) => told(row, col),
    ...(does.open ? { open: does.open } : {}),
    keys: { "+": () => zoomBy(1.6), "=": () => zoomBy(1.6), "-": () => zoomBy(1 / 1.6), 0: fit },
  });
  frame.append(canvas, grid.element);
  const element = make("div", { class: "heat-view" }, trouble, frame, make("div", { class: "under" }, readout, tools), legend);

  /** @type {Picture | null} */
  let picture = null;
  let identity = "";
  /** Where the cells are: the plot's place, a cell's size when all is shown. */
  const plot = { x: 0, y: 0, w: 0, h: 0, cw: 1, ch: 1 };
  const view = { zoom: 1, x: 0, y: 0 };
  /** What the codes span. @type {{low: number, high: number, code: number, infinite: boolean, masked: boolean} | null} */
  let span = null;
  /** @type {{row: number, col: number} | null} */
  let hovered = null;
  /** @type {{controller: AbortController, keys: Set<string>} | null} */
  let flight = null;
  /** @type {WeakMap<Tile, {look: string, pixels: HTMLCanvasElement}>} */
  const painted = new WeakMap();
  /** Exact numbers by cell, of this picture. @type {Map<string, number | string>} */
  const known = new Map();
  let [drawing, waiting, shownLegend, windowAsked] = [0, 0, "", ""];

  const scale = () => /** @type {Scale} */ ({
    spread: picture?.spread ?? "linear", signed: picture?.signed ?? false,
    low: picture?.code === "log8" ? 0 : (span?.low ?? 0),
    high: picture?.signed ? Math.max(Math.abs(span?.low ?? 0), Math.abs(span?.high ?? 1)) : (span?.high ?? 1),
  });

  function layout() {
    if (!picture) return;
    const { rows, cols } = picture;
    const wide = frame.clientWidth;
    if (wide === 0) return;
    const small = wide < 440;
    const context = canvas.getContext("2d");
    const longest = (/** @type {(n: number) => string} */ label, /** @type {number} */ count) => {
      let most = 0;
      for (let n = 0; n < Math.min(count, 96); n++) most = Math.max(most, context?.measureText(label(n)).width ?? 0);
      return Math.ceil(most);
    };
    if (context) context.font = FONT(frame);
    const [most, least] = small ? [64, 30] : [112, 34];
    plot.x = 20 + Math.min(most, Math.max(least, longest(picture.rowLabel, rows)));
    plot.y = 22 + Math.min(most, Math.max(22, longest(picture.colLabel, cols)));
    const across = wide - plot.x - 2;
    const top = frame.getBoundingClientRect().top + scrollY;
    const down = Math.max(240, innerHeight * 0.55, Math.min(across * 1.1, innerHeight - top - plot.y - 120));
    const cell = Math.min(across / cols, down / rows, 60);
    const square = cell * Math.max(rows, cols) >= 0.99 * Math.min(across, down) && Math.max(rows / cols, cols / rows) <= 3;
    plot.cw = square ? cell : Math.min(across / cols, 60);
    plot.ch = square ? cell : Math.min(down / rows, 60, Math.max(plot.cw, 24));
    [plot.w, plot.h] = [plot.cw * cols, plot.ch * rows];
    sizeCanvas(canvas, wide, Math.ceil(plot.y + plot.h + 8));
    clamp();
    draw();
    load();
  }

  function clamp() {
    if (!picture) return;
    const most = Math.max(1, (Math.max(picture.rows, picture.cols) * Math.min(plot.cw, plot.ch)) / (6 * Math.min(plot.cw, plot.ch)), 64 / plot.cw);
    view.zoom = Math.min(most, Math.max(1, view.zoom));
    view.x = Math.min(picture.cols * (1 - 1 / view.zoom), Math.max(0, view.x));
    view.y = Math.min(picture.rows * (1 - 1 / view.zoom), Math.max(0, view.y));
  }

  /** The cell at a point of the canvas, in cells and parts of them. @param {number} x @param {number} y */
  const cellAt = (x, y) => [view.y + (y - plot.y) / (plot.ch * view.zoom), view.x + (x - plot.x) / (plot.cw * view.zoom)];

  /** @param {number} by @param {number} x @param {number} y what stays where it is */
  function zoom(by, x, y) {
    const [row = 0, col = 0] = cellAt(x, y);
    view.zoom *= by;
    clamp();
    view.x = col - (x - plot.x) / (plot.cw * view.zoom);
    view.y = row - (y - plot.y) / (plot.ch * view.zoom);
    moved();
  }

  function fit() {
    [view.zoom, view.x, view.y] = [1, 0, 0];
    moved();
  }

  function moved() {
    clamp();
    draw();
    load();
  }

  /** @param {number} row @param {number} col */
  function intoView(row, col) {
    if (!picture || view.zoom === 1) return;
    const [rows, cols] = [picture.rows / view.zoom, picture.cols / view.zoom];
    view.x = Math.min(col, Math.max(col + 1 - cols, view.x));
    view.y = Math.min(row, Math.max(row + 1 - rows, view.y));
    moved();
  }

  /** How coarse the picture is: the least level with a pixel for each cell, and few tiles. */
  function level(zoom = view.zoom) {
    if (!picture) return 0;
    const pixel = Math.log2(1 / (Math.min(plot.cw, plot.ch) * zoom));
    const many = Math.log2(Math.max(picture.rows, picture.cols) / zoom / FINE);
    return Math.max(0, Math.ceil(pixel - 1e-6), Math.ceil(many - 1e-6));
  }

  /** @param {number} at the level @param {number} row @param {number} col */
  const keyOf = (at, row, col) => `${identity} ${at} ${row} ${col}`;

  /** The tiles in sight at a level. @param {number} at @returns {[number, number][]} */
  function inSight(at) {
    if (!picture) return [];
    const reach = SIDE * 2 ** at;
    /** @type {[number, number][]} */
    const all = [];
    const last = (/** @type {number} */ from, /** @type {number} */ count) => Math.ceil(Math.min(count, from + count / view.zoom) / reach);
    for (let row = Math.floor(view.y / reach); row < last(view.y, picture.rows); row++) {
      for (let col = Math.floor(view.x / reach); col < last(view.x, picture.cols); col++) {
        if (!(picture.causal && col > row)) all.push([row, col]);
      }
    }
    return all;
  }

  async function load() {
    if (!picture || plot.w === 0) return;
    const [mine, shown, at] = [identity, picture, level()];
    const wanted = inSight(at).filter(([row, col]) => !host.cache.get(keyOf(at, row, col)));
    if (flight) {
      if (wanted.some(([row, col]) => flight?.keys.has(keyOf(at, row, col)))) return;
      flight.controller.abort();
      flight = null;
    }
    if (wanted.length === 0) return;
    // what is nearest to the pointer, or to the middle, comes first
    const [row0, col0] = hovered ? [hovered.row, hovered.col] : [view.y + picture.rows / view.zoom / 2, view.x + picture.cols / view.zoom / 2];
    const far = (/** @type {[number, number]} */ [row, col]) => Math.hypot((row + 0.5) * SIDE * 2 ** at - row0, (col + 0.5) * SIDE * 2 ** at - col0);
    wanted.sort((a, b) => far(a) - far(b));
    const own = { controller: new AbortController(), keys: new Set(wanted.map(([row, col]) => keyOf(at, row, col))) };
    flight = own;
    trouble.replaceChildren();
    frame.setAttribute("aria-busy", "true");
    try {
      const list = wanted.map((tile) => ({ name: shown.name, index: shown.index, tile, level: at, pool: shown.pool, code: shown.code }));
      await host.tiles(shown, list, (tile) => {
        const place = wanted[tile.index];
        if (!place) return;
        host.cache.put(`${mine} ${at} ${place[0]} ${place[1]}`, tile);
        if (mine === identity) draw();
      }, own.controller.signal);
      if (flight === own) flight = null;
      if (mine === identity) load();
    } catch (fault) {
      if (flight === own) flight = null;
      if (own.controller.signal.aborted || mine !== identity) return;
      trouble.replaceChildren(troubleNote(asTrouble(fault), load));
    } finally {
      if (!flight) frame.removeAttribute("aria-busy");
    }
  }

  /** @param {Tile} tile */
  function pixelsOf(tile) {
    const s = scale();
    const look = `${picture?.palette} ${host.dark()} ${s.spread} ${s.low} ${s.high}`;
    const old = painted.get(tile);
    if (old?.look === look) return old.pixels;
    const pixels = old?.pixels ?? make("canvas", { width: `${tile.cols}`, height: `${tile.rows}` });
    const colours = new Uint32Array(colourOfCodes(valuesOfCodes(tile.code, tile.low, tile.high), s, palette(picture?.palette ?? "", host.dark())).buffer);
    const image = new ImageData(tile.cols, tile.rows);
    const words = new Uint32Array(image.data.buffer);
    for (let n = 0; n < words.length; n++) words[n] = colours[tile.data[n] ?? 0] ?? 0;
    pixels.getContext("2d")?.putImageData(image, 0, 0);
    painted.set(tile, { look, pixels });
    return pixels;
  }

  function draw() {
    if (!drawing) drawing = requestAnimationFrame(paint);
  }

  function paint() {
    drawing = 0;
    const context = canvas.getContext("2d");
    if (!picture || !context || plot.w === 0) return;
    const ink = inks(frame);
    const ratio = devicePixelRatio || 1;
    const [cw, ch] = [plot.cw * view.zoom, plot.ch * view.zoom];
    const snap = (/** @type {number} */ x) => Math.round(x * ratio) / ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.beginPath();
    context.rect(plot.x, plot.y, plot.w, plot.h);
    context.clip();
    context.fillStyle = ink("panel");
    context.fillRect(plot.x, plot.y, plot.w, plot.h);
    context.imageSmoothingEnabled = false;
    const at = level();
    // what was painted when all was shown lies under what comes now, and in the small map
    const whole = level(1);
    /** @type {Tile[]} */
    const tiles = [];
    for (const each of whole > at ? [whole, at] : [at]) {
      const step = 2 ** each;
      for (const [row, col] of inSight(each)) {
        const tile = host.cache.get(keyOf(each, row, col));
        if (!tile) continue;
        span = { low: tile.low, high: tile.high, code: tile.code, infinite: tile.infinite || !!span?.infinite, masked: tile.masked || !!span?.masked };
        const [x, y] = [snap(plot.x + (tile.col0 * step - view.x) * cw), snap(plot.y + (tile.row0 * step - view.y) * ch)];
        const [x1, y1] = [snap(plot.x + ((tile.col0 + tile.cols) * step - view.x) * cw), snap(plot.y + ((tile.row0 + tile.rows) * step - view.y) * ch)];
        context.drawImage(pixelsOf(tile), x, y, x1 - x, y1 - y);
        if (each === at) tiles.push(tile);
        if (tile.infinite && cw * step > 3) hatch(context, tile, step, cw, ch);
      }
    }
    context.restore();
    numbers(context, tiles, cw, ch);
    context.strokeStyle = ink("line");
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
    labels(context, ink);
    if (view.zoom > 1.02) smallMap(context, ink, whole);
    const [row, col] = does.at();
    const [left, top] = [plot.x + (col - view.x) * cw, plot.y + (row - view.y) * ch];
    const inside = left > plot.x - cw && left < plot.x + plot.w && top > plot.y - ch && top < plot.y + plot.h;
    grid.put(inside ? { left, top, width: Math.max(cw, 5), height: Math.max(ch, 5) } : null);
    const s = scale();
    const key = JSON.stringify([picture.palette, s, span?.masked, span?.infinite, host.dark(), at, picture.what]);
    if (key !== shownLegend && span) {
      shownLegend = key;
      const coarse = at ? `; a cell of the picture is the ${picture.pool === "mean" ? "mean" : picture.pool === "max" ? "largest" : "largest in size"} of ${2 ** at} × ${2 ** at}` : "";
      legend.replaceChildren(legendOf(palette(picture.palette, host.dark()), s, picture.what + coarse, span));
    }
    frame.dataset["cells"] = [plot.x, plot.y, cw, ch, view.x, view.y].join(" ");
    frame.dataset["level"] = `${at}`;
    frame.dataset["painted"] = `${tiles.length}`;
  }

  /** @param {CanvasRenderingContext2D} context @param {Tile} tile @param {number} step @param {number} cw @param {number} ch */
  function hatch(context, tile, step, cw, ch) {
    context.strokeStyle = "#fff";
    context.lineWidth = 1;
    context.beginPath();
    for (let r = 0; r < tile.rows; r++) {
      for (let c = 0; c < tile.cols; c++) {
        if (tile.data[r * tile.cols + c] !== 255) continue;
        const [x, y] = [plot.x + ((tile.col0 + c) * step - view.x) * cw, plot.y + ((tile.row0 + r) * step - view.y) * ch];
        context.moveTo(x, y + ch * step);
        context.lineTo(x + cw * step, y);
      }
    }
    context.stroke();
  }

  /**
   * Exact numbers in cells that have room for them.
   * @param {CanvasRenderingContext2D} context @param {Tile[]} tiles @param {number} cw @param {number} ch
   */
  function numbers(context, tiles, cw, ch) {
    if (!picture || cw < ROOM || ch < 16 || tiles.length === 0) return;
    const from = [Math.floor(view.y), Math.floor(view.x)].map((n) => Math.max(0, n));
    const to = [Math.min(picture.rows, Math.ceil(view.y + picture.rows / view.zoom)), Math.min(picture.cols, Math.ceil(view.x + picture.cols / view.zoom))];
    const [r0 = 0, c0 = 0, r1 = 0, c1 = 0] = [...from, ...to];
    const [colours, s] = [palette(picture.palette, host.dark()), scale()];
    context.font = `${Math.min(12, cw / 3.4)}px ui-monospace, Menlo, Consolas, monospace`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    let missing = false;
    for (let r = r0; r < r1; r++) {
      for (let c = c0; c < c1; c++) {
        const value = known.get(`${r},${c}`);
        missing ||= value === undefined;
        if (value === undefined || !Number.isFinite(Number(value)) || (picture.causal && c > r)) continue;
        const at = 3 * Math.round(255 * placeOf(Number(value), s));
        const light = 0.3 * (colours[at] ?? 0) + 0.59 * (colours[at + 1] ?? 0) + 0.11 * (colours[at + 2] ?? 0);
        context.fillStyle = light > 130 ? "#10141a" : "#fff";
        context.fillText(inCell(Number(value), s.high), plot.x + (c + 0.5 - view.x) * cw, plot.y + (r + 0.5 - view.y) * ch);
      }
    }
    const asked = `${identity} ${r0} ${r1} ${c0} ${c1}`;
    if (!missing || asked === windowAsked) return;
    windowAsked = asked;
    const mine = identity;
    host.exact(picture, [r0, r1], [c0, c1]).then((values) => {
      if (mine !== identity) return;
      values.forEach((value, n) => known.set(`${r0 + Math.floor(n / (c1 - c0))},${c0 + (n % (c1 - c0))}`, value));
      draw();
    }, () => {}); // the picture is there without them
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink */
  function labels(context, ink) {
    if (!picture) return;
    context.font = FONT(frame);
    context.textBaseline = "middle";
    const [row, col] = does.at();
    for (const down of [true, false]) {
      const [count, size, from, chosen, pointed] = down
        ? [picture.rows, plot.ch * view.zoom, view.y, row, hovered?.row]
        : [picture.cols, plot.cw * view.zoom, view.x, col, hovered?.col];
      const stride = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => n * size >= (size >= 11 ? 11 : down ? 28 : 44)) ?? count;
      const room = (down ? plot.x : plot.y) - 20;
      const first = Math.max(0, Math.ceil((from - 0.5) / stride) * stride);
      const places = [];
      for (let n = first; n < count && n < from + count / view.zoom; n += stride) places.push(n);
      for (const n of [pointed, chosen]) if (n !== undefined) places.push(n);
      for (const [i, n] of places.entries()) {
        const at = (n + 0.5 - from) * size;
        const special = i >= places.length - (pointed === undefined ? 1 : 2);
        if (at < 0 || at > (down ? plot.h : plot.w)) continue;
        // the chosen one takes the room of its neighbours
        if (!special && [chosen, pointed].some((other) => other !== undefined && Math.abs(other - n) * size < 13)) continue;
        if (special && n === chosen && pointed !== undefined && pointed !== chosen && Math.abs(pointed - n) * size < 13) continue;
        const text = cutTo(context, stride === 1 || special ? (down ? picture.rowLabel(n) : picture.colLabel(n)) : `${n}`, room);
        context.fillStyle = special ? ink("accent") : ink("dim");
        context.save();
        if (down) {
          context.textAlign = "right";
          context.fillText(text, plot.x - 6, plot.y + at);
        } else {
          context.translate(plot.x + at, plot.y - 6);
          context.rotate(-Math.PI / 2);
          context.textAlign = "left";
          context.fillText(text, 0, 0);
        }
        context.restore();
      }
    }
    context.fillStyle = ink("dim");
    context.textAlign = "left";
    context.fillText(`${picture.axes[1]} →`, plot.x, 8);
    context.save();
    context.translate(8, plot.y);
    context.rotate(-Math.PI / 2);
    context.textAlign = "right";
    context.fillText(`← ${picture.axes[0]}`, 0, 0);
    context.restore();
  }

  /** Where the small map lies. */
  const mapBox = () => {
    const tall = picture ? Math.min(1, picture.rows / picture.cols) : 1;
    const broad = picture ? Math.min(1, picture.cols / picture.rows) : 1;
    return { x: plot.x + plot.w - MAP * broad - 8, y: plot.y + 8, w: MAP * broad, h: MAP * tall };
  };

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {number} whole */
  function smallMap(context, ink, whole) {
    if (!picture) return;
    const { x, y, w, h } = mapBox();
    const step = 2 ** whole;
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.fillStyle = ink("panel");
    context.fillRect(x, y, w, h);
    const reach = SIDE * step;
    for (let row = 0; row * reach < picture.rows; row++) {
      for (let col = 0; col * reach < picture.cols; col++) {
        const tile = host.cache.get(keyOf(whole, row, col));
        if (tile) context.drawImage(pixelsOf(tile), x + (col * reach * w) / picture.cols, y + (row * reach * h) / picture.rows, (tile.cols * step * w) / picture.cols, (tile.rows * step * h) / picture.rows);
      }
    }
    context.restore();
    context.strokeStyle = ink("edge");
    context.strokeRect(x, y, w, h);
    for (const [name, wide] of /** @type {[string, number][]} */ ([["panel", 5], ["accent", 2]])) {
      context.strokeStyle = ink(name);
      context.lineWidth = wide;
      context.strokeRect(x + (view.x * w) / picture.cols, y + (view.y * h) / picture.rows, w / view.zoom, h / view.zoom);
    }
    context.lineWidth = 1;
  }

  /** The number of a cell by its tile: as near as a code is. @param {number} row @param {number} col */
  function roughly(row, col) {
    for (let at = 0; at < 12; at++) {
      const tile = host.cache.get(keyOf(at, Math.floor(row / 2 ** at / SIDE), Math.floor(col / 2 ** at / SIDE)));
      if (tile) return valueInTile(tile, Math.floor(row / 2 ** at) - tile.row0, Math.floor(col / 2 ** at) - tile.col0);
    }
    return null;
  }

  /** A cell in words, with its exact number. @param {number} row @param {number} col */
  async function told(row, col) {
    if (!picture) return "";
    if (picture.causal && col > row) return does.words(row, col, "hidden by the mask");
    const [mine, key] = [identity, `${row},${col}`];
    if (!known.has(key)) {
      const values = await host.exact(picture, [row, row + 1], [col, col + 1]).catch(() => []);
      if (mine !== identity || values[0] === undefined) return does.words(row, col, "…");
      known.set(key, values[0]);
    }
    return does.words(row, col, short(known.get(key), 6));
  }

  function tellHovered() {
    clearTimeout(waiting);
    draw();
    const [row, col] = hovered ? [hovered.row, hovered.col] : does.at();
    const mine = `${row},${col}`;
    const now = () => mine === (hovered ? `${hovered.row},${hovered.col}` : does.at().join());
    const rough = roughly(row, col);
    if (rough !== null && !known.has(mine) && !Number.isNaN(rough)) readout.textContent = does.words(row, col, `≈ ${short(rough, 2)}`);
    waiting = setTimeout(async () => {
      const words = await told(row, col);
      if (now()) readout.textContent = words;
    }, known.has(mine) ? 0 : REST);
  }

  /** @param {{clientX: number, clientY: number}} event */
  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const inPlot = x >= plot.x && x < plot.x + plot.w && y >= plot.y && y < plot.y + plot.h;
    const map = mapBox();
    const inMap = view.zoom > 1.02 && x > map.x && x < map.x + map.w && y > map.y && y < map.y + map.h;
    const [row = 0, col = 0] = cellAt(x, y);
    return { x, y, inPlot, inMap, map, row: Math.floor(row), col: Math.floor(col) };
  }

  /** @type {{x: number, y: number, far: boolean, touch: boolean} | null} */
  let held = null;
  let pressing = 0;
  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { x: event.clientX, y: event.clientY, far: false, touch: event.pointerType === "touch" };
    const at = pointed(event);
    if (held.touch && at.inPlot) {
      pressing = setTimeout(() => {
        if (held) held.far = true; // looked at, not chosen
        hovered = { row: at.row, col: at.col };
        tellHovered();
      }, 500);
    }
  });
  frame.addEventListener("pointermove", (event) => {
    if (!picture) return;
    if (held && !held.touch && (held.far || Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4)) {
      held.far = true;
      view.x -= (event.clientX - held.x) / (plot.cw * view.zoom);
      view.y -= (event.clientY - held.y) / (plot.ch * view.zoom);
      [held.x, held.y] = [event.clientX, event.clientY];
      return moved();
    }
    if (event.pointerType === "touch") return;
    const { inPlot, inMap, row, col } = pointed(event);
    const next = inPlot && !inMap && row < picture.rows && col < picture.cols ? { row, col } : null;
    if (next?.row === hovered?.row && next?.col === hovered?.col) return;
    hovered = next;
    tellHovered();
  });
  const letGo = () => {
    clearTimeout(pressing);
    held = null;
  };
  frame.addEventListener("pointerup", (event) => {
    const was = held;
    letGo();
    if (!picture || !was || was.far) return;
    const { inPlot, inMap, map, x, y, row, col } = pointed(event);
    if (inMap) {
      view.x = ((x - map.x) / map.w - 0.5 / view.zoom) * picture.cols;
      view.y = ((y - map.y) / map.h - 0.5 / view.zoom) * picture.rows;
      return moved();
    }
    if (!inPlot || row >= picture.rows || col >= picture.cols) return;
    if (was.touch) hovered = null;
    does.choose(row, col);
    grid.cell.focus({ preventScroll: true });
    does.open?.();
  });
  frame.addEventListener("pointercancel", letGo);
  frame.addEventListener("pointerleave", (event) => {
    letGo();
    if (event.pointerType === "touch" || !hovered) return;
    hovered = null;
    tellHovered();
  });
  frame.addEventListener("wheel", (event) => {
    const at = pointed(event);
    // a page that could scroll does so where there is nothing to make larger or smaller
    if (!at.inPlot || (view.zoom <= 1 && event.deltaY > 0)) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), at.x, at.y);
  }, { passive: false });
  /** @type {{apart: number, x: number, y: number} | null} */
  let pinch = null;
  frame.addEventListener("touchstart", () => (pinch = null), { passive: true });
  frame.addEventListener("touchmove", (event) => {
    const [one, two] = event.touches;
    if (!one || !two) return clearTimeout(pressing);
    event.preventDefault();
    letGo();
    const box = canvas.getBoundingClientRect();
    const now = {
      apart: Math.hypot(one.clientX - two.clientX, one.clientY - two.clientY),
      x: (one.clientX + two.clientX) / 2 - box.left, y: (one.clientY + two.clientY) / 2 - box.top,
    };
    if (pinch) {
      view.x -= (now.x - pinch.x) / (plot.cw * view.zoom);
      view.y -= (now.y - pinch.y) / (plot.ch * view.zoom);
      zoom(now.apart / pinch.apart, now.x, now.y);
    }
    pinch = now;
  }, { passive: false });
  const watcher = new ResizeObserver(layout);
  watcher.observe(frame);

  return {
    element,
    /** @param {Picture} next */
    show(next) {
      const other = host.identity(next);
      const resized = picture?.rows !== next.rows || picture.cols !== next.cols;
      picture = next;
      if (other !== identity) {
        identity = other;
        known.clear();
        span = null;
        hovered = null;
        windowAsked = "";
        frame.dataset["painted"] = "0";
        readout.textContent = "";
        if (resized) [view.zoom, view.x, view.y] = [1, 0, 0];
        layout();
      }
      draw();
      load();
      tellHovered();
      if (document.activeElement === grid.cell) grid.tell();
    },
    /** Chooses what is under the pointer. */
    pin() {
      if (hovered) does.choose(hovered.row, hovered.col);
    },
    close() {
      watcher.disconnect();
      flight?.controller.abort();
      cancelAnimationFrame(drawing);
      clearTimeout(waiting);
    },
  };
}

/** @param {Element} element */
const FONT = (element) => `11px ${getComputedStyle(element).fontFamily}`;

/** A number as short as a cell needs, beside the largest of all. @param {number} value @param {number} most */
function inCell(value, most) {
  const text = value.toFixed(most >= 100 ? 0 : most >= 10 ? 1 : most >= 0.1 ? 2 : most >= 0.01 ? 3 : 4);
  return value !== 0 && Number(text) === 0 ? "·" : text.replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} room */
function cutTo(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = text;
  while (kept.length > 1 && context.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return `${kept}…`;
}
