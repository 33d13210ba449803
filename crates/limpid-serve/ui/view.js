// What views are, and what all of them have. To add one: write a module that exports a View, and name it in views.js.
// An open view is told by `update` that the state, or what is known of the run, has changed; it reads what it needs in
// its `glass` (glass.js), and changes the state by `glass.go`.
import { troubleNote } from "./answer.js";
import { button, div, fill, make } from "./dom.js";
import { asTrouble } from "./source.js";

/** @typedef {import("./address.js").State} State */
/** @typedef {import("./glass.js").Glass} Glass */
/** @typedef {import("./source.js").Trouble} Trouble */

/**
 * @typedef {object} View
 * @property {string} id its word in the address: `#v=ID`
 * @property {string} title
 * @property {string} about the question that it answers
 * @property {(model: any) => string | null} [missing] why this model has no such view
 * @property {(state: State, glass: Glass) => string[]} [needs] what it asks about a trace in this state
 * @property {(glass: Glass) => Shown} open
 */

/**
 * A view that is open. `shade` colours the tokens of the prompt; `tensor` is what is shown, as a name and a place in
 * it, for the keys `t` and `e`; `keys` are more keys, of one letter each, with what they do.
 * @typedef {object} Shown
 * @property {HTMLElement} element
 * @property {HTMLElement} [numbers] what stands in the right column
 * @property {() => void} update
 * @property {() => void} [close]
 * @property {() => {shades: (number | null)[], kind: string, words: string} | null} [shade]
 * @property {() => {name: string, at: number[]} | null} [tensor]
 * @property {Record<string, () => void>} [keys]
 */

/** Why a model without an unembedding has no such view. @param {string} so */
export const headless = (so) =>
  (/** @type {any} */ model) => (model.lm_head ? null : `This model has no unembedding${so}`);

/** The nearest name to one that is not there, where the server says it in quotes. @param {Trouble} trouble */
export const nearestIn = ({ code, message }) =>
  code === "unknown_tensor" ? /(?:mean|nearest)[^`]*`([^`]+)`/i.exec(message)?.[1] : undefined;

/** An open view begins as one of these. */
export class OpenView {
  /** @type {HTMLElement} */
  numbers = div("stack");
  /** What went wrong. */
  notice = make("div");
  /** What was asked last. */
  asked = "";
  /** Every tensor of the run, once it was asked for. @type {any[]} */
  listing = [];
  isLoading = false;
  /** @type {ResizeObserver | null} */
  watcher = null;

  /** @param {Glass} glass */
  constructor(glass) {
    this.glass = glass;
  }

  get model() {
    return this.glass.model;
  }

  get run() {
    return this.glass.run;
  }

  get other() {
    return this.glass.other;
  }

  get state() {
    return this.glass.state;
  }

  /** The chosen token. */
  get q() {
    return this.glass.q;
  }

  /** The words of this view in the address. */
  get more() {
    return this.state.more;
  }

  /** A change of the state: words of this view. @param {Record<string, string>} words */
  with(words) {
    return { more: { ...this.more, ...words } };
  }

  /** Changes words of this view in the address. @param {Record<string, string>} words @param {"new" | "same"} [how] */
  set(words, how) {
    this.glass.go(this.with(words), how);
  }

  /** Draws again whenever the size of an element changes. @param {Element} element @param {() => void} draw */
  onResize(element, draw) {
    this.watcher = new ResizeObserver(draw);
    this.watcher.observe(element);
  }

  close() {
    this.watcher?.disconnect();
  }

  /**
   * Asks for what `key` names, unless it was asked last; an answer is dropped where another question came after it.
   * @template T
   * @param {string} key
   * @param {() => Promise<T>} ask
   * @param {(answer: T) => void} use
   * @param {(trouble: Trouble) => HTMLElement[] | void} clear takes away what was shown, where there is no answer, and
   *   gives ways on
   */
  async askOnce(key, ask, use, clear = () => {}) {
    if (key === this.asked) return;
    this.asked = key;
    try {
      const answer = await ask();
      if (key !== this.asked) return;
      fill(this.notice);
      use(answer);
    } catch (fault) {
      if (key !== this.asked) return;
      const trouble = asTrouble(fault);
      const ways = clear(trouble) ?? [];
      fill(this.notice, troubleNote(trouble, () => this.askAgain(), ...ways));
    }
  }

  askAgain() {
    this.asked = "";
    this.update();
  }

  update() {}

  /** Asks for every tensor of the run. */
  load = async () => {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      const listing = await this.glass.listing();
      fill(this.notice);
      this.useListing(listing);
    } catch (fault) {
      this.tell(asTrouble(fault));
    }
    this.isLoading = false;
  };

  /** @param {{tensors: any[], params: any[]}} listing */
  useListing({ tensors, params }) {
    this.listing = [...tensors, ...params];
    this.glass.go({}); // there is a tensor now
  }

  /** @param {Trouble} trouble */
  tell(trouble) {
    fill(this.notice, troubleNote(trouble, this.load));
  }

  /** Buttons that go to the layer or the head before and after. @param {"l" | "h"} which */
  stepButtons(which) {
    const [noun, previous, next] = which === "l" ? ["layer", "[", "]"] : ["head", "{", "}"];
    const step = (/** @type {string} */ sign, /** @type {number} */ by) => {
      const label = `${by < 0 ? "Previous" : "Next"} ${noun}`;
      const title = `${label} (${by < 0 ? previous : next})`;
      return button(sign, () => this.glass.turn(which, by), { "aria-label": label, title });
    };
    return [step("‹", -1), make("span", `${noun}`), step("›", 1)];
  }
}
