// The worker of a live page: the model, asked as a server is. It takes one request at a time; what the page does not
// want any more it ends by ending the worker (live.js).
import { MemoryFiles, wasi } from "./wasi.js";

/** @typedef {{module: Uint8Array, files: [string, Uint8Array][], name: string}} ToOpen */
/** @typedef {{id: number, head: string, body: string}} ToAsk */
/**
 * @typedef {{id: number, status?: number, type?: string, bytes?: Uint8Array, end?: boolean, fault?: string}} Said
 *   a part of the answer to a request; of the opening, whose id is 0
 */

/** @param {Said} said */
const tellPage = (said) => self.postMessage(said);

/** The module with its model. */
class LiveModel {
  /** The request that is answered. */
  id = 0;
  /** What the module said of itself last. */
  printed = "";

  /** @param {ToOpen} asked */
  async open({ module, files, name }) {
    const held = new MemoryFiles();
    for (const [file, bytes] of files) held.write(file, bytes);
    const system = wasi(held, () => this.exports.memory, (text) => (this.printed = text));
    /** @type {(status: number, at: number, length: number) => number} */
    const tell = (status, at, length) => {
      const bytes = new Uint8Array(this.exports.memory.buffer, at, length).slice();
      tellPage(status ? { id: this.id, status, type: new TextDecoder().decode(bytes) } : { id: this.id, bytes });
      return 1;
    };
    if (!WebAssembly.validate(/** @type {any} */ (module))) {
      throw new Error("this browser lacks WebAssembly's relaxed SIMD, which Chromium has from version 114 on");
    }
    const { instance } = await WebAssembly.instantiate(/** @type {any} */ (module), {
      wasi_snapshot_preview1: /** @type {any} */ (system),
      limpid: { tell },
    });
    /** @type {any} */
    this.exports = instance.exports;
    this.exports._initialize?.();
    this.call("open", name);
  }

  /** @param {"open" | "ask"} what @param {string} text */
  call(what, text) {
    const bytes = new TextEncoder().encode(text);
    const at = this.exports.limpid_input(bytes.length);
    new Uint8Array(this.exports.memory.buffer, at, bytes.length).set(bytes);
    this.exports[`limpid_${what}`]();
    tellPage({ id: this.id, end: true });
  }

  /** @param {ToOpen | ToAsk} asked */
  async take(asked) {
    try {
      if ("module" in asked) return await this.open(asked);
      this.id = asked.id;
      this.call("ask", `${asked.head}\n${asked.body}`);
    } catch (fault) {
      tellPage({ id: this.id, fault: this.printed || (fault instanceof Error ? fault.message : `${fault}`) });
    }
  }
}

/** Listens to the page. */
function listen() {
  const model = new LiveModel();
  let last = Promise.resolve();
  self.onmessage = ({ data }) => (last = last.then(() => model.take(data)));
}

listen();
