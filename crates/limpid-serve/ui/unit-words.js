// What units of an MLP respond to in a text: those of a table as words, one as places of the text.
import { troubleNote } from "./answer.js";
import { button, dim, fill, figure, make, onSubmit, remark, short } from "./dom.js";
import { barTable, share100 } from "./numbers.js";
import { asTrouble } from "./source.js";
import { joiner, piece, readable, spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */
/** @typedef {{tokens: string[], at: number, position: number, value: number}} Place */
/** @typedef {{unit: number, name: string, fires: number, contexts: Place[], raised?: any[], lowered?: any[]}} Unit */

/** Words of a unit in a row of the table. */
const OF_UNIT = 3;

/** Reads the text for the units of a view, and keeps the answers. */
export class UnitWords {
  /** The text that is read; empty: the one that the server has. */
  text = "";
  /** By layer and units. @type {Map<string, {about: any, units: Unit[]}>} */
  known = new Map();
  /** What was asked last. */
  asked = "";
  element = make("section", { class: "unit-words" });

  /** @param {Glass} glass @param {() => void} told what was asked for is known now */
  constructor(glass, told) {
    this.glass = glass;
    this.told = told;
  }

  /** @param {number} layer @param {number[]} units */
  key = (layer, units) => `${this.glass.model.fingerprint} ${layer} ${units} ${this.text}`;

  /**
   * What is known of some units of a layer; asks for it, if nothing is.
   * @param {number} layer @param {number[]} units
   */
  of(layer, units) {
    const { glass } = this;
    const key = this.key(layer, units);
    const known = this.known.get(key);
    if (!known && !glass.model.saved && units.length > 0) this.ask(layer, units, key);
    return known;
  }

  /** @param {number} layer @param {number[]} units @param {string} key */
  async ask(layer, units, key) {
    if (this.asked.includes(key)) return;
    this.asked += `${key}\n`;
    let about = {};
    const body = { layer, units, ...(this.text === "" ? {} : { text: this.text }) };
    try {
      await this.glass.source.stream("units", body, (event) => {
        if (event.event === "start") about = event;
        else this.known.set(key, { about, units: event.units });
      }, new AbortController().signal);
      this.told();
    } catch (fault) {
      fill(this.element, troubleNote(asTrouble(fault), null), this.form());
    }
  }

  /** The tokens that a unit responds to most, each once. @param {Unit | undefined} unit */
  words(unit) {
    const all = (unit?.contexts ?? []).filter(({ value }) => value > 0);
    const texts = [...new Set(all.map(({ tokens, at }) => tokens[at] ?? ""))].slice(0, OF_UNIT);
    return texts.flatMap((text, n) => [n > 0 ? " " : "", make("span", { class: "whole" }, spelled(piece(text)))]);
  }

  /** A field for another text. */
  form() {
    const words = { "aria-label": "Text to look in", placeholder: "Another text to look in" };
    const field = make("textarea", { rows: "3", ...words });
    field.value = this.text;
    const form = make("form", field, make("button", { type: "submit" }, "Look there"));
    onSubmit(form, () => {
      this.text = field.value;
      this.told();
    });
    const back = button("Back to the stories", () => {
      this.text = "";
      this.told();
    }, { class: "quiet" });
    return make("details", { open: this.text === "" ? null : "" }, make("summary", "Look in another text"), form,
      ...(this.text === "" ? [] : [back]));
  }

  /** What is known of one unit. @param {number} layer @param {number} unit */
  page(layer, unit) {
    const { element, glass } = this;
    if (glass.model.saved) return element;
    const known = this.of(layer, [unit]);
    const one = known?.units[0];
    if (!known || !one) {
      if (!element.querySelector(".trouble")) fill(element, remark("Reading the text …"));
      return element;
    }
    const { text, tokens } = known.about;
    const rows = one.contexts.map(({ tokens: all, at, value }) => {
      const join = joiner();
      const texts = all.map((text) => join(piece(text)));
      texts[0] = texts[0]?.trimStart() ?? "";
      const part = (/** @type {number} */ from, /** @type {number} */ to) =>
        readable(texts.slice(from, to).join("").replaceAll("\n", " "), false);
      const where = make("span", { class: "where", dir: "auto" }, ...part(0, at), make("mark", ...part(at, at + 1)),
        ...part(at + 1, texts.length));
      return make("li", where, dim(` ${short(value, 3)}`));
    });
    const effect = (/** @type {any[]} */ all) => all.slice(0, 5).map(([, word, by]) =>
      ({ name: spelled(piece(word)), value: Number(by), text: short(by, 3) }));
    const writes = [...effect(one.raised ?? []), ...effect(one.lowered ?? [])];
    fill(element,
      make("h2", `${one.name} responds to`),
      remark(`It is positive at ${share100(one.fires / tokens)} of ${figure(tokens, 0)} tokens of ${text}.`),
      rows.length > 0 ? make("ol", { class: "places" }, ...rows) : remark("It responds to nothing there."),
      ...(writes.length > 0 ? [barTable("At the first of these it adds to the logits", writes)] : []),
      this.form());
    return element;
  }
}
