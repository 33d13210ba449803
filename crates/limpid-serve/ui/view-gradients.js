// Gradients: how a word's logit, or its difference from another's, would follow a small change of the stream or of a head.
import { whyIn, whyWord } from "./address.js";
import { troubleNote } from "./answer.js";
import { make, short } from "./dom.js";
import { numberMap } from "./number-map.js";
import { tokenNumbers } from "./numbers.js";
import { asTrouble } from "./source.js";
import { piece, spelled } from "./text.js";
import { textTable } from "./view-walks.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfGradients = {
  id: "gradients", title: "Gradients", about: "Where would a small change move this word the most?", open: gradientsView,
  missing: (model) => (model.lm_head ? null : "This model has no head for tokens: there is no logit to follow back."),
  needs: (state, glass) => [gradientsQuestion(state, glass)],
};

/**
 * The word that the path follows here, as the server takes it.
 * @param {import("./address.js").State} state
 * @param {Glass} glass
 */
function gradientsQuestion(state, glass) {
  const last = glass.run().tokens.length - 1;
  const q = Math.min(state.q ?? last, last);
  const { target, foil } = whyIn(state, q, last);
  const word = target.startsWith('"') ? `word=${encodeURIComponent(target.slice(1, -1))}` : target && `target=${target}`;
  return [`gradients?position=${q}`, word, foil && `foil=${foil}`].filter((part) => part).join("&");
}

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function gradientsView(glass) {
  const notice = make("div", {});
  const sentence = make("p", { class: "lead" });
  const another = make("a", {}, "Another word");
  const body = make("div", { class: "stack" });
  const table = make("details", {}, make("summary", {}, "As tables"));
  const measure = make("select", { "aria-label": "Heads by" }, make("option", { value: "heads" }, "size of the gradient"), make("option", { value: "attribution" }, "gradient × activation"));
  const numbers = make("div", { class: "stack" });
  const element = make("div", { class: "gradients stack" }, notice, sentence, body, table);
  const at = { row: 0, col: 0 };
  let asked = "";
  /** @type {any} */
  let shown = null;
  measure.addEventListener("change", show);

  const label = (/** @type {number} */ q) => `${q} ${glass.label(q)}`;
  const stage = (/** @type {number} */ row) => (row === 0 ? "before the layers" : `after layer ${row - 1}`);
  const stream = numberMap(glass.dark, {
    label: "Size of the gradient of the residual stream", at: () => [at.row, at.col],
    choose(row, col) {
      [at.row, at.col] = [row, col];
      show();
    },
    words: (row, col, value) => `${stage(row)}, token ${label(col)}: ${value}`,
  });
  const chosen = () => [Math.min(glass.state().l ?? 0, glass.run().depth - 1), Math.min(glass.state().h ?? 0, glass.run().heads - 1)];
  const heads = numberMap(glass.dark, {
    label: "Gradients of the heads", at: () => /** @type {[number, number]} */ (chosen()),
    choose: (l, h) => glass.go({ l, h }),
    open: () => glass.go({ v: "head" }, "new"),
    words: (l, h, value) => `layer ${l}, head ${h}: ${value}`,
  });
  body.append(make("h2", {}, "The residual stream"), stream.element, make("h2", {}, "The heads"), make("div", { class: "tools" }, make("label", {}, "Heads by ", measure)), heads.element);

  const question = () => gradientsQuestion(glass.state(), glass);

  async function ask() {
    const key = `${glass.run().id} ${question()}`;
    if (key === asked) return;
    asked = key;
    if (glass.state().i !== "") {
      shown = null;
      body.hidden = table.hidden = sentence.hidden = true;
      return notice.replaceChildren(make("p", { class: "hint" }, "Gradients are computed for the model as it is: take the steps away to see them."));
    }
    sentence.replaceChildren("Computing gradients …");
    try {
      const answer = await glass.ask(question());
      if (key !== asked) return;
      notice.replaceChildren();
      shown = answer;
      table.open = false;
      show();
    } catch (fault) {
      if (key !== asked) return;
      shown = null;
      notice.replaceChildren(troubleNote(asTrouble(fault), () => {
        asked = "";
        ask();
      }));
    }
    body.hidden = table.hidden = sentence.hidden = shown === null;
  }

  const most = (/** @type {any[][]} */ rows) => Math.max(1e-30, ...rows.flat().map((value) => Math.abs(Number(value)) || 0));

  function show() {
    if (!shown) return;
    const { target, foil } = shown;
    const of = [spelled(piece(target[1])), ...(foil ? [" less that of ", spelled(piece(foil[1]))] : [])];
    another.setAttribute("href", glass.link(whyWord(glass.state(), glass.q(), `${target[0]}`, `${foil?.[0] ?? "none"}`)));
    sentence.replaceChildren(`The ${foil ? "logit" : "log-probability"} of `, ...of, ` after ${label(shown.position)}: the brighter a place, the more a small change there would move it. A gradient speaks of small changes only; a sweep or a change of the run tells what a large one does. `, another);
    const { palette } = glass.look();
    const depth = glass.run().depth;
    stream.show({
      identity: asked, rows: depth + 1, cols: glass.run().tokens.length, values: shown.stream.flat(), hidden: [], signed: false, most: most(shown.stream), palette,
      what: "length of the gradient", axes: ["stage", "token"], rowLabel: (n) => (n === 0 ? "embed" : `${n - 1}`), colLabel: (n) => glass.label(n),
    });
    const signed = measure.value === "attribution";
    heads.show({
      identity: asked + measure.value, rows: depth, cols: glass.run().heads, values: shown[measure.value].flat(), hidden: [], signed, most: most(shown[measure.value]), palette,
      what: signed ? "gradient × activation" : "length of the gradient", axes: ["layer", "head"], rowLabel: String, colLabel: String,
    });
    numbers.replaceChildren(tokenNumbers(glass, shown.position));
  }

  table.addEventListener("toggle", () => {
    if (!table.open || !shown) return;
    const rows = (/** @type {any[][]} */ all, /** @type {(n: number) => string} */ name) => all.map((row, n) => [name(n), ...row.map((value) => short(value, 4))]);
    table.replaceChildren(
      make("summary", {}, "As tables"),
      textTable("Length of the gradient of the residual stream", ["stage", ...glass.run().tokens.map((_, n) => label(n))], rows(shown.stream, stage)),
      ...[["heads", "Length of the gradient at each head"], ["attribution", "Gradient × activation of each head"]].map(([key = "", title = ""]) => textTable(title, ["layer", ...shown[key][0].map((/** @type {any} */ _, /** @type {number} */ h) => `head ${h}`)], rows(shown[key], String))),
    );
  });

  return {
    element,
    numbers,
    update() {
      ask();
      show();
    },
    close() {
      stream.close();
      heads.close();
    },
  };
}
