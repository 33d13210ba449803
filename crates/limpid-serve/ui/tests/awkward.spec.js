// Answers that go wrong, texts that mean harm, small windows.
import { ask, at as address, byHand, chunk, ended, expect, open, push, test } from "./page.js";

test("an answer can be stopped, and what came of it stays", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  for (const stop of ["button", "key"]) {
    await ask(page, `Stop by ${stop}`);
    await push(page, chunk([["Once", 0.5], [" upon", 0.25]]));
    await expect(page.locator(".token").last()).toHaveText(" upon");
    await expect(page.locator(".answer").last()).toHaveAttribute("aria-busy", "true");
    if (stop === "button") await page.locator("#chat-send").click();
    else await page.keyboard.press("Escape");
    await ended(page);
    expect(await page.evaluate(() => window.aborted)).toBe(true);
    await expect(page.locator(".answer .facts").last()).toContainText("2 tokens · mean surprise 1.04 nats");
    await expect(page.locator(".answer .facts").last()).toContainText("stopped");
    await expect(page.locator("#chat-send")).toHaveText("Send");
  }
  await ask(page, "Go on");
  expect((await page.evaluate(() => window.asked.messages)).map(({ content }) => content)).toEqual([
    "Stop by button", "Once upon", "Stop by key", "Once upon", "Go on",
  ]);
  // a new conversation leaves the old answer alone
  await page.getByRole("button", { name: "New conversation" }).click();
  expect(await page.evaluate(() => window.aborted)).toBe(true);
  await expect(page.locator(".turn")).toHaveCount(0);
  await ask(page, "Anew");
  expect((await page.evaluate(() => window.asked.messages)).map(({ content }) => content)).toEqual(["Anew"]);
  // nor does the old one meddle with the next, however soon that begins
  await page.evaluate(() => {
    document.getElementById("chat-reset").click();
    document.getElementById("chat-text").value = "At once";
    document.getElementById("chat-form").requestSubmit();
  });
  await expect.poll(() => page.evaluate(() => window.asked.messages[0].content)).toBe("At once");
  await push(page, chunk([["Yes", 0.5]]));
  await expect(page.locator(".token")).toHaveText("Yes");
  await expect(page.locator("#chat-send")).toHaveText("Stop");
});

test("a stream that breaks or fails says so", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  await ask(page);
  await push(page, chunk([["Once", 0.5]]));
  await page.evaluate(() => window.end());
  await expect(page.locator(".turn .trouble")).toContainText("The answer ended before it was complete");
  await page.getByRole("button", { name: "Try again" }).click();
  const error = { message: "The engine failed.", type: "server_error", param: null, code: "engine_error" };
  await push(page, `${chunk([["Once", 0.5]])}data: ${JSON.stringify({ error })}\n\ndata: [DONE]\n\n`);
  await expect(page.locator(".turn .trouble")).toContainText("The engine failed.");
  await expect(page.locator(".turn .trouble")).toContainText("engine_error · request by-hand");
  await expect(page.locator(".turn")).toHaveCount(2);
});

test("a server that is gone says so", async ({ page, expected }) => {
  expected.push("ERR_FAILED");
  await open(page, "CHAT");
  await page.route("**/v1/**", (route) => route.abort());
  await page.locator("#chat-text").fill("Hello");
  await page.keyboard.press("Enter");
  await expect(page.locator(".turn .trouble")).toContainText("The server does not answer.");
});

test("text that means harm is only shown", async ({ page, expected }) => {
  expected.push("Content Security Policy", "Content-Security-Policy", "Refused to");
  await byHand(page);
  await open(page, "CHAT");
  const markup = "</script><img src=x onerror='window.harmed = 1'><style>*{display:none}</style>";
  await ask(page, markup);
  const tokens = [
    [markup, 0.5, [[markup, 0.5], ["\u202Elive", 0.25]]],
    ["\u202E", 0.5], ["\u200B", 0.5], ["\u0000\u001B[31m", 0.5], ["\uFEFF", 0.5], ["\u2028", 0.5],
    ["z\u0300\u0300\u0300\u0300", 0.5], ["\n", 0.5], ["", 0.5], ["مرحبا", 0.5], ["__proto__", 0],
  ];
  await push(page, chunk(tokens, "stop") + "data: [DONE]\n\n");
  await ended(page);
  const shown = page.locator(".answer .token");
  await expect(shown.first()).toHaveText(markup);
  await expect(page.locator(".said")).toHaveText(markup);
  await expect(page.locator(".answer .tokens .mark"))
    .toHaveText(["U+202E", "U+200B", "U+0000", "U+001B", "U+FEFF", "U+2028", "·"]);
  await shown.first().hover();
  await expect(page.locator("#read-out th").nth(1)).toHaveText("U+202Elive");
  await shown.last().focus();
  await expect(page.locator("#read-out")).toContainText("Probability 0 %, surprise infinite.");
  expect(await page.locator("img, .answer style").count()).toBe(0);
  // and if markup did get in, the policy would stop it
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.harmed = 2";
    const image = document.createElement("div");
    image.innerHTML = "<img src='x' onerror='window.harmed = 3'>";
    document.body.append(script, image);
  });
  const fetched = page.evaluate(() => fetch("http://127.0.0.1:9/").then(() => "sent", (fault) => fault.name));
  expect(await fetched).toBe("TypeError");
  expect(await page.evaluate(() => window.harmed)).toBe(undefined);
});

test("the read-out is exact where rounding would mislead", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  await ask(page);
  const cases = [
    [1, "Probability 100 %, surprise 0 nats."],
    [0.99999, "Probability > 99.99 %, surprise below 0.01 nats."],
    [0.9996, "Probability 99.96 %, surprise below 0.01 nats."],
    [0.5, "Probability 50 %, surprise 0.69 nats (1.00 bits)."],
    [0.012345, "Probability 1.23 %, surprise 4.39 nats (6.34 bits)."],
    [0.000001, "Probability < 0.001 %, surprise 13.82 nats (19.93 bits)."],
  ];
  await push(page, chunk(cases.map(([p], n) => [`word${n}`, p, [["likely", 0.25], [" other", 0.125]]]), "stop")
    + "data: [DONE]\n\n");
  await ended(page);
  for (const [n, [, text]] of cases.entries()) {
    await page.locator(".token").nth(n).focus();
    await expect(page.locator("#read-out p").nth(1)).toHaveText(text);
  }
  await page.locator(".token").nth(4).focus();
  await expect(page.locator("#read-out caption")).toHaveText("This token is not among the likeliest:");
  await expect(page.locator("#read-out th")).toHaveText(["likely", "␣other", "word4", "all others"]);
  await expect(page.locator("#read-out td:last-child")).toHaveText(["25 %", "12.5 %", "1.23 %", "61.3 %"]);
});

test("the page comes with its policy, and in no other page's frame", async ({ page }) => {
  const response = await page.goto(address("BASE"));
  const headers = response.headers();
  expect(headers["content-type"]).toBe("text/html; charset=utf-8");
  const policy = headers["content-security-policy"];
  for (const part of ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
    "form-action 'none'"]) {
    expect(policy).toContain(part);
  }
  expect(policy).not.toContain("unsafe");
  expect(headers["x-content-type-options"]).toBe("nosniff");
  expect(headers["referrer-policy"]).toBe("no-referrer");
});

test("words stay readable on every tint", async ({ page }) => {
  await byHand(page);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await open(page, "CHAT");
    await ask(page);
    const tokens = Array.from({ length: 15 }, (_, n) => [`word${n}`, Math.exp(-n / 3)]);
    await push(page, chunk(tokens, "stop") + "data: [DONE]\n\n");
    await ended(page);
    const contrasts = await page.locator(".token").evaluateAll((tokens) => {
      const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      // colours as pixels, one over another
      const pixel = (...colours) => {
        paint.clearRect(0, 0, 1, 1);
        for (const colour of colours) {
          paint.fillStyle = colour;
          paint.fillRect(0, 0, 1, 1);
        }
        return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
      };
      const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
      const paper = getComputedStyle(document.body).backgroundColor;
      return tokens.map((token) => {
        const { color, backgroundColor } = getComputedStyle(token);
        const [low, high] = [light(pixel(paper, backgroundColor)), light(pixel(color))].sort((a, b) => a - b);
        return { contrast: (high + 0.05) / (low + 0.05), tint: pixel(paper, backgroundColor).join() };
      });
    });
    expect(Math.min(...contrasts.map(({ contrast }) => contrast)), colorScheme).toBeGreaterThan(4.5);
    expect(new Set(contrasts.map(({ tint }) => tint)).size, "every step has a tint of its own").toBe(15);
    await page.reload();
  }
});

test.describe("a phone", () => {
  test.use({ viewport: { width: 360, height: 700 }, hasTouch: true, isMobile: true });

  test("has the read-out at the foot, and room for fingers", async ({ page }) => {
    await byHand(page);
    await open(page, "CHAT");
    await ask(page);
    const others = [" word", " b", " c", " d", " e"].map((text, n) => [text, 0.5 / (n + 1)]);
    const long = [["averylongwordwithoutanyspaceinitthatgoesonandonandon".repeat(3), 0.5], ...Array(300)
      .fill([" word", 0.5, others])];
    await push(page, chunk(long, "stop") + "data: [DONE]\n\n");
    await ended(page);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(360);
    const word = await page.locator(".token").first().boundingBox();
    expect(word.x + word.width, "a long word is broken, not cut").toBeLessThanOrEqual(360);
    // a word in the lower part of the window, where the read-out will be
    const low = await page.locator(".token").evaluateAll((tokens) => {
      scrollTo(0, 0);
      return tokens.findIndex((token) => token.getBoundingClientRect().top > 480);
    });
    const { x, y } = await page.locator(".token").nth(low).boundingBox();
    await page.touchscreen.tap(x + 8, y + 8);
    await expect(page.locator(".token").nth(low)).toBeFocused();
    const panel = page.locator("#read-out");
    await expect(panel).toBeVisible();
    const box = await panel.boundingBox();
    expect([box.x, box.width, Math.round(box.y + box.height)]).toEqual([0, 360, 700]);
    expect(y + 8, "the read-out would lie over it").toBeGreaterThan(box.y);
    await expect.poll(async () => (await page.locator(".token").nth(low).boundingBox()).y).toBeLessThan(box.y - 8);
    await page.locator(".turn h2").last().tap();
    await expect(panel).toBeHidden();
    for (const target of await page.locator("button:visible, summary:visible, nav a:visible").all()) {
      expect((await target.boundingBox()).height, await target.innerText()).toBeGreaterThanOrEqual(44);
    }
  });
});

/** Where the 20th word of an answer will be. @returns {Promise<[number, number]>} */
async function spot(page) {
  await ask(page);
  await push(page, chunk(Array(60).fill([" word", 0.5])) + "data: [DONE]\n\n");
  await ended(page);
  const { x, y, width, height } = await page.locator(".token").nth(20).boundingBox();
  await page.keyboard.press("Escape");
  await page.locator("#chat-reset").click();
  await page.locator("#chat-text").fill("Hello");
  return [x + width / 2, y + height / 2];
}

test("text that comes under a resting pointer opens nothing", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  // the middle of a word of the answer, as one before tells
  const at = await spot(page);
  await page.mouse.move(...at);
  await page.keyboard.press("Enter");
  await expect(page.locator("#chat-send")).toHaveText("Stop");
  await push(page, chunk(Array(60).fill([" word", 0.5, [[" word", 0.5]]])));
  await expect(page.locator(".token")).toHaveCount(60);
  expect(await page.evaluate(([x, y]) => document.elementFromPoint(x, y).classList.contains("token"), at)).toBe(true);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200))));
  await expect(page.locator("#read-out")).toBeHidden();
  await page.mouse.move(at[0] + 3, at[1] + 1);
  await expect(page.locator("#read-out")).toBeVisible();
});

test("nothing moves, for those who want it so and for all others", async ({ page }) => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await byHand(page);
  await open(page, "CHAT");
  await ask(page);
  await push(page, chunk([["Once", 0.5]]));
  await page.locator(".token").hover();
  expect(await page.evaluate(() => document.getAnimations().length)).toBe(0);
});
