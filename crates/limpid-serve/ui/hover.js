// What the model thought at a token: its probability, its surprise, the likeliest others. Shown for the token under the
// pointer or, first of all, for the one in focus: a click, a tap or the arrow keys choose it, Esc lets it go.
import { figure, fill, isModified, make, on, remark, say } from "./dom.js";
import { spelled, spoken } from "./text.js";

/** @typedef {import("./source.js").Token} Token */
/** @typedef {import("./text.js").Piece} Piece */

/**
 * What can be done with a token and with those that were likely in its place: ask why, or take another one and go on
 * from there.
 * @typedef {{why: (piece: Piece) => void, take: (piece: Piece) => void, drawn: string}} Ways
 */

/** @type {WeakMap<Element, Ways>} */
const WAYS = new WeakMap();

/** @type {WeakMap<Element, Token>} */
const READ_OUTS = new WeakMap();

/** The probability that JSON has no number for. */
const NEVER = -9999;

/** Milliseconds in which the pointer may go from a token to its read-out. */
const GRACE = 200;

/**
 * Lets an element show what is known of a token.
 * @param {HTMLElement} element
 * @param {Token} token
 * @param {Ways | null} [ways]
 */
export function explain(element, token, ways = null) {
  READ_OUTS.set(element, token);
  if (ways) WAYS.set(element, ways);
}

/** @param {EventTarget | null} target */
function tokenAt(target) {
  return target instanceof HTMLElement && READ_OUTS.has(target) ? target : null;
}

/**
 * In nats; null where there was nothing to expect.
 * @param {Token} token
 */
export function surprise(token) {
  return token.logProb === null ? null : Math.max(0, -token.logProb);
}

/** @param {number} logProb */
function percent(logProb) {
  const share = 100 * Math.exp(logProb);
  if (share === 0 || share === 100) return `${share} %`;
  if (share < 0.001) return "< 0.001 %";
  if (share > 99.99) return "> 99.99 %";
  return `${share > 99 ? figure(share, 2) : Number(share.toPrecision(3))} %`;
}

/** @param {Token} token @returns {number} its place among the likeliest; -1 if it is not one of them */
function place(token) {
  return token.top.findIndex(({ piece }) =>
    piece.text === token.piece.text && `${piece.bytes}` === `${token.piece.bytes}`);
}

/**
 * Whether its reason can be asked for: something came before it, and it has a text to ask by, unlike a part of a
 * character.
 * @param {Token} token
 */
const askable = (token) => token.logProb !== null && token.top.length > 0 && token.piece.text !== null;

/** @param {Token} token */
function inNumbers(token) {
  const nats = surprise(token);
  if (nats === null || token.logProb === null) return "The first token of a text: nothing comes before it.";
  let amount = `${figure(nats, 2)} nats (${figure(nats / Math.LN2, 2)} bits)`;
  if (nats < 0.005) amount = nats === 0 ? "0 nats" : "below 0.01 nats";
  if (token.logProb <= NEVER) amount = "infinite";
  return `Probability ${percent(token.logProb)}, surprise ${amount}.`;
}

/** @param {Token} token */
function inWords(token) {
  const others = token.top.map(({ piece, logProb }) => `${spoken(piece)} ${percent(logProb)}`);
  return `${spoken(token.piece)}. ${inNumbers(token)}${others.length ? ` Likeliest: ${others.join(", ")}.` : ""}`;
}

/**
 * A row: the token, a bar, the probability.
 * @param {HTMLElement | string} name
 * @param {number} logProb
 * @param {string | null} kind
 */
function row(name, logProb, kind) {
  const bar = make("span", { class: "bar" });
  bar.style.width = `${100 * Math.exp(logProb)}%`;
  const cells = [make("td", { "aria-hidden": "true" }, bar), make("td", percent(logProb))];
  return make("tr", { class: kind }, make("th", { scope: "row" }, name), ...cells);
}

/**
 * @param {Token} token
 * @param {Ways | undefined} ways
 * @returns {Node[]}
 */
function content(token, ways) {
  const nodes = [make("p", { class: "name" }, spelled(token.piece)), make("p", inNumbers(token))];
  if (token.logProb === null || token.top.length === 0) return nodes;
  const at = place(token);
  if (ways && !askable(token)) nodes.push(remark("A part of a character cannot be asked about."));
  if (ways && askable(token)) {
    const why = make("button", { type: "button", class: "quiet" }, "Why this word?");
    on(why, "click", () => ways.why(token.piece));
    nodes.push(make("p", why));
  }
  /** Another word, which can be taken. @param {import("./text.js").Piece} piece @param {number} n */
  const other = (piece, n) => {
    if (!ways || n === at || piece.text === null) return spelled(piece);
    const take = make(
      "button", { type: "button", class: "quiet take", title: `Continue from here with this word (${n + 1})` },
      spelled(piece),
    );
    on(take, "click", () => ways.take(piece));
    return take;
  };
  const rows = token.top.map(({ piece, logProb }, n) => row(other(piece, n), logProb, n === at ? "chosen" : null));
  let known = token.top.reduce((sum, { logProb }) => sum + Math.exp(logProb), 0);
  if (at < 0) {
    rows.push(row(spelled(token.piece), token.logProb, "chosen"));
    known += Math.exp(token.logProb);
  }
  if (known < 1) rows.push(row("all others", Math.log(1 - known), "others"));
  const chosen = at < 0 ? "not among the likeliest" : at === 0 ? "the likeliest" : `number ${at + 1} of the likeliest`;
  const caption = make("caption", `This token is ${chosen}:`);
  const note =
    ways ? [remark(`Before temperature and cuts. ${ways.drawn} Click another word to continue with it.`)] : [];
  return [...nodes, make("table", caption, make("tbody", ...rows)), ...note];
}

/**
 * Begins to listen; once for a page.
 * @param {HTMLElement} panel
 */
export function startHover(panel) {
  /** @type {HTMLElement | null} */
  let focused = null;
  /** @type {HTMLElement | null} */
  let shown = null;
  let leaving = 0;

  const put = () => {
    if (shown) putOver(panel, shown);
  };

  /** @param {HTMLElement | null} element */
  function show(element) {
    clearTimeout(leaving);
    shown?.classList.remove("looked-at");
    shown = element;
    const token = element && READ_OUTS.get(element);
    panel.hidden = !token;
    if (!token) return;
    element.classList.add("looked-at");
    fill(panel, ...content(token, WAYS.get(element)));
    put();
  }

  on(document, "pointerover", (event) => {
    if (panel.contains(/** @type {Node} */ (event.target))) clearTimeout(leaving);
    else if (shown && shown !== focused && shown !== event.target) {
      clearTimeout(leaving);
      leaving = setTimeout(() => show(focused), GRACE);
    }
  });
  on(document, "pointermove", (event) => {
    // not where text moves under a pointer that rests: nobody asked for anything
    const element = tokenAt(event.target);
    if (!element || event.pointerType === "touch") return;
    clearTimeout(leaving);
    if (element !== shown) show(element);
  });
  on(document, "focusin", (event) => {
    focused = tokenAt(event.target);
    show(focused);
    const token = focused && READ_OUTS.get(focused);
    if (!focused || !token) return;
    // the whole row of tokens is one stop of the tab key
    focused.parentElement?.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    focused.setAttribute("tabindex", "0");
    // on a phone the read-out lies over the lower part of the window
    if (panel.offsetLeft === 0 && focused.getBoundingClientRect().bottom > panel.offsetTop) {
      focused.scrollIntoView({ block: "center" });
    }
    say(inWords(token));
  });
  on(document, "focusout", () => {
    focused = null;
    show(null);
  });
  on(document, "click", (event) => {
    tokenAt(event.target)?.focus({ preventScroll: true });
  });
  // the focus stays at the token
  on(panel, "mousedown", (event) => event.preventDefault());
  on(document, "pointerdown", (event) => {
    // a phone leaves the focus where it was
    if (focused && !tokenAt(event.target) && !panel.contains(/** @type {Node} */ (event.target))) focused.blur();
  });
  on(document, "keydown", (event) => {
    const element = tokenAt(event.target);
    if (event.key === "Escape" && shown) {
      focused?.blur();
      show(null);
      event.preventDefault();
    }
    if (!element || isModified(event)) return;
    const [ways, token] = [WAYS.get(element), READ_OUTS.get(element)];
    const other = token?.top[Number(event.key) - 1];
    if (ways && token && ((event.key === "Enter" && askable(token)) || (other && other.piece.text !== null))) {
      event.preventDefault();
      return event.key === "Enter" ? ways.why(token.piece) : ways.take(/** @type {any} */ (other).piece);
    }
    const next = neighbour(element, event.key);
    if (next === undefined) return;
    event.preventDefault();
    next?.focus();
  });
  on(document, "scroll", put, { capture: true, passive: true });
  on(window, "resize", put);
}

/**
 * Puts a panel over a token where there is room: what comes after it stays in sight.
 * @param {HTMLElement} panel @param {HTMLElement} token
 */
function putOver(panel, token) {
  const box = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const above = box.top - 6 - panel.offsetHeight;
  panel.style.setProperty("--x", `${Math.max(8, Math.min(box.left - 12, innerWidth - panel.offsetWidth - 8))}px`);
  panel.style.setProperty("--y", `${above >= 0 ? above : box.bottom + 6}px`);
}

/**
 * The token that a key leads to; null where there is none, undefined if the key means nothing here.
 * @param {HTMLElement} element
 * @param {string} key
 * @returns {HTMLElement | null | undefined}
 */
function neighbour(element, key) {
  const all = [...(element.parentElement?.children ?? [])].map(tokenAt).filter((other) => other !== null);
  const at = all.indexOf(element);
  switch (key) {
    case "ArrowRight":
      return all[at + 1] ?? null;
    case "ArrowLeft":
      return all[at - 1] ?? null;
    case "Home":
      return all[0] ?? null;
    case "End":
      return all.at(-1) ?? null;
    case "ArrowDown":
      return nearest(element, all.slice(at + 1));
    case "ArrowUp":
      return nearest(element, all.slice(0, Math.max(0, at)).reverse());
    default:
      return undefined;
  }
}

/**
 * Of the next line that others are on, the one nearest to the element.
 * @param {HTMLElement} element
 * @param {HTMLElement[]} others in the order of leaving
 */
export function nearest(element, others) {
  const from = element.getBoundingClientRect();
  const middle = (/** @type {DOMRect} */ box) => (box.left + box.right) / 2;
  let line = null;
  let best = null;
  let least = Infinity;
  for (const other of others) {
    const box = other.getBoundingClientRect();
    if (Math.abs(box.top - from.top) < from.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > from.height / 2) break;
    const distance = Math.abs(middle(box) - middle(from));
    if (distance < least) [best, least] = [other, distance];
  }
  return best;
}
