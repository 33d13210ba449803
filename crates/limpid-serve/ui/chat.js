// A conversation: messages and answers, one after another.
import { answerView, copyButton, drawnWith, troubleNote, whyAfter } from "./answer.js";
import { button, byId, keep, kept, make } from "./dom.js";
import { Trouble, asTrouble } from "./source.js";
import { readable } from "./text.js";

/** @typedef {import("./source.js").Message} Message */
/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./source.js").Typed} Typed */

/**
 * What the views use of the page. `ready` tells whether the settings can be sent, and shows which cannot.
 * @typedef {{source: Source, typed: () => Typed, ready: () => boolean, branch: (text: string) => void, refused: (trouble: import("./source.js").Trouble) => void}} Page
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
  /** The turns of a question that has no answer: the next one takes their place. @type {HTMLElement[]} */
  let unanswered = [];
  /** @type {ReturnType<typeof answerView> | null} */
  let running = null;

  /** @param {string} who @param {Node} what */
  function turn(who, what) {
    const element = make("article", { class: "turn", "aria-label": who }, make("h2", {}, who), what);
    turns.append(element);
    return element;
  }

  /**
   * Asks, and adds question and answer to the conversation: what was not answered, or cannot be said again, is not sent with what follows.
   * @param {string} question
   * @param {HTMLElement} said its turn
   */
  async function answer(question, said) {
    const mine = messages;
    const before = [...mine];
    const asked = [...before, { role: /** @type {const} */ ("user"), content: question }];
    const first = system.value.trim() ? [{ role: /** @type {const} */ ("system"), content: system.value }] : [];
    /** Does something with the conversation as the model reads it. @param {(prompt: string) => void} use */
    const written = (use) => page.source.written([...first, ...asked]).then(use, (fault) => element.append(troubleNote(asTrouble(fault), null)));
    const view = answerView("the answer", follow, {
      why: (said, own) => written((prompt) => whyAfter(prompt + said, own)), take: (said, own) => written((prompt) => page.branch(prompt + said + own.text)), drawn: drawnWith(page.typed()),
    });
    const element = turn("Model", view.element);
    running = view;
    send.textContent = "Stop";
    const { text, finish, trouble } = await view.run((signal) => page.source.chat([...first, ...asked], page.typed(), signal));
    const answered = [...asked, { role: /** @type {const} */ ("assistant"), content: text }];
    const unfit = text && !trouble ? await page.source.unfit([...first, ...answered]) : null;
    if (mine !== messages) return; // a new conversation began
    running = null;
    send.textContent = "Send";
    const again = () => {
      if (running || !page.ready()) return;
      if (field.value === question) field.value = "";
      messages = before;
      unanswered = [];
      element.remove();
      answer(question, said);
    };
    if (trouble) {
      const others = before.length > 0 ? [button("New conversation", reset, { class: "quiet" })] : [];
      element.append(troubleNote(trouble, again, ...others));
      page.refused(trouble);
    }
    if (unfit) element.append(troubleNote(new Trouble(`The question and its answer are left out of the conversation: ${unfit.message}`), null));
    else if (!trouble && (text || finish !== "stopped")) mine.push(...answered.slice(-2));
    else {
      unanswered = [said, element];
      field.value ||= question;
    }
    keep("conversation", mine.length > 0 ? JSON.stringify(mine) : "", "sessionStorage");
    // only the last answer can be asked for again
    turns.querySelectorAll(".again").forEach((old) => old.remove());
    const actions = [copyButton(text)];
    if (!trouble) actions.push(button("Another answer", again, { class: "quiet again" }));
    if (text) view.element.append(make("p", { class: "actions" }, ...actions));
    if (trouble || unfit) toEnd();
    else follow();
  }

  const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

  /** Keeps the end in sight, for whoever looks at the end. */
  function follow() {
    const rest = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (rest < 160) toEnd();
  }

  /** @param {string} text */
  const plain = (text) => make("div", { class: "said", dir: "auto" }, ...readable(text, false));

  function submit() {
    const text = field.value;
    if (running) return running.stop();
    if (!text.trim()) return field.focus();
    if (!page.ready()) return;
    unanswered.forEach((old) => old.remove());
    unanswered = [];
    const said = turn("You", plain(text));
    field.value = "";
    toEnd();
    answer(text, said);
  }

  function reset() {
    running?.stop();
    running = null;
    messages = [];
    unanswered = [];
    keep("conversation", "", "sessionStorage");
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

  // the conversation is there again when the page is loaded again
  messages = JSON.parse(kept("conversation", "sessionStorage") || "[]");
  messages.forEach(({ role, content }) => turn(role === "user" ? "You" : "Model", plain(content)));

  return { field, reset, stop: () => running?.stop() };
}
