// What is looked at, as it stands in the address: a link, a reload and the back button hold all of it.

/**
 * @typedef {object} State
 * @property {string} v the view
 * @property {string | null} p the prompt; null: the model's example
 * @property {boolean} last whether a prompt that is too long loses its beginning
 * @property {string | null} c the prompt that it is compared with
 * @property {string} cm the model that it is compared with; empty: the same
 * @property {string} i what changes the run, as JSON; empty: nothing
 * @property {number | null} l the layer
 * @property {number | null} h the head
 * @property {number | null} q the token that is looked at; as a row of attention, the one that looks
 * @property {number | null} k the token that it is compared with; as a column of attention, the one that is looked at
 * @property {string} s the stage of attention
 * @property {string} n the name of a tensor
 * @property {string} at a place in it, `0,5,17`; what the tokens, the layer and the head say comes first
 * @property {string} m what heads are coloured by
 * @property {string} o the order of heads
 * @property {string} pal the palette
 * @property {string} sc how numbers are spread over the palette
 * @property {Record<string, string>} more words of views that are not known here
 */

/**
 * Writes the address. It is given whole: in a frame of a notebook, `#` alone would be the notebook's.
 * @param {"replaceState" | "pushState"} how @param {string} hash without `#`
 */
export function writeHash(how, hash) {
  history[how](null, "", `${location.href.split("#")[0]}#${hash}`);
}

/** Nothing said. Its order is the order in the address; the prompt comes last. @type {State} */
const UNSAID = {
  v: "", l: null, h: null, q: null, k: null, s: "weights", n: "", at: "", m: "pattern", o: "layer", pal: "", sc: "",
  more: {}, i: "", cm: "", c: null,
  last: false, p: null,
};

/**
 * Where the path of a word begins, or goes on: changes of the state. Of the word asked about its id or, in quotes, its
 * text as it is.
 * @param {State} state
 * @param {number | null} q the token after which it stands; null: the last
 */
export function whyWord(state, q, target = "", foil = "", via = "") {
  return { v: "path", q, more: { ...state.more, why: [q ?? "", foil, via, target].join("~") } };
}

/**
 * What the path is of at a token; nothing is said where the address speaks of another.
 * @param {State} state
 * @param {number} q
 * @param {number} last the last token of the text, which is meant where the address names none
 */
export function whyIn({ more }, q, last) {
  const [at = "", foil = "", via = "", ...target] = (more["why"] ?? "").split("~");
  return Number(at || last) === q ? { foil, via, target: target.join("~") } : { foil: "", via: "", target: "" };
}

/** A word as the server takes it: by its id or, in quotes, by its text. @param {string} target */
export const wordAsked = (target) =>
  target.startsWith('"') ? `word=${encodeURIComponent(target.slice(1, -1))}` : target && `target=${target}`;

const COUNTS = ["l", "h", "q", "k"];

/**
 * @param {string} hash `#v=head&l=5`
 * @returns {State}
 */
export function stateIn(hash) {
  /** @type {Record<string, any>} */
  const state = { ...UNSAID, more: {} };
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (COUNTS.includes(name)) state[name] = /^\d{1,8}$/.test(value) ? Number(value) : null;
    else if (name === "last") state[name] = value === "1";
    else if (name in UNSAID && name !== "more") state[name] = value;
    else state["more"][name] = value;
  }
  return /** @type {State} */ (state);
}

/**
 * @param {State} state
 * @returns {string} without `#`
 */
export function hashOf(state) {
  const words = new URLSearchParams();
  const said = /** @type {Record<string, any>} */ (state);
  for (const [name, unsaid] of Object.entries(UNSAID)) {
    const value = said[name];
    if (name === "more") Object.entries(value).forEach(([more, word]) => word !== "" && words.append(more, word));
    else if (value !== unsaid) words.append(name, value === true ? "1" : `${value}`);
  }
  return `${words}`;
}
