// Look inside: left the text, in the middle a view, right the numbers. The address says which; what is chosen in one
// view is chosen in all.
import { hashOf, stateIn } from "./address.js";
import { troubleNote } from "./answer.js";
import { beforeAfter } from "./before-after.js";
import { tokenChips } from "./chips.js";
import { button, byId, figure, fill, make, on, plural, remark, say } from "./dom.js";
import { GlassForm } from "./glass-form.js";
import { GlassSeek } from "./glass-seek.js";
import { Glass } from "./glass.js";
import { watchFocus } from "./hands.js";
import { surpriseAt } from "./runs.js";
import { Trouble, asTrouble } from "./source.js";
import { leadOf } from "./says.js";
import { tourBar } from "./tour.js";
import { VIEWS, LOOKS } from "./views.js";
import { glossed } from "./words.js";

/** @typedef {import("./address.js").State} State */
/** @typedef {import("./runs.js").Run} Run */
/** @typedef {import("./view.js").View} View */

/** Views with a tab of the arithmetic beside them. */
const NUMBERS = LOOKS.find(({ views }) => views.some(({ id }) => id === "why"))?.views.map(({ id }) => id) ?? [];

/** Nats from which a token is shaded as strongly as there is. */
const MOST = 5;

/** A run in a line. @param {Run} run */
function readingOf({ tokens, depth, loss }) {
  const mean = loss === null ? "" : `, ${figure(loss, 2)} nats a token`;
  return `${plural(tokens.length, "token")} through ${plural(depth, "layer")}${mean}`;
}

/** How surprising each token was, from 0 to 1. @param {Run} run */
function surprises(run) {
  const shades = run.tokens.map((_, n) => {
    const nats = surpriseAt(run, n);
    return nats === null ? null : Math.min(1, nats / MOST);
  });
  return { shades, kind: "surprise" };
}

export class GlassPage {
  facts = byId("glass-facts", HTMLElement);
  notice = byId("glass-notice", HTMLElement);
  tabs = byId("glass-tabs", HTMLElement);
  within = byId("glass-within", HTMLElement);
  place = byId("glass-view", HTMLElement);
  numbers = byId("glass-numbers", HTMLElement);
  lead = byId("glass-lead", HTMLElement);
  whyButton = byId("glass-why", HTMLButtonElement);
  fullButton = byId("glass-full", HTMLButtonElement);
  shade = byId("glass-shade", HTMLElement);
  box = byId("glass", HTMLElement);
  otherChipsBox = byId("glass-other-chips", HTMLElement);
  /** @type {{view: View, shown: import("./view.js").Shown} | null} */
  open = null;
  drawing = 0;

  /**
   * @param {object} page
   * @param {import("./glass-source.js").GlassSource} page.source
   * @param {(trouble: Trouble) => void} page.refused
   * @param {() => void} page.moved
   * @param {() => boolean} page.trains
   */
  constructor({ source, refused, moved, trains }) {
    const follow = () => {
      moved();
      this.follow();
    };
    this.trains = trains;
    this.refused = refused;
    this.glass = new Glass(source, { changed: this.changed, moved: follow, refused, reading: readingOf });
    this.form = new GlassForm(this.glass, this.again);
    this.seek = new GlassSeek(this.glass);
    this.tour = tourBar(this.glass);
    const choose = (/** @type {Partial<State>} */ changes) => this.glass.go(changes);
    this.chips =
      tokenChips("Tokens of the prompt: move with the arrow keys, with Shift for the token to compare", choose);
    this.otherChips = tokenChips("Tokens of the prompt that it is compared with", choose);
    byId("glass-chips", HTMLElement).append(this.chips.element);
    this.otherChipsBox.append(this.otherChips.element);
    byId("glass-tour", HTMLElement).append(this.tour.element);
    this.change = beforeAfter(this.glass, byId("glass-before", HTMLElement));
    on(this.fullButton, "click", () => this.toggleFull());
    on(this.whyButton, "click", () => this.look("why"));
    on(window, "focus", this.glass.watchModel);
    on(document, "visibilitychange", this.glass.watchModel);
    watchFocus();
    if (source.holds) this.dimAlways();
  }

  get field() {
    return this.form.field;
  }

  changed = () => {
    this.drawing ||= requestAnimationFrame(() => this.draw());
  };

  /** Runs what the state asks for, where that is not what was run. */
  follow() {
    if (!this.glass.model || !this.glass.visible) return;
    this.form.follow();
    this.changed();
  }

  start = async () => {
    const { glass } = this;
    try {
      glass.model ??= await glass.source.ask("model");
      glass.modelAsked = Date.now();
      const { models = [], steps, training, sweep } = glass.model;
      this.form.offerModels(models);
      glass.trouble = null;
      // a saved page shows its run, which may be a changed one
      if (steps && glass.state.i === "") glass.state = { ...glass.state, i: JSON.stringify(steps) };
      if (training && this.trains() && glass.state.v === "") glass.state = { ...glass.state, v: "training" };
      if (sweep && glass.state.v === "") glass.state = { ...glass.state, v: "sweep", more: sweep };
      this.follow();
    } catch (fault) {
      const trouble = asTrouble(fault);
      fill(this.notice, troubleNote(trouble, this.start));
      glass.refuse(trouble);
    }
  };

  again = () => {
    this.glass.reset();
    this.start();
  };

  draw() {
    const { glass, place, numbers } = this;
    const { first, other } = glass;
    this.drawing = 0;
    if (!glass.model || !glass.visible) return;
    const view = VIEWS.find(({ id }) => id === glass.state.v) ?? /** @type {View} */ (VIEWS[0]);
    const missing = view.missing?.(glass.model) ?? null;
    const isReady = first.run !== null && first.run.tokens.length > 0;
    this.tellProblems(missing);
    this.tellFacts(isReady);
    if (this.open && (this.open.view !== view || missing || !isReady)) {
      this.open.shown.close?.();
      this.open = null;
    }
    if (!isReady || missing) {
      const wait = glass.trouble ? "" : "Nothing to show yet: write a prompt, and run it.";
      fill(place, make("p", { class: "hint" }, missing ?? (first.running ? "Running the prompt …" : wait)));
      fill(numbers);
    } else if (!this.open) {
      this.open = { view, shown: view.open(glass) };
      fill(place, this.open.shown.element);
      fill(numbers, ...(this.open.shown.numbers ? [this.open.shown.numbers] : []));
      this.box.dataset["view"] = view.id;
    }
    numbers.hidden = !numbers.firstChild;
    this.box.dataset["trace"] = first.run?.id ?? "";
    this.box.dataset["other"] = other?.id ?? "";
    this.open?.shown.update();
    if (isReady) this.tour.update();
    this.change.update();
    const says = isReady && !missing ? leadOf(view.id, glass) : null;
    if (this.lead.textContent !== (says ?? "")) fill(this.lead, ...glossed(says ?? ""));
    this.lead.hidden = says === null;
    // beside the tabs of the numbers it would stand twice
    const isThere = NUMBERS.includes(view.id);
    this.whyButton.hidden = isThere || !this.open?.shown.tensor?.();
    this.drawTabs(view.id); // now that their room is known
    this.drawText();
  }

  /** How far the run is. @param {boolean} isReady */
  tellFacts(isReady) {
    const { run, running } = this.glass.first;
    this.form.runButton.textContent = running && isReady ? "Stop" : "Run";
    const started = running ? "Running …" : "";
    const layers =
      run && run.depth > 0 && run.layers.length < run.depth ? ` · layer ${run.layers.length} of ${run.depth}` : " · …";
    this.facts.textContent = run && isReady ? readingOf(run) + (running ? layers : "") : started;
  }

  /**
   * The ways to look, the chosen one in sight, and the views of the chosen one, if it has several.
   * @param {string} now
   */
  drawTabs(now) {
    const { glass, tabs } = this;
    const laid = `${hashOf(glass.state)} ${tabs.clientWidth}`;
    if (tabs.dataset["now"] === laid) return;
    tabs.dataset["now"] = laid;
    const here = LOOKS.find(({ views }) => views.some(({ id }) => id === now));
    const isThere = (/** @type {View} */ view) =>
      (view.missing?.(glass.model) ?? null) === null && glass.holds({ v: view.id });
    const link = (/** @type {View | undefined} */ view, /** @type {string} */ title, /** @type {boolean} */ isHere) =>
      make("a", {
        href: glass.link({ v: view?.id ?? "", ...(view?.id === "why" ? this.tensorHere() : {}) }),
        "aria-current": isHere ? "page" : null, title: view?.about ?? null,
      }, title);
    // a way leads to the first of its views that there is
    fill(tabs, ...LOOKS.map((way) =>
      link(way.views.find(isThere) ?? way.views[0], way.title, way === here)));
    const within = here && here.views.length > 1 ? here.views : [];
    this.within.hidden = within.length === 0;
    fill(this.within, ...within.map((view) => link(view, view.title, view.id === now)));
    const chosen = tabs.querySelector("[aria-current]");
    const right = chosen instanceof HTMLElement ? chosen.offsetLeft - tabs.offsetLeft + chosen.offsetWidth : 0;
    // beyond the faded end
    tabs.scrollLeft = Math.max(0, right - tabs.clientWidth + 64);
  }

  /** Dims whatever comes that leads to something that a saved page does not hold. */
  dimAlways() {
    let dimming = 0;
    new MutationObserver(() => {
      cancelAnimationFrame(dimming);
      dimming = requestAnimationFrame(() => this.dim());
    }).observe(this.box, { childList: true, subtree: true });
  }

  dim() {
    /** @param {Element} link @param {Partial<State>} to */
    const mark = (link, to) => {
      const isHeld = this.glass.holds(to);
      link.classList.toggle("absent", !isHeld);
      link.ariaDisabled = isHeld ? null : "true";
      if (!isHeld && link !== this.whyButton) link.setAttribute("title", "Not in this file");
    };
    this.box.querySelectorAll('a[href^="#"]').forEach((link) => mark(link, stateIn(link.getAttribute("href") ?? "")));
    const tensor = this.open?.shown.tensor?.();
    if (tensor) mark(this.whyButton, { v: "why", n: tensor.name, at: tensor.at.join() });
  }

  /** The tokens of both texts. */
  drawText() {
    const { glass, chips, otherChips } = this;
    const { other } = glass;
    const { run } = glass.first;
    if (!run) return;
    const look = this.open?.shown.shade?.();
    chips.update(run, glass.q, glass.state.k === null ? null : glass.k, look ?? surprises(run));
    const usual = run.predictions.length > 0 ? `Shade: surprise, from 0 to ${MOST} nats` : "";
    this.shade.textContent = look ? look.words : usual;
    const hasOther = other !== null && other.tokens.length > 0;
    this.otherChipsBox.hidden = !hasOther;
    if (hasOther) otherChips.update(other, glass.q, glass.state.k, surprises(other));
  }

  /** What is wrong, with ways on. @param {string | null} missing */
  tellProblems(missing) {
    const { trouble, outdated, other, model } = this.glass;
    const { run } = this.glass.first;
    const notes = [];
    if (!this.form.tellSteps() && trouble) notes.push(this.noteOf(trouble));
    if (outdated) {
      notes.push(troubleNote(new Trouble(outdated), null, button("Run it again", this.again, { class: "quiet" })));
    }
    const note = (/** @type {string} */ text) => notes.push(remark(text));
    if (run && run.dropped > 0) {
      const room = figure(model.context_length, 0);
      note(`The first ${plural(run.dropped, "token")} are left out: the context has room for ${room}.`);
    }
    if (run?.done && other?.done && other.tokens.length !== run.tokens.length) {
      const lengths = `this one has ${plural(run.tokens.length, "token")}, the other ${figure(other.tokens.length, 0)}`;
      note(`Differences need texts of equal length: ${lengths}.`);
    } else if (other && !missing) {
      note(`Pictures show the difference: this run minus ${this.otherInWords()}. Orange: more here; blue: less.`);
    }
    // what stands there already stays: a screen reader says it once
    const now = notes.map(({ textContent }) => textContent).join("\n");
    if (this.notice.textContent !== now || this.notice.childElementCount !== notes.length) fill(this.notice, ...notes);
  }

  /** @param {Trouble} trouble */
  noteOf(trouble) {
    const { glass } = this;
    const { code, message } = trouble;
    const isLong = code === "prompt_too_long";
    const ways = [];
    if (isLong && !glass.state.last) {
      const keep = `Keep the last ${figure(glass.model.context_length, 0)} tokens`;
      ways.push(button(keep, () => glass.go({ last: true }, "new"), { class: "quiet" }));
    }
    if (code === "empty_prompt" && glass.model.example) {
      ways.push(button("Use the example", () => glass.go({ p: null }, "new"), { class: "quiet" }));
    }
    // the server speaks to programs: here a button does it
    const told = isLong ? new Trouble(message.replace(/: shorten it[^]*$/, ": shorten it, or keep its end.")) : trouble;
    return troubleNote(told, ways.length > 0 ? null : this.again, ...ways);
  }

  /** What the run is compared with. */
  otherInWords() {
    const { c, cm } = this.glass.state;
    if (cm && c === null) return `the same text by ${cm}`;
    if (c === this.form.prompt) return "the same text without the change";
    return `the other text${cm ? ` by ${cm}` : ""}`;
  }

  /** @param {"l" | "h"} which @param {number} by */
  step(which, by) {
    const { glass } = this;
    if (!glass.run) return;
    glass.turn(which, by);
    if (which === "l") glass.go({ n: glass.state.n.replace(/^blocks\.\d+(?=\.)/, `blocks.${glass.layer}`) });
    say(`L${glass.state.l ?? 0}H${glass.state.h ?? 0}`);
  }

  /** The tensor that is shown, as the address says it. @returns {Partial<State>} */
  tensorHere() {
    const tensor = this.open?.shown.tensor?.();
    return tensor ? { n: tensor.name, at: tensor.at.join() } : {};
  }

  /** Opens a view on the tensor that is shown. @param {string} v */
  look(v) {
    if (this.glass.has(v)) this.glass.go({ v, ...this.tensorHere() }, "new");
  }

  /** Gives the picture the whole page, or no longer. @param {boolean} [to] */
  toggleFull(to) {
    this.fullButton.ariaPressed = `${this.box.classList.toggle("full", to)}`;
  }

  /** @type {Record<string, () => void>} */
  keys = {
    "[": () => this.step("l", -1), "]": () => this.step("l", 1), "{": () => this.step("h", -1),
    "}": () => this.step("h", 1),
    t: () => this.look("table"), e: () => this.look("why"), c: () => this.form.compare(),
    i: () => this.form.intervene(),
    f: () => this.toggleFull(), "/": () => this.seek.field.select(), g: () => this.seek.field.select(),
    n: () => this.reset(),
    Escape: () => this.stop(),
  };

  /** @param {string} key @returns {boolean} whether it means something */
  press(key) {
    const action = this.open?.shown.keys?.[key] ?? this.keys[key];
    action?.();
    return action !== undefined;
  }

  /** Whether there is a view of this name. @param {string} v */
  has(v) {
    return this.glass.has(v);
  }

  /** Where it was looked at last. */
  address() {
    const { state } = this.glass;
    return state.v && this.glass.has(state.v) ? `#${hashOf(state)}` : "#v=map";
  }

  /** The address is another, or the page shows this or something else. @param {boolean} visible */
  show(visible) {
    const { glass } = this;
    const wasVisible = glass.visible;
    glass.visible = visible;
    glass.address = location.hash;
    if (!visible) return;
    glass.read();
    const { c, cm } = glass.state;
    if (c !== null || cm !== "") this.form.unfoldSecond(true);
    if (glass.model) this.follow();
    else if (!wasVisible || glass.trouble) this.start();
    glass.watchModel();
  }

  /** Stops the run; where none is going on, the picture leaves the whole page. */
  stop() {
    const { first } = this.glass;
    if (!first.running) return this.toggleFull(false);
    first.stop();
    this.changed();
  }

  reset() {
    this.field.select();
  }
}
