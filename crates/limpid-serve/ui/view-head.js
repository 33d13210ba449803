// One head: scores before the mask, scores after it, and the weights that come of them, each a picture of its own; beside it,
// what the chosen token looks at, exactly.
import { button, make, short } from "./dom.js";
import { heatMap } from "./heat.js";
import { kindOf } from "./heads.js";
import { barTable, factList, headNumbers, whyLink } from "./numbers.js";
import { awaited } from "./runs.js";
import { spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfHead = { id: "head", title: "One head", about: "Where does one head look, and why there?", open: headView,
  needs: ({ l, h }) => [`tiles/blocks.${l ?? 0}.attn.hook_pattern 0,${h ?? 0} log8`],
};

/** From scores to weights. */
const STAGES = [
  { id: "scores", title: "Scores", tensor: "hook_raw_scores", what: "score: query · key / √d" },
  { id: "mask", title: "Mask", tensor: "hook_attn_scores", what: "score, without what a token may not see" },
  { id: "weights", title: "Weights", tensor: "hook_pattern", what: "attention weight: each row sums to 1" },
];

/** Rows of the list of what is looked at. */
const LISTED = 12;

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function headView(glass) {
  const layer = () => Math.min(glass.state().l ?? 0, glass.run().depth - 1);
  const head = () => Math.min(glass.state().h ?? 0, glass.run().heads - 1);
  const stage = () => STAGES.find(({ id }) => id === glass.state().s) ?? /** @type {typeof STAGES[0]} */ (STAGES[2]);
  const name = (/** @type {string} */ tensor) => `blocks.${layer()}.attn.${tensor}`;
  const title = make("h2", {});
  const stages = make("div", { class: "segments", role: "group", "aria-label": "Stage" }, ...STAGES.map(({ id, title: word }) => button(word, () => glass.go({ s: id }), { "data-stage": id })));
  const turn = (/** @type {"l" | "h"} */ which, /** @type {number} */ by) => {
    const most = which === "l" ? glass.run().depth : glass.run().heads;
    glass.go({ [which]: ((which === "l" ? layer() : head()) + by + most) % most });
  };
  const steps = make(
    "div", { class: "steps", role: "group", "aria-label": "Layer and head" },
    button("‹", () => turn("l", -1), { "aria-label": "Previous layer", title: "Previous layer ([)" }), make("span", {}, "layer"), button("›", () => turn("l", 1), { "aria-label": "Next layer", title: "Next layer (])" }),
    button("‹", () => turn("h", -1), { "aria-label": "Previous head", title: "Previous head ({)" }), make("span", {}, "head"), button("›", () => turn("h", 1), { "aria-label": "Next head", title: "Next head (})" }),
  );
  const look = glass.lookTools("all");
  const soon = make("p", { class: "hint" });
  const numbers = make("div", { class: "stack" });
  const heat = heatMap(glass.heat, {
    label: "Attention: rows look, columns are looked at",
    at: () => [glass.q(), key()],
    choose: (q, k) => glass.go({ q, k }),
    words: (q, k, value) => `${q} ${glass.label(q)} → ${k} ${glass.label(k)}: ${value}${place(q, k)}`,
  });
  const element = make("div", { class: "head" }, make("div", { class: "tools" }, title, steps, stages, look), soon, heat.element);
  /** The rows of the chosen token, exactly, one for each stage. @type {{key: string, rows: number[][]} | null} */
  let known = null;
  let asked = "";

  /** Which of its row a weight is, where that is known. @param {number} q @param {number} k */
  function place(q, k) {
    const rows = known?.key === rowKey() && q === glass.q() ? known.rows : undefined;
    const [seen, row] = [rows?.[1], rows?.[2]];
    const own = row?.[k];
    if (!row || !seen || own === undefined || seen[k] === -Infinity || stage().id !== "weights" || glass.other() || (glass.model.causal && k > q)) return "";
    const rank = row.filter((value) => value > own).length + 1;
    const count = seen.filter((score) => score !== -Infinity).length;
    return `, ${rank === 1 ? "largest" : rank === 2 ? "second largest" : rank === 3 ? "third largest" : `number ${rank}`} of ${count}`;
  }

  /** The token that is looked at: the chosen one, else the one that is looked at most. */
  function key() {
    const row = glass.state().k === null && known?.key === rowKey() ? known.rows[2] : undefined;
    return row ? row.reduce((best, value, n) => (value > (row[best] ?? -Infinity) ? n : best), 0) : glass.k();
  }

  const rowKey = () => `${glass.run().id} ${glass.other()?.id ?? ""} ${layer()} ${head()} ${glass.q()}`;

  async function ask() {
    const wanted = rowKey();
    if (asked === wanted || !glass.run().done) return;
    asked = wanted;
    const at = `0,${head()},${glass.q()},*`;
    try {
      const answers = await Promise.all(STAGES.map(({ tensor }) => glass.tensor(name(tensor), at, glass.other() !== null)));
      if (wanted !== rowKey()) return;
      known = { key: wanted, rows: answers.map(({ values }) => values.map((/** @type {any} */ value) => (typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value))) };
      glass.go({}); // the shades and the list are known now
    } catch {
      asked = ""; // the picture says what is wrong
    }
  }

  function figures() {
    const run = glass.run();
    const [q, k] = [glass.q(), key()];
    const [looks, seen] = [run.tokens[q], run.tokens[k]];
    if (!looks || !seen) return;
    const rows = known?.key === rowKey() ? known.rows : null;
    /** @type {(HTMLElement | string)[]} */
    const parts = [make("h2", {}, spelled(looks.piece), make("span", { class: "dim" }, " looks at "), spelled(seen.piece))];
    if (rows) {
      const [score, masked, weight] = rows.map((row) => row[k]);
      const hidden = masked === -Infinity;
      parts.push(factList([
        ["score", short(score, 6)], ["after the mask", hidden ? "−∞ (hidden)" : short(masked, 6)], ["weight", hidden ? "0" : short(weight, 6)],
      ]));
      parts.push(whyLink(glass, name(stage().tensor), [0, head(), q, k]));
      const weights = (rows[2] ?? []).map((value, n) => ({ value: Number.isFinite(value) ? value : 0, n }));
      const top = [...weights].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, LISTED).filter(({ value }) => value !== 0);
      const list = top.map(({ value, n }) => ({
        name: make("span", {}, make("span", { class: "dim" }, `${n} `), spelled(/** @type {any} */ (run.tokens[n]).piece)), value, text: short(value, 4), chosen: n === k, link: glass.link({ k: n }),
      }));
      const sum = weights.reduce((all, { value }) => all + value, 0);
      const rest = sum - top.reduce((all, { value }) => all + value, 0);
      if (Math.abs(rest) > 5e-5) list.push({ name: make("span", {}, `${weights.filter(({ value }) => value !== 0).length - top.length} others`), value: rest, text: short(rest, 4), chosen: false, link: "" });
      if (list.length === 0) parts.push(make("p", { class: "note" }, "No weight of its row differs."));
      else parts.push(barTable(glass.other() ? "Weights of its row, minus the other’s" : "Weights of its row", list, glass.other() ? undefined : 1), make("p", { class: "sum" }, `sum ${sum.toFixed(4)}`));
    }
    parts.push(headNumbers(glass, layer(), head(), null));
    numbers.replaceChildren(...parts);
  }

  return {
    element,
    numbers,
    update() {
      const run = glass.run();
      const scores = run.layers[layer()]?.heads[head()];
      const kind = scores ? kindOf(scores) : null;
      title.replaceChildren(`Layer ${layer()}, head ${head()}`, ...(kind ? [make("span", { class: "dim" }, ` ${kind.name} ${kind.value.toFixed(2)}`)] : []));
      for (const one of stages.querySelectorAll("button")) one.setAttribute("aria-pressed", `${one.dataset["stage"] === stage().id}`);
      const weights = stage().id === "weights";
      const { palette, spread } = glass.look();
      const less = glass.other() !== null;
      const count = run.tokens.length;
      element.dataset["stage"] = stage().id;
      look.hidden = !weights || less;
      const ready = run.done && (!less || glass.other()?.done === true);
      soon.textContent = awaited(run, "the picture");
      soon.hidden = ready || run.trouble !== null;
      heat.element.hidden = !ready;
      if (ready) {
        heat.show({
          name: name(stage().tensor), index: [0, head()], rows: count, cols: count,
          code: weights && !less ? "log8" : less ? "slog8" : "lin8", pool: weights && !less ? "max" : "absmax",
          palette: weights && !less ? palette : "diverging", spread: weights ? spread : "linear", signed: !weights || less,
          causal: glass.model.causal && stage().id !== "scores", what: `${less ? "difference of the " : ""}${stage().what}`,
          axes: ["looks", "is looked at"], rowLabel: glass.label, colLabel: glass.label,
        });
        ask();
      }
      figures();
    },
    close: heat.close,
    shade() {
      const row = known?.key === rowKey() ? known.rows[2] : undefined;
      if (!row) return null;
      const most = Math.max(...row.map((value) => (Number.isFinite(value) ? Math.abs(value) : 0)), 1e-30);
      const shades = row.map((value, n) => (glass.model.causal && n > glass.q() ? null : Math.sqrt(Math.abs(Number.isFinite(value) ? value : 0) / most)));
      return { shades, kind: "weight", words: `Shade: how much ${glass.other() ? "more or less " : ""}token ${glass.q()} looks at each, up to ${most < 1e-9 ? 0 : short(most, 3)}` };
    },
    tensor: () => ({ name: name(stage().tensor), at: [0, head(), glass.q(), key()] }),
    keys: { m: () => glass.go({ s: STAGES[(STAGES.indexOf(stage()) + 1) % 3]?.id ?? "weights" }), p: heat.pin },
  };
}
