// A run that follows what is asked for: begun anew when that changes, and once more where the server has forgotten its
// trace.
import { runPrompt } from "./runs.js";
import { Trouble } from "./source.js";

/** @typedef {import("./runs.js").Run} Run */

export class LiveRun {
  /** @type {Run | null} */
  run = null;
  /** What it is a run of, as JSON. */
  asked = "";
  /** @type {AbortController | null} */
  running = null;
  /** By the trace that was forgotten. @type {Map<string, Promise<void>>} */
  renewals = new Map();

  /**
   * @param {import("./glass-source.js").GlassSource} source
   * @param {string} name
   * @param {{changed: () => void, ended: (run: Run) => void, outdated: () => void}} page `outdated`: the model is
   *   another by now
   * @param {LiveRun | null} other whose trace is forgotten with this one's
   */
  constructor(source, name, page, other = null) {
    this.source = source;
    this.name = name;
    this.page = page;
    this.other = other;
  }

  /** Whether something else is asked for than what was run. @param {object | null} body null: nothing is to be run */
  asksElse(body) {
    const asked = body ? JSON.stringify(body) : "";
    if (asked === this.asked) return false;
    this.asked = asked;
    return true;
  }

  /** @param {{prompt: string} | null} body null: nothing is run */
  begin(body) {
    this.stop();
    this.run = null;
    if (!body) return;
    const controller = (this.running = new AbortController());
    const { run, ended } = runPrompt(this.source, body, this.page.changed, controller.signal);
    this.run = run;
    ended.then(() => {
      if (controller.signal.aborted) return;
      this.running = null;
      this.page.ended(run);
      this.page.changed();
    });
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  /**
   * Uses the trace; one that the server has forgotten is asked for again, without a word unless the model is another by
   * now.
   * @template T
   * @param {(id: string) => Promise<T>} use
   */
  async use(use) {
    const { run } = this;
    if (!run?.id) throw new Trouble(`${this.name} has not run yet.`);
    try {
      return await use(run.id);
    } catch (fault) {
      if (!(fault instanceof Trouble) || fault.code !== "trace_expired") throw fault;
      await Promise.all([this.renew(run), this.other?.run?.id ? this.other.renew(this.other.run) : null]);
      return use(run.id);
    }
  }

  /** @param {Run} run */
  renew(run) {
    const forgotten = run.id;
    const started = this.renewals.get(forgotten);
    if (started) return started;
    const again = runPrompt(this.source, JSON.parse(this.asked), () => {}, new AbortController().signal);
    const renewal = again.ended.then(() => {
      this.renewals.delete(forgotten);
      if (again.run.trouble) throw again.run.trouble;
      if (again.run.id === forgotten) return;
      run.id = again.run.id;
      this.page.outdated();
    });
    this.renewals.set(forgotten, renewal);
    return renewal;
  }
}
