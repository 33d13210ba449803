// An answer as it comes in: its tokens, how it ended and how likely it was, and what went wrong.
import { hashOf, stateIn, whyWord } from "./address.js";
import { button, figure, fill, make, plural, say } from "./dom.js";
import { surprise } from "./hover.js";
import { asTrouble, Trouble } from "./source.js";
import { tokenStrip } from "./strip.js";
import { readable } from "./text.js";

/** @typedef {import("./source.js").Part} Part */

/** How tokens are drawn, in words. @param {import("./source.js").Typed} typed */
export function drawnWith(typed) {
  const said = [
    ["temperature", "temperature", "1"], ["top_k", "top-k", "all"], ["top_p", "top-p", "1"],
  ].map(([name = "", word, usual]) => `${word} ${typed[name]?.trim() || usual}`);
  return `Drawn with ${said.join(", ")}.`;
}

/**
 * Where a word after a text is explained.
 * @param {string} before
 * @param {import("./text.js").Piece} own a token with a text
 */
export function whyAfter(before, own) {
  location.hash = hashOf({ ...stateIn(""), p: before, last: true, ...whyWord(stateIn(""), null, `"${own.text}"`) });
}

/** Milliseconds between two things that a screen reader is given to say. */
const PAUSE = 2000;

/** What the reasons of the protocol mean. @type {Record<string, string>} */
const ENDS = { stop: "ended by itself", length: "stopped at the token limit", stopped: "stopped" };

/**
 * What the server or the network said, as they said it.
 * @param {Trouble} trouble
 * @param {(() => void) | null} again
 * @param {HTMLElement[]} more other ways on
 */
export function troubleNote(trouble, again, ...more) {
  const about = [trouble.status, trouble.code, trouble.param, trouble.request && `request ${trouble.request}`];
  const line = about.filter((word) => word !== null && word !== "").join(" · ");
  const note = make("div", { class: "trouble", role: "alert" });
  note.append(make("p", { dir: "auto" }, ...readable(trouble.message, false)));
  if (line) note.append(make("p", { class: "facts" }, ...readable(line, false)));
  const actions = [again && button("Try again", again, { class: "quiet" }), ...more].filter((one) => one !== null);
  if (actions.length > 0) note.append(make("p", { class: "actions" }, ...actions));
  return note;
}

/**
 * A button that copies a text, where the browser lets a page do so.
 * @param {string} text
 */
export function copyButton(text) {
  return button("Copy", () => navigator.clipboard.writeText(text), {
    class: "quiet", hidden: navigator.clipboard ? null : "",
  });
}

/**
 * @param {string} label what the text is
 * @param {() => void} grown called when there is more to see
 * @param {import("./strip.js").Branches | null} [branches]
 */
export function answerView(label, grown, branches = null) {
  const strip = tokenStrip(label, branches);
  const plain = make("p", { class: "unseen", dir: "auto" });
  const facts = make("p", { class: "facts" });
  const element = make("div", { class: "answer", "aria-busy": "true" }, strip.element, plain, facts);
  const controller = new AbortController();

  return {
    element,
    facts,
    textOf: strip.textOf,
    stop: () => controller.abort(),

    /**
     * Shows an answer to its end. If the prompt comes first, it is the first `given` tokens; the text is the answer's
     * alone.
     * @param {(signal: AbortSignal) => AsyncGenerator<Part>} ask
     * @param {number} given
     * @returns {Promise<{text: string, finish: string, trouble: Trouble | null, count: number}>} `count`: tokens, the
     * given ones among them
     */
    async run(ask, given = 0) {
      const began = performance.now();
      let [text, finish, fingerprint, seed] = ["", "", "", ""];
      let [spoken, spokenAt] = [0, began];
      /** @type {Trouble | null} */
      let trouble = null;
      facts.textContent = "Waiting for the first token …";
      try {
        for await (const part of ask(controller.signal)) {
          if (strip.tokens.length >= given) text += part.text;
          strip.add(part.tokens, given);
          finish = part.finish ?? finish;
          fingerprint = part.fingerprint ?? fingerprint;
          seed = part.seed ?? seed;
          if (strip.tokens.length > 0) facts.textContent = "";
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
        else trouble = asTrouble(fault);
      }
      if (strip.tokens.length === 0 && text) strip.element.append(...readable(text, true));
      if (finish === "stop") strip.end(text, given);
      plain.append(...readable(text, false));
      element.ariaBusy = "false";
      const none = finish === "length" && strip.tokens.length <= given;
      const words = [
        none ? "no tokens: Max tokens is 0" : ENDS[finish] ?? finish, seed && `seed ${seed}`, fingerprint,
      ].filter((word) => word);
      const parts = [...measures(given, (performance.now() - began) / 1000), ...words];
      fill(facts, ...parts.flatMap((part, n) => [n ? " · " : "", make("span", { class: "whole" }, part)]));
      if (trouble && strip.tokens.length === 0) element.remove();
      if (!trouble) say(`${text.slice(spoken)} (${ENDS[finish] ?? "end"})`);
      grown();
      return { text, finish, trouble, count: strip.tokens.length };
    },
  };

  /**
   * @param {number} given
   * @param {number} seconds
   */
  function measures(given, seconds) {
    const tokens = strip.tokens.slice(given);
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
