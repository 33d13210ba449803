// A conversation: messages and answers, one after another.
import { answerView, copyButton, troubleNote } from "./answer.js";
import { button, byId, make } from "./dom.js";
import { readable } from "./text.js";

/** @typedef {import("./source.js").Message} Message */
/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./source.js").Typed} Typed */

/**
 * What the views use of the page.
 * @typedef {{source: Source, typed: () => Typed, refused: (trouble: import("./source.js").Trouble) => void}} Page
 */

/** @param {Page} page */
export function chatView(page) {
  const form = byId("chat-form", HTMLFormElement);
  const field = byId("chat-text", HTMLTextAreaElement);
  const send = byId("chat-send", HTMLButtonElement);
  const system = byId("system", HTMLTextAreaElement);
  const turns = byId("turns", HTMLElement);
  /** @type {Message[]} */
  let messages = [];
  /** @type {ReturnType<typeof answerView> | null} */
  let running = null;

  /** @param {string} who @param {Node} what */
  function turn(who, what) {
    const element = make("article", { class: "turn", "aria-label": who }, make("h2", {}, who), what);
    turns.append(element);
    return element;
  }

  async function answer() {
    const view = answerView("the answer", follow);
    const element = turn("Model", view.element);
    const mine = messages;
    const asked = system.value.trim() ? [{ role: /** @type {const} */ ("system"), content: system.value }, ...mine] : [...mine];
    running = view;
    send.textContent = "Stop";
    const { text, trouble } = await view.run((signal) => page.source.chat(asked, page.typed(), signal));
    if (mine !== messages) return; // a new conversation began
    running = null;
    send.textContent = "Send";
    const again = () => {
      if (running) return;
      messages = asked.filter(({ role }) => role !== "system");
      element.remove();
      answer();
    };
    if (trouble) {
      element.append(troubleNote(trouble, again));
      page.refused(trouble);
    }
    if (text) mine.push({ role: "assistant", content: text });
    // only the last answer can be asked for again
    turns.querySelectorAll(".again").forEach((old) => old.remove());
    const actions = [copyButton(text)];
    if (!trouble) actions.push(button("Another answer", again, { class: "quiet again" }));
    if (text) view.element.append(make("p", { class: "actions" }, ...actions));
    follow();
  }

  /** Keeps the end in sight, for whoever looks at the end. */
  function follow() {
    const rest = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (rest < 160) scrollTo({ top: document.documentElement.scrollHeight });
  }

  function submit() {
    const text = field.value;
    if (running) return running.stop();
    if (!text.trim()) return field.focus();
    messages.push({ role: "user", content: text });
    turn("You", make("div", { class: "said", dir: "auto" }, ...readable(text, false)));
    field.value = "";
    scrollTo({ top: document.documentElement.scrollHeight });
    answer();
  }

  function reset() {
    running?.stop();
    running = null;
    messages = [];
    turns.replaceChildren();
    send.textContent = "Send";
    field.focus();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) submit();
  });
  byId("chat-reset", HTMLButtonElement).addEventListener("click", reset);

  return { field, reset, stop: () => running?.stop() };
}
