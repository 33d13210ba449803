// The prompt as a row of tokens: shaded, walked with the arrow keys, always in sight. The chosen token is the one that
// looks; Shift chooses the one that it is compared with.
import { fill, isModified, make, on, say, within } from "./dom.js";
import { nearest } from "./hover.js";
import { readable, softly, spoken } from "./text.js";

/** @typedef {import("./runs.js").Run} Run */

/**
 * @param {string} label
 * @param {(changes: {q?: number, k?: number}) => void} choose
 */
export function tokenChips(label, choose) {
  const element = make("div", {
    class: "chips", role: "listbox", "aria-label": label, "aria-orientation": "horizontal", dir: "auto", hidden: "",
  });
  /** @type {HTMLElement[]} */
  let spans = [];
  /** @type {Run | null} */
  let shown = null;
  let [chosen, compared] = [-1, -1];

  /** @param {EventTarget | null} target */
  const at = (target) => spans.findIndex((span) => target instanceof Node && span.contains(target));

  on(element, "click", (event) => {
    const position = at(event.target);
    if (position < 0) return;
    spans[position]?.focus({ preventScroll: true });
    choose(event.shiftKey ? { k: position } : { q: position });
  });
  on(element, "keydown", (event) => {
    if (isModified(event)) return;
    const from = event.shiftKey && compared >= 0 ? compared : Math.max(0, chosen);
    const last = spans.length - 1;
    /** @type {Record<string, number>} */
    const places = {
      ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last,
      ArrowUp: nextLine(from, spans.slice(0, from).reverse()), ArrowDown: nextLine(from, spans.slice(from + 1)),
    };
    const to = places[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const position = within(to, 0, last);
    choose(event.shiftKey ? { k: position } : { q: position });
    if (!event.shiftKey) spans[position]?.focus();
    const token = shown?.tokens[position];
    if (token) say(`${event.shiftKey ? "compared: " : ""}token ${position}, ${spoken(token.piece)}`);
  });

  /** The nearest token of the next line. @param {number} from @param {HTMLElement[]} others in the order of leaving */
  function nextLine(from, others) {
    const next = spans[from] && nearest(spans[from], others);
    return next ? spans.indexOf(next) : from;
  }

  return {
    element,
    /**
     * @param {Run} run
     * @param {number | null} q
     * @param {number | null} k
     * @param {{shades: (number | null)[], kind: string}} look shades from 0 to 1
     */
    update(run, q, k, { shades, kind }) {
      if (run !== shown || spans.length !== run.tokens.length) {
        shown = run;
        spans = run.tokens.map(({ piece, shown: text }, n) => {
          const blank = !/\S/.test(text) ? spoken(piece) : null;
          return make(
            "span", {
              class: `token${softly(text)}`, role: "option", "aria-selected": "false", "aria-label": blank,
              tabindex: n === 0 ? "0" : "-1",
            },
            ...(text === "" ? [make("bdi", { class: "mark" }, "·")] : readable(text, true)),
          );
        });
        fill(element, ...spans);
        // words of a tokenizer that keeps no spaces
        element.classList.toggle("apart", !run.tokens.some(({ shown: text }) => /\s/.test(text)));
        [chosen, compared] = [-1, -1];
      }
      element.hidden = spans.length === 0;
      element.dataset["kind"] = kind;
      spans.forEach((span, n) => {
        const shade = shades[n];
        const text = shade === null || shade === undefined ? "" : shade.toFixed(3);
        if (span.style.getPropertyValue("--shade") !== text) span.style.setProperty("--shade", text);
      });
      if (q !== chosen) {
        const had = chosen >= 0 && spans[chosen];
        const next = spans[q ?? -1];
        (had || spans[0])?.setAttribute("tabindex", "-1");
        if (had) had.ariaSelected = "false";
        next?.setAttribute("aria-selected", "true");
        (next ?? spans[0])?.setAttribute("tabindex", "0");
        chosen = q ?? -1;
        if (next) reveal(element, next);
      }
      if (k !== compared) {
        spans[compared]?.classList.remove("compared");
        spans[k ?? -1]?.classList.add("compared");
        compared = k ?? -1;
      }
    },
  };
}

/** Brings a token into sight within its own box: the page stays. @param {HTMLElement} box @param {HTMLElement} span */
function reveal(box, span) {
  const [around, own] = [box.getBoundingClientRect(), span.getBoundingClientRect()];
  if (own.top < around.top) box.scrollTop -= around.top - own.top + 8;
  else if (own.bottom > around.bottom) box.scrollTop += own.bottom - around.bottom + 8;
}
