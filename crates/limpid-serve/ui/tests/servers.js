// Trains two small models and serves them with the real binary: `chat` (a chat template), `base` (none), `key` (base, which
// asks for a key; its page is the one in the binary, the others' are the files here). Their addresses go to the tests
// through the environment. LIMPID names another binary.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const UI = path.resolve(import.meta.dirname, "..");
const ROOT = path.resolve(UI, "../../..");
const BINARY = process.env.LIMPID || path.resolve(ROOT, process.env.CARGO_TARGET_DIR || "target", "debug/limpid");
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

/** Starts a server, and waits until it says where. @param {string} folder @param {string[]} options */
async function serve(folder, options) {
  const server = spawn(BINARY, ["serve", "--model", folder, "--port", "0", ...options], { stdio: ["ignore", "pipe", "pipe"] });
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
    server.on("exit", () => reject(new Error(`limpid serve ended: ${said}`)));
  });
  return { server, address: await address };
}

export default async function start() {
  if (!existsSync(BINARY)) throw new Error(`there is no ${BINARY}: run \`cargo build\`, or name a binary in LIMPID`);
  const folder = mkdtempSync(path.join(tmpdir(), "limpid-ui-"));
  const [chat, base, data] = ["chat", "base", "chat.jsonl"].map((name) => path.join(folder, name));
  writeFileSync(data, [...CONVERSATIONS, ...CONVERSATIONS].map((one) => JSON.stringify(one)).join("\n"));
  train(chat, ["--data", data, "--context-length", "96", "--steps", "60", "--learning-rate", "0.003"]);
  train(base, ["--steps", "20"]);
  const servers = await Promise.all([
    serve(chat, ["--ui-dir", UI]),
    serve(base, ["--ui-dir", UI]),
    serve(base, ["--api-key", KEY]),
  ]);
  ["CHAT", "BASE", "KEY"].forEach((name, n) => (process.env[`LIMPID_${name}`] = servers[n].address));
  return () => {
    servers.forEach(({ server }) => server.kill());
    rmSync(folder, { recursive: true, force: true });
  };
}
