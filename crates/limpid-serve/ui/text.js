// Text of others, made safe to look at: a model may write anything. What has no look of its own (control characters,
// characters that turn the direction of a line, characters of no width) is shown as a mark with its code point.
import { make } from "./dom.js";

/** Characters that are not seen or that change how others are seen, except a new line and a tab. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/u;

/** @param {string} character */
function codePoint(character) {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** @param {string} label */
function mark(label) {
  return make("bdi", { class: "mark" }, label);
}

/**
 * Text as it is read: the same text, with marks for what is not seen. A new line has a faint sign if `lines` is true.
 * @param {string} text
 * @param {boolean} lines
 * @returns {(Node | string)[]}
 */
export function readable(text, lines) {
  /** @type {(Node | string)[]} */
  const parts = [];
  let plain = "";
  for (const character of text) {
    const line = character === "\n";
    if (line ? !lines : character === "\t" || !UNSEEN.test(character)) {
      plain += character;
      continue;
    }
    if (plain) parts.push(plain);
    parts.push(line ? make("span", { class: "line" }, "↵") : mark(codePoint(character)));
    plain = line ? "\n" : "";
  }
  if (plain) parts.push(plain);
  return parts;
}

/**
 * The class of a token that begins with a blank before a word: where it ends a line, the blank is not painted.
 * @param {string} text
 */
export const softly = (text) => (/^ \S/.test(text) ? " soft" : "");

/**
 * A token spelled out, spaces too.
 * @param {Piece} piece
 * @returns {HTMLElement}
 */
export function spelled(piece) {
  const signs = new Map([[" ", "␣"], ["\n", "↵"], ["\t", "⇥"]]);
  const spelling = make("bdi", { class: "spelling", dir: "auto" });
  if (piece.text === null) {
    spelling.append(mark(inBytes(piece.bytes)));
  } else {
    for (const character of piece.text) {
      const sign = signs.get(character);
      if (sign) spelling.append(make("span", { class: "sign" }, sign));
      else spelling.append(...readable(character, false));
    }
    if (piece.text === "") spelling.append(mark("no text"));
  }
  return spelling;
}

/**
 * A token in words, for a screen reader.
 * @param {Piece} piece
 */
export function spoken(piece) {
  if (piece.text === null) return inBytes(piece.bytes);
  const names = new Map([[" ", "space"], ["\n", "new line"], ["\t", "tab"]]);
  const blank = piece.text.trim() === "";
  const words = [...piece.text].map((c) => (blank && names.get(c)) || (UNSEEN.test(c) && codePoint(c)) || c);
  return words.join(blank ? " " : "") || "no text";
}

/**
 * What a token stands for. `text` is null where its bytes alone are not text: a part of a character.
 * @typedef {{text: string | null, bytes: number[]}} Piece
 */

/** @param {number[]} bytes */
function inBytes(bytes) {
  return `bytes ${bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ")}`;
}

/** How the server writes bytes that are not text: `bytes:\xE2\x98`. */
const BYTES = /^bytes:((?:\\x[0-9a-fA-F]{2})+)$/;

/**
 * A token as the server writes it.
 * @param {string} written
 * @param {number[] | null} [bytes] if the server gives them
 * @returns {Piece}
 */
export function piece(written, bytes = null) {
  const escaped = BYTES.exec(written);
  if (!bytes?.length && !escaped) return { text: written, bytes: [...new TextEncoder().encode(written)] };
  const all =
    bytes?.length ? bytes : (escaped?.[1] ?? "").split("\\x").slice(1).map((byte) => Number.parseInt(byte, 16));
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(all));
    return { text, bytes: all };
  } catch {
    return { text: null, bytes: all };
  }
}

/**
 * Joins tokens to text: what a token adds, where several may make one character.
 * @returns {(piece: Piece) => string}
 */
export function joiner() {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return ({ bytes }) => decoder.decode(Uint8Array.from(bytes), { stream: true });
}

/**
 * A letter with what stands below or above it, as plain text writes it: `W_e`, `A_s^M`, `x_{t+1}`; behind a word only
 * in braces.
 */
const INDEXED =
  /(?<![\p{L}_])(\p{L}\p{M}*[₀-₉′]*)((?:[_^](?:\{[^{}]*\}|[\p{Lu}\p{Ll}\d]+(?:-\p{L}+)?))+)|()((?:[_^]\{[^{}]*\})+)/gu;

/**
 * A formula of one line of text, with its indices below and above.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function formulaOf(text) {
  /** @type {(Node | string)[]} */
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(INDEXED)) {
    parts.push(text.slice(from, found.index), found[1] ?? "");
    for (const [, sign, braced, word] of (found[2] ?? found[4] ?? "").matchAll(/([_^])(?:\{([^{}]*)\}|([^_^]+))/gu)) {
      parts.push(make(sign === "_" ? "sub" : "sup", {}, braced ?? word ?? ""));
    }
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)].filter((part) => part !== "");
}
