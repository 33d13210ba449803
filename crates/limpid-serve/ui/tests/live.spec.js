// A page with the model inside of it: opened from the disk, without a network, beside a server of the same model.
import { spawnSync } from "node:child_process";
import { cpSync, readFileSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { gzipSync } from "node:zlib";
import { chromium, expect } from "@playwright/test";
import { MODULE, PROMPT, UNFUSED, asked, compare, file, folder, save, saveBy, test } from "./live-page.js";
import { barriers } from "./page.js";
import { BINARY, UI } from "./servers.js";

async function open(page, name) {
  await page.goto(`file://${file(name)}`);
  await complete(page);
}

async function complete(page) {
  await expect(page.locator("#glass-facts")).toContainText(/^[\d,]+ tokens? through 4 layers/, { timeout: 120_000 });
}

test("what the model in a page answers is what a server of it answers, byte by byte", async ({ page }) => {
  save("bytes", "--prompt", PROMPT);
  await open(page, "bytes");
  await expect(page.locator("#model")).not.toContainText("slowly");
  await compare((all) => page.evaluate(asked, all), await page.locator("#glass").getAttribute("data-trace"));
});

test("an engine that rounds multiply-adds twice gives the same bytes, and the page says that it is slow", async () => {
  save("unfused", "--prompt", PROMPT);
  const browser = await chromium.launch(UNFUSED);
  try {
    const page = await browser.newPage();
    await open(page, "unfused");
    await expect(page.locator("#model")).toContainText("slowly");
    await compare((all) => page.evaluate(asked, all), await page.locator("#glass").getAttribute("data-trace"));
  } finally {
    await browser.close();
  }
});

test("the module and the page of the default model are small", async () => {
  const model = path.join(process.env.LIMPID_RUNS, "default");
  // the weights of a model that has learned take a fiftieth more, its curve 0.2 MB
  const done = spawnSync(BINARY, ["train", "--out", model, "--steps", "1", "--sample", "0"], { encoding: "utf8" });
  expect(done.status, done.stderr).toBe(0);
  saveBy(["inspect", "--model", model], "default");
  const [module, page] = [gzipSync(readFileSync(MODULE), { level: 9 }).length, statSync(file("default")).size];
  console.log(`module ${module} bytes, gzipped; page ${page} bytes`);
  expect(module).toBeLessThan(1_350_000);
  expect(page).toBeLessThan(4_500_000);
});

const MARKUP = "</script><img src=x onerror='window.harmed = 1'><style>*{display:none}</style>";

test("texts, tokens and names that are markup stay texts", async ({ page }) => {
  const hostile = path.join(process.env.LIMPID_RUNS, "<img src=x onerror='window.harmed = 2'>");
  cpSync(folder(), hostile, { recursive: true });
  // a special token, so that it is one piece wherever it is shown
  const tokenizer = path.join(hostile, "tokenizer.json");
  const token = JSON.stringify(MARKUP).slice(1, -1);
  writeFileSync(tokenizer, readFileSync(tokenizer, "utf8").replaceAll("<|endoftext|>", () => token));
  saveBy(["inspect", "--model", hostile, "--prompt", `${MARKUP} Anna ${MARKUP}`], "hostile");
  await open(page, "hostile");
  await expect(page.locator("#model")).toContainText("<img src=x");
  for (const view of ["map", "text", "table", "lens", "path", "embed", "head&l=1&h=1"]) {
    await page.evaluate((view) => {
      const words = new URLSearchParams(location.hash.slice(1));
      location.hash = `v=${view}&p=${encodeURIComponent(words.get("p"))}`;
    }, view);
    await complete(page);
  }
  expect(await page.evaluate(() => window.harmed)).toBe(undefined);
  await expect(page.locator("body")).toBeVisible();
});

test("a live page has no network, and runs no text as a program", async ({ browser }) => {
  save("policy", "--prompt", PROMPT);
  const page = await browser.newPage();
  await open(page, "policy");
  const { broken, ran } = await page.evaluate(async () => {
    const broken = [];
    addEventListener("securitypolicyviolation", ({ effectiveDirective }) => broken.push(effectiveDirective));
    const far = "https://example.org/x";
    await fetch(far).catch(() => {});
    document.body.append(Object.assign(new Image(), { src: far }));
    const script = document.createElement("script");
    script.textContent = "window.harmed = 1";
    document.body.append(script, Object.assign(document.createElement("iframe"), { src: far }));
    navigator.sendBeacon?.(far);
    // a text as a timer is compiled when it is due: eval in here would be the test's own
    setTimeout("window.harmed = 2", 0);
    await new Promise((resolve) => setTimeout(resolve, 100));
    return { broken, ran: window.harmed !== undefined };
  });
  expect(ran).toBe(false);
  for (const what of ["connect-src", "img-src", "script-src-elem", "script-src", "frame-src"]) {
    expect(broken).toContain(what);
  }
  await page.close();
});

test("sweep --html writes a page that sweeps, with the numbers of a server", async ({ page }) => {
  const asked = ["--clean", "Anna had a kite", "--corrupt", "Tom had a kite", "--metric", "kl", "--site", "z"];
  saveBy(["sweep", "--model", folder(), ...asked], "sweep");
  await open(page, "sweep");
  await expect(page.locator(".sweep .note")).toContainText("16 cells");
  await expect(page.locator(".sweep .plain li").first()).toBeVisible();
  await expect(page.locator("#sweep-clean")).toHaveValue("Anna had a kite");
  const { stdout } = spawnSync(BINARY, ["sweep", "--model", folder(), ...asked, "--width", "10000"],
    { encoding: "utf8" });
  const sentence = (await page.locator(".sweep .plain li").first().innerText()).split(" Apply it")[0].trim();
  expect(stdout).toContain(sentence);
});

test("a page in a frame of a notebook runs its model", async ({ page }) => {
  save("frame", "--prompt", PROMPT);
  const html = readFileSync(file("frame"), "utf8").replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  writeFileSync(file("notebook"), `<iframe srcdoc="${html}" style="width:100%;height:800px"></iframe>`);
  await page.goto(`file://${file("notebook")}`);
  const frame = page.frameLocator("iframe");
  await expect(frame.locator("#glass-facts")).toContainText(/tokens? through 4 layers/, { timeout: 120_000 });
  await frame.locator("#glass-prompt").fill("Tom lost a ball. He");
  await frame.locator("#glass-prompt").press("Control+Enter");
  await expect(frame.locator("#glass-facts")).toContainText(/^[\d,]+ tokens? through 4 layers/, { timeout: 120_000 });
});

test("a live page runs a new prompt, changes the run, continues a text, and says where it runs", async ({ page }) => {
  save("live", "--prompt", PROMPT);
  await open(page, "live");
  await expect(page.locator("#model")).toContainText("in this page, offline");
  const first = await page.locator("#glass").getAttribute("data-trace");
  await page.locator("#glass-prompt").fill("Tom lost a ball. He");
  await page.locator("#glass-prompt").press("Control+Enter");
  await expect.poll(() => page.locator("#glass").getAttribute("data-trace")).not.toBe(first);
  await complete(page);
  expect(await barriers(page)).toEqual([]);
  await page.evaluate(() => (location.hash = "v=complete"));
  await page.locator("#complete-text").fill("Tom had a");
  await page.locator("#complete-go").click();
  await expect(page.locator("#complete .answer")).toHaveAttribute("aria-busy", "false");
  expect((await page.locator("#complete .answer").innerText()).length).toBeGreaterThan(9);
});

test("work that nobody waits for ends, and the model answers again", async ({ page }) => {
  save("ends", "--prompt", PROMPT);
  await open(page, "ends");
  await page.evaluate(() => (location.hash = "v=complete"));
  await page.locator("#complete-text").fill("Tom had a");
  for (let n = 0; n < 3; n++) {
    await page.locator("#complete-go").click();
    await page.keyboard.press("Escape");
  }
  await page.locator("#complete-go").click();
  await expect(page.locator("#complete .answer").last()).toHaveAttribute("aria-busy", "false");
});

test("a model whose tokenizer a page cannot run is saved with its answers alone", async () => {
  const model = path.resolve(UI, "../../limpid/fixtures/hf/bert-mlm");
  const done = spawnSync(BINARY, ["inspect", "--model", model, "--prompt", "a [MASK]", "--html", file("foreign")],
    { encoding: "utf8" });
  expect(done.status, done.stderr).toBe(0);
  expect(done.stdout + done.stderr).not.toContain("the model inside");
});
