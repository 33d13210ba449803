// A live page: the model is in the file and runs in a worker of this page, offline, with the bits of the binary. It is
// asked as a server is, and answers as one. A page without a model makes one, or opens one (here.js). It does something
// by being loaded, in place of start.js.
import { writeHash } from "./address.js";
import { App } from "./app.js";
import { Archive } from "./archive.js";
import { HerePage } from "./here.js";
import { Trouble, checked } from "./source.js";

/** @typedef {import("./live-worker.js").Said} Said */
/** @typedef {import("./source.js").Ask} Ask */
/** @typedef {import("./live-worker.js").ToOpen} ToOpen */
/**
 * @typedef {{name: string, start: string}} LiveStart `start` is the address that the page begins at; where there is no
 *   name, there is no model
 */

/** What the head of the page says of a model. */
const OFFLINE = "runs in this page, offline";
const SLOWLY = " · slowly: this browser has no exact multiply-add of WebAssembly";
/** How long a worker may go on with what nobody wants any more, in ms; then another one begins. */
const LAST_WORK = 300;

/** One request, and what is known of its answer. */
class LiveRequest {
  /** @type {ReadableStreamDefaultController<Uint8Array> | null} */
  controller = null;
  unwanted = false;

  /** @param {string} head @param {string} body */
  constructor(head, body) {
    this.head = head;
    this.body = body;
    /** @type {PromiseWithResolvers<Response>} */
    this.whole = Promise.withResolvers();
  }

  /** @param {number} status @param {string} type @param {() => void} cancel called when nobody reads on */
  begin(status, type, cancel) {
    const body = new ReadableStream({ start: (controller) => void (this.controller = controller), cancel });
    this.whole.resolve(new Response(body, { status, headers: { "content-type": type } }));
  }

  /** @param {unknown} fault */
  fail(fault) {
    this.whole.reject(fault);
    if (!this.unwanted) this.controller?.error(fault);
  }
}

/** Makes a worker of its text. @param {Uint8Array} script */
function workerOf(script) {
  const address = URL.createObjectURL(new Blob([/** @type {any} */ (script)], { type: "text/javascript" }));
  const worker = new Worker(address);
  URL.revokeObjectURL(address);
  return worker;
}

/** The worker with the model, and what it was asked. */
class LiveWorker {
  /** Settled when the model is open, or cannot be. @type {PromiseWithResolvers<void>} */
  opened = Promise.withResolvers();
  count = 0;
  /** @type {Map<number, LiveRequest>} */
  asked = new Map();
  /** @type {Worker | null} */
  worker = null;
  /** Whether the worker has what it opens: what is asked before that waits. */
  isLoaded = false;

  /** @param {Uint8Array} script @param {() => Promise<ToOpen>} load gives what is to be opened */
  constructor(script, load) {
    this.script = script;
    this.load = load;
    // who does not wait for it hears of it by asking
    this.opened.promise.catch(() => {});
  }

  /** Starts a worker, which opens the model, and asks it what is not answered. */
  async start() {
    const worker = workerOf(this.script);
    this.worker = worker;
    this.isLoaded = false;
    worker.onmessage = ({ data }) => this.hear(data);
    worker.onerror = (fault) => this.lose(new Trouble(`The model's worker failed: ${fault.message}`));
    const opened = await this.load();
    if (this.worker !== worker) return;
    worker.postMessage(opened);
    this.isLoaded = true;
    for (const [id, { head, body }] of this.asked) this.worker.postMessage({ id, head, body });
  }

  /** Ends the worker: what had begun fails, and what had not is asked again. @param {unknown} fault */
  restart(fault) {
    this.worker?.terminate();
    this.worker = null;
    for (const [id, request] of this.asked) {
      if (!request.controller && !request.unwanted) continue;
      request.fail(fault);
      this.asked.delete(id);
    }
    this.start();
  }

  /** @param {unknown} fault why nothing is answered any more */
  lose(fault) {
    for (const request of this.asked.values()) request.fail(fault);
    this.asked.clear();
    this.opened.reject(fault);
  }

  /** Ends the worker for good. */
  end() {
    this.worker?.terminate();
    this.lose(new Trouble("The model was closed."));
  }

  /** Gives the worker what has changed. @param {Omit<ToOpen, "module">} changed */
  follow(changed) {
    this.worker?.postMessage(changed);
  }

  /** @param {Said} said */
  hear({ id, status, type = "", bytes, end, fault, emulates }) {
    if (id === 0) {
      // the opening
      if (fault) return this.lose(new Trouble(`The model cannot be opened: ${fault}`));
      document.body.dataset["runs"] = `${OFFLINE}${emulates ? SLOWLY : ""}`;
      if (end) this.opened.resolve();
      return;
    }
    const request = this.asked.get(id);
    if (!request) return;
    if (fault) return this.restart(new Trouble(`The model failed, and begins anew: ${fault}`));
    if (status) request.begin(status, type, () => this.drop(id, null));
    if (bytes && !request.unwanted) request.controller?.enqueue(bytes);
    if (!end) return;
    if (!request.unwanted) request.controller?.close();
    this.asked.delete(id);
  }

  /** Nobody wants an answer any more. @param {number} id @param {unknown} why */
  drop(id, why) {
    const request = this.asked.get(id);
    if (!request || request.unwanted) return;
    if (why) request.fail(why);
    request.unwanted = true;
    setTimeout(() => this.asked.has(id) && this.restart(why), LAST_WORK);
  }

  /** @type {Ask} */
  ask = async (path, body, signal = null) => {
    const request = new LiveRequest(`${body === null ? "GET" : "POST"} ${path}`, body ?? "");
    const id = ++this.count;
    this.asked.set(id, request);
    if (!this.worker && this.count === 1) this.start();
    else if (this.isLoaded) this.worker?.postMessage({ id, head: request.head, body: request.body });
    signal?.addEventListener("abort", () => this.drop(id, signal.reason));
    return checked(await request.whole.promise);
  };
}

/** The page with the model that is in it, or without one. */
async function begin() {
  const archive = Archive.ofPage();
  if (!archive) return;
  const [about, script] = await Promise.all([archive.json("live"), archive.bytesOf("worker")]);
  const { name, start } = /** @type {LiveStart} */ (about);
  document.body.classList.add("live");
  document.body.dataset["runs"] = OFFLINE;
  if (name === "") {
    const open = (/** @type {() => Promise<ToOpen>} */ load) => new LiveWorker(script, load);
    new HerePage({ module: await archive.bytesOf("module"), script, work: () => workerOf(script), open });
    return;
  }
  const files = archive.names().filter((key) => key.startsWith("file "));
  if (!location.hash) writeHash("replaceState", start);
  new App(new LiveWorker(script, async () => ({
    module: await archive.bytesOf("module"), name,
    files: await Promise.all(files.map(async (key) => /** @type {[string, Uint8Array]} */ (
      [key.slice(5), await archive.bytesOf(key)]))),
  })).ask);
}

begin();
