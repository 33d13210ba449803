// The MLP of a layer at a token: what goes into its activation, and which units write most, towards which tokens.
import { curveChart } from "./curve.js";
import { button, figure, make, short } from "./dom.js";
import { troubleNote } from "./answer.js";
import { factList } from "./numbers.js";
import { asTrouble } from "./source.js";
import { piece, spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfMlp = { id: "mlp", title: "MLP", about: "Which units of a layer respond to a token?", open: mlpView,
  needs: ({ l, q }, glass) => [`mlp?layer=${Math.min(l ?? 0, glass.run().depth - 1)}&position=${Math.min(q ?? Infinity, glass.run().tokens.length - 1)}`],
};

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function mlpView(glass) {
  const title = make("h2", {}, "…");
  const chart = curveChart();
  const notice = make("div", {});
  const legend = make("p", { class: "note" }, "Reading the layer …");
  const body = make("tbody", {});
  const units = make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Units" }, make("table", { class: "plain-table terms" }, make("caption", {}, "Units that write most here, and the tokens that their writing makes likelier"),
    make("thead", {}, make("tr", {}, ...["unit", "before", "after", "writes", "", "makes likelier"].map((word, n) => (word ? make("th", { scope: "col", class: n > 0 && n < 4 ? "number" : null }, word) : make("td", {}))))), body));
  const numbers = make("div", { class: "stack" });
  const turn = (/** @type {number} */ by) => glass.go({ l: (layer() + by + glass.run().depth) % glass.run().depth });
  const steps = make("div", { class: "steps", role: "group", "aria-label": "Layer" }, button("‹", () => turn(-1), { "aria-label": "Previous layer", title: "Previous layer ([)" }), make("span", {}, "layer"), button("›", () => turn(1), { "aria-label": "Next layer", title: "Next layer (])" }));
  const element = make("div", { class: "mlp" }, make("div", { class: "tools" }, title, steps), notice, chart.element, legend, units);
  const layer = () => Math.min(glass.state().l ?? 0, glass.run().depth - 1);
  /** @type {{own: any, theirs: any} | null} */
  let known = null;
  let asked = "";
  const unit = () => {
    const said = Number(glass.state().more["neuron"] ?? NaN);
    return Number.isInteger(said) && said >= 0 && said < glass.model.d_ff ? said : (known?.own.units[0]?.unit ?? 0);
  };

  async function ask() {
    const key = `${glass.run().id} ${glass.other()?.done ? glass.other()?.id : ""} ${layer()} ${glass.q()}`;
    if (key === asked) return;
    asked = key;
    const question = `mlp?layer=${layer()}&position=${glass.q()}`;
    try {
      const [own, theirs] = await Promise.all([glass.ask(question), glass.other()?.done ? glass.askOther(question).catch(() => null) : null]);
      if (key !== asked) return;
      known = { own, theirs };
      notice.replaceChildren();
      show();
    } catch (fault) {
      if (key !== asked) return;
      known = null;
      body.replaceChildren();
      notice.replaceChildren(troubleNote(asTrouble(fault), () => {
        asked = "";
        ask();
      }));
    }
  }

  function show() {
    if (!known) return;
    const { own, theirs } = known;
    const token = glass.run().tokens[glass.q()];
    title.replaceChildren(`Layer ${layer()}, MLP at `, token ? spelled(token.piece) : "");
    const chosen = own.units.find((/** @type {any} */ one) => one.unit === unit()) ?? own.units[0];
    const gated = glass.model.config["ffn_gated"] === true;
    chart.show({
      x: own.curve.x, y: own.curve.y, dot: chosen ? { x: chosen.pre, y: gated ? nearestOn(own.curve, chosen.pre) : chosen.post } : null,
      bars: { edges: own.edges, counts: own.counts, all: theirs ? theirs.counts : own.all },
      words: `${own.activation}, and ${figure(own.d_ff, 0)} pre-activations at token ${glass.q()}, from ${short(own.edges[0], 3)} to ${short(own.edges.at(-1), 3)}`,
    });
    legend.textContent = `Curve: ${own.activation}. Bars: what goes into it, ${figure(own.d_ff, 0)} units at this token; outline: the same ${theirs ? "in the other text" : "at all tokens"}. Dot: unit ${chosen?.unit ?? "–"}.`;
    const most = Math.max(1e-30, ...own.units.map((/** @type {any} */ one) => one.write_norm));
    body.replaceChildren(...own.units.map((/** @type {any} */ one) => {
      const bar = make("span", { class: "bar" });
      bar.style.setProperty("width", `${(100 * one.write_norm) / most}%`);
      const tokens = one.tokens.flatMap((/** @type {[number, string, number]} */ [, text, logit], /** @type {number} */ n) => [n ? " " : "", make("span", { class: "whole", title: `logit ${short(logit, 4)}` }, spelled(piece(text)))]);
      return make("tr", { class: one.unit === chosen?.unit ? "chosen" : null },
        make("th", { scope: "row" }, make("a", { href: glass.link({ more: { ...glass.state().more, neuron: `${one.unit}` } }) }, `${one.unit}`)),
        make("td", { class: "number" }, short(one.pre, 4)), make("td", { class: "number" }, short(one.post, 4)), make("td", { class: "number" }, short(one.write_norm, 4)), make("td", { class: "of-bar", "aria-hidden": "true" }, bar), make("td", {}, ...tokens));
    }));
    const at = [0, glass.q(), chosen?.unit ?? 0];
    const hooks = ["hook_pre", "hook_post"].map((hook) => `blocks.${layer()}.mlp.${hook}`);
    numbers.replaceChildren(
      make("section", {}, make("h2", {}, `Layer ${layer()}, MLP`), factList([["activation", own.activation], ["units", figure(own.d_ff, 0)], ["dead", `${figure(own.dead, 0)} of ${figure(own.d_ff, 0)}`]]), make("p", { class: "note" }, "Dead: it lets nothing through at any token of this text.")),
      ...(chosen ? [make("section", {}, make("h2", {}, `Unit ${chosen.unit}`), factList([
        ["before the activation", short(chosen.pre, 6)], ["after it", short(chosen.post, 6)], ["length of what it writes", short(chosen.write_norm, 6)],
        ...chosen.tokens.map((/** @type {[number, string, number]} */ [, text, logit]) => /** @type {[Node, string]} */ ([make("span", {}, "logit of ", spelled(piece(text))), `${logit < 0 ? "" : "+"}${short(logit, 4)}`])),
      ]), ...(glass.has("why") ? [make("p", {}, make("a", { href: glass.link({ v: "why", n: hooks[1] ?? "", at: at.join() }) }, "Show the arithmetic"))] : []))] : []),
      make("section", {}, ...hooks.map((name) => make("p", {}, make("a", { href: glass.link({ v: "table", n: name, at: at.join() }) }, make("code", {}, name))))),
    );
  }

  return {
    element,
    numbers,
    update() {
      if (!glass.run().done) return;
      ask();
      show();
    },
    close: chart.close,
    tensor: () => ({ name: `blocks.${layer()}.mlp.hook_post`, at: [0, glass.q(), unit()] }),
  };
}

/** The curve's height at a place. @param {{x: number[], y: number[]}} curve @param {number} x */
function nearestOn(curve, x) {
  const at = curve.x.reduce((best, value, n) => (Math.abs(value - x) < Math.abs((curve.x[best] ?? 0) - x) ? n : best), 0);
  return curve.y[at] ?? 0;
}
