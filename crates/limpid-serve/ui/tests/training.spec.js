// A training as its page shows it: `limpid train --serve` opens on it, and it can be stopped there.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { at, barriers, expect, test } from "./page.js";
import { served } from "./servers.js";

/** What four digits say of a number. */
const short = (value) => `${Number(value.toPrecision(4))}`;

test("a training opens on its curve, its sample and its time-lapse, and stops in the page",
  async ({ page, expected }) => {
  expected.push("Failed to load", "ERR_");
  const folder = mkdtempSync(path.join(tmpdir(), "limpid-live-"));
  const run = path.join(folder, "run");
  const sizes = ("--n-layer 1 --d-model 32 --n-head 2 --context-length 32 --batch-size 2 --threads 1 "
    + "--schedule constant").split(" ");
  const { server, address } = await served(["train", "--out", run, ...sizes, "--steps", "1000000", "--save-every", "50",
    "--probe", "--probe-every", "20", "--serve", "127.0.0.1:0"]);
  try {
    process.env.LIMPID_OWN = address;
    const ended = new Promise((resolve) => server.on("exit", resolve));
    await page.goto(address);
    await expect(page.locator(".training .lead")).toContainText(/^Step [\d,]+ of 1,000,000: loss \d/,
      { timeout: 60_000 });
    await expect(page.locator("#glass-tabs [aria-current=page]")).toHaveText("Training");
    await expect(page.locator(".training canvas").first()).toHaveAttribute("aria-label",
      /^training loss, nats a token: from/);
    await expect(page.locator(".training h2", { hasText: "A sample after step" })).toBeVisible();
    await expect(page.locator(".training .timelapse .cell-line").first()).toContainText(/Step \d+, frame/);
    expect(await barriers(page)).toEqual([]);
    // it grows
    const step = async () => Number(/^Step ([\d,]+)/.exec(await page.locator(".training .lead")
      .textContent())[1].replaceAll(",", ""));
    const before = await step();
    await expect.poll(step).toBeGreaterThan(before);
    await page.getByRole("button", { name: "Stop the training" }).click();
    expect(await ended).toBe(130);
    await expect(page.locator(".training .trouble"))
      .toContainText(`The training has ended, and its page with it. The model and its report.html are in ${run}.`);
    await expect(page.getByRole("button", { name: "Stop the training" })).toBeHidden();
  } finally {
    server.kill();
    rmSync(folder, { recursive: true, force: true });
  }
});

test("a finished run's curve is that of its log", async ({ page }) => {
  await page.goto(`${at("BASE")}/#v=training`);
  const lines = readFileSync(path.join(process.env.LIMPID_FOLDER, "metrics.jsonl"), "utf8").trim().split("\n")
    .map((line) => JSON.parse(line));
  const losses = lines.filter((line) => typeof line.train_loss === "number");
  const [first, last] = [losses[0], losses.at(-1)];
  await expect(page.locator(".training canvas").first()).toHaveAttribute("aria-label",
    `training loss, nats a token: from ${short(first.train_loss)} at step ${first.step} `
      + `to ${short(last.train_loss)} at step ${last.step}`);
  const mean = losses.slice(-10).reduce((sum, { train_loss: loss }) => sum + loss, 0) / Math.min(10, losses.length);
  await expect(page.locator(".training .lead")).toContainText(`Step ${last.step}: loss ${short(mean)} nats a token`);
  await expect(page.getByRole("button", { name: "Stop the training" })).toBeHidden();
  // an ordinary server opens on what it did before
  await page.goto(`${at("BASE")}/`);
  await expect(page.locator("#complete-text")).toBeVisible();
});

test("a run that goes back is drawn as it went, and a log that is shorter is read anew", async ({ page }) => {
  const row = (step) => ({ step, train_loss: 5 - step / 10, tokens: 10 * step, seconds: step });
  const answers = [
    { from: 0, next: 100, rows: [1, 2, 3, 4, 5].map(row) },
    { from: 100, next: 200, rows: [{ step: 5, val_loss: 4 }, { ...row(3), train_loss: 1 },
    { ...row(4), train_loss: 1.5 }] },
    { from: 0, next: 20, rows: [7, 8].map(row) },
  ];
  const asked = [];
  await page.route("**/inspect/v1/training?*", async (route) => {
    asked.push(Number(new URL(route.request().url()).searchParams.get("from")));
    const answer = answers.shift() ?? { from: 20, next: 20, rows: [] };
    await route.fulfill({ json: { more: false, step: 8, timelapse: false, ...answer } });
  });
  await page.goto(`${at("BASE")}/#v=training`);
  const curve = page.locator(".training canvas").first();
  await expect(curve).toHaveAttribute("aria-label", "training loss, nats a token: from 4.9 at step 1 to 4.5 at step 5");
  await expect(curve).toHaveAttribute("aria-label", "training loss, nats a token: from 4.9 at step 1 to 1.5 at step 4");
  await expect(page.locator(".training .lead")).toContainText("lowest validation loss 4, after step 5");
  await expect(curve).toHaveAttribute("aria-label", "training loss, nats a token: from 4.3 at step 7 to 4.2 at step 8");
  await expect(page.locator(".training .lead")).not.toContainText("validation");
  expect(asked.slice(0, 3)).toEqual([0, 100, 200]);
});
