// Directions: a vector that tells two kinds of texts apart, how well, and what the model writes when it is added.
import { troubleNote } from "./answer.js";
import { button, dim, div, fill, make, onSubmit, plural, remark, scrolling, short } from "./dom.js";
import { stepsOf } from "./hands.js";
import { headings, numberCell, share100 } from "./numbers.js";
import { asTrouble } from "./source.js";
import { readable } from "./text.js";
import { OpenView } from "./view.js";

/** @type {import("./view.js").View} */
export const viewOfDirections = {
  id: "directions", title: "Directions", about: "Which direction of the stream tells two kinds of texts apart?",
  open: (glass) => new DirectionsView(glass),
  missing: ({ saved, interventions }) => {
    if (saved) return "This file does not hold the model, which directions need: `limpid direction` finds them.";
    return interventions === false ? "To try directions, serve the model with --allow-interventions." : null;
  },
};

/** Texts to begin with, if the model's example is a story. */
const EXAMPLES = [
  ["The girl was happy", "A happy king", "The fox was happy", "The happy boy"],
  ["The girl was sad", "A sad king", "The fox was sad", "The sad boy"],
];

/** Tokens that are written. */
const WRITE = 12;

class DirectionsView extends OpenView {
  positive = this.field("More like these, a text a line", EXAMPLES[0] ?? []);
  negative = this.field("than like these", EXAMPLES[1] ?? []);
  method = make("select", { "aria-label": "How it is found" },
    ...[["mean", "difference of the means"], ["pca", "principal component"], ["probe", "linear probe"]]
      .map(([value = "", title = ""]) => make("option", { value }, title)));
  go = make("button", { type: "submit" }, "Find the direction");
  result = div("stack", remark("The texts are pairs: the first with the first, and so on. Give four pairs or more, " +
    "and it is tested on the last quarter, which it is not made from."));
  form = make("form", { class: "sweep-form" }, make("label", "More like these, a text a line", this.positive),
    make("label", "than like these", this.negative), div("tools", this.method, this.go));
  element = div("directions", this.form, this.notice, this.result);

  /** @param {import("./glass.js").Glass} glass */
  constructor(glass) {
    super(glass);
    onSubmit(this.form, () => this.find());
  }

  /** @param {string} label @param {string[]} lines */
  field(label, lines) {
    const field = make("textarea", { rows: "4", dir: "auto", "aria-label": label });
    field.value = lines.join("\n");
    return field;
  }

  async find() {
    const lines = (/** @type {HTMLTextAreaElement} */ { value }) =>
      value.split("\n").filter((line) => line.trim() !== "");
    const body = {
      positive: lines(this.positive), negative: lines(this.negative), method: this.method.value, write: WRITE,
    };
    this.go.disabled = true;
    fill(this.notice);
    try {
      await this.glass.source.stream("directions", body, (event) => event.event === "done" && this.show(event),
        new AbortController().signal);
    } catch (fault) {
      fill(this.notice, troubleNote(asTrouble(fault), null));
    }
    this.go.disabled = false;
  }

  /** @param {any} found */
  show({ pairs, held_out: tested, layers, best, prompt, effects }) {
    const about = tested > 0
      ? `From ${plural(pairs, "pair")}, tested on ${plural(tested, "other")}; chance is 50 %.`
      : `From ${plural(pairs, "pair")}, not tested on others: give four or more.`;
    const rows = layers.map((/** @type {any} */ one) => make("tr", { class: one.layer === best ? "chosen" : null },
      make("th", { scope: "row" }, `${one.layer}`), numberCell(short(one.norm, 4)), numberCell(share100(one.share)),
      ...(tested > 0 ? [numberCell(share100(one.accuracy)), numberCell(short(one.by_chance, 3))] : [])));
    const heads = ["layer", "length", "share", ...(tested > 0 ? ["told apart", "by chance"] : [])];
    const told = scrolling("Layers", make("table", { class: "plain-table terms" }, make("caption", about),
      headings(heads, (n) => n > 0), make("tbody", ...rows)));
    fill(this.result, told, ...(effects?.length ? [this.texts(prompt.join(""), best, effects)] : []));
  }

  /**
   * What the model writes, each with a button that changes the run so.
   * @param {string} prompt @param {number} best @param {any[]} effects
   */
  texts(prompt, best, effects) {
    const rows = effects.map(({ name, steps, text }) => {
      const put = steps && button("Change the run so", () => {
        const now = stepsOf(this.state.i);
        this.glass.go({ i: JSON.stringify([...now, ...steps]) }, "new");
      }, { class: "quiet", "aria-label": `Change the run: ${name}` });
      const written = make("td", make("span", { dir: "auto" }, ...readable(text.replaceAll("\n", " "), false)));
      return make("tr", make("th", { scope: "row" }, name), written, make("td", put ?? dim("")));
    });
    const caption = make("caption", `What the model writes after “${prompt}”, with the direction of layer ${best}`);
    return scrolling("Texts", make("table", { class: "plain-table" }, caption, make("tbody", ...rows)));
  }
}
