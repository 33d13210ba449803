// A text that the model continues.
import { hashOf, stateIn } from "./address.js";
import { answerView, copyButton, drawnWith, troubleNote, whyAfter } from "./answer.js";
import { button, byId, fill, keep, kept, make, on, onSubmit } from "./dom.js";
import { asTrouble } from "./source.js";

/** @param {import("./chat.js").Page} page */
export function completeView(page) {
  const form = byId("complete-form", HTMLFormElement);
  const field = byId("complete-text", HTMLTextAreaElement);
  const go = byId("complete-go", HTMLButtonElement);
  const echo = byId("complete-echo", HTMLInputElement);
  const result = byId("result", HTMLElement);
  echo.checked = kept("echo") !== "off";
  on(echo, "change", () => keep("echo", echo.checked ? "" : "off"));
  /** @type {ReturnType<typeof answerView> | null} */
  let running = null;

  async function submit() {
    if (running) return running.stop();
    if (!page.ready()) return;
    const prompt = field.value;
    const echoed = echo.checked;
    const whole = (/** @type {string} */ before) => (echoed ? before : prompt + before);
    const view = answerView(echoed ? "the text and its continuation" : "the continuation", () => {}, {
      why: (before, own) => whyAfter(whole(before), own), take: (before, own) => take(whole(before) + own.text),
      drawn: drawnWith(page.typed()),
    });
    fill(result, view.element);
    running = view;
    go.textContent = "Stop";
    /** @type {{text: string, trouble: import("./source.js").Trouble | null, count: number}} */
    let done;
    let full = false;
    try {
      const typed = page.typed();
      const { count, context } = await page.source.count(prompt);
      // the last token that is drawn needs no place in the context
      if (!typed["max_tokens"]?.trim()) typed["max_tokens"] = `${Math.max(1, context - count + 1)}`;
      done = await view.run((signal) => page.source.complete(prompt, echoed, typed, signal), echoed ? count : 0);
      full = (echoed ? 0 : count) + done.count > context;
    } catch (fault) {
      view.element.remove();
      done = { text: "", count: 0, trouble: asTrouble(fault) };
    }
    if (running !== view) return; // the text was cleared
    running = null;
    go.textContent = "Continue";
    const { text, trouble } = done;
    if (trouble) {
      result.append(troubleNote(trouble, submit));
      page.refused(trouble);
    }
    const put = button("Add it to the text", () => {
      field.value = prompt + text;
      field.focus();
    }, { class: "quiet" });
    // the last token of a full context was drawn from all the others, and has no place among them
    const looked = full ? whole(view.textOf(done.count - 1)) : prompt + text;
    const inside = make("a", { href: `#${hashOf({ ...stateIn("#v=map"), p: looked, last: true })}` }, "Look inside");
    if (text) view.element.append(make("p", { class: "actions" }, copyButton(prompt + text), put, inside));
  }

  /** Goes on from a text. @param {string} text */
  function take(text) {
    running?.stop();
    running = null;
    field.value = text;
    submit();
  }

  function reset() {
    running?.stop();
    running = null;
    go.textContent = "Continue";
    field.value = "";
    fill(result);
    field.focus();
  }

  onSubmit(form, () => submit());
  on(field, "keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!running) submit();
  });
  on(byId("complete-reset", HTMLButtonElement), "click", reset);

  return { field, reset, take, stop: () => running?.stop() };
}
