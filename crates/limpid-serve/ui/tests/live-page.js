// What the tests of live pages share: making one, and asking its model beside a server of the same model.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { expect, test as base } from "@playwright/test";
import { chromium } from "./chromium.js";
import { BINARY, UI, serve } from "./servers.js";

/** What runs a model in a page, if it was made. */
export const MODULE = path.resolve(UI, "../../../target/web/limpid.wasm");
export const PROMPT = "Anna had a kite. She";
export const folder = () => process.env.LIMPID_FOLDER;
export const file = (name) => path.join(process.env.LIMPID_RUNS, `${name}.html`);

/** On a processor without fused multiply-adds, V8 rounds WebAssembly's relaxed one twice. */
export const UNFUSED = { executablePath: chromium(), args: ["--js-flags=--no-enable-fma3"] };

export const test = base.extend({
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
export function save(name, ...options) {
  saveBy(["inspect", "--model", folder(), ...options], name);
}

/** The same by another verb, or of another model. @param {string[]} words @param {string} name */
export function saveBy(words, name) {
  const done = spawnSync(BINARY, [...words, "--html", file(name)], { encoding: "utf8" });
  expect(done.status, done.stderr).toBe(0);
  test.skip(!existsSync(MODULE), "no module for pages was made");
  expect(done.stdout + done.stderr).toContain("the model inside");
}

/** Asks the model in the page, without the page's own script. It runs in the page. */
export async function asked(requests) {
  const text = document.getElementById("saved").textContent.trim();
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const start = 4 + new DataView(bytes.buffer).getUint32(0, true);
  const index = JSON.parse(new TextDecoder().decode(bytes.subarray(4, start)));
  const read = async (key) => {
    const [from, length, apart = 1] = index[key];
    const stored = new Blob([bytes.slice(start + from, start + from + length)]).stream();
    const raw = await new Response(stored.pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
    const [read, whole] = [new Uint8Array(raw), new Uint8Array(raw.byteLength)];
    for (let n = 0, at = 0; n < apart; n++) {
      for (let to = n; to < whole.length; to += apart) whole[to] = read[at++];
    }
    return whole;
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

/** What a server and a page are asked; `id` is a trace of the prompt, `most` the longest text in tokens. */
function requests(id, most) {
  const step = [{ ablate: "blocks.1.attn.hook_z", head: 1 }];
  const body = (value) => JSON.stringify(value);
  const inside = `/inspect/v1/traces/${id}`;
  const [clean, corrupt] = [5, 6].map((id) => Array(most).fill(id));
  return [
    ["POST /inspect/v1/traces", body({ prompt: PROMPT })],
    ["POST /inspect/v1/traces", body({ prompt: "Another text", interventions: step })],
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
    ["POST /inspect/v1/sweeps", body({ clean: "Anna had a kite", corrupt: "Tom had a kite", site: "z", metric: "kl" })],
    ["POST /v1/embeddings", body({ input: PROMPT })],
    ["POST /v1/completions", body({ prompt: PROMPT, max_tokens: 24, seed: 5, logprobs: 3 })],
    // what is refused, in the same words: texts that are too long, work that is too much, requests that are none
    ["POST /inspect/v1/traces", body({ prompt: "long ".repeat(3000) })],
    // a million tokens; a server takes no more bytes
    ["POST /inspect/v1/traces", body({ prompt: ".".repeat(1_000_000) })],
    ["POST /v1/completions", body({ prompt: ".".repeat(1_000_000), max_tokens: 1 })],
    ["POST /inspect/v1/sweeps", body({ clean, corrupt, site: "pattern", by: "pair", metric: "kl" })],
    ["POST /inspect/v1/traces", body({ prompt: PROMPT, interventions: [{ scale: "blocks.9.hook_mlp_out", by: 2 }] })],
    ["POST /v1/completions", "not JSON"],
    ["POST /inspect/v1/traces", "[".repeat(100_000)],
    ["GET /inspect/v1/traces/%00/tensors", ""],
  ];
}

/** An answer without what is drawn anew: an id, and the time. @param {string} text */
const settled = (text) => text.replace(/"(?:id":"cmpl-[^"]*|created":\d+)/g, "");

/**
 * Asks the model in a page and a server of the same model, and compares their bytes.
 * @param {(requests: string[][]) => Promise<any[]>} ask has `asked` run in the page
 * @param {string} id the page's trace
 */
export async function compare(ask, id) {
  const { server, address } = await serve(folder(), ["--allow-interventions"]);
  try {
    const { context_length: most } = await (await fetch(`${address}/inspect/v1/model`)).json();
    const all = requests(id, most);
    const ours = await ask(all);
    for (const [n, [head, sent]] of all.entries()) {
      const [method, target] = head.split(" ");
      const how = { method, headers: { "content-type": "application/json" }, ...(method === "POST" && { body: sent }) };
      const response = await fetch(address + target, how);
      const theirs = Buffer.from(await response.arrayBuffer()).toString("latin1");
      const what = `${head} ${sent.slice(0, 80)}`;
      expect(ours[n].status, what).toBe(response.status);
      expect(settled(ours[n].text), what).toBe(settled(theirs));
    }
  } finally {
    server.kill();
  }
}
