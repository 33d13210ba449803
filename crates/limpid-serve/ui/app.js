// The page: what is shown, its address, its keys. The only file that does something by being loaded.
import { chatView } from "./chat.js";
import { completeView } from "./complete.js";
import { byId, figure, keep, kept } from "./dom.js";
import { glassView } from "./glass.js";
import { networkGlass } from "./glass-source.js";
import { startHover } from "./hover.js";
import { savedGlass } from "./saved.js";
import { settingsForm } from "./settings.js";
import { Trouble, network, networkSource } from "./source.js";
import { troubleNote } from "./answer.js";

/** @typedef {import("./source.js").Model} Model */

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
  ].filter((part) => part !== false).join(" · ");
}

/**
 * What the head of the page says of a saved one.
 * @param {any} model
 * @returns {Model}
 */
function ofSaved({ id, step, parameters, context_length, vocab_size }) {
  document.body.classList.add("saved");
  return { id, step, parameters, context: context_length, vocabulary: vocab_size, chat: false, continues: false, trains: false };
}

function start() {
  const notice = byId("notice", HTMLElement);
  const keyForm = byId("key-form", HTMLFormElement);
  const panel = byId("panel", HTMLDetailsElement);
  const help = byId("help", HTMLDialogElement);
  const tint = byId("tint", HTMLInputElement);
  const theme = byId("theme", HTMLSelectElement);
  const letters = byId("letters", HTMLInputElement);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  /** @type {boolean | null} null: not known yet */
  let chats = null;
  /** Whether there is anything but looking inside. */
  let continues = true;
  /** Whether the model is being trained: then the page opens on the training. */
  let trains = false;

  // the address is the state: `#v=complete`; a key in it is taken out at once
  const address = () => new URLSearchParams(location.hash.slice(1));
  const given = address();
  let key = given.get("key")?.trim() ?? kept("key", "sessionStorage");
  if (!/^[!-~]*$/.test(key)) key = ""; // no header can have it
  keep("key", key, "sessionStorage");
  if (given.has("key")) {
    given.delete("key");
    history.replaceState(null, "", `#${given}`);
  }

  const ask = network(() => key);
  const source = networkSource(ask);
  const settings = byId("settings", HTMLFormElement);
  const page = {
    source, typed: settingsForm(settings), ready, refused,
    branch: (/** @type {string} */ text) => {
      location.hash = "v=complete";
      views.complete.take(text);
    },
  };
  const saved = savedGlass();
  const glass = glassView({ source: saved ?? networkGlass(ask), refused, trains: () => trains, moved: () => (byId("to-glass", HTMLAnchorElement).href = glass.address()) });
  const views = { chat: chatView(page), complete: completeView(page), glass };
  startHover(byId("read-out", HTMLElement));

  /** @returns {"chat" | "complete" | "glass"} */
  function current() {
    const view = address().get("v");
    if (!continues || glass.has(view ?? "") || (trains && view === null)) return "glass";
    return chats && view !== "complete" ? "chat" : "complete";
  }

  function show() {
    if (chats === null) return;
    const now = current();
    for (const name of /** @type {const} */ (["chat", "complete", "glass"])) {
      const link = byId(`to-${name}`, HTMLAnchorElement);
      byId(name, HTMLElement).hidden = name !== now;
      link.hidden = !continues || (name === "chat" && !chats);
      if (name === now) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId("no-chat", HTMLElement).hidden = chats;
    byId("columns", HTMLElement).hidden = now === "glass";
    glass.show(now === "glass");
  }

  /** @param {Trouble} trouble */
  function refused(trouble) {
    if (trouble.status === 401) askForKey();
  }

  function ready() {
    panel.open ||= !settings.checkValidity();
    return settings.reportValidity();
  }

  function askForKey() {
    keyForm.hidden = false;
    byId("key", HTMLInputElement).focus();
  }

  async function load() {
    notice.replaceChildren();
    try {
      const model = saved ? ofSaved(await saved.ask("model")) : await source.model();
      byId("model", HTMLElement).textContent = inFigures(model);
      document.title = `${model.id} · limpid`;
      ({ chat: chats, continues, trains } = model);
      keyForm.hidden = true;
      show();
      if (matchMedia("(pointer: fine)").matches && current() !== "glass") views[current()].field.focus();
    } catch (fault) {
      const trouble = fault instanceof Trouble ? fault : new Trouble(`The page failed: ${fault}`);
      notice.replaceChildren(troubleNote(trouble, trouble.status === 401 ? null : load));
      refused(trouble);
    }
  }

  keyForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = byId("key", HTMLInputElement);
    key = field.value.trim();
    keep("key", key, "sessionStorage");
    field.value = "";
    keyForm.hidden = true;
    load();
  });

  function paint() {
    document.documentElement.dataset["theme"] = theme.value;
    document.documentElement.classList.toggle("tinted", tint.checked);
    glass.repaint();
  }
  tint.checked = kept("tint") !== "off";
  theme.value = kept("theme");
  letters.checked = kept("letters") !== "off";
  for (const [box, name] of /** @type {const} */ ([[tint, "tint"], [letters, "letters"]])) {
    box.addEventListener("change", () => {
      keep(name, box.checked ? "" : "off");
      paint();
    });
  }
  theme.addEventListener("change", () => {
    keep("theme", theme.value);
    paint();
  });
  paint();

  /** @type {Record<string, () => void>} */
  const keys = {
    "/": () => views[current()].field.focus(),
    "1": () => (location.hash = "v=chat"),
    "2": () => (location.hash = "v=complete"),
    "3": () => (location.hash = glass.address().slice(1)),
    n: () => views[current()].reset(),
    s: () => {
      panel.open = true;
      panel.querySelector("input")?.focus();
    },
    t: () => tint.click(),
    d: () => {
      theme.value = (theme.value || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
      theme.dispatchEvent(new Event("change"));
    },
    "?": () => help.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || help.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return views[current()].stop();
    const writing = event.target instanceof Element && event.target.matches("input:not([type=checkbox]), textarea, select");
    if (writing || !letters.checked || chats === null) return;
    if (current() === "glass" && glass.press(event.key)) return event.preventDefault();
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  byId("help-open", HTMLElement).addEventListener("click", () => help.showModal());
  addEventListener("hashchange", show);
  panel.open = matchMedia("(min-width: 60rem)").matches;
  load();
}

start();
