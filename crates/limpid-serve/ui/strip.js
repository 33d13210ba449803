// A text as a row of tokens, tinted by surprise. To a screen reader it is a list to walk through, beside the plain
// text.
import { make } from "./dom.js";
import { explain, surprise } from "./hover.js";
import { joiner, readable, softly, spoken } from "./text.js";

/** @typedef {import("./source.js").Token} Token */
/** @typedef {import("./text.js").Piece} Piece */

/** Nats from which the tint is full: a probability of 0.7 %. The legend in index.html says so. */
const FULL = 5;

/**
 * What can be done at a place of a text: the text before it is known there.
 * @typedef {{why: (before: string, piece: Piece) => void, take: (before: string, piece: Piece) => void,
 *   drawn: string}} Branches
 */

/**
 * @param {string} name what the text is
 * @param {Branches | null} branches
 */
export function tokenStrip(name, branches) {
  const element = make("div", { class: "tokens", dir: "auto" });
  const join = joiner();
  /** @type {Token[]} */
  const tokens = [];
  /** @type {{span: HTMLElement, from: number}[]} where the text of each begins */
  const places = [];
  let length = 0;
  let whole = "";

  return {
    element,
    tokens,
    /** The text of the first tokens. @param {number} count */
    textOf: (count) => whole.slice(0, places[count]?.from ?? whole.length),

    /**
     * Adds tokens; the first `given` of all are the prompt's.
     * @param {Token[]} more
     * @param {number} given
     */
    add(more, given) {
      for (const token of more) {
        const text = join(token.piece);
        const first = tokens.length === 0;
        const kind = (tokens.length < given ? "token given" : "token") + softly(text);
        // what has no letters needs a name
        const label = /\S/.test(text) ? null : spoken(token.piece);
        const span = make("span", { class: kind, role: "option", "aria-label": label, tabindex: first ? "0" : "-1" });
        // a part of a character: the character comes with its last token
        span.append(...(text === "" ? [make("bdi", { class: "mark" }, "·")] : readable(text, true)));
        const nats = surprise(token);
        if (nats !== null) span.style.setProperty("--surprise", `${Math.min(1, nats / FULL)}`);
        const before = whole;
        explain(
          span, token,
          branches && {
            why: (own) => branches.why(before, own), take: (own) => branches.take(before, own), drawn: branches.drawn,
          },
        );
        whole += text;
        tokens.push(token);
        places.push({ span, from: length });
        length += text.length;
        if (first) {
          // only now: a list without entries is none
          element.setAttribute("role", "listbox");
          element.ariaLabel = `Tokens of ${name}: move with the arrow keys`;
          element.setAttribute("aria-orientation", "horizontal");
        }
        element.append(span);
      }
    },

    /**
     * Marks the tokens after the end of the text: those that ended it.
     * @param {string} text what comes after the `given` tokens
     * @param {number} given
     */
    end(text, given) {
      const end = (places[given]?.from ?? 0) + text.length;
      places.slice(given).filter(({ from }) => from >= end).forEach(({ span }) => span.classList.add("beyond"));
    },
  };
}
