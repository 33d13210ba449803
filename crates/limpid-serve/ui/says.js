// What a view shows, in one line made from the numbers of this run, with what to look for in it.
import { plural, short } from "./dom.js";
import { kindOf, noHabit, tooShort } from "./heads.js";
import { share100 } from "./numbers.js";
import { onOneLine, surpriseAt } from "./runs.js";
import { piece } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

const PICTURE = "In each picture a row is the token that looks, a column the token that it looks at";
const ROWS = "A row is the token that looks, a column the token that it looks at";

/**
 * What stands above the view of this name; null where the view says it itself.
 * @type {Record<string, (glass: Glass) => string | null>}
 */
const LEADS = {
  text: (glass) => {
    const surprises = glass.run.tokens.map((_, n) => surpriseAt(glass.run, n) ?? -1);
    const worst = Math.max(0, surprises.indexOf(Math.max(...surprises)));
    const nats = surpriseAt(glass.run, worst);
    if (nats === null) return null;
    const surprise = `with a probability of ${share100(Math.exp(-nats))} (${short(nats, 3)} nats)`;
    const tallest = `the tallest is “${glass.label(worst)}”, ${surprise}`;
    return `The taller the bar, the less the model expected the token: ${tallest}.`;
  },
  heads: (glass) => {
    const heads = glass.run.layers.flatMap((layer, l) => (layer?.heads ?? []).map((scores, h) =>
      ({ name: `L${l}H${h}`, kind: kindOf(scores) })));
    if (heads.length === 0) return null;
    const named = heads.filter(({ kind }) => kind !== null && kind.key !== "entropy");
    const best = named.reduce((/** @type {any} */ a, b) => (a && a.kind.value >= (b.kind?.value ?? 0) ? a : b), null);
    const count = `${plural(named.length, "head")} of ${heads.length} ${named.length === 1 ? "has" : "have"}`;
    const clear = best
      ? `${count} a clear habit on this text, ${best.name} most (${best.kind.name}, ${short(best.kind.value, 2)}).`
      : noHabit(glass.run);
    return `${clear} ${PICTURE}; a bright stripe beside the diagonal is a head that looks at the token before.`;
  },
  head: (glass) => {
    const { layer: l, head: h } = glass;
    const scores = glass.run.layers[l]?.heads[h];
    if (!scores) return null;
    const kind = kindOf(scores);
    const habit = kind
      ? `L${l}H${h} is a head of the kind “${kind.name}” on this text (${short(kind.value, 2)} on average)`
      : tooShort(glass.run) ?? `L${l}H${h} has no clear habit on this text`;
    const largest = `its largest weight is ${short(scores.max, 2)}`;
    return `${habit}; ${largest}. ${ROWS}. Where a head looks does not say what it does.`;
  },
  mlp: (glass) => {
    const { layer } = glass;
    const norms = glass.run.layers[layer]?.norms;
    const [write, stream] = [norms?.["mlp_out"]?.[glass.q], (norms?.["resid_mid"] ?? norms?.["resid_pre"])?.[glass.q]];
    if (write === undefined || !stream) return null;
    const lengths = `a vector of length ${short(write, 3)} to a stream of length ${short(stream, 3)}`;
    const list = "The list has the units that write most, and the tokens that they make likelier.";
    return `At “${glass.label(glass.q)}” the MLP of layer ${layer} writes ${lengths}. ${list}`;
  },
  lens: (glass) => {
    const best = glass.run.predictions[glass.q]?.top[0];
    if (!best) return null;
    const place = `${glass.run.ahead ? "after" : "in place of"} “${glass.label(glass.q)}”`;
    const last = `the last is what it does predict: “${onOneLine(piece(best[1]))}” (${share100(best[2])}) ${place}`;
    const stays = "Look for the column from which a row stays the same.";
    return `Each column is what the model would predict after that layer; ${last}. ${stays}`;
  },
  sweep: () =>
    "Each cell puts one activation of the clean text into the run of this text: 1 restores the clean text’s answer " +
    "completely, 0 not at all. Look for the layers and tokens that matter.",
  gradients: () => null,
  embed: ({ run, model }) =>
    `Each of the ${plural(run.tokens.length, "token")} begins as a vector of ${model.d_model} numbers. ` +
    "Rows that look alike are tokens, or positions, that are alike to the model.",
  table: () =>
    "Every number of this run: choose a tensor, point at a number to see what it is, and press e for the sum " +
    "behind it.",
  why: ({ state }) => {
    const usual = state.n ? "" : ", here the logit of the likeliest token";
    const terms = "its terms, the largest first, with links to the sums that they come from";
    return `One number of this run as the sum that made it${usual}: ${terms}.`;
  },
  notation: ({ model: { n_layer, params } }) => {
    const size = `${plural(n_layer, "layer")} and ${plural(params.length, "parameter tensor")}`;
    return `Everything that this model of ${size} computes, with its symbol, its shape and its formula.`;
  },
  walks: () =>
    "Five documents about transformers, step by step beside a live model. " +
    "The numbers in each step are computed now, on this machine.",
};

/**
 * @param {string} view
 * @param {Glass} glass
 */
export const leadOf = (view, glass) => LEADS[view]?.(glass) ?? null;
