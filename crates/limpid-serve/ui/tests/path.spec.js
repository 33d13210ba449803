// From a word to its reason: by mouse and by keys, in the page, in a saved file and on a deep model; the tour; a word
// that is taken instead.
import { spawnSync } from "node:child_process";
import { pathToFileURL } from "node:url";
import { ask, at, barriers, byHand, chunk, expect, open, push, test } from "./page.js";
import { BINARY } from "./servers.js";

const complete = (page) => expect(page.locator("#glass-facts"))
  .toContainText(/^[\d,]+ tokens? through \d+ layers?(, [\d.]+ nats a token)?$/, { timeout: 120_000 });

/** A number as it was written. */
const number = (text) => Number(text.replaceAll("−", "-").replace(/ \(.*/, "").replace(/[^-\d.e]/g, ""));

/** What a step shows: its parts add up to its last line, in the page's own numbers. */
async function addsUp(page, what) {
  const rows = page.locator(".parts tbody tr");
  await expect(rows.last()).toHaveClass("total");
  const lines = await rows.locator("td:last-child").evaluateAll((all) => all.map((cell) => cell.textContent));
  const values = lines.map(number);
  const total = values.pop();
  const sum = values.reduce((all, value) => all + value, 0);
  // of numbers with four digits each
  expect(Math.abs(sum - total), `${what}: ${values} is not ${total}`)
    .toBeLessThan(1e-3 * Math.max(1, ...values.map(Math.abs)));
  return total;
}

const crumbs = (page) => page.locator(".crumbs li");

/** Follows parts until the way ends at a word of the input; each step's number is that of the bar that was followed. */
async function walk(page, follow) {
  let steps = 0;
  let exact = await addsUp(page, "the logit");
  for (const kind of ["h", "t", "w"]) {
    const part = page.locator(`.parts a[data-hop^="${kind}"]`).first();
    await expect(part).toBeVisible();
    const before = await crumbs(page).count();
    exact = number(await part.locator("xpath=ancestor::tr/td[last()]").textContent());
    await follow(part);
    await expect(crumbs(page)).toHaveCount(before + 1);
    await expect(page.locator(".path > .lead")).toContainText(/\d/);
    if (kind !== "w") expect(Math.abs((await addsUp(page, kind)) - exact))
      .toBeLessThan(1e-3 * Math.max(1, Math.abs(exact)));
    if (kind === "h") {
      await expect(page.locator(".arcs canvas")).toBeVisible();
      const weights = (await page.locator(".parts tbody tr:not(.total) td:nth-child(2)")
        .evaluateAll((all) => all.map((cell) => cell.textContent))).filter((text) => text !== "").map(number);
      expect(Math.abs(weights.reduce((a, b) => a + b, 0) - 1)).toBeLessThan(5e-3);
    }
    steps++;
  }
  await expect(page.locator(".path > .lead")).toContainText("The path ends here.");
  return steps;
}

test("the view begins with the reason that was measured, a click from the map", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=map`);
  await complete(page);
  await page.locator(".reading .likeliest").click();
  const line = page.locator(".reason");
  const found = /is ahead of .+ by\s[\d.]+.+(because of|no change of|not the reason)/;
  await expect(line).toContainText(found, { timeout: 120_000 });
  await page.locator(".parts tbody a").first().click();
  await expect(crumbs(page)).toHaveCount(2);
  await expect(line).toBeHidden();
  // another word to compare with is another question
  await page.goto(`${at("BASE")}/#v=path`);
  await expect(line).toContainText(/ is ahead of /, { timeout: 120_000 });
  const before = await line.textContent();
  await page.getByLabel("Rather than").selectOption({ index: 3 });
  await expect(line).not.toHaveText(before ?? "", { timeout: 120_000 });
  await expect(line).toContainText(/ is ahead of /, { timeout: 120_000 });
  await page.getByLabel("Rather than").selectOption("none");
  await expect(line).toBeHidden();
});

test("a path leads from the likeliest word to a word of the input, by mouse", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=map`);
  await complete(page);
  await page.locator(".reading .likeliest").click();
  const answer = await page.evaluate(async () => {
    const id = document.querySelector("#glass").dataset.trace;
    const q = document.querySelectorAll("#glass-chips .token").length - 1;
    const { values } = await (await fetch(`/inspect/v1/traces/${id}/tensors/logits?at=0,${q},*`)).json();
    return [...values].sort((a, b) => b - a);
  });
  await expect(page.locator(".parts tbody tr").last()).toHaveClass("total");
  expect(Math.abs((await addsUp(page, "the logit")) - (answer[0] - answer[1]))).toBeLessThan(1e-3);
  expect(await walk(page, (part) => part.click())).toBe(3);
  await page.locator(".arithmetic").click();
  await expect(page.locator(".sums")).toBeVisible();
  await page.goBack();
  await page.locator(".crumbs a").first().click();
  await expect(crumbs(page)).toHaveCount(1);
  // any other word, and none; never the word itself
  const word = await page.getByLabel("Word", { exact: true }).inputValue();
  await expect(page.getByLabel("Rather than").locator("option").nth(2)).toBeAttached();
  expect(await page.getByLabel("Rather than").locator("option")
    .evaluateAll((all) => all.map(({ value }) => value))).not.toContain(word);
  await page.getByLabel("Rather than").selectOption("none");
  await expect(page.locator(".parts thead")).toContainText("of the logit");
  await addsUp(page, "without another word");
});

test("a path is walked by keys alone, and back", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=path`);
  await complete(page);
  await expect(page.locator(".parts a").first()).toBeVisible();
  await page.locator("h1").click();
  await page.keyboard.press("j");
  await expect(page.locator(".parts a").first()).toBeFocused();
  await walk(page, async (part) => {
    for (let n = 0; n < 40 && !(await part.evaluate((one) =>
      one === document.activeElement)); n++) await page.keyboard.press("ArrowDown");
    await expect(part).toBeFocused();
    await page.keyboard.press("Enter");
  });
  for (const count of [3, 2, 1]) {
    await page.keyboard.press("b");
    await expect(crumbs(page)).toHaveCount(count);
  }
});

test("an MLP leads to its units, and a unit to what it responded to", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=path`);
  await complete(page);
  await page.locator('.parts a[data-hop^="m"]').first().click();
  await expect(page.locator(".path > .lead")).toContainText("MLP wrote");
  await addsUp(page, "the units");
  await page.locator('.parts a[data-hop^="u"]').first().click();
  await expect(page.locator(".path > .lead")).toContainText("went into unit");
  await addsUp(page, "what went into the unit");
});

test("a word that is no token, and a way that is none, say so in place", async ({ page, expected }) => {
  expected.push("400");
  await page.goto(`${at("BASE")}/#v=path`);
  await complete(page);
  await expect(page.locator(".parts a").first()).toBeVisible();
  await page.getByLabel("Another word").fill("quizzaciously");
  await page.keyboard.press("Enter");
  await expect(page.locator(".path .trouble")).toContainText("is not one token of this model");
  await page.getByRole("link", { name: "Begin with the likeliest word" }).click();
  await expect(page.locator(".parts a").first()).toBeVisible();
  await page.evaluate(() => (location.hash = "v=path&why=%7E%7Eh99.0%7E"));
  await expect(page.locator(".path .trouble")).toContainText("the path has no `h99.0` there");
});

test("a typed word is read with or without its blank, whichever is likelier, on both sides",
  async ({ page, expected }) => {
  expected.push("400"); // a spelling that is no token
  await page.goto(`${at("BASE")}/#v=path`);
  await complete(page);
  await expect(page.locator(".parts a").first()).toBeVisible();
  // the tokens of both spellings with their logits, without the page's own rule
  const words = await page.evaluate(async () => {
    const post = async (path, body) =>
      (await fetch(path, { method: "POST", headers: { "content-type": "application/json" },
        body: JSON.stringify(body) })).json();
    const id = document.querySelector("#glass").dataset.trace;
    const q = document.querySelectorAll("#glass-chips .token").length - 1;
    const { values } = await (await fetch(`/inspect/v1/traces/${id}/tensors/logits?at=0,${q},*`)).json();
    const all = [];
    for (const word of ("a he she her it in on is or at to and was the they "
      + "big old little girl boy said park once upon time day").split(" ")) {
      const spellings = [];
      for (const text of [word, ` ${word}`]) {
        const { tokens } = await post("/tokenize", { prompt: text, add_special_tokens: false });
        if (tokens.length === 1) spellings.push({ id: tokens[0], text, logit: values[tokens[0]] });
      }
      if (spellings.length > 0) all.push({ word, spellings: spellings.sort((a, b) => b.logit - a.logit) });
    }
    return all;
  });
  expect(words.filter(({ spellings }) => spellings.length === 2).length).toBeGreaterThan(3);
  expect(words.some(({ spellings }) => spellings.length === 1)).toBe(true);
  const shown = (text) => text.replaceAll(" ", "␣");
  for (const [field, select] of [["Another word", page.getByLabel("Word", { exact: true })],
    ["Compared word", page.getByLabel("Rather than")]]) {
    for (const { word, spellings: [best, less] } of field === "Another word" ? words : words.slice(12, -1)) {
      await page.getByLabel(field).fill(word);
      await page.keyboard.press("Enter");
      await expect(select, word).toHaveValue(`${best.id}`);
      const note = page.locator(".path > .note").first();
      if (less) await expect(note, word)
        .toContainText(`Read as ${shown(best.text)}, which is likelier here than ${shown(less.text)}.`);
      else if (best.text !== word) await expect(note, word)
        .toContainText(`Read as ${shown(best.text)}: without its blank it is not one token.`);
      await expect(page.getByLabel(field)).toHaveValue("");
    }
  }
  // a word is not compared with itself
  await page.getByLabel("Compared word").fill(words.at(-1).word);
  await page.keyboard.press("Enter");
  await expect(page.locator(".path .trouble")).toContainText("the same token on both sides");
  await page.getByRole("link", { name: "Begin with the likeliest word" }).click();
  // with a blank it is meant with one
  const both = words.find(({ spellings }) => spellings.length === 2);
  await page.getByLabel("Another word").fill(` ${both.word}`);
  await page.keyboard.press("Enter");
  await expect(page.getByLabel("Word", { exact: true }))
    .toHaveValue(`${both.spellings.find(({ text }) => text.startsWith(" ")).id}`);
});

test("a word clicked while the run streams says that the run is not at its end", async ({ page, expected }) => {
  expected.push("400");
  // the run stands still after its first layer, until it may go on
  await page.addInitScript(() => {
    const real = window.fetch;
    window.fetch = async (path, options) => {
      const response = await real(path, options);
      if (path !== "/inspect/v1/traces") return response;
      const gate = new Promise((open) => (window.runOn = open));
      const lines = (await response.text()).split("\n").filter((line) => line);
      const first = lines.findIndex((line) => JSON.parse(line).event === "layer") + 1;
      const bytes = (part) => new TextEncoder().encode(`${part.join("\n")}\n`);
      const body = new ReadableStream({
        async start(stream) {
          options.signal.addEventListener("abort", () => stream.error(options.signal.reason));
          stream.enqueue(bytes(lines.slice(0, first)));
          await gate;
          stream.enqueue(bytes(lines.slice(first)));
          stream.close();
        },
      });
      return new Response(body);
    };
  });
  await page.goto(`${at("BASE")}/#v=text&p=Once+upon+a+time`);
  const tokens = page.locator("#glass-chips .token");
  await tokens.nth(1).click();
  const where = /The run is at 1 of \d layers; /;
  await expect(page.locator(".text .cell-line"))
    .toHaveText(/^token 1 .*: The run is at 1 of \d layers; its probability comes after the last one\.$/);
  for (const [view, what] of [["head", "the picture"], ["lens", "the lens"], ["path", "the path"]]) {
    await page.evaluate((view) => (location.hash = `v=${view}&p=Once+upon+a+time`), view);
    await tokens.nth(1).click();
    await expect(page.locator("#glass-view"), view).toContainText(where);
    await expect(page.locator("#glass-view"), view).toContainText(`${what} comes after the last one.`);
  }
  await page.evaluate(() => (location.hash = location.hash.replace("v=path", "v=map")));
  await expect(page.locator("#glass-numbers .of-token .note"))
    .toContainText("what it expects comes after the last one.");
  await page.goBack();
  await page.getByLabel("Another word").fill("quizzaciously");
  await page.keyboard.press("Enter");
  await expect(page.locator(".path .hint")).toContainText("the path of “quizzaciously” comes after the last one.");
  // stopped, it says so and how it comes
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await expect(page.locator(".path .hint")).toContainText("The run was stopped after 1 of");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator(".path .hint")).toHaveText(where);
  await page.evaluate(() => window.runOn());
  await expect(page.locator(".path .trouble")).toContainText("is not one token of this model");
  await page.getByRole("link", { name: "Begin with the likeliest word" }).click();
  await addsUp(page, "after the run");
});

test("an unknown word clicked while an answer streams says so in its place", async ({ page, expected }) => {
  expected.push("400");
  await byHand(page);
  await open(page, "CHAT");
  await ask(page);
  await push(page, chunk([["quizzaciously", 0.5, [["quizzaciously", 0.5], [" a", 0.25]]]]));
  await page.locator(".answer .token").click();
  await expect(page.locator(".answer")).toHaveAttribute("aria-busy", "true");
  await page.getByRole("button", { name: "Why this word?" }).click();
  await expect(page.locator(".path .trouble")).toContainText("is not one token of this model");
  await page.getByRole("link", { name: "Begin with the likeliest word" }).click();
  await addsUp(page, "in place of it");
});

test("a prompt of one token, and an encoder, have their paths", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=path&p=Once`);
  await complete(page);
  await page.locator('.parts a[data-hop^="h"]').first().click();
  await expect(page.locator(".path > .lead")).toContainText(/the one token that there is|looked at/);
  await addsUp(page, "one token");
  await page.goto(`${at("BERT")}/#v=path&q=3&p=${encodeURIComponent("Once upon a [MASK]")}`);
  await complete(page);
  await expect(page.locator(".parts tbody tr").last()).toHaveClass("total");
  await expect(page.locator("#glass-numbers")).toContainText(/normalises the whole stream again|head's dense layer/);
});

test("a saved page has the path, without a server", async ({ page, context }, info) => {
  const file = info.outputPath("path.html");
  const { status, stderr } = spawnSync(BINARY,
    ["inspect", "--model", process.env.LIMPID_FOLDER, "--prompt", "The cat sat on the mat", "--still", "--html",
      file], { encoding: "utf8" });
  expect(status, stderr).toBe(0);
  await context.setOffline(true);
  await page.goto(`${pathToFileURL(file)}#v=map`);
  await page.locator(".reading .likeliest").click();
  await walk(page, (part) => part.click());
  expect(await barriers(page)).toEqual([]);
});

test("on twelve layers and 1,024 tokens the path stays within its budgets", async ({ page, expected }) => {
  // runs that would measure a reason need more memory than traces may have, and the page shows the server's words
  expected.push("400");
  const words = "the cat sat on a mat and then it ran to the big old house where a dog was ".repeat(60);
  await page.goto(`${at("DEEP")}/#v=map&last=1&p=${encodeURIComponent(words)}`);
  await complete(page);
  await page.locator(".reading .likeliest").click();
  await walk(page, (part) => part.click());
  expect(await page.locator("*").count()).toBeLessThanOrEqual(3000);
  expect(await barriers(page)).toEqual([]);
  // what a click waits for, told and not judged: a busy machine fails no test
  const times = await page.evaluate(() => performance.getEntriesByType("resource")
    .filter(({ name }) => name.includes("/path?")).map(({ duration }) => Math.round(duration)));
  console.log(`path at 1,024 tokens, ms: ${times.join(" ")}`);
});

test("the tour leads through six steps of one's own text", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=map&tour=1`);
  await complete(page);
  for (let n = 1; n <= 6; n++) {
    await expect(page.locator(".tour")).toContainText(`${n} of 6`);
    expect(await barriers(page), `step ${n}`).toEqual([]);
    if (n < 6) await page.getByRole("button", { name: "Next" }).click();
  }
  await expect(page.locator(".lens-table tbody tr").first()).toBeVisible();
  // whoever clicks instead goes on, too
  await page.goto(`${at("BASE")}/#v=map&tour=1`);
  await complete(page);
  await page.locator(".reading .likeliest").click();
  await expect(page.locator(".tour")).toContainText("2 of 6");
  await page.locator('.parts a[data-hop^="h"]').first().click();
  await expect(page.locator(".tour")).toContainText("3 of 6");
  await page.getByRole("button", { name: "Leave the tour" }).click();
  await expect(page.locator(".tour")).toBeHidden();
});

test("the tour reaches its end where a stop cannot be made, and forth and back", async ({ page, context }, info) => {
  const file = info.outputPath("tour.html");
  const { status, stderr } = spawnSync(BINARY,
    ["inspect", "--model", process.env.LIMPID_FOLDER, "--prompt", "The cat sat on the mat", "--still", "--html",
      file], { encoding: "utf8" });
  expect(status, stderr).toBe(0);
  const title = page.locator(".tour strong");
  const turn = async (name, end) => {
    for (let n = 0; n < 6 && !(await title.textContent()).startsWith(end); n++) {
      const before = await title.textContent();
      await page.getByRole("button", { name, exact: true }).click();
      await expect(title).not.toHaveText(before);
    }
    await expect(title).toContainText(`${end} of 6`);
  };
  // an encoder reaches the embedding block by block
  await page.goto(`${at("BERT")}/#v=map&tour=1`);
  await complete(page);
  await turn("Next", "6");
  await turn("Back", "1");
  // a part that is not among those that are listed
  await page.route(/\/path\?/, async (route) => {
    const response = await route.fetch();
    const answer = await response.json();
    await route.fulfill({ response,
      json: { ...answer, bars: answer.bars.filter(({ part }) => part.kind !== "embed" && part.kind !== "stream") } });
  });
  await page.goto(`${at("BASE")}/#v=map&tour=1`);
  await complete(page);
  await turn("Next", "6");
  await turn("Back", "1");
  await page.unrouteAll({ behavior: "wait" });
  await context.setOffline(true);
  await page.goto(`${pathToFileURL(file)}#v=map&tour=1`);
  await turn("Next", "6");
});

test("a word is asked about at its own place, in its own text", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=path&p=The+cat+sat+on+the+mat&why=%7E%7E%7E%22e%22`);
  await complete(page);
  const asked = page.locator(".crumbs li").first();
  await expect(asked).toHaveText(/^e over/);
  // there it is what the model expects most
  await page.locator("#glass-chips .token").nth(1).click();
  const { top } = await page.evaluate(async () =>
    (await fetch(`/inspect/v1/traces/${document.querySelector("#glass").dataset.trace}/predictions?position=1&k=2`))
      .json());
  await expect(page.getByLabel("Word", { exact: true })).toHaveValue(`${top[0][0]}`);
  await page.locator("#glass-chips .token").last().click();
  await expect(asked).toHaveText(/^e over/);
  await page.locator("#glass-prompt").fill("Once upon a time");
  await page.keyboard.press("Enter");
  await complete(page);
  expect(new URL(page.url()).hash).not.toContain("why=");
});

test("a word of a completion leads to its reason, and another one can be taken", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=complete`);
  await page.locator("#complete-text").fill("Once upon a time");
  await page.locator("#temperature").fill("0");
  await page.locator("#max_tokens").fill("6");
  await page.locator("#complete-go").click();
  await expect(page.locator(".answer")).toHaveAttribute("aria-busy", "false");
  const tokens = page.locator(".answer .token");
  const given = await page.locator(".answer .token.given").count();
  await tokens.nth(given + 2).click();
  await expect(page.locator("#read-out")).toContainText("Drawn with temperature 0, top-k all, top-p 1.");
  const before = (await tokens.evaluateAll((all, n) => all.slice(0, n).map((one) => one.textContent).join(""), given
    + 2));
  const other = page.locator("#read-out .take").first();
  const word = await other.textContent();
  await other.click();
  await expect(page.locator("#complete-text")).toHaveValue(before + word.replaceAll("␣", " "));
  await expect(page.locator(".answer")).toHaveAttribute("aria-busy", "false");
  await page.locator(".answer .token").nth(given + 1).click();
  await page.getByRole("button", { name: "Why this word?" }).click();
  await complete(page);
  await expect(page.locator(".path > .lead")).toContainText(/is (ahead of|behind)/);
  await addsUp(page, "a word of a completion");
});

test("a word of an answer leads to its reason", async ({ page }) => {
  await page.goto(`${at("CHAT")}/`);
  await page.locator("#chat-text").fill("Where is the kite?");
  await page.locator("#temperature").fill("0");
  await page.locator("#max_tokens").fill("8");
  await page.locator("#chat-send").click();
  await expect(page.locator(".answer")).toHaveAttribute("aria-busy", "false");
  await page.locator(".answer .token").nth(1).focus();
  await page.keyboard.press("Enter");
  await complete(page);
  await expect(page.locator(".path > .lead")).toContainText(/is (ahead of|behind)/);
});

test("a completion that fills the context keeps its first token when it is looked into", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=complete`);
  await page.locator("#complete-text").fill("Once upon a time");
  await page.locator("#temperature").fill("0");
  await page.locator("#complete-go").click();
  await expect(page.locator(".answer")).toHaveAttribute("aria-busy", "false", { timeout: 60_000 });
  await page.locator("#result").getByRole("link", { name: "Look inside" }).click();
  await complete(page);
  await expect(page.locator("#glass-chips .token").first()).toHaveText("Once");
  await expect(page.locator("#glass-notice")).not.toContainText("left out");
});

test("no two tabs are called alike, and the chosen one is in sight on a phone in its place",
  async ({ page }) => {
  await page.setViewportSize({ width: 400, height: 800 });
  await page.goto(`${at("BASE")}/#v=notation`);
  await complete(page);
  const names = await page.locator(".bar-of-tabs a").allTextContents();
  expect(new Set(names).size).toBe(names.length);
  await expect(page.locator("#glass-tabs [aria-current=page]")).toHaveText("Numbers");
  await expect(page.locator("#glass-tabs [aria-current=page]")).toBeInViewport();
  await expect(page.locator("#glass-within [aria-current=page]")).toHaveText("Notation");
  await expect(page.locator("#glass-within [aria-current=page]")).toBeInViewport();
  // all of it, before the faded end, whatever stands beside the tabs
  await page.goto(`${at("BASE")}/#v=lens`);
  await page.reload();
  await complete(page);
  await expect(page.locator("#glass-why")).toBeVisible();
  const ends = () => page.evaluate(() => ["#glass-tabs [aria-current]", "#glass-tabs"]
    .map((one) => document.querySelector(one).getBoundingClientRect().right));
  await expect.poll(async () => (await ends()).reduce((chosen, all) => all - chosen)).toBeGreaterThan(32);
});

test("on a phone no column of a step is cut, and a table ends at a whole column", async ({ page }) => {
  await page.setViewportSize({ width: 400, height: 800 });
  await page.goto(`${at("BASE")}/#v=path`);
  await complete(page);
  await page.locator('.parts a[data-hop^="h"]').first().click();
  await expect(page.locator(".arcs canvas")).toBeVisible();
  // but for a part of a pixel
  await expect(page.locator(".row-of-words .from"), "the word that looks").toBeInViewport({ ratio: 0.98 });
  expect(await page.locator(".path .wide:has(.parts)").evaluate((box) => box.scrollWidth - box.clientWidth))
    .toBeLessThanOrEqual(0);
  // nor of the steps that have words beside each part
  await page.goto(`${at("BASE")}/#v=path`);
  await page.reload();
  await complete(page);
  for (const hop of ["m", "u"]) {
    await page.locator(`.parts a[data-hop^="${hop}"]`).first().click();
    if (hop === "m") await expect(page.locator(".parts.worded")).toBeVisible();
    else await expect(page.locator(".path > .lead")).toContainText("went into unit");
    expect(await page.locator(".path .wide:has(.parts)").evaluate((box) => box.scrollWidth - box.clientWidth), hop)
      .toBeLessThanOrEqual(0);
  }
  await page.setViewportSize({ width: 1200, height: 900 });
  await page.evaluate(() => (location.hash = "v=table"));
  await expect(page.locator(".sheet [role='gridcell']").first()).toHaveText(/\d/);
  const rest = await page.locator(".cells").evaluate((box) => (box.clientWidth - 104) % 88);
  expect(rest).toBe(0);
});

test("the page keeps its width from view to view, and a selected token is in one piece", async ({ page }) => {
  await page.setViewportSize({ width: 1900, height: 900 });
  await page.goto(`${at("BASE")}/#v=complete`);
  await expect(page.locator("#complete-text")).toBeVisible();
  const left = () => page.locator("h1").evaluate((title) => title.getBoundingClientRect().left);
  const before = await left();
  await page.goto(`${at("BASE")}/#v=map`);
  await complete(page);
  expect(await left()).toBe(before);
  const tokens = page.locator("#glass-chips .token");
  for (let n = 0; n < (await tokens.count()); n++) {
    await tokens.nth(n).click();
    expect(await tokens.nth(n).evaluate((token) => token.getClientRects().length), `token ${n}`).toBe(1);
  }
});

test("a head is called the same in the terminal and in the page", async ({ page }) => {
  const prompt = "the cat sat on the mat and the cat sat on the mat and the cat sat on the mat";
  const { stdout } = spawnSync(BINARY, ["inspect", "--model", process.env.LIMPID_FOLDER, "--prompt", prompt],
    { encoding: "utf8" });
  const rows = stdout.split("\n").slice(stdout.split("\n").findIndex((line) => line.startsWith("block"))).slice(1);
  await page.goto(`${at("BASE")}/#v=heads&p=${encodeURIComponent(prompt)}`);
  await complete(page);
  await page.locator(".mosaic .live-cell").focus();
  const { n_layer: depth, n_head: heads } = await page.evaluate(async () => (await fetch("/inspect/v1/model")).json());
  for (let l = 0; l < depth; l++) {
    for (let h = 0; h < heads; h++) {
      await page.evaluate(([l, h]) => (location.hash = location.hash.replace(/&[lh]=\d+/g, "") + `&l=${l}&h=${h}`),
        [l, h]);
      const inTerminal = rows[l].trim().split(/ {2,}/)[h + 1].split(" ")[0];
      await expect(page.locator(".heads .cell-line")).toContainText(`L${l}H${h}: ${inTerminal}`);
    }
  }
});

test("every view opens with a line made of this run's numbers", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=map`);
  await complete(page);
  for (const view of ["text", "heads", "head", "mlp", "lens", "embed", "notation"]) {
    await page.evaluate((view) => (location.hash = `v=${view}&l=1&h=1`), view);
    await expect(page.locator("#glass-lead"), view).toContainText(/\d/);
  }
  await page.evaluate(() => (location.hash = "v=head&l=1&h=1"));
  await expect(page.locator("#glass-lead")).toContainText("L1H1");
  // few tokens are no evidence of a habit
  await page.evaluate(() => (location.hash = "v=heads&p=Once"));
  await expect(page.locator("#glass-lead"))
    .toContainText("1 token is too few to tell what a head looks at: that takes 5.");
  expect(await page.locator("#glass-lead abbr[title], .path abbr[title]").count()).toBeGreaterThanOrEqual(0);
});
