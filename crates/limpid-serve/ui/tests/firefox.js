// Debian's Firefox, driven by its own protocol, Marionette: Playwright drives only a Firefox of its own.
import { spawn } from "node:child_process";
import { accessSync, constants, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";

const NAMES = ["firefox-esr", "firefox"];

/** Where it is: in FIREFOX, or the first on the path; none if there is none. */
export function firefox() {
  const runs = (file) => {
    try {
      accessSync(file, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  };
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  return process.env.FIREFOX || folders.flatMap((folder) => NAMES.map((name) => path.join(folder, name))).find(runs);
}

/** A Firefox without a window and without a network. */
export class Firefox {
  /** Commands without an answer, by their numbers. */
  asked = new Map();
  read = Buffer.alloc(0);

  static async start() {
    if (!firefox()) throw new Error(`no Firefox on the path (${NAMES.join(", ")}): install or name one (FIREFOX)`);
    const profile = mkdtempSync(path.join(tmpdir(), "limpid-firefox-"));
    // a port that is free is written into the profile
    writeFileSync(path.join(profile, "user.js"), 'user_pref("marionette.port", 0);\n');
    const own = new Firefox();
    own.profile = profile;
    own.process = spawn(firefox(), ["--headless", "--offline", "--marionette", "--profile", profile],
      { stdio: "ignore" });
    const port = path.join(profile, "MarionetteActivePort");
    while (!existsSync(port) || readFileSync(port, "utf8") === "") {
      if (own.process.exitCode !== null) throw new Error(`Firefox ended with ${own.process.exitCode}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    own.socket = net.connect(Number(readFileSync(port, "utf8")), "127.0.0.1");
    own.socket.on("data", (data) => own.take(data));
    await own.ask("WebDriver:NewSession", {});
    await own.ask("WebDriver:SetTimeouts", { script: 150_000 });
    return own;
  }

  /** @param {Buffer} data packets, each a length, a colon and JSON */
  take(data) {
    this.read = Buffer.concat([this.read, data]);
    for (;;) {
      const colon = this.read.indexOf(":");
      const end = colon + 1 + Number(this.read.subarray(0, Math.max(0, colon)));
      if (colon < 0 || this.read.length < end) return;
      const said = JSON.parse(this.read.subarray(colon + 1, end).toString());
      this.read = this.read.subarray(end);
      // the first packet is a greeting
      if (!Array.isArray(said)) continue;
      const [, id, error, result] = said;
      const { resolve, reject } = this.asked.get(id);
      this.asked.delete(id);
      if (error) reject(new Error(`${error.error}: ${error.message}`));
      else resolve(result);
    }
  }

  /** @param {string} command @param {object} parameters */
  ask(command, parameters) {
    const answer = deferred();
    const id = (this.count = (this.count ?? 0) + 1);
    this.asked.set(id, answer);
    const text = JSON.stringify([0, id, command, parameters]);
    this.socket.write(`${Buffer.byteLength(text)}:${text}`);
    return answer.promise;
  }

  /** @param {string} url */
  open(url) {
    return this.ask("WebDriver:Navigate", { url });
  }

  /** What an asynchronous function returns in the page. @param {Function} work @param {any[]} args */
  async run(work, ...args) {
    const script = `const done = [...arguments].pop();
      (${work})(...[...arguments].slice(0, -1)).then(
        (value) => done({ value }), (fault) => done({ fault: String(fault) }));`;
    const { value: { value, fault } } = await this.ask("WebDriver:ExecuteAsyncScript", { script, args });
    if (fault) throw new Error(fault);
    return value;
  }

  async end() {
    await this.ask("Marionette:Quit", { flags: ["eForceQuit"] }).catch(() => {});
    this.socket.destroy();
    if (this.process.exitCode === null) await new Promise((resolve) => this.process.once("exit", resolve));
    rmSync(this.profile, { recursive: true, force: true });
  }
}

/** As Promise.withResolvers, which Node 20 lacks. */
function deferred() {
  let [resolve, reject] = [() => {}, () => {}];
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
}
