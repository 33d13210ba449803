// A run that is trained in this page: its folder, the worker that trains it, and what this browser keeps of it.
import { forgetRun, holdPlace, keepRun } from "./here-store.js";

/** @typedef {import("./live-worker.js").JobSaid} JobSaid */
/** @typedef {import("./live-worker.js").ToDo} ToDo */
/** @typedef {{step: number, steps: number, floor: number | null, summary?: any, notes?: string[]}} Place */

/** Milliseconds between two times that a run is kept. */
const KEEP_EACH = 15_000;

/**
 * Has a worker do a job. What it says is passed on; an error is what the job's promise ends with.
 * @param {() => Worker} work
 * @param {ToDo} asked
 * @param {(said: JobSaid) => void} hear
 * @param {AbortSignal} [signal] ends the worker
 * @returns {Promise<JobSaid>} what it said last
 */
export function doJob(work, asked, hear = () => {}, signal) {
  const worker = work();
  const done = new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.fault) return reject(new Error(data.fault));
      hear(data);
      if (data.end) resolve(data);
    };
    worker.onerror = (fault) => reject(new Error(`the worker failed: ${fault.message}`));
    signal?.addEventListener("abort", () => {
      // a training ends after its turn, everything else at once
      if (asked.job === "train") worker.postMessage({ stop: true });
      else reject(signal.reason);
    });
    worker.postMessage(asked);
  });
  return done.finally(() => worker.terminate());
}

/** A run. */
export class HereRun {
  /** @type {Place | null} */
  place = null;
  /** Set while it trains: ends that. @type {AbortController | null} */
  running = null;
  /** Why it does not train any more, if something went wrong. */
  fault = "";
  /** What the run said last. */
  note = "";
  isKept = false;
  /** Why it is not kept, though it should be. */
  unkept = "";
  keptAt = 0;
  /** Whether this tab is the one whose run is kept. */
  hasPlace = false;
  isKeeping = false;
  /** Whether something has changed since it was kept. */
  hasNews = false;
  /** Hears that something has changed of how it is kept. */
  told = () => {};

  /**
   * @param {() => Worker} work
   * @param {Uint8Array} module
   * @param {string} name of its folder
   * @param {Record<string, string>} settings
   * @param {Map<string, Uint8Array>} files what is there already: a text, or the folder of a run that goes on
   */
  constructor(work, module, name, settings, files) {
    this.work = work;
    this.module = module;
    this.name = name;
    this.settings = settings;
    this.files = files;
  }

  /** Trains until it is stopped or ends. @param {(changed: [string, Uint8Array][]) => void} changed */
  async train(changed) {
    const running = new AbortController();
    [this.running, this.fault] = [running, ""];
    const input = this.place ? { ...OF_PAGE, resume: this.name } : { ...OF_PAGE, ...this.settings, out: this.name };
    const { module } = this;
    const asked = /** @type {ToDo} */ ({ module, files: [...this.files], job: "train", input });
    try {
      await doJob(this.work, asked, ({ value, files = [], end }) => {
        this.place = value;
        this.note = value.notes?.at(-1) ?? this.note;
        for (const [path, bytes] of files) this.files.set(path, bytes);
        if (end) this.running = null;
        if (this.isKept && (end || performance.now() - this.keptAt > KEEP_EACH)) this.keep();
        changed(files);
      }, running.signal);
    } catch (fault) {
      this.fault = fault instanceof Error ? fault.message : `${fault}`;
    }
    this.running = null;
    changed([]);
  }

  stop() {
    this.running?.abort();
  }

  get isOver() {
    return Boolean(this.place?.summary);
  }

  /** The files of the model and what is known of its training: what a page shows. */
  get shown() {
    const all = [...this.files];
    return all.filter(([path]) => path.startsWith(`${this.name}/`) && !APART.test(path.slice(this.name.length + 1)));
  }

  /** The folder, and the text beside it; the settings name the text as it lies beside them. */
  get folder() {
    const settings = `${this.name}/limpid.toml`;
    return [...this.files].filter(([path]) => !path.endsWith("/lock")).map(([path, bytes]) =>
      /** @type {[string, Uint8Array]} */ ([path, path === settings ? beside(bytes) : bytes]));
  }

  /** Keeps it in this browser as it is now. Where that fails, it says why, and the training goes on. */
  async keep() {
    this.hasNews = true;
    if (this.isKeeping || !this.place) return;
    this.isKeeping = true;
    while (this.hasNews) {
      this.hasNews = false;
      const { name, settings, place, files } = this;
      this.unkept = await keepRun({ name, settings, place, files }).then(() => "", (fault) =>
        fault?.name === "QuotaExceededError" ? "this browser has no room for it" : `this browser refuses: ${fault}`);
    }
    [this.isKeeping, this.keptAt] = [false, performance.now()];
    this.told();
  }

  /** Whether this browser keeps it from now on. @param {boolean} isKept */
  async setKept(isKept) {
    [this.isKept, this.unkept] = [isKept, ""];
    if (!isKept) return forgetRun().catch(() => {});
    this.hasPlace ||= await holdPlace();
    if (this.hasPlace) return this.keep();
    [this.isKept, this.unkept] = [false, "another tab keeps its run already, and there is room for one"];
  }
}

/** What every training in a page has. */
const OF_PAGE = { threads: "1" };

/** Files of a run that no page shows: its state, and what can be made of the rest. */
const APART = /^(state\/|limpid\.toml$|.*\.csv$|.*tfevents|.*lock$)/;

/** Settings whose text lies beside them, not in the page's root. @param {Uint8Array} bytes */
function beside(bytes) {
  const text = new TextDecoder().decode(bytes);
  return new TextEncoder().encode(text.replace(/^data = "\/([^"]*)"$/m, "data = \"$1\""));
}
