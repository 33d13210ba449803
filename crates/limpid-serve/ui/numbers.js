// The right column: what is known of a token, of a head, of a cell, with where it comes from.
import { whyWord } from "./address.js";
import { anchor, figure, make, on, remark, short, within } from "./dom.js";
import { handsOn, headPart, wordPart } from "./hands.js";
import { SCORES, drawHead, scoreOf } from "./heads.js";
import { aimOf, awaited, expectedAt, surpriseAt } from "./runs.js";
import { piece, spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @param {number} share of 1 */
export function share100(share) {
  const hundred = 100 * share;
  return hundred > 0 && hundred < 0.01
    ? "< 0.01 %"
    : `${hundred >= 99.995 || hundred === 0 ? Math.round(hundred) : hundred.toFixed(hundred < 9.995 ? 2 : 1)} %`;
}

/**
 * Names and values, one a line.
 * @param {[Node | string, Node | string | null][]} rows null: left out
 */
export function factList(rows) {
  const list = make("dl", { class: "facts-list" });
  for (const [name, value] of rows) {
    if (value !== null) list.append(make("div", make("dt", name), make("dd", value)));
  }
  return list;
}

/**
 * Rows of a name, a bar and a number.
 * @param {string} caption
 * @param {{name: Node | string, value: number, text: string, chosen?: boolean, link?: string}[]} rows
 * @param {number} [most] what fills the bar
 */
export function barTable(caption, rows, most = Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-30)) {
  const signs = rows.some(({ value }) => value < 0);
  const body = rows.map(({ name, value, text, chosen, link }) => {
    const bar = signs ? signedBar(value, most) : make("span", { class: "bar" });
    if (!signs) bar.style.width = `${Math.min(100, (100 * value) / most)}%`;
    const label = link ? make("a", { href: link }, name) : name;
    return make(
      "tr", { class: chosen ? "chosen" : null }, make("th", { scope: "row" }, label),
      make("td", { "aria-hidden": "true" }, bar), make("td", text),
    );
  });
  return make("table", { class: "bars" }, make("caption", caption), make("tbody", ...body));
}

/**
 * A bar that begins in the middle: what is below zero goes left. The colour says which part of the model it is, if one
 * is named.
 * @param {number} value
 * @param {number} most what fills a half
 * @param {string} [part]
 */
export function signedBar(value, most, part = "") {
  const kind =
    part === "head" || part === "attention" ? " of-attn" : part === "mlp" || part === "unit" ? " of-mlp" : "";
  const bar = make("span", { class: `bar signed${kind}` });
  const half = Math.min(50, (50 * Math.abs(value)) / most);
  bar.style.width = `${half}%`;
  bar.style.marginLeft = `${value < 0 ? 50 - half : 50}%`;
  return bar;
}

/** What a token is, how likely it was, and what was expected after it. @param {Glass} glass @param {number} q */
export function tokenNumbers(glass, q) {
  const run = glass.run;
  const token = run.tokens[q];
  if (!token) return make("section");
  const box = make("section", { class: "of-token" }, make("h2", "Token ", `${q} `, spelled(token.piece)));
  box.append(handsOn(glass, wordPart(q)));
  const before = expectedAt(run, q);
  const nats = surpriseAt(run, q);
  const p = before?.logprob === null || before?.logprob === undefined ? null : Math.exp(before.logprob);
  const theirs = glass.other ? surpriseAt(/** @type {any} */ (glass.other), q) : null;
  box.append(factList([
    ["id", `${token.id}`],
    ["probability", p === null ? null : share100(p)],
    ["surprise", nats === null ? null : `${figure(nats, 3)} nats`],
    ["minus the other’s", nats === null || theirs === null ? null : `${signed(nats - theirs)} nats`],
    ["rank", before?.rank ? figure(before.rank, 0) : null],
  ]));
  if (before && glass.model.lm_head) {
    const href = glass.link(whyWord(glass.state, q - run.ahead, `${token.id}`));
    box.append(make("p", anchor(href, "Why this token?")));
  }
  const after = run.predictions[q];
  if (after) {
    const next = aimOf(run, q)?.id;
    const rows = after.top.map(([id, text, share]) => ({
      name: spelled(piece(text)), value: share, text: share100(share), chosen: id === next,
      link: glass.link(whyWord(glass.state, q, `${id}`)),
    }));
    box.append(barTable(run.ahead ? "What it expects next" : "What it expects here", rows, 1));
  } else if (!run.trouble) {
    const none = run.done ? "Nothing is predicted here." : awaited(run, "what it expects");
    box.append(remark(glass.model.lm_head ? none : "This model has no unembedding, so it predicts nothing."));
  }
  return box;
}

/** The way of a token's vector through the layers: how long it is. @param {Glass} glass @param {number} q */
export function streamNumbers(glass, q) {
  const { layers } = glass.run;
  const known = layers.filter((layer) => layer);
  if (known.length === 0) return make("section");
  const rows = known.map(({ layer, norms }) => {
    const value = norms["resid_post"]?.[q] ?? 0;
    return {
      name: `layer ${layer}`, value, text: short(value, 4),
      link: glass.link({ v: "table", n: `blocks.${layer}.hook_resid_post`, at: "" }),
    };
  });
  return make(
    "section", { class: "of-stream" },
    barTable("Length of its vector after each layer (root of the sum of squares)", rows),
  );
}

/** A difference, with its sign. @param {number} value */
export function signed(value) {
  const size = short(Math.abs(value), 2);
  return Math.abs(value) < 5e-4 ? "±0" : `${value < 0 ? "−" : "+"}${size}`;
}

/**
 * A head's picture and its scores.
 * @param {Glass} glass @param {number} l @param {number} h @param {HTMLCanvasElement | null} sheet
 */
export function headNumbers(glass, l, h, sheet) {
  const run = glass.run;
  const scores = run.layers[l]?.heads[h];
  const theirs = glass.other?.layers[l]?.heads[h];
  const box = make(
    "section", { class: "of-head" },
    make("h2", make("a", { href: glass.link({ v: "head", l, h }) }, `L${l}H${h}`)), handsOn(glass, headPart(l, h)),
  );
  if (sheet) {
    const picture = make("canvas", {
      width: "256", height: "256", class: "preview", role: "img",
      "aria-label": `Attention of L${l}H${h}: rows look, columns are looked at`,
    });
    const context = picture.getContext("2d");
    if (context) drawHead(context, sheet, run.side, h, { x: 0, y: 0, size: 256 });
    box.append(picture);
  }
  if (scores) {
    box.append(factList(SCORES.map(({ key, name, about }) => {
      const [own, less] = [scoreOf(scores, key), theirs ? scoreOf(theirs, key) : null];
      const text = own === null ? "—" : `${short(own, 3)}${less === null ? "" : ` (${signed(own - less)})`}`;
      return [make("span", { title: about }, name), text];
    })));
  }
  return box;
}

/**
 * A cell of a tensor: its exact number, what the tensor is, and where the number comes from.
 * @param {Glass} glass
 * @param {any} entry of the listing
 * @param {number[]} at
 * @param {string | null} value
 */
export function cellNumbers(glass, entry, at, value) {
  const shape = entry.shape.join(" × ");
  const where = (entry.axes ?? []).map(
    (/** @type {string} */ axis, /** @type {number} */ n) => `${axis} ${at[n] ?? 0}`,
  ).join(", ");
  return make(
    "section", { class: "of-cell" },
    make("h2", make("code", entry.name)),
    make("p", { class: "value" }, value ?? "…"),
    remark(where),
    entry.about ? make("p", entry.about) : "",
    factList([
      ["symbol", entry.symbol || null], ["formula", entry.formula ? make("code", entry.formula) : null],
      ["shape", `${entry.letters ? `${entry.letters} = ` : ""}${shape}`], ["made by", entry.op || null],
      ["the same as", entry.same_as || null],
    ]),
    whyLink(glass, entry.name, at),
  );
}

/** A link to a tensor as a table. @param {Glass} glass @param {string} name @param {string} [at] a place in it */
export const tensorLink = (glass, name, at = "") =>
  anchor(glass.link({ v: "table", n: name, at }), make("code", name));

/**
 * The heads of a table's columns; of one without a name there is none.
 * @param {string[]} words @param {(n: number) => boolean} isNumber
 */
export function headings(words, isNumber = () => false) {
  const cells = words.map((word, n) =>
    (word ? make("th", { scope: "col", class: isNumber(n) ? "number" : null }, word) : make("td")));
  return make("thead", make("tr", ...cells));
}

/** A field for a place on an axis. @param {string} axis @param {number} size @param {(place: number) => void} choose */
export function placeInput(axis, size, choose) {
  const input = make("input", { type: "number", min: "0", max: `${size - 1}`, "aria-label": axis });
  on(input, "change", () => choose(within(Math.trunc(Number(input.value) || 0), 0, size - 1)));
  return input;
}

/** @param {(Node | string)[]} children */
export const numberCell = (...children) => make("td", { class: "number" }, ...children);

/** @param {Node} bar */
export const barCell = (bar) => make("td", { class: "of-bar", "aria-hidden": "true" }, bar);

/** A link to the sum behind a number. @param {Glass} glass @param {string} name @param {number[]} at */
export function whyLink(glass, name, at) {
  return glass.has("why")
    ? make("p", make("a", { href: glass.link({ v: "why", n: name, at: at.join() }) }, "Show the arithmetic"))
    : "";
}
