// A heat map of numbers that the page has already: the tiles that a server would send, made here.
import { within } from "./dom.js";
import { SIDE, tileCache } from "./tiles.js";

/** Memory for such tiles. */
const LOCAL = 8 * 2 ** 20;

/**
 * @param {object} matrix
 * @param {string} matrix.identity another for other numbers
 * @param {number} matrix.rows
 * @param {number} matrix.cols
 * @param {(number | string)[]} matrix.values row by row; a word: not finite
 * @param {boolean[]} matrix.hidden which of them a mask hides; may be empty
 * @param {number} matrix.low what the colours go from
 * @param {number} matrix.high
 * @param {() => boolean} dark
 * @returns {import("./heat.js").HeatHost}
 */
export function localHeat({ identity, rows, cols, values, hidden, low, high }, dark) {
  const codeOf = (/** @type {number | string} */ value) =>
    typeof value === "string"
      ? 255
      : 1 + Math.round((253 * (within(value, low, high) - low)) / (high - low || 1));
  return {
    cache: tileCache(LOCAL), dark, identity: () => identity,
    async tiles(_picture, wanted, onTile) {
      wanted.forEach(({ tile: [row, col], level }, index) => {
        const step = 2 ** level;
        const [row0, col0] = [row * SIDE, col * SIDE];
        const [tall, across] =
          [Math.min(SIDE, Math.ceil(rows / step) - row0), Math.min(SIDE, Math.ceil(cols / step) - col0)];
        const data = new Uint8Array(tall * across);
        for (let n = 0; n < data.length; n++) {
          const [r, c] = [(row0 + Math.floor(n / across)) * step, (col0 + (n % across)) * step];
          /** @type {number | string | undefined} */
          let most;
          for (let at = 0; at < step * step; at++) {
            const [y, x] = [r + Math.floor(at / step), c + (at % step)];
            const value = y < rows && x < cols && !hidden[y * cols + x] ? values[y * cols + x] : undefined;
            if (value === undefined || typeof most === "string") continue;
            if (typeof value === "string" || Math.abs(value) >= Math.abs(most ?? 0)) most = value;
          }
          data[n] = most === undefined ? 0 : codeOf(most);
        }
        onTile({
          index, code: 2, level, infinite: data.includes(255), masked: data.includes(0), rows: tall, cols: across, row0,
          col0, low, high, min: low, max: high, data,
        });
      });
    },
    async exact(_picture, [r0, r1], [c0, c1]) {
      return Array.from({ length: (r1 - r0) * (c1 - c0) }, (_, n) => {
        const at = (r0 + Math.floor(n / (c1 - c0))) * cols + c0 + (n % (c1 - c0));
        return hidden[at] ? "-inf" : (values[at] ?? "NaN");
      });
    },
  };
}
