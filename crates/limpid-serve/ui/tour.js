// A first tour: six steps from a word of one's own model to its reason, on the views themselves; a bar above them says
// what to see.
import { whyIn, whyWord } from "./address.js";
import { button, fill, make, remark, say } from "./dom.js";
import { troubleNote } from "./answer.js";
import { asTrouble } from "./source.js";

/** @typedef {import("./glass.js").Glass} Glass */
/** @typedef {import("./address.js").State} State */

/**
 * A step: what there is to see, and where. `parts` are the kinds of parts that the way takes after a word.
 * @type {{title: string, says: string, parts: string[] | null, view: string}[]}
 */
const STOPS = [
  {
    title: "What it expects", view: "map", parts: null,
    says: "The first line says which word your model expects, with its probability. " +
      "Each small picture is a head: a row is the token that looks, a column the token that it looks at.",
  },
  {
    title: "Who wrote it", view: "path", parts: [],
    says: "The first line says which words would change the answer. Below, each bar is a part that wrote for the " +
      "likeliest word (to the right) or the runner-up; they add up to the last line.",
  },
  {
    title: "Where a head looked", view: "path", parts: ["head"],
    says: "This head wrote the most. The arcs go to the words that it looked at; their weights add up to 1.",
  },
  {
    title: "What it carried", view: "path", parts: ["head", "token"],
    says: "It carried a value from this word to the last one. The sentence says which words that makes likelier.",
  },
  {
    title: "Back to the input", view: "path", parts: ["head", "token", "embed"],
    says: "Earlier parts wrote that there, and in the end the word itself: its vector in the token table. " +
      "The path ends here.",
  },
  {
    title: "When it knew", view: "lens", parts: null,
    says: "The prediction after each layer, from left to right; a line marks the layer from which it stays the same. " +
      "Now click any word, anywhere, to ask why.",
  },
];

/**
 * Where a stop is; null where this text has no such stop, or a saved page does not hold it.
 * @param {Glass} glass @param {number} n @returns {Promise<Partial<State> | null>}
 */
async function stateAt(glass, n) {
  const stop = STOPS[n];
  const more = { ...glass.state.more, tour: `${n + 1}` };
  const q = glass.run.tokens.length - 1;
  if (!stop?.parts) return { v: stop?.view ?? "map", q, more: { ...more, why: "" } };
  const base = `path?position=${q}`;
  let answer = await glass.ask(base);
  const largest = (/** @type {string | undefined} */ kind) => {
    const size = (/** @type {any} */ bar) => Math.abs(Number(bar.value)) || 0;
    const ways = answer.bars.filter((/** @type {any} */ bar) => bar.hop && bar.part.kind === kind);
    return ways.reduce((/** @type {any} */ a, /** @type {any} */ b) => (a && size(a) >= size(b) ? a : b), null);
  };
  const [target, foil] = [`${answer.target[0]}`, `${answer.foil?.[0] ?? "none"}`];
  /** @type {string[]} */
  const hops = [];
  for (let at = 0; at < stop.parts.length; ) {
    const kind = stop.parts[at];
    // a post-norm model reaches the embedding block by block
    const best = largest(kind) ?? (kind === "embed" ? largest("stream") : null);
    if (!best) return null;
    hops.push(best.hop);
    try {
      answer = await glass.ask(`${base}&target=${target}&foil=${foil}&via=${hops.join()}`);
    } catch (fault) {
      if (glass.model.saved) return null;
      throw fault;
    }
    if (best.part.kind === kind) at++;
  }
  return whyWord({ ...glass.state, more }, q, target, foil, hops.join());
}

/**
 * Which stop that is, by the last head, token or embedding of the path: whoever clicks a part goes on, too.
 * @param {Glass} glass
 */
function stopOf(glass) {
  const state = glass.state;
  const said = Number(state.more["tour"] ?? 0) - 1;
  if (said < 0) return said;
  const last = whyIn(state, glass.q, glass.run.tokens.length - 1).via.split(",").findLast((hop) => /^[htw]/.test(hop));
  if (state.v === "map") return 0;
  if (state.v === "path") return 1 + " htw".indexOf(last?.[0] ?? " ");
  return state.v === "lens" ? 5 : said;
}

/**
 * The bar of the tour, which is there while the address says so.
 * @param {Glass} glass
 */
export function tourBar(glass) {
  const element = make("div", { class: "tour", role: "region", "aria-label": "Tour", hidden: "" });
  let shown = "";
  const end = () => glass.go({ more: { ...glass.state.more, tour: "" } }, "new");
  /** Goes to a stop, past those that cannot be made. @param {number} n @param {1 | -1} by */
  async function go(n, by = 1) {
    try {
      let to = await stateAt(glass, n);
      while (!to) to = await stateAt(glass, (n += by));
      glass.go(to, "new");
      say(`step ${n + 1} of ${STOPS.length}: ${STOPS[n]?.title}`);
    } catch (fault) {
      element.append(troubleNote(asTrouble(fault), null));
    }
  }
  return {
    element,
    go,
    update() {
      const n = stopOf(glass);
      const stop = STOPS[n];
      element.hidden = !stop || !glass.model.lm_head;
      const now = `${n} ${glass.run?.done}`;
      if (!stop || now === shown) return;
      shown = now;
      const ready = glass.run?.done ? null : "";
      fill(element,
        make("p", make("strong", `${n + 1} of ${STOPS.length}: ${stop.title}. `), stop.says),
        make("p", { class: "actions" },
          button("Back", () => go(n - 1, -1), { class: "quiet", hidden: n === 0 ? "" : null, disabled: ready }),
          button("Next", () => go(n + 1), { hidden: n + 1 === STOPS.length ? "" : null, disabled: ready }),
          button(n + 1 === STOPS.length ? "End the tour" : "Leave the tour", end, { class: "quiet" })),
      );
    },
  };
}

/** @type {import("./view.js").View} */
export const viewOfTour = {
  id: "tour", title: "Tour", about: "How do I get from a word to its reason?", open: tourView,
  missing: (model) =>
    model.lm_head ? null : "The tour follows a word that is predicted, and this model has no unembedding.",
};

/** @param {Glass} glass @returns {import("./view.js").Shown} */
function tourView(glass) {
  const bar = tourBar(glass);
  const list = make("ol", { class: "stops" }, ...STOPS.map(({ title, says }, n) =>
    make("li", button(title, () => bar.go(n), { class: "quiet" }), remark(says))));
  const lead =
    "Six steps on this text, from the word that the model expects to the reason for it. " +
    "Start with the first; a bar above the views leads to the next.";
  return { element: make("div", make("p", { class: "lead" }, lead), list), update: () => {} };
}
