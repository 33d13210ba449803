// A page with the model inside of it: opened from the disk, without a network, beside a server of the same model.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { chromium, expect, test as base } from "@playwright/test";
import { chromium as installed } from "./chromium.js";
import { barriers } from "./page.js";
import { BINARY, UI, serve } from "./servers.js";

const PROMPT = "Anna had a kite. She";
const folder = () => process.env.LIMPID_FOLDER;
const file = (name) => path.join(process.env.LIMPID_RUNS, `${name}.html`);

const test = base.extend({
  /** A page without a network, which neither complains nor asks for anything but itself. */
  page: async ({ page, context }, use) => {
    await context.setOffline(true);
    const wrong = [];
    page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
    page.on("pageerror", (error) => wrong.push(error.message));
    page.on("request", (request) => /^(file|data|blob):/.test(request.url()) || wrong.push(`asks ${request.url()}`));
    await use(page);
    expect(wrong).toEqual([]);
  },
});

/** Saves a page. Nothing is tested where there is no module to put into it (`cargo xtask web` makes one). */
function save(name, ...options) {
  const done = spawnSync(BINARY, ["inspect", "--model", folder(), "--html", file(name), ...options],
    { encoding: "utf8" });
  expect(done.status, done.stderr).toBe(0);
  test.skip(!existsSync(path.resolve(UI, "../../../target/web/limpid.wasm")), "no module for pages was made");
  expect(done.stdout + done.stderr).toContain("the model inside");
}

async function open(page, name) {
  await page.goto(`file://${file(name)}`);
  await complete(page);
}

async function complete(page) {
  await expect(page.locator("#glass-facts")).toContainText(/^[\d,]+ tokens? through 4 layers/, { timeout: 120_000 });
}

/** Asks the model in the page, without the page's own script. It runs in the page. */
async function asked(requests) {
  const text = document.getElementById("saved").textContent.trim();
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const start = 4 + new DataView(bytes.buffer).getUint32(0, true);
  const index = JSON.parse(new TextDecoder().decode(bytes.subarray(4, start)));
  const read = async (key) => {
    const [from, length] = index[key];
    const stored = new Blob([bytes.slice(start + from, start + from + length)]).stream();
    return new Uint8Array(await new Response(stored.pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer());
  };
  const about = JSON.parse(new TextDecoder().decode(await read("live")));
  const names = Object.keys(index).filter((key) => key.startsWith("file "));
  const files = await Promise.all(names.map(async (key) => [key.slice(5), await read(key)]));
  const worker = new Worker(URL.createObjectURL(new Blob([await read("worker")])));
  const said = new Map();
  const answers = new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.fault) reject(new Error(data.fault));
      const one = said.get(data.id) ?? { status: 0, text: "" };
      said.set(data.id, one);
      one.status ||= data.status;
      // one byte a letter, as Node reads the server's
      for (const byte of data.bytes ?? []) one.text += String.fromCharCode(byte);
      if (data.end && data.id === requests.length) resolve(requests.map((_, n) => said.get(n + 1)));
    };
  });
  worker.postMessage({ module: await read("module"), files, name: about.name });
  requests.forEach(([head, body], n) => worker.postMessage({ id: n + 1, head, body }));
  const all = await answers;
  worker.terminate();
  return all;
}

test("what the model in a page answers is what a server of it answers, byte by byte", async ({ page }) => {
  save("bytes", "--prompt", PROMPT);
  await open(page, "bytes");
  const id = await page.locator("#glass").getAttribute("data-trace");
  const step = [{ ablate: "blocks.1.attn.hook_z", head: 1 }];
  const body = (value) => JSON.stringify(value);
  const inside = `/inspect/v1/traces/${id}`;
  const requests = [
    ["POST /inspect/v1/traces", body({ prompt: PROMPT })],
    ["POST /inspect/v1/traces", body({ prompt: "Another text", interventions: step })],
    ["POST /inspect/v1/traces", body({ prompt: "long ".repeat(3000) })],
    ["GET /v1/models/none", ""],
    ["GET /tokenizer_info", ""],
    ["POST /tokenize", body({ prompt: PROMPT, with_pieces: true })],
    [`GET ${inside}/tensors`, ""],
    [`GET ${inside}/tensors/blocks.3.hook_resid_post`, ""],
    [`GET ${inside}/predictions?k=20&position=3`, ""],
    [`GET ${inside}/lens?k=5`, ""],
    [`GET ${inside}/path?position=3`, ""],
    [`GET ${inside}/gradients?position=3`, ""],
    [`GET ${inside}/explain/logits?at=0,3,7`, ""],
    ["POST /inspect/v1/sweeps", body({ clean: "Anna had a kite", prompt: "Tom had a kite", site: "z", by: "head",
      metric: "kl" })],
    ["POST /v1/embeddings", body({ input: PROMPT })],
    ["POST /v1/completions", "not JSON"],
  ];
  const { server, address } = await serve(folder(), ["--allow-interventions"]);
  try {
    const ours = await page.evaluate(asked, requests);
    for (const [n, [head, sent]] of requests.entries()) {
      const [method, target] = head.split(" ");
      const how = { method, headers: { "content-type": "application/json" }, ...(method === "POST" && { body: sent }) };
      const response = await fetch(address + target, how);
      const theirs = Buffer.from(await response.arrayBuffer()).toString("latin1");
      expect(ours[n].status, head).toBe(response.status);
      expect(ours[n].text, head).toBe(theirs);
    }
    // texts are the server's, too; their ids and times are not
    const settings = { prompt: PROMPT, max_tokens: 24, seed: 5, logprobs: 3 };
    const [mine] = await page.evaluate(asked, [["POST /v1/completions", body(settings)]]);
    const how = { method: "POST", headers: { "content-type": "application/json" }, body: body(settings) };
    const theirs = await (await fetch(`${address}/v1/completions`, how)).json();
    expect(JSON.parse(mine.text).choices).toEqual(theirs.choices);
    expect(JSON.parse(mine.text).system_fingerprint).toBe(theirs.system_fingerprint);
  } finally {
    server.kill();
  }
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

test("an engine that would compute other bits is told why it cannot open the model", async () => {
  save("unfused", "--prompt", PROMPT);
  // on a processor without fused multiply-adds, V8 rounds twice
  const browser = await chromium.launch({ executablePath: installed(), args: ["--js-flags=--no-enable-fma3"] });
  try {
    const page = await browser.newPage();
    await page.goto(`file://${file("unfused")}`);
    await expect(page.locator("#notice")).toContainText("multiply-adds twice, so its results would be others");
  } finally {
    await browser.close();
  }
});
