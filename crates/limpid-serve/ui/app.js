// The page: what is shown, its address, its keys. The only file that does something by being loaded.
import { chatView } from "./chat.js";
import { completeView } from "./complete.js";
import { byId, figure, keep, kept } from "./dom.js";
import { startHover } from "./hover.js";
import { settingsForm } from "./settings.js";
import { Trouble, networkSource } from "./source.js";
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

  const source = networkSource(() => key);
  const settings = byId("settings", HTMLFormElement);
  const page = { source, typed: settingsForm(settings), ready, refused };
  const views = { chat: chatView(page), complete: completeView(page) };
  startHover(byId("read-out", HTMLElement));

  /** @returns {"chat" | "complete"} */
  function current() {
    return chats && address().get("v") !== "complete" ? "chat" : "complete";
  }

  function show() {
    if (chats === null) return;
    for (const name of /** @type {const} */ (["chat", "complete"])) {
      const link = byId(`to-${name}`, HTMLAnchorElement);
      byId(name, HTMLElement).hidden = name !== current();
      link.hidden = !chats;
      if (name === current()) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId("no-chat", HTMLElement).hidden = chats;
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
      const model = await source.model();
      byId("model", HTMLElement).textContent = inFigures(model);
      document.title = `${model.id} · limpid`;
      chats = model.chat;
      keyForm.hidden = true;
      byId("columns", HTMLElement).hidden = false;
      show();
      if (matchMedia("(pointer: fine)").matches) views[current()].field.focus();
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
    const action = keys[event.key];
    if (writing || !letters.checked || !action || chats === null) return;
    event.preventDefault();
    action();
  });

  byId("help-open", HTMLElement).addEventListener("click", () => help.showModal());
  addEventListener("hashchange", show);
  panel.open = matchMedia("(min-width: 60rem)").matches;
  load();
}

start();
