// A run of a prompt as it comes in: tokens first, then layer by layer, then what the model expected.
import { plural } from "./dom.js";
import { asTrouble } from "./source.js";
import { joiner, piece, readable, spoken } from "./text.js";

/** @typedef {import("./text.js").Piece} Piece */
/** @typedef {import("./source.js").Trouble} Trouble */

/**
 * What heads do, on the average over the rows that have such a place; null where there is none.
 * @typedef {{entropy: number | null, previous: number | null, current: number | null, first: number | null,
 *   duplicate: number | null, induction: number | null, distance: number | null, max: number | null,
 *   kind: {score: string, name: string, value: number} | null}} HeadScores
 */

/** @typedef {{layer: number, norms: Record<string, number[]>, heads: HeadScores[], thumbnails: Uint8Array}} Layer */

/**
 * What was expected after a token (of an encoder: in its place): the likeliest as [id, text, probability], and of the
 * token that stands there its logarithm and rank.
 * @typedef {{top: [number, string, number][], entropy: number, target: number | null, logprob: number | null,
 *   rank: number | null, logit: number | null, lse: number}} Prediction
 */

/**
 * @typedef {object} Run
 * @property {string} id
 * @property {{id: number, piece: Piece, text: string, shown: string}[]} tokens `text`: on one line, with marks;
 *   `shown`: what it adds to the text
 * @property {number} side of a thumbnail
 * @property {number} namedFrom tokens from which on a head can have a name
 * @property {number} depth how many layers there will be
 * @property {number} heads
 * @property {number} dropped tokens that were cut off
 * @property {number} ahead how far ahead the model predicts: 1, or 0 of an encoder, which fills in what is hidden
 * @property {Layer[]} layers
 * @property {Prediction[]} predictions
 * @property {number | null} loss
 * @property {number} counted tokens with a loss
 * @property {number | null} ms
 * @property {boolean} done
 * @property {boolean} stopped before its last layer
 * @property {Trouble | null} trouble
 */

/**
 * Runs a prompt.
 * @param {import("./glass-source.js").GlassSource} source
 * @param {{prompt: string, last?: boolean, model?: string}} body
 * @param {() => void} changed
 * @param {AbortSignal} signal
 * @returns {{run: Run, ended: Promise<void>}}
 */
export function runPrompt(source, body, changed, signal) {
  /** @type {Run} */
  const run = {
    id: "", tokens: [], side: 0, namedFrom: 0, depth: 0, heads: 0, dropped: 0, ahead: 1, layers: [], predictions: [],
    loss: null, counted: 0, ms: null, done: false, stopped: false, trouble: null,
  };
  const join = joiner();
  const hear = (/** @type {any} */ event) => {
    if (event.event === "start") {
      Object.assign(run, {
        id: event.id, side: event.side, namedFrom: event.named_from, depth: event.layers, heads: event.heads,
        dropped: event.dropped ?? 0, ahead: event.causal === false ? 0 : 1,
      });
      run.tokens = event.tokens.map((/** @type {any} */ token) => {
        const own = piece(token.text, [...bytesOf(token.bytes ?? "")]);
        return { id: token.id, piece: own, text: onOneLine(own), shown: join(own) };
      });
    } else if (event.event === "layer") {
      run.layers[event.layer] = { ...event, thumbnails: bytesOf(event.thumbnails) };
    } else if (event.event === "predictions") {
      event.rows.forEach((/** @type {Prediction} */ row, /** @type {number} */ n) =>
        (run.predictions[event.from + n] = row));
    } else if (event.event === "done") {
      Object.assign(run, { loss: event.loss, counted: event.counted, ms: event.ms, done: true });
    }
    changed();
  };
  const ended = source.stream("traces", body, hear, signal).catch((fault) => {
    if (signal.aborted) run.stopped = true;
    else run.trouble = asTrouble(fault);
    changed();
  });
  return { run, ended };
}

/** @param {string} text base64 */
export function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/**
 * A token on one line, for labels of pictures: `␣the`, `↵`, `U+200B`.
 * @param {Piece} own
 */
export function onOneLine(own) {
  if (own.text === null) return spoken(own);
  const signs = new Map([[" ", "␣"], ["\n", "↵"], ["\t", "⇥"]]);
  const parts = [...own.text].map(
    (character) => signs.get(character) ??
      readable(character, false).map((part) => (typeof part === "string" ? part : part.textContent)).join(""),
  );
  return parts.join("") || "∅";
}

/**
 * What a view says in place of what the last layer brings.
 * @param {Run} run
 * @param {string} what
 */
export function awaited({ stopped, layers, depth }, what) {
  const count = `${layers.length} of ${plural(depth, "layer")}`;
  if (!stopped) return `The run is at ${count}; ${what} comes after the last one.`;
  return `The run was stopped after ${count}; ${what} needs the last one. Run it again.`;
}

/** What was expected where a token stands. @param {Run} run @param {number} position */
export const expectedAt = (run, position) => run.predictions[position - run.ahead];

/** The token that was to be predicted from a place. @param {Run} run @param {number} position */
export const aimOf = (run, position) => run.tokens[position + run.ahead];

/**
 * Nats of surprise at a token; null where nothing is predicted, as at the first that a text begins with.
 * @param {Run} run
 * @param {number} position
 */
export function surpriseAt(run, position) {
  const logprob = expectedAt(run, position)?.logprob;
  return logprob === null || logprob === undefined ? null : Math.max(0, -logprob);
}
