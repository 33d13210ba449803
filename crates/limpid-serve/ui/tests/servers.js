// Trains small models and serves them with the real binary: `chat` (a chat template), `base` (none, with a time-lapse),
// `key` (base, which asks for a key; its page is the one in the binary, the others' are the files here), `deep` (12
// layers of 12 heads, 1,024 tokens), `twin` (base beside one that was trained longer, and beside chat), `bert` (an
// encoder, which `inspect --open` shows). Their addresses go to the tests through the environment. LIMPID names another
// binary.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

export const UI = path.resolve(import.meta.dirname, "..");
const ROOT = path.resolve(UI, "../../..");
export const BINARY = process.env.LIMPID || path.resolve(ROOT, process.env.CARGO_TARGET_DIR || "target",
  "debug/limpid");
const CONVERSATIONS = ["kite", "ball", "boat", "bell"].flatMap((thing) =>
  ["tree", "garden", "river", "house"].map((place) => ({
    prompt: `Where is the ${thing}?`,
    completion: `The ${thing} is in the ${place}.`,
  })),
);

export const KEY = "a-key-for-the-tests";

/** @param {string} folder @param {string[]} options */
function train(folder, options) {
  const done = spawnSync(BINARY, ["train", "--out", folder, ...options], { encoding: "utf8" });
  if (done.status !== 0) throw new Error(`${BINARY} train ${options.join(" ")}\n${done.error ?? done.stderr}`);
}

/**
 * Starts a server, and waits until it says where.
 * @param {string} folder @param {string[]} options @param {string} verb
 */
export const serve = (folder, options, verb = "serve") => served([verb, "--model", folder, "--port", "0", ...options]);

/** Starts a process that serves, and waits until it says where. It finds no browser to open. @param {string[]} words */
export async function served(words) {
  const server = spawn(BINARY, words, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, PATH: "" } });
  let said = "";
  const address = new Promise((resolve, reject) => {
    const hear = (data) => {
      said += data;
      const found = /http:\/\/127\.0\.0\.1:\d+/.exec(said);
      if (found) resolve(found[0]);
    };
    server.stdout.on("data", hear);
    server.stderr.on("data", hear);
    server.on("error", reject);
    server.on("exit", () => reject(new Error(`limpid ${words[0]} ended: ${said}`)));
  });
  return { server, address: await address };
}

export default async function start() {
  if (!existsSync(BINARY)) throw new Error(`there is no ${BINARY}: run \`cargo build\`, or name a binary in LIMPID`);
  const folder = mkdtempSync(path.join(tmpdir(), "limpid-ui-"));
  process.env.LIMPID_RUNS = folder;
  const [chat, base, twin, deep, bert, data, words] = ["chat", "base", "twin", "deep", "bert", "chat.jsonl",
    "words.txt"].map((name) => path.join(folder, name));
  writeFileSync(data, [...CONVERSATIONS, ...CONVERSATIONS].map((one) => JSON.stringify(one)).join("\n"));
  // four blocks of four heads and a table of positions: more to look at than the default has
  const shape = ["--n-layer", "4", "--n-head", "4", "--d-ff", "512", "--positions", "learned", "--batch-size", "12",
    "--learning-rate", "0.003"];
  train(chat, ["--data", data, ...shape, "--context-length", "96", "--steps", "60"]);
  train(base, [...shape, "--context-length", "64", "--steps", "20", "--probe", "--probe-every", "1"]);
  train(twin, [...shape, "--context-length", "64", "--steps", "40", "--seed", "7"]);
  writeFileSync(words, "the cat sat on a mat and then it ran to the big old house where a dog was. ".repeat(120));
  const large = ["--n-layer", "12", "--n-head", "12", "--d-model", "96", "--d-ff", "384", "--positions", "learned",
    "--context-length", "1024"];
  train(deep, ["--data", words, ...large, "--context", "64", "--batch-size", "1", "--steps", "1", "--sample", "0"]);
  train(bert, ["--preset", "formulated-bert", "--n-layer", "2", "--d-model", "64", "--n-head", "4", "--d-ff", "128",
    "--context-length", "64", "--steps", "3"]);
  const servers = await Promise.all([
    serve(chat, ["--ui-dir", UI]),
    serve(base, ["--ui-dir", UI]),
    serve(base, ["--api-key", KEY]),
    serve(deep, ["--ui-dir", UI]),
    serve(base, ["--ui-dir", UI, "--allow-interventions", "--against", twin, "--against", chat]),
    serve(bert, ["--prompt", "Once upon a [MASK]", "--open", "--ui-dir", UI], "inspect"),
  ]);
  ["CHAT", "BASE", "KEY", "DEEP", "TWIN", "BERT"].forEach((name, n) =>
    (process.env[`LIMPID_${name}`] = servers[n].address));
  process.env.LIMPID_FOLDER = base;
  return () => {
    servers.forEach(({ server }) => server.kill());
    rmSync(folder, { recursive: true, force: true });
  };
}
