// Why this word: the path from a word to its reason. Which parts wrote its logit; where a head looked; what it carried from there, in
// words; which units of an MLP responded; and so back to a word of the input. Each step adds up to the number that was followed.
import { whyIn, whyWord } from "./address.js";
import { emptyCanvas, inks, make, plural, short, sizeCanvas } from "./dom.js";
import { kindOf } from "./heads.js";
import { troubleNote } from "./answer.js";
import { barTable, signed, signedBar, tokenNumbers } from "./numbers.js";
import { aimOf, awaited, onOneLine } from "./runs.js";
import { Trouble, asTrouble } from "./source.js";
import { piece, spelled, spoken } from "./text.js";
import { glossed } from "./words.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfPath = {
  id: "path", title: "Why this word", about: "Which parts of the model wrote this word, where did they look, and what did they carry?", open: pathView,
  missing: (model) => (model.lm_head ? null : "This model has no head for tokens: there is no word to explain. Its attention and its tensors are there."),
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
  const last = glass.run().tokens.length - 1;
  const q = Math.min(state.q ?? last, last);
  const { target: word, foil: less, via } = whyIn(state, q, last);
  const likeliest = glass.run().predictions[q]?.top[0]?.[0];
  const usual = word === "" || (word === `${likeliest}` && less === "" && via === "");
  return [`path?position=${q}`, usual ? "" : word.startsWith('"') ? `word=${encodeURIComponent(word.slice(1, -1))}` : `target=${word}`, less && `foil=${less}`, via && `via=${via}`].filter((part) => part).join("&");
}

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function pathView(glass) {
  const target = make("select", { "aria-label": "Word" });
  const foil = make("select", { "aria-label": "Rather than" });
  // a saved page has the answers about a few words
  const written = (/** @type {string} */ label) => make("input", { disabled: glass.model.saved ? "" : null, type: "text", "aria-label": label, placeholder: "another word", size: "12", autocomplete: "off", spellcheck: "false" });
  const [other, otherFoil] = [written("Another word"), written("Compared word")];
  const crumbs = make("nav", { class: "crumbs", "aria-label": "Path" });
  const sentence = make("p", { class: "lead" });
  const meant = make("p", { class: "note" });
  const notice = make("div", {});
  const canvas = make("canvas", { "aria-hidden": "true" });
  const words = make("div", { class: "row-of-words" });
  const arcs = make("div", { class: "arcs wide", tabindex: "0", role: "group", "aria-label": "Where the head looked" }, make("div", { class: "arcs-inside" }, canvas, words, make("p", { class: "note" }, "Arc and shade: weight, from 0 to 1")));
  const body = make("div", { class: "stack" });
  const element = make("div", { class: "path" }, make("div", { class: "tools" }, make("label", {}, "Why ", target), other, make("label", {}, "rather than ", foil), otherFoil), crumbs, notice, meant, sentence, arcs, body);
  const numbers = make("div", { class: "stack" });
  let [asked, offered] = ["", ""];
  /** @type {any} */
  let shown = null;

  const asks = () => whyIn(glass.state(), glass.q(), glass.run().tokens.length - 1);
  /** @param {{target?: string, foil?: string, via?: string}} to */
  function changes(to) {
    const now = { target: shown ? `${shown.target[0]}` : asks().target, foil: shown ? `${shown.foil?.[0] ?? "none"}` : asks().foil, via: "", ...to };
    return whyWord(glass.state(), glass.q(), now.target, now.foil, now.via);
  }
  target.addEventListener("change", () => glass.go(changes({ target: target.value, foil: "" }), "new"));
  foil.addEventListener("change", () => glass.go(changes({ foil: foil.value }), "new"));
  other.addEventListener("change", () => {
    if (other.value !== "") glass.go(changes({ target: typed(other.value), foil: "" }), "new");
  });
  otherFoil.addEventListener("change", () => {
    if (otherFoil.value !== "") glass.go(changes({ foil: typed(otherFoil.value) }), "new");
  });

  /** Which spelling of a typed word was taken, by the token's id. @type {Map<string, (Node | string)[]>} */
  const readings = new Map();

  /**
   * The id of the token that a typed word means: with a blank before it or without one, whichever is likelier here.
   * @param {string} word
   */
  async function read(word) {
    if (!isTyped(word)) return word;
    const text = textOf(word);
    const spellings = /^\s/.test(text) ? [text] : [text, ` ${text}`];
    const asked = await Promise.allSettled(spellings.map((one) => glass.ask(`path?position=${glass.q()}&word=${encodeURIComponent(one)}&foil=none`)));
    const found = asked.flatMap((one) => (one.status === "fulfilled" ? [one.value] : [])).sort((a, b) => Number(b.value) - Number(a.value));
    const [best, less] = found;
    if (!best) throw /** @type {PromiseRejectedResult} */ (asked[0]).reason;
    const [id, own] = best.target;
    if (less && less.target[0] !== id) readings.set(`${id}`, ["Read as ", spelled(piece(own)), ", which is likelier here than ", spelled(piece(less.target[1])), ". "]);
    else if (own !== text) readings.set(`${id}`, ["Read as ", spelled(piece(own)), ": without its blank it is not one token. "]);
    return `${id}`;
  }

  /** The tokens that can be chosen: the likeliest here, the one that follows, those of the text. @param {any} answer */
  async function offer(answer) {
    const mine = `${glass.run().id} ${glass.q()} ${answer.target[0]} ${answer.foil?.[0] ?? "none"}`;
    if (mine === offered) return;
    offered = mine;
    const { top } = await glass.ask(`predictions?position=${glass.q()}&k=${OFFERED}`).catch(() => ({ top: glass.run().predictions[glass.q()]?.top ?? [] }));
    if (mine !== offered) return;
    /** @type {Map<number, string>} */
    const all = new Map([...(answer.foil ? [answer.target, answer.foil] : [answer.target]), ...top].map(([id, text]) => [id, onOneLine(piece(text))]));
    const next = aimOf(glass.run(), glass.q());
    for (const token of [...(next ? [next] : []), ...glass.run().tokens.slice(-OFFERED)]) all.set(token.id, token.text);
    const option = (/** @type {string} */ id, /** @type {string} */ text, /** @type {any} */ to) => make("option", { value: id, disabled: glass.holds(changes(to)) ? null : "" }, text);
    target.replaceChildren(...[...all].map(([id, text]) => option(`${id}`, text, { target: `${id}`, foil: "" })));
    foil.replaceChildren(...[["none", "nothing else"], ...all].filter(([id]) => id !== answer.target[0]).map(([id, text]) => option(`${id}`, `${text}`, { foil: `${id}` })));
    target.value = `${answer.target[0]}`;
    foil.value = answer.foil ? `${answer.foil[0]}` : "none";
  }

  const question = () => pathQuestion(glass.state(), glass);

  async function ask() {
    const key = `${glass.run().id} ${glass.other()?.done ? glass.other()?.id : ""} ${question()}`;
    if (key === asked) return;
    asked = key;
    const focused = body.contains(document.activeElement);
    try {
      const { target: word, foil: less } = asks();
      if (isTyped(word) || isTyped(less)) {
        const to = { target: await read(word), foil: await read(less) };
        if (to.foil !== "" && to.foil === to.target) throw new Trouble("This is the same token on both sides: type another word to compare with.");
        if (key === asked) glass.go(changes(to));
        return;
      }
      const own = await glass.ask(question());
      const first = own.via === "" && glass.other()?.done;
      const theirs = first ? await glass.askOther(`path?position=${glass.q()}&target=${own.target[0]}&foil=${own.foil ? own.foil[0] : "none"}`).catch(() => null) : null;
      if (key !== asked) return;
      notice.replaceChildren();
      shown = own;
      other.value = otherFoil.value = "";
      meant.replaceChildren(...[own.target, own.foil].flatMap((token) => (token && readings.get(`${token[0]}`)) ?? []));
      offer(own);
      fill(own, theirs);
      if (focused) body.querySelector("a")?.focus();
    } catch (fault) {
      if (key !== asked) return;
      shown = null;
      [meant, sentence, crumbs, body, words].forEach((one) => one.replaceChildren());
      arcs.hidden = true;
      const begin = make("a", { href: glass.link(whyWord(glass.state(), glass.q())) }, "Begin with the likeliest word");
      notice.replaceChildren(troubleNote(asTrouble(fault), () => {
        asked = "";
        ask();
      }, begin));
    }
  }

  /** A hop in words. @param {string} hop */
  function named(hop) {
    const [kind, rest] = [hop[0], hop.slice(1)];
    if (kind === "h") return `L${rest.replace(".", "H")}`;
    if (kind === "t") return glass.run().tokens[Number(rest)] ? spelled(/** @type {any} */ (glass.run().tokens[Number(rest)]).piece) : rest;
    return kind === "m" ? `L${rest} MLP` : kind === "u" ? `unit ${rest}` : kind === "s" ? `before block ${rest}` : "the word itself";
  }

  /** @param {any} own @param {any} theirs */
  function fill(own, theirs) {
    const hops = own.via ? own.via.split(",") : [];
    const first = make("span", {}, spelled(piece(own.target[1])), ...(own.foil ? [" over ", spelled(piece(own.foil[1]))] : []));
    const parts = [first, ...hops.map(named)];
    crumbs.replaceChildren(make("ol", {}, ...parts.map((part, n) => make("li", {}, n === parts.length - 1
      ? make("span", { "aria-current": "step" }, part)
      : make("a", { href: glass.link(changes({ via: hops.slice(0, n).join() })) }, part)))));
    // tokens are spelled as everywhere, a minus is one, and a figure stays on the line of its name
    const text = own.sentence.replace(/(?<=[^,;.]) (?=[+-]?\d)/g, "\u00a0").replace(/(?<=[\s(])-(?=\d)/g, "−").split(/“([^”]*)”/);
    sentence.replaceChildren(...text.flatMap((/** @type {string} */ part, /** @type {number} */ n) => (n % 2 ? [spelled(piece(part))] : glossed(part))));
    const head = /^h(\d+)\.(\d+)$/.exec(hops.at(-1) ?? "");
    const scores = head && glass.run().layers[Number(head[1])]?.heads[Number(head[2])];
    const kind = scores && kindOf(scores);
    if (kind) sentence.append(make("span", { class: "dim" }, ` On this text it is a head of the kind “${kind.name}” (${short(kind.value, 2)}).`));
    row(own, hops);
    body.replaceChildren(...(own.bars.length > 0 ? [table(own, hops, theirs)] : []), afterwards(own));
    numbers.replaceChildren(tokenNumbers(glass, own.at), ...lens(own), make("section", {}, make("p", { class: "note" }, own.note), make("p", { class: "note" }, ...glossed("A bar is what a part wrote directly to the head; follow the other parts to see what it told them. Attention patterns, and means and scales of norms, are those of this run."))));
  }

  /** The words of the text with arcs to those that the head looked at. @param {any} own @param {string[]} hops */
  function row(own, hops) {
    const { weights } = own;
    arcs.hidden = weights.length === 0;
    if (arcs.hidden) return words.replaceChildren();
    const tokens = glass.run().tokens;
    const weight = (/** @type {number} */ n) => Number(weights[n]) || 0;
    const most = [...weights.keys()].sort((a, b) => weight(b) - weight(a)).slice(0, IN_ROW - 1);
    const kept = tokens.map((_, n) => n).filter((n) => tokens.length <= IN_ROW || most.includes(n) || n === own.at);
    const one = (/** @type {number} */ n) => {
      const link = own.bars.some((/** @type {any} */ bar) => bar.hop === `t${n}`);
      const attributes = { "data-n": `${n}`, title: `weight ${short(weight(n), 3)}`, class: n === own.at ? "from" : null };
      const text = tokens[n] ? spelled(/** @type {any} */ (tokens[n]).piece) : `${n}`;
      const made = link ? make("a", { ...attributes, href: glass.link(changes({ via: [...hops, `t${n}`].join() })) }, text) : make("span", attributes, text);
      made.style.setProperty("--shade", weight(n).toFixed(3));
      return made;
    };
    words.replaceChildren(...kept.flatMap((n, i) => [i > 0 && kept[i - 1] !== n - 1 ? make("span", { class: "dim" }, "…") : "", one(n)]));
    draw();
    // the word that looks is in sight, where a row is wider than the page
    const from = words.querySelector(".from");
    if (from instanceof HTMLElement) arcs.scrollLeft = Math.max(0, from.offsetLeft + from.offsetWidth + 8 - arcs.clientWidth);
  }

  function draw() {
    if (!shown || shown.weights.length === 0 || !element.isConnected) return;
    const [wide, origin] = [words.scrollWidth, words.getBoundingClientRect().left];
    sizeCanvas(canvas, wide, ARCS);
    const context = emptyCanvas(canvas);
    if (!context) return;
    const middle = (/** @type {Element} */ one) => one.getBoundingClientRect().left + one.getBoundingClientRect().width / 2 - origin;
    const from = words.querySelector(".from");
    if (!from) return;
    context.strokeStyle = inks(element)("accent");
    for (const one of words.querySelectorAll("[data-n]")) {
      const weight = Number(shown.weights[Number(one.getAttribute("data-n"))]) || 0;
      if (weight < 0.005) continue;
      const [a, b] = [middle(from), middle(one)];
      context.lineWidth = Math.max(0.5, 7 * weight);
      context.globalAlpha = 0.25 + 0.75 * weight;
      context.beginPath();
      if (one === from) context.ellipse(a, ARCS - 8, 9, 9, 0, 0, 2 * Math.PI);
      else context.ellipse((a + b) / 2, ARCS, Math.abs(a - b) / 2, Math.min(ARCS - 6, 12 + Math.abs(a - b) / 4), 0, Math.PI, 2 * Math.PI);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** @param {any} own @param {string[]} hops @param {any} theirs */
  function table(own, hops, theirs) {
    const looks = own.weights.length > 0;
    const units = own.bars.some((/** @type {any} */ bar) => bar.words.length > 0);
    const less = new Map((theirs?.bars ?? []).map((/** @type {any} */ bar) => [bar.name, bar.value]));
    const most = Math.max(1e-30, ...[...own.bars, own.rest].map((/** @type {any} */ bar) => Math.abs(Number(bar.value)) || 0));
    const line = (/** @type {Node | string} */ name, /** @type {any} */ value, /** @type {any} */ bar = null, /** @type {string | null} */ kind = null) => {
      const beside = bar && less.has(bar.name) ? ` (${signed(value - Number(less.get(bar.name)))})` : "";
      const more = looks ? [make("td", { class: "number" }, bar?.weight === undefined || bar?.weight === null ? "" : short(bar.weight, 3))] : units ? [make("td", {}, ...(bar?.words ?? []).slice(0, 4).flatMap((/** @type {any} */ [, text]) => [spelled(piece(text)), " "]))] : [];
      return make("tr", { class: kind }, make("th", { scope: "row" }, name), ...more, make("td", { class: "of-bar", "aria-hidden": "true" }, signedBar(Number(value) || 0, most, bar?.part?.kind)), make("td", { class: "number" }, `${Number(value) < 0 ? "" : "+"}${short(value, 4)}${beside}`));
    };
    const rows = own.bars.map((/** @type {any} */ bar) => {
      const name = bar.token ? make("span", {}, make("span", { class: "dim" }, `${bar.name} `), spelled(piece(bar.token[1]))) : bar.name;
      const to = bar.hop && glass.link(changes({ via: [...hops, bar.hop].join() }));
      return line(to ? make("a", { href: to, "data-hop": bar.hop }, name) : name, bar.value, bar);
    });
    if (own.rest.count > 0) rows.push(line(`${plural(own.rest.count, "other part")}`, own.rest.value, looks ? { weight: own.rest.weight } : null, "others"));
    rows.push(line(own.additive ? "rounding" : "what is not linear, and rounding", own.remainder, null, "others"), line("together", own.value, null, "total"));
    const unit = hops.some((/** @type {string} */ hop) => hop.startsWith("u")) ? "of what went into the unit" : own.foil ? "of the difference of logits" : "of the logit";
    const headers = [looks ? "token" : "part", ...(looks ? ["weight"] : units ? ["makes likelier"] : []), "", unit];
    return make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Parts" }, make("table", { class: `plain-table parts${units ? " worded" : ""}` }, make("thead", {}, make("tr", {}, ...headers.map((word, n) => (word ? make("th", { scope: "col", class: n > 0 && (n === headers.length - 1 || looks) ? "number" : null }, word) : make("td", {}))))), make("tbody", {}, ...rows)));
  }

  /** @param {any} own */
  const afterwards = (own) => make("p", { class: "ways" }, make("a", { class: "arithmetic", href: glass.link({ v: "why", n: own.to.name, at: own.to.at.join() }) }, "Show the arithmetic"), make("span", { class: "dim" }, ` of ${own.to.name} [${own.to.at.join(", ")}]`));

  /** What it does to the logits, as words. @param {any} own */
  function lens(own) {
    if (own.raised.length === 0) return [];
    const rows = [...own.raised, ...own.lowered].map((/** @type {any} */ [id, text, by]) => ({ name: spelled(piece(text)), value: Number(by), text: short(by, 3), chosen: id === own.target[0] || id === own.foil?.[0] }));
    return [make("section", {}, barTable("Read by the head alone, it adds to these logits", rows))];
  }

  /** The parts in the order of the table. @param {number} by */
  function step(by) {
    const all = [...body.querySelectorAll("tbody a")];
    const at = all.indexOf(/** @type {Element} */ (document.activeElement));
    const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
    if (next instanceof HTMLElement) next.focus();
  }
  element.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!by || event.ctrlKey || event.metaKey || event.altKey || !(event.target instanceof HTMLAnchorElement)) return;
    event.preventDefault();
    step(by);
  });
  const watcher = new ResizeObserver(draw);
  watcher.observe(element);

  return {
    element,
    numbers,
    update() {
      const { target: word } = asks();
      if (glass.run().done) ask();
      else body.replaceChildren(make("p", { class: "hint" }, awaited(glass.run(), /^["?]/.test(word) ? `the path of “${spoken(piece(isTyped(word) ? textOf(word) : word.slice(1, -1)))}”` : "the path")));
    },
    close: () => watcher.disconnect(),
    keys: {
      j: () => step(1), k: () => step(-1),
      b: () => {
        const via = asks().via.split(",").filter((hop) => hop);
        if (via.length > 0) glass.go(changes({ via: via.slice(0, -1).join() }), "new");
      },
    },
    tensor: () => shown?.to ?? { name: "logits", at: [0, glass.q(), glass.run().predictions[glass.q()]?.top[0]?.[0] ?? 0] },
  };
}
