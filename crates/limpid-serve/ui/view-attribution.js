// Attribution: who wrote it. The logit of a token, less that of another, as bars of what layers, heads or units wrote: they add
// up to it.
import { make, short } from "./dom.js";
import { troubleNote } from "./answer.js";
import { barTable, factList, signed } from "./numbers.js";
import { aimOf, onOneLine } from "./runs.js";
import { asTrouble } from "./source.js";
import { piece, readable, spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfAttribution = {
  id: "attribution", title: "Attribution", about: "Which parts of the model favour this token, and why not that one?", open: attributionView,
  missing: (model) => (model.lm_head ? null : "This model has no head for tokens: there is no logit to be divided among its parts."),
};

/** What a bar shows. */
const UNITS_OF = [{ id: "component", title: "Attention and MLP" }, { id: "head", title: "Heads" }, { id: "neuron", title: "Units" }];

/** How many of the likeliest tokens can be chosen. */
const OFFERED = 20;

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function attributionView(glass) {
  const target = make("select", { "aria-label": "Token" });
  const foil = make("select", { "aria-label": "Rather than" });
  const units = make("div", { class: "segments", role: "group", "aria-label": "What a bar shows" });
  const title = make("p", { class: "lead" });
  const notice = make("div", {});
  const body = make("div", { class: "stack" }, make("p", { class: "hint" }, "Adding up …"));
  const element = make("div", { class: "attribution" }, make("div", { class: "tools" }, make("label", {}, "Why ", target), make("label", {}, "rather than ", foil), units), notice, title, body);
  const numbers = make("div", { class: "stack" });
  let [asked, offered] = ["", ""];

  const unit = () => UNITS_OF.find(({ id }) => id === glass.state().more["unit"])?.id ?? "component";
  const word = (/** @type {"target" | "foil"} */ name) => (/^(\d+|none)$/.test(glass.state().more[name] ?? "") ? glass.state().more[name] : "");
  /** @param {Record<string, string>} changes */
  const set = (changes) => glass.go({ more: { ...glass.state().more, ...changes } });
  for (const { id, title: name } of UNITS_OF) {
    const one = make("button", { type: "button", "data-unit": id }, name);
    one.addEventListener("click", () => set({ unit: id === "component" ? "" : id }));
    units.append(one);
  }
  target.addEventListener("change", () => set({ target: target.value }));
  foil.addEventListener("change", () => set({ foil: foil.value }));

  /** The tokens that can be chosen: the likeliest here, the one that follows, those of the text. @param {any} answer */
  async function offer(answer) {
    const mine = `${glass.run().id} ${glass.q()} ${answer.target[0]} ${answer.foil?.[0] ?? "none"}`;
    if (mine === offered) return;
    offered = mine;
    const { top } = await glass.ask(`predictions?position=${glass.q()}&k=${OFFERED}`).catch(() => ({ top: glass.run().predictions[glass.q()]?.top ?? [] }));
    if (mine !== offered) return;
    /** @type {Map<number, string>} */
    const all = new Map([...(answer.foil ? [answer.target, answer.foil] : [answer.target]), ...top].map(([id, text]) => [id, onOneLine(piece(text))]));
    const next = aimOf(glass.run(), glass.q());
    for (const token of [...(next ? [next] : []), ...glass.run().tokens.slice(-OFFERED)]) all.set(token.id, token.text);
    const options = () => [...all].map(([id, text]) => make("option", { value: `${id}` }, text));
    target.replaceChildren(...options());
    foil.replaceChildren(make("option", { value: "none" }, "nothing else"), ...options());
    target.value = `${answer.target[0]}`;
    foil.value = answer.foil ? `${answer.foil[0]}` : "none";
  }

  async function ask() {
    const key = `${glass.run().id} ${glass.other()?.done ? glass.other()?.id : ""} ${glass.q()} ${unit()} ${word("target")} ${word("foil")}`;
    if (key === asked) return;
    asked = key;
    const question = [`attribution?position=${glass.q()}`, `unit=${unit()}`, word("target") && word("target") !== "none" ? `target=${word("target")}` : "", word("foil") ? `foil=${word("foil")}` : ""].filter((part) => part).join("&");
    try {
      const own = await glass.ask(question);
      // the other text is asked about the same two tokens
      const same = `attribution?position=${glass.q()}&unit=${unit()}&target=${own.target[0]}&foil=${own.foil ? own.foil[0] : "none"}`;
      const theirs = glass.other()?.done ? await glass.askOther(same).catch(() => null) : null;
      if (key !== asked) return;
      notice.replaceChildren();
      offer(own);
      fill(own, theirs);
    } catch (fault) {
      if (key !== asked) return;
      title.replaceChildren();
      body.replaceChildren();
      notice.replaceChildren(troubleNote(asTrouble(fault), () => {
        asked = "";
        ask();
      }));
    }
  }

  /** @param {any} own @param {any} theirs */
  function fill(own, theirs) {
    const token = glass.run().tokens[glass.q()];
    title.replaceChildren("After ", token ? spelled(token.piece) : "", ": ", make("strong", {}, spelled(piece(own.target[1]))), ...(own.foil ? [" rather than ", make("strong", {}, spelled(piece(own.foil[1])))] : []), make("span", { class: "dim" }, `: ${own.foil ? "difference of logits" : "logit"} ${short(own.value, 5)}`));
    const other = new Map((theirs?.bars ?? []).map((/** @type {any} */ bar) => [bar.name, bar.value]));
    const rows = own.bars.map((/** @type {any} */ { name, value, to }) => {
      const less = other.get(name);
      return { name, value, text: `${short(value, 4)}${less === undefined ? "" : ` (${signed(value - less)})`}`, link: to ? glass.link({ v: "why", n: to.name, at: to.at.join() }) : "" };
    });
    if (Math.abs(own.rest) > 0) rows.push({ name: "all others", value: own.rest, text: short(own.rest, 4), link: "" });
    const bars = barTable(theirs ? "What each part adds (and by how much more than in the other)" : "What each part adds", rows);
    bars.classList.add("broad");
    const sum = rows.reduce((/** @type {number} */ all, /** @type {any} */ { value }) => all + value, 0);
    body.replaceChildren(bars, make("p", { class: "sum" }, `sum ${short(sum, 5)}${own.additive ? "" : "; not all of it can be divided"}; rounding ${short(own.remainder, 2)}; in all ${short(own.value, 5)}`), make("p", { class: "note" }, ...readable(own.note, false)));
    const of = (/** @type {any} */ { bars: all }, /** @type {RegExp} */ pattern) => all.filter((/** @type {any} */ bar) => pattern.test(bar.name)).reduce((/** @type {number} */ sum, /** @type {any} */ bar) => sum + bar.value, 0);
    const rest = own.bars.length - own.bars.filter((/** @type {any} */ bar) => bar.value < 0).length;
    numbers.replaceChildren(make("section", {}, make("h2", {}, "In short"), factList([
      [own.foil ? "difference of logits" : "logit", short(own.value, 6)], ["the other’s", theirs ? short(theirs.value, 6) : null],
      ["for it", `${rest} of ${own.bars.length} parts`], ["MLPs", short(of(own, /mlp/i), 4)], ["attention", short(of(own, /attn|attention|^L\d+H\d+/i), 4)],
    ]), make("p", { class: "note" }, "A bar shows what a part wrote towards these tokens on the direct path to the head. What it did through later layers is in their bars.")));
  }

  return {
    element,
    numbers,
    update() {
      for (const one of units.querySelectorAll("button")) one.setAttribute("aria-pressed", `${one.dataset["unit"] === unit()}`);
      if (glass.run().done) ask();
    },
    tensor: () => ({ name: "logits", at: [0, glass.q(), Number(target.value) || glass.run().predictions[glass.q()]?.top[0]?.[0] || 0] }),
  };
}
