// A conversation: messages and answers, one after another.
import { answerView, copyButton, drawnWith, troubleNote, whyAfter } from "./answer.js";
import { button, byId, fill, keep, kept, make, on, onEnter, onSubmit } from "./dom.js";
import { Trouble, asTrouble } from "./source.js";
import { readable } from "./text.js";

/** @typedef {import("./source.js").Message} Message */
/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./source.js").Typed} Typed */

/**
 * What the views use of the page. `ready` tells whether the settings can be sent, and shows which cannot.
 * @typedef {object} Page
 * @property {Source} source
 * @property {() => Typed} typed
 * @property {() => boolean} ready
 * @property {(text: string) => void} branch
 * @property {(trouble: Trouble) => void} refused
 */

/** @param {string} text */
const plain = (text) => make("div", { class: "said", dir: "auto" }, ...readable(text, false));

const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

/** Keeps the end in sight, for whoever looks at the end. */
function follow() {
  const rest = document.documentElement.scrollHeight - innerHeight - scrollY;
  if (rest < 160) toEnd();
}

export class ChatView {
  field = byId("chat-text", HTMLTextAreaElement);
  send = byId("chat-send", HTMLButtonElement);
  system = byId("system", HTMLTextAreaElement);
  turns = byId("turns", HTMLElement);
  /** The conversation, which is there again when the page is loaded again. @type {Message[]} */
  messages = JSON.parse(kept("conversation", "sessionStorage") || "[]");
  /** The turns of a question that has no answer: the next one takes their place. @type {HTMLElement[]} */
  unanswered = [];
  /** @type {ReturnType<typeof answerView> | null} */
  running = null;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    onSubmit(byId("chat-form", HTMLFormElement), () => this.submit());
    onEnter(this.field, () => {
      if (!this.running) this.submit();
    });
    on(byId("chat-reset", HTMLButtonElement), "click", () => this.reset());
    this.messages.forEach(({ role, content }) => this.turn(role === "user" ? "You" : "Model", plain(content)));
  }

  /** @param {string} who @param {Node} what */
  turn(who, what) {
    const element = make("article", { class: "turn", "aria-label": who }, make("h2", who), what);
    this.turns.append(element);
    return element;
  }

  submit() {
    const text = this.field.value;
    if (this.running) return this.running.stop();
    if (!text.trim()) return this.field.focus();
    if (!this.page.ready()) return;
    this.unanswered.forEach((old) => old.remove());
    this.unanswered = [];
    const said = this.turn("You", plain(text));
    this.field.value = "";
    toEnd();
    this.answer(text, said);
  }

  /**
   * Asks, and adds question and answer to the conversation: what was not answered, or cannot be said again, is not sent
   * with what follows.
   * @param {string} question
   * @param {HTMLElement} said its turn
   */
  async answer(question, said) {
    const { page, messages } = this;
    const before = [...messages];
    const system = { role: /** @type {const} */ ("system"), content: this.system.value };
    const added = [...before, { role: /** @type {const} */ ("user"), content: question }];
    const asked = system.content.trim() ? [system, ...added] : added;
    const view = this.view(asked);
    const element = this.turn("Model", view.element);
    this.running = view;
    this.send.textContent = "Stop";
    const { text, finish, trouble } = await view.run((signal) => page.source.chat(asked, page.typed(), signal));
    const reply = { role: /** @type {const} */ ("assistant"), content: text };
    const unfit = text && !trouble ? await page.source.unfit([...asked, reply]) : null;
    if (messages !== this.messages) return; // a new conversation began
    this.running = null;
    this.send.textContent = "Send";
    const again = () => {
      if (this.running || !page.ready()) return;
      if (this.field.value === question) this.field.value = "";
      this.messages = before;
      this.unanswered = [];
      element.remove();
      this.answer(question, said);
    };
    if (trouble) {
      const others = before.length > 0 ? [button("New conversation", () => this.reset(), { class: "quiet" })] : [];
      element.append(troubleNote(trouble, again, ...others));
      page.refused(trouble);
    }
    if (unfit) {
      const left = `The question and its answer are left out of the conversation: ${unfit.message}`;
      element.append(troubleNote(new Trouble(left), null));
    } else if (!trouble && (text || finish !== "stopped")) messages.push(...added.slice(-1), reply);
    else {
      this.unanswered = [said, element];
      this.field.value ||= question;
    }
    keep("conversation", messages.length > 0 ? JSON.stringify(messages) : "", "sessionStorage");
    // only the last answer can be asked for again
    this.turns.querySelectorAll(".again").forEach((old) => old.remove());
    const actions = [copyButton(text)];
    if (!trouble) actions.push(button("Another answer", again, { class: "quiet again" }));
    if (text) view.element.append(make("p", { class: "actions" }, ...actions));
    if (trouble || unfit) toEnd();
    else follow();
  }

  /** An answer to messages, whose words can be asked about. @param {Message[]} messages */
  view(messages) {
    const { page } = this;
    /** Does something with the conversation as the model reads it. @param {(prompt: string) => void} use */
    const written = (use) => page.source.written(messages).then(use, (fault) =>
      view.element.parentElement?.append(troubleNote(asTrouble(fault), null)));
    const view = answerView("the answer", follow, {
      why: (said, word) => written((prompt) => whyAfter(prompt + said, word)),
      take: (said, word) => written((prompt) => page.branch(prompt + said + word.text)),
      drawn: drawnWith(page.typed()),
    });
    return view;
  }

  stop() {
    this.running?.stop();
  }

  reset() {
    this.stop();
    this.running = null;
    this.messages = [];
    this.unanswered = [];
    keep("conversation", "", "sessionStorage");
    fill(this.turns);
    this.send.textContent = "Send";
    this.field.focus();
  }
}
