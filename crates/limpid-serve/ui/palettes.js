// Numbers as colours: four palettes of 256, the scales that lead from a number to its place in one, and legends.
import { make, short } from "./dom.js";

/** 256 colours each, three bytes a colour, as base64. `ink` goes from paper to dark, `diverging` has zero in its middle. */
const TABLES = {
  viridis:
    "RAFURAJWRQRXRQVZRgdaRghcRgpdRgteRw1gRw5hRxBjRxFkRxNlSBRnSBZoSBdpSBhqSBpsSBttSBxuSB1vSB9wSCBxSCFzSCN0SCR1SCV2SCZ3SCh4" +
    "SCl5Ryp6Ryx6Ry17Ry58Ry99RjB+RjJ+RjN/RjSARTWBRTeBRTiCRDmDRDqDRDuEQz2EQz6FQj+FQkCGQkGGQUKHQUSHQEWIQEaIP0eIP0iJPkmJPkqJ" +
    "PkyKPU2KPU6KPE+KPFCLO1GLO1KLOlOLOlSMOVWMOVaMOFiMOFmMN1qMN1uNNlyNNl2NNV6NNV+NNGCNNGGNM2KNM2ONMmSOMmWOMWaOMWeOMWiOMGmO" +
    "MGqOL2uOL2yOLm2OLm6OLm+OLXCOLXGOLHKOLHOOLHSOK3WOK3WPKnaOKneOKniOKXmOKXqOKXuOKHyOKH2OJ36OJ3+OJ4COJoGOJoKOJoOOJYSOJYWO" +
    "JYaOJIeOJIiOI4mOI4qOI4uNI4uOIoyNIo2NIY6NIY+NIZCNIZGMIJKMIJOMIJSMH5WMH5aLH5eLH5iLH5mLH5qKH5qLHpuKHpyJHp2JH56JH5+IH6CI" +
    "H6GIH6KHH6OHIKSGIKWGIaaFIaeFIqiFIqmEJKmEJKqDJauCJayCJq2BJ66BKK+AKbB/K7B/LLF+LbJ9LrN8L7R8MbV7MrZ6NLZ5Nbd5N7h4OLl3Orp2" +
    "O7t1Pbx0P7xzQL1yQr5xRL9wRsBvSMFuSsFtTMJsTsNrUMRqUsVpVMVoVsZnWMdlWshkXMhjXsliYMpgY8tfZcteZ8xcac1bbM1abs5YcM9Xc9BWddBU" +
    "d9FTetFRfNJQf9NOgdNNhNRLhtVJidVIi9ZGjtZFkNdDk9dBldhAmNg+m9k8ndk7oNo5oto3pds2qNs0qtwyrdwwsN0vst0ttd4ruN4put4ovd8mwN8l" +
    "wt8jxeAhyOAgyuEfzeEd0OEc0uIb1eIa2OIZ2uMZ3eMY3+MY4uQY5eQZ5+QZ6uUa7OUb7+Uc8eUd9OYe9uYg+OYh++cj/ecl",
  cividis:
    "ACJOACNPACRRACVTACVUACZWACdYAChZAChbACldACpfACphACtiACxkACxmAC1oAC5qAC5sAC9tADBvADBwADFwADFxATJxBTNxCDNxDDRwDzVwEjVw" +
    "FDZwFjdwGDhvGjhvHDlvHjpvIDpvITtuIzxuJDxuJj1uJz5uKT9uKj9uK0BtLUFtLkFtL0JtMUNtMkNtM0RtNEVsNUVsNkZsOEdsOUhsOkhsO0lsPEps" +
    "PUpsPktsP0xsQExsQU1sQk5sQ05sRE9sRVBsRlFsR1FsSFJsSVNsSlNsS1RsTFVsTVVsTlZsT1dsUFdsUVhtUlltU1ptVFptVVttVVxtVlxtV11tWF5t" +
    "WV5uWl9uW2BuXGFuXWFuXmJuXmNvX2NvYGRvYWVvYmVvY2ZwZGdwZWhwZmhwZmlwZ2pxaGpxaWtxamxxa21ybG1ybG5ybW9ybm9zb3BzcHFzcXJ0cnJ0" +
    "cnN0c3R1dHR1dXV1dnZ2d3d2d3d3eHh3eXl3enp4e3p4fHt4fXx4fnx4fn14f354gH94gX94goB5g4F5hIJ5hYJ5hoN5h4R4iIV4iYV4ioZ4i4d4jIh4" +
    "jYh4jol4j4p4kIt4kYt4kox4ko14k454lI53lY93lpB3l5F3mJJ3mZJ3mpN2m5R2nJV2nZV2npZ2n5d1oJh1oZl1opl1o5p0pJt0pZx0ppx0p51zqJ5z" +
    "qZ9zqqBzq6ByrKFyraJyrqNxr6RxsKVxsaVws6ZwtKdvtahvtqlvt6luuKpuuattuqxtu61tvK5sva5svq9rv7BrwLFqwbJqwrNpw7NpxLRoxbVoxrZn" +
    "x7dnyLhmyblly7llzLpkzbtjzrxjz71i0L5i0b9h0sBg08Bf1MFf1cJe1sNd18Rc2cVc2sZb28da3MhZ3chY3slY38pX4MtW4cxV4s1U5M5T5c9S5tBR" +
    "59FQ6NJP6dNO6tNM69RL7dVK7tZJ79dI8NhG8dlF8tpE89tC9dxB9t0/994++N88+eA6++E4/OI2/eM0/uQ0/uU1/uY2/ug4",
  ink:
    "7u/x7e7x7O7w6+3v6uzu6evt6Ort5+ns5ujr5efq5Obp4+bo4uXo4eTn4OPm3+Ll3uHk3eDk3N/j297i2t3h2d3g2Nzg19vf19re1tnd1djc1Nfc09bb" +
    "0tba0dXZ0NTZz9PYztLXzdHWzNDVy8/Vys7Uyc7TyM3Sx8zRxsvRxcrQxcnPxMjOw8fNwsfNwcbMwMXLv8TKvsPKvcLJvMHIu8DHusDGub/GuL7FuL3E" +
    "t7zDtrvDtbrCtLrBs7nAsri/sbe/sLa+r7W9rrS8rbS8rbO7rLK6q7G5qrC4qa+4qK63p662pq21pay1pKu0o6qzo6myoqiyoaixoKewn6avnqWunaSu" +
    "nKOtm6OsmqKrmqGrmaCqmJ+pl56olp6olZ2nlJymk5ulkpqlkpmkkZmjkJiij5eijpahjZWgjJSfi5Sfi5OeipKdiZGciJCch4+bho+ahY6ZhI2ZhIyY" +
    "g4uXgoqWgYqWgImVf4iUfoeTfoaTfYaSfIWRe4SQeoOQeYKPeIKOeIGNd4CNdn+MdX6LdH2Kc3yJc3yIcnuIcXqHcHmGb3iFbneEbXeEbXaDbHWCa3SB" +
    "anOAaXN/aHJ/aHF+Z3B9Zm98ZW57ZG57ZG16Y2x5Ymt4YWp3YGp3X2l2X2h1Xmd0XWZzXGVzW2VyW2RxWmNwWWJvWGFvV2FuV2BtVl9sVV5rVF1rU11q" +
    "U1xpUltoUVpnUFpnT1lmT1hlTldkTVZkTFZjS1ViS1RhSlNgSVJgSFJfR1FeR1BdRk9dRU9cRE5bRE1aQ0xZQkxZQUtYQEpXQElWP0lWPkhVPUdUPUZT" +
    "PEVTO0VSOkRROkNQOUJQOEJPN0FON0BNNj9NNT9MND5LND1KMz1KMjxJMTtIMTpHMDpHLzlGLjhFLjdFLTdELDZDKzVCKzRCKjRBKTNAKDJAKDI/JzE+" +
    "JjA9JS89JS88JC47Iy07Iy06Iiw5ISs4ICs4ICo3Hyk2Hik1Hig1HSc0HCYzGyYzGyUyGiQxGSQxGSMwGCIvFyIuFiEuFiAt",
  diverging:
    "DlmXEVqYE1yZFV2aF16bGF+cGmCdHGGeHWKfH2SgIWWhImaiJGejJWikJ2mlKGqmKWynK22oLG6pLm+qL3CrMHGsMnOsM3StNHWuNnavN3ewOHixOnqy" +
    "O3uzPHy0PX21P362QIC3QYG4Q4K5RIO6RYS7Roa8SIe9SYi+Som+TIq/TYvATo3BT47CUY/DUpDEU5HFVJPGVpTHV5XIWJbJWpjKW5nLXJrMXZvNX5zO" +
    "YJ7OYZ/PY6DQZKHRZaLSZqTTaKXUaabVaqfWbKnXbarYbqvZcKzacq3ada/bd7DberHbfLLcf7TcgbXdhLbdhrfeiLjei7rfjbvfj7zfkr3glL7glsDh" +
    "mcHhm8LincPin8XjosbjpMfjpsjkqMrkq8vlrczlr83msc7mtNDnttHnuNLoutPovNXov9bpwdfpw9jqxdrqx9vrytzrzN3szt7s0ODt0uHt1OLt1+Pu" +
    "2eXu2+bv3efv3+jw4urw5Ovx5uzx6O3y6u/y7PDy7/Hz8fLz9PLw8/Dt8+/q8+3m8+zj8urg8ujd8ufa8uXX8eTU8eLR8eHO8N/L8N3I8NzF8NrC79m/" +
    "79e879a579S27tKz7tGw7s+t7c6q7cyn7cql7Mmi7Mef7MWc7MSZ68KW68GT67+R6r2O6ryL6rqI6biF6beD6bWA6LN96LJ657B35691561y5qtv5qpt" +
    "5qhq5aZn5aRk5KNi5KFf5J9c455a45xX4ppU4plS4ZdP4ZVM4JRL35JK3pFJ3ZBI3I9H241G2oxF2YtE14lD1ohC1YdB1IVA04Q/0oM+0YE90IA8z387" +
    "zn46zXw5zHs4y3o3yXg2yHc1x3Y0xnUzxXMyxHIxw3Ewwm8vwW4uwG0tv2wsvmorvWkqu2gpumYouWUnuGQmt2MltmEktWAjtF8is14hslwgsVsfr1oe" +
    "rlgdrVccrFYcq1UbqlMaqVIZqFEYp08Xpk4WpU0Vo0wUokoToUkSoEgRn0cQnkUPnUQOnEMNm0EMmkALmD8Klz4JljwIlTsH",
};

/** @typedef {keyof typeof TABLES} PaletteName */

/** Palettes for numbers that have no sign. @type {PaletteName[]} */
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
 * The colours of a palette, as bytes. In the dark, `ink` is light on dark: the legend shows it.
 * @param {string} name
 * @param {boolean} dark
 * @returns {Uint8Array}
 */
export function palette(name, dark) {
  const table = Uint8Array.from(atob(TABLES[/** @type {PaletteName} */ (name)] ?? TABLES.viridis), (c) => c.charCodeAt(0));
  if (!(dark && name === "ink")) return table;
  return table.map((_, n) => table[3 * (255 - Math.floor(n / 3)) + (n % 3)] ?? 0);
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
  return spreadOut(Math.min(1, Math.max(0, (value - low) / (high - low))), spread);
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
  const ends = [0, 0.5, 1].map((place) => make("span", {}, short(valueAt(place, scale))));
  const about = make("div", { class: "of" }, make("p", {}, words));
  if (masked) about.append(make("p", { class: "mark-of masked" }, "hidden by the mask"));
  if (infinite) about.append(make("p", { class: "mark-of infinite" }, "not finite"));
  return make("div", { class: "key" }, bar, make("p", { class: "ends" }, ...ends), about);
}
