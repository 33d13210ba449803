// A training: its loss so far, a sample of the newest checkpoint, its time-lapse if it records one, and a button that
// stops it.
import { troubleNote } from "./answer.js";
import { curveChart } from "./curve.js";
import { button, dim, div, figure, fill, make, say, short } from "./dom.js";
import { factList } from "./numbers.js";
import { Trouble, asTrouble } from "./source.js";
import { readable } from "./text.js";
import { viewOfTimelapse } from "./view-timelapse.js";
import { OpenView } from "./view.js";

/** @type {import("./view.js").View} */
export const viewOfTraining = {
  id: "training", title: "Loss curve", about: "How did the loss fall while the model was trained?",
  open: (glass) => new TrainingView(glass),
  missing: ({ training, saved }) => {
    if (training) return null;
    if (saved) return "The training needs a server: `limpid inspect --open` shows it.";
    return "There is no log of a training beside this model.";
  },
};

/** Milliseconds until new lines of the log are asked for. */
const ASK_AGAIN = 2000;
/** Points of a curve: of a longer training, means of that many parts. */
const POINTS = 400;
/** Tokens of a sample. */
const SAMPLE = 48;

/** Means of as many parts as a curve has points. @param {[number, number][]} all @returns {[number, number][]} */
function thinned(all) {
  const each = Math.ceil(all.length / POINTS);
  return Array.from({ length: Math.ceil(all.length / each) || 0 }, (_, n) => {
    const part = all.slice(n * each, (n + 1) * each);
    return [part.at(-1)?.[0] ?? 0, part.reduce((sum, [, y]) => sum + y, 0) / part.length];
  });
}

class TrainingView extends OpenView {
  line = make("p", { class: "lead", role: "status" }, "Reading the log …");
  stop = button("Stop the training", () => this.end(), { hidden: "" });
  loss = curveChart(220);
  validation = curveChart(170);
  samples = div("stack");
  inside = div("stack");
  element = div(
    "training stack", div("tools", this.line, this.stop), this.notice, this.loss.element, this.validation.element,
    this.samples, this.inside,
  );
  /** @type {[number, number][]} */
  losses = [];
  /** @type {[number, number][]} */
  validated = [];
  /** The last line of a step. @type {any} */
  last = null;
  /** @type {any} */
  told = null;
  /** @type {import("./view.js").Shown | null} */
  timelapse = null;
  /** The line of the log to go on from. */
  from = 0;
  clock = 0;
  /** The step of the checkpoint that was asked for a sample. */
  sampled = -1;
  closed = false;
  isEnding = false;

  /** @param {import("./glass.js").Glass} glass */
  constructor(glass) {
    super(glass);
    this.read();
  }

  /** @param {[number, number][]} points @param {number} step @param {number | undefined} value */
  add(points, step, value) {
    if (typeof value !== "number") return;
    // a run that went back trains these steps again
    while ((points.at(-1)?.[0] ?? -1) >= step) points.pop();
    points.push([step, value]);
  }

  /** @param {any} row of the log */
  hear(row) {
    this.add(this.losses, row.step, row.train_loss);
    this.add(this.validated, row.step, row.val_loss);
    if (typeof row.train_loss === "number") this.last = row;
    if (typeof row.sample === "string") this.sample(row.step, row.prompt ?? "", row.sample);
  }

  /** @param {number} step @param {string} prompt @param {string} text */
  sample(step, prompt, text) {
    const said = make("p", { class: "said" }, dim(...readable(prompt, true)), ...readable(text, true));
    fill(this.samples, make("h2", `A sample after step ${figure(step, 0)}`), said);
  }

  /** @returns {Promise<void>} */
  read = async () => {
    try {
      const told = await this.glass.source.ask(`training?from=${this.from}`);
      if (this.closed) return;
      this.told = told;
      if (told.from < this.from) [this.losses, this.validated, this.last] = [[], [], null];
      this.from = told.next;
      told.rows.forEach((/** @type {any} */ row) => this.hear(row));
      fill(this.notice);
      this.show();
      if (told.more) return this.read();
      this.write();
    } catch (fault) {
      if (this.closed) return;
      const trouble = asTrouble(fault);
      this.stop.hidden = true;
      // its server ends with a training
      if (this.told?.steps && trouble.status === null) return this.tellEnd();
      return fill(this.notice, troubleNote(trouble, this.read));
    }
    this.clock = setTimeout(this.read, ASK_AGAIN);
  };

  tellEnd() {
    // one word about it is enough
    this.timelapse?.close?.();
    this.inside.querySelectorAll(".trouble").forEach((note) => note.remove());
    const place = this.model.place?.[0] ?? "the run’s folder";
    const words = `The training has ended, and its page with it. The model and its report.html are in ${place}.`;
    fill(this.notice, troubleNote(new Trouble(words), null));
  }

  /** Asks the newest checkpoint for a sample, once: of a run that trains, and of any in a page of its own. */
  async write() {
    const { told, glass: { source } } = this;
    if (!(told.steps || this.model.live) || told.step === this.sampled || !source.sample) return;
    this.sampled = told.step;
    const prompt = this.model.example ?? "";
    const text = await source.sample(prompt, SAMPLE).catch(() => null);
    if (text !== null && !this.closed) this.sample(this.sampled, prompt, text);
  }

  async end() {
    this.isEnding = true;
    this.show();
    say("The training stops after this step.");
    await this.glass.source.send?.("training", { stop: true }).catch((fault) => {
      this.isEnding = false;
      fill(this.notice, troubleNote(asTrouble(fault), null));
    });
  }

  show() {
    const { told, last } = this;
    const step = last?.step ?? 0;
    this.line.textContent = this.progressInWords(step);
    this.stop.hidden = !told.steps || step >= told.steps;
    // a page that trains goes on after it was stopped
    this.isEnding &&= Boolean(told.steps);
    this.stop.disabled = this.isEnding;
    this.stop.textContent = this.isEnding ? "Stopping …" : "Stop the training";
    this.drawCurve(this.loss, "training loss, nats a token", this.losses);
    this.drawCurve(this.validation, "validation loss, nats a token", this.validated);
    const whole = (/** @type {number | null | undefined} */ value) => (value == null ? null : figure(value, 0));
    const isTimed = last?.seconds > 0;
    const facts = factList([
      ["newest checkpoint", told.step === null ? null : `step ${figure(told.step, 0)}`],
      ["entropy floor (dashed)", told.floor == null ? null : `${short(told.floor, 4)} nats a token`],
      ["tokens", whole(last?.tokens)],
      ["tokens a second", whole(isTimed ? last.tokens / last.seconds : null)],
      ["seconds left, about", whole(told.steps && isTimed ? (last.seconds / step) * (told.steps - step) : null)],
    ]);
    if (told.timelapse && !this.timelapse) {
      this.timelapse = viewOfTimelapse.open(this.glass);
      this.inside.append(make("h2", "Inside, while it learns"), this.timelapse.element);
    }
    fill(this.numbers, make("h2", "So far"), facts, ...(this.timelapse?.numbers ? [this.timelapse.numbers] : []));
  }

  /** @param {number} step */
  progressInWords(step) {
    if (this.losses.length === 0) return "No step has been taken yet.";
    const recent = this.losses.slice(-10);
    const mean = recent.reduce((sum, [, loss]) => sum + loss, 0) / recent.length;
    const [best] = this.validated.toSorted(([, a], [, b]) => a - b);
    const lowest = best ? `; lowest validation loss ${short(best[1], 4)}, after step ${figure(best[0], 0)}` : "";
    const steps = this.told.steps ? ` of ${figure(this.told.steps, 0)}` : "";
    return `Step ${figure(step, 0)}${steps}: loss ${short(mean, 4)} nats a token${lowest}.`;
  }

  /** @param {ReturnType<typeof curveChart>} chart @param {string} what @param {[number, number][]} all */
  drawCurve(chart, what, all) {
    const points = thinned(all);
    const [first, last] = [points[0], points.at(-1)];
    chart.element.hidden = points.length < 2;
    if (!first || !last || chart.element.hidden) return;
    const ends = `from ${short(first[1], 4)} at step ${first[0]} to ${short(last[1], 4)} at step ${last[0]}`;
    const level = this.told.floor;
    chart.show({
      x: points.map(([x]) => x), y: points.map(([, y]) => y), dot: { x: last[0], y: last[1] }, bars: null, level,
      axes: ["step", what], words: `${what}: ${ends}`,
    });
  }

  update() {
    this.timelapse?.update();
  }

  close() {
    this.closed = true;
    clearTimeout(this.clock);
    this.timelapse?.close?.();
    [this.loss, this.validation].forEach((chart) => chart.close());
  }
}
