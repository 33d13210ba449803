// The answer before a change and after it, beside each other, above whichever view is open.
import { button, dim, fill, make, short } from "./dom.js";
import { stepInWords, stepsOf, undo } from "./hands.js";
import { headings, numberCell, share100 } from "./numbers.js";
import { piece, spelled } from "./text.js";

/** @typedef {import("./glass.js").Glass} Glass */
/** @typedef {import("./runs.js").Run} Run */

/** Words of each run that are compared. */
const WORDS = 3;

/** The likeliest words of a run at a token, and how likely they are. @param {Run} run @param {number} q */
const likely = (run, q) =>
  new Map((run.predictions[q]?.top ?? []).map(([id, text, share]) => [id, { text, share }]));

/** How likely a word is; less than the least of those that are listed, if it is not one of them. */
function shareOf(/** @type {ReturnType<typeof likely>} */ all, /** @type {number} */ id) {
  const own = all.get(id);
  if (own) return share100(own.share);
  return `< ${share100(Math.min(...[...all.values()].map(({ share }) => share)))}`;
}

/** @param {Glass} glass @param {HTMLElement} element */
export function beforeAfter(glass, element) {
  let shown = "";

  /** The changes, each with a button that undoes it. @param {any[]} steps @param {string} prompt */
  function changes(steps, prompt) {
    const list = steps.map((step, n) => {
      const words = stepInWords(step, prompt);
      const back = button("Undo", () => undo(glass, n), { class: "quiet", "aria-label": `Undo: ${words}` });
      return make("li", words, " ", back);
    });
    return make("ul", { class: "changes" }, ...list);
  }

  /** @param {Run} before @param {Run} after */
  function table(before, after) {
    const { q } = glass;
    const [old, now] = [likely(before, q), likely(after, q)];
    const ids = [...new Set([...[...old.keys()].slice(0, WORDS), ...[...now.keys()].slice(0, WORDS)])];
    const rows = ids.map((id) => {
      const text = (old.get(id) ?? now.get(id))?.text ?? "";
      return make("tr", make("th", { scope: "row" }, spelled(piece(text))), numberCell(shareOf(old, id)),
        numberCell(shareOf(now, id)));
    });
    const token = after.tokens[q];
    const where = after.ahead ? "After " : "In place of ";
    const caption = make("caption", where, token ? spelled(token.piece) : "", " it expects");
    return make("table", { class: "plain-table" }, caption,
      headings(["word", "before", "after"], (n) => n > 0), make("tbody", ...rows));
  }

  return {
    update() {
      const { first, plain, state } = glass;
      const steps = stepsOf(state.i);
      const [before, after] = [plain.run, first.run];
      element.hidden = steps.length === 0 || !before || !after || glass.trouble !== null;
      if (element.hidden || !before || !after) {
        shown = "";
        return fill(element);
      }
      const now = `${state.i} ${glass.q} ${before.id} ${after.id} ${before.done} ${after.done}`;
      if (now === shown) return;
      shown = now;
      const isDone = before.done && after.done;
      const losses = isDone && before.loss !== null && after.loss !== null
        ? make("p", { class: "note" }, `${short(before.loss, 3)} → ${short(after.loss, 3)} nats a token`)
        : dim(isDone ? "" : "Running …");
      const hasWords = isDone && (before.predictions[glass.q]?.top.length ?? 0) > 0;
      const list = changes(steps, state.p ?? glass.model.example ?? "");
      fill(element, list, ...(hasWords ? [table(before, after)] : []), losses);
    },
  };
}
