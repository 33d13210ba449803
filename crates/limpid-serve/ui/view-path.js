// Why this word: the path from a word to its reason. Which parts wrote its logit; where a head looked; what it carried
// from there, in words; which units of an MLP responded; and so back to a word of the input. Each step adds up to the
// number that was followed.
import { whyIn, whyWord, wordAsked } from "./address.js";
import { anchor, dim, div, emptyCanvas, fill, inks, isModified } from "./dom.js";
import { make, on, plural, remark, scrolling, short, sizeCanvas } from "./dom.js";
import { within } from "./dom.js";
import { barCell, headings, numberCell, signed, signedBar, tokenNumbers } from "./numbers.js";
import { ReasonNote, told } from "./reason.js";
import { aimOf, awaited, onOneLine } from "./runs.js";
import { Trouble } from "./source.js";
import { piece, spelled, spoken } from "./text.js";
import { headless, OpenView } from "./view.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./view.js").View} */
export const viewOfPath = {
  id: "path", title: "Why this word",
  about: "What would change this word, and what wrote it?",
  open: (glass) => new PathView(glass),
  missing: headless(": there is no word to explain. Its attention and its tensors are there."),
  needs: (state, glass) => [pathQuestion(state, glass)],
};

/** How many of the likeliest tokens can be chosen. */
const OFFERED = 20;

/** Tokens before and after which a row of attention is cut: of a long text those that are looked at most stay. */
const IN_ROW = 48;

/** The height of the arcs. */
const ARCS = 64;

/** A word as it was typed, in the address until it is known which token it means. @param {string} text */
const typed = (text) => `?${encodeURIComponent(text).replaceAll("~", "%7E")}`;

/** @param {string} word */
const isTyped = (word) => word.startsWith("?");

/** @param {string} word */
const textOf = (word) => decodeURIComponent(word.slice(1));

/**
 * What is asked, as the server takes it; what is usual is left out, so that a saved page has the answer.
 * @param {import("./address.js").State} state
 * @param {Glass} glass
 */
function pathQuestion(state, glass) {
  const last = glass.run.tokens.length - 1;
  const q = Math.min(state.q ?? last, last);
  const { target, foil, via } = whyIn(state, q, last);
  const likeliest = glass.run.predictions[q]?.top[0]?.[0];
  const isUsual = target === "" || (target === `${likeliest}` && foil === "" && via === "");
  const word = isUsual ? "" : wordAsked(target);
  return [`path?position=${q}`, word, foil && `foil=${foil}`, via && `via=${via}`].filter((part) => part).join("&");
}

class PathView extends OpenView {
  target = make("select", { "aria-label": "Word" });
  foil = make("select", { "aria-label": "Rather than" });
  typedTarget = this.wordField("Another word");
  typedFoil = this.wordField("Compared word");
  crumbs = make("nav", { class: "crumbs", "aria-label": "Path" });
  /** What was measured, before the path along what the parts wrote. */
  reason = new ReasonNote();
  sentence = make("p", { class: "lead" });
  /** Which spelling of a typed word was taken. */
  reading = remark();
  row = new WordRow();
  body = div("stack");
  element = div(
    "path",
    div(
      "tools", make("label", "Why ", this.target), this.typedTarget, make("label", "rather than ", this.foil),
      this.typedFoil,
    ),
    div("", this.reason.element), this.crumbs, this.notice, this.reading, this.sentence, this.row.element, this.body,
  );
  /** What the tokens that can be chosen are for. */
  offered = "";
  /** @type {any} */
  shown = null;
  /** How a typed word was read, by the token's id. @type {Map<string, (Node | string)[]>} */
  readings = new Map();
  keys = { j: () => this.step(1), k: () => this.step(-1), b: () => this.back() };

  /** @param {Glass} glass */
  constructor(glass) {
    super(glass);
    const { target, foil, typedTarget, typedFoil } = this;
    on(target, "change", () => this.go({ target: target.value, foil: "" }));
    on(foil, "change", () => this.go({ foil: foil.value }));
    on(typedTarget, "change", () =>
      typedTarget.value !== "" && this.go({ target: typed(typedTarget.value), foil: "" }));
    on(typedFoil, "change", () => typedFoil.value !== "" && this.go({ foil: typed(typedFoil.value) }));
    on(this.element, "keydown", (event) => {
      const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (!by || isModified(event) || !(event.target instanceof HTMLAnchorElement)) return;
      event.preventDefault();
      this.step(by);
    });
    this.onResize(this.element, () => this.row.drawArcs());
  }

  /** @param {string} label */
  wordField(label) {
    // a saved page has the answers about a few words
    const disabled = this.model.saved ? "" : null;
    return make("input", {
      disabled, type: "text", "aria-label": label, placeholder: "another word", size: "12", autocomplete: "off",
      spellcheck: "false",
    });
  }

  /** What the path is of, by the address. */
  get wanted() {
    return whyIn(this.state, this.q, this.glass.last);
  }

  /** Changes of the state that lead to another path. @param {{target?: string, foil?: string, via?: string}} changes */
  changes(changes) {
    const { shown } = this;
    const now = shown ? { target: `${shown.target[0]}`, foil: `${shown.foil?.[0] ?? "none"}` } : this.wanted;
    const { target, foil, via } = { ...now, via: "", ...changes };
    return whyWord(this.state, this.q, target, foil, via);
  }

  /** @param {{target?: string, foil?: string, via?: string}} changes */
  go(changes) {
    this.glass.go(this.changes(changes), "new");
  }

  /** @param {string[]} hops */
  linkVia(hops) {
    return this.glass.link(this.changes({ via: hops.join() }));
  }

  /** Goes back by a hop. */
  back() {
    const hops = this.wanted.via.split(",").filter((hop) => hop);
    if (hops.length > 0) this.go({ via: hops.slice(0, -1).join() });
  }

  /** Goes through the parts in the order of the table. @param {number} by */
  step(by) {
    const links = [...this.body.querySelectorAll("tbody a")];
    const focused = links.indexOf(/** @type {Element} */ (document.activeElement));
    const next = links[focused < 0 ? 0 : within(focused + by, 0, links.length - 1)];
    if (next instanceof HTMLElement) next.focus();
  }

  update() {
    if (this.run.done) this.ask();
    else this.await();
  }

  /** Says what comes once the run is done. */
  await() {
    const { target } = this.wanted;
    const word = isTyped(target) ? textOf(target) : target.slice(1, -1);
    const what = /^["?]/.test(target) ? `the path of “${spoken(piece(word))}”` : "the path";
    fill(this.body, make("p", { class: "hint" }, awaited(this.run, what)));
  }

  ask() {
    const { glass, wanted } = this;
    const question = pathQuestion(this.state, glass);
    const key = `${glass.runs} ${question}`;
    const clear = () => {
      this.shown = null;
      [this.reading, this.sentence, this.crumbs, this.body].forEach((part) => fill(part));
      this.row.show([], []);
      return [anchor(glass.link(whyWord(this.state, this.q)), "Begin with the likeliest word")];
    };
    if (isTyped(wanted.target) || isTyped(wanted.foil)) {
      this.askOnce(key, () => this.readTyped(wanted), (read) => glass.go(this.changes(read)), clear);
      return;
    }
    const ask = async () => {
      const ours = await glass.ask(question);
      const compared = `path?position=${this.q}&target=${ours.target[0]}&foil=${ours.foil?.[0] ?? "none"}`;
      return [ours, ours.via === "" && this.other?.done ? await glass.askOther(compared) : null];
    };
    this.askOnce(key, ask, ([ours, theirs]) => this.show(ours, theirs), clear);
  }

  /** @param {{target: string, foil: string}} words */
  async readTyped({ target, foil }) {
    const read = { target: await this.read(target), foil: await this.read(foil) };
    if (read.foil !== "" && read.foil === read.target) {
      throw new Trouble("This is the same token on both sides: type another word to compare with.");
    }
    return read;
  }

  /**
   * The id of the token that a typed word means: with a blank before it or without one, whichever is likelier here.
   * @param {string} word
   */
  async read(word) {
    if (!isTyped(word)) return word;
    const text = textOf(word);
    const spellings = /^\s/.test(text) ? [text] : [text, ` ${text}`];
    const answers = await Promise.allSettled(spellings.map((spelling) =>
      this.glass.ask(`path?position=${this.q}&word=${encodeURIComponent(spelling)}&foil=none`)));
    const found = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
    const [best, second] = found.sort((a, b) => Number(b.value) - Number(a.value));
    if (!best) throw /** @type {PromiseRejectedResult} */ (answers[0]).reason;
    const [id, spelling] = best.target;
    const tell = (/** @type {(Node | string)[]} */ ...why) =>
      this.readings.set(`${id}`, ["Read as ", spelled(piece(spelling)), ...why]);
    if (second && second.target[0] !== id) {
      tell(", which is likelier here than ", spelled(piece(second.target[1])), ". ");
    } else if (spelling !== text) tell(": without its blank it is not one token. ");
    return `${id}`;
  }

  /** The tokens that can be chosen: the likeliest here, the one that follows, those of the text. @param {any} answer */
  async offer({ target, foil }) {
    const { run, q, glass } = this;
    const offered = `${run.id} ${q} ${target[0]} ${foil?.[0] ?? "none"}`;
    if (offered === this.offered) return;
    this.offered = offered;
    const { top } =
      await glass.ask(`predictions?position=${q}&k=${OFFERED}`).catch(() => ({ top: run.predictions[q]?.top ?? [] }));
    if (offered !== this.offered) return;
    /** @type {Map<number | string, string>} */
    const tokens = new Map([target, ...(foil ? [foil] : []), ...top].map(([id, text]) => [id, onOneLine(piece(text))]));
    const next = aimOf(run, q);
    for (const { id, text } of [...(next ? [next] : []), ...run.tokens.slice(-OFFERED)]) tokens.set(id, text);
    const option = (/** @type {string} */ value, /** @type {string} */ text, /** @type {any} */ changes) =>
      make("option", { value, disabled: glass.holds(this.changes(changes)) ? null : "" }, text);
    const foils =
      [...tokens].filter(([id]) => id !== target[0]).map(([id, text]) => option(`${id}`, text, { foil: `${id}` }));
    fill(this.target, ...[...tokens].map(([id, text]) => option(`${id}`, text, { target: `${id}`, foil: "" })));
    fill(this.foil, option("none", "nothing else", { foil: "none" }), ...foils);
    this.target.value = `${target[0]}`;
    this.foil.value = `${foil?.[0] ?? "none"}`;
  }

  /** @param {any} ours @param {any} theirs */
  show(ours, theirs) {
    const { glass, body } = this;
    const hasFocus = body.contains(document.activeElement);
    const hops = ours.via ? ours.via.split(",") : [];
    this.shown = ours;
    this.typedTarget.value = this.typedFoil.value = "";
    fill(this.reading, ...[ours.target, ours.foil].flatMap((token) =>
      (token && this.readings.get(`${token[0]}`)) ?? []));
    this.offer(ours);
    this.drawCrumbs(ours, hops);
    fill(this.sentence, ...told(ours.sentence));
    this.reason.ask(glass, this.question(ours, hops));
    const hop = (/** @type {number} */ n) =>
      ours.bars.some((/** @type {any} */ bar) => bar.hop === `t${n}`) ? this.linkVia([...hops, `t${n}`]) : null;
    this.row.show(ours.weights, this.run.tokens, ours.at, hop);
    fill(body, ...(ours.bars.length > 0 ? [this.table(ours, hops, theirs)] : []), this.arithmetic(ours.to));
    fill(this.numbers, tokenNumbers(glass, ours.at), make("section", remark(ours.note)));
    if (hasFocus) body.querySelector("a")?.focus();
  }

  /** What is measured: of the first step, where two tokens of an unchanged run are compared. */
  question(/** @type {any} */ { position, target, foil }, /** @type {string[]} */ hops) {
    const { run, model, state } = this;
    if (hops.length > 0 || !foil || model.saved || state.i) return null;
    return { clean: run.tokens.map(({ id }) => id), answer: target[0], foil: foil[0], position };
  }

  /** The way so far. @param {any} ours @param {string[]} hops */
  drawCrumbs({ target, foil }, hops) {
    const word = make("span", spelled(piece(target[1])), ...(foil ? [" over ", spelled(piece(foil[1]))] : []));
    const steps = [word, ...hops.map((hop) => this.hopInWords(hop))].map((step, n) =>
      make("li", n === hops.length
        ? make("span", { "aria-current": "step" }, step)
        : anchor(this.linkVia(hops.slice(0, n)), step)));
    fill(this.crumbs, make("ol", ...steps));
  }

  /** @param {string} hop */
  hopInWords(hop) {
    const [kind = "", rest] = [hop[0], hop.slice(1)];
    const token = kind === "t" && this.run.tokens[Number(rest)];
    if (token) return spelled(token.piece);
    /** @type {Record<string, string>} */
    const words =
      { h: `L${rest.replace(".", "H")}`, t: rest, m: `L${rest} MLP`, u: `unit ${rest}`, s: `before block ${rest}` };
    return words[kind] ?? "the word itself";
  }

  /** The parts, and what they add up to. @param {any} ours @param {string[]} hops @param {any} theirs */
  table(ours, hops, theirs) {
    const { bars, rest, foil } = ours;
    const hasWeights = ours.weights.length > 0;
    const hasWords = bars.some((/** @type {any} */ { words }) => words.length > 0);
    const others = new Map((theirs?.bars ?? []).map((/** @type {any} */ { name, value }) => [name, Number(value)]));
    const most = Math.max(1e-30, ...[...bars, rest].map(({ value }) => Math.abs(Number(value)) || 0));
    /** @param {{name: Node | string, value: any, bar?: any, kind?: string}} line */
    const row = ({ name, value, bar, kind = "" }) => {
      const other = others.get(bar?.name);
      const more = other === undefined ? "" : ` (${signed(value - other)})`;
      const weight = [numberCell(bar?.weight === undefined || bar.weight === null ? "" : short(bar.weight, 3))];
      const words = (bar?.words ?? []).slice(0, 4).flatMap((/** @type {any} */ [, text]) =>
        [spelled(piece(text)), " "]);
      const beside = hasWeights ? weight : hasWords ? [make("td", ...words)] : [];
      const number = numberCell(`${Number(value) < 0 ? "" : "+"}${short(value, 4)}${more}`);
      return make(
        "tr", { class: kind || null }, make("th", { scope: "row" }, name), ...beside,
        barCell(signedBar(Number(value) || 0, most, bar?.part?.kind)), number,
      );
    };
    const rows = bars.map((/** @type {any} */ bar) => {
      const name = bar.token ? make("span", dim(`${bar.name} `), spelled(piece(bar.token[1]))) : bar.name;
      const link = bar.hop && make("a", { href: this.linkVia([...hops, bar.hop]), "data-hop": bar.hop }, name);
      return row({ name: link || name, value: bar.value, bar });
    });
    const { count, value, weight } = rest;
    if (count > 0) rows.push(row({ name: plural(count, "other part"), value, bar: { weight }, kind: "others" }));
    const remainder = ours.additive ? "rounding" : "what is not linear, and rounding";
    rows.push(
      row({ name: remainder, value: ours.remainder, kind: "others" }),
      row({ name: "together", value: ours.value, kind: "total" }),
    );
    const logits = foil ? "of the difference of logits" : "of the logit";
    const unit = hops.some((hop) => hop.startsWith("u")) ? "of what went into the unit" : logits;
    const columns =
      hasWeights ? ["token", "weight", "", unit] : ["part", ...(hasWords ? ["makes likelier"] : []), "", unit];
    const head = headings(columns, (n) => n > 0 && (n === columns.length - 1 || hasWeights));
    return scrolling(
      "Parts",
      make("table", { class: `plain-table parts${hasWords ? " worded" : ""}` }, head, make("tbody", ...rows)),
    );
  }

  /** A link to the sum behind the number that was followed. @param {{name: string, at: number[]}} cell */
  arithmetic({ name, at }) {
    const href = this.glass.link({ v: "why", n: name, at: at.join() });
    return make(
      "p", { class: "ways" }, make("a", { class: "arithmetic", href }, "Show the arithmetic"),
      dim(` of ${name} [${at.join(", ")}]`),
    );
  }

  close() {
    this.reason.close();
  }

  tensor() {
    return this.shown?.to ?? { name: "logits", at: [0, this.q, this.run.predictions[this.q]?.top[0]?.[0] ?? 0] };
  }
}

/** The words of a text, with arcs to those that a head looked at. */
class WordRow {
  canvas = make("canvas", { "aria-hidden": "true" });
  words = div("row-of-words");
  element = make(
    "div", { class: "arcs wide", tabindex: "0", role: "group", "aria-label": "Where the head looked" },
    div("arcs-inside", this.canvas, this.words, remark("Arc and shade: weight, from 0 to 1")),
  );
  /** @type {number[]} */
  weights = [];

  /**
   * @param {any[]} weights of the tokens; none: nothing is shown
   * @param {import("./runs.js").Run["tokens"]} tokens
   * @param {number} from the one that looks
   * @param {(position: number) => string | null} hop a link that follows a token
   */
  show(weights, tokens, from = 0, hop = () => null) {
    this.weights = weights.map((weight) => Number(weight) || 0);
    this.element.hidden = weights.length === 0;
    if (this.element.hidden) return fill(this.words);
    const weightOf = (/** @type {number} */ n) => this.weights[n] ?? 0;
    const largest = [...weights.keys()].sort((a, b) => weightOf(b) - weightOf(a)).slice(0, IN_ROW - 1);
    const shown = [...tokens.keys()].filter((n) => tokens.length <= IN_ROW || largest.includes(n) || n === from);
    const words = shown.map((n) => {
      const href = hop(n);
      const attributes =
        { "data-n": `${n}`, title: `weight ${short(weightOf(n), 3)}`, class: n === from ? "from" : null, href };
      const token = tokens[n];
      const word = make(href ? "a" : "span", attributes, token ? spelled(token.piece) : `${n}`);
      word.style.setProperty("--shade", weightOf(n).toFixed(3));
      return word;
    });
    fill(this.words, ...words.flatMap((word, i) =>
      [i > 0 && shown[i - 1] !== (shown[i] ?? 0) - 1 ? dim("…") : "", word]));
    this.drawArcs();
    // the word that looks is in sight, where a row is wider than the page
    const looking = this.words.querySelector(".from");
    if (!(looking instanceof HTMLElement)) return;
    this.element.scrollLeft = Math.max(0, looking.offsetLeft + looking.offsetWidth + 8 - this.element.clientWidth);
  }

  drawArcs() {
    const { words, canvas, weights } = this;
    if (weights.length === 0 || !words.isConnected) return;
    const from = words.querySelector(".from");
    sizeCanvas(canvas, words.scrollWidth, ARCS);
    const context = emptyCanvas(canvas);
    if (!context || !from) return;
    const origin = words.getBoundingClientRect().left;
    const middle = (/** @type {Element} */ word) =>
      word.getBoundingClientRect().left + word.getBoundingClientRect().width / 2 - origin;
    context.strokeStyle = inks(words)("accent");
    for (const word of words.querySelectorAll("[data-n]")) {
      const weight = weights[Number(word.getAttribute("data-n"))] ?? 0;
      if (weight < 0.005) continue;
      const [a, b] = [middle(from), middle(word)];
      const far = Math.abs(a - b);
      context.lineWidth = Math.max(0.5, 7 * weight);
      context.globalAlpha = 0.25 + 0.75 * weight;
      context.beginPath();
      if (word === from) context.ellipse(a, ARCS - 8, 9, 9, 0, 0, 2 * Math.PI);
      else context.ellipse((a + b) / 2, ARCS, far / 2, Math.min(ARCS - 6, 12 + far / 4), 0, Math.PI, 2 * Math.PI);
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
