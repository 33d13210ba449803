// An answer as it comes in: its tokens, how it ended and how likely it was, and what went wrong.
import { button, figure, make, plural, say } from "./dom.js";
import { surprise } from "./hover.js";
import { Trouble } from "./source.js";
import { tokenStrip } from "./strip.js";
import { readable } from "./text.js";

/** @typedef {import("./source.js").Part} Part */

/** Milliseconds between two things that a screen reader is given to say. */
const PAUSE = 2000;

/** What the reasons of the protocol mean. @type {Record<string, string>} */
const ENDS = { stop: "ended by itself", length: "cut: no more tokens allowed", stopped: "stopped" };

/**
 * What the server or the network said, as they said it.
 * @param {Trouble} trouble
 * @param {(() => void) | null} again
 */
export function troubleNote(trouble, again) {
  const about = [trouble.status, trouble.code, trouble.param, trouble.request && `request ${trouble.request}`];
  const line = about.filter((word) => word !== null && word !== "").join(" · ");
  const note = make("div", { class: "trouble", role: "alert" });
  note.append(make("p", { dir: "auto" }, ...readable(trouble.message, false)));
  if (line) note.append(make("p", { class: "facts" }, ...readable(line, false)));
  if (again) note.append(button("Try again", again));
  return note;
}

/**
 * @param {string} label what the text is
 * @param {() => void} grown called when there is more to see
 */
export function answerView(label, grown) {
  const strip = tokenStrip(label);
  const plain = make("p", { class: "unseen", dir: "auto" });
  const facts = make("p", { class: "facts" });
  const element = make("div", { class: "answer", "aria-busy": "true" }, strip.element, plain, facts);
  const controller = new AbortController();

  return {
    element,
    facts,
    stop: () => controller.abort(),

    /**
     * Shows an answer to its end. What the prompt was is the first `given` tokens and no part of the answer's text.
     * @param {(signal: AbortSignal) => AsyncGenerator<Part>} ask
     * @param {{text: string, tokens: number}} given
     * @returns {Promise<{text: string, trouble: Trouble | null}>}
     */
    async run(ask, given = { text: "", tokens: 0 }) {
      const began = performance.now();
      let [text, finish, fingerprint] = ["", "", ""];
      let spoken = given.text.length;
      let spokenAt = began;
      /** @type {Trouble | null} */
      let trouble = null;
      facts.textContent = "Waiting for the first token …";
      try {
        for await (const part of ask(controller.signal)) {
          text += part.text;
          strip.add(part.tokens);
          strip.given(part.promptTokens !== null && given.tokens ? part.promptTokens : given.tokens);
          if (part.promptTokens !== null && given.tokens) given.tokens = part.promptTokens;
          finish = part.finish ?? finish;
          fingerprint = part.fingerprint ?? fingerprint;
          if (text && facts.textContent) facts.textContent = "";
          if (performance.now() - spokenAt > PAUSE) {
            const whole = text.lastIndexOf(" ") + 1;
            if (whole > spoken) say(text.slice(spoken, whole));
            spoken = Math.max(spoken, whole);
            spokenAt = performance.now();
          }
          grown();
        }
      } catch (fault) {
        if (controller.signal.aborted) finish = "stopped";
        else trouble = fault instanceof Trouble ? fault : new Trouble(`The page failed: ${fault}`);
      }
      if (strip.tokens().length === 0 && text) strip.element.append(...readable(text, true));
      strip.end(text);
      plain.append(...readable(text, false));
      element.setAttribute("aria-busy", "false");
      const words = [ENDS[finish] ?? finish, fingerprint].filter((word) => word);
      facts.textContent = [...measures(given.tokens, (performance.now() - began) / 1000), ...words].join(" · ");
      if (!trouble) say(`${text.slice(spoken)} (${ENDS[finish] ?? "end"})`);
      grown();
      return { text: text.slice(given.text.length), trouble };
    },
  };

  /**
   * @param {number} given
   * @param {number} seconds
   */
  function measures(given, seconds) {
    const tokens = strip.tokens().slice(given);
    const nats = tokens.map(surprise).filter((nat) => nat !== null);
    if (nats.length === 0) return [];
    const mean = nats.reduce((sum, nat) => sum + nat, 0) / nats.length;
    const rate = tokens.length / seconds;
    return [
      plural(tokens.length, "token"),
      `mean surprise ${figure(mean, 2)} nats`,
      `${figure(rate, rate < 10 ? 1 : 0)} tokens a second`,
    ];
  }
}
