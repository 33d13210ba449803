// Walks: the documents on the transformer, step by step, on a live model of their kind: what a document says, its formula,
// its shapes, tables and pictures in its own symbols, and where it errs. The numbers are those that `limpid walk` prints.
import { button, figure, make, plural, say, short } from "./dom.js";
import { troubleNote } from "./answer.js";
import { heatMap } from "./heat.js";
import { localHeat } from "./local-heat.js";
import { fixed, someOf } from "./seed-table.js";
import { asTrouble } from "./source.js";
import { formulaOf, readable } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfWalks = {
  id: "walks", title: "Walks", about: "What do the documents say, and where is it in the model?", open: walksView,
  missing: (model) => (model.saved ? "The walks need a server: limpid serve shows them, and limpid walk in the terminal." : null),
};

/**
 * A walk as it comes in.
 * @typedef {{key: string, about: string, commands: string[], count: number, steps: any[], differences: string[], done: boolean}} Walked
 */

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function walksView(glass) {
  const documents = make("div", { class: "segments", role: "group", "aria-label": "Document" });
  const own = make("input", { type: "checkbox", id: "walks-own" });
  const jump = make("select", { "aria-label": "Step", class: "jump" });
  const back = button("‹", () => turn(-1), { "aria-label": "Previous step", title: "Previous step (b)" });
  const forth = button("›", () => turn(1), { "aria-label": "Next step", title: "Next step (n)" });
  const place = make("span", {});
  const article = make("article", { class: "lesson" });
  const notice = make("div", {});
  const title = make("h2", {}, "…");
  const element = make(
    "div", { class: "walks" },
    make("div", { class: "tools" }, documents, make("label", {}, own, "on this model"), make("div", { class: "steps" }, back, place, forth), jump),
    title, notice, article,
  );
  const list = make("ol", { class: "contents" });
  const numbers = make("nav", { class: "stack", "aria-label": "Steps" }, list);
  /** @type {{id: string, title: string, about: string, steps: {id: string, section: string, title: string}[]}[]} */
  let walks = [];
  /** @type {Walked | null} */
  let walked = null;
  /** @type {AbortController | null} */
  let walking = null;
  /** Heat maps of the step that is shown. @type {{show: () => void, close: () => void}[]} */
  let maps = [];
  let [asked, told, listed] = [false, "", ""];

  const more = () => glass.state().more;
  const walk = () => walks.find(({ id }) => id === more()["w"]) ?? walks[0];
  /** The step that the address names, else the first that has its words. */
  function at() {
    const [word, steps] = [(more()["step"] ?? "").toLowerCase(), walk()?.steps ?? []];
    const exact = steps.findIndex(({ id }) => id === word);
    return Math.max(0, exact >= 0 || word === "" ? exact : steps.findIndex(({ id, section, title: about }) => `${id} ${section} ${about}`.toLowerCase().includes(word)));
  }
  const onOwn = () => more()["own"] === "1";
  const prompt = () => glass.state().p ?? glass.model.example;
  /** @param {number} n */
  const to = (n) => ({ more: { ...more(), step: walk()?.steps[n]?.id ?? "" } });
  /** @param {number} by */
  function turn(by) {
    const next = at() + by;
    const step = walk()?.steps[next];
    if (!step) return;
    glass.go(to(next), "new");
    say(`step ${next + 1} of ${walk()?.steps.length}: ${step.section}`);
    if (element.getBoundingClientRect().top < 0) element.scrollIntoView();
  }
  own.addEventListener("change", () => glass.go({ more: { ...more(), own: own.checked ? "1" : "" } }, "new"));
  jump.addEventListener("change", () => glass.go({ more: { ...more(), step: jump.value } }, "new"));

  async function load() {
    asked = true;
    notice.replaceChildren();
    try {
      ({ walks } = await glass.source.ask("walks"));
      documents.replaceChildren(...walks.map(({ id, title: name }) => button(id.toUpperCase(), () => glass.go({ more: { ...more(), w: id, step: "" } }, "new"), { "data-walk": id, title: name })));
      show();
    } catch (fault) {
      notice.replaceChildren(troubleNote(asTrouble(fault), load));
    }
  }

  /** Walks what is chosen, if that is not what is walked. */
  async function follow() {
    const name = walk()?.id ?? "";
    const key = JSON.stringify([name, onOwn() ? prompt() : null]);
    if (walked?.key === key) return;
    walking?.abort();
    const controller = new AbortController();
    walking = controller;
    /** @type {Walked} */
    const mine = { key, about: "", commands: [], count: 0, steps: [], differences: [], done: false };
    walked = mine;
    notice.replaceChildren();
    try {
      await glass.source.stream("walks", { walk: name, ...(onOwn() ? { own: true, prompt: prompt() } : {}) }, (event) => {
        if (event.event === "start") Object.assign(mine, { about: event.about, commands: event.commands, count: event.steps });
        else if (event.event === "step") mine.steps.push(event.shown);
        else if (event.event === "done") Object.assign(mine, { differences: event.differences ?? [], done: true });
        if (mine === walked) show();
      }, controller.signal);
    } catch (fault) {
      if (controller.signal.aborted) return;
      notice.replaceChildren(troubleNote(asTrouble(fault), () => {
        walked = null;
        follow();
      }));
      show();
    }
  }

  function show() {
    const now = walk();
    if (!now) return;
    follow();
    const n = at();
    for (const one of documents.querySelectorAll("button")) one.setAttribute("aria-pressed", `${one.dataset["walk"] === now.id}`);
    own.checked = onOwn();
    if (listed !== now.id) {
      listed = now.id;
      title.textContent = now.title;
      list.replaceChildren(...now.steps.map(({ section }) => make("li", {}, make("a", {}, ...prose(section)))));
      jump.replaceChildren(...now.steps.map(({ id, section }, i) => make("option", { value: id }, `${i + 1}  ${section}`)));
    }
    for (const [i, link] of list.querySelectorAll("a").entries()) {
      link.setAttribute("href", glass.link(to(i)));
      if (i === n) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
    }
    const current = list.querySelector("[aria-current]");
    if (current instanceof HTMLElement && list.scrollHeight > list.clientHeight) list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 3;
    jump.value = now.steps[n]?.id ?? "";
    place.textContent = `${n + 1} of ${now.steps.length}`;
    [back.disabled, forth.disabled] = [n === 0, n === now.steps.length - 1];
    const shown = walked?.steps[n];
    const key = JSON.stringify([walked?.key, n, shown !== undefined, walked?.differences.length, shown ? 0 : walked?.steps.length, shown || !notice.firstChild]);
    if (key !== told) {
      told = key;
      for (const map of maps) map.close();
      maps = [];
      const wait = walked?.steps.length ? `The walk is at step ${walked.steps.length} of ${now.steps.length} …` : onOwn() ? "Walking on this model …" : "Training the document’s own model: a few seconds …";
      article.replaceChildren(...(shown ? parts(shown, n) : notice.firstChild ? [] : [make("p", { class: "hint" }, wait)]));
    }
    for (const map of maps) map.show();
  }

  /** A step as it stands on the page. @param {any} shown @param {number} n */
  function parts(shown, n) {
    const { step, shapes, figures, checks, notes } = shown;
    /** @type {(HTMLElement | string)[]} */
    const all = [make("h3", {}, ...prose(step.section)), make("p", { class: "lead" }, ...prose(step.title))];
    if (n === 0 && walked) {
      all.push(make("p", {}, walked.about), make("p", { class: "note" }, onOwn() ? "" : "The walk trains its model in memory. To train the same model in a folder:"), ...(onOwn() ? [] : walked.commands.map(command)));
    }
    if (onOwn()) all.push(make("p", { class: "note" }, "The sentences describe the walk’s own model and texts: their numbers and words are not those of your model."));
    if (n === 0) walked?.differences.forEach((line) => all.push(labelled("Differs", line)));
    if (step.formula) all.push(make("p", { class: "formula" }, ...formulaOf(step.formula)));
    if (shapes.length > 0) {
      all.push(textTable("Shapes", ["symbol", "letters", "sizes"], shapes.map((/** @type {any} */ row) => [row.symbol, row.letters, row.sizes.join(" × ")])));
    }
    const box = make("div", { class: "figures" });
    figures.forEach((/** @type {any} */ one, /** @type {number} */ i) => box.append(drawn(one, `${told} ${i}`, figures[i + 1])));
    if (figures.length > 0) all.push(box);
    for (const note of notes) all.push(labelled("Differs", note));
    if (step.see) all.push(labelled("See", step.see));
    for (const { id, note } of step.errata) all.push(labelled(id.startsWith("X") ? "Elsewhere" : "Errs", `${note} (${id})`));
    for (const { holds, printed, text } of checks) all.push(labelled(printed.as === "constructed" ? "Checked" : "Printed", `${holds ? "" : "not met: "}${text}`));
    if (step.try.length > 0) all.push(labelled("Try", "", ...step.try.map(command)));
    if (step.refused.length > 0) all.push(labelled("Refused", "", ...step.refused.map(command)));
    const next = walk()?.steps[n + 1];
    if (next) all.push(make("p", { class: "next" }, make("a", { href: glass.link(to(n + 1)) }, `Next: ${next.section}`)));
    return all;
  }

  /** A figure: a heat map, a table, or a sentence. @param {any} one @param {string} identity @param {any} next */
  function drawn(one, identity, next) {
    const { view, heat, caption, decimals, picture } = one;
    const box = make("figure", { class: view.kind });
    if (picture) {
      box.classList.add("drawn");
      box.append(make("p", { class: "note" }, `The document has a picture here ("${picture.words}"): ${picture.what}.`, ...(picture.drawn || !picture.command ? [] : [" To draw it:"])));
      for (const svg of picture.drawn ?? []) {
        const scroll = make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": picture.what });
        scroll.append(make("img", { src: `data:image/svg+xml,${encodeURIComponent(svg)}`, alt: `${picture.what}: ${titleOf(svg)}` }));
        box.append(scroll);
      }
      if (picture.command) box.append(command(picture.command));
    }
    if (view.kind === "sentence") {
      box.append(make("p", { class: "sentence" }, ...(view.holds === null ? [] : [make("strong", { class: view.holds ? "holds" : "fails" }, view.holds ? "holds " : "fails ")]), ...readable(view.text, false)));
      return box;
    }
    if (view.kind === "grid") {
      box.append(textTable([caption, view.title].filter((text) => text).join(": "), view.headers, view.rows));
      return box;
    }
    const index = view.index.map((/** @type {[string, number]} */ [axis, place]) => `${axis} ${place}`).join(", ");
    const named = [view.tensor, index && `[${index}]`].filter((text) => text).join(" ");
    const heading = make("figcaption", {}, ...(caption && caption !== named ? [...prose(caption), " "] : []));
    heading.append(onOwn() && glass.has("table") && /^[\w.]+$/.test(view.tensor) ? make("a", { href: glass.link({ v: "table", n: view.tensor, at: "" }), class: "dim" }, named) : make("span", { class: "dim" }, named));
    box.append(heading);
    const table = numberTable(view, decimals);
    if (!heat) {
      box.append(table);
      return box;
    }
    box.append(pictureOf(view, identity, next?.heat === true && next.view.scale === "unit" && view.scale === "unit"), make("details", {}, make("summary", {}, "As a table"), table));
    return box;
  }

  /** @param {any} view @param {string} identity @param {boolean} legendBelow */
  function pictureOf(view, identity, legendBelow) {
    const [rows, cols] = view.size;
    const most = view.values.reduce((/** @type {number} */ all, /** @type {number | string} */ value) => (typeof value === "number" ? Math.max(all, Math.abs(value)) : all), 1e-30);
    const signed = view.scale === "signed";
    // positions have the colours of their document: dark is -1, bright is 1
    const positions = /pos_embed|sinusoid/.test(view.tensor) && !view.tensor.startsWith("cos");
    const [low, high] = [signed ? -most : 0, view.scale === "unit" ? 1 : most];
    const cell = { row: 0, col: 0 };
    const word = (/** @type {string[]} */ words, /** @type {number} */ n) => words[n] ?? `${n}`;
    const picture = /** @type {import("./heat.js").Picture} */ ({
      name: view.tensor, index: [], rows, cols, code: "lin8", pool: "absmax", palette: signed && !positions ? "diverging" : "viridis", spread: "linear",
      signed, causal: false, what: view.scale === "unit" ? "share of 1" : "value",
      axes: view.axes[0] === "query_pos" ? ["looks", "is looked at"] : view.axes, rowLabel: (n) => word(view.rows, n), colLabel: (n) => word(view.columns, n),
    });
    const map = heatMap(localHeat({ identity, rows, cols, values: view.values, hidden: view.hidden, low, high }, glass.dark), {
      label: view.tensor, at: () => [cell.row, cell.col],
      choose: (row, col) => {
        [cell.row, cell.col] = [row, col];
        map.show(picture);
      },
      words: (r, c, value) => `${word(view.rows, r)}, ${word(view.columns, c)}: ${view.hidden[r * cols + c] ? "hidden by the mask" : value}`,
    });
    maps.push({ show: () => map.show(picture), close: map.close });
    map.element.classList.toggle("plain", legendBelow);
    map.element.classList.toggle("small", rows * cols <= 400);
    return map.element;
  }

  return {
    element,
    numbers,
    update() {
      if (!asked) load();
      else show();
    },
    close() {
      walking?.abort();
      for (const map of maps) map.close();
    },
    keys: { n: () => turn(1), b: () => turn(-1) },
  };
}

/** A sentence, with the indices of its symbols. @param {string} text */
const prose = (text) => formulaOf(text).flatMap((part) => (typeof part === "string" ? readable(part, false) : [part]));

/** What an SVG of the server's says that it shows. @param {string} svg */
const titleOf = (svg) => svg.match(/<title[^>]*>([^<]*)/)?.[1] ?? "";

/** A command, to be copied. @param {string} text */
const command = (text) => make("code", { class: "command" }, text);

/** A paragraph with a word before it. @param {string} label @param {string} text @param {HTMLElement[]} rest */
function labelled(label, text, ...rest) {
  return make("div", { class: "labelled" }, make("strong", {}, label), make("div", {}, ...(text ? [make("p", {}, ...prose(text))] : []), ...rest));
}

/** Whether a cell is a number. @param {string} text */
const isNumber = (text) => /^[-−+]?[\d.,]+(e-?\d+)?%?$/.test(text.trim()) || text === "...";

/** A table of texts. @param {string} caption @param {string[]} headers @param {string[][]} rows */
export function textTable(caption, headers, rows) {
  const right = headers.map((_, n) => rows.length > 0 && rows.every((row) => isNumber(row[n] ?? "")));
  const symbols = headers.map((header) => /^(symbol|letter)s?$/.test(header));
  const cells = (/** @type {string[]} */ row) => row.map((text, n) => make("td", { class: right[n] ? "number" : symbols[n] ? "symbol" : null }, ...(symbols[n] ? prose(text) : readable(text, false))));
  return make(
    "div", { class: "wide", tabindex: "0", role: "group", "aria-label": caption || headers.join(", ") },
    make("table", { class: "plain-table" }, ...(caption ? [make("caption", {}, ...readable(caption, false))] : []),
      make("thead", {}, make("tr", {}, ...headers.map((text, n) => make("th", { scope: "col", class: right[n] ? "number" : null }, text)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))))),
  );
}

/** A number that JSON has no number for. @param {string | null} word */
const inSign = (word) => short(word === null ? NaN : word.replace("inf", "Infinity"));

/** A matrix as the terminal prints it: of many rows and columns the first and the last. @param {any} view @param {number} decimals */
function numberTable(view, decimals) {
  const [rows, cols] = view.size;
  const [down, across] = [someOf(rows, 60, 5), someOf(cols, 20, 10)];
  const digits = view.values.every((/** @type {number | string} */ value) => typeof value !== "number" || Number.isInteger(value)) ? 0 : decimals;
  const cell = (/** @type {number | null} */ r, /** @type {number | null} */ c) => {
    if (r === null || c === null) return "...";
    const value = view.values[r * cols + c];
    return typeof value === "number" ? fixed(value, digits).replace("-", "−") : inSign(value);
  };
  const label = (/** @type {string[]} */ words, /** @type {number | null} */ n) => (n === null ? "..." : words[n] === undefined ? `${n}` : `${words[n]}`);
  const table = make("table", { class: "plain-table" },
    make("thead", {}, make("tr", {}, make("td", {}), ...across.map((c) => make("th", { scope: "col", class: "number" }, ...readable(label(view.columns, c), false))))),
    make("tbody", {}, ...down.map((r) => make("tr", {}, make("th", { scope: "row" }, ...readable(view.rows.length && r !== null ? `${r} ${label(view.rows, r)}` : label(view.rows, r), false)), ...across.map((c) => make("td", { class: "number" }, cell(r, c)))))));
  return make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": `${view.tensor}, ${plural(rows, "row")}, ${plural(cols, "column")}` }, table, make("p", { class: "note" }, `[${figure(rows, 0)} rows × ${figure(cols, 0)} columns]`));
}
