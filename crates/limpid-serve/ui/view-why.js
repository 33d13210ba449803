// Arithmetic: any cell of any tensor as the sum behind it, in parts and terms, and what is done with the sum. Each operand
// leads to its own sum.
import { curveChart } from "./curve.js";
import { make, short } from "./dom.js";
import { loader, troubleNote } from "./answer.js";
import { barTable, factList, signed, signedBar } from "./numbers.js";
import { asTrouble } from "./source.js";
import { formulaOf, readable } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfWhy = { id: "why", title: "Arithmetic", about: "What is the sum behind a number?", open: whyView,
  needs: ({ n, at }) => (n && at ? [`explain/${encodeURIComponent(n)}?at=${at}`] : []),
};

/** Terms that are shown at first. */
const FIRST_TERMS = 16;

/** @param {number | string} value */
const exactly = (value) => short(typeof value === "string" ? value.replace("inf", "Infinity") : value, 6);

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function whyView(glass) {
  const heading = make("h2", {}, "…");
  const places = make("div", { class: "leading" });
  const body = make("div", { class: "lesson" }, make("p", { class: "hint" }, "Adding up …"));
  const notice = make("div", {});
  const element = make("div", { class: "why" }, make("div", { class: "tools" }, heading, places), notice, body);
  const numbers = make("div", { class: "stack" });
  const chart = curveChart();
  /** @type {any[] | null} */
  let listing = null;
  let [asked, laid, placed] = ["", "", ""];

  const name = () => glass.state().n || (glass.model.lm_head ? "logits" : `blocks.${glass.run().depth - 1}.hook_resid_post`);
  const entry = () => listing?.find((one) => one.name === name());
  /** The place: what the address says, else what is chosen elsewhere. @returns {number[]} */
  function at() {
    const said = glass.state().at.split(",").filter((word) => /^\d+$/.test(word)).map(Number);
    const own = entry();
    if (!own) return said;
    const chosen = /** @type {Record<string, number | null | undefined>} */ ({
      pos: glass.q(), query_pos: glass.q(), key_pos: glass.k(), head: glass.state().h, d_vocab: own.name === "logits" || own.name === "probs" ? glass.run().predictions[glass.q()]?.top[0]?.[0] : 0,
    });
    return own.shape.map((/** @type {number} */ size, /** @type {number} */ n) => Math.min(size - 1, said[n] ?? chosen[own.axes?.[n]] ?? 0));
  }
  /** @param {{name: string, at: number[]}} to */
  const link = (to) => glass.link({ v: "why", n: to.name, at: to.at.join() });

  const load = loader(notice, glass.listing, ({ tensors, params }) => {
    listing = [...tensors, ...params];
    glass.go({}); // there is a tensor now
  });

  async function show() {
    // the chosen token moves the place with it, and a place the chosen token
    const axis = entry()?.axes?.findIndex((/** @type {string} */ one) => one === "pos" || one === "query_pos") ?? -1;
    const place = at();
    const moved = placed !== `${name()} ${place}`;
    const there = place[axis];
    placed = `${name()} ${place}`;
    if (there !== undefined && there !== glass.q() && there < glass.run().tokens.length) {
      if (moved) return glass.go({ q: there });
      return glass.go({ at: place.map((n, i) => (i === axis ? glass.q() : n)).join() });
    }
    const key = `${glass.run().id} ${glass.other()?.done ? glass.other()?.id : ""} ${name()} ${place}`;
    if (key === asked) return;
    asked = key;
    lay(place);
    const question = `explain/${encodeURIComponent(name())}?at=${place}`;
    try {
      const [own, theirs] = await Promise.all([glass.ask(question), glass.other()?.done ? glass.askOther(question).catch(() => null) : null]);
      if (key !== asked) return;
      notice.replaceChildren();
      fill(own, theirs);
    } catch (fault) {
      if (key !== asked) return;
      body.replaceChildren();
      numbers.replaceChildren();
      const trouble = asTrouble(fault);
      const near = trouble.code === "unknown_tensor" ? /`([^`]+)`[^`]*$/.exec(trouble.message)?.[1] : null;
      notice.replaceChildren(troubleNote(trouble, near ? null : () => {
        asked = "";
        show();
      }, ...(near && near !== name() ? [make("a", { href: glass.link({ n: near, at: "" }) }, near)] : [])));
    }
  }

  /** Fields for the place, one an axis. @param {number[]} place */
  function lay(place) {
    const own = entry();
    if (laid !== name()) {
      laid = name();
      places.replaceChildren(...(own?.shape ?? []).map((/** @type {number} */ size, /** @type {number} */ n) => {
        const word = own.axes?.[n] ?? `axis ${n}`;
        const input = make("input", { type: "number", min: "0", max: `${size - 1}`, "aria-label": word });
        input.addEventListener("change", () => {
          const next = at().map((old, m) => (m === n ? Math.min(size - 1, Math.max(0, Math.trunc(Number(input.value) || 0))) : old));
          glass.go({ n: name(), at: next.join(), ...(/^(query_)?pos$/.test(word) ? { q: next[n] ?? 0 } : {}) });
        });
        return size === 1 ? "" : make("label", {}, `${word} `, input);
      }));
    }
    const shown = place.filter((_, n) => own?.shape[n] !== 1);
    places.querySelectorAll("input").forEach((input, n) => (input.value = `${shown[n] ?? 0}`));
  }

  /** A number that leads to where it comes from. @param {any} operand */
  const operand = (operand) => (operand.to ? make("a", { href: link(operand.to), title: `${operand.to.name} [${operand.to.at.join(", ")}]` }, exactly(operand.value)) : make("span", {}, exactly(operand.value)));

  /** @param {any} own @param {any} theirs of the run that is compared with */
  function fill(own, theirs) {
    heading.replaceChildren(make("code", {}, own.name), make("span", { class: "dim" }, ` [${own.at.join(", ")}] = `), exactly(own.value));
    /** @type {(HTMLElement | string)[]} */
    const parts = [];
    if (own.formula) parts.push(make("p", { class: "formula" }, ...formulaOf(own.formula)));
    parts.push(make("p", {}, ...own.words.split("\x60").flatMap((/** @type {string} */ text, /** @type {number} */ n) => (n % 2 ? [make("code", {}, text)] : readable(text, false)))));
    const other = new Map((theirs?.parts ?? []).map((/** @type {any} */ part) => [part.label, Number(part.value)]));
    if (own.parts.length > 1 || theirs) {
      const rows = own.parts.map((/** @type {any} */ { label, value }) => {
        const less = other.get(label);
        return { name: label, value: Number(value) || 0, text: `${exactly(value)}${less === undefined ? "" : ` (${signed(Number(value) - less)})`}` };
      });
      parts.push(barTable(theirs ? "Parts of the sum (and by how much they are more than the other’s)" : "Parts of the sum", rows));
    }
    /** @type {any[]} */
    const terms = own.parts.flatMap((/** @type {any} */ part) => part.terms.map((/** @type {any} */ term) => ({ ...term, part: part.label })))
      .sort((/** @type {any} */ a, /** @type {any} */ b) => Math.abs(Number(b.value)) - Math.abs(Number(a.value)));
    if (terms.length > 0) {
      const several = own.parts.length > 1;
      const most = Math.max(...terms.map(({ value }) => Math.abs(Number(value)) || 0), 1e-30);
      const rows = terms.map(({ part, label, left, right, value }) => {
        const bar = signedBar(Number(value) || 0, most);
        return make("tr", {}, make("th", { scope: "row" }, several && !label.startsWith(part) ? `${part}, ${label}` : label), make("td", { class: "number" }, operand(left)), make("td", { class: "number" }, ...(right ? ["× ", operand(right)] : [])), make("td", { class: "number" }, `= ${exactly(value)}`), make("td", { class: "of-bar", "aria-hidden": "true" }, bar));
      });
      const what = own.shown < own.of ? `The ${own.shown} largest of ${own.of} terms` : own.of === 1 ? "The only term" : `All ${own.of} terms`;
      const table = (/** @type {HTMLElement[]} */ some, /** @type {string} */ caption) => make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": caption }, make("table", { class: "plain-table terms" }, make("caption", { class: some === rows ? "unseen" : null }, caption), make("tbody", {}, ...some)));
      const first = rows.splice(0, FIRST_TERMS);
      parts.push(table(first, what));
      if (rows.length > 0) parts.push(make("details", {}, make("summary", {}, `${rows.length} more`), table(rows, "More terms")));
    }
    const sum = own.parts.reduce((/** @type {number} */ all, /** @type {any} */ part) => all + Number(part.value), 0);
    /** @type {[Node | string, Node | string | null][]} */
    const lines = [];
    if (own.shown < own.of) lines.push(["terms that are not shown", exactly(own.remainder)]);
    if (own.parts.length > 0) lines.push(["sum", exactly(sum)]);
    for (const { operation, label, by, result, to } of own.steps ?? []) {
      lines.push([make("span", {}, `${operation} ${by ? "" : label}`, ...(by ? [operand(by), ` ${label}`] : [])), make("span", {}, "= ", operand({ value: result, to }))]);
    }
    lines.push(["in 64 bits", exactly(own.exact ?? Number(own.value) - Number(own.rounding))], ["rounding of 32 bits", exactly(own.rounding)], [make("strong", {}, "value"), make("strong", {}, exactly(own.value))]);
    const list = factList(lines);
    list.classList.add("sums");
    parts.push(list);
    if (own.curve) {
      const x = Number(own.steps?.[0]?.operation === own.curve.function ? sum : own.curve.at ?? sum);
      chart.show({ x: own.curve.x, y: own.curve.y, dot: { x, y: Number(own.value) }, bars: null, words: `${own.curve.function ?? own.op}: ${exactly(x)} becomes ${exactly(own.value)}` });
      parts.push(make("p", { class: "note" }, `${own.curve.function ?? ""}: ${exactly(x)} becomes ${exactly(own.value)}`), chart.element);
    }
    body.replaceChildren(...parts);
    const about = entry();
    /** @type {Map<string, number[]>} */
    const operands = new Map();
    for (const { left, right } of terms) for (const one of [left, right]) if (one?.to && !operands.has(one.to.name)) operands.set(one.to.name, one.to.at);
    for (const { by, to } of own.steps ?? []) for (const one of [by?.to, to]) if (one && !operands.has(one.name)) operands.set(one.name, one.at);
    numbers.replaceChildren(
      make("section", {}, make("h2", {}, make("a", { href: glass.link({ v: "table", n: own.name, at: own.at.join() }) }, make("code", {}, own.name))), ...(about?.about ? [make("p", { class: "note" }, about.about)] : []),
        factList([["value", exactly(own.value)], ["the other’s", theirs ? exactly(theirs.value) : null], ["made by", own.op], ["symbol", about?.symbol ? make("span", { class: "symbol" }, ...formulaOf(about.symbol)) : null]])),
      ...(operands.size > 0 ? [make("section", {}, make("h2", {}, "Go to"), ...[...operands].map(([to, place]) => make("p", {}, make("a", { href: link({ name: to, at: place }) }, make("code", {}, to)))))] : []),
    );
  }

  return {
    element,
    numbers,
    update() {
      if (!glass.run().done) return;
      if (listing) show();
      else load();
    },
    close: chart.close,
    tensor: () => ({ name: name(), at: at() }),
  };
}
