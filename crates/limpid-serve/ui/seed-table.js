// A table as the documents print theirs, and `limpid inspect --tensor`: six digits, and of many rows and columns the
// first and the last.
import { figure } from "./dom.js";

/** What is left out. */
const GAP = "...";

/**
 * The places that are shown; null stands for those left out.
 * @param {number} count
 * @param {number} most all are shown of so many
 * @param {number} edge else so many at either end
 * @returns {(number | null)[]}
 */
export function someOf(count, most, edge) {
  const upTo = (/** @type {number} */ from, /** @type {number} */ to) =>
    Array.from({ length: to - from }, (_, n) => from + n);
  return count <= most ? upTo(0, count) : [...upTo(0, edge), null, ...upTo(count - edge, count)];
}

/**
 * A number of four bytes with so many digits after the point, as the terminal writes it: what lies halfway goes to the
 * even digit.
 * @param {number} value
 * @param {number} digits
 */
export function fixed(value, digits) {
  const exact = Math.fround(value);
  const long = Math.abs(exact).toFixed(digits + 40);
  const cut = long.slice(0, -40).replace(/\.$/, "");
  const stays = /50{39}$/.test(long) && /[02468]$/.test(cut);
  return (exact < 0 || Object.is(exact, -0) ? "-" : "") + (stays ? cut : Math.abs(exact).toFixed(digits));
}

/** Runs of places that follow each other. @param {(number | null)[]} places @returns {[number, number][]} */
function runsOf(places) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const place of places) {
    const last = runs.at(-1);
    if (place === null) continue;
    if (last && last[1] === place) last[1]++;
    else runs.push([place, place + 1]);
  }
  return runs;
}

/**
 * @param {number} rows
 * @param {number} cols
 * @param {(rows: [number, number], cols: [number, number]) => Promise<(number | string)[]>} ask for a part of the
 *   numbers
 */
export async function seedTable(rows, cols, ask) {
  const [down, across] = [someOf(rows, 60, 5), someOf(cols, 20, 10)];
  /** @type {Map<string, string>} */
  const cells = new Map();
  for (const [r0, r1] of runsOf(down)) {
    for (const [c0, c1] of runsOf(across)) {
      const values = await ask([r0, r1], [c0, c1]);
      values.forEach(
        (value, n) => cells.set(
          `${r0 + Math.floor(n / (c1 - c0))},${c0 + (n % (c1 - c0))}`,
          typeof value === "string" ? value : fixed(value, 6),
        ),
      );
    }
  }
  const columns = across.map((c) => [c === null ? GAP : `${c}`, ...down.map((r) =>
    (r === null || c === null ? GAP : (cells.get(`${r},${c}`) ?? "")))]);
  const labels = ["", ...down.map((r) => (r === null ? GAP : `${r}`))];
  const widest = (/** @type {string[]} */ words) => Math.max(...words.map((word) => word.length));
  const lines = labels.map(
    (label, n) => [
      label.padEnd(widest(labels)), ...columns.map((words) => (words[n] ?? "").padStart(widest(words))),
    ].join("  ").trimEnd(),
  );
  return `${lines.join("\n")}\n\n[${figure(rows, 0)} rows x ${figure(cols, 0)} columns]\n`;
}
