// The reason for a word, as it is measured: which words turn it when they are changed, and which parts carry that. What
// is found is shown as it comes, gradients' answer first.
import { anchor, div, fill, make, remark, scrolling, short } from "./dom.js";
import { headings, numberCell } from "./numbers.js";
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
  line = make("p", { class: "lead reason", role: "status" });
  body = div("stack");
  element = div("stack", this.line, this.body);
  /** @type {AbortController | null} */
  flight = null;
  asked = "";

  /**
   * Asks why a token is ahead of another, unless that was asked already; nothing: there is nothing to ask.
   * @param {import("./glass.js").Glass} glass
   * @param {object | null} question
   * @param {(hop: string) => string} link where the path along what a part wrote begins
   */
  async ask(glass, question, link) {
    const asked = question ? `${glass.runs} ${JSON.stringify(question)}` : "";
    if (asked === this.asked) return;
    this.close();
    this.asked = asked;
    this.element.hidden = !question;
    fill(this.line, "Looking for the words that turn it …");
    fill(this.body);
    if (!question) return;
    const flight = (this.flight = new AbortController());
    try {
      const hear = (/** @type {any} */ event) => flight === this.flight && this.hear(event, link);
      await glass.source.stream("reasons", question, hear, flight.signal);
    } catch (fault) {
      if (!flight.signal.aborted) fill(this.line, asTrouble(fault).message);
    }
  }

  /** @param {any} event @param {(hop: string) => string} link */
  hear(event, link) {
    const { change, changes = [change] } = event;
    if (event.event === "done") {
      fill(this.line, ...told(event.sentence));
      fill(this.body, ...this.parts(event, link));
    } else if (changes[0]) {
      const words = changes.flatMap((/** @type {any} */ { from, to }) =>
        [spelled(piece(to[1])), " for ", spelled(piece(from[1])), ", "]);
      fill(this.line, "So far: ", ...words, "measuring …");
    }
  }

  /**
   * What was measured of the strongest parts, beside what they wrote.
   * @param {any} found
   * @param {(hop: string) => string} link
   */
  parts({ parts, runs }, link) {
    const measured = parts.filter((/** @type {any} */ { broken }) => broken !== null);
    if (measured.length === 0) return [];
    const rows = measured.map((/** @type {any} */ one) => {
      const { block, head } = one.part;
      const name = anchor(link(head === undefined ? `m${block}` : `h${block}.${head}`), one.name);
      const shares = [one.restored, one.broken, one.direct, one.weight];
      const numbers = shares.map((v) => numberCell(v === null ? "" : short(v, 2)));
      const wrote = numberCell(one.wrote === null ? "" : short(one.wrote, 3));
      return make("tr", make("th", { scope: "row" }, name), ...numbers, wrote, make("td", one.remark ?? ""));
    });
    const columns = ["part", "restores", "takes away", "directly", "weight", "wrote", ""];
    const head = headings(columns, (n) => n > 0 && n < 6);
    const table = make("table", { class: "plain-table reasons" }, head, make("tbody", ...rows));
    const how = `Shares of the difference, each from a run of its own (${runs} in all).`;
    return [scrolling("What carries it", table), remark(how)];
  }

  /** Nobody waits for it any more. */
  close() {
    this.flight?.abort();
    this.flight = null;
  }
}
