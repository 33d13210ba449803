// report.html of runs, opened from a folder: what it shows is what the runs logged and what their model computes.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import path from "node:path";
import { expect, test as base } from "@playwright/test";
import { BINARY } from "./servers.js";
import { barriers } from "./page.js";

const folder = (name) => path.join(process.env.LIMPID_RUNS, name);
const limpid = (...options) => {
  const done = spawnSync(BINARY, options, { encoding: "utf8", maxBuffer: 1 << 28 });
  expect(done.status, done.stderr).toBe(0);
  return done.stdout;
};
const log = (name) => readFileSync(path.join(folder(name), "metrics.jsonl"), "utf8").trim().split("\n")
  .map((line) => JSON.parse(line));

const test = base.extend({
  /** A page that neither complains nor asks for anything but its own file. */
  page: async ({ page }, use) => {
    const wrong = [];
    page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
    page.on("pageerror", (error) => wrong.push(error.message));
    page.on("request", (request) => /^(file|data):/.test(request.url()) || wrong.push(`asks ${request.url()}`));
    await use(page);
    expect(wrong).toEqual([]);
  },
});
const open = (page, name) => page.goto(`file://${path.join(folder(name), "report.html")}`);
const chart = (page, title) => page.locator("figure").filter({ has: page.locator(`b:text-is("${title}")`) });
const number = (text) => Number(text.replaceAll(",", "").replace(/ \(.*/, ""));

test("the values of every curve at a step are those of the log, in every chart at once", async ({ page }) => {
  await open(page, "chat");
  const lines = log("chat"), step = lines.filter((line) => line.layers)[2].step;
  const plot = chart(page, "Learning rate").locator(".plot");
  await plot.focus();
  await page.keyboard.press("Home");
  for (let n = 1; n < step; n++) await page.keyboard.press("ArrowRight");
  await expect(plot).toHaveAttribute("aria-valuenow", String(step));
  const of = (key) => lines.find((line) => line.step === step && key in line)[key];
  const near = (text, value) => expect(Math.abs(number(text) / value - 1), `${text} is ${value}`).toBeLessThan(1e-4);
  near(await chart(page, "Learning rate").locator(".legend b").innerText(), of("learning_rate"));
  expect(await plot.getAttribute("aria-valuetext")).toContain(`step ${step}: `);
  for (const [title, key] of [["Norm of the gradient, by layer", "grad_norm"],
    ["Update over weights, by layer", "update_ratio"]]) {
    const entries = chart(page, title).locator(".legend > span");
    const layers = Object.entries(of("layers"));
    expect(await entries.count()).toBe(layers.length);
    for (const [layer, numbers] of layers) {
      near(await entries.filter({ hasText: new RegExp(`^\\s*${layer.replace(".", "\\.")} `) }).locator("b").innerText(),
        numbers[key]);
    }
  }
  // the same place in every chart that goes over steps
  const rules = await page.locator(".plot[data-across=step] .rule")
    .evaluateAll((rules) => rules.map((rule) => rule.getAttribute("d").split(" ")[0]));
  expect(rules.length).toBeGreaterThan(5);
  expect(new Set(rules).size).toBe(1);
  await page.keyboard.press("Escape");
  await expect(chart(page, "Learning rate").locator(".legend b")).toHaveText("");
});

test("the pointer shows values too, and steps that are dragged over fill every chart", async ({ page }) => {
  await open(page, "chat");
  const plot = chart(page, "Loss").locator(".plot"), other = chart(page, "Learning rate");
  await plot.hover({ position: { x: 200, y: 60 } });
  await expect(chart(page, "Loss").locator(".legend b").first()).toHaveText(/\d/);
  await expect(other.locator(".legend b")).toHaveText(/\d/);
  const { x, y, width, height } = await plot.boundingBox();
  await page.mouse.move(x + width * 0.4, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + width * 0.7, y + height / 2, { steps: 3 });
  await page.mouse.up();
  const seen = await page.locator(".tools output").innerText();
  const [, from, to] = /Steps (\d+) to (\d+)/.exec(seen).map(Number);
  expect(from > 5 && to < 55 && to - from > 10, seen).toBe(true);
  const ticks = await other.locator("text.x").allTextContents();
  expect(ticks.length > 1 && ticks.every((tick) => Number(tick) >= from - 1 && Number(tick) <= to + 1), ticks.join())
    .toBe(true);
  await page.getByRole("button", { name: "Whole run" }).click();
  await expect(page.locator(".tools output")).toHaveText("Steps 0 to 60");
});

test("the weight under the keys is the model's", async ({ page }) => {
  await open(page, "chat");
  const sample = log("chat").findLast((line) => line.sample), texts = await page.locator(".tokens span")
    .allTextContents();
  const words = limpid("tokenize", "--model", folder("chat"), sample.prompt + sample.sample).split("\n");
  const ids = words.map((line) => parseInt(line)).filter((id) => id >= 0).slice(0, texts.length);
  const layers = await page.locator("#heads .layer").count(), last = layers - 1;
  const name = `blocks.${last}.attn.hook_pattern`;
  const shown = JSON.parse(limpid("inspect", "--model", folder("chat"), "--tokens", ids.join(), "--tensor", name,
    "--json"));
  const { values, shape: [, heads, n] } = shown.tensors.find((tensor) => tensor.name === name);
  expect([n, await page.locator(".head img").count()]).toEqual([texts.length, heads * layers]);
  const image = page.locator(".layer").nth(last).locator(".head img").nth(1);
  await image.focus();
  const read = page.locator(".read");
  await page.keyboard.press("ArrowLeft");
  for (let [query, key] = [n - 1, 0]; query > 0; query -= 3, key += 1) {
    await expect(read).toContainText(`Layer ${last}, head 1: ${query} `);
    const weight = values[(n + query) * n + key];
    const told = await read.innerText();
    if (key > query) expect(told).toContain("hidden by the mask");
    // half of a step of the palette, of the square root, and half of the last digit
    else expect(Math.abs(Number(told.split(": ").at(-1)) - weight), told)
      .toBeLessThan(Math.sqrt(weight) / 255 + 0.0051);
    for (let n = 0; n < Math.min(3, query); n++) await page.keyboard.press("ArrowUp");
    await page.keyboard.press("ArrowRight");
  }
  await page.keyboard.press("Enter");
  await expect(image).toHaveAttribute("aria-pressed", "true");
});

for (const [scheme, forced] of [["light", "none"], ["dark", "none"], ["dark", "active"]]) {
  test(`nobody is kept out, ${scheme}${forced === "active" ? ", in forced colours" : ""}, at every width`,
    async ({ page }) => {
    await page.emulateMedia({ colorScheme: scheme, forcedColors: forced });
    for (const width of [400, 1200, 1900]) {
      await page.setViewportSize({ width, height: 900 });
      await open(page, "chat");
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width);
      expect(await barriers(page)).toEqual([]);
    }
  });
}

test("without scripts everything is there to be read", async ({ browser }) => {
  const page = await (await browser.newContext({ javaScriptEnabled: false })).newPage();
  await open(page, "chat");
  await expect(chart(page, "Loss")).toContainText(/Training falls from \d/);
  await expect(page.locator(".plot").first()).toHaveRole("img");
  for (const image of await page.locator("#heads img").all()) expect(await image.evaluate((seen) => seen.naturalWidth))
    .toBeGreaterThan(1);
  await page.close();
});

test("several runs are named once, and look the same in every chart", async ({ page }) => {
  limpid("report", folder("chat"), folder("base"), "--out", path.join(folder("base"), "both.html"));
  await page.goto(`file://${path.join(folder("base"), "both.html")}`);
  await expect(page.locator("#bar .legend span")).toHaveText(["chat", "base"]);
  await chart(page, "Training loss").locator(".plot").hover({ position: { x: 60, y: 60 } });
  const looks = await page.locator("section figure").evaluateAll((figures) =>
    figures.map((figure) => [...figure.querySelectorAll("polyline")].filter((line) =>
      line.dataset.label !== "entropy floor").map((line) => line.getAttribute("class")).join(" | ")));
  expect(looks.length).toBe(5);
  expect(new Set(looks).size).toBe(1);
  await expect(chart(page, "Norm of the gradient").locator(".legend b")).toHaveText([/\d/, /\d/]);
});
