// The reason for a word, as it is measured: which words turn it when they are changed, and which parts carry that. What
// is found is shown as it comes, gradients' answer first.
import { fill, make } from "./dom.js";
import { asTrouble } from "./source.js";
import { piece, spelled } from "./text.js";
import { glossed } from "./words.js";

/**
 * A server's sentence: tokens spelled as everywhere, a minus as one, a figure on the line of its name.
 * @param {string} sentence
 */
export function told(sentence) {
  const text =
    sentence.replace(/(?<=[^,;.]) (?=[+-]?\d)/g, "\u00a0").replace(/(?<=[\s(])-(?=\d)/g, "−").split(/“([^”]*)”/);
  return text.flatMap((part, n) => (n % 2 ? [spelled(piece(part))] : glossed(part)));
}

export class ReasonNote {
  element = make("p", { class: "lead reason", role: "status" });
  /** @type {AbortController | null} */
  flight = null;
  asked = "";

  /**
   * Asks why a token is ahead of another, unless that was asked already; nothing: there is nothing to ask.
   * @param {import("./glass.js").Glass} glass
   * @param {object | null} question
   */
  async ask(glass, question) {
    const asked = question ? `${glass.runs} ${JSON.stringify(question)}` : "";
    if (asked === this.asked) return;
    this.close();
    this.asked = asked;
    this.element.hidden = !question;
    if (!question) return;
    fill(this.element, "Measuring …");
    const flight = (this.flight = new AbortController());
    try {
      const hear = (/** @type {any} */ event) => flight === this.flight && this.hear(event);
      await glass.source.stream("reasons", question, hear, flight.signal);
    } catch (fault) {
      if (!flight.signal.aborted) fill(this.element, asTrouble(fault).message);
    }
  }

  /** @param {any} event */
  hear({ sentence, change, changes = [change] }) {
    if (sentence) fill(this.element, ...told(sentence));
    else if (changes[0]) {
      const words = changes.flatMap((/** @type {any} */ { from, to }) =>
        [spelled(piece(to[1])), " for ", spelled(piece(from[1])), ", "]);
      fill(this.element, "So far: ", ...words, "…");
    }
  }

  /** Nobody waits for it any more. */
  close() {
    this.flight?.abort();
    this.flight = null;
  }
}
