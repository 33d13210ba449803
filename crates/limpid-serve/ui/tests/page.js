// What tests of the page have in common: a page that may not complain nor ask anybody else, and streams made by hand.
import AxeBuilder from "axe-core";
import { test as base, expect } from "@playwright/test";
import { palettesIn } from "../colours.js";

export { expect };

/** The servers that servers.js started. */
export const at = (name) => process.env[`LIMPID_${name}`];

export const test = base.extend({
  /** Errors that a test expects: their texts are left out. */
  expected: async ({}, use) => use([]),

  page: async ({ page, expected }, use) => {
    const wrong = [];
    page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
    page.on("pageerror", (error) => wrong.push(error.message));
    // OWN: a server of one test
    const own = () => ["CHAT", "BASE", "KEY", "DEEP", "TWIN", "BERT", "OWN"].map((name) => `${at(name)}/`);
    page.on("request", (request) => {
      const url = request.url();
      if (![...own(), "data:", "about:", "file:"].some((start) => url.startsWith(start))) wrong.push(`asks ${url}`);
    });
    // SLOW: what is drawn comes late, and so does what is asked for; a test that does not wait for what it reads fails
    // each time
    if (process.env.SLOW) await page.addInitScript(late);
    await use(page);
    expect(wrong.filter((text) => !expected.some((one) => text.includes(one)))).toEqual([]);
  },
});

/** Puts off every frame and every answer. It runs in the page. */
function late() {
  const [real, wait] = [window.fetch, 200];
  window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), wait);
  window.cancelAnimationFrame = clearTimeout;
  window.fetch = (...asked) => new Promise((done) => setTimeout(done, wait)).then(() => real(...asked));
}

/** Opens a page, and waits until it knows its model. */
export async function open(page, server, hash = "") {
  await page.goto(`${at(server)}/${hash}`);
  await expect(page.locator("#model")).toContainText("context");
}

/** The colours of a palette that is written into a page. */
export const paletteOf = async (page, name) => palettesIn(await page.locator("#palettes").textContent()).get(name);

/** Breaks of the rules that axe knows. */
export async function barriers(page) {
  await page.evaluate(AxeBuilder.source);
  const { violations } = await page.evaluate(() =>
    window.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
}

/** Says something and waits for the end of the answer. */
export async function say(page, text) {
  await page.locator("#chat-text").fill(text);
  await page.locator("#chat-send").click();
  await ended(page);
}

export async function ended(page) {
  await expect(page.locator(".answer").last()).toHaveAttribute("aria-busy", "false");
  await expect(page.locator("#chat-send")).toHaveText("Send");
}

/** A chunk of a chat's stream: tokens as [text, probability, [[other text, probability], ...]]. */
export function chunk(tokens, finish = null) {
  const one = (text, p) => ({ token: text, bytes: [...new TextEncoder().encode(text)], logprob: p === 0 ? -9999
    : Math.log(p) });
  const content = tokens.map(([text, p, others = []]) =>
    ({ ...one(text, p), top_logprobs: others.map((o) => one(...o)) }));
  const text = tokens.map(([text]) => text).join("");
  const choice = { index: 0, delta: { content: text }, logprobs: { content }, finish_reason: finish };
  return `data: ${JSON.stringify({ choices: [choice], system_fingerprint: "limpid-00000000-s1" })}\n\n`;
}

/**
 * Answers chats by hand: `window.push(text)` sends a part of the stream, `window.end()` ends it, `window.aborted` tells
 * whether the page gave up.
 */
export async function byHand(page) {
  await page.addInitScript(() => {
    const real = window.fetch;
    window.fetch = async (path, options) => {
      if (path !== "/v1/chat/completions") return real(path, options);
      window.asked = JSON.parse(options.body);
      window.aborted = false;
      const body = new ReadableStream({
        start(stream) {
          window.push = (text) => stream.enqueue(new TextEncoder().encode(text));
          window.end = () => stream.close();
          options.signal.addEventListener("abort", () => {
            window.aborted = true;
            stream.error(options.signal.reason);
          });
        },
      });
      return new Response(body, { headers: { "x-request-id": "by-hand" } });
    };
  });
}

/** Begins an answer by hand. */
export async function ask(page, text = "Hello") {
  await page.locator("#chat-text").fill(text);
  await page.locator("#chat-send").click();
  await expect(page.locator("#chat-send")).toHaveText("Stop");
}

export const push = (page, text) => page.evaluate((text) => window.push(text), text);
