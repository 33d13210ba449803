// A canvas cannot speak or be walked. Beside each lies a grid with one live cell: it has the focus, lies over the cell
// of the picture that it stands for, moves with the arrow keys, and says what is there.
import { isFocused, isModified, make, on, say, within } from "./dom.js";

/** How far Shift goes. */
const STRIDE = 16;

/** Milliseconds of rest before something is said. */
const CALM = 250;

/**
 * The cell that a key leads to from another; null where the key means nothing here.
 * @param {KeyboardEvent} event
 * @param {[number, number]} from
 * @param {[number, number]} size rows and columns
 * @param {number} far how far Shift goes
 * @returns {[number, number] | null}
 */
export function cellByKey(event, [row, col], [rows, cols], far = STRIDE) {
  const step = event.shiftKey ? far : 1;
  /** @type {Record<string, [number, number]>} */
  const places = {
    ArrowLeft: [row, col - step], ArrowRight: [row, col + step], ArrowUp: [row - step, col],
    ArrowDown: [row + step, col],
    Home: [row, 0], End: [row, cols - 1], PageUp: [row - STRIDE, col], PageDown: [row + STRIDE, col],
  };
  const next = places[event.key];
  if (!next) return null;
  event.preventDefault();
  return [within(next[0], 0, rows - 1), within(next[1], 0, cols - 1)];
}

/**
 * @typedef {object} Walk
 * @property {string} label what the picture is
 * @property {() => [number, number]} size rows and columns
 * @property {() => [number, number]} at
 * @property {(row: number, col: number) => void} move
 * @property {(row: number, col: number) => Promise<string> | string} words
 * @property {() => void} [open] what Enter does
 * @property {Record<string, () => void>} [keys] more keys
 */

/** @param {Walk} walk */
export function liveGrid(walk) {
  const cell = make("div", { role: "gridcell", tabindex: "0", class: "live-cell", "aria-label": "…" });
  const row = make("div", { role: "row" }, cell);
  const element = make("div", { role: "grid", class: "live-grid", "aria-label": walk.label }, row);
  let resting = 0;
  let asked = 0;

  async function tell() {
    if (!isFocused(cell)) return;
    const [r, c] = walk.at();
    const mine = ++asked;
    const words = await walk.words(r, c);
    if (mine !== asked) return;
    cell.ariaLabel = words;
    clearTimeout(resting);
    if (isFocused(cell)) resting = setTimeout(() => say(words), CALM);
  }

  on(element, "keydown", (event) => {
    if (isModified(event)) return;
    const own = walk.keys?.[event.key] ?? (event.key === "Enter" ? walk.open : undefined);
    if (own) {
      event.preventDefault();
      return own();
    }
    const next = cellByKey(event, walk.at(), walk.size());
    if (next) walk.move(...next);
  });
  on(cell, "focus", tell);

  return {
    element,
    cell,
    /**
     * The chosen cell is another, or lies elsewhere.
     * @param {{left: number, top: number, width: number, height: number} | null} box
     */
    put(box) {
      const [rows, cols] = walk.size();
      const [r, c] = walk.at();
      element.ariaRowCount = `${rows}`;
      element.ariaColCount = `${cols}`;
      row.ariaRowIndex = `${r + 1}`;
      cell.ariaColIndex = `${c + 1}`;
      cell.classList.toggle("away", box === null);
      for (const [name, size] of Object.entries(box ?? {})) cell.style.setProperty(name, `${size}px`);
    },
    tell,
  };
}
