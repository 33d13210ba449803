// Reaching in: a sweep by mouse and by keys, its step in the run; texts of other lengths; gradients; a changed run in a
// saved file.
import { spawnSync } from "node:child_process";
import { pathToFileURL } from "node:url";
import { at, barriers, expect, test } from "./page.js";
import { BINARY } from "./servers.js";

const [CLEAN, CORRUPT] = ["Once upon a time, there was a girl", "Once upon a time, there was a boy"];
const sweepAt = (words = {}) => `${at("TWIN")}/#${new URLSearchParams({ v: "sweep", p: CORRUPT, ...words })}`;
const done = (page) => expect(page.locator(".sweep li button").first()).toBeVisible();
const number = (text) => Number(text.replaceAll("−", "-"));

/** What the endpoint says of the same question. */
const rowsOf = (page, question) => page.evaluate(async (body) => {
  const text = await (await fetch("/inspect/v1/sweeps",
    { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).text();
  return text.trim().split("\n").map((line) => JSON.parse(line)).filter(({ event }) => event === "row")
    .map(({ recovered }) => recovered);
}, question);

test("a sweep is read by mouse, and a cell changes the run", async ({ page }, info) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  await page.goto(sweepAt());
  await page.getByLabel("Clean text").fill(CLEAN);
  await expect(page.locator(".pair-line")).toHaveCount(2);
  await expect(page.locator(".pair mark")).toHaveCount(2);
  // both lead to the same word: which answer is meant must be said
  await page.getByRole("button", { name: "Sweep", exact: true }).click();
  await expect(page.locator(".sweep .trouble")).toContainText("both texts expect the same next one");
  await expect(page.getByLabel("Answer", { exact: true })).toBeFocused();
  await page.getByLabel("Answer", { exact: true }).fill(" called");
  await page.getByRole("button", { name: "Sweep", exact: true }).click();
  await done(page);
  await expect(page.locator(".sweep .trouble")).toHaveCount(0);
  await expect(page.locator(".sweep .note").first()).toContainText("token-layers");
  const expected = await rowsOf(page, { clean: CLEAN, corrupt: CORRUPT, answer: " called" });
  await page.locator(".sweep summary").click();
  const cells = await page.locator(".sweep details tbody tr")
    .evaluateAll((rows) => rows.map((row) => [...row.querySelectorAll("td")].slice(1).map((cell) => cell.textContent)));
  expect(cells.length).toBe(expected.length);
  cells.forEach((row, l) => row.forEach((text, n) => expect(Math.abs(number(text) - expected[l][n]))
    .toBeLessThan(1e-3 * Math.max(1, Math.abs(expected[l][n])))));
  await page.locator(".sweep summary").click();
  expect(await barriers(page)).toEqual([]);
  await info.attach("sweep", { body: await page.screenshot({ fullPage: true }), contentType: "image/png" });
  // the last word of the first layer restores all
  const frame = page.locator(".sweep .heat");
  const [x, y, cw, ch] = (await frame.getAttribute("data-cells")).split(" ").map(Number);
  await frame.click({ position: { x: x + (expected[0].length - 0.5) * cw, y: y + ch / 2 } });
  await expect(page.locator("#glass-before")).toContainText(`taken from “${CLEAN}”`);
  const last = expected[0].length - 1;
  await expect(page.locator("#glass-steps"))
    .toHaveValue(JSON.stringify([{ patch: "blocks.0.hook_resid_pre", pos: last, from: { prompt: CLEAN } }]));
  await expect(page.locator(".sweep .cell-line")).toContainText("restores 1 of the difference");
  await expect(page.locator("#glass-facts")).toContainText("nats a token");
  await expect(page.locator("#glass-numbers")).toContainText("is changed by the steps");
});

test("a sweep is read by keys", async ({ page }) => {
  await page.goto(sweepAt({ clean: CLEAN, site: "z", by: "position", metric: "kl" }));
  await page.getByLabel("Clean text").press("Enter");
  await done(page);
  const cell = page.locator(".sweep .live-cell");
  await cell.focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("End");
  await expect(cell).toHaveAttribute("aria-label", /^L0H1, position \d+ \(.*boy\): restores/);
  const label = await cell.getAttribute("aria-label");
  await page.keyboard.press("Enter");
  const pos = Number(/position (\d+)/.exec(label)[1]);
  await expect(page.locator("#glass-steps"))
    .toHaveValue(JSON.stringify([{ patch: "blocks.0.attn.hook_z", head: 1, pos, from: { prompt: CLEAN } }]));
  await expect(page.locator(".sweep .live-cell")).toHaveAttribute("aria-label", label);
  await page.goBack();
  await expect(page.locator("#glass-numbers")).toContainText("unchanged");
});

test("texts of other lengths are told at once, and what the server refuses is shown", async ({ page, expected }) => {
  expected.push("400");
  await page.goto(sweepAt());
  await page.getByLabel("Clean text").fill(`${CLEAN} and more`);
  await expect(page.locator(".pair .fault")).toContainText(/The clean text has \d+ tokens, this one \d+/);
  await expect(page.locator(".pair-line")).toHaveCount(2);
  await page.getByLabel("Clean text").fill(CLEAN);
  await expect(page.locator(".pair .fault")).toHaveCount(0);
  await page.getByLabel("Answer", { exact: true }).fill("no such word");
  await page.getByRole("button", { name: "Sweep", exact: true }).click();
  await expect(page.locator(".sweep .trouble, .sweep [role=alert]").first()).toContainText("one token of this model");
});

test("where there is nothing to restore, the server's words stand in place of a map", async ({ page }) => {
  await page.goto(sweepAt({ clean: CORRUPT, answer: " called" }));
  await page.getByRole("button", { name: "Sweep", exact: true }).click();
  await expect(page.locator(".sweep .trouble")).toContainText("there is nothing to restore");
  await expect(page.locator(".sweep .heat")).toBeHidden();
  await page.getByLabel("Clean text").fill(CLEAN);
  await page.getByRole("button", { name: "Sweep", exact: true }).click();
  await done(page);
  await expect(page.locator(".sweep .trouble")).toHaveCount(0);
  await expect(page.locator(".sweep .heat")).toBeVisible();
});

test("gradients of the chosen word", async ({ page }, info) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  await page.goto(`${at("BASE")}/#${new URLSearchParams({ v: "gradients", p: CORRUPT })}`);
  await expect(page.locator("#glass-view .lead").first()).toContainText("less that of");
  await expect(page.locator(".live-grid")).toHaveCount(2);
  await page.locator(".gradients summary").click();
  await expect(page.locator("details table")).toHaveCount(3);
  const answer = await page.evaluate(async () => {
    const id = document.querySelector("#glass").dataset.trace;
    const q = document.querySelectorAll("#glass-chips .token").length - 1;
    return (await fetch(`/inspect/v1/traces/${id}/gradients?position=${q}`)).json();
  });
  const first = await page.locator("details table").first().locator("tbody tr").first().locator("td")
    .evaluateAll((all) => all.slice(1).map((cell) => cell.textContent));
  first.forEach((text, n) => expect(Math.abs(number(text) - answer.stream[0][n]))
    .toBeLessThan(1e-3 * Math.max(1, answer.stream[0][n])));
  await page.locator(".gradients summary").click();
  expect(await barriers(page)).toEqual([]);
  await info.attach("gradients", { body: await page.screenshot({ fullPage: true }), contentType: "image/png" });
  await page.getByLabel("Heads by").selectOption("attribution");
  const cell = page.locator(".live-cell").last();
  await cell.focus();
  await page.keyboard.press("ArrowDown");
  await expect(cell).toHaveAttribute("aria-label", /^L1H0: −?[\d.e−]+$/);
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/v=head/);
});

test("a saved file shows the changed run, with its steps", async ({ page }, info) => {
  const file = info.outputPath("changed.html");
  const steps = '[{"ablate":"blocks.0.attn.hook_z","head":1}]';
  const { status, stderr } = spawnSync(BINARY,
    ["inspect", "--model", process.env.LIMPID_FOLDER, "--prompt", CORRUPT, "--intervene", steps, "--still", "--html",
      file], { encoding: "utf8" });
  expect(status, stderr).toBe(0);
  await page.goto(`${pathToFileURL(file)}#v=map`);
  await expect(page.locator("#glass-facts")).toContainText("nats a token");
  await expect(page.locator("#glass-steps")).toHaveValue(steps);
  const changed = await page.locator("#glass-facts").textContent();
  await page.goto(`${at("BASE")}/#${new URLSearchParams({ v: "map", p: CORRUPT })}`);
  await expect(page.locator("#glass-facts")).toContainText("nats a token");
  expect(await page.locator("#glass-facts").textContent()).not.toBe(changed);
});

test("a saved file begins with the sweep that it keeps", async ({ page }, info) => {
  const file = info.outputPath("sweep.html");
  const { status, stderr } = spawnSync(BINARY,
    ["sweep", process.env.LIMPID_FOLDER, "--clean", CLEAN, "--corrupt", CORRUPT, "--metric", "kl", "--site", "z",
      "--by-pos", "--html", file, "--still"], { encoding: "utf8" });
  expect(status, stderr).toBe(0);
  await page.goto(pathToFileURL(file).href);
  await done(page);
  await expect(page.getByLabel("Clean text")).toHaveValue(CLEAN);
  await expect(page.locator(".sweep .note").first()).toContainText("KL divergence");
  await expect(page.getByRole("combobox", { name: "Patch" })).toHaveValue("z");
  const peak = await page.locator(".sweep li").first().textContent();
  expect(await barriers(page)).toEqual([]);
  // another one needs the model
  await page.getByRole("combobox", { name: "Patch" }).selectOption("q");
  await page.getByRole("button", { name: "Sweep", exact: true }).click();
  await expect(page.locator(".sweep")).toContainText("any other sweep");
  // the same peak as where the model is served
  await page.goto(sweepAt({ clean: CLEAN, site: "z", by: "position", metric: "kl" }).replace(at("TWIN"), at("BASE")));
  await page.getByLabel("Clean text").press("Enter");
  await done(page);
  expect(await page.locator(".sweep li").first().textContent()).toBe(peak);
});
