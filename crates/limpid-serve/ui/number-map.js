// A heat map of numbers that the page has: which they are may change while it is open.
import { HeatMap } from "./heat.js";
import { localHeat } from "./local-heat.js";

/**
 * @typedef {object} Numbers
 * @property {string} identity another for other numbers
 * @property {number} rows
 * @property {number} cols
 * @property {(number | string)[]} values row by row
 * @property {boolean[]} hidden which of them are not there; may be empty
 * @property {boolean} signed whether colours part at zero
 * @property {number} most what the colours go to
 * @property {string} palette of numbers that are not signed
 * @property {string} what the numbers are
 * @property {[string, string]} axes
 * @property {(row: number) => string} rowLabel
 * @property {(col: number) => string} colLabel
 */

/**
 * @param {() => boolean} dark
 * @param {import("./heat.js").HeatCells} does
 */
export function numberMap(dark, does) {
  /** @type {Numbers} */
  let now = {
    identity: "", rows: 1, cols: 1, values: [], hidden: [], signed: false, most: 1, palette: "viridis", what: "",
    axes: ["", ""], rowLabel: String, colLabel: String,
  };
  const host = () => localHeat({ ...now, low: now.signed ? -now.most : 0, high: now.most }, dark);
  const map = new HeatMap(
    {
      ...host(), identity: () => now.identity, tiles: (...asked) => host().tiles(...asked),
      exact: (...asked) => host().exact(...asked),
    },
    does,
  );
  return {
    element: map.element,
    close: () => map.close(),
    /** @param {Numbers} next */
    show(next) {
      now = next;
      const { rows, cols, signed, palette, what, axes, rowLabel, colLabel } = next;
      map.element.classList.toggle("small", rows * cols <= 400);
      map.show({
        name: does.label, index: [], rows, cols, code: "lin8", pool: "absmax", palette: signed ? "diverging" : palette,
        spread: "linear", signed, causal: false, what, axes, rowLabel, colLabel,
      });
    },
  };
}
