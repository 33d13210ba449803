// A training: its loss so far, a sample of the newest checkpoint, its time-lapse if it records one, and a button that stops it.
import { troubleNote } from "./answer.js";
import { curveChart } from "./curve.js";
import { button, figure, make, say, short } from "./dom.js";
import { factList } from "./numbers.js";
import { Trouble, asTrouble } from "./source.js";
import { readable } from "./text.js";
import { viewOfTimelapse } from "./view-timelapse.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfTraining = {
  id: "training", title: "Loss curve", about: "How did the loss fall while the model was trained?", open: trainingView,
  missing: (model) => (model.training ? null : model.saved ? "The training needs a server: `limpid inspect --open` shows it." : "There is no log of a training beside this model."),
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

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function trainingView(glass) {
  const line = make("p", { class: "lead", role: "status" }, "Reading the log …");
  const stop = button("Stop the training", end, { hidden: "" });
  const notice = make("div", {});
  const [loss, validation] = [curveChart(220), curveChart(170)];
  const samples = make("div", { class: "stack" });
  const numbers = make("div", { class: "stack" });
  const inside = make("div", { class: "stack" });
  const element = make("div", { class: "training stack" }, make("div", { class: "tools" }, line, stop), notice, loss.element, validation.element, samples, inside);
  /** @type {[number, number][]} */
  let losses = [];
  /** @type {[number, number][]} */
  let validated = [];
  /** The last line of a step. @type {any} */
  let last = null;
  /** @type {any} */
  let told = null;
  /** @type {import("./glass.js").Shown | null} */
  let timelapse = null;
  let [from, clock, sampled, closed, ending] = [0, 0, -1, false, false];

  /** @param {any} row */
  function hear(row) {
    for (const [all, value] of /** @type {[[number, number][], any][]} */ ([[losses, row.train_loss], [validated, row.val_loss]])) {
      if (typeof value !== "number") continue;
      // a run that went back trains these steps again
      while ((all.at(-1)?.[0] ?? -1) >= row.step) all.pop();
      all.push([row.step, value]);
    }
    if (typeof row.train_loss === "number") last = row;
    if (typeof row.sample === "string") sample(row.step, row.prompt ?? "", row.sample);
  }

  /** @param {number} step @param {string} prompt @param {string} text */
  function sample(step, prompt, text) {
    samples.replaceChildren(make("h2", {}, `A sample after step ${figure(step, 0)}`), make("p", { class: "said" }, make("span", { class: "dim" }, ...readable(prompt, true)), ...readable(text, true)));
  }

  async function read() {
    try {
      told = await glass.source.ask(`training?from=${from}`);
      if (closed) return;
      if (told.from < from) [losses, validated, last] = [[], [], null];
      from = told.next;
      told.rows.forEach(hear);
      notice.replaceChildren();
      show();
      if (told.more) return read();
      write();
    } catch (fault) {
      if (closed) return;
      const trouble = asTrouble(fault);
      // its server ends with a training
      const over = told?.steps && trouble.status === null;
      stop.hidden = true;
      if (!over) return notice.replaceChildren(troubleNote(trouble, read));
      // one word about it is enough
      timelapse?.close?.();
      inside.querySelectorAll(".trouble").forEach((one) => one.remove());
      return notice.replaceChildren(troubleNote(new Trouble(`The training has ended, and its page with it. The model and its report.html are in ${glass.model.place?.[0] ?? "the run’s folder"}.`), null));
    }
    clock = setTimeout(read, ASK_AGAIN);
  }

  /** Asks the newest checkpoint for a sample, once. */
  async function write() {
    if (!told.steps || told.step === sampled || !glass.source.sample) return;
    sampled = told.step;
    const prompt = glass.model.example ?? "";
    const text = await glass.source.sample(prompt, SAMPLE).catch(() => null);
    if (text !== null && !closed) sample(sampled, prompt, text);
  }

  async function end() {
    ending = true;
    show();
    say("The training stops after this step.");
    await glass.source.send?.("training", { stop: true }).catch((fault) => {
      ending = false;
      notice.replaceChildren(troubleNote(asTrouble(fault), null));
    });
  }

  function show() {
    const step = last?.step ?? 0;
    const recent = losses.slice(-10);
    const mean = recent.reduce((sum, [, y]) => sum + y, 0) / recent.length;
    const best = validated.reduce((/** @type {[number, number] | null} */ a, b) => (a && a[1] <= b[1] ? a : b), null);
    line.textContent = losses.length === 0 ? "No step has been taken yet." : `Step ${figure(step, 0)}${told.steps ? ` of ${figure(told.steps, 0)}` : ""}: loss ${short(mean, 4)} nats a token${best ? `; lowest validation loss ${short(best[1], 4)}, after step ${figure(best[0], 0)}` : ""}.`;
    stop.hidden = !told.steps || step >= told.steps;
    stop.disabled = ending;
    stop.textContent = ending ? "Stopping …" : "Stop the training";
    for (const [chart, what, all] of /** @type {[ReturnType<typeof curveChart>, string, [number, number][]][]} */ ([[loss, "training loss, nats a token", losses], [validation, "validation loss, nats a token", validated]])) {
      const some = thinned(all);
      chart.element.hidden = some.length < 2;
      const [first, final] = [some[0], some.at(-1)];
      if (!first || !final || some.length < 2) continue;
      chart.show({ x: some.map(([x]) => x), y: some.map(([, y]) => y), dot: { x: final[0], y: final[1] }, bars: null, axes: ["step", what], words: `${what}: from ${short(first[1], 4)} at step ${first[0]} to ${short(final[1], 4)} at step ${final[0]}` });
    }
    const rate = last?.seconds > 0 ? last.tokens / last.seconds : null;
    const left = told.steps && last?.seconds > 0 ? (last.seconds / step) * (told.steps - step) : null;
    numbers.replaceChildren(
      make("h2", {}, "So far"),
      factList([
        ["newest checkpoint", told.step === null ? null : `step ${figure(told.step, 0)}`],
        ["tokens", last?.tokens === undefined ? null : figure(last.tokens, 0)], ["tokens a second", rate === null ? null : figure(rate, 0)], ["seconds left, about", left === null ? null : figure(left, 0)],
      ]),
      ...(timelapse?.numbers ? [timelapse.numbers] : []),
    );
    if (told.timelapse && !timelapse) {
      timelapse = viewOfTimelapse.open(glass);
      inside.append(make("h2", {}, "Inside, while it learns"), timelapse.element);
      numbers.append(...(timelapse.numbers ? [timelapse.numbers] : []));
    }
  }
  read();

  return {
    element,
    numbers,
    update: () => timelapse?.update(),
    close() {
      closed = true;
      clearTimeout(clock);
      timelapse?.close?.();
      [loss, validation].forEach((chart) => chart.close());
    },
  };
}
