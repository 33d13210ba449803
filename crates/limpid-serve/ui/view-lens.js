// The lens: what the model would say after each layer if that were its last. Rows are tokens, columns are stages.
import { make, plural, short } from "./dom.js";
import { troubleNote } from "./answer.js";
import { barTable, factList, share100 } from "./numbers.js";
import { awaited, onOneLine } from "./runs.js";
import { asTrouble } from "./source.js";
import { piece, spelled, spoken } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfLens = {
  id: "lens", title: "Lens", about: "What would it say after each layer?", open: lensView,
  missing: (model) => (model.lm_head ? null : "This model has no head for tokens, so no layer can be read as an expectation. Its attention and its tensors are there."),
  needs(state, glass) {
    const count = glass.run().tokens.length;
    const from = Math.floor(Math.min(state.q ?? count - 1, count - 1) / WINDOW) * WINDOW;
    return [`lens?positions=${from}:${Math.min(count, from + WINDOW)}&k=5`];
  },
};

/** Tokens that are asked for at once, and so shown. */
const WINDOW = 32;

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function lensView(glass) {
  const head = make("thead", {});
  const body = make("tbody", {});
  const table = make("table", { role: "grid", class: "lens-table", "aria-label": "The likeliest token after each layer" }, head, body);
  const notice = make("div", {});
  const note = make("p", { class: "note" }, "Reading every layer …");
  const pages = make("p", { class: "note" });
  const line = make("p", { class: "cell-line" });
  const [aim, there] = glass.model.causal ? ["the token that follows", "what follows"] : ["the token that stands there", "what stands there"];
  const legend = make("p", { class: "note" }, `Shade: how likely that token is. Ring: it is ${aim}. Line at the left: from this stage on, the likeliest token stays the same.`);
  const element = make("div", { class: "lens" }, notice, pages, make("div", { class: "wide" }, table), line, legend, note);
  const numbers = make("div", { class: "stack" });
  /** Answers by window. @type {Map<string, {own: any, theirs: any}>} */
  const known = new Map();
  let [asked, laid] = ["", ""];

  const from = () => Math.floor(glass.q() / WINDOW) * WINDOW;
  const to = () => Math.min(glass.run().tokens.length, from() + WINDOW);
  const key = () => `${glass.run().id} ${glass.other()?.done ? glass.other()?.id : ""} ${from()}`;
  const stages = () => /** @type {string[]} */ (known.get(key())?.own.stages ?? []);
  const stage = () => {
    const said = Number(glass.state().more["stage"] ?? NaN);
    return Number.isInteger(said) && said >= 0 && said < stages().length ? said : stages().length - 1;
  };
  const inWords = (/** @type {string} */ name) => (name === "embed" ? "before the layers" : `after layer ${name}`);

  async function ask() {
    const mine = key();
    if (known.has(mine) || asked === mine) return;
    asked = mine;
    const question = `lens?positions=${from()}:${to()}&k=5`;
    try {
      const both = glass.other()?.done && glass.other()?.tokens.length === glass.run().tokens.length;
      const [own, theirs] = await Promise.all([glass.ask(question), both ? glass.askOther(question).catch(() => null) : null]);
      known.set(mine, { own, theirs });
      if (mine !== key()) return;
      notice.replaceChildren();
      glass.go({}); // the shades are known now
    } catch (fault) {
      if (mine !== key()) return;
      notice.replaceChildren(troubleNote(asTrouble(fault), () => {
        asked = "";
        ask();
      }));
    }
  }

  /** @param {number} q @param {number} at */
  const cellAt = (q, at) => known.get(key())?.own.positions[q - from()]?.cells[at];

  /** @param {number} q @param {number} at */
  function sentence(q, at) {
    const cell = cellAt(q, at);
    if (!cell) return "…";
    const [, text, p] = cell.top[0];
    const target = cell.rank === null || cell.rank === undefined ? "" : `; ${aim} has rank ${cell.rank}`;
    return `${q} ${glass.label(q)}, ${inWords(stages()[at] ?? "")}: ${spoken(piece(text))} ${share100(p)}${target}`;
  }

  function show() {
    const answer = known.get(key());
    legend.hidden = table.hidden = !answer;
    if (!answer) return;
    const { own } = answer;
    const now = `${key()} ${glass.q()} ${stage()}`;
    if (laid === now) return;
    const focused = body.contains(document.activeElement);
    const fresh = !laid.startsWith(key());
    laid = now;
    if (fresh) {
      note.textContent = own.note;
      head.replaceChildren(make("tr", {}, make("td", { class: "dim" }, "token \\ after layer"), ...own.stages.map((/** @type {string} */ name) => make("th", { scope: "col", title: inWords(name) }, name))));
      body.replaceChildren(...own.positions.map((/** @type {any} */ row, /** @type {number} */ n) => {
        const q = from() + n;
        const token = glass.run().tokens[q];
        const line = make("tr", {}, make("th", { scope: "row" }, make("span", { class: "dim" }, `${q} `), token ? spelled(token.piece) : ""));
        row.cells.forEach((/** @type {any} */ cell, /** @type {number} */ at) => {
          const [, text, p] = cell.top[0];
          const box = make("td", { role: "gridcell", tabindex: "-1", "data-at": `${q},${at}`, class: [cell.rank === 1 ? "ring" : "", at === row.settled ? "settled" : ""].join(" ").trim() || null }, onOneLine(piece(text)));
          box.style.setProperty("--shade", `${p}`);
          line.append(box);
        });
        return line;
      }));
      const count = glass.run().tokens.length;
      pages.replaceChildren(...(count > WINDOW ? [
        `Tokens ${from()} to ${to() - 1} of ${count}. `,
        ...(from() > 0 ? [make("a", { href: glass.link({ q: from() - WINDOW }) }, "before"), " "] : []), ...(to() < count ? [make("a", { href: glass.link({ q: to() }) }, "after")] : []),
      ] : []));
    }
    for (const old of body.querySelectorAll("[aria-selected], [tabindex='0']")) {
      old.removeAttribute("aria-selected");
      old.setAttribute("tabindex", "-1");
    }
    const chosen = body.querySelector(`[data-at="${glass.q()},${stage()}"]`);
    chosen?.setAttribute("aria-selected", "true");
    chosen?.setAttribute("tabindex", "0");
    chosen?.setAttribute("aria-label", sentence(glass.q(), stage()));
    if (focused && chosen instanceof HTMLElement) chosen.focus();
    line.textContent = sentence(glass.q(), stage());
    figures();
  }

  function figures() {
    const [q, at] = [glass.q(), stage()];
    const row = known.get(key())?.own.positions[q - from()];
    const cell = row?.cells[at];
    if (!cell) return numbers.replaceChildren();
    const theirs = known.get(key())?.theirs?.positions[q - from()]?.cells[at];
    const token = glass.run().tokens[q];
    const bars = (/** @type {string} */ caption, /** @type {any} */ of) => barTable(caption, of.top.map((/** @type {any} */ [id, text, p]) => ({ name: spelled(piece(text)), value: p, text: share100(p), chosen: id === row.target?.[0] })), 1);
    const parts = [make("section", {}, make("h2", {}, token ? spelled(token.piece) : "", make("span", { class: "dim" }, ` ${inWords(stages()[at] ?? "")}`)), bars(glass.model.causal ? "What it would expect next" : "What it would expect here", cell), ...(theirs ? [bars("The other", theirs)] : []), factList([
      ["entropy", `${short(cell.entropy, 4)} nats`], ["KL from it to the last", `${short(cell.kl, 4)} nats`],
      [`rank of ${there}`, cell.rank ? `${cell.rank}` : null], ["stays from", inWords(stages()[row.settled] ?? "")],
    ]))];
    if (row.target) {
      const all = row.cells.map((/** @type {any} */ one, /** @type {number} */ n) => ({ name: stages()[n] ?? "", value: one.p ?? 0, text: share100(one.p ?? 0), chosen: n === at, link: glass.link({ more: { ...glass.state().more, stage: `${n}` } }) }));
      parts.push(make("section", {}, barTable(`Probability of ${there} (${onOneLine(piece(row.target[1]))}), stage by stage`, all, 1)));
    }
    numbers.replaceChildren(...parts);
  }

  /** @param {number} q @param {number} at */
  const choose = (q, at) => glass.go({ q, more: { ...glass.state().more, stage: `${at}` } });
  body.addEventListener("click", (event) => {
    const box = event.target instanceof Element ? event.target.closest("[data-at]") : null;
    const [q, at] = box?.getAttribute("data-at")?.split(",").map(Number) ?? [];
    if (q === undefined || at === undefined) return;
    if (box instanceof HTMLElement) box.focus({ preventScroll: true });
    choose(q, at);
  });
  body.addEventListener("pointerover", (event) => {
    const [q, at] = (event.target instanceof Element ? event.target.closest("[data-at]") : null)?.getAttribute("data-at")?.split(",").map(Number) ?? [];
    line.textContent = q === undefined || at === undefined ? sentence(glass.q(), stage()) : sentence(q, at);
  });
  body.addEventListener("pointerleave", () => (line.textContent = sentence(glass.q(), stage())));
  body.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !stages().length) return;
    const [q, at] = [glass.q(), stage()];
    const [last, final] = [glass.run().tokens.length - 1, stages().length - 1];
    /** @type {Record<string, [number, number]>} */
    const places = { ArrowLeft: [q, at - 1], ArrowRight: [q, at + 1], ArrowUp: [q - 1, at], ArrowDown: [q + 1, at], Home: [q, 0], End: [q, final], PageUp: [q - 16, at], PageDown: [q + 16, at] };
    const next = places[event.key];
    if (!next) return;
    event.preventDefault();
    choose(Math.min(last, Math.max(0, next[0])), Math.min(final, Math.max(0, next[1])));
  });

  return {
    element,
    numbers,
    update() {
      if (!glass.run().done) {
        note.textContent = awaited(glass.run(), "the lens");
        return;
      }
      ask();
      show();
    },
    shade() {
      const answer = known.get(key());
      if (!answer) return null;
      const shades = glass.run().tokens.map((_, n) => {
        const cell = n >= from() && n < to() ? cellAt(n, stage()) : null;
        return cell ? cell.top[0][2] : null;
      });
      return { shades, kind: "weight", words: `Shade: how sure it would be ${inWords(stages()[stage()] ?? "")}, of ${plural(to() - from(), "token")}` };
    },
    tensor() {
      const name = stages()[stage()] ?? "";
      return { name: name === "embed" || name === "" ? "blocks.0.hook_resid_pre" : `blocks.${name}.hook_resid_post`, at: [0, glass.q(), 0] };
    },
  };
}
