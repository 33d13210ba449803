// All heads beside each other: as pictures, or coloured by a score; by layer, or the most telling first.
import { emptyCanvas, inks, make, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { SCORES, drawHead, followHeads, headSheets, rowHeight, kindOf, scoreOf, weightScale } from "./heads.js";
import { headNumbers } from "./numbers.js";
import { legendOf, palette, placeOf } from "./colours.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfHeads = { id: "heads", title: "All heads", about: "What does each head look at?", open: headsView };

/** The height of the word below a head. */
const WORD = 13;

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function headsView(glass) {
  const sheetOf = headSheets();
  const canvas = make("canvas", { "aria-hidden": "true" });
  const frame = make("div", { class: "mosaic" });
  const legend = make("div", { class: "legend-of" });
  const numbers = make("div", { class: "stack" });
  const line = make("p", { class: "cell-line" });
  const words = [{ key: "pattern", name: "attention" }, ...SCORES];
  const colour = make("select", { "aria-label": "Coloured by" }, ...words.map(({ key, name }) => make("option", { value: key }, name)));
  const order = make("select", { "aria-label": "Order" }, make("option", { value: "layer" }, "layer"), ...SCORES.map(({ key, name }) => make("option", { value: key }, name)));
  colour.addEventListener("change", () => glass.go({ m: colour.value }));
  order.addEventListener("change", () => glass.go({ o: order.value }));
  const tools = make("div", { class: "tools" }, make("label", {}, "Colour ", colour), make("label", {}, "Order ", order), glass.lookTools("all"));
  const element = make("div", { class: "heads" }, tools, frame, line, legend);
  const size = { pitch: 0, thumb: 0, row: 0, left: 34, top: 20, columns: 1 };
  /** @type {{l: number, h: number} | null} */
  let hovered = null;

  /** The heads in their order: rows of a grid. @returns {{l: number, h: number}[]} */
  function heads() {
    const run = glass.run();
    const all = Array.from({ length: run.depth * run.heads }, (_, n) => ({ l: Math.floor(n / run.heads), h: n % run.heads }));
    const { o } = glass.state();
    if (o === "layer") return all;
    const score = (/** @type {{l: number, h: number}} */ { l, h }) => {
      const scores = run.layers[l]?.heads[h];
      return (scores && scoreOf(scores, o)) ?? -Infinity;
    };
    return all.sort((a, b) => score(b) - score(a));
  }
  const chosen = () => ({ l: Math.min(glass.state().l ?? 0, glass.run().depth - 1), h: Math.min(glass.state().h ?? 0, glass.run().heads - 1) });
  /** @returns {[number, number]} */
  const place = () => {
    const { l, h } = chosen();
    const at = Math.max(0, heads().findIndex((one) => one.l === l && one.h === h));
    return [Math.floor(at / size.columns), at % size.columns];
  };
  const grid = liveGrid({
    label: "Heads", size: () => [Math.ceil(heads().length / size.columns), size.columns], at: place,
    move: (r, c) => glass.go(heads()[Math.min(heads().length - 1, r * size.columns + c)] ?? {}),
    open: () => glass.go({ v: "head", ...chosen() }, "new"),
    words: (r, c) => sentence(heads()[r * size.columns + c] ?? { l: 0, h: 0 }),
  });
  frame.append(canvas, grid.element);

  /** @param {{l: number, h: number}} head */
  function sentence({ l, h }) {
    const scores = glass.run().layers[l]?.heads[h];
    if (!scores) return `layer ${l}, head ${h}`;
    const { m } = glass.state();
    const kind = kindOf(scores);
    const shown = SCORES.find(({ key }) => key === m);
    const value = shown ? scoreOf(scores, m) : null;
    return `layer ${l}, head ${h}: ${kind ? `${kind.name} ${short(kind.value, 3)}` : "mixed"}${shown ? `, ${shown.name} ${value === null ? "undefined here" : short(value, 4)}` : ""}, largest weight ${short(scores.max, 4)}`;
  }

  function layout() {
    const run = glass.run();
    const wide = frame.clientWidth;
    if (!wide || !run.heads) return;
    const high = rowHeight(frame, run.depth, 110);
    size.columns = run.heads;
    // all rows in sight, with a word below each head where there is room for one
    size.pitch = Math.min((wide - size.left) / run.heads, Math.max(1.35 * high - WORD, 44), 260);
    size.thumb = Math.max(6, size.pitch - (size.pitch > 30 ? 6 : 2));
    size.row = size.pitch + (size.thumb > 34 ? WORD : 0);
    sizeCanvas(canvas, wide, size.top + size.row * run.depth + 2);
    draw();
  }

  /** @param {string} m */
  function scaleOf(m) {
    if (m === "pattern") return glass.other() ? { spread: "root", low: -1, high: 1, signed: true } : weightScale(glass.look().spread);
    const far = m === "distance" ? Math.max(1, ...glass.run().layers.flatMap((layer) => (layer?.heads ?? []).map(({ distance }) => distance ?? 0))) : 1;
    return { spread: "linear", low: glass.other() ? -far : 0, high: far, signed: glass.other() !== null };
  }

  function draw() {
    const run = glass.run();
    const context = size.thumb ? emptyCanvas(canvas) : null;
    if (!context) return;
    const ink = inks(frame);
    const { m, o } = glass.state();
    const look = glass.look();
    const colours = palette(glass.other() ? "diverging" : look.palette, look.dark);
    const scale = scaleOf(m);
    const all = heads();
    if (o === "layer") {
      context.fillStyle = ink("dim");
      context.textAlign = "left";
      context.fillText("layer", 0, 8);
    }
    all.forEach(({ l, h }, n) => {
      const [r, c] = [Math.floor(n / size.columns), n % size.columns];
      const [x, y] = [size.left + c * size.pitch, size.top + r * size.row];
      context.fillStyle = ink("dim");
      if (c === 0 && o === "layer") {
        context.textAlign = "right";
        context.fillText(`${l}`, size.left - 10, y + size.thumb / 2);
      }
      context.textAlign = "center";
      if (r === 0 && o === "layer" && (size.pitch >= 18 || h % 5 === 0)) context.fillText(h === 0 && size.pitch > 44 ? "head 0" : `${h}`, x + size.thumb / 2, 8);
      context.fillStyle = ink("panel");
      context.fillRect(x, y, size.thumb, size.thumb);
      const layer = run.layers[l];
      const scores = layer?.heads[h];
      let value = scores ? scoreOf(scores, m) : null;
      const theirs = glass.other()?.layers[l]?.heads[h];
      if (theirs && value !== null) value -= scoreOf(theirs, m) ?? 0;
      if (m === "pattern") {
        const sheet = layer && sheetOf(run, glass.other(), l, look);
        if (sheet) drawHead(context, sheet, run.side, h, { x, y, size: size.thumb });
      } else if (value !== null) {
        const at = 3 * Math.round(255 * placeOf(value, scale));
        const [red = 0, green = 0, blue = 0] = colours.subarray(at, at + 3);
        context.fillStyle = `rgb(${red} ${green} ${blue})`;
        context.fillRect(x, y, size.thumb, size.thumb);
        if (size.thumb > 26) {
          context.fillStyle = 0.3 * red + 0.59 * green + 0.11 * blue > 130 ? "#10141a" : "#fff";
          context.fillText((Math.abs(value) < 9.95 ? value.toFixed(2) : short(value, 2)).replace("-", "−").replace(/^(−?)0\./, "$1."), x + size.thumb / 2, y + size.thumb / 2);
        }
      }
      context.strokeStyle = ink(hovered?.l === l && hovered.h === h ? "accent" : "line");
      context.strokeRect(x - 0.5, y - 0.5, size.thumb + 1, size.thumb + 1);
      if (size.thumb > 34) {
        const kind = scores && kindOf(scores);
        const text = o === "layer" ? (kind && kind.key !== "entropy" ? kind.name : "") : size.thumb < 46 ? `${l}.${h}` : `L${l}H${h}`;
        context.fillStyle = ink("dim");
        context.textAlign = "left";
        context.fillText(text, x, y + size.thumb + 9);
      }
    });
    const [r, c] = place();
    grid.put({ left: size.left + c * size.pitch - 2, top: size.top + r * size.row - 2, width: size.thumb + 4, height: size.thumb + 4 });
    const about = words.find(({ key }) => key === m)?.name ?? m;
    const pooled = m === "pattern" && run.side < run.tokens.length ? `; each cell is the largest of ${short(run.tokens.length / run.side, 3)} × ${short(run.tokens.length / run.side, 3)}` : "";
    legend.replaceChildren(legendOf(colours, scale, `${m === "pattern" ? "attention weight: rows look, columns are looked at" : about}${pooled}`, { masked: m === "pattern" && glass.model.causal }));
  }

  /** @param {MouseEvent} event */
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const [r, c] = [Math.floor((event.clientY - box.top - size.top) / size.row), Math.floor((event.clientX - box.left - size.left) / size.pitch)];
    return r >= 0 && c >= 0 && c < size.columns ? (heads()[r * size.columns + c] ?? null) : null;
  }
  function tell() {
    const head = hovered ?? chosen();
    line.textContent = sentence(head);
    numbers.replaceChildren(headNumbers(glass, head.l, head.h, sheetOf(glass.run(), glass.other(), head.l, glass.look())));
  }
  followHeads(frame, under, (head) => {
    hovered = head;
    draw();
    tell();
  });
  frame.addEventListener("click", (event) => {
    const head = under(event);
    if (!head) return;
    const { l, h } = glass.state();
    if (hovered || (l === head.l && h === head.h)) glass.go({ v: "head", ...head }, "new");
    else glass.go(head);
  });
  const watcher = new ResizeObserver(layout);
  watcher.observe(frame);

  return {
    element,
    numbers,
    update() {
      const { m, o } = glass.state();
      [colour.value, order.value] = [m, o];
      if (!size.thumb) layout();
      draw();
      tell();
      if (document.activeElement === grid.cell) grid.tell();
    },
    close: () => watcher.disconnect(),
    tensor: () => ({ name: `blocks.${chosen().l}.attn.hook_pattern`, at: [0, chosen().h, glass.q(), glass.k()] }),
  };
}
