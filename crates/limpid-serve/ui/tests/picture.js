// The picture of README.md: why a model expects a word, and where a head of it looked, of the model that README's first
// command trains. `cargo xtask picture` runs it.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { chromium } from "@playwright/test";
import { chromium as browser } from "./chromium.js";

const [binary, picture] = process.argv.slice(2).map((name) => path.resolve(name));
const PROMPT = "Once upon a time, there was a little";
const folder = mkdtempSync(path.join(tmpdir(), "limpid-picture-"));
const trained = spawnSync(binary, ["train", "--out", path.join(folder, "nano")], { stdio: "inherit" });
if (trained.status !== 0) process.exit(1);
const server = spawn(binary, ["serve", "--model", path.join(folder, "nano"), "--port", "0"]);
const address = await new Promise((found) => {
  server.stderr.on("data", (said) => found(/http:\/\/\S+:\d+/.exec(`${said}`)?.[0]));
});
const open = await chromium.launch({ executablePath: await browser() });
const page = await open.newPage({ viewport: { width: 1200, height: 760 }, deviceScaleFactor: 1.5,
  colorScheme: "light" });
await page.goto(`${address}/#v=path&p=${encodeURIComponent(PROMPT)}`);
await page.getByText("nats a token").first().waitFor();
await page.locator('.parts a[data-hop^="h"]').first().click();
await page.locator(".arcs canvas").waitFor();
await page.waitForTimeout(500); // the arcs
await page.screenshot({ path: picture });
await open.close();
server.kill();
rmSync(folder, { recursive: true });
