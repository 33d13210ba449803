// Chat and completion with a real model, and what the read-out of a token says.
import { at, barriers, byHand, ask, chunk, ended, expect, open, push, say, test } from "./page.js";

/** Asks the server without the page. */
function post(page, path, fields) {
  return page.evaluate(async ([path, body]) => {
    return (await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body })).json();
  }, [path, JSON.stringify(fields)]);
}

test("a model answers, and each token tells what else was likely", async ({ page }) => {
  await open(page, "CHAT");
  await say(page, "Where is the kite?");
  const tokens = page.locator(".answer .token");
  expect(await tokens.count()).toBeGreaterThan(3);
  await expect(page.locator(".answer .facts"))
    .toContainText(/\d+ tokens · mean surprise \d+\.\d\d nats · .* · seed \d+ · limpid-/);
  // the row of tokens begins with the text that is copied, and that screen readers hear
  const text = await page.locator(".answer .unseen").textContent();
  expect(text.length).toBeGreaterThan(0);
  expect((await page.locator(".tokens").innerText()).replaceAll("↵", "")).toContain(text.split("\n")[0].trim());
  await expect(page.locator("#spoken")).toContainText(text.split("\n")[0].trim().slice(-8));

  await tokens.nth(1).hover();
  const panel = page.locator("#read-out");
  await expect(panel).toBeVisible();
  await expect(panel).toContainText(
    /Probability [\d.<> ]+ %, surprise (\d+\.\d\d nats \(\d+\.\d\d bits\)|below 0\.01 nats)\./);
  const shares = (await panel.locator("td:last-child").allInnerTexts())
    .map((share) => Number.parseFloat(share.replace(/[<>]/, "")));
  expect(shares.length).toBeGreaterThanOrEqual(6);
  const sum = shares.reduce((a, b) => a + b, 0);
  expect(sum, `${shares}`).toBeGreaterThan(98);
  expect(sum, `${shares}`).toBeLessThan(102);
  await page.mouse.move(5, 5);
  await expect(panel).toBeHidden();
});

test("the same seed gives the same answer, and the server gets what was set", async ({ page }) => {
  await open(page, "CHAT");
  await page.locator("#seed").fill("7");
  await page.locator("#max_tokens").fill("12");
  await page.locator(".system summary").click();
  await page.locator("#system").fill("Be brief.");
  const bodies = [];
  page.on("request", (request) => request.url().endsWith("/chat/completions") && bodies.push(request.postDataJSON()));
  await say(page, "Where is the ball?");
  const first = await page.locator(".answer .unseen").textContent();
  await page.getByRole("button", { name: "Another answer" }).click();
  await expect(page.locator(".answer")).toHaveCount(1);
  await ended(page);
  expect(await page.locator(".answer .unseen").textContent()).toBe(first);
  expect(bodies[1]).toEqual(bodies[0]);
  expect(bodies[0]).toMatchObject({ seed: 7, max_tokens: 12, stream: true, logprobs: true, top_logprobs: 5 });
  expect(bodies[0].messages)
    .toEqual([{ role: "system", content: "Be brief." }, { role: "user", content: "Where is the ball?" }]);
  await say(page, "And the bell?");
  expect(bodies[2].messages.map(({ role }) => role)).toEqual(["system", "user", "assistant", "user"]);
  expect(bodies[2].messages[2].content).toBe(first);
  await page.getByRole("button", { name: "New conversation" }).click();
  await expect(page.locator(".turn")).toHaveCount(0);
  await page.reload();
  await expect(page.locator("#seed")).toHaveValue("7");
});

test("a model without a chat template continues texts, and the page says why", async ({ page }) => {
  await open(page, "BASE");
  await expect(page.locator("#chat")).toBeHidden();
  await expect(page.locator("nav a").first()).toBeHidden();
  await expect(page.locator("#no-chat")).toContainText("has no chat template");
  await page.locator("#complete-text").fill("The cat");
  await page.locator("#max_tokens").fill("9");
  await page.locator("#seed").fill("1");
  await page.keyboard.press("Control+Enter");
  await page.locator("#complete-go").click();
  await ended(page);
  const { count } = await post(page, "/tokenize", { prompt: "The cat", add_special_tokens: true });
  await expect(page.locator(".token.given")).toHaveCount(count);
  await expect(page.locator(".token")).toHaveCount(count + 9);
  await expect(page.locator(".facts").last()).toContainText("9 tokens");
  const { choices: [{ text }] } = await post(page, "/v1/completions", { prompt: "The cat", max_tokens: 9, seed: 1 });
  await page.locator(".token.given").first().focus();
  await expect(page.locator("#read-out")).toContainText("nothing comes before it");
  await page.getByRole("button", { name: "Add it to the text" }).click();
  await expect(page.locator("#complete-text")).toHaveValue(`The cat${text}`);

  // without the prompt's own tokens: the same answer
  await page.locator("#complete-text").fill("The cat");
  await page.locator("#complete-echo").uncheck();
  await page.locator("#complete-go").click();
  await ended(page);
  await expect(page.locator(".token")).toHaveCount(9);
  await page.getByRole("button", { name: "Add it to the text" }).click();
  await expect(page.locator("#complete-text")).toHaveValue(`The cat${text}`);
});

test("an empty field of max tokens means what fits", async ({ page }) => {
  await open(page, "BASE");
  await page.locator("#complete-text").fill("The cat");
  await page.locator("#complete-go").click();
  await ended(page);
  await expect(page.locator(".trouble")).toHaveCount(1); // the hidden form of the key
  await expect(page.locator(".facts").last()).toContainText(/ended by itself|stopped at the token limit/);
});

test("a part of a character, and the first token of a text, are not asked about", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  await ask(page);
  const part = chunk([["\uFFFD", 0.5, [["a", 0.25]]]]).replace(/"bytes":[^\]]*\]/, '"bytes":[226]');
  await push(page, part + chunk([["b", 0.5, [["a", 0.25]]]], "stop") + "data: [DONE]\n\n");
  await ended(page);
  const panel = page.locator("#read-out");
  await page.locator(".answer .token").nth(0).focus();
  await expect(panel).toContainText("A part of a character cannot be asked about.");
  await expect(panel.getByRole("button", { name: "Why this word?" })).toHaveCount(0);
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowRight");
  await expect(panel.getByRole("button", { name: "Why this word?" })).toBeVisible();
  await open(page, "BASE", "#v=complete");
  await page.locator("#complete-text").fill("Once upon a time");
  await page.locator("#max_tokens").fill("1");
  await page.locator("#complete-go").click();
  await ended(page);
  await page.locator(".answer .token").first().focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowRight");
  await expect(page.locator(".answer .token").nth(1)).toBeFocused();
  expect(new URL(page.url()).hash).toContain("v=complete");
});

test("the server's errors are shown as they are", async ({ page, expected }) => {
  expected.push("400");
  await open(page, "CHAT");
  const answer = page.waitForResponse(/chat/);
  await page.locator("#temperature").fill("3.5");
  await page.locator("#chat-text").fill("Hello");
  await page.keyboard.press("Enter");
  const { error } = await (await answer).json();
  const note = page.locator(".turn .trouble");
  await expect(note).toContainText(error.message);
  await expect(note).toContainText(`400 · ${error.code} · temperature · request `);
  await expect(page.locator("#chat-text")).toHaveValue("Hello");
  await page.locator("#temperature").fill("0");
  await note.getByRole("button", { name: "Try again" }).click();
  await ended(page);
  await expect(page.locator(".turn")).toHaveCount(2);
  await expect(note).toHaveCount(0);
  await expect(page.locator("#chat-text")).toHaveValue("");
});

test("what was refused is no part of the conversation", async ({ page, expected }) => {
  expected.push("400");
  await open(page, "CHAT");
  const bodies = [];
  page.on("request", (request) => request.url().endsWith("/chat/completions") && bodies.push(request.postDataJSON()));
  const note = page.locator(".turn .trouble");
  const refuse = async (text, why) => {
    await page.locator("#chat-text").fill(text);
    await page.locator("#chat-send").click();
    await expect(note).toContainText(why);
    await expect(page.locator("#chat-text")).toHaveValue(text);
  };
  await page.locator("#max_tokens").fill("9");
  await say(page, "Where is the kite?");
  const answer = await page.locator(".answer .unseen").textContent();
  const long = "Where is the boat? ".repeat(50);
  await refuse(long, "context_length_exceeded");
  await say(page, "Where is the bell?");
  await expect(page.locator(".turn")).toHaveCount(4);
  expect(bodies.map(({ messages }) => messages.length)).toEqual([1, 3, 3]);
  expect(bodies[2].messages.map(({ content }) => content))
    .toEqual(["Where is the kite?", answer, "Where is the bell?"]);
  await refuse(long, "context_length_exceeded");
  await note.getByRole("button", { name: "New conversation" }).click();
  await expect(page.locator(".turn")).toHaveCount(0);
  await expect(page.locator("#chat-text")).toHaveValue(long);
});

test("an answer with the text of a special token stays, and a conversation outlives its page", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  for (const word of ["first", "<|user|>"]) {
    await ask(page, `Say ${word}`);
    await push(page, chunk([[word, 0.5]], "stop") + "data: [DONE]\n\n");
    await ended(page);
  }
  await expect(page.locator(".turn .trouble")).toHaveCount(0);
  await page.reload();
  const said = ["Say first", "first", "Say <|user|>", "<|user|>"];
  await expect(page.locator(".turn .said")).toHaveText(said);
  await ask(page, "On");
  expect((await page.evaluate(() => window.asked.messages)).map(({ content }) => content)).toEqual([...said, "On"]);
});

test("a setting that is no number is marked, and nothing is sent", async ({ page }) => {
  await open(page, "CHAT");
  let sent = 0;
  page.on("request", (request) => request.method() === "POST" && sent++);
  await page.locator("#panel summary").click();
  await page.locator("#temperature").evaluate((field) => (field.closest("details").open = false));
  for (const [name, wrong] of [["temperature", "0,5"], ["top_p", "abc"], ["max_tokens", "1e9"], ["seed", "1.5"]]) {
    await page.locator(`#${name}`).evaluate((field, wrong) => (field.value = wrong), wrong);
    await page.locator("#chat-text").fill("Hello");
    await page.locator("#chat-send").click();
    await expect(page.locator("#settings input:invalid")).toHaveAttribute("name", name);
    await expect(page.locator(`#${name}`)).toBeFocused();
    await page.locator(`#${name}`).fill("");
  }
  expect(sent).toBe(0);
  await page.locator("#max_tokens").fill("0");
  await say(page, "Hello");
  await expect(page.locator(".answer .facts")).toContainText("no tokens: Max tokens is 0");
});

test("a server that asks for a key gets it, once from the address or from a field", async ({ page, expected }) => {
  const { KEY } = await import("./servers.js");
  expected.push("401");
  await page.goto(at("KEY"));
  await expect(page.locator("#notice")).toContainText("401 · invalid_api_key");
  await page.locator("#key").fill("wrong");
  await page.keyboard.press("Enter");
  await expect(page.locator("#notice")).toContainText("That key was not accepted.");
  await page.locator("#key").fill(KEY);
  await page.keyboard.press("Enter");
  await expect(page.locator("#model")).toContainText("context");
  await expect(page.locator("#key-form")).toBeHidden();
  await page.evaluate(() => sessionStorage.clear());
  await page.goto("about:blank");
  await open(page, "KEY", `#v=complete&key=${encodeURIComponent(KEY)}`);
  expect(new URL(page.url()).hash).toBe("#v=complete");
  expect(await page.evaluate(() => JSON.stringify(localStorage))).not.toContain(KEY);
});

test("nobody is shut out, in light and dark", async ({ page }) => {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await open(page, "CHAT");
    await say(page, "Where is the boat?");
    await page.locator(".token").first().focus();
    expect(await barriers(page), colorScheme).toEqual([]);
    await page.keyboard.press("Escape");
    await page.locator("#help-open").click();
    expect(await barriers(page), `help, ${colorScheme}`).toEqual([]);
    await page.keyboard.press("Escape");
    await page.locator("#to-complete").click();
    await page.locator("#complete-text").fill("The kite");
    await page.locator("#complete-go").click();
    await ended(page);
    expect(await barriers(page), `completion, ${colorScheme}`).toEqual([]);
  }
});

test("everything goes by keyboard", async ({ page }) => {
  await byHand(page);
  await open(page, "CHAT");
  await expect(page.locator("#chat-text")).toBeFocused();
  await page.keyboard.type("Hello");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("there");
  await page.keyboard.press("Enter");
  await expect.poll(() => page.evaluate(() => window.asked?.messages[0].content)).toBe("Hello\nthere");
  const line = Array.from({ length: 40 }, (_, n) => [` word${n}`, 0.5, [[" else", 0.25]]]);
  await push(page, chunk(line, "stop") + "data: [DONE]\n\n");
  await ended(page);
  await page.locator("#system, .system summary").first().focus();
  await page.keyboard.press("Tab");
  const focused = page.locator(".token:focus");
  await expect(focused).toHaveText(" word0");
  await page.keyboard.press("ArrowRight");
  await expect(focused).toHaveText(" word1");
  await expect(page.locator("#spoken"))
    .toHaveText(" word1. Probability 50 %, surprise 0.69 nats (1.00 bits). Likeliest:  else 25 %.");
  const before = (await focused.boundingBox()).y;
  await page.keyboard.press("ArrowDown");
  expect((await focused.boundingBox()).y).toBeGreaterThan(before);
  await page.keyboard.press("ArrowUp");
  expect((await focused.boundingBox()).y).toBe(before);
  await page.keyboard.press("End");
  await expect(focused).toHaveText(" word39");
  await page.keyboard.press("ArrowRight");
  await expect(focused).toHaveText(" word39");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Shift+Tab");
  await expect(focused).toHaveText(" word39");
  await page.keyboard.press("Home");
  await expect(page.locator("#read-out")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.locator("#read-out")).toBeHidden();

  await page.keyboard.press("t");
  await expect(page.locator("html")).not.toHaveClass(/tinted/);
  await page.keyboard.press("d");
  await expect(page.locator("html")).toHaveAttribute("data-theme", "dark");
  await page.keyboard.press("2");
  await expect(page.locator("#complete")).toBeVisible();
  await page.goBack();
  await expect(page.locator("#chat")).toBeVisible();
  await page.keyboard.press("n");
  await expect(page.locator(".turn")).toHaveCount(0);
  await page.locator("#help-open").focus();
  await page.keyboard.press("?");
  await page.locator("#letters").uncheck();
  await page.keyboard.press("Escape");
  await page.keyboard.press("t");
  await expect(page.locator("html")).not.toHaveClass(/tinted/);
});
