// Look inside: one prompt, run once, seen in many ways. Left the text, in the middle a picture, right the numbers. The address
// says which; what is chosen in one view is chosen in all.
//
// To add a view: write a module that exports a View (below), and name it in VIEWS of views.js. A view is told by `update` that
// the state, or what is known of the run, has changed; it draws what it needs of `glass`, and changes the state by `glass.go`.
import { stateIn, hashOf } from "./address.js";
import { troubleNote } from "./answer.js";
import { tokenChips } from "./chips.js";
import { inspectCommand } from "./command.js";
import { button, byId, figure, make, plural, say } from "./dom.js";
import { SEQUENTIAL, SPREADS } from "./colours.js";
import { runPrompt, surpriseAt } from "./runs.js";
import { Trouble, asTrouble } from "./source.js";
import { tileCache } from "./tiles.js";
import { leadOf } from "./says.js";
import { tourBar } from "./tour.js";
import { GROUPS, VIEWS } from "./views.js";
import { glossed } from "./words.js";

/** @typedef {import("./address.js").State} State */
/** @typedef {import("./runs.js").Run} Run */
/** @typedef {import("./glass-source.js").GlassSource} GlassSource */

/**
 * @typedef {object} View
 * @property {string} id its word in the address: `#v=ID`
 * @property {string} title
 * @property {string} about the question that it answers
 * @property {(model: any) => string | null} [missing] why this model has no such view
 * @property {(state: State, glass: Glass) => string[]} [needs] what it asks about a trace in this state
 * @property {(glass: Glass) => Shown} open
 */

/**
 * A view that is open. `shade` colours the tokens of the prompt; `tensor` is what is shown, as a name and a place in it, for
 * the keys `t` and `e`; `keys` are more keys, of one letter each, with what they do.
 * @typedef {object} Shown
 * @property {HTMLElement} element
 * @property {HTMLElement} [numbers] what stands in the right column
 * @property {() => void} update
 * @property {() => void} [close]
 * @property {() => {shades: (number | null)[], kind: string, words: string} | null} [shade]
 * @property {() => {name: string, at: number[]} | null} [tensor]
 * @property {Record<string, () => void>} [keys]
 */

/**
 * What views use of the page.
 * @typedef {object} Glass
 * @property {any} model what `GET model` says
 * @property {GlassSource} source
 * @property {() => State} state
 * @property {(changes: Partial<State>, how?: "new" | "same") => void} go `new`: the back button comes back to what was before
 * @property {(changes: Partial<State>) => string} link an address for a link
 * @property {(id: string) => boolean} has whether there is a view of this name
 * @property {(changes: Partial<State>) => boolean} holds whether there is something to see there: a saved page holds some of it
 * @property {() => Run} run
 * @property {() => Run | null} other the run that this one is compared with
 * @property {() => number} q the chosen token
 * @property {() => number} k the compared token
 * @property {(position: number) => string} label of a token, on one line
 * @property {(rest: string) => Promise<any>} ask of this trace: `tensors`, `lens?positions=0:9`
 * @property {(rest: string) => Promise<any>} askOther the same of the run that is compared with
 * @property {(name: string, at: string, other?: boolean) => Promise<any>} tensor a part of a tensor; `other`: less the other run's
 * @property {() => Promise<{tensors: any[], params: any[]}>} listing
 * @property {(rest: string, file: string) => Promise<void>} save a file of this trace
 * @property {import("./heat.js").HeatHost} heat
 * @property {() => boolean} dark
 * @property {() => {palette: string, spread: string, dark: boolean}} look how weights are coloured
 * @property {(what: "sequential" | "all") => HTMLElement} lookTools fields for palette and spread
 */

/** Tokens of a long text. */
const LONG = 200;

/** Memory for tiles. */
const TILES = 64 * 2 ** 20;

/** Nats from which a token is shaded as strongly as there is. */
const MOST = 5;

/** Milliseconds after which the server may be asked again whether the model is still the same. */
const STALE = 10_000;

/** What the server says of steps that it does not take. */
const OF_STEPS = ["invalid_json", "invalid_value", "interventions_disabled", "out_of_time", "too_large"];

/** Steps as they stand in the address or the field; null: none. @param {string} text @returns {{steps: any, fault: Trouble | null}} */
function stepsIn(text) {
  if (text === "") return { steps: null, fault: null };
  try {
    return { steps: JSON.parse(text), fault: null };
  } catch (fault) {
    return { steps: null, fault: new Trouble(`The steps are not JSON: ${fault instanceof Error ? fault.message : fault}`, { code: "invalid_json" }) };
  }
}

/** @param {{source: GlassSource, refused: (trouble: Trouble) => void, moved: () => void, trains: () => boolean}} page */
export function glassView(page) {
  const { source } = page;
  const form = byId("glass-form", HTMLFormElement);
  const field = byId("glass-prompt", HTMLTextAreaElement);
  const runButton = byId("glass-run", HTMLButtonElement);
  const second = byId("glass-other", HTMLElement);
  const otherField = byId("glass-other-prompt", HTMLTextAreaElement);
  const otherModel = byId("glass-other-model", HTMLSelectElement);
  const compareButton = byId("glass-compare", HTMLButtonElement);
  const change = byId("glass-change", HTMLElement);
  const stepsField = byId("glass-steps", HTMLTextAreaElement);
  const stepsFault = byId("glass-steps-fault", HTMLElement);
  const changeButton = byId("glass-intervene", HTMLButtonElement);
  const facts = byId("glass-facts", HTMLElement);
  const notice = byId("glass-notice", HTMLElement);
  const tabs = byId("glass-tabs", HTMLElement);
  const [groups, views] = [make("div", { class: "groups", role: "group", "aria-label": "Groups of views" }), make("div", { class: "views", role: "group" })];
  tabs.append(groups, views);
  const place = byId("glass-view", HTMLElement);
  const numbers = byId("glass-numbers", HTMLElement);
  const lead = byId("glass-lead", HTMLElement);
  const whyButton = byId("glass-why", HTMLButtonElement);
  const seek = byId("glass-seek", HTMLInputElement);
  const words = byId("glass-shade", HTMLElement);
  const glassBox = byId("glass", HTMLElement);
  const darkness = matchMedia("(prefers-color-scheme: dark)");

  const chips = tokenChips("Tokens of the prompt: move with the arrow keys, with Shift for the token to compare", (changes) => go(changes));
  const otherChips = tokenChips("Tokens of the prompt that it is compared with", (changes) => go(changes));
  byId("glass-chips", HTMLElement).append(chips.element);
  byId("glass-other-chips", HTMLElement).append(otherChips.element);

  let state = stateIn(location.hash);
  /** @type {any} */
  let model = null;
  /** @type {Run | null} */
  let run = null;
  /** @type {Run | null} */
  let other = null;
  /** What the runs are of. */
  let [asked, otherAsked] = ["", ""];
  /** @type {AbortController | null} */
  let running = null;
  /** @type {AbortController | null} */
  let otherRunning = null;
  /** @type {{view: View, shown: Shown} | null} */
  let open = null;
  let [visible, drawing, writing, lookedAt] = [false, 0, 0, 0];
  /** The address that was last read or written: any other was just gone to, and `show` is about to be told. */
  let address = location.hash;
  /** @type {Trouble | null} */
  let trouble = null;
  let moved = "";
  /** @type {Map<string, Promise<any>>} */
  const listings = new Map();
  /** @type {Map<string, Promise<void>>} */
  const renewing = new Map();

  const dark = () => {
    const theme = document.documentElement.dataset["theme"];
    return theme ? theme === "dark" : darkness.matches;
  };

  /** @param {Partial<State>} changes @param {"new" | "same"} how */
  function go(changes, how = "same") {
    const before = hashOf(state);
    state = { ...state, ...changes };
    const hash = hashOf(state);
    if (hash === before) return changed();
    clearTimeout(writing);
    if (how === "new") {
      // what was not written yet is where the back button leads
      write("replaceState", before);
      write("pushState", hash);
    } else {
      // browsers bear only so many changes of the address
      writing = setTimeout(() => visible && write("replaceState", hashOf(state)), 120);
    }
    page.moved();
    follow();
  }

  /** Writes the address, unless it is one that was just gone to. @param {"replaceState" | "pushState"} how @param {string} hash */
  function write(how, hash) {
    if (location.hash !== address) return;
    history[how](null, "", `#${hash}`);
    address = location.hash;
  }

  /** @param {Partial<State>} changes */
  const link = (changes) => `#${hashOf({ ...state, ...changes })}`;

  function changed() {
    if (!drawing) drawing = requestAnimationFrame(draw);
  }

  /** Runs what the state asks for, if that is not what was run. */
  function follow() {
    if (!model || !visible) return;
    const prompt = state.p ?? model.example ?? "";
    const { steps, fault } = stepsIn(state.i);
    const body = { prompt, ...(state.last ? { last: true } : {}), ...(steps === null ? {} : { interventions: steps }) };
    if (JSON.stringify(body) !== asked) {
      asked = JSON.stringify(body);
      if (field !== document.activeElement || field.value.trim() === "") field.value = prompt;
      running?.abort();
      running = new AbortController();
      trouble = fault;
      if (stepsField !== document.activeElement) stepsField.value = state.i;
      if (state.i !== "") reveal(true);
      run = fault ? null : begin(body, running, () => (running = null));
      if (fault) running = null;
    }
    const compared = state.c !== null || state.cm !== "";
    const theirs = compared ? { prompt: state.c ?? prompt, ...(state.last ? { last: true } : {}), ...(state.cm ? { model: state.cm } : {}) } : null;
    if ((theirs ? JSON.stringify(theirs) : "") !== otherAsked) {
      otherAsked = theirs ? JSON.stringify(theirs) : "";
      otherRunning?.abort();
      otherRunning = new AbortController();
      if (theirs) otherField.value = theirs.prompt;
      otherModel.value = state.cm;
      other = theirs ? begin(theirs, otherRunning, () => (otherRunning = null)) : null;
    }
    changed();
  }

  /** @param {{prompt: string}} body @param {AbortController} controller @param {() => void} end */
  function begin(body, controller, end) {
    const started = runPrompt(source, body, changed, controller.signal);
    started.ended.then(() => {
      if (controller.signal.aborted) return;
      end();
      if (started.run.trouble) {
        trouble = started.run.trouble;
        page.refused(trouble);
      } else if (started.run === run) say(reading(started.run));
      changed();
    });
    return started.run;
  }

  /** @param {Run} own */
  function reading(own) {
    const loss = own.loss === null ? "" : `, ${figure(own.loss, 2)} nats a token`;
    return `${plural(own.tokens.length, "token")} through ${plural(own.depth, "layer")}${loss}`;
  }

  /**
   * Uses a trace; one that the server has forgotten is asked for again, without a word unless the model is another by now.
   * @template T
   * @param {"run" | "other"} which
   * @param {(id: string) => Promise<T>} use
   */
  async function onTrace(which, use) {
    const own = which === "run" ? run : other;
    if (!own?.id) throw new Trouble(which === "run" ? "The prompt has not run yet." : "The other prompt has not run yet.");
    try {
      return await use(own.id);
    } catch (fault) {
      if (!(fault instanceof Trouble) || fault.code !== "trace_expired") throw fault;
      await Promise.all([renew(own, which), which === "run" && other?.id ? renew(other, "other") : null]);
      return use(own.id);
    }
  }

  /** @param {Run} own @param {"run" | "other"} which */
  function renew(own, which) {
    const old = own.id;
    const started = renewing.get(old);
    if (started) return started;
    const again = runPrompt(source, JSON.parse(which === "run" ? asked : otherAsked), () => {}, new AbortController().signal);
    const ended = again.ended.then(() => {
      renewing.delete(old);
      if (again.run.trouble) throw again.run.trouble;
      if (again.run.id !== old) {
        moved = "The model has changed since this prompt was run.";
        own.id = again.run.id;
        changed();
      }
    });
    renewing.set(old, ended);
    return ended;
  }

  /** Asks whether the model is still the one that was run (`limpid serve --follow`). */
  async function stillTheSame() {
    if (!model || !visible || Date.now() - lookedAt < STALE) return;
    lookedAt = Date.now();
    const now = await source.ask("model").catch(() => null);
    if (!now || now.fingerprint === model.fingerprint) return;
    const steps = now.step !== null && model.step !== null ? `: step ${figure(model.step, 0)} became ${figure(now.step, 0)}` : "";
    moved = `The model has changed since this prompt was run${steps}.`;
    changed();
  }

  function again() {
    [asked, otherAsked, moved, model] = ["", "", "", null];
    listings.clear();
    start();
  }

  /** @type {Glass} */
  const glass = {
    get model() {
      return model;
    },
    source,
    state: () => state,
    go,
    link,
    has: (id) => VIEWS.some((view) => view.id === id),
    holds(changes) {
      const to = { ...state, ...changes };
      const view = VIEWS.find(({ id }) => id === to.v);
      if (!view || !source.holds || !run?.done) return true;
      return (view.missing?.(model) ?? null) === null && (view.needs?.(to, glass) ?? []).every((question) => source.holds?.(question));
    },
    run: () => /** @type {Run} */ (run),
    other: () => other,
    q: () => Math.min(state.q ?? Infinity, Math.max(0, (run?.tokens.length ?? 1) - 1)),
    k: () => Math.min(state.k ?? 0, Math.max(0, (run?.tokens.length ?? 1) - 1)),
    label: (position) => run?.tokens[position]?.text ?? `${position}`,
    ask: (rest) => onTrace("run", (id) => source.ask(`traces/${id}/${rest}`)),
    askOther: (rest) => onTrace("other", (id) => source.ask(`traces/${id}/${rest}`)),
    tensor: (name, at, less = false) =>
      onTrace("run", (id) => {
        const theirs = less ? Promise.resolve(other?.id ?? "") : Promise.resolve("");
        return theirs.then((second) => source.ask(`traces/${id}/tensors/${encodeURIComponent(name)}?${[at && `at=${at}`, second && `other=${second}`].filter((one) => one).join("&")}`));
      }),
    listing() {
      const id = run?.id ?? "";
      let known = listings.get(id);
      if (!known) {
        known = glass.ask("tensors");
        listings.set(id, known);
        known.catch(() => listings.delete(id));
      }
      return known;
    },
    async save(rest, file) {
      const url = URL.createObjectURL(await onTrace("run", (id) => source.file(`traces/${id}/${rest}`)));
      const anchor = make("a", { href: url, download: file });
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    },
    heat: {
      cache: tileCache(TILES),
      dark,
      identity: (picture) => `${run?.id} ${other?.id ?? ""} ${picture.name} ${picture.index} ${picture.code} ${picture.pool}`,
      tiles: (_picture, wanted, onTile, signal) => {
        const all = other?.id ? wanted.map((tile) => ({ ...tile, other: /** @type {Run} */ (other).id })) : wanted;
        return onTrace("run", (id) => source.tiles(id, all, onTile, signal));
      },
      exact: async (picture, rows, cols) => {
        const at = [...picture.index, `${rows[0]}:${rows[1]}`, `${cols[0]}:${cols[1]}`].join();
        return (await glass.tensor(picture.name, at, other !== null)).values;
      },
    },
    dark,
    // the longer a text, the smaller most weights are
    look: () => ({ palette: state.pal || "viridis", spread: state.sc || ((run?.tokens.length ?? 0) > LONG ? "log" : "root"), dark: dark() }),
    lookTools(what) {
      const box = make("div", { class: "look" });
      /** @param {string} label @param {string[]} words @param {"pal" | "sc"} name @param {string} now */
      const choice = (label, words, name, now) => {
        const select = make("select", { "aria-label": label, title: label }, ...words.map((word) => make("option", {}, word)));
        select.value = now;
        select.addEventListener("change", () => go({ [name]: select.value }));
        return select;
      };
      box.append(choice("Colours", SEQUENTIAL, "pal", glass.look().palette));
      if (what === "all") box.append(choice("Spread of the colours", SPREADS, "sc", glass.look().spread));
      return box;
    },
  };

  /** The groups of views, and below them the views of the one that is open; the chosen one in sight. @param {string} now */
  function showTabs(now) {
    const laid = `${hashOf(state)} ${views.clientWidth}`;
    if (tabs.dataset["now"] === laid) return;
    tabs.dataset["now"] = laid;
    const here = GROUPS.find((group) => group.views.some(({ id }) => id === now));
    // a group leads to the first of its views that there is
    const first = (/** @type {View[]} */ all) => (all.find((view) => (view.missing?.(model) ?? null) === null && glass.holds({ v: view.id })) ?? all[0])?.id ?? "";
    groups.replaceChildren(...GROUPS.map((group) => make("a", { href: link({ v: first(group.views) }), "aria-current": group === here ? "true" : null }, group.title)));
    views.setAttribute("aria-label", here?.title ?? "");
    views.replaceChildren(...(here?.views ?? []).map(({ id, title, about }) => make("a", { href: link({ v: id }), "aria-current": id === now ? "page" : null, title: about }, title)));
    const chosen = views.querySelector("[aria-current]");
    const right = chosen instanceof HTMLElement ? chosen.offsetLeft - views.offsetLeft + chosen.offsetWidth : 0;
    // beyond the faded end
    views.scrollLeft = Math.max(0, right - views.clientWidth + 64);
  }

  /** Dims what leads to something that a saved page does not hold. */
  function dim() {
    const links = [...glassBox.querySelectorAll('a[href^="#"]')].map((link) => /** @type {[Element, Partial<State>]} */ ([link, stateIn(link.getAttribute("href") ?? "")]));
    const tensor = open?.shown.tensor?.();
    for (const [link, to] of [...links, ...(tensor ? [/** @type {[Element, Partial<State>]} */ ([whyButton, { v: "why", n: tensor.name, at: tensor.at.join() }])] : [])]) {
      const held = glass.holds(to);
      link.classList.toggle("absent", !held);
      if (held) link.removeAttribute("aria-disabled");
      else link.setAttribute("aria-disabled", "true");
      if (!held && link !== whyButton) link.setAttribute("title", "Not in this file");
    }
  }
  if (source.holds) {
    let dimming = 0;
    new MutationObserver(() => {
      cancelAnimationFrame(dimming);
      dimming = requestAnimationFrame(dim);
    }).observe(glassBox, { childList: true, subtree: true });
  }

  const tour = tourBar(glass);
  byId("glass-tour", HTMLElement).append(tour.element);
  const viewNow = () => VIEWS.find(({ id }) => id === state.v) ?? VIEWS[0];

  function draw() {
    drawing = 0;
    if (!model || !visible) return;
    const view = viewNow();
    const missing = view?.missing?.(model) ?? null;
    problems(missing);
    const ready = run !== null && run.tokens.length > 0;
    runButton.textContent = running && ready ? "Stop" : "Run";
    const late = running !== null;
    const through = run && run.depth > 0 && run.layers.length < run.depth ? ` · layer ${run.layers.length} of ${run.depth}` : "";
    facts.textContent = !ready ? (late ? "Running …" : "") : reading(/** @type {Run} */ (run)) + (late ? through || " · …" : "");
    if (open && (open.view !== view || missing || !ready)) {
      open.shown.close?.();
      open = null;
    }
    if (!ready || missing) {
      const hint = missing ?? (late ? "Running the prompt …" : trouble ? "" : "Nothing to show yet: write a prompt, and run it.");
      place.replaceChildren(make("p", { class: "hint" }, hint));
      numbers.replaceChildren();
    } else if (!open && view) {
      open = { view, shown: view.open(glass) };
      place.replaceChildren(open.shown.element);
      numbers.replaceChildren(...(open.shown.numbers ? [open.shown.numbers] : []));
      glassBox.dataset["view"] = view.id;
    }
    numbers.hidden = !numbers.firstChild;
    glassBox.dataset["trace"] = run?.id ?? "";
    glassBox.dataset["other"] = other?.id ?? "";
    open?.shown.update();
    if (ready) tour.update();
    const says = ready && !missing && view ? leadOf(view.id, glass) : null;
    if (lead.textContent !== (says ?? "")) lead.replaceChildren(...glossed(says ?? ""));
    lead.hidden = says === null;
    whyButton.hidden = view?.id === "why" || !open?.shown.tensor?.();
    showTabs(view?.id ?? ""); // now that their room is known
    text();
  }

  function text() {
    if (!run) return;
    const own = open?.shown.shade?.();
    const expected = run.predictions.length > 0;
    const shades = (/** @type {Run} */ of) => of.tokens.map((_, n) => {
      const nats = surpriseAt(of, n);
      return nats === null ? null : Math.min(1, nats / MOST);
    });
    chips.update(run, glass.q(), state.k === null ? null : glass.k(), own ?? { shades: shades(run), kind: "surprise" });
    words.textContent = own ? own.words : expected ? `Shade: surprise, from 0 to ${MOST} nats` : "";
    second.hidden = !(compareButton.getAttribute("aria-expanded") === "true");
    const both = other !== null && other.tokens.length > 0;
    byId("glass-other-chips", HTMLElement).hidden = !both;
    if (other && both) otherChips.update(other, glass.q(), state.k, { shades: shades(other), kind: "surprise" });
  }

  /** What changes the run, and what is wrong with it; a line that changes it in a terminal. */
  function changes() {
    const own = state.i !== "" && trouble !== null && OF_STEPS.includes(trouble.code ?? "");
    stepsFault.textContent = own ? trouble?.message ?? "" : "";
    stepsField.setAttribute("aria-invalid", `${own}`);
    const line = inspectCommand(model, { prompt: state.p ?? model.example, ids: run?.tokens.map(({ id }) => id) ?? [], last: state.last || model.last === true }, state.i);
    byId("glass-steps-line", HTMLElement).replaceChildren(...(state.i === "" || own ? [] : ["In a terminal: ", make("code", {}, line)]));
    return own;
  }

  /** What is wrong, with ways on. @param {string | null} missing */
  function problems(missing) {
    const notes = [];
    const inPlace = changes();
    if (trouble && !inPlace) {
      const long = trouble.code === "prompt_too_long" && !state.last;
      const keep = long ? [button(`Keep the last ${figure(model.context_length, 0)} tokens`, () => go({ last: true }, "new"), { class: "quiet" })] : [];
      const example = trouble.code === "empty_prompt" && model.example ? [button("Use the example", () => go({ p: null }, "new"), { class: "quiet" })] : [];
      // the server speaks to programs: here a button does it
      const told = trouble.code === "prompt_too_long" ? new Trouble(trouble.message.replace(/: shorten it[^]*$/, ": shorten it, or keep its end.")) : trouble;
      notes.push(troubleNote(told, long || example.length > 0 ? null : again, ...keep, ...example));
    }
    if (moved) notes.push(troubleNote(new Trouble(moved), null, button("Run it again", again, { class: "quiet" })));
    if (run && run.dropped > 0) notes.push(make("p", { class: "note" }, `The first ${plural(run.dropped, "token")} are left out: the context has room for ${figure(model.context_length, 0)}.`));
    if (other && run && other.done && run.done && other.tokens.length !== run.tokens.length) {
      notes.push(make("p", { class: "note" }, `Differences need texts of equal length: this one has ${plural(run.tokens.length, "token")}, the other ${figure(other.tokens.length, 0)}.`));
    } else if (other && !missing) {
      const from = state.cm && state.c === null ? `the same text by ${state.cm}` : state.c === (state.p ?? model.example) ? "the same text without the change" : `the other text${state.cm ? ` by ${state.cm}` : ""}`;
      notes.push(make("p", { class: "note" }, `Pictures show the difference: this run minus ${from}. Orange: more here; blue: less.`));
    }
    // what stands there already stays: a screen reader says it once
    const now = notes.map((note) => note.textContent).join("\n");
    if (notice.textContent !== now || notice.childElementCount !== notes.length) notice.replaceChildren(...notes);
  }

  async function start() {
    try {
      model ??= await source.ask("model");
      lookedAt = Date.now();
      otherModel.replaceChildren(...(model.models ?? []).map((/** @type {string} */ name, /** @type {number} */ n) => make("option", { value: n === 0 ? "" : name }, name)));
      byId("glass-models", HTMLElement).hidden = (model.models ?? []).length < 2;
      trouble = null;
      // a saved page shows its run, which may be a changed one
      if (model.steps && state.i === "") state = { ...state, i: JSON.stringify(model.steps) };
      if (model.training && page.trains() && state.v === "") state = { ...state, v: "training" };
      if (model.sweep && state.v === "") state = { ...state, v: "sweep", more: model.sweep };
      if (visible) follow();
    } catch (fault) {
      trouble = asTrouble(fault);
      notice.replaceChildren(troubleNote(trouble, start));
      page.refused(trouble);
    }
  }

  function submit() {
    const steps = change.hidden ? "" : stepsField.value.trim();
    const { fault } = stepsIn(steps);
    if (fault) {
      stepsFault.textContent = fault.message;
      stepsField.setAttribute("aria-invalid", "true");
      return stepsField.focus();
    }
    if (running && run && run.tokens.length > 0 && field.value === (state.p ?? model?.example)) {
      running.abort();
      running = null;
      return changed();
    }
    // the same text by the same model is another one only where this one is changed
    const alike = steps === "" && otherField.value === field.value;
    const changes = { p: field.value, last: false, i: steps, ...(second.hidden ? {} : { c: otherField.value === "" || alike ? null : otherField.value, cm: otherModel.value }) };
    const same = field.value === (state.p ?? model?.example) && hashOf({ ...state, ...changes }) === hashOf({ ...state, p: field.value, last: false });
    if (same && (trouble || !run?.done)) return again();
    const fresh = field.value === state.p ? {} : { q: null, k: null, more: { ...state.more, why: "" } };
    go({ ...changes, ...fresh }, "new");
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  for (const area of [field, otherField, stepsField]) {
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
  }
  /** @param {boolean} to */
  function compare(to) {
    compareButton.setAttribute("aria-expanded", `${to}`);
    compareButton.textContent = to ? "Stop comparing" : "Compare";
    second.hidden = !to;
    if (to) {
      otherField.value ||= field.value;
      otherField.focus();
    } else if (state.c !== null || state.cm !== "") go({ c: null, cm: "" }, "new");
  }
  /** @param {boolean} to */
  function reveal(to) {
    changeButton.setAttribute("aria-expanded", `${to}`);
    changeButton.textContent = to ? "Undo the change" : "Change";
    change.hidden = !to;
  }
  /** @param {boolean} to */
  function intervene(to) {
    reveal(to);
    if (to) stepsField.focus();
    else if (state.i !== "") go({ i: "" }, "new");
  }
  changeButton.addEventListener("click", () => intervene(changeButton.getAttribute("aria-expanded") !== "true"));
  compareButton.addEventListener("click", () => compare(compareButton.getAttribute("aria-expanded") !== "true"));

  /** Finds a token, or goes to a head, a place or a tensor. */
  async function find() {
    const wish = seek.value.trim();
    if (!run || wish === "") return;
    const head = /^l?(\d+)[\s.,]*h?[\s.,]*(\d+)$/i.exec(wish);
    const last = run.tokens.length - 1;
    if (/^\d+$/.test(wish)) return go({ q: Math.min(last, Number(wish)) });
    if (head && (/[lh.]/i.test(wish))) {
      const [l, h] = [Number(head[1]), Number(head[2])];
      if (l < run.depth && h < run.heads) return go({ v: "head", l, h }, "new");
      seek.setCustomValidity(`There is no head L${l}H${h}: this model has layers 0 to ${run.depth - 1} with heads 0 to ${run.heads - 1}.`);
      return seek.reportValidity();
    }
    const from = state.q ?? -1;
    for (let n = 1; n <= run.tokens.length; n++) {
      const at = (from + n) % run.tokens.length;
      if (run.tokens[at]?.piece.text?.toLowerCase().includes(wish.toLowerCase())) return go({ q: at });
    }
    const { tensors, params } = await glass.listing().catch(() => ({ tensors: [], params: [] }));
    const name = [...tensors, ...params].map((one) => one.name).find((one) => one === wish) ?? [...tensors, ...params].map((one) => one.name).find((one) => one.includes(wish));
    if (name) return go({ v: "table", n: name, at: "" }, "new");
    seek.setCustomValidity(`No token contains “${wish}”, and no tensor has that name.`);
    seek.reportValidity();
  }
  byId("glass-seek-form", HTMLFormElement).addEventListener("submit", (event) => {
    event.preventDefault();
    find();
  });
  seek.addEventListener("input", () => seek.setCustomValidity(""));

  /** @param {"l" | "h"} which @param {number} by */
  function step(which, by) {
    const most = (which === "l" ? run?.depth : run?.heads) ?? 1;
    const next = (((state[which] ?? 0) + by + most) % most);
    const layer = which === "l" && /^blocks\.\d+\./.test(state.n) ? { n: state.n.replace(/^blocks\.\d+/, `blocks.${next}`) } : {};
    go({ [which]: next, ...layer });
    say(`layer ${state.l ?? 0}, head ${state.h ?? 0}`);
  }

  /** @param {string} v */
  function look(v) {
    if (!VIEWS.some(({ id }) => id === v)) return;
    const tensor = open?.shown.tensor?.();
    go({ v, ...(tensor ? { n: tensor.name, at: tensor.at.join() } : {}) }, "new");
  }

  /** @param {boolean} [to] */
  function full(to) {
    const now = glassBox.classList.toggle("full", to);
    byId("glass-full", HTMLButtonElement).setAttribute("aria-pressed", `${now}`);
  }
  byId("glass-full", HTMLButtonElement).addEventListener("click", () => full());

  whyButton.addEventListener("click", () => look("why"));

  /** @type {Record<string, () => void>} */
  const keys = {
    "[": () => step("l", -1), "]": () => step("l", 1), "{": () => step("h", -1), "}": () => step("h", 1),
    t: () => look("table"), e: () => look("why"),
    c: () => compare(compareButton.getAttribute("aria-expanded") !== "true"), i: () => intervene(changeButton.getAttribute("aria-expanded") !== "true"), f: () => full(), "/": () => seek.select(), g: () => seek.select(), n: () => field.select(),
    Escape: () => {
      if (running) running.abort();
      else full(false);
    },
  };
  addEventListener("focus", stillTheSame);
  document.addEventListener("visibilitychange", stillTheSame);

  return {
    field,
    keys,
    /** @param {string} key */
    press(key) {
      const action = open?.shown.keys?.[key] ?? keys[key];
      action?.();
      return action !== undefined;
    },
    /** @param {string} v */
    has: (v) => VIEWS.some(({ id }) => id === v),
    address: () => (state.v && VIEWS.some(({ id }) => id === state.v) ? `#${hashOf(state)}` : "#v=map"),
    /** The address is another, or the page shows this or something else. @param {boolean} on */
    show(on) {
      const was = visible;
      visible = on;
      address = location.hash;
      if (!on) return;
      clearTimeout(writing);
      state = stateIn(address);
      if (state.c !== null || state.cm !== "") compareButton.setAttribute("aria-expanded", "true");
      compareButton.textContent = compareButton.getAttribute("aria-expanded") === "true" ? "Stop comparing" : "Compare";
      if (model) follow();
      else if (!was || trouble) start();
      stillTheSame();
    },
    repaint: changed,
    stop: () => keys["Escape"]?.(),
    reset: () => field.select(),
  };
}
