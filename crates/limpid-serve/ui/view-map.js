// The map: what the model does with the prompt, in one screen. Rows are layers: what each head looks at, how much attention
// and MLP write, and how long each token's vector is after it.
import { whyWord } from "./address.js";
import { emptyCanvas, inks, make, plural, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { drawHead, followHeads, headSheets, noHabit, rowHeight, kindOf, weightScale } from "./heads.js";
import { legendOf, palette } from "./colours.js";
import { headNumbers, share100, signed, streamNumbers, tokenNumbers } from "./numbers.js";
import { surpriseAt } from "./runs.js";
import { piece, spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfMap = { id: "map", title: "Map", about: "What does the model do with this text?", open: mapView };

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function mapView(glass) {
  const sheetOf = headSheets();
  const canvas = make("canvas", { "aria-hidden": "true" });
  const frame = make("div", { class: "ladder" });
  const reading = make("div", { class: "reading" });
  const [above, below] = [make("p", { class: "flow" }), make("p", { class: "flow" })];
  const numbers = make("div", { class: "stack" });
  const legend = make("div", { class: "legend-of" });
  const element = make("div", { class: "map" }, reading, above, frame, legend, below);
  /** @type {{l: number, h: number} | null} */
  let hovered = null;
  let told = "";
  const size = { thumb: 0, pitch: 0, row: 0, left: 40, top: 20, strip: 0, stripAt: 0 };
  const chosen = () => /** @type {[number, number]} */ ([Math.min(glass.state().l ?? 0, glass.run().depth - 1), Math.min(glass.state().h ?? 0, glass.run().heads - 1)]);

  const grid = liveGrid({
    label: "Heads: rows are layers", size: () => [glass.run().depth, glass.run().heads], at: chosen,
    move: (l, h) => glass.go({ l, h }),
    open: () => glass.go({ v: "head", l: chosen()[0], h: chosen()[1] }, "new"),
    words: (l, h) => headInWords(glass, l, h),
  });
  frame.append(canvas, grid.element);

  function layout() {
    const { depth, heads } = glass.run();
    const wide = frame.clientWidth;
    if (!wide || !heads) return;
    const strip = wide > 520 ? Math.max(200, wide * 0.3) : 0;
    // all layers in sight, where that leaves room to see something
    const high = rowHeight(frame, depth, 110) - 14;
    size.pitch = Math.min((wide - size.left - strip) / heads, Math.max(high, depth > 6 ? 34 : 60), 150);
    size.thumb = Math.max(6, size.pitch - (size.pitch > 30 ? 5 : 2));
    size.row = size.pitch + (size.thumb > 34 ? 14 : 0);
    size.stripAt = size.left + size.pitch * heads + 18;
    size.strip = strip ? Math.min(wide - size.stripAt - 2, 560) : 0;
    sizeCanvas(canvas, wide, size.top + size.row * depth + 2);
    draw();
  }

  function draw() {
    const run = glass.run();
    const context = size.thumb ? emptyCanvas(canvas) : null;
    if (!context) return;
    const ink = inks(frame);
    context.fillStyle = ink("dim");
    context.fillText("layer", 0, 8);
    for (let h = 0; h < run.heads; h++) {
      if (size.pitch < 18 && h % 5) continue;
      context.textAlign = "center";
      context.fillText(h === 0 && size.pitch > 44 ? "head 0" : `${h}`, size.left + h * size.pitch + size.thumb / 2, 8);
    }
    context.textAlign = "left";
    const [writeAt, writeWide] = [size.stripAt, WRITES - 16];
    const normAt = size.stripAt + WRITES;
    const normWide = size.strip - WRITES;
    // the first token's vector is often far longer than the others: they set the measure
    const others = glass.other()?.layers;
    const longest = run.layers.reduce((most, layer, n) => {
      const [own, theirs] = [layer?.norms["resid_post"] ?? [], others?.[n]?.norms["resid_post"]];
      return own.reduce((most, norm, t) => (t === 0 && own.length > 1 ? most : Math.max(most, theirs ? Math.abs(norm - (theirs[t] ?? norm)) : norm)), most);
    }, 1e-30);
    if (size.strip) {
      for (const [n, word] of ["attn", "mlp"].entries()) {
        context.fillStyle = ink(n ? "mlp" : "accent");
        context.fillRect(writeAt + 38 * n, 5, 7, 7);
        context.fillStyle = ink("dim");
        context.fillText(word, writeAt + 38 * n + 10, 8);
      }
      context.fillText(`${size.strip > 320 && !others ? "length of each token’s vector" : "length"}, ${others ? "±" : "0 to "}${short(longest, 3)}`, normAt, 8);
    }
    const look = glass.look();
    const scale = others ? { spread: "root", low: -1, high: 1, signed: true } : weightScale(look.spread);
    legend.replaceChildren(legendOf(palette(others ? "diverging" : look.palette, look.dark), scale, `${others ? "difference of weights" : "weight"}: rows look, columns are looked at${size.strip ? ". attn, mlp: length of what is written as a share of the stream’s; a full bar is 1 or more" : ""}`));
    const [l, h] = chosen();
    for (let n = 0; n < run.depth; n++) {
      const y = size.top + n * size.row;
      context.fillStyle = ink("dim");
      context.textAlign = "right";
      context.fillText(`${n}`, size.left - 12, y + size.thumb / 2);
      context.textAlign = "left";
      const layer = run.layers[n];
      const sheet = layer && sheetOf(run, glass.other(), n, look);
      for (let head = 0; head < run.heads; head++) {
        const x = size.left + head * size.pitch;
        context.fillStyle = ink("panel");
        context.fillRect(x, y, size.thumb, size.thumb);
        if (sheet) drawHead(context, sheet, run.side, head, { x, y, size: size.thumb });
        context.strokeStyle = ink("line");
        context.strokeRect(x - 0.5, y - 0.5, size.thumb + 1, size.thumb + 1);
        const scores = layer?.heads[head];
        const kind = scores && size.thumb > 34 ? kindOf(scores) : null;
        if (kind && kind.key !== "entropy") {
          context.fillStyle = ink("dim");
          context.save();
          context.font = context.font.replace("11px", "10px");
          context.fillText(`${kind.name}${size.thumb > 74 ? ` ${kind.value.toFixed(2).replace(/^0/, "")}` : ""}`, x, y + size.thumb + 9);
          context.restore();
        }
        if (hovered?.l === n && hovered.h === head) {
          context.strokeStyle = ink("accent");
          context.strokeRect(x - 1.5, y - 1.5, size.thumb + 3, size.thumb + 3);
        }
      }
      if (layer && size.strip) {
        writes(context, ink, layer.norms, { x: writeAt, y, wide: writeWide });
        const [own, theirs] = [layer.norms["resid_post"] ?? [], glass.other()?.layers[n]?.norms["resid_post"]];
        strip(context, ink, theirs ? own.map((norm, t) => norm - (theirs[t] ?? norm)) : own, { x: normAt, y, wide: normWide, most: longest, less: theirs !== undefined });
      }
    }
    grid.put({ left: size.left + h * size.pitch - 2, top: size.top + l * size.row - 2, width: size.thumb + 4, height: size.thumb + 4 });
  }

  /**
   * How much attention and MLP add, beside what was there.
   * @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {Record<string, number[]>} norms
   * @param {{x: number, y: number, wide: number}} place
   */
  function writes(context, ink, norms, { x, y, wide }) {
    const pairs = [["attn_out", "resid_pre"], ["mlp_out", "resid_mid"]];
    pairs.forEach(([part = "", whole = ""], n) => {
      // beside attention, the feed-forward network reads what the block does
      const share = ratio(norms[part], norms[whole] ?? norms["resid_pre"]);
      const [thick, at] = [Math.min(7, size.thumb / 4), y + (size.thumb * (n + 0.5)) / 2];
      context.fillStyle = ink("line");
      context.fillRect(x, at - thick / 2, wide, thick);
      context.fillStyle = ink(n ? "mlp" : "accent");
      context.fillRect(x, at - thick / 2, wide * Math.min(1, share), thick);
    });
  }

  /**
   * A bar for each token; of differences, up and down from the middle.
   * @param {CanvasRenderingContext2D} context @param {(name: string) => string} ink @param {number[]} norms
   * @param {{x: number, y: number, wide: number, most: number, less: boolean}} place
   */
  function strip(context, ink, norms, { x, y, wide, most, less }) {
    const each = barWidth(wide, norms.length);
    const q = glass.q();
    const gap = each > 5 ? 1 : 0;
    norms.forEach((norm, n) => {
      const high = Math.max(1, (size.thumb / (less ? 2 : 1)) * Math.min(1, Math.abs(norm) / most));
      const foot = y + size.thumb / (less ? 2 : 1);
      context.fillStyle = ink(n === q ? "accent" : "bar");
      context.fillRect(x + n * each, less && norm < 0 ? foot : foot - high, Math.max(each - gap, n === q ? 2 : 0.5), high);
    });
    context.fillStyle = ink("line");
    context.fillRect(x, y + size.thumb / (less ? 2 : 1), each * norms.length, 1);
  }

  /** @param {PointerEvent | MouseEvent} event */
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - size.left, event.clientY - box.top - size.top];
    const [l, h] = [Math.floor(y / size.row), Math.floor(x / size.pitch)];
    const run = glass.run();
    if (l < 0 || l >= run.depth) return null;
    if (h >= 0 && h < run.heads) return { l, h };
    const at = Math.floor((x + size.left - size.stripAt - WRITES) / barWidth(size.strip - WRITES, run.tokens.length));
    return size.strip && at >= 0 && at < run.tokens.length ? { l, q: at } : null;
  }
  /** @param {PointerEvent} event */
  function headUnder(event) {
    const at = under(event);
    return at && "h" in at ? { l: at.l, h: at.h ?? 0 } : null;
  }
  followHeads(frame, headUnder, (head) => {
    hovered = head;
    draw();
    figures();
  });
  frame.addEventListener("pointermove", (event) => frame.classList.toggle("can", under(event) !== null));
  frame.addEventListener("click", (event) => {
    const at = under(event);
    if (!at) return;
    if ("q" in at) return glass.go({ q: at.q ?? 0 });
    // a first tap tells, a second opens; a mouse has told already
    const again = glass.state().l === at.l && glass.state().h === at.h;
    if (again || hovered) return glass.go({ v: "head", l: at.l, h: at.h ?? 0 }, "new");
    glass.go({ l: at.l, h: at.h ?? 0 });
  });
  const watcher = new ResizeObserver(layout);
  watcher.observe(frame);

  function figures() {
    const { l, h } = glass.state();
    const head = hovered ?? (l !== null && h !== null ? { l: chosen()[0], h: chosen()[1] } : null);
    const sheet = head && sheetOf(glass.run(), glass.other(), head.l, glass.look());
    const parts = head && glass.run().layers[head.l] ? [headNumbers(glass, head.l, head.h, sheet ?? null)] : [];
    numbers.replaceChildren(...parts, tokenNumbers(glass, glass.q()), streamNumbers(glass, glass.q()));
  }

  return {
    element,
    numbers,
    update() {
      const run = glass.run();
      const now = `${run.id} ${glass.q()} ${run.layers.length} ${run.predictions.length} ${run.done} ${glass.other()?.done}`;
      if (now !== told) {
        told = now;
        reading.replaceChildren(...sentences(glass));
        flow(glass, above, below);
        if (!size.thumb || run.layers.length < 2) layout();
      }
      draw();
      figures();
      if (document.activeElement === grid.cell) grid.tell();
    },
    close: () => watcher.disconnect(),
    tensor: () => ({ name: `blocks.${chosen()[0]}.attn.hook_pattern`, at: [0, chosen()[1], glass.q(), glass.k()] }),
  };
}

/** Room for what a layer writes. */
const WRITES = 86;

/** @param {number} wide @param {number} count */
const barWidth = (wide, count) => Math.min(40, wide / count);

/** @param {number[] | undefined} part @param {number[] | undefined} whole @returns {number} the mean of their ratios */
function ratio(part = [], whole = []) {
  return part.reduce((sum, norm, n) => sum + norm / (whole[n] || Infinity), 0) / Math.max(1, part.length);
}

/** @param {Glass} glass @param {number} l @param {number} h */
function headInWords(glass, l, h) {
  const scores = glass.run().layers[l]?.heads[h];
  if (!scores) return `layer ${l}, head ${h}: not there yet`;
  const kind = kindOf(scores);
  const even = scores.entropy === null ? "" : `, evenness ${short(scores.entropy, 2)}`;
  return `layer ${l}, head ${h}: ${kind ? `${kind.name} ${short(kind.value, 2)}` : "mixed"}${even}`;
}

/** What a head of a kind looks at. @type {Record<string, string>} */
const AT = { previous: "the token before", self: "the token itself", first: "the first token", duplicate: "earlier tokens that are the same", induction: "what followed an earlier token that is the same" };

/** What there is to say of the run. @param {Glass} glass */
function sentences(glass) {
  const run = glass.run();
  const parts = [];
  const q = glass.q();
  const next = run.predictions[q]?.top[0];
  const token = run.tokens[q];
  if (next && token) {
    const line = make("p", { class: "lead" }, run.ahead ? "After " : "In place of ", spelled(token.piece), " it expects ", make("a", { class: "likeliest", href: glass.link(whyWord(glass.state(), q, `${next[0]}`)) }, make("strong", {}, spelled(piece(next[1])))), make("span", { class: "dim" }, ` ${share100(next[2])}`));
    (run.predictions[q]?.top ?? []).slice(1, 4).forEach(([id, text, p]) => line.append("  ", make("span", { class: "dim whole" }, make("a", { href: glass.link(whyWord(glass.state(), q, `${id}`)) }, spelled(piece(text))), ` ${share100(p)}`)));
    line.append(make("span", { class: "dim" }, "  Click a word to see why."));
    parts.push(line);
  }
  const worst = run.tokens.map((_, n) => ({ n, nats: surpriseAt(run, n) ?? -1 })).reduce((a, b) => (b.nats > a.nats ? b : a), { n: -1, nats: -1 });
  const facts = make("p", {});
  if (run.loss !== null && worst.n >= 0) {
    const least = run.tokens[worst.n];
    facts.append(`${short(run.loss, 3)} nats a token, perplexity ${short(Math.exp(run.loss), 3)}; least expected: `);
    if (least) facts.append(make("a", { href: glass.link({ q: worst.n }) }, spelled(least.piece)), ` (${short(worst.nats, 3)} nats).`);
  }
  const other = glass.other();
  if (other) {
    const most = run.tokens.map((_, n) => ({ n, by: (surpriseAt(run, n) ?? 0) - (surpriseAt(other, n) ?? 0) })).reduce((a, b) => (Math.abs(b.by) > Math.abs(a.by) ? b : a), { n: 0, by: 0 });
    const own = run.tokens[most.n];
    if (own && most.by !== 0) facts.append(" Surprise differs most at ", make("a", { href: glass.link({ q: most.n }) }, spelled(own.piece)), ` (${signed(most.by)} nats).`);
  }
  const found = run.layers.flatMap((layer, l) => (layer?.heads ?? []).map((scores, h) => ({ l, h, kind: kindOf(scores) })));
  /** By what they look at, and whether most of the weight is there. @type {Map<string, {l: number, h: number, value: number}[]>} */
  const kinds = new Map();
  for (const { l, h, kind } of found) {
    if (!kind || kind.key === "entropy") continue;
    const habit = `${kind.value > 0.5 ? "mostly" : "partly"} at ${AT[kind.name] ?? kind.name}`;
    kinds.set(habit, [...(kinds.get(habit) ?? []), { l, h, value: kind.value }]);
  }
  const listed = [...kinds].map(([habit, heads]) => {
    const best = heads.sort((a, b) => b.value - a.value).slice(0, 3);
    const links = best.flatMap(({ l, h }, n) => [n ? ", " : "", make("a", { href: glass.link({ v: "head", l, h }) }, `L${l}H${h}`)]);
    return make("span", {}, `${plural(heads.length, "head")} ${heads.length === 1 ? "looks" : "look"} ${habit} (`, ...links, heads.length > 3 ? ", …" : "", ")");
  });
  if (facts.hasChildNodes()) parts.push(facts);
  const looks = make("p", {});
  listed.forEach((span, n) => looks.append(n ? "; " : "", span));
  if (listed.length > 0) looks.append(".");
  else if (run.done && run.tokens.length > 1) looks.append(noHabit(run));
  if (looks.hasChildNodes()) parts.push(looks);
  return parts;
}

/**
 * What comes before and after the layers, with links to the tensors.
 * @param {Glass} glass @param {HTMLElement} above @param {HTMLElement} below
 */
function flow(glass, above, below) {
  const { d_model: width, vocab_size: vocabulary, final_norm: norm, lm_head: head } = glass.model;
  const { tokens: { length }, depth } = glass.run();
  const to = (/** @type {string} */ name, /** @type {string} */ size) => make("a", { href: glass.link({ v: "table", n: name, at: "" }) }, make("code", {}, name), make("span", { class: "dim" }, ` ${size}`));
  const by = (/** @type {number} */ n) => `${length} × ${n}`;
  above.replaceChildren(plural(length, "token"), " → ", to("hook_embed", by(width)), " + position → ", to("blocks.0.hook_resid_pre", by(width)));
  below.replaceChildren(to(`blocks.${depth - 1}.hook_resid_post`, by(width)), ...(norm ? [" → ", to("ln_final.hook_out", by(width))] : []), ...(head ? [" → ", to("logits", by(vocabulary))] : []));
}
