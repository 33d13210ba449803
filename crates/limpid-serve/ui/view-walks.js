// Walks: the documents on the transformer, step by step, on a live model of their kind: what a document says, its
// formula, its shapes, tables and pictures in its own symbols, and where it errs. The numbers are those that
// `limpid walk` prints.
import { troubleNote } from "./answer.js";
import { anchor, button, dim, div, figure, fill, make, on, plural, remark, say, scrolling, short } from "./dom.js";
import { HeatMap } from "./heat.js";
import { localHeat } from "./local-heat.js";
import { headings, numberCell } from "./numbers.js";
import { fixed, someOf } from "./seed-table.js";
import { asTrouble } from "./source.js";
import { formulaOf, readable } from "./text.js";
import { OpenView } from "./view.js";

/** @type {import("./view.js").View} */
export const viewOfWalks = {
  id: "walks", title: "Walks", about: "What do the documents say, and where is it in the model?",
  open: (glass) => new WalksView(glass),
  missing: ({ saved, live }) =>
    saved || live ? "The walks need a server: limpid serve shows them, and limpid walk in the terminal." : null,
};

/**
 * A walk as it comes in.
 * @typedef {object} Walked
 * @property {string} key which walk on which model
 * @property {string} about
 * @property {string[]} commands
 * @property {any[]} steps
 * @property {string[]} differences
 */

class WalksView extends OpenView {
  documents = make("div", { class: "segments", role: "group", "aria-label": "Document" });
  own = make("input", { type: "checkbox", id: "walks-own" });
  jump = make("select", { "aria-label": "Step", class: "jump" });
  back = button("‹", () => this.turn(-1), { "aria-label": "Previous step", title: "Previous step (b)" });
  forth = button("›", () => this.turn(1), { "aria-label": "Next step", title: "Next step (n)" });
  place = make("span");
  article = make("article", { class: "lesson" });
  title = make("h2", "…");
  tools = div(
    "tools", this.documents, make("label", this.own, "on this model"),
    div("steps", this.back, this.place, this.forth), this.jump,
  );
  element = div("walks", this.tools, this.title, this.notice, this.article);
  list = make("ol", { class: "contents" });
  /** @type {HTMLElement} */
  numbers = make("nav", { class: "stack", "aria-label": "Steps" }, this.list);
  /** @type {{id: string, title: string, about: string, steps: {id: string, section: string, title: string}[]}[]} */
  walks = [];
  /** @type {Walked | null} */
  walked = null;
  /** @type {AbortController | null} */
  walking = null;
  /** Heat maps of the step that is shown. @type {{show: () => void, close: () => void}[]} */
  maps = [];
  /** The step that stands there, and how much of it. */
  shown = "";
  /** The walk whose steps are listed. */
  listed = "";
  keys = { n: () => this.turn(1), b: () => this.turn(-1) };

  /** @param {import("./glass.js").Glass} glass */
  constructor(glass) {
    super(glass);
    on(this.own, "change", () => this.set({ own: this.own.checked ? "1" : "" }, "new"));
    on(this.jump, "change", () => this.set({ step: this.jump.value }, "new"));
  }

  get walk() {
    return this.walks.find(({ id }) => id === this.more["w"]) ?? this.walks[0];
  }

  get isOnOwn() {
    return this.more["own"] === "1";
  }

  /** The step that the address names, else the first that has its words. */
  get step() {
    const [word, steps] = [(this.more["step"] ?? "").toLowerCase(), this.walk?.steps ?? []];
    const exact = steps.findIndex(({ id }) => id === word);
    if (exact >= 0 || word === "") return Math.max(0, exact);
    const hasWords = (/** @type {string[]} */ ...texts) => texts.join(" ").toLowerCase().includes(word);
    return Math.max(0, steps.findIndex(({ id, section, title }) => hasWords(id, section, title)));
  }

  /** @param {number} n */
  toStep(n) {
    return this.with({ step: this.walk?.steps[n]?.id ?? "" });
  }

  /** @param {number} by */
  turn(by) {
    const next = this.step + by;
    const step = this.walk?.steps[next];
    if (!step) return;
    this.glass.go(this.toStep(next), "new");
    say(`step ${next + 1} of ${this.walk?.steps.length}: ${step.section}`);
    if (this.element.getBoundingClientRect().top < 0) this.element.scrollIntoView();
  }

  update() {
    this.askOnce("walks", () => this.glass.source.ask("walks"), ({ walks }) => {
      this.walks = walks;
      const choose = (/** @type {string} */ id) => this.set({ w: id, step: "" }, "new");
      fill(this.documents, ...this.walks.map(({ id, title }) =>
        button(id.toUpperCase(), () => choose(id), { "data-walk": id, title })));
      this.show();
    });
    this.show();
  }

  /** Walks what is chosen, if that is not what is walked. */
  async follow() {
    const { isOnOwn } = this;
    const own = isOnOwn ? { own: true, prompt: this.state.p ?? this.model.example } : {};
    const asked = { walk: this.walk?.id ?? "", ...own };
    const key = JSON.stringify(asked);
    if (this.walked?.key === key) return;
    this.walking?.abort();
    const controller = (this.walking = new AbortController());
    /** @type {Walked} */
    const walked = { key, about: "", commands: [], steps: [], differences: [] };
    this.walked = walked;
    fill(this.notice);
    try {
      await this.glass.source.stream("walks", asked, (event) => {
        if (event.event === "start") Object.assign(walked, { about: event.about, commands: event.commands });
        else if (event.event === "step") walked.steps.push(event.shown);
        else if (event.event === "done") walked.differences = event.differences ?? [];
        if (walked === this.walked) this.show();
      }, controller.signal);
    } catch (fault) {
      if (controller.signal.aborted) return;
      fill(this.notice, troubleNote(asTrouble(fault), () => {
        this.walked = null;
        this.follow();
      }));
      this.show();
    }
  }

  show() {
    if (!this.walk) return;
    this.follow();
    this.showPlace(this.walk);
    const { step, walked } = this;
    const shown = walked?.steps[step];
    const [differences, walkedSteps] = [walked?.differences.length, shown ? 0 : walked?.steps.length];
    const key = JSON.stringify([
      walked?.key, step, shown !== undefined, differences, walkedSteps, shown || !this.notice.firstChild,
    ]);
    if (key !== this.shown) {
      this.shown = key;
      this.closeMaps();
      const hint = this.notice.firstChild ? [] : [make("p", { class: "hint" }, this.waitInWords())];
      fill(this.article, ...(shown ? this.parts(shown, step) : hint));
    }
    for (const map of this.maps) map.show();
  }

  /** What stands there until the step comes. */
  waitInWords() {
    const count = this.walked?.steps.length;
    if (count) return `The walk is at step ${count} of ${this.walk?.steps.length} …`;
    return this.isOnOwn ? "Walking on this model …" : "Training the document’s own model: a few seconds …";
  }

  /** Which walk and which of its steps. @param {NonNullable<WalksView["walk"]>} walk */
  showPlace({ id, title, steps }) {
    const { list, step } = this;
    for (const each of this.documents.querySelectorAll("button")) {
      each.ariaPressed = `${each.dataset["walk"] === id}`;
    }
    this.own.checked = this.isOnOwn;
    if (this.listed !== id) {
      this.listed = id;
      this.title.textContent = title;
      fill(list, ...steps.map(({ section }) => make("li", make("a", ...prose(section)))));
      fill(this.jump, ...steps.map(({ id, section }, n) => make("option", { value: id }, `${n + 1}  ${section}`)));
    }
    for (const [n, link] of list.querySelectorAll("a").entries()) {
      link.setAttribute("href", this.glass.link(this.toStep(n)));
      link.ariaCurrent = n === step ? "step" : null;
    }
    const current = list.querySelector("[aria-current]");
    if (current instanceof HTMLElement && list.scrollHeight > list.clientHeight) {
      list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 3;
    }
    this.jump.value = steps[step]?.id ?? "";
    this.place.textContent = `${step + 1} of ${steps.length}`;
    [this.back.disabled, this.forth.disabled] = [step === 0, step === steps.length - 1];
  }

  /** A step as it stands on the page. @param {any} shown @param {number} n */
  parts({ step, shapes, figures, checks, notes }, n) {
    /** @type {(HTMLElement | string)[]} */
    const all = [make("h3", ...prose(step.section)), make("p", { class: "lead" }, ...prose(step.title))];
    if (n === 0 && this.walked) {
      const { about, commands } = this.walked;
      all.push(make("p", about));
      const how = "The walk trains its model in memory. To train the same model in a folder:";
      if (!this.isOnOwn) all.push(remark(how), ...commands.map(command));
    }
    const theirs =
      "The sentences describe the walk’s own model and texts: their numbers and words are not those of your model.";
    if (this.isOnOwn) all.push(remark(theirs));
    if (n === 0) this.walked?.differences.forEach((line) => all.push(labelled("Differs", line)));
    if (step.formula) all.push(make("p", { class: "formula" }, ...formulaOf(step.formula)));
    if (shapes.length > 0) {
      const rows = shapes.map((/** @type {any} */ { symbol, letters, sizes }) => [symbol, letters, sizes.join(" × ")]);
      all.push(textTable("Shapes", ["symbol", "letters", "sizes"], rows));
    }
    const drawn = figures.map((/** @type {any} */ each, /** @type {number} */ i) =>
      this.drawn(each, `${this.shown} ${i}`, figures[i + 1]));
    if (figures.length > 0) all.push(div("figures", ...drawn));
    for (const note of notes) all.push(labelled("Differs", note));
    if (step.see) all.push(labelled("See", step.see));
    for (const { id, note } of step.errata) {
      all.push(labelled(id.startsWith("X") ? "Elsewhere" : "Errs", `${note} (${id})`));
    }
    for (const { holds, printed, text } of checks) {
      all.push(labelled(printed.as === "constructed" ? "Checked" : "Printed", `${holds ? "" : "not met: "}${text}`));
    }
    if (step.try.length > 0) all.push(labelled("Try", "", ...step.try.map(command)));
    if (step.refused.length > 0) all.push(labelled("Refused", "", ...step.refused.map(command)));
    const next = this.walk?.steps[n + 1];
    const link = next && anchor(this.glass.link(this.toStep(n + 1)), `Next: ${next.section}`);
    if (link) all.push(make("p", { class: "next" }, link));
    return all;
  }

  /** A figure: a heat map, a table, or a sentence. @param {any} shown @param {string} identity @param {any} next */
  drawn({ view, heat, caption, decimals, picture }, identity, next) {
    const box = make("figure", { class: view.kind }, ...(picture ? documentPicture(picture) : []));
    box.classList.toggle("drawn", Boolean(picture));
    if (view.kind === "sentence") {
      const holds = make("strong", { class: view.holds ? "holds" : "fails" }, view.holds ? "holds " : "fails ");
      const text = readable(view.text, false);
      box.append(make("p", { class: "sentence" }, ...(view.holds === null ? [] : [holds]), ...text));
      return box;
    }
    if (view.kind === "grid") {
      box.append(textTable([caption, view.title].filter((text) => text).join(": "), view.headers, view.rows));
      return box;
    }
    const index = view.index.map((/** @type {[string, number]} */ [axis, place]) => `${axis} ${place}`).join(", ");
    const named = [view.tensor, index && `[${index}]`].filter((text) => text).join(" ");
    const isLinked = this.isOnOwn && this.glass.has("table") && /^[\w.]+$/.test(view.tensor);
    const href = this.glass.link({ v: "table", n: view.tensor, at: "" });
    const name = isLinked ? make("a", { href, class: "dim" }, named) : dim(named);
    box.append(make("figcaption", ...(caption && caption !== named ? [...prose(caption), " "] : []), name));
    const table = numberTable(view, decimals);
    const hasLegendBelow = next?.heat === true && next.view.scale === "unit" && view.scale === "unit";
    if (!heat) box.append(table);
    else {
      const details = make("details", make("summary", "As a table"), table);
      box.append(this.pictureOf(view, identity, hasLegendBelow), details);
    }
    return box;
  }

  /** @param {any} view @param {string} identity @param {boolean} hasLegendBelow */
  pictureOf(view, identity, hasLegendBelow) {
    const { tensor, values, hidden, scale, axes, size: [rows, cols] } = view;
    const sizes =
      values.map((/** @type {number | string} */ value) => (typeof value === "number" ? Math.abs(value) : 0));
    const most = sizes.reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b), 1e-30);
    const signed = scale === "signed";
    // positions have the colours of their document: dark is -1, bright is 1
    const isPositions = /pos_embed|sinusoid/.test(tensor) && !tensor.startsWith("cos");
    const [low, high] = [signed ? -most : 0, scale === "unit" ? 1 : most];
    const rowLabel = (/** @type {number} */ n) => view.rows[n] ?? `${n}`;
    const colLabel = (/** @type {number} */ n) => view.columns[n] ?? `${n}`;
    const picture = /** @type {import("./heat.js").Picture} */ ({
      name: tensor, index: [], rows, cols, code: "lin8", pool: "absmax", spread: "linear", signed, causal: false,
      palette: signed && !isPositions ? "diverging" : "viridis", what: scale === "unit" ? "share of 1" : "value",
      axes: axes[0] === "query_pos" ? ["looks", "is looked at"] : axes, rowLabel, colLabel,
    });
    /** @type {[number, number]} */
    let chosen = [0, 0];
    const host = localHeat({ identity, rows, cols, values, hidden, low, high }, this.glass.dark);
    const map = new HeatMap(host, {
      label: tensor, at: () => chosen,
      choose: (row, col) => {
        chosen = [row, col];
        map.show(picture);
      },
      words: (row, col, value) =>
        `${rowLabel(row)}, ${colLabel(col)}: ${hidden[row * cols + col] ? "hidden by the mask" : value}`,
    });
    this.maps.push({ show: () => map.show(picture), close: () => map.close() });
    map.element.classList.toggle("plain", hasLegendBelow);
    map.element.classList.toggle("small", rows * cols <= 400);
    return map.element;
  }

  closeMaps() {
    for (const map of this.maps) map.close();
    this.maps = [];
  }

  close() {
    this.walking?.abort();
    this.closeMaps();
  }
}

/** A picture of the document itself. @param {any} picture */
function documentPicture({ words, what, drawn = [], command: line }) {
  const how = drawn?.length || !line ? [] : [" To draw it:"];
  const images = (drawn ?? []).map((/** @type {string} */ svg) => {
    const picture = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    return scrolling(what, make("img", { src: picture, alt: `${what}: ${titleOf(svg)}` }));
  });
  const about = remark(`The document has a picture here ("${words}"): ${what}.`, ...how);
  return [about, ...images, ...(line ? [command(line)] : [])];
}

/** A sentence, with the indices of its symbols. @param {string} text */
const prose = (text) =>
  formulaOf(text).flatMap((part) => (typeof part === "string" ? readable(part, false) : [part]));

/** What an SVG of the server's says that it shows. @param {string} svg */
const titleOf = (svg) => svg.match(/<title[^>]*>([^<]*)/)?.[1] ?? "";

/** A command, to be copied. @param {string} text */
const command = (text) => make("code", { class: "command" }, text);

/** A paragraph with a word before it. @param {string} label @param {string} text @param {HTMLElement[]} rest */
function labelled(label, text, ...rest) {
  const paragraph = text ? [make("p", ...prose(text))] : [];
  return div("labelled", make("strong", label), make("div", ...paragraph, ...rest));
}

/** Whether a cell is a number. @param {string} text */
const isNumber = (text) => /^[-−+]?[\d.,]+(e-?\d+)?%?$/.test(text.trim()) || text === "...";

/** A table of texts. @param {string} caption @param {string[]} headers @param {string[][]} rows */
export function textTable(caption, headers, rows) {
  const right = headers.map((_, n) => rows.length > 0 && rows.every((row) => isNumber(row[n] ?? "")));
  const symbols = headers.map((header) => /^(symbol|letter)s?$/.test(header));
  const cell = (/** @type {string} */ text, /** @type {number} */ n) => {
    const words = symbols[n] ? prose(text) : readable(text, false);
    return make("td", { class: right[n] ? "number" : symbols[n] ? "symbol" : null }, ...words);
  };
  return scrolling(caption || headers.join(", "), make(
    "table", { class: "plain-table" },
    ...(caption ? [make("caption", ...readable(caption, false))] : []),
    headings(headers, (n) => right[n] === true),
    make("tbody", ...rows.map((row) => make("tr", ...row.map(cell)))),
  ));
}

/** A number that JSON has no number for. @param {string | null} word */
const inSign = (word) => short(word === null ? NaN : word.replace("inf", "Infinity"));

/**
 * A matrix as the terminal prints it: of many rows and columns the first and the last.
 * @param {any} view @param {number} decimals
 */
function numberTable(view, decimals) {
  const [rows, cols] = view.size;
  const [down, across] = [someOf(rows, 60, 5), someOf(cols, 20, 10)];
  const isWhole = (/** @type {number | string} */ value) => typeof value !== "number" || Number.isInteger(value);
  const digits = view.values.every(isWhole) ? 0 : decimals;
  const cell = (/** @type {number | null} */ row, /** @type {number | null} */ col) => {
    if (row === null || col === null) return "...";
    const value = view.values[row * cols + col];
    return typeof value === "number" ? fixed(value, digits).replace("-", "−") : inSign(value);
  };
  const label = (/** @type {string[]} */ words, /** @type {number | null} */ n) =>
    readable(n === null ? "..." : `${words[n] ?? n}`, false);
  const heads = across.map((col) => make("th", { scope: "col", class: "number" }, ...label(view.columns, col)));
  const lines = down.map((row) => {
    const place = view.rows.length && row !== null ? [`${row} `] : [];
    const name = make("th", { scope: "row" }, ...place, ...label(view.rows, row));
    return make("tr", name, ...across.map((col) => numberCell(cell(row, col))));
  });
  const head = make("thead", make("tr", make("td"), ...heads));
  const table = make("table", { class: "plain-table" }, head, make("tbody", ...lines));
  const size = remark(`[${figure(rows, 0)} rows × ${figure(cols, 0)} columns]`);
  return scrolling(`${view.tensor}, ${plural(rows, "row")}, ${plural(cols, "column")}`, table, size);
}
