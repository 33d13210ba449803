// The page: what is shown, its address, its keys. start.js makes one, live.js one with a model inside.
import { writeHash } from "./address.js";
import { ChatView } from "./chat.js";
import { completeView } from "./complete.js";
import { byId, figure, fill, isModified, keep, kept, on, onSubmit } from "./dom.js";
import { GlassPage } from "./glass-page.js";
import { networkGlass } from "./glass-source.js";
import { startHover } from "./hover.js";
import { savedGlass } from "./saved.js";
import { settingsForm } from "./settings.js";
import { asTrouble, network, networkSource } from "./source.js";
import { troubleNote } from "./answer.js";

/** @typedef {import("./source.js").Model} Model */
/** @typedef {import("./source.js").Trouble} Trouble */

/** @param {Model} model */
function inFigures(model) {
  const units = [[1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([unit]) => (model.parameters ?? 0) >= Number(unit));
  const parameters = units
    ? `${Number((Number(model.parameters) / Number(units[0])).toPrecision(3))} ${units[1]}`
    : `${model.parameters}`;
  return [
    model.id,
    model.step !== null && `step ${figure(model.step, 0)}`,
    model.parameters !== null && `${parameters} parameters`,
    model.context !== null && `context ${figure(model.context, 0)}`,
    model.vocabulary !== null && `vocabulary ${figure(model.vocabulary, 0)}`,
    document.body.dataset["runs"],
  ].filter((part) => part).join(" · ");
}

/**
 * What the head of the page says of a saved one.
 * @param {any} model
 * @returns {Model}
 */
function ofSaved({ id, step, parameters, context_length, vocab_size }) {
  document.body.classList.add("saved");
  return {
    id, step, parameters, context: context_length, vocabulary: vocab_size, chat: false, continues: false, trains: false,
  };
}

/** @returns {URLSearchParams} what the address says */
const address = () => new URLSearchParams(location.hash.slice(1));

/** The key in the address, which is taken out of it at once, or else the one that was kept. */
function givenKey() {
  const given = address();
  const key = given.get("key")?.trim() ?? kept("key", "sessionStorage");
  const usable = /^[!-~]*$/.test(key) ? key : ""; // no header can have another
  keep("key", usable, "sessionStorage");
  if (given.has("key")) {
    given.delete("key");
    writeHash("replaceState", `${given}`);
  }
  return usable;
}

/** The page. Its state is the address: `#v=complete`. */
export class App {
  notice = byId("notice", HTMLElement);
  keyForm = byId("key-form", HTMLFormElement);
  keyField = byId("key", HTMLInputElement);
  panel = byId("panel", HTMLDetailsElement);
  help = byId("help", HTMLDialogElement);
  settings = byId("settings", HTMLFormElement);
  tint = byId("tint", HTMLInputElement);
  theme = byId("theme", HTMLSelectElement);
  letters = byId("letters", HTMLInputElement);
  toGlass = byId("to-glass", HTMLAnchorElement);
  /** @type {boolean | null} null: not known yet */
  chats = null;
  /** Whether there is anything but looking inside. */
  continues = true;
  /** Whether the model is being trained: then the page opens on the training. */
  trains = false;
  key = givenKey();
  saved = savedGlass();

  /** @param {import("./source.js").Ask | null} live the model in this page, if there is one */
  constructor(live) {
    const ask = live ?? network(() => this.key);
    this.source = networkSource(ask);
    this.glass = new GlassPage({
      source: this.saved ?? networkGlass(ask, live !== null), refused: (trouble) => this.refused(trouble),
      trains: () => this.trains, moved: () => (this.toGlass.href = this.glass.address()),
    });
    const page = {
      source: this.source, typed: settingsForm(this.settings), ready: () => this.ready(),
      refused: (/** @type {Trouble} */ trouble) => this.refused(trouble),
      branch: (/** @type {string} */ text) => {
        location.hash = "v=complete";
        this.views.complete.take(text);
      },
    };
    this.views = { chat: new ChatView(page), complete: completeView(page), glass: this.glass };
    startHover(byId("read-out", HTMLElement));
    onSubmit(this.keyForm, () => {
      this.key = this.keyField.value.trim();
      keep("key", this.key, "sessionStorage");
      this.keyField.value = "";
      this.keyForm.hidden = true;
      this.load();
    });
    this.followLook();
    on(document, "keydown", (event) => this.press(event));
    on(byId("help-open", HTMLElement), "click", () => this.help.showModal());
    on(window, "hashchange", () => this.show());
    this.panel.open = matchMedia("(min-width: 60rem)").matches;
    this.load();
  }

  /** @returns {"chat" | "complete" | "glass"} */
  get current() {
    const view = address().get("v");
    if (!this.continues || this.glass.has(view ?? "") || (this.trains && view === null)) return "glass";
    return this.chats && view !== "complete" ? "chat" : "complete";
  }

  get view() {
    return this.views[this.current];
  }

  show() {
    const { chats, continues, current } = this;
    if (chats === null) return;
    for (const name of /** @type {const} */ (["chat", "complete", "glass"])) {
      const link = byId(`to-${name}`, HTMLAnchorElement);
      byId(name, HTMLElement).hidden = name !== current;
      link.hidden = !continues || (name === "chat" && !chats);
      link.ariaCurrent = name === current ? "page" : null;
    }
    byId("no-chat", HTMLElement).hidden = chats;
    byId("columns", HTMLElement).hidden = current === "glass";
    this.glass.show(current === "glass");
  }

  /** @param {Trouble} trouble */
  refused(trouble) {
    if (trouble.status !== 401) return;
    this.keyForm.hidden = false;
    this.keyField.focus();
  }

  ready() {
    this.panel.open ||= !this.settings.checkValidity();
    return this.settings.reportValidity();
  }

  load = async () => {
    fill(this.notice);
    try {
      const model = this.saved ? ofSaved(await this.saved.ask("model")) : await this.source.model();
      byId("model", HTMLElement).textContent = inFigures(model);
      document.title = `${model.id} · limpid`;
      [this.chats, this.continues, this.trains] = [model.chat, model.continues, model.trains];
      this.keyForm.hidden = true;
      this.show();
      if (matchMedia("(pointer: fine)").matches && this.current !== "glass") this.view.field.focus();
    } catch (fault) {
      const trouble = asTrouble(fault);
      fill(this.notice, troubleNote(trouble, trouble.status === 401 ? null : this.load));
      this.refused(trouble);
    }
  };

  /** Draws the page as it was chosen to look, now and whenever that changes. */
  followLook() {
    const paint = () => {
      document.documentElement.dataset["theme"] = this.theme.value;
      document.documentElement.classList.toggle("tinted", this.tint.checked);
      this.glass.changed();
    };
    this.theme.value = kept("theme");
    on(this.theme, "change", () => {
      keep("theme", this.theme.value);
      paint();
    });
    for (const [box, name] of /** @type {const} */ ([[this.tint, "tint"], [this.letters, "letters"]])) {
      box.checked = kept(name) !== "off";
      on(box, "change", () => {
        keep(name, box.checked ? "" : "off");
        paint();
      });
    }
    paint();
  }

  /** @type {Record<string, () => void>} */
  keys = {
    "/": () => this.view.field.focus(),
    "1": () => (location.hash = "v=chat"),
    "2": () => (location.hash = "v=complete"),
    "3": () => (location.hash = this.glass.address().slice(1)),
    n: () => this.view.reset(),
    s: () => {
      this.panel.open = true;
      this.panel.querySelector("input")?.focus();
    },
    t: () => this.tint.click(),
    d: () => {
      this.theme.value = this.glass.glass.dark() ? "light" : "dark";
      this.theme.dispatchEvent(new Event("change"));
    },
    "?": () => this.help.showModal(),
  };

  /** @param {KeyboardEvent} event */
  press(event) {
    if (event.defaultPrevented || this.help.open || isModified(event)) return;
    if (event.key === "Escape") return this.view.stop();
    const isWritten =
      event.target instanceof Element && event.target.matches("input:not([type=checkbox]), textarea, select");
    if (isWritten || !this.letters.checked || this.chats === null) return;
    if (this.current === "glass" && this.glass.press(event.key)) return event.preventDefault();
    const action = this.keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}
