// The time-lapse of a run: scrubbed by mouse and by keys, played, compared, while it grows, in a saved file, and where
// there is none.
import { spawnSync } from "node:child_process";
import { pathToFileURL } from "node:url";
import { at, barriers, expect, test } from "./page.js";
import { BINARY, UI, serve, served } from "./servers.js";

const viewAt = (words = {}, server = "BASE") => `${at(server)}/#${new URLSearchParams({ v: "timelapse", ...words })}`;
const line = (page) => page.locator(".timelapse > .cell-line");
const number = (text) => Number(text.replaceAll("−", "-"));
const near = (found, expected) => expect(Math.abs(found - expected))
  .toBeLessThan(1e-3 * Math.max(0.1, Math.abs(expected)));

/** What the endpoint says of all frames. */
const framesOf = (page) => page.evaluate(async () => (await fetch("/inspect/v1/timelapse?count=1000")).json());

/** A score of every head at a frame. */
const scoresOf = ({ frames, scores }, n, score) =>
  frames[n].values.scores.filter((_, i) => i % 8 === scores.indexOf(score));

/** The numbers of the table of heads, once it is drawn under these words. */
async function written(page, words) {
  const table = page.locator(".timelapse details table").first();
  await expect(table.locator("caption")).toHaveText(words);
  return table.locator("tbody tr")
    .evaluateAll((rows) => rows.flatMap((row) => [...row.querySelectorAll("td")].slice(1)
      .map((cell) => cell.textContent)));
}

/** Holds the table of heads to these numbers. */
async function holds(page, words, expected) {
  const texts = await written(page, words);
  expect(texts.length).toBe(expected.length);
  texts.forEach((text, n) => near(number(text), expected[n]));
}

test("a time-lapse is scrubbed and compared by mouse", async ({ page }, info) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  await page.goto(viewAt());
  await expect(line(page)).toContainText("Step 20, frame");
  const all = await framesOf(page);
  expect(all.steps).toEqual(Array.from({ length: 21 }, (_, n) => n));
  const slider = page.getByRole("slider");
  const box = await slider.boundingBox();
  await slider.click({ position: { x: box.width / 2, y: 40 } });
  await expect(line(page)).toContainText("Step 10, frame");
  await page.locator(".timelapse summary").click();
  await page.getByLabel("Heads by").selectOption("previous");
  await expect(page).toHaveURL(/frame=10/);
  await expect(page).toHaveURL(/score=previous/);
  const [then, first] = [scoresOf(all, 10, "previous"), scoresOf(all, 0, "previous")];
  await holds(page, "Step 10: previous token", then);
  const losses = all.frames[10].values.loss.filter((one) => one !== null);
  near(number(/loss of the probe ([\d.]+)/.exec(await line(page).textContent())[1].replace(/\.$/, "")),
    losses.reduce((a, b) => a + b) / losses.length);
  // the lens and the sample at this step
  const lens = page.locator(".timelapse table").last().locator("tbody tr");
  await expect(lens).toHaveCount(all.tokens.length);
  await expect(lens.first().locator("td").nth(1)).toHaveText(`${Number(all.frames[10].values.loss[0].toPrecision(3))}`);
  const top = all.texts[all.frames[10].values.lens_top[0]];
  expect((await lens.first().locator("td").nth(2).textContent()).replace(" ✓", "")).toBe(top.replaceAll(" ", "␣"));
  await expect(page.locator("#glass-numbers .said")).toContainText(all.tokens[0][1]);
  await expect(page.locator("#glass-numbers canvas")).toHaveCSS("height", "192px");
  expect(await barriers(page)).toEqual([]);
  await info.attach("time-lapse", { body: await page.screenshot({ fullPage: true }), contentType: "image/png" });
  // the difference from another step
  await page.getByLabel("Compare with step").fill("0");
  await page.getByLabel("Compare with step").press("Enter");
  await expect(line(page)).toContainText("at step 0 it was");
  await holds(page, "Step 10: previous token, less that of step 0", then.map((one, n) => one - first[n]));
  const [x, y, cw, ch] = (await page.locator(".timelapse .heat").getAttribute("data-cells")).split(" ").map(Number);
  await page.locator(".timelapse .heat").click({ position: { x: x + 1.5 * cw, y: y + 1.5 * ch } });
  await expect(page.locator("#glass-numbers")).toContainText("L1H1");
  await expect(page.locator(".timelapse canvas[aria-label^='L1H1: previous token, less that of step 0']"))
    .toBeVisible();
  expect(await barriers(page)).toEqual([]);
  // the address holds all of it
  await page.reload();
  await expect(line(page)).toContainText("Step 10, frame");
  await expect(line(page)).toContainText("at step 0 it was");
  await expect(page.getByLabel("Heads by")).toHaveValue("previous");
});

test("a time-lapse is scrubbed and played by keys", async ({ page }) => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await page.goto(viewAt({ frame: "3" }));
  const slider = page.getByRole("slider");
  await expect(slider).toHaveAttribute("aria-valuetext", /^step 3, loss \d/);
  await expect(page.getByRole("button", { name: "Play" })).toBeVisible();
  await slider.focus();
  for (const [key, step] of [["ArrowRight", 4], ["Home", 0], ["ArrowRight", 1], ["ArrowRight", 2], ["ArrowLeft", 1],
    ["End", 20]]) {
    await page.keyboard.press(key);
    await expect(slider).toHaveAttribute("aria-valuetext", new RegExp(`^step ${step}, loss`));
    await expect(slider).toBeFocused();
  }
  // from the end it plays from the beginning, until it is stopped or there is no more
  await page.getByRole("button", { name: "Play" }).focus();
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: "Pause" })).toBeFocused();
  await expect(line(page)).toContainText(/Step [3-9], frame/);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: "Play" })).toBeFocused();
  const stopped = /Step (\d+)/.exec(await line(page).textContent())[1];
  await expect(page).toHaveURL(new RegExp(`frame=${stopped}(&|$)`));
  await expect(page.locator("#spoken")).toContainText(`step ${stopped}, loss`);
  await page.keyboard.press("Enter");
  await expect(line(page)).toContainText("Step 20, frame");
  await expect(page.getByRole("button", { name: "Play" })).toBeFocused();
  // heads
  await page.locator(".timelapse .live-cell").focus();
  await page.keyboard.press("ArrowDown");
  await expect(page.locator("#glass-numbers")).toContainText("L1H0");
});

test("a time-lapse grows while the run trains", async ({ page }) => {
  const asked = [];
  page.on("request", (request) => request.url().includes("timelapse?from")
    && asked.push(request.url().split("from=")[1].split("&")[0]));
  let most = 4;
  await page.route("**/timelapse?from=*", async (route) => {
    const response = await route.fetch();
    const all = await response.json();
    await route.fulfill({ response,
      json: { ...all, steps: all.steps.slice(0, most), frames: all.frames.slice(0, Math.max(0, most - all.from)) } });
  });
  await page.goto(viewAt());
  await expect(line(page)).toContainText("Step 3, frame");
  await page.getByRole("slider").focus();
  most = 9;
  // the last frame is followed, another one stays
  await expect(line(page)).toContainText("Step 8, frame");
  await page.keyboard.press("Home");
  most = 21;
  await expect(line(page)).toContainText("Step 0, frame");
  expect(asked.slice(0, 2)).toEqual(["0", "4"]);
  // nothing is asked for where it is not looked at
  await page.evaluate(() => (location.hash = location.hash.replace("v=timelapse", "v=lens")));
  await expect(page.locator(".lens-table tbody tr").first()).toBeVisible();
  const before = asked.length;
  await page.waitForTimeout(4000);
  expect(asked.length).toBe(before);
});

/** A training of a small model: 201 frames. @param {string} folder @param {string[]} rest */
const small = (folder, rest) => ["train", "--n-layer", "2", "--n-head", "2", "--d-model", "16", "--context-length",
  "40", "--batch-size", "2", "--threads", "1", "--sample", "0", "--probe", "--out", folder, ...rest];

test("a training serves its page, whose time-lapse grows while it trains", async ({ page }, info) => {
  const { server, address } = await served(small(info.outputPath("live"),
    ["--serve", "127.0.0.1:0", "--steps", "1000000", "--probe-every", "50", "--save-every", "50"]));
  process.env.LIMPID_OWN = address;
  try {
    await page.goto(viewAt({}, "OWN"));
    const slider = page.getByRole("slider");
    const frames = async () => Number(await slider.getAttribute("max"));
    await expect(line(page)).toContainText("Step");
    const first = await frames();
    await expect.poll(frames).toBeGreaterThan(first + 2);
    // the last frame is followed, also in words; another one stays
    await expect(slider).toHaveAttribute("aria-valuetext", /^step [1-9]/);
    expect(await slider.inputValue()).toBe(await slider.getAttribute("max"));
    await slider.focus();
    await page.keyboard.press("Home");
    const then = await frames();
    await expect.poll(frames).toBeGreaterThan(then);
    await expect(line(page)).toContainText("Step 0, frame");
    expect(await barriers(page)).toEqual([]);
  } finally {
    await page.goto("about:blank");
    server.kill();
  }
});

test("two hundred frames are scrubbed, played and compared", async ({ page }, info) => {
  const folder = info.outputPath("long");
  const trained = spawnSync(BINARY, small(folder, ["--steps", "200", "--probe-every", "1"]), { encoding: "utf8" });
  expect(trained.status, trained.stderr).toBe(0);
  const { server, address } = await serve(folder, ["--ui-dir", UI]);
  process.env.LIMPID_OWN = address;
  try {
    await page.goto(viewAt({}, "OWN"));
    const slider = page.getByRole("slider");
    await expect(line(page)).toContainText("Step 200, frame");
    await expect(slider).toHaveAttribute("max", "200");
    const all = await framesOf(page);
    expect(all.steps).toEqual(Array.from({ length: 201 }, (_, n) => n));
    const loss = (n) => {
      const known = all.frames[n].values.loss.filter((one) => one !== null);
      return known.reduce((a, b) => a + b) / known.length;
    };
    const said = async () => Number(/loss of the probe ([\d.]+\d)/.exec(await line(page).textContent())[1]);
    for (const n of [0, 1, 2]) await expect(page.locator("#glass-numbers dl").nth(1).locator("dd").nth(n))
      .toHaveText(`${Number(all.frames[200].values.norms[n].toPrecision(3))}`);
    await slider.focus();
    for (const n of [0, 1, 77, 128, 199]) {
      await slider.fill(`${n}`);
      await expect(line(page)).toContainText(`Step ${n}, frame`);
      near(await said(), loss(n));
    }
    await page.keyboard.press("ArrowLeft");
    await expect(line(page)).toContainText("Step 198, frame");
    await page.getByLabel("Compare with step").fill("0");
    await page.getByLabel("Compare with step").press("Enter");
    await expect(line(page)).toContainText(`at step 0 it was ${Number(loss(0).toPrecision(4))}`);
    await page.locator(".timelapse summary").click();
    const [now, before] = [198, 0].map((n) => all.frames[n].values.induction);
    await page.getByLabel("Heads by").selectOption("repeated");
    await holds(page, "Step 198: induction on repeats, less that of step 0", now.map((one, n) => one - before[n]));
    // it plays to the end, step by step, and stops there
    await page.getByRole("button", { name: "Play" }).click();
    await expect(line(page)).toContainText("Step 200, frame");
    await expect(page.getByRole("button", { name: "Play" })).toBeVisible();
    await expect(page).not.toHaveURL(/frame=/);
  } finally {
    await page.goto("about:blank");
    server.kill();
  }
});

test("a saved file has the time-lapse, without asking anybody", async ({ page }, info) => {
  const file = info.outputPath("timelapse.html");
  const { status, stderr } = spawnSync(BINARY,
    ["inspect", "--model", process.env.LIMPID_FOLDER, "--prompt", "Once upon a time", "--still", "--html",
      file], { encoding: "utf8" });
  expect(status, stderr).toBe(0);
  await page.goto(viewAt({ frame: "7", score: "first" }));
  await page.locator(".timelapse summary").click();
  await expect(line(page)).toContainText("Step 7, frame");
  const own = await written(page, "Step 7: first token");
  await page.goto(`${pathToFileURL(file)}#v=timelapse&frame=7&score=first`);
  await expect(line(page)).toContainText("Step 7, frame");
  await page.locator(".timelapse summary").click();
  expect(await written(page, "Step 7: first token")).toEqual(own);
  await page.getByRole("slider").focus();
  await page.keyboard.press("End");
  await expect(line(page)).toContainText("Step 20, frame");
  await expect(page.locator("#glass-numbers canvas")).toHaveCSS("height", "192px");
  await expect(page.locator("#glass .trouble")).toHaveCount(0);
});

test("a model without a time-lapse says how to make one", async ({ page }) => {
  await page.goto(viewAt({}, "CHAT"));
  await expect(page.locator("#glass-view"))
    .toHaveText("This model has no time-lapse: limpid train --probe records one while a model learns.");
});
