// A time-lapse of training: heads, the lens, the loss and a sample of the probe text, frame by frame, also while the
// run trains on.
import { troubleNote } from "./answer.js";
import { curveChart } from "./curve.js";
import { button, dim, div, emptyCanvas, figure, fill, isFocused, make, on, say, short, sizeCanvas } from "./dom.js";
import { SCORES, drawHead, headSheets } from "./heads.js";
import { numberMap } from "./number-map.js";
import { factList } from "./numbers.js";
import { bytesOf, onOneLine } from "./runs.js";
import { asTrouble } from "./source.js";
import { piece, readable } from "./text.js";
import { textTable } from "./view-walks.js";
import { OpenView } from "./view.js";

/**
 * A frame: what docs/inside.md says of `timelapse`.
 * @typedef {{step: number, tokens: number, sample: string, values: Record<string, (number | null)[]>,
 *   pictures?: any}} Frame
 */

/** @type {import("./view.js").View} */
export const viewOfTimelapse = {
  id: "timelapse", title: "Time-lapse", about: "What changed inside while the model learned?",
  open: (glass) => new TimelapseView(glass),
  missing: ({ timelapse }) =>
    timelapse ? null : "This model has no time-lapse: limpid train --probe records one while a model learns.",
};

/** Milliseconds until new frames are asked for. */
const POLL = 3000;
/** Milliseconds of a frame that plays. It plays only when it is told to. */
const PLAY = 250;
/** Milliseconds of rest before the pictures of a frame are asked for. */
const CALMED = 200;

/** The mean of what is there. @param {(number | null)[]} values */
function mean(values) {
  const all = values.filter((value) => value !== null);
  return all.reduce((sum, value) => sum + value, 0) / all.length;
}

/** What heads are told by: their kinds, and induction where the text is random tokens, twice. */
const MEASURES = [...SCORES, { key: "repeated", name: "induction on repeats" }];

class TimelapseView extends OpenView {
  /** @type {Frame[]} */
  frames = [];
  /** What every answer tells. @type {any} */
  told = null;
  /** Texts of tokens by their ids. @type {Record<string, string>} */
  texts = {};
  sheetOf = headSheets();
  /** The frame that plays; -1: none. */
  playing = -1;
  clock = 0;
  polling = 0;
  resting = 0;
  closed = false;
  score = make("select", ...MEASURES.map(({ key, name }) => make("option", { value: key }, name)));
  than = make("input", { type: "number", min: "0", placeholder: "none" });
  slider = make("input", { type: "range", min: "0", "aria-label": "Frame" });
  player = button("Play", () => this.play(this.playing < 0));
  track = curveChart(130);
  course = curveChart(170);
  line = make("p", { class: "cell-line" });
  lens = make("div");
  table = make("details", make("summary", "As tables"));
  map = numberMap(this.glass.dark, {
    label: "Heads",
    at: () => [this.glass.layer, this.glass.head],
    choose: (l, h) => this.glass.go({ l, h }),
    words: (l, h, value) => `L${l}H${h}: ${value}`,
  });
  tools = div(
    "tools", this.player, make("label", "Heads by ", this.score),
    make("label", "Compare with step ", this.than),
  );
  element = div(
    "timelapse stack", this.notice, this.tools, this.track.element, this.line, this.map.element, this.course.element,
    this.table, this.lens,
  );

  /** @param {import("./glass.js").Glass} glass */
  constructor(glass) {
    super(glass);
    this.track.element.classList.add("track");
    this.track.element.append(this.slider);
    on(this.score, "change", () => this.set({ score: this.score.value }));
    on(this.than, "change", () => this.set({ than: this.than.value }));
    on(this.slider, "input", () => {
      this.play(false);
      this.choose(Number(this.slider.value));
    });
    on(this.table, "toggle", () => this.update());
    this.read();
  }

  /** The frame at a step, or the last before it; -1: none. @param {string | undefined} step */
  frameAt(step) {
    return step ? this.frames.findLastIndex((frame) => frame.step <= Number(step)) : -1;
  }

  /** The frame that is shown. */
  get now() {
    const chosen = this.frameAt(this.more["frame"]);
    if (this.playing >= 0) return this.playing;
    return chosen < 0 ? this.frames.length - 1 : chosen;
  }

  /** The frame that it is compared with. */
  get compared() {
    return this.frames[this.frameAt(this.more["than"])];
  }

  /** The chosen head, among all of them. */
  get chosen() {
    return this.glass.layer * this.run.heads + this.glass.head;
  }

  /** The last frame is not named: the page goes on to those that come. @param {number} n */
  choose(n) {
    this.set({ frame: n === this.frames.length - 1 ? "" : `${this.frames[n]?.step}` });
  }

  /** @param {boolean} isOn */
  play(isOn) {
    clearInterval(this.clock);
    const before = this.playing;
    this.playing = isOn ? this.now % (this.frames.length - 1 || 1) : -1;
    this.player.textContent = isOn ? "Pause" : "Play";
    if (isOn) {
      this.clock = setInterval(() => {
        if (this.playing >= this.frames.length - 1) return this.play(false);
        this.playing++;
        this.update();
      }, PLAY);
    } else if (before >= 0) {
      this.choose(before);
      say(this.slider.ariaValueText ?? "");
    }
  }

  /** Asks for the frames that are not here. */
  read = async () => {
    try {
      const told = await this.glass.source.ask(`timelapse?from=${this.frames.length}&count=200`);
      if (this.closed) return;
      this.told = told;
      Object.assign(this.texts, told.texts);
      const isLonger = told.from === this.frames.length && told.frames.length > 0;
      if (isLonger) this.frames.push(...told.frames);
      // a run that was resumed from an earlier step begins anew
      if (told.steps.length < this.frames.length) this.frames = [];
      fill(this.notice);
      if (isLonger) this.update();
      if (isLonger && this.frames.length < told.steps.length) this.read();
      else if (!this.model.saved) this.polling = setTimeout(this.read, POLL);
    } catch (fault) {
      if (!this.closed) fill(this.notice, troubleNote(asTrouble(fault), this.read));
    }
  };

  /** Asks for the pictures of a frame: a saved page may not have them. @param {Frame} frame */
  async look(frame) {
    frame.pictures = null;
    const answer = await this.glass.source.ask(`timelapse?step=${frame.step}`).catch(() => null);
    if (!answer || this.closed) return;
    const [{ side }, { heads }] = [answer, this.run];
    const all = bytesOf(answer.frames[0].values.patterns);
    const size = side * side * heads;
    const layers = Array.from({ length: all.length / size }, (_, layer) => ({
      thumbnails: all.slice(layer * size, (layer + 1) * size),
    }));
    frame.pictures = { side, heads, layers };
    this.update();
  }

  /** A score of a head in a frame. @param {Frame} frame @param {number} head */
  scoreOf({ values }, head, key = this.score.value) {
    const score =
      key === "repeated" ? values["induction"]?.[head] : values["scores"]?.[8 * head + this.told.scores.indexOf(key)];
    return score ?? NaN;
  }

  /** The chosen score, less that of the frame that it is compared with. @param {Frame} frame @param {number} head */
  valueOf(frame, head) {
    return this.scoreOf(frame, head) - (this.compared ? this.scoreOf(this.compared, head) : 0);
  }

  update() {
    const { now, compared, glass, frames } = this;
    const frame = frames[now];
    if (!frame) return;
    this.score.value = this.more["score"] || "induction";
    if (!isFocused(this.than)) this.than.value = this.more["than"] ?? "";
    const name =
      (MEASURES[this.score.selectedIndex]?.name ?? "") + (compared ? `, less that of step ${compared.step}` : "");
    this.slider.max = `${frames.length - 1}`;
    this.slider.value = `${now}`;
    this.slider.ariaValueText = `step ${frame.step}, loss ${short(lossOf(frame), 4)}`;
    this.drawCurve(this.track, "loss of the probe", frames.map(lossOf));
    const course = `L${glass.layer}H${glass.head}: ${name}`;
    this.drawCurve(this.course, course, frames.map((each) => this.valueOf(each, this.chosen)));
    const place = `Step ${figure(frame.step, 0)}, frame ${figure(now + 1, 0)} of ${figure(frames.length, 0)}`;
    const before = compared ? `; at step ${figure(compared.step, 0)} it was ${short(lossOf(compared), 4)}` : "";
    this.line.textContent = `${place}: loss of the probe ${short(lossOf(frame), 4)}${before}.`;
    this.drawMap(frame, name);
    if (this.table.open) this.fillTables(frame, name);
    this.fillLens(frame);
    this.fillNumbers(frame);
    clearTimeout(this.resting);
    if (this.playing < 0 && frame.pictures === undefined) this.resting = setTimeout(() => this.look(frame), CALMED);
  }

  /** @param {ReturnType<typeof curveChart>} chart @param {string} what @param {number[]} y */
  drawCurve(chart, what, y) {
    const { now } = this;
    const stepOf = (/** @type {number} */ n) => this.frames[n]?.step ?? 0;
    const last = y.length - 1;
    const ends = `from ${short(y[0], 3)} at step ${stepOf(0)} to ${short(y[last], 3)} at step ${stepOf(last)}`;
    chart.show({
      x: y.map((_, n) => n + 1), y: y.map((value) => value || 0), dot: { x: now + 1, y: y[now] || 0 }, bars: null,
      axes: ["step", what], tick: (n) => figure(stepOf(n - 1), 0),
      words: `${what}, ${ends}; ${short(y[now], 3)} at step ${stepOf(now)}`,
    });
  }

  /** The score of every head. @param {Frame} frame */
  scoresOf(frame) {
    return Array.from({ length: this.run.depth * this.run.heads }, (_, head) => this.valueOf(frame, head));
  }

  /** @param {Frame} frame @param {string} name */
  drawMap(frame, name) {
    const values = this.scoresOf(frame);
    // a score ends at 1, so that a small one is not bright; a distance has no end
    const sizes = this.score.value === "distance" ? this.frames.flatMap((each) => this.scoresOf(each)) : [1];
    this.map.show({
      identity: `${this.now} ${this.frames.length} ${name}`, rows: this.run.depth, cols: this.run.heads, values,
      hidden: values.map((value) => Number.isNaN(value)), signed: this.compared !== undefined,
      most: sizes.reduce((most, value) => Math.max(most, Math.abs(value) || 0), 1e-9),
      palette: this.glass.look().palette, what: name, axes: ["layer", "head"], rowLabel: String, colLabel: String,
    });
  }

  /** @param {Frame} frame @param {string} name */
  fillTables(frame, name) {
    const { depth, heads } = this.run;
    const scores = this.scoresOf(frame).map((value) => short(value, 4));
    const rows = indices(depth).map((layer) => [`${layer}`, ...scores.slice(layer * heads, (layer + 1) * heads)]);
    const course = `L${this.glass.layer}H${this.glass.head}: ${name}`;
    const steps = this.frames.map((each) =>
      [`${each.step}`, short(lossOf(each), 4), short(this.valueOf(each, this.chosen), 4)]);
    fill(
      this.table, make("summary", "As tables"),
      textTable(`Step ${frame.step}: ${name}`, ["layer", ...indices(heads).map((head) => `head ${head}`)], rows),
      textTable("Step by step", ["step", "loss of the probe", course], steps),
    );
  }

  /** @param {Frame} frame */
  fillLens({ values }) {
    const { depth } = this.run;
    const { tokens } = this.told;
    const token = (/** @type {string} */ text) => onOneLine(piece(text));
    const rows = tokens.map(([, text = ""], /** @type {number} */ position) => {
      const loss = values["loss"]?.[position];
      const best = indices(depth + 1).map((stage) => {
        const cell = stage * tokens.length + position;
        const isNext = values["lens_rank"]?.[cell] === 1;
        return token(this.texts[`${values["lens_top"]?.[cell]}`] ?? "") + (isNext ? " ✓" : "");
      });
      return [`${position} ${token(text)}`, loss === null ? "" : short(loss, 3), ...best];
    });
    const heads = ["token", "loss of the next", "before the layers", ...indices(depth).map((n) => `after layer ${n}`)];
    const from = this.lens.firstElementChild?.scrollTop ?? 0;
    const caption = "The lens: the likeliest next token after each layer (✓: the one that follows)";
    fill(this.lens, textTable(caption, heads, rows));
    this.lens.firstElementChild?.scrollTo(0, from);
  }

  /** @param {Frame} frame */
  fillNumbers(frame) {
    const { told, glass: { layer, head } } = this;
    const prompt = told.tokens.slice(0, told.prompt).map((/** @type {[number, string]} */ [, text]) => text).join("");
    const picture = make("canvas", { "aria-hidden": "true" });
    const norms = told.norms.map((/** @type {string} */ name, /** @type {number} */ n) =>
      [name, short(frame.values["norms"]?.[told.norms.length * layer + n], 3)]);
    fill(
      this.numbers,
      make("h2", `Step ${figure(frame.step, 0)}`),
      make("p", { class: "said" }, dim(...readable(prompt, true)), ...readable(frame.sample, true)),
      make("h2", `L${layer}H${head}`), picture,
      factList(MEASURES.map(({ key, name }) => [name, short(this.scoreOf(frame, this.chosen, key), 3)])),
      make("h2", `Layer ${layer}, mean length of a vector`), factList(norms),
    );
    const sheet = frame.pictures && this.sheetOf(frame.pictures, null, layer, this.glass.look());
    sizeCanvas(picture, 192, sheet ? 192 : 0);
    const context = sheet && emptyCanvas(picture);
    if (context) drawHead(context, sheet, frame.pictures.side, head, { x: 0, y: 0, size: 192 });
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
    clearTimeout(this.polling);
    clearTimeout(this.resting);
    [this.map, this.track, this.course].forEach((part) => part.close());
  }
}

/** @param {Frame} frame */
const lossOf = (frame) => mean(frame.values["loss"] ?? []);

/** From 0. @param {number} count */
const indices = (count) => Array.from({ length: count }, (_, n) => n);
