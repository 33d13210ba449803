// Numbers as colours: palettes of 256, the scales that lead from a number to its place in one, and legends.
import { div, make, short, within } from "./dom.js";

/** Palettes for numbers without a sign. */
export const SEQUENTIAL = ["viridis", "cividis", "ink"];

/** How numbers without a sign are spread over a palette. */
export const SPREADS = ["linear", "root", "log"];

/** Octaves of the logarithmic spread: what is smaller looks like nothing. */
const OCTAVES = 12;

/** Of numbers that are not finite: hatched, in a colour that no palette has. */
const NOT_FINITE = [214, 0, 160];

/**
 * From numbers to places in a palette: `low` to `high` (signed: the same distance on both sides of 0).
 * @typedef {{spread: string, low: number, high: number, signed: boolean}} Scale
 */

/**
 * Every palette by name: 256 colours, three bytes each. limpid writes its own tables into the page.
 * @param {string} json the palettes as names and base64
 * @returns {Map<string, Uint8Array>}
 */
export function palettesIn(json) {
  /** @type {[string, string][]} */
  const written = JSON.parse(json);
  return new Map(written.map(([name, colours]) => [name, Uint8Array.from(atob(colours), (byte) =>
    byte.charCodeAt(0))]));
}

/** @type {Map<string, Uint8Array> | null} */
let palettes = null;

/**
 * The colours of a palette, as bytes. In the dark, `ink` is light on dark: the legend shows it.
 * @param {string} name
 * @param {boolean} dark
 * @returns {Uint8Array}
 */
export function palette(name, dark) {
  palettes ??= palettesIn(document.getElementById("palettes")?.textContent ?? "[]");
  const colours = palettes.get(name) ?? palettes.get("viridis") ?? new Uint8Array(768);
  return dark && name === "ink" ? reversed(colours) : colours;
}

/** The colours of a palette from its end. @param {Uint8Array} colours */
export function reversed(colours) {
  return colours.map((_, n) => colours[3 * (255 - Math.floor(n / 3)) + (n % 3)] ?? 0);
}

/** @param {number} x from 0 to 1 @param {string} spread */
function spreadOut(x, spread) {
  if (spread === "root") return Math.sqrt(x);
  if (spread === "log") return x <= 0 ? 0 : Math.max(0, 1 + Math.log2(x) / OCTAVES);
  return x;
}

/** @param {number} t from 0 to 1 @param {string} spread */
function gathered(t, spread) {
  if (spread === "root") return t * t;
  if (spread === "log") return t <= 0 ? 0 : 2 ** ((t - 1) * OCTAVES);
  return t;
}

/**
 * Where a number lies in a palette, from 0 to 1.
 * @param {number} value
 * @param {Scale} scale
 */
export function placeOf(value, { spread, low, high, signed }) {
  if (high <= low) return signed ? 0.5 : 0;
  if (signed) return 0.5 + 0.5 * Math.sign(value) * spreadOut(Math.min(1, Math.abs(value) / high), spread);
  return spreadOut(within((value - low) / (high - low), 0, 1), spread);
}

/**
 * The number at a place from 0 to 1.
 * @param {number} place
 * @param {Scale} scale
 */
export function valueAt(place, { spread, low, high, signed }) {
  if (signed) return Math.sign(place - 0.5) * gathered(Math.abs(2 * place - 1), spread) * high;
  return low + gathered(place, spread) * (high - low);
}

/**
 * The colour of each of 256 codes as RGBA. NaN is what a mask hides: nothing is painted there, so that it is paper.
 * @param {Float32Array} values of the codes
 * @param {Scale} scale
 * @param {Uint8Array} colours
 */
export function colourOfCodes(values, scale, colours) {
  const bytes = new Uint8ClampedArray(4 * 256);
  values.forEach((value, code) => {
    if (Number.isNaN(value)) return;
    const at = 3 * Math.round(255 * placeOf(value, scale));
    for (let n = 0; n < 3; n++) bytes[4 * code + n] = colours[at + n] ?? 0;
    bytes[4 * code + 3] = 255;
  });
  [...NOT_FINITE, 255].forEach((byte, n) => (bytes[4 * 255 + n] = byte));
  return bytes;
}

/**
 * A palette with the numbers at its ends and in its middle.
 * @param {Uint8Array} colours
 * @param {Scale} scale
 * @param {string} words what the numbers are
 * @param {{masked?: boolean, infinite?: boolean}} [marks] what else is in the picture
 */
export function legendOf(colours, scale, words, { masked = false, infinite = false } = {}) {
  const bar = make("canvas", { width: "256", height: "1", "aria-hidden": "true" });
  const pixels = new ImageData(256, 1);
  for (let n = 0; n < 256; n++) {
    for (let c = 0; c < 3; c++) pixels.data[4 * n + c] = colours[3 * n + c] ?? 0;
    pixels.data[4 * n + 3] = 255;
  }
  bar.getContext("2d")?.putImageData(pixels, 0, 0);
  const ends = [0, 0.5, 1].map((place) => make("span", short(valueAt(place, scale))));
  const about = div("of", make("p", words));
  if (masked) about.append(make("p", { class: "mark-of masked" }, "hidden by the mask"));
  if (infinite) about.append(make("p", { class: "mark-of infinite" }, "not finite"));
  return div("key", bar, make("p", { class: "ends" }, ...ends), about);
}
