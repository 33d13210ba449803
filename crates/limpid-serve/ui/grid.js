// A canvas cannot speak or be walked. Beside each lies a grid with one live cell: it has the focus, lies over the cell of
// the picture that it stands for, moves with the arrow keys, and says what is there.
import { make, say } from "./dom.js";

/** How far Shift goes. */
const STRIDE = 16;

/** Milliseconds of rest before something is said. */
const CALM = 250;

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
    const [r, c] = walk.at();
    const mine = ++asked;
    const words = await walk.words(r, c);
    if (mine !== asked) return;
    cell.setAttribute("aria-label", words);
    clearTimeout(resting);
    if (document.activeElement === cell) resting = setTimeout(() => say(words), CALM);
  }

  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const own = walk.keys?.[event.key] ?? (event.key === "Enter" ? walk.open : undefined);
    if (own) {
      event.preventDefault();
      return own();
    }
    const [rows, cols] = walk.size();
    const [r, c] = walk.at();
    const step = event.shiftKey ? STRIDE : 1;
    /** @type {Record<string, [number, number]>} */
    const places = {
      ArrowLeft: [r, c - step], ArrowRight: [r, c + step], ArrowUp: [r - step, c], ArrowDown: [r + step, c],
      Home: [r, 0], End: [r, cols - 1], PageUp: [r - STRIDE, c], PageDown: [r + STRIDE, c],
    };
    const to = places[event.key];
    if (!to) return;
    event.preventDefault();
    walk.move(Math.min(rows - 1, Math.max(0, to[0])), Math.min(cols - 1, Math.max(0, to[1])));
  });
  cell.addEventListener("focus", tell);

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
      element.setAttribute("aria-rowcount", `${rows}`);
      element.setAttribute("aria-colcount", `${cols}`);
      row.setAttribute("aria-rowindex", `${r + 1}`);
      cell.setAttribute("aria-colindex", `${c + 1}`);
      cell.classList.toggle("away", box === null);
      for (const [name, size] of Object.entries(box ?? {})) cell.style.setProperty(name, `${size}px`);
    },
    tell,
  };
}
