// The worker of a live page: a model that is asked as a server is, or a training. It takes one request at a time; what
// the page does not want any more it ends by ending the worker (live.js, here-run.js).
import { fuses, replaceMultiplyAdds } from "./multiply-add.js";
import { MemoryFiles, wasi } from "./wasi.js";

/** @typedef {[string, Uint8Array][]} WorkerFiles paths with their bytes */
/**
 * @typedef {{module?: Uint8Array, files: WorkerFiles, name: string, training?: {steps: number, floor: number | null}}}
 *   ToOpen a model; without the module, what has changed of the one that is open
 */
/** @typedef {{id: number, head: string, body: string}} ToAsk */
/**
 * @typedef {{module: Uint8Array, files: WorkerFiles, job: "plan" | "convert" | "train", input: any}} ToDo work that a
 *   worker is made for, and ends with
 */
/**
 * @typedef {{id: number, status?: number, type?: string, bytes?: Uint8Array, end?: boolean, fault?: string,
 *   emulates?: boolean}} Said
 *   a part of the answer to a request; of the opening, whose id is 0, whether multiply-adds are emulated
 */
/**
 * @typedef {{value?: any, memory?: number, files?: WorkerFiles, end?: boolean, fault?: string}} JobSaid what came of a
 *   job; of a training, after each part of it, with the files that have changed
 */

/** Milliseconds that a training goes on before it saves and hears the page. */
const TURN = 2000;

/** @param {Said | JobSaid} said @param {Transferable[]} [given] */
const tellPage = (said, given = []) => self.postMessage(said, { transfer: given });

/** A turn of the worker's own loop, in which it hears the page. */
const turnOfLoop = () => new Promise((resolve) => {
  const channel = new MessageChannel();
  channel.port1.onmessage = resolve;
  channel.port2.postMessage(null);
});

/** The module with its model. */
class LiveModel {
  files = new MemoryFiles();
  /** The request that is answered. */
  id = 0;
  /** What the module said of itself last. */
  printed = "";
  /** Hears what the module tells. @type {(status: number, bytes: Uint8Array) => void} */
  hear = () => {};
  isStopped = false;
  /** Whether the engine has no multiply-add that it could run. */
  emulates = false;
  /** The files that the page has, by what they were. @type {Map<string, string>} */
  known = new Map();

  /** @param {Uint8Array} module */
  async load(module) {
    const system = wasi(this.files, () => this.exports.memory, (text) => (this.printed = text));
    /** @type {(status: number, at: number, length: number) => number} */
    const tell = (status, at, length) => {
      this.hear(status, new Uint8Array(this.exports.memory.buffer, at, length).slice());
      return 1;
    };
    this.emulates = !fuses();
    if (this.emulates) replaceMultiplyAdds(module);
    const { instance } = await WebAssembly.instantiate(/** @type {any} */ (module), {
      wasi_snapshot_preview1: /** @type {any} */ (system),
      limpid: { tell },
    });
    /** @type {any} */
    this.exports = instance.exports;
    this.exports._initialize?.();
  }

  /** @param {string} what a function of the module @param {string} text */
  call(what, text) {
    const bytes = new TextEncoder().encode(text);
    const at = this.exports.limpid_input(bytes.length);
    new Uint8Array(this.exports.memory.buffer, at, bytes.length).set(bytes);
    this.exports[`limpid_${what}`]();
  }

  /** The same, where the answer is one value. @param {string} what @param {any} input */
  value(what, input) {
    let [status, text] = [0, ""];
    this.hear = (code, bytes) => {
      if (code) status = code;
      else text += new TextDecoder().decode(bytes);
    };
    this.call(what, JSON.stringify(input));
    if (status !== 200) throw new Error(text);
    return JSON.parse(text);
  }

  /** @param {WorkerFiles} files */
  write(files) {
    for (const [file, bytes] of files) this.files.write(file, bytes);
  }

  /** @param {ToOpen} asked */
  async open({ module, files, name, training }) {
    if (module) await this.load(module);
    this.write(files);
    this.value("open", { name, ...training });
  }

  /** @param {ToAsk} asked */
  ask({ id, head, body }) {
    this.id = id;
    this.hear = (status, bytes) =>
      tellPage(status ? { id, status, type: new TextDecoder().decode(bytes) } : { id, bytes });
    this.call("ask", `${head}\n${body}`);
    tellPage({ id, end: true });
  }

  /** The files that have changed since they were asked for last. */
  changed() {
    const changed = this.files.all().filter(({ path, file }) => {
      const is = `${file.id} ${file.size}`;
      const was = this.known.get(path);
      this.known.set(path, is);
      return is !== was;
    });
    return changed.map(({ path, file }) =>
      /** @type {[string, Uint8Array]} */ ([path, file.bytes.slice(0, file.size)]));
  }

  /** @param {ToDo} asked */
  async work({ module, files, job, input }) {
    await this.load(module);
    this.write(files);
    this.changed();
    const tell = (/** @type {any} */ value, /** @type {boolean} */ end) => {
      const changes = this.changed();
      tellPage({ value, memory: this.exports.memory.buffer.byteLength, files: changes, end },
        changes.map(([, bytes]) => bytes.buffer));
    };
    const value = this.value(job, input);
    if (job !== "train") return tell(value, true);
    tell(value, false);
    // the first turn is one step, so that the page soon has a model to look into
    for (let turn = 0; ; turn = TURN) {
      const place = this.value("continue", turn);
      await turnOfLoop();
      const isOver = this.isStopped || Boolean(place.summary);
      tell(place, isOver);
      if (isOver) return;
    }
  }

  /** @param {ToOpen | ToAsk | ToDo} asked */
  async take(asked) {
    this.id = 0;
    try {
      if ("job" in asked) return await this.work(asked);
      if ("id" in asked) return this.ask(asked);
      await this.open(asked);
      tellPage({ id: 0, end: true, emulates: this.emulates });
    } catch (fault) {
      // a checkpoint that cannot be opened leaves the one before
      if ("name" in asked && !asked.module) return;
      const isTrap = fault instanceof WebAssembly.RuntimeError && this.printed !== "";
      tellPage({ id: this.id, fault: isTrap ? this.printed : fault instanceof Error ? fault.message : `${fault}` });
    }
  }
}

/** Listens to the page. */
function listen() {
  const model = new LiveModel();
  let last = Promise.resolve();
  self.onmessage = ({ data }) => {
    if (data.stop) model.isStopped = true;
    else last = last.then(() => model.take(data));
  };
}

listen();
