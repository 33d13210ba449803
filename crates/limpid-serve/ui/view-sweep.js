// A sweep: which activations of another text, put into the run of this one, bring back the word that the other text leads to.
import { troubleNote } from "./answer.js";
import { button, figure, make, plural, say, short } from "./dom.js";
import { numberMap } from "./number-map.js";
import { tokenNumbers } from "./numbers.js";
import { runPrompt } from "./runs.js";
import { Trouble, asTrouble } from "./source.js";
import { piece, spelled } from "./text.js";
import { textTable } from "./view-walks.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfSweep = {
  id: "sweep", title: "Sweep", about: "Which activations make the difference between this text and another?", open: sweepView,
  missing: (model) => (!model.lm_head ? "This model has no head for tokens: there is no answer that a patch could bring back." : model.saved && !model.sweep ? "This file does not hold a sweep." : null),
};

/** What can be patched, in words. */
const SITES = [
  ["resid_pre", "stream before a layer"], ["resid_mid", "stream within a layer"], ["attn_out", "what attention adds"], ["mlp_out", "what the MLP adds"],
  ["z", "what heads carry"], ["q", "queries"], ["k", "keys"], ["v", "values"], ["pattern", "attention weights"],
];

/** Cells of which a table is made. */
const WRITTEN = 10_000;

/** Milliseconds without a letter after which a text is read. */
const READING = 300;

/**
 * The last sweep: a cell that is chosen changes the run, and so opens the view anew.
 * @type {{
 *   sweep: null | {key: string, clean: string, start: any, measured: any, rows: any[], done: any, trouble: Trouble | null, flight: AbortController | null},
 *   clean: {text: string, tokens: any[], trouble: Trouble | null}, changed: () => void,
 *   inMap: boolean,
 * }}
 */
const SWEPT = { sweep: null, clean: { text: "", tokens: [], trouble: null }, changed: () => {}, inMap: false };

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function sweepView(glass) {
  const more = () => glass.state().more;
  /** @param {Record<string, string>} words */
  const set = (words) => glass.go({ more: { ...more(), ...words } });
  const options = (/** @type {string[][]} */ all) => all.map(([value = "", text = ""]) => make("option", { value }, text));
  const select = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string[][]} */ all) => {
    const made = make("select", { "aria-label": label }, ...options(all));
    made.addEventListener("change", () => set({ [name]: made.value }));
    return made;
  };
  const input = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ placeholder) => {
    const made = make("input", { type: "text", "aria-label": label, placeholder, size: "22", autocomplete: "off", spellcheck: "false" });
    made.addEventListener("change", () => set({ [name]: made.value }));
    return made;
  };
  const clean = make("textarea", { id: "sweep-clean", rows: "2", dir: "auto", placeholder: "A text with the same number of tokens that leads to another word" });
  const site = select("site", "Patch", SITES);
  const by = select("by", "Grid", [["head", ""], ["position", ""]]);
  const metric = select("metric", "Measure", [["", "an answer"], ["loss", "the loss"], ["kl", "KL from the clean run"]]);
  const answer = input("answer", "Answer", "likeliest after the clean text");
  const foil = input("foil", "Rather than", "likeliest after this text");
  const to = input("to", "By paths to", "all paths: no tensor");
  const heads = input("toh", "Heads of that tensor", "all");
  const estimate = make("input", { type: "checkbox" });
  estimate.addEventListener("change", () => set({ est: estimate.checked ? "1" : "" }));
  const go = make("button", { type: "submit" }, "Sweep");
  const words = make("label", {}, "Answer ", answer);
  const less = make("label", {}, "rather than ", foil);
  const pair = make("div", { class: "pair" });
  const form = make("form", { class: "sweep-form" },
    make("label", { for: "sweep-clean" }, "Clean text: its activations are put into the run of the text on this page"), clean, pair,
    make("div", { class: "tools" }, make("label", {}, "Patch ", site), make("label", {}, "Grid ", by), make("label", {}, "Measure ", metric), words, less, make("label", {}, "by paths to ", to), make("label", {}, "heads ", heads), make("label", {}, estimate, " estimate from gradients"), go));
  const notice = make("div", {});
  const line = make("p", { class: "note", role: "status" });
  const cell = make("p", {});
  const peaks = make("div", {});
  const table = make("details", {}, make("summary", {}, "As a table"));
  const numbers = make("div", { class: "stack" });
  const map = numberMap(glass.dark, {
    label: "What each patch restores: Enter applies it to the run", at,
    choose: (row, col) => set({ cell: `${row}.${col}` }),
    words: (row, col, value) => sentence(row, col, value),
    open: () => change(...at()),
  });
  const results = make("div", { class: "stack" }, line, map.element, cell, peaks, table);
  const element = make("div", { class: "sweep" }, form, notice, results);
  let [reading, laid] = [0, ""];

  /** The sweep that is shown: the last one, if it was of this text. */
  const swept = () => (SWEPT.sweep?.key === textKey() ? SWEPT.sweep : null);
  const textKey = () => JSON.stringify([glass.model.fingerprint, glass.run().tokens.map(({ id }) => id)]);
  const headed = () => ["z", "q", "k", "v", "pattern"].includes(site.value);

  /** @returns {[number, number]} */
  function at() {
    const [row = 0, col = 0] = (more()["cell"] ?? "").split(".").map(Number);
    const { rows, cols } = grid() ?? { rows: 1, cols: 1 };
    return [Math.min(rows - 1, Math.max(0, row || 0)), Math.min(cols - 1, Math.max(0, col || 0))];
  }

  /** How the grid lies on the page: rows of layers, or of their heads; words or heads beside each other. */
  function grid() {
    const start = swept()?.start;
    if (!start) return null;
    const size = (/** @type {string} */ axis) => (start.axes.includes(axis) ? start.shape[start.axes.indexOf(axis)] : 0);
    const [layers, heads, positions] = [size("layer"), size("head"), size("pos") || size("query_pos")];
    const both = heads > 0 && positions > 0;
    const headFirst = start.axes[1] === "head";
    return {
      rows: both ? layers * heads : layers, cols: positions || heads, positions: positions > 0,
      /** The place of a cell. @param {number} row @param {number} col */
      place: (row, col) => {
        const [layer, head] = both ? [Math.floor(row / heads), row % heads] : [row, heads > 0 ? col : null];
        const n = both ? (headFirst ? /** @type {number} */ (head) * positions + col : col * heads + /** @type {number} */ (head)) : col;
        return { layer, head, pos: positions > 0 ? col : null, n };
      },
    };
  }

  /** @param {number} row @param {number} col @param {string} value */
  function sentence(row, col, value) {
    const place = grid()?.place(row, col);
    if (!place) return "";
    const { layer, head, pos, n } = place;
    const where = [`layer ${layer}`, ...(head === null ? [] : [`head ${head}`]), ...(pos === null ? [] : [`position ${pos} (${glass.label(pos)})`])].join(", ");
    const own = swept()?.rows[layer]?.metric[n];
    return own === undefined ? `${where}: not computed yet` : `${where}: restores ${value} of the difference (${swept()?.measured?.metric ?? "metric"} ${short(own, 5)})`;
  }

  /** Puts the step of a cell into the run. @param {number} row @param {number} col */
  function change(row, col) {
    const [place, sweep] = [grid()?.place(row, col), swept()];
    if (!place || !sweep || sweep.start.to) return;
    const { layer, head, pos } = place;
    const step = { patch: sweep.start.tensors[layer], ...(head === null ? {} : { head }), ...(pos === null ? {} : { pos }), from: { prompt: sweep.clean } };
    SWEPT.inMap = map.element.contains(document.activeElement);
    put([step]);
  }

  /** @param {object[]} steps */
  function put(steps) {
    glass.go({ i: JSON.stringify(steps), q: swept()?.start.position ?? null }, "new");
    say("The run is changed by this step.");
  }

  // ---- the clean text

  clean.addEventListener("input", () => {
    clearTimeout(reading);
    reading = setTimeout(() => {
      set({ clean: clean.value });
      read();
    }, READING);
  });

  /** Reads the tokens of the clean text; more of its run is not needed. */
  async function read() {
    const text = more()["clean"] ?? "";
    if (text === SWEPT.clean.text || glass.model.saved) return;
    /** @type {typeof SWEPT.clean} */
    const mine = { text, tokens: [], trouble: null };
    SWEPT.clean = mine;
    if (text !== "") {
      const controller = new AbortController();
      const { run, ended } = runPrompt(glass.source, { prompt: text }, () => {
        if (run.tokens.length === 0) return;
        mine.tokens = run.tokens;
        controller.abort();
        if (mine === SWEPT.clean) SWEPT.changed();
      }, controller.signal);
      await ended;
      mine.trouble = run.tokens.length > 0 ? null : run.trouble;
    }
    if (mine === SWEPT.clean) SWEPT.changed();
  }

  /** Both texts in tokens, one below the other; those that differ stand out. */
  function showPair() {
    const { tokens, trouble, text } = SWEPT.clean;
    const own = glass.run().tokens;
    if (text === "" || (tokens.length === 0 && !trouble)) return pair.replaceChildren();
    if (trouble) return pair.replaceChildren(make("p", { class: "fault" }, trouble.message));
    const row = (/** @type {string} */ name, /** @type {any[]} */ mine, /** @type {any[]} */ theirs) => make("div", { class: "pair-line" }, make("span", { class: "dim" }, `${name}, ${plural(mine.length, "token")}: `), ...mine.flatMap((token, n) => [make(token.id === theirs[n]?.id ? "span" : "mark", {}, spelled(token.piece)), " "]));
    const fault = tokens.length === own.length ? "" : `The clean text has ${plural(tokens.length, "token")}, this one ${figure(own.length, 0)}: both need the same number, because a patch keeps its position.`;
    pair.replaceChildren(row("clean", tokens, own), row("this text", own, tokens), ...(fault ? [make("p", { class: "fault", role: "alert" }, fault)] : []));
  }

  // ---- the sweep

  /** What is asked of the server. @param {boolean} confirm */
  const body = (confirm) => ({
    clean: clean.value, corrupt: glass.run().tokens.map(({ id }) => id), site: site.value, ...(headed() ? { by: by.value } : {}),
    ...(metric.value ? { metric: metric.value } : { ...(answer.value ? { answer: answer.value } : {}), ...(foil.value ? { foil: foil.value } : {}) }),
    ...(to.value ? { to: to.value, to_head: (heads.value.match(/\d+/g) ?? []).map(Number) } : {}), ...(estimate.checked ? { estimate: true } : {}), ...(confirm ? { confirm } : {}),
  });

  async function sweep(confirm = false) {
    SWEPT.sweep?.flight?.abort();
    const flight = new AbortController();
    /** @type {NonNullable<typeof SWEPT.sweep>} */
    const mine = { key: textKey(), clean: clean.value, start: null, measured: null, rows: [], done: null, trouble: null, flight };
    SWEPT.sweep = mine;
    show();
    try {
      await glass.source.stream("sweeps", body(confirm), (event) => {
        if (event.event === "start") mine.start = event;
        else if (event.event === "metric") mine.measured = event;
        else if (event.event === "row") mine.rows[event.layer] = event;
        else if (event.event === "done") mine.done = event;
        if (mine === SWEPT.sweep) SWEPT.changed();
      }, flight.signal);
      say(mine.done?.peaks[0]?.sentence ?? "");
    } catch (fault) {
      if (!flight.signal.aborted) mine.trouble = asTrouble(fault);
      if (mine.trouble?.message.startsWith("`answer`")) answer.focus();
    }
    mine.flight = null;
    if (mine === SWEPT.sweep) SWEPT.changed();
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const flight = SWEPT.sweep?.flight;
    if (flight) flight.abort();
    else if (clean.value === "") clean.focus();
    else {
      clearTimeout(reading);
      set({ clean: clean.value });
      read();
      sweep();
    }
  });
  clean.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });

  function show() {
    const now = more();
    if (document.activeElement !== clean) clean.value = now["clean"] ?? "";
    for (const [field, name, usual] of /** @type {[HTMLInputElement | HTMLSelectElement, string, string][]} */ ([[site, "site", "resid_pre"], [by, "by", "head"], [metric, "metric", ""], [answer, "answer", ""], [foil, "foil", ""], [to, "to", ""], [heads, "toh", ""]])) {
      if (document.activeElement !== field || field instanceof HTMLSelectElement) field.value = now[name] || usual;
    }
    estimate.checked = now["est"] === "1";
    const [whole, each] = site.value === "pattern" ? ["layer × head", "layer × head × query"] : headed() ? ["layer × head", "layer × head × position"] : ["layer × position", ""];
    [...by.options].forEach((option, n) => (option.textContent = (n === 0 ? whole : each) ?? ""));
    by.disabled = !headed();
    if (!headed()) by.value = "head";
    words.hidden = less.hidden = metric.value !== "";
    showPair();
    const one = swept();
    go.textContent = SWEPT.sweep?.flight ? "Stop" : "Sweep";
    const trouble = one?.trouble ?? null;
    const large = trouble?.code === "sweep_too_large";
    const told = large && trouble ? new Trouble(trouble.message.replace(/: send.*$/, ".")) : trouble;
    if (notice.textContent === "" || !told || !notice.textContent?.includes(told.message)) {
      notice.replaceChildren(...(told ? [troubleNote(told, null, ...(large ? [button("Run it anyway", () => sweep(true), { class: "quiet" })] : []))] : []));
    }
    results.hidden = !one?.start || (trouble !== null && one.rows.length === 0);
    if (one && !results.hidden) draw(one);
  }

  /** @param {NonNullable<typeof SWEPT.sweep>} one */
  function draw(one) {
    const [lay, { start, measured, done }] = [/** @type {NonNullable<ReturnType<typeof grid>>} */ (grid()), one];
    const computed = one.rows.filter((row) => row).length;
    const ends = done ? ` Clean ${short(done.clean, 5)}, this text ${short(done.corrupt, 5)}.` : ` Layer ${computed} of ${start.shape[0]}${one.flight ? " …" : ": stopped."}`;
    const of = measured?.answer ? [" of ", spelled(piece(measured.answer[1])), ...(measured.foil ? [" over ", spelled(piece(measured.foil[1]))] : [])] : [];
    line.replaceChildren(`${plural(start.cells, "cell")}, ${start.estimate ? "estimated from gradients" : `at most ${figure(start.token_layers, 0)} token-layers`}. ${start.to ? `By paths to ${start.to}. ` : ""}Measured: ${measured?.metric ?? "…"}`, ...of, `.${ends}`);
    const values = [];
    const hidden = [];
    for (let row = 0; row < lay.rows; row++) {
      for (let col = 0; col < lay.cols; col++) {
        const { layer, n } = lay.place(row, col);
        const value = one.rows[layer]?.recovered[n];
        values.push(value ?? 0);
        hidden.push(value === undefined);
      }
    }
    const most = values.reduce((all, value) => Math.max(all, Math.abs(Number(value)) || 0), 1);
    const both = lay.rows > start.shape[0];
    const heads = lay.rows / start.shape[0];
    map.show({
      identity: `${one.key} ${start.site} ${start.axes} ${one.clean} ${JSON.stringify(measured)} ${start.estimate} ${computed}`, rows: lay.rows, cols: lay.cols, values, hidden, signed: true, most, palette: "diverging",
      what: "share of the difference that is restored", axes: [both ? "layer.head" : "layer", lay.positions ? (start.axes.includes("query_pos") ? "query" : "position") : "head"],
      rowLabel: (n) => (both ? `${Math.floor(n / heads)}.${n % heads}` : `${n}`), colLabel: (n) => (lay.positions ? glass.label(n) : `${n}`),
    });
    if (SWEPT.inMap) {
      // whoever came here by keys goes on from the same cell
      SWEPT.inMap = false;
      const live = map.element.querySelector(".live-cell");
      if (live instanceof HTMLElement) live.focus({ preventScroll: true });
    }
    const [row, col] = at();
    const { layer, n } = lay.place(row, col);
    const value = one.rows[layer]?.recovered[n];
    cell.replaceChildren(...(value === undefined || start.to ? [] : [button("Apply this cell to the run", () => change(row, col), { class: "quiet", title: "Enter, or a click on the cell" })]));
    const key = JSON.stringify([done, glass.state().i]);
    if (laid !== key) {
      laid = key;
      peaks.replaceChildren(...(done ? [...(done.note ? [make("p", {}, done.note)] : []), make("h2", {}, done.note ? "The largest changes" : "What restores the most"), make("ul", { class: "plain" }, ...done.peaks.map((/** @type {any} */ peak) => make("li", {}, `${peak.sentence} `, button("Apply it to the run", () => put(peak.interventions), { class: "quiet", "aria-label": `Apply it to the run: ${peak.sentence}` }))))] : []));
      numbers.replaceChildren(make("p", { class: "note" }, glass.state().i ? "The run is changed by the steps beside the text." : "The run of the page’s text, unchanged."), tokenNumbers(glass, start.position));
    }
    table.hidden = !done;
  }

  table.addEventListener("toggle", () => {
    const [one, lay] = [swept(), grid()];
    if (!table.open || !one || !lay) return;
    const heads = lay.rows / one.start.shape[0];
    const cells = (/** @type {number} */ row) => Array.from({ length: lay.cols }, (_, col) => {
      const { layer, n } = lay.place(row, col);
      return short(one.rows[layer]?.recovered[n], 4);
    });
    const shown = Array.from({ length: Math.min(lay.rows, Math.max(1, Math.floor(WRITTEN / lay.cols))) }, (_, row) => [heads > 1 ? `${Math.floor(row / heads)}.${row % heads}` : `${row}`, ...cells(row)]);
    const left = lay.rows - shown.length;
    table.replaceChildren(
      make("summary", {}, "As a table"),
      textTable("What part of the difference each patch restores", [heads > 1 ? "layer.head" : "layer", ...Array.from({ length: lay.cols }, (_, n) => (lay.positions ? `${n} ${glass.label(n)}` : `head ${n}`))], shown),
      ...(left > 0 ? [make("p", { class: "note" }, `${plural(left, "more row")}: \`limpid sweep --json\` has all.`)] : []),
    );
  });

  SWEPT.changed = () => {
    if (element.isConnected) show();
  };
  return {
    element,
    numbers,
    update() {
      read();
      show();
      // a saved page shows the sweep that it keeps
      if (glass.model.sweep && !SWEPT.sweep) sweep();
    },
    close: map.close,
  };
}
