// Text and loss: how likely each token was, and where the number of its loss comes from.
import { whyWord } from "./address.js";
import { emptyCanvas, figure, inks, make, plural, short, sizeCanvas } from "./dom.js";
import { liveGrid } from "./grid.js";
import { barTable, factList, share100, streamNumbers } from "./numbers.js";
import { aimOf, awaited, expectedAt, surpriseAt } from "./runs.js";
import { piece, spelled, spoken } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfText = {
  id: "text", title: "Text", about: "How likely was each token?", open: textView,
  missing: (model) => (model.lm_head ? null : "This model has no head for tokens: it is an encoder, and expects no next token. Its attention and its tensors are there."),
};

/** Rows of the list of what was expected. */
const LIKELY = 10;

/** The width of a bar, at most: a short text fills the chart, too. */
const WIDEST = 120;

/** The height of the chart. */
const HIGH = 200;

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function textView(glass) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const frame = make("div", { class: "chart" });
  const summary = make("p", { class: "lead" });
  const line = make("p", { class: "cell-line" });
  const sum = make("div", { class: "sum-of" });
  const columns = make("div", { class: "two" });
  const element = make("div", { class: "text" }, summary, frame, line, sum, columns);
  const numbers = make("div", { class: "stack" });
  const box = { left: 34, wide: 0, each: 1 };
  /** @type {number | null} */
  let hovered = null;
  let [told, shown] = ["", ""];
  let asked = "";
  /** What was expected at the places that were asked for. @type {Map<string, any>} */
  const known = new Map();

  const surprises = () => glass.run().tokens.map((_, n) => {
    const [own, theirs] = [surpriseAt(glass.run(), n), glass.other() ? surpriseAt(/** @type {any} */ (glass.other()), n) : 0];
    return own === null || theirs === null ? null : own - theirs;
  });
  const grid = liveGrid({
    label: "Surprise of each token", size: () => [1, glass.run().tokens.length], at: () => [0, glass.q()],
    move: (_, q) => glass.go({ q }), words: (_, q) => sentence(q),
  });
  frame.append(canvas, grid.element);

  /** @param {number} n */
  const label = (n) => (glass.label(n).length > 11 ? `${glass.label(n).slice(0, 10)}…` : glass.label(n));

  /** @param {number} n */
  function sentence(n) {
    const nats = surprises()[n];
    const run = glass.run();
    const token = run.tokens[n];
    if (!token) return "";
    if (nats === null || nats === undefined) return `token ${n} ${spoken(token.piece)}: ${n < run.ahead ? "nothing comes before it" : run.done ? "no prediction" : awaited(run, "its probability")}`;
    if (glass.other()) return `token ${n} ${spoken(token.piece)}: ${short(nats, 4)} nats ${nats < 0 ? "less" : "more"} than in the other`;
    return `token ${n} ${spoken(token.piece)}: ${figure(nats, 3)} nats, probability ${share100(Math.exp(-nats))}`;
  }

  function layout() {
    const wide = frame.clientWidth;
    if (!wide) return;
    box.wide = wide - box.left - 2;
    box.each = Math.min(WIDEST, box.wide / glass.run().tokens.length);
    const context = canvas.getContext("2d");
    if (context) context.font = `11px ${getComputedStyle(frame).fontFamily}`;
    const longest = glass.run().tokens.reduce((most, _, n) => Math.max(most, context?.measureText(label(n)).width ?? 0), 12);
    const high = HIGH + (box.each >= 11 ? 14 + longest : 24);
    sizeCanvas(canvas, wide, high);
    draw();
  }

  function draw() {
    const values = surprises();
    const context = box.wide && values.length > 0 ? emptyCanvas(canvas) : null;
    if (!context) return;
    const ink = inks(frame);
    const most = Math.max(1, ...values.map((value) => Math.abs(value ?? 0)));
    const least = values.some((value) => (value ?? 0) < 0) ? -most : 0;
    const step = [0.5, 1, 2, 5, 10, 20].find((n) => (most - least) / n <= 6) ?? 50;
    const y = (/** @type {number} */ value) => 10 + (HIGH - 10) * (1 - (value - least) / (most - least));
    for (let value = Math.ceil(least / step) * step; value <= most; value += step) {
      context.fillStyle = ink("line");
      context.fillRect(box.left, y(value), box.wide, 1);
      context.fillStyle = ink("dim");
      context.textAlign = "right";
      context.fillText(short(value, 2), box.left - 6, y(value));
    }
    const gap = box.each > 6 ? 2 : box.each > 3 ? 1 : 0;
    const q = glass.q();
    values.forEach((value, n) => {
      if (value === null) return;
      context.fillStyle = ink(n === q ? "accent" : n === hovered ? "ink" : "bar");
      const [from, to] = [y(Math.max(0, value)), y(Math.min(0, value))];
      context.fillRect(box.left + n * box.each, from, Math.max(0.7, box.each - gap, n === q ? 2 : 0), Math.max(1, to - from));
    });
    const { loss } = glass.run();
    if (loss !== null && !glass.other()) {
      context.setLineDash([4, 3]);
      context.strokeStyle = ink("dim");
      context.beginPath();
      context.moveTo(box.left, y(loss));
      context.lineTo(box.left + Math.min(box.wide, box.each * values.length), y(loss));
      context.stroke();
      context.setLineDash([]);
    }
    const stride = box.each >= 11 ? 1 : [5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * box.each > 40) ?? values.length;
    for (let n = 0; n < values.length; n += stride) {
      const middle = box.left + (n + 0.5) * box.each - (box.each > 6 ? 1 : 0);
      context.fillStyle = ink(n === q ? "accent" : "dim");
      if (stride > 1) {
        context.textAlign = "center";
        context.fillText(`${n}`, middle, HIGH + 14);
        continue;
      }
      context.save();
      context.translate(middle, HIGH + 8);
      context.rotate(-Math.PI / 2);
      context.textAlign = "right";
      context.fillText(label(n), 0, 0);
      context.restore();
    }
    context.fillStyle = ink("dim");
    context.textAlign = "left";
    context.fillText("nats", 0, 4);
    grid.put({ left: box.left + q * box.each - 1, top: 8, width: Math.max(4, box.each), height: HIGH - 6 });
  }

  /** @param {MouseEvent} event */
  function under(event) {
    const n = Math.floor((event.clientX - canvas.getBoundingClientRect().left - box.left) / box.each);
    return n >= 0 && n < glass.run().tokens.length ? n : null;
  }
  frame.addEventListener("pointermove", (event) => {
    const next = event.pointerType === "touch" ? null : under(event);
    if (next === hovered) return;
    hovered = next;
    line.textContent = sentence(hovered ?? glass.q());
    draw();
  });
  frame.addEventListener("pointerleave", () => {
    hovered = null;
    line.textContent = sentence(glass.q());
    draw();
  });
  frame.addEventListener("click", (event) => {
    const q = under(event);
    if (q !== null) glass.go({ q });
  });
  const watcher = new ResizeObserver(layout);
  watcher.observe(frame);

  /** Asks for more of what was expected than came with the run. @param {number} position */
  function likely(position) {
    const key = `${glass.run().id} ${position}`;
    const rows = known.get(key);
    if (rows || position < 0 || !glass.run().done || asked === key) return rows;
    asked = key;
    glass.ask(`predictions?position=${position}&k=${LIKELY}`).then((answer) => {
      known.set(key, answer);
      if (glass.q() === position || glass.q() === position + 1) glass.go({});
    }, () => (asked = "")); // what came with the run is there
    return null;
  }

  /** @param {string} caption @param {number} position @param {number | undefined} chosen */
  function expected(caption, position, chosen) {
    const run = glass.run();
    const row = run.predictions[position];
    if (!row) return null;
    /** @type {[number, string, number][]} */
    const top = likely(position)?.top ?? row.top;
    const rows = top.map(([id, text, p]) => ({ name: spelled(piece(text)), value: p, text: share100(p), chosen: id === chosen, link: glass.link(whyWord(glass.state(), position, `${id}`)) }));
    const own = aimOf(run, position);
    if (chosen !== undefined && own && row.logprob !== null && !top.some(([id]) => id === chosen)) {
      rows.push({ name: spelled(own.piece), value: Math.exp(row.logprob), text: share100(Math.exp(row.logprob)), chosen: true, link: glass.link(whyWord(glass.state(), position, `${own.id}`)) });
    }
    return barTable(caption, rows, 1);
  }

  return {
    element,
    numbers,
    update() {
      const run = glass.run();
      const q = glass.q();
      const now = `${run.id} ${q} ${run.predictions.length} ${run.done} ${glass.other()?.done} ${known.size}`;
      if (!box.wide || run.id !== shown) layout();
      shown = run.id;
      draw();
      if (now === told) return;
      told = now;
      const theirs = glass.other()?.loss;
      summary.replaceChildren(...(run.loss === null ? [run.done ? "Nothing to predict in this text." : "…"] : [
        make("strong", {}, `${short(run.loss, 4)} nats`), ` a token on the average of ${plural(run.counted, "token")}; perplexity ${short(Math.exp(run.loss), 4)}`,
        ...(theirs === null || theirs === undefined ? [] : [`; the other: ${short(theirs, 4)} nats`]),
      ]));
      line.textContent = sentence(q);
      const before = expectedAt(run, q);
      const token = run.tokens[q];
      sum.replaceChildren();
      if (before && before.logprob !== null && token) {
        const logit = before.logit === null ? "" : `= ${short(before.lse, 6)} − ${short(before.logit, 6)} `;
        sum.append(
          make("p", { class: "equation" }, make("span", {}, "−ln p "), make("span", { title: "log of the sum of all exp(logit), minus this token’s logit" }, logit), make("strong", {}, `= ${short(-before.logprob, 6)} nats`)),
          make("p", { class: "note" }, "logsumexp of all logits, minus the logit of this token"),
        );
      }
      const here = token && expected(run.ahead ? `Before token ${q}: what was likely` : `In place of token ${q}: what is likely`, q - run.ahead, token.id);
      const next = run.ahead ? expected(`After token ${q}: what is likely`, q, run.tokens[q + 1]?.id) : null;
      columns.replaceChildren(...[here, next].filter((one) => one instanceof HTMLElement));
      const after = run.predictions[q];
      numbers.replaceChildren(
        make("section", {}, make("h2", {}, "Token ", `${q} `, token ? spelled(token.piece) : ""), factList([
          ["id", token ? `${token.id}` : null],
          ["probability", before?.logprob === null || !before ? null : share100(Math.exp(before.logprob))],
          ["rank", before?.rank ? `${before.rank} of ${figure(glass.model.vocab_size, 0)}` : null],
          [run.ahead ? "entropy before it" : "entropy in its place", before ? `${short(before.entropy, 4)} nats` : null],
          ["entropy after it", after && run.ahead ? `${short(after.entropy, 4)} nats` : null],
        ])),
        streamNumbers(glass, q),
      );
      if (document.activeElement === grid.cell) grid.tell();
    },
    close: () => watcher.disconnect(),
    tensor: () => ({ name: "logits", at: [0, glass.q(), aimOf(glass.run(), glass.q())?.id ?? 0] }),
  };
}
