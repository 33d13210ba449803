// A live page: the model is in the file and runs in a worker of this page, offline, with the bits of the binary. It is
// asked as a server is, and answers as one. It does something by being loaded, in place of start.js.
import { App } from "./app.js";
import { Archive } from "./archive.js";
import { Trouble, checked } from "./source.js";

/** @typedef {import("./live-worker.js").Said} Said */
/** @typedef {import("./source.js").Ask} Ask */
/** @typedef {{name: string, start: string}} LiveStart `start` is the address that the page begins at */

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

/** The worker with the model, and what it was asked. */
class LiveWorker {
  count = 0;
  /** @type {Map<number, LiveRequest>} */
  asked = new Map();
  /** @type {Worker | null} */
  worker = null;

  /** @param {Archive} archive @param {LiveStart} about */
  constructor(archive, about) {
    this.archive = archive;
    this.about = about;
  }

  /** Starts a worker, which opens the model, and asks it what is not answered. */
  async start() {
    const { archive, about } = this;
    const [script, module] = await Promise.all(["worker", "module"].map((key) => archive.bytesOf(key)));
    const names = archive.names().filter((name) => name.startsWith("file "));
    const files = await Promise.all(names.map(async (name) => [name.slice(5), await archive.bytesOf(name)]));
    const address = URL.createObjectURL(new Blob([/** @type {any} */ (script)], { type: "text/javascript" }));
    this.worker = new Worker(address);
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = (fault) => this.lose(new Trouble(`The model's worker failed: ${fault.message}`));
    this.worker.postMessage({ module, files, name: about.name });
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
  }

  /** @param {Said} said */
  hear({ id, status, type = "", bytes, end, fault }) {
    if (id === 0) {
      // the opening: it says 200, or what is wrong
      if (bytes) this.lose(new Trouble(`The model cannot be opened: ${new TextDecoder().decode(bytes)}`));
      else if (fault) this.lose(new Trouble(`The model cannot be opened: ${fault}`));
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
    if (!this.worker && this.count === 1) await this.start();
    else this.worker?.postMessage({ id, head: request.head, body: request.body });
    signal?.addEventListener("abort", () => this.drop(id, signal.reason));
    return checked(await request.whole.promise);
  };
}

/** The page with the model that is in it. */
async function begin() {
  const archive = Archive.ofPage();
  if (!archive) return;
  const about = /** @type {LiveStart} */ (await archive.json("live"));
  if (!location.hash) history.replaceState(null, "", `#${about.start}`);
  document.body.classList.add("live");
  new App(new LiveWorker(archive, about).ask);
}

begin();
