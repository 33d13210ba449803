// The page without a model (`limpid site`): it trains one or opens one, from the disk, without a network, and what it
// gives away is what the binary makes and opens.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { expect } from "@playwright/test";
import { MODULE, test as offline } from "./live-page.js";
import { barriers } from "./page.js";
import { BINARY, UI } from "./servers.js";

const TEXT = "the cat sat on a mat and then it ran to the big old house where a dog was.\n".repeat(400);
const FIXTURES = path.resolve(UI, "../../limpid/fixtures");
const at = (...names) => path.join(process.env.LIMPID_RUNS, ...names);
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Runs the binary. */
function limpid(words, cwd = at()) {
  const done = spawnSync(BINARY, words, { encoding: "utf8", cwd });
  expect(done.status, `${words.join(" ")}\n${done.stderr}`).toBe(0);
  return done.stdout;
}

const test = offline.extend({
  page: async ({ page }, use) => {
    test.skip(!existsSync(MODULE), "no module for pages was made");
    await use(page);
  },
});

/** Opens the page, with settings in its address. */
async function visit(page, settings, name = "site.html") {
  if (!existsSync(at(name))) limpid(["site", name]);
  await page.goto(`file://${at(name)}#${settings}`);
  await expect(page.locator("#here-estimate")).toContainText("parameters", { timeout: 120_000 });
}

/** Presses a button that gives a file, and reads it. */
async function given(page, id) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator(id).click()]);
  return { name: download.suggestedFilename(), bytes: readFileSync(await download.path()) };
}

/** The files of an archive whose files are stored as they are. */
function unzipped(bytes) {
  const files = new Map();
  for (let from = 0; bytes.readUInt32LE(from) === 0x04034b50; ) {
    const [size, name] = [bytes.readUInt32LE(from + 22), bytes.readUInt16LE(from + 26)];
    const start = from + 30 + name;
    files.set(bytes.toString("utf8", from + 30, start), bytes.subarray(start, start + size));
    from = start + size;
  }
  return files;
}

/** Writes them below a folder. */
function put(folder, files) {
  for (const [name, bytes] of files) {
    mkdirSync(path.dirname(at(folder, name)), { recursive: true });
    writeFileSync(at(folder, name), bytes);
  }
}

const trained = (page) => expect(page.locator("#here-status")).toContainText("· trained", { timeout: 120_000 });

test("a GPT that a page trained is the binary's, and the binary repeats and opens what the page gives", async ({
  page, context,
}) => {
  await visit(page, "preset=nano&steps=30&seed=7");
  await expect(page.locator("#here-estimate")).toContainText("30 steps, 1,012,048 tokens of text: about");
  await expect(page.locator("#here-estimate")).toContainText("below a loss of 0.3107");
  expect(await barriers(page)).toEqual([]);
  await page.locator("#here-start").click();
  await expect(page.locator(".training .lead")).toContainText("of 30", { timeout: 120_000 });
  await trained(page);
  expect(await barriers(page)).toEqual([]);
  const { name, bytes } = await given(page, "#here-folder-zip");
  expect(name).toBe("nano.zip");
  put("given", unzipped(bytes));
  limpid(["train", "--preset", "nano", "--steps", "30", "--seed", "7", "--probe", "--threads", "1", "--out", "native"]);
  const weights = sha256(readFileSync(at("native", "model.safetensors")));
  expect(sha256(readFileSync(at("given", "nano", "model.safetensors")))).toBe(weights);
  expect(sha256(readFileSync(at("given", "nano", "timelapse.lpt")))).toBe(
    sha256(readFileSync(at("native", "timelapse.lpt"))));
  // the settings are those of the run
  const { bytes: settings } = await given(page, "#here-toml");
  writeFileSync(at("limpid.toml"), settings);
  limpid(["train", "--config", "limpid.toml", "--out", "again"]);
  expect(sha256(readFileSync(at("again", "model.safetensors")))).toBe(weights);
  // and both files hold the same model
  const { bytes: gguf } = await given(page, "#here-gguf");
  writeFileSync(at("given.gguf"), gguf);
  const other = await context.newPage();
  await visit(other, "");
  await other.locator("#here-files").setInputFiles(at("given.gguf"));
  await expect(other.locator("#glass-facts")).toContainText(/tokens? through 2 layers/, { timeout: 120_000 });
  const said = ["--prompt", "Once", "--max-tokens", "12", "--seed", "1"];
  const ask = (model) => limpid(["generate", "--model", model, ...said]);
  expect(ask("given.gguf")).toBe(ask("given/nano"));
});

test("a run that was stopped goes on after a reload, with the same bits", async ({ page }) => {
  await visit(page, "preset=nano&steps=60&seed=5");
  await page.locator("#here-text").fill(TEXT);
  await expect(page.locator("#here-estimate")).not.toContainText("1,012,048");
  await page.locator("#here-keep").check();
  await page.locator("#here-start").click();
  await page.locator("#here-stop").click({ timeout: 120_000 });
  await expect(page.locator("#here-status")).toContainText("· stopped");
  await expect(page.locator("#here-status")).toContainText("kept in this browser");
  const step = Number(/step (\d+) of 60/.exec(await page.locator("#here-status").innerText())?.[1]);
  expect(step).toBeLessThan(60);
  await page.goto("about:blank");
  await page.goto(`file://${at("site.html")}`);
  await expect(page.locator(".here-kept")).toContainText(`nano: step ${step} of 60`);
  await page.locator("#here-resume").click();
  await trained(page);
  put("resumed", unzipped((await given(page, "#here-folder-zip")).bytes));
  writeFileSync(at("text.txt"), TEXT);
  limpid(["train", "text.txt", "--preset", "nano", "--steps", "60", "--seed", "5", "--probe", "--threads", "1",
    "--out", "straight"]);
  expect(sha256(readFileSync(at("resumed", "nano", "model.safetensors")))).toBe(
    sha256(readFileSync(at("straight", "model.safetensors"))));
  // its text came along, so the binary repeats it from the folder alone
  limpid(["train", "--config", "nano/limpid.toml", "--out", "again"], at("resumed"));
  expect(sha256(readFileSync(at("resumed", "again", "model.safetensors")))).toBe(
    sha256(readFileSync(at("straight", "model.safetensors"))));
});

test("where the browser has no room, the training goes on and the page says so", async ({ page }) => {
  await visit(page, "preset=nano&steps=20");
  await page.locator("#here-text").fill(TEXT);
  await page.evaluate(() => {
    IDBObjectStore.prototype.put = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
  });
  await page.locator("#here-keep").check();
  await page.locator("#here-start").click();
  await trained(page);
  await expect(page.locator("#here-status")).toContainText("not kept: this browser has no room for it");
  expect(unzipped((await given(page, "#here-folder-zip")).bytes).has("nano/model.safetensors")).toBe(true);
});

test("one tab keeps its run, and the model is asked and changed while it trains", async ({ page, context }) => {
  const begin = async (tab) => {
    await visit(tab, "preset=nano&steps=400&seed=3");
    await tab.locator("#here-keep").check();
    await tab.locator("#here-start").click();
    await expect(tab.locator("#here-status")).toContainText("· training", { timeout: 120_000 });
  };
  await begin(page);
  const other = await context.newPage();
  await begin(other);
  await expect(other.locator("#here-status")).toContainText("not kept: another tab keeps its run already");
  await other.locator("#here-stop").click();
  await expect(other.locator("#here-status")).toContainText("· stopped");
  await other.close();
  // the page's own view stops it, and its bar goes on with it
  await expect(page.locator(".training .chart").first()).toBeVisible({ timeout: 120_000 });
  await page.getByRole("button", { name: "Stop the training" }).click();
  await expect(page.locator("#here-status")).toContainText("· stopped");
  const step = async () => Number(/step (\d+) of/.exec(await page.locator("#here-status").innerText())?.[1]);
  const before = await step();
  await page.locator("#here-go-on").click();
  await expect.poll(step).toBeGreaterThan(before);
  await page.evaluate(() => (location.hash = "v=sweep&p=Anna%20had%20a%20kite&i=" +
    encodeURIComponent(JSON.stringify([{ ablate: "blocks.1.attn.hook_z", head: 1 }]))));
  await expect(page.locator("#glass-facts")).toContainText(/tokens? through 2 layers/, { timeout: 120_000 });
  await expect(page.locator("#here-status")).toContainText("· training");
});

test("a page with the model that was trained here runs by itself", async ({ page, context }) => {
  await visit(page, "preset=nano&steps=10");
  await page.locator("#here-text").fill(TEXT);
  await page.locator("#here-start").click();
  await trained(page);
  const { name, bytes } = await given(page, "#here-page");
  expect(name).toBe("nano.html");
  writeFileSync(at(name), bytes);
  const other = await context.newPage();
  await other.goto(`file://${at(name)}`);
  await expect(other.locator("#model")).toContainText("in this page, offline");
  await expect(other.locator("#glass-facts")).toContainText(/tokens? through 2 layers/, { timeout: 120_000 });
});

test("models are opened by dropping them, and a hostile file is an error in words", async ({ page }) => {
  await visit(page, "");
  const files = page.locator("#here-files");
  const damaged = readFileSync(path.join(FIXTURES, "hf/gpt2-text/model.safetensors")).subarray(0, 3000);
  for (const [name, buffer, said] of [
    ["x.gguf", Buffer.from("GGUF\xff\xff\xff\xff".repeat(64), "latin1"), "x.gguf"],
    ["empty.gguf", Buffer.alloc(0), "empty.gguf"],
    ["model.safetensors", damaged, "model"],
    ["notes.pdf", Buffer.from("%PDF-1.7"), "notes.pdf"],
  ]) {
    await files.setInputFiles({ name, mimeType: "", buffer });
    await expect(page.locator("#here-notice .trouble")).toContainText(said);
    await expect(page.locator("#here-start")).toBeEnabled();
  }
  // a text that is dropped is what is learned
  await page.evaluate((text) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([text], "my own.txt"));
    document.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  }, TEXT);
  await expect(page.locator("#here-text")).toHaveAttribute("placeholder", "my own.txt");
  await expect(page.locator("#here-estimate")).toContainText("tokens of text", { timeout: 120_000 });
  await expect(page.locator("#here-estimate")).not.toContainText("1,012,048");
  await page.locator("#here-folder").setInputFiles(path.join(FIXTURES, "hf/gpt2-text"));
  await expect(page.locator("#glass-facts")).toContainText(/tokens? through/, { timeout: 120_000 });
});

test("the default training in a page is README's", async ({ page }) => {
  test.skip(!process.env.SLOW, "two minutes and more: cargo xtask sweep has it");
  test.setTimeout(3_600_000);
  await visit(page, "");
  await page.locator("#here-start").click();
  await expect(page.locator("#here-status")).toContainText("· trained", { timeout: 3_600_000 });
  const files = unzipped((await given(page, "#here-folder-zip")).bytes);
  const summary = JSON.parse(files.get("nano/summary.json").toString());
  expect([summary.train_loss.toFixed(4), summary.val_loss.toFixed(4)]).toEqual(["0.4341", "0.4468"]);
  console.log(`${summary.steps} steps in ${summary.seconds.toFixed(1)} s`);
  limpid(["train", "--out", "default", "--threads", "1"]);
  expect(sha256(files.get("nano/model.safetensors"))).toBe(sha256(readFileSync(at("default", "model.safetensors"))));
});
