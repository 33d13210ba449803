// Heads at a glance: small pictures of their attention, and what kind of head each is, in a word.
import { make, on, plural } from "./dom.js";
import { colourOfCodes, palette } from "./colours.js";
import { valuesOfCodes } from "./tiles.js";

/** @typedef {import("./runs.js").Run} Run */
/** @typedef {import("./runs.js").HeadScores} HeadScores */

/** The scores of heads, and how they read. */
export const SCORES = [
  { key: "previous", name: "previous token", about: "mean weight on the token before" },
  { key: "current", name: "same token", about: "mean weight on the token itself" },
  {
    key: "first", name: "first token",
    about: "mean weight on the first token, where heads often look when nothing else fits",
  },
  { key: "duplicate", name: "duplicate", about: "mean weight on earlier tokens that are the same" },
  { key: "induction", name: "induction", about: "mean weight on what followed an earlier token that is the same" },
  { key: "entropy", name: "evenness", about: "entropy divided by that of an even spread: 0 sharp, 1 even" },
  { key: "distance", name: "distance", about: "mean distance looked back, in tokens" },
  { key: "max", name: "largest weight", about: "the largest weight, except in the first row" },
];

/** @param {HeadScores} scores @param {string} key @returns {number | null} */
export function scoreOf(scores, key) {
  return /** @type {Record<string, number | null>} */ (scores)[key] ?? null;
}

/**
 * What a head is called, in words: the server says after which score.
 * @param {HeadScores} scores
 * @returns {{key: string, name: string, value: number} | null}
 */
export function kindOf({ kind }) {
  const one = SCORES.find((score) => score.key === kind?.score);
  if (!kind || !one) return null;
  return { ...one, name: kind.name, value: kind.value };
}

/** Why a head of this text may have no name. @param {Run} run */
export function tooShort({ tokens: { length }, namedFrom }) {
  if (length >= namedFrom) return null;
  const few = `${plural(length, "token")} ${length === 1 ? "is" : "are"} too few`;
  return `${few} to tell what a head looks at: that takes ${namedFrom}`;
}

/** What there is to say where no head is called after what it looks at. @param {Run} run */
export function noHabit(run) {
  const short = tooShort(run);
  if (short) return `${short}.`;
  const heads = run.layers.flatMap((layer) => layer?.heads ?? []);
  const even = heads.filter(({ kind }) => kind?.score === "entropy").length;
  const mixed = heads.length - even;
  const told = [
    even > 0 && `${plural(even, "head")} ${even === 1 ? "looks" : "look"} at all tokens about equally`,
    mixed > 0 && `${plural(mixed, "head")} ${mixed === 1 ? "mixes" : "mix"} several habits`,
  ];
  return `No head has a clear habit on this text: ${told.filter((one) => one).join(", ")}.`;
}

/** How thumbnails and attention weights are coloured: 0 to 1. @param {string} spread */
export const weightScale = (spread) => ({ spread, low: 0, high: 1, signed: false });

/** How differences of weights are coloured. */
export const DIFFERENCES = { spread: "root", low: -1, high: 1, signed: true };

/**
 * Small pictures of a run's heads, painted once; with another run, of the differences.
 * @returns {(run: Run, other: Run | null, layer: number, look: {palette: string, spread: string, dark: boolean}) =>
 * HTMLCanvasElement | null}
 */
export function headSheets() {
  /** @type {WeakMap<object, {look: string, sheet: HTMLCanvasElement}>} */
  const painted = new WeakMap();
  const values = valuesOfCodes(3, 0, 1);
  return (run, other, layer, { palette: name, spread, dark }) => {
    const own = run.layers[layer];
    if (!own) return null;
    const theirs = other?.layers[layer];
    if (other && (theirs?.thumbnails.length !== own.thumbnails.length || other.side !== run.side)) return null;
    const look = `${name} ${spread} ${dark} ${other?.id ?? ""} ${run.side}`;
    const old = painted.get(own);
    if (old?.look === look) return old.sheet;
    const { side, heads } = run;
    const sheet = make("canvas", { width: `${side}`, height: `${side * heads}` });
    const image = new ImageData(side, side * heads);
    const colours = colourOfCodes(
      theirs ? values.map((_, n) => (n === 0 ? NaN : (n - 127) / 126)) : values,
      theirs ? DIFFERENCES : weightScale(spread), palette(theirs ? "diverging" : name, dark),
    );
    own.thumbnails.forEach((code, n) => {
      const less = theirs && code !== 0 ? (values[code] ?? 0) - (values[theirs.thumbnails[n] ?? 0] || 0) : null;
      const at = less === null ? code : Math.round(127 + 126 * less);
      image.data.set(colours.subarray(4 * at, 4 * at + 4), 4 * n);
    });
    sheet.getContext("2d")?.putImageData(image, 0, 0);
    painted.set(own, { look, sheet });
    return sheet;
  };
}

/**
 * One head of a sheet, at a place of a picture.
 * @param {CanvasRenderingContext2D} context
 * @param {HTMLCanvasElement} sheet
 * @param {number} side
 * @param {number} head
 * @param {{x: number, y: number, size: number}} place
 */
export function drawHead(context, sheet, side, head, { x, y, size }) {
  // sharp where a cell is a pixel or more, else as smooth as it must be
  context.imageSmoothingEnabled = size < side;
  context.drawImage(sheet, 0, head * side, side, side, x, y, size, size);
}

/**
 * Numbers above a row of heads, as many as have room.
 * @param {CanvasRenderingContext2D} context @param {number} count
 * @param {{left: number, pitch: number, thumb: number}} size
 */
export function labelHeads(context, count, { left, pitch, thumb }) {
  context.textAlign = "center";
  for (let h = 0; h < count; h++) {
    if (pitch >= 18 || h % 5 === 0) {
      context.fillText(h === 0 && pitch > 44 ? "head 0" : `${h}`, left + h * pitch + thumb / 2, 8);
    }
  }
}

/**
 * The height of a row if all are to be in sight at once; on a narrow page, which scrolls, rows are as high as they
 * like.
 * @param {HTMLElement} frame @param {number} rows @param {number} below what stands below them
 */
export function rowHeight(frame, rows, below) {
  return frame.clientWidth < 600
    ? Infinity
    : (innerHeight - frame.getBoundingClientRect().top - scrollY - below) / rows;
}

/**
 * Follows the pointer over a picture of heads, and lets go of it when it leaves. Fingers are not followed: they tap.
 * @param {HTMLElement} frame
 * @param {(event: PointerEvent) => {l: number, h: number} | null} under the head under the pointer
 * @param {(head: {l: number, h: number} | null) => void} changed told when that is another
 */
export function followHeads(frame, under, changed) {
  /** @type {{l: number, h: number} | null} */
  let last = null;
  /** @param {{l: number, h: number} | null} next */
  const move = (next) => {
    if (next?.l === last?.l && next?.h === last?.h) return;
    last = next;
    changed(next);
  };
  on(frame, "pointermove", (event) => move(event.pointerType === "touch" ? null : under(event)));
  on(frame, "pointerleave", () => move(null));
}
