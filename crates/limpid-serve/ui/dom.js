// Elements of the page. Text goes in as text, never as markup: this file is the only one that makes elements.

/**
 * An element with attributes (null: none), classes in `class`, and what it holds.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {(Node | string | Record<string, string | null>)[]} parts
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, ...parts) {
  const element = document.createElement(tag);
  for (const part of parts) {
    if (part instanceof Node || typeof part === "string") element.append(part);
    else for (const name in part) if (part[name] != null) element.setAttribute(name, part[name]);
  }
  return element;
}

/** A box of a class. @param {string} kind @param {(Node | string)[]} children */
export const div = (kind, ...children) => make("div", { class: kind }, ...children);

/** What matters less, within a line. @param {(Node | string)[]} children */
export const dim = (...children) => make("span", { class: "dim" }, ...children);

/** A paragraph in small letters. @param {(Node | string)[]} children */
export const remark = (...children) => make("p", { class: "note" }, ...children);

/** A link. @param {string} href @param {(Node | string)[]} children */
export const anchor = (href, ...children) => make("a", { href }, ...children);

/** What may be wider than the page, and then scrolls. @param {string} label @param {(Node | string)[]} children */
export function scrolling(label, ...children) {
  return make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": label }, ...children);
}

/**
 * Puts something into an element, in place of what is there.
 * @param {Element} element @param {(Node | string)[]} children
 */
export const fill = (element, ...children) => element.replaceChildren(...children);

/**
 * Does something whenever something happens to an element.
 * @template {keyof (WindowEventMap & DocumentEventMap)} K
 * @param {EventTarget} target
 * @param {K} kind
 * @param {(event: (WindowEventMap & DocumentEventMap)[K]) => void} act
 * @param {AddEventListenerOptions} [options]
 */
export function on(target, kind, act, options) {
  target.addEventListener(kind, /** @type {EventListener} */ (act), options);
}

/**
 * Does something when a form is sent, in place of what a browser does.
 * @param {HTMLFormElement} form @param {() => void} act
 */
export function onSubmit(form, act) {
  on(form, "submit", (event) => {
    event.preventDefault();
    act();
  });
}

/**
 * Does something at Enter, which with Shift begins a line.
 * @param {HTMLTextAreaElement} field @param {() => void} act
 */
export function onEnter(field, act) {
  on(field, "keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    act();
  });
}

/** @param {Element} element */
export const isFocused = (element) => element === document.activeElement;

/** Whether a key is pressed with one that makes another of it. @param {KeyboardEvent} event */
export const isModified = (event) => event.ctrlKey || event.metaKey || event.altKey;

/**
 * A button that does something.
 * @param {string} label
 * @param {() => void} action
 * @param {Record<string, string | null>} [attributes]
 */
export function button(label, action, attributes = {}) {
  const made = make("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", action);
  return made;
}

/**
 * The element of index.html with this id.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`index.html has no ${kind.name} with the id ${id}`);
  return found;
}

/**
 * The page's colours as a canvas takes them: style.css says of what kind they are, so that browsers resolve them.
 * @param {Element} element
 * @returns {(name: string) => string}
 */
export function inks(element) {
  const style = getComputedStyle(element);
  return (name) => style.getPropertyValue(`--${name}`).trim() || style.color;
}

/**
 * Gives a canvas its size in pixels of the page; it has as many as the screen has there.
 * @param {HTMLCanvasElement} canvas
 * @param {number} wide
 * @param {number} high
 */
export function sizeCanvas(canvas, wide, high) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
  canvas.style.setProperty("width", `${wide}px`);
  canvas.style.setProperty("height", `${high}px`);
}

/**
 * A canvas with nothing on it, to be drawn on in pixels of the page, with small letters.
 * @param {HTMLCanvasElement} canvas
 * @returns {CanvasRenderingContext2D | null}
 */
export function emptyCanvas(canvas) {
  const context = canvas.getContext("2d");
  if (!context) return null;
  const ratio = devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.font = fontOf(canvas);
  context.textBaseline = "middle";
  return context;
}

/** The small letters of a canvas. @param {Element} element */
export const fontOf = (element) => `11px ${getComputedStyle(element).fontFamily}`;

/**
 * Text that is read from below.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y
 */
export function turnedText(context, text, x, y) {
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  context.fillText(text, 0, 0);
  context.restore();
}

/** The line that screen readers read aloud when it changes. */
const SPOKEN = "spoken";

/**
 * Has a screen reader say something.
 * @param {string} text
 */
export function say(text) {
  byId(SPOKEN, HTMLElement).textContent = text;
}

/**
 * A number with as many digits as help, in the page's language.
 * @param {number} value
 * @param {number} digits after the point
 */
export function figure(value, digits) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/**
 * A number of any size in few characters, with a true minus. What is no number is a word: JSON has none for it.
 * @param {number | string | null | undefined} value
 * @param {number} digits that count
 */
export function short(value, digits = 4) {
  const number = Number(value ?? NaN);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  const text = size !== 0 && (size < 1e-4 || size >= 1e7)
    ? number.toExponential(digits - 1)
    : `${Number(number.toPrecision(digits))}`;
  return text.replace("e+", "e").replaceAll("-", "−");
}

/** A number, or the bound that is beyond. @param {number} value @param {number} least @param {number} most */
export const within = (value, least, most) => Math.min(most, Math.max(least, value));

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  return `${figure(count, 0)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * A word that was kept in this browser; empty where there is none.
 * @param {string} name
 * @param {"localStorage" | "sessionStorage"} where
 */
export function kept(name, where = "localStorage") {
  try {
    return window[where].getItem(`limpid.${name}`) ?? "";
  } catch {
    return ""; // a browser may forbid it
  }
}

/**
 * Keeps a word in this browser, for good or until the tab is closed.
 * @param {string} name
 * @param {string} value empty: forgets it
 * @param {"localStorage" | "sessionStorage"} where
 */
export function keep(name, value, where = "localStorage") {
  try {
    if (value === "") window[where].removeItem(`limpid.${name}`);
    else window[where].setItem(`limpid.${name}`, value);
  } catch {
    // then it lasts as long as the page
  }
}
