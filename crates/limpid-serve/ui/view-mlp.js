// The MLP of a layer at a token: what goes into its activation, and which units write most, towards which tokens.
import { curveChart } from "./curve.js";
import { anchor, div, figure, fill, make, remark, scrolling, short } from "./dom.js";
import { handsOn, mlpPart, unitPart } from "./hands.js";
import { barCell, factList, headings, numberCell, tensorLink, whyLink } from "./numbers.js";
import { piece, spelled } from "./text.js";
import { UnitWords } from "./unit-words.js";
import { OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfMlp = {
  id: "mlp", title: "Units", about: "Which units of a layer respond to a token, and to what else?",
  open: (glass) => new MlpView(glass),
  needs: ({ l, q }, { run }) =>
    [`mlp?layer=${Math.min(l ?? 0, run.depth - 1)}&position=${Math.min(q ?? Infinity, run.tokens.length - 1)}`],
};

class MlpView extends OpenView {
  title = make("h2", "…");
  chart = curveChart();
  words = new UnitWords(this.glass, () => this.show());
  legend = remark("Reading the layer …");
  body = make("tbody");
  /** What the server says of the layer, of this run and of the other. @type {{ours: any, theirs: any} | null} */
  known = null;
  element = div(
    "mlp",
    div(
      "tools", this.title,
      make("div", { class: "steps", role: "group", "aria-label": "Layer" }, ...this.stepButtons("l")),
    ),
    this.notice, this.chart.element, this.legend,
    scrolling(
      "Units",
      make("table", { class: "plain-table terms" },
        make("caption", "Units that write most here, and the tokens that their writing makes likelier"),
        headings(["unit", "before", "after", "writes", "", "makes likelier", "responds to"], (n) => n > 0 && n < 4),
        this.body,
      ),
    ),
  );

  /** The chosen unit: else the one that writes most. */
  get unit() {
    const said = Number(this.more["neuron"] ?? NaN);
    const isUnit = Number.isInteger(said) && said >= 0 && said < this.model.d_ff;
    return isUnit ? said : (this.known?.ours.units[0]?.unit ?? 0);
  }

  update() {
    const { glass } = this;
    if (!this.run.done) return;
    const question = `mlp?layer=${glass.layer}&position=${this.q}`;
    const use = (/** @type {[any, any]} */ [ours, theirs]) => {
      this.known = { ours, theirs };
      this.show();
    };
    const clear = () => {
      this.known = null;
      fill(this.body);
    };
    this.askOnce(`${glass.runs} ${question}`, () => glass.askBoth(question), use, clear);
    this.show();
  }

  show() {
    if (!this.known) return;
    const { ours, theirs } = this.known;
    const { layer, activation, curve, edges, counts, units, d_ff: count } = ours;
    const token = this.run.tokens[this.q];
    fill(this.title, `L${layer} MLP at `, token ? spelled(token.piece) : "");
    // one that is silenced is not among those that write most
    const chosen = units.find((/** @type {any} */ { unit }) => unit === this.unit) ?? { unit: this.unit };
    const isGated = this.model.config["ffn_gated"] === true;
    const range = `from ${short(edges[0], 3)} to ${short(edges.at(-1), 3)}`;
    this.chart.show({
      x: curve.x, y: curve.y,
      dot: chosen.tokens ? { x: chosen.pre, y: isGated ? heightAt(curve, chosen.pre) : chosen.post } : null,
      bars: { edges, counts, all: theirs ? theirs.counts : ours.all },
      words: `${activation}, and ${figure(count, 0)} pre-activations at token ${this.q}, ${range}`,
    });
    const outline = `outline: the same ${theirs ? "in the other text" : "at all tokens"}`;
    const bars = `Bars: what goes into it, ${figure(count, 0)} units at this token; ${outline}`;
    this.legend.textContent = `Curve: ${activation}. ${bars}. Dot: L${layer}U${chosen.unit}.`;
    const known = this.words.of(layer, units.map((/** @type {any} */ { unit }) => unit))?.units ?? [];
    const most = Math.max(1e-30, ...units.map((/** @type {any} */ unit) => unit.write_norm));
    fill(this.body, ...units.map((/** @type {any} */ unit, /** @type {number} */ n) =>
      this.row(unit, most, unit.unit === chosen.unit, this.words.words(known[n]))));
    const [unit, page] = [this.unitNumbers(layer, chosen), this.words.page(layer, chosen.unit)];
    fill(this.numbers, this.layerNumbers(ours), unit, page, this.links(chosen));
  }

  /** @param {any} of @param {number} most @param {boolean} isChosen @param {(Node | string)[]} responds */
  row({ unit, pre, post, write_norm: norm, tokens }, most, isChosen, responds) {
    const bar = make("span", { class: "bar" });
    bar.style.setProperty("width", `${(100 * norm) / most}%`);
    const likelier = tokens.flatMap((/** @type {[number, string, number]} */ [, text, logit]) => [
      make("span", { class: "whole", title: `logit ${short(logit, 4)}` }, spelled(piece(text))), " ",
    ]);
    const name = anchor(this.glass.link(this.with({ neuron: `${unit}` })), `${unit}`);
    return make("tr", { class: isChosen ? "chosen" : null },
      make("th", { scope: "row" }, name), ...[pre, post, norm].map((value) => numberCell(short(value, 4))),
      barCell(bar), make("td", ...likelier.slice(0, -1)), make("td", ...responds));
  }

  /** @param {any} layer */
  layerNumbers({ layer, activation, d_ff: count, dead }) {
    const facts = factList(
      [["activation", activation], ["units", figure(count, 0)], ["dead", `${figure(dead, 0)} of ${figure(count, 0)}`]],
    );
    const what = remark("Dead: it lets nothing through at any token of this text.");
    const hands = handsOn(this.glass, mlpPart(layer));
    return make("section", make("h2", `L${layer} MLP`), hands, facts, what);
  }

  /** @param {number} layer @param {any} of */
  unitNumbers(layer, { unit, pre, post, write_norm: norm, tokens }) {
    const [title, hands] = [make("h2", `L${layer}U${unit} at this token`), handsOn(this.glass, unitPart(layer, unit))];
    if (!tokens) return make("section", title, hands, remark("It is not among those that write most here."));
    const logits = tokens.map((/** @type {[number, string, number]} */ [, text, logit]) =>
      [make("span", "logit of ", spelled(piece(text))), `${logit < 0 ? "" : "+"}${short(logit, 4)}`]);
    const facts = factList(
      [
        ["before the activation", short(pre, 6)], ["after it", short(post, 6)],
        ["length of what it writes", short(norm, 6)], ...logits,
      ],
    );
    return make(
      "section", title, hands, facts, whyLink(this.glass, this.hook("post"), [0, this.q, unit]),
    );
  }

  /** @param {any} chosen */
  links(chosen) {
    const place = [0, this.q, chosen?.unit ?? 0].join();
    return make("section", ...["pre", "post"].map((side) =>
      make("p", tensorLink(this.glass, this.hook(side), place))));
  }

  /** The name of a tensor of the layer. @param {string} side */
  hook(side) {
    return `blocks.${this.glass.layer}.mlp.hook_${side}`;
  }

  close() {
    this.chart.close();
  }

  tensor() {
    return { name: this.hook("post"), at: [0, this.q, this.unit] };
  }
}

/** The curve's height at a place. @param {{x: number[], y: number[]}} curve @param {number} x */
function heightAt(curve, x) {
  const nearest =
    curve.x.reduce((best, value, n) => (Math.abs(value - x) < Math.abs((curve.x[best] ?? 0) - x) ? n : best), 0);
  return curve.y[nearest] ?? 0;
}
