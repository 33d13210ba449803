// Positions and embeddings: what the model adds to tell places apart, as a picture and as curves, and how alike tokens are to
// it, before the layers and after any of them.
import { emptyCanvas, inks, make, short, sizeCanvas } from "./dom.js";
import { loader, troubleNote } from "./answer.js";
import { heatMap } from "./heat.js";
import { factList, whyLink } from "./numbers.js";
import { asTrouble } from "./source.js";
import { spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfEmbed = { id: "embed", title: "Embeddings", about: "How does the model tell positions apart, and which tokens are similar to it?", open: embedView };

/** Dashes of curves, so that they can be told without colours. */
const DASHES = [[], [7, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2]];

/** The height of the chart of curves. */
const TALL = 210;

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function embedView(glass) {
  const positions = make("button", { type: "button" }, "Positions");
  const likeness = make("button", { type: "button" }, "Likeness");
  const which = make("select", { "aria-label": "Of which vectors" });
  const look = glass.lookTools("sequential");
  const tools = make("div", { class: "tools" }, make("h2", {}, "…"), make("div", { class: "segments", role: "group", "aria-label": "Picture" }, positions, likeness), which, look);
  const words = make("p", { class: "note" }, "…");
  const notice = make("div", {});
  const heat = heatMap(glass.heat, {
    label: "Rows are positions", at: () => (onPlaces() ? [place(), dimension()] : [glass.q(), glass.k()]),
    choose: (row, col) => glass.go(onPlaces() ? { q: row, more: { ...glass.state().more, d: `${col}` } } : { q: row, k: col }),
    words: (row, col, value) => (onPlaces() ? `position ${row}, dimension ${col}: ${value}` : `${row} ${glass.label(row)} and ${col} ${glass.label(col)}: cosine ${value}`),
  });
  const canvas = make("canvas", { role: "img", "aria-label": "Curves are loading" });
  const chart = make("div", { class: "chart" }, canvas);
  const field = make("input", { type: "text", inputmode: "numeric", size: "14", "aria-label": "Dimensions of the curves" });
  const curves = make("section", { class: "curves" }, make("div", { class: "tools" }, make("label", {}, "Curves of dimensions ", field)), chart);
  const numbers = make("div", { class: "stack" });
  const element = make("div", { class: "embed" }, tools, words, notice, heat.element, curves);
  /** @type {any[]} */
  let listing = [];
  let asked = "";
  /** The numbers of the curves. @type {{key: string, lines: {dimension: number, values: number[]}[]} | null} */
  let known = null;

  /** The tensor of the positions: a table that was learned is longer than the text. */
  const table = () => (glass.model.saved ? ["hook_pos_embed"] : ["pos_embed.weight", "hook_pos_embed"]).map((name) => listing.find((one) => one.name === name)).find((one) => one);
  const onPlaces = () => glass.state().s !== "likeness" && table() !== undefined;
  const place = () => Math.min(glass.q(), (table()?.shape.at(-2) ?? 1) - 1);
  const dimension = () => Math.min(dimensions()[0] ?? 0, width() - 1);
  const width = () => table()?.shape.at(-1) ?? 1;
  /** Vectors that can be compared: a row for each token of the prompt. */
  const vectors = () => listing.filter(({ name, axes, same_as: same }) => /^batch,pos,d_(model|embed)$/.test(axes?.join() ?? "") && !same && (/^hook_/.test(name) || /hook_resid_(mid|post)$/.test(name)));
  const chosen = () => vectors().find(({ name }) => name === glass.state().more["of"]) ?? vectors().find(({ name }) => name === "hook_embed") ?? vectors()[0];
  function dimensions() {
    const said = (glass.state().more["d"] ?? "").split(/[\s,;]+/).filter((word) => /^\d+$/.test(word)).map(Number).filter((n) => n < width());
    return said.length > 0 ? [...new Set(said)].slice(0, DASHES.length) : [0, 1, Math.floor(width() / 4), Math.floor(width() / 2)].filter((n, i, all) => n < width() && all.indexOf(n) === i);
  }

  positions.addEventListener("click", () => glass.go({ s: "positions" }));
  likeness.addEventListener("click", () => glass.go({ s: "likeness" }));
  which.addEventListener("change", () => glass.go({ more: { ...glass.state().more, of: which.value } }));
  field.addEventListener("change", () => glass.go({ more: { ...glass.state().more, d: field.value } }));

  const load = loader(notice, glass.listing, ({ tensors, params }) => {
    listing = [...params, ...tensors];
    glass.go({}); // there is a tensor now
  });

  const lead = () => (table()?.shape.length === 3 ? [0] : []);

  async function ask() {
    const own = table();
    const key = `${glass.run().id} ${glass.other()?.id ?? ""} ${own.name} ${dimensions()}`;
    if (key === asked) return;
    asked = key;
    try {
      const answers = await Promise.all(dimensions().map((d) => glass.tensor(own.name, [...lead(), "*", d].join(), glass.other() !== null)));
      if (key !== asked) return;
      known = { key, lines: answers.map(({ values }, n) => ({ dimension: dimensions()[n] ?? 0, values: values.map(Number) })) };
      plot();
    } catch (fault) {
      if (key === asked) chart.replaceChildren(troubleNote(asTrouble(fault), () => {
        asked = "";
        chart.replaceChildren(canvas);
        ask();
      }));
    }
  }

  function plot() {
    const wide = chart.clientWidth;
    const lines = known?.lines ?? [];
    if (!wide || lines.length === 0) return;
    sizeCanvas(canvas, wide, TALL);
    const context = emptyCanvas(canvas);
    if (!context) return;
    const ink = inks(chart);
    const count = lines[0]?.values.length ?? 1;
    const most = Math.max(1e-12, ...lines.flatMap(({ values }) => values.map(Math.abs)));
    const [left, right, foot] = [48, 44, TALL - 22];
    const x = (/** @type {number} */ n) => left + (count > 1 ? (n / (count - 1)) * (wide - left - right) : 0);
    const y = (/** @type {number} */ value) => 8 + ((foot - 8) * (1 - value / most)) / 2;
    for (const value of [-most, 0, most]) {
      context.fillStyle = ink("line");
      context.fillRect(left, y(value), wide - left - right, 1);
      context.fillStyle = ink("dim");
      context.textAlign = "right";
      context.fillText(short(value, 3), left - 6, y(value));
    }
    context.textAlign = "center";
    for (const n of [0, Math.floor((count - 1) / 2), count - 1]) context.fillText(`${n}`, x(n), foot + 12);
    context.fillText("position", x((count - 1) / 4), foot + 12);
    context.fillStyle = ink("edge");
    context.fillRect(x(place()), 8, 1, foot - 8);
    let free = -Infinity;
    lines.map(({ dimension: d, values }, n) => ({ d, values, n, end: y(values.at(-1) ?? 0) })).sort((a, b) => a.end - b.end).forEach(({ d, values, n, end }) => {
      context.strokeStyle = context.fillStyle = ink(n % 2 ? "mlp" : "accent");
      context.globalAlpha = n < 2 ? 1 : 0.75;
      context.lineWidth = 1.6;
      context.setLineDash(DASHES[n] ?? []);
      context.beginPath();
      values.forEach((value, t) => context.lineTo(x(t), y(value)));
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      context.textAlign = "left";
      free = Math.max(end, free + 12);
      context.fillText(`${d}`, x(count - 1) + 8, free);
    });
    canvas.setAttribute("aria-label", `Curves over ${count} positions. ${lines.map(({ dimension: d, values }) => `Dimension ${d}: from ${short(Math.min(...values), 3)} to ${short(Math.max(...values), 3)}, at position ${place()} ${short(values[place()] ?? 0, 4)}`).join(". ")}.`);
  }

  function figures() {
    const run = glass.run();
    if (onPlaces()) {
      const own = table();
      const at = [...lead(), place(), dimension()];
      const lines = (known?.lines ?? []).map(({ dimension: d, values }) => /** @type {[string, string]} */ ([`dimension ${d}`, short(values[place()] ?? NaN, 6)]));
      numbers.replaceChildren(make("section", {}, make("h2", {}, `Position ${place()}`), make("p", { class: "note" }, own.about ?? ""), factList(lines), make("p", {}, make("a", { href: glass.link({ v: "table", n: own.name, at: at.join() }) }, make("code", {}, own.name))), whyLink(glass, own.name, at)));
      return;
    }
    const [q, k] = [run.tokens[glass.q()], run.tokens[glass.k()]];
    const own = chosen();
    if (!q || !k || !own) return numbers.replaceChildren();
    numbers.replaceChildren(make("section", {}, make("h2", {}, spelled(q.piece), make("span", { class: "dim" }, " and "), spelled(k.piece)), make("p", { class: "note" }, "Cosine of the angle between two vectors: 1 if they point the same way, 0 if they have nothing in common, −1 if they are opposed."), make("p", {}, make("a", { href: glass.link({ v: "table", n: `cos(${own.name})`, at: "" }) }, make("code", {}, `cos(${own.name})`)))));
  }

  function show() {
    const [run, less] = [glass.run(), glass.other() !== null];
    const places = onPlaces();
    const own = places ? table() : chosen();
    const heading = /** @type {HTMLElement} */ (tools.firstElementChild);
    positions.setAttribute("aria-pressed", `${places}`);
    likeness.setAttribute("aria-pressed", `${!places}`);
    positions.disabled = table() === undefined;
    positions.title = table() ? "" : "This model adds no vectors for positions";
    which.hidden = places;
    curves.hidden = !places;
    if (!own) return;
    const names = vectors().map(({ name }) => name).join();
    if (which.dataset["names"] !== names) {
      which.dataset["names"] = names;
      which.replaceChildren(...vectors().map(({ name }) => make("option", { value: name }, inPlain(name))));
    }
    which.value = chosen()?.name ?? "";
    heading.textContent = places ? `${own.name === "hook_pos_embed" ? "What is added" : "The table"} for positions` : `How similar tokens are: ${inPlain(own.name)}`;
    words.textContent = places ? `${own.shape.slice(-2).join(" positions × ")} dimensions. ${own.about ?? ""}.` : table() ? "" : "This model adds no vectors for positions: it rotates queries and keys by position, or has no positions.";
    const { pal } = glass.state();
    look.hidden = less || !places;
    heat.show(places ? {
      name: own.name, index: lead(), rows: own.shape.at(-2), cols: own.shape.at(-1), code: less ? "slog8" : "lin8", pool: "absmax", palette: less ? "diverging" : pal || "viridis", spread: "linear",
      signed: true, causal: false, what: less ? "difference of the values" : "value: 0 is in the middle of the palette", axes: ["position", "dimension"], rowLabel: (n) => `${n}`, colLabel: (n) => `${n}`,
    } : {
      name: `cos(${own.name})`, index: [0], rows: run.tokens.length, cols: run.tokens.length, code: less ? "slog8" : "lin8", pool: "absmax", palette: "diverging", spread: "linear",
      signed: true, causal: false, what: less ? "difference of the cosines" : "cosine", axes: ["token", "token"], rowLabel: glass.label, colLabel: glass.label,
    });
    if (places) {
      if (document.activeElement !== field) field.value = dimensions().join(", ");
      ask();
      plot();
    }
    figures();
  }

  const watcher = new ResizeObserver(plot);
  watcher.observe(chart);
  return {
    element,
    numbers,
    update() {
      if (listing.length > 0) show();
      else if (glass.run().done) load();
    },
    close() {
      heat.close();
      watcher.disconnect();
    },
    tensor: () => (onPlaces() ? { name: table().name, at: [...lead(), place(), dimension()] } : chosen() ? { name: `cos(${chosen().name})`, at: [0, glass.q(), glass.k()] } : null),
    keys: { p: heat.pin, m: () => glass.go({ s: onPlaces() ? "likeness" : "positions" }) },
  };
}

/** @param {string} name of a tensor of the stream */
function inPlain(name) {
  const [, layer, part] = /^blocks\.(\d+)\.hook_resid_(\w+)$/.exec(name) ?? [];
  return layer ? `the stream ${part === "mid" ? "inside" : "after"} layer ${layer}` : name === "hook_embed" ? "the tokens’ own vectors" : name === "hook_pos_embed" ? "the positions’ vectors" : name;
}
