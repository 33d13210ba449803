// A time-lapse of training: heads, the lens, the loss and a sample of the probe text, frame by frame, also while the run trains on.
import { troubleNote } from "./answer.js";
import { curveChart } from "./curve.js";
import { button, emptyCanvas, figure, make, say, short, sizeCanvas } from "./dom.js";
import { SCORES, drawHead, headSheets } from "./heads.js";
import { numberMap } from "./number-map.js";
import { factList } from "./numbers.js";
import { bytesOf, onOneLine } from "./runs.js";
import { asTrouble } from "./source.js";
import { piece, readable } from "./text.js";
import { textTable } from "./view-walks.js";

/** @typedef {import("./glass.js").Glass} Glass */

/**
 * A frame: what docs/inside.md says of `timelapse`.
 * @typedef {{step: number, tokens: number, sample: string, values: Record<string, (number | null)[]>, pictures?: any}} Frame
 */

/** @type {import("./glass.js").View} */
export const viewOfTimelapse = {
  id: "timelapse", title: "Time-lapse", about: "What changed inside while the model learned?", open: timelapseView,
  missing: (model) => (model.timelapse ? null : "This model has no time-lapse: limpid train --probe records one while a model learns."),
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

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function timelapseView(glass) {
  const more = () => glass.state().more;
  /** @param {Record<string, string>} words */
  const set = (words) => glass.go({ more: { ...more(), ...words } });
  /** @type {Frame[]} */
  let frames = [];
  /** What every answer tells. @type {any} */
  let told = null;
  /** @type {Record<string, string>} */
  const texts = {};
  const sheetOf = headSheets();
  let [playing, clock, polling, resting, closed] = [-1, 0, 0, 0, false];

  const words = [...SCORES, { key: "repeated", name: "induction on repeats" }];
  const score = make("select", {}, ...words.map(({ key, name }) => make("option", { value: key }, name)));
  const than = make("input", { type: "number", min: "0", placeholder: "none" });
  const slider = make("input", { type: "range", min: "0", "aria-label": "Frame" });
  const player = button("Play", () => play(playing < 0));
  const [track, course] = [curveChart(130), curveChart(170)];
  track.element.classList.add("track");
  track.element.append(slider);
  const notice = make("div", {});
  const line = make("p", { class: "cell-line" });
  const [lens, numbers] = [make("div", {}), make("div", { class: "stack" })];
  const table = make("details", {}, make("summary", {}, "As tables"));
  const chosen = () => [Math.min(glass.state().l ?? 0, glass.run().depth - 1), Math.min(glass.state().h ?? 0, glass.run().heads - 1)];
  const map = numberMap(glass.dark, {
    label: "Heads", at: () => /** @type {[number, number]} */ (chosen()),
    choose: (l, h) => glass.go({ l, h }),
    words: (l, h, value) => `layer ${l}, head ${h}: ${value}`,
  });
  const element = make("div", { class: "timelapse stack" }, notice, make("div", { class: "tools" }, player, make("label", {}, "Heads by ", score), make("label", {}, "Compare with step ", than)), track.element, line, map.element, course.element, table, lens);
  score.addEventListener("change", () => set({ score: score.value }));
  than.addEventListener("change", () => set({ than: than.value }));
  slider.addEventListener("input", () => {
    play(false);
    choose(Number(slider.value));
  });
  table.addEventListener("toggle", show);

  /** The frame at a step, or the last before it; -1: none. @param {string | undefined} step */
  const at = (step) => (step ? frames.findLastIndex((frame) => frame.step <= Number(step)) : -1);
  function now() {
    const n = at(more()["frame"]);
    return playing >= 0 ? playing : n < 0 ? frames.length - 1 : n;
  }
  /** The last frame is not named: the page goes on to those that come. @param {number} n */
  const choose = (n) => set({ frame: n === frames.length - 1 ? "" : `${frames[n]?.step}` });

  /** @param {boolean} on */
  function play(on) {
    clearInterval(clock);
    const n = playing;
    playing = on ? now() % (frames.length - 1 || 1) : -1;
    player.textContent = on ? "Pause" : "Play";
    if (on) {
      clock = setInterval(() => {
        if (playing >= frames.length - 1) return play(false);
        playing++;
        show();
      }, PLAY);
    } else if (n >= 0) {
      choose(n);
      say(slider.getAttribute("aria-valuetext") ?? "");
    }
  }

  /** Asks for the frames that are not here. */
  async function read() {
    try {
      const answer = await glass.source.ask(`timelapse?from=${frames.length}&count=200`);
      if (closed) return;
      told = answer;
      Object.assign(texts, told.texts);
      const grown = told.from === frames.length && told.frames.length > 0;
      if (grown) frames.push(...told.frames);
      // a run that was resumed from an earlier step begins anew
      if (told.steps.length < frames.length) frames = [];
      notice.replaceChildren();
      if (grown) show();
      if (grown && frames.length < told.steps.length) read();
      else if (!glass.model.saved) polling = setTimeout(read, POLL);
    } catch (fault) {
      if (!closed) notice.replaceChildren(troubleNote(asTrouble(fault), read));
    }
  }

  /** Asks for the pictures of a frame: a saved page may not have them. @param {Frame} frame */
  async function look(frame) {
    frame.pictures = null;
    const answer = await glass.source.ask(`timelapse?step=${frame.step}`).catch(() => null);
    if (!answer || closed) return;
    const [{ side }, { heads }] = [answer, glass.run()];
    const all = bytesOf(answer.frames[0].values.patterns);
    const size = side * side * heads;
    frame.pictures = { side, heads, layers: Array.from({ length: all.length / size }, (_, l) => ({ thumbnails: all.slice(l * size, (l + 1) * size) })) };
    show();
  }

  function show() {
    const frame = frames[now()];
    if (!frame) return;
    const [n, last, { depth, heads }, [l = 0, h = 0]] = [now(), frames.length - 1, glass.run(), chosen()];
    score.value = more()["score"] || "induction";
    if (document.activeElement !== than) than.value = more()["than"] ?? "";
    const other = frames[at(more()["than"])];
    const own = (/** @type {Frame} */ of, /** @type {number} */ head, key = score.value) => (key === "repeated" ? of.values["induction"]?.[head] : of.values["scores"]?.[8 * head + told.scores.indexOf(key)]) ?? NaN;
    const value = (/** @type {Frame} */ of, /** @type {number} */ head) => own(of, head) - (other ? own(other, head) : 0);
    const every = Array.from({ length: depth * heads }, (_, head) => head);
    const name = (words[score.selectedIndex]?.name ?? "") + (other ? `, less that of step ${other.step}` : "");
    const loss = (/** @type {Frame} */ of) => mean(of.values["loss"] ?? []);
    const place = every.map((head) => value(frame, head));
    // a score ends at 1, so that a small one is not bright; a distance has no end
    const most = score.value !== "distance" ? 1 : frames.reduce((all, of) => every.reduce((top, head) => Math.max(top, Math.abs(value(of, head)) || 0), all), 1e-9);

    slider.max = `${last}`;
    slider.value = `${n}`;
    slider.setAttribute("aria-valuetext", `step ${frame.step}, loss ${short(loss(frame), 4)}`);
    const curve = (/** @type {ReturnType<typeof curveChart>} */ chart, /** @type {string} */ what, /** @type {number[]} */ y) => chart.show({
      x: y.map((_, i) => i + 1), y: y.map((one) => one || 0), dot: { x: n + 1, y: y[n] || 0 }, bars: null, axes: ["step", what], tick: (i) => figure(frames[i - 1]?.step ?? 0, 0),
      words: `${what}, from ${short(y[0], 3)} at step ${frames[0]?.step} to ${short(y[last], 3)} at step ${frames[last]?.step}; ${short(y[n], 3)} at step ${frame.step}`,
    });
    curve(track, "loss of the probe", frames.map(loss));
    curve(course, `layer ${l}, head ${h}: ${name}`, frames.map((of) => value(of, l * heads + h)));
    line.textContent = `Step ${figure(frame.step, 0)}, frame ${figure(n + 1, 0)} of ${figure(last + 1, 0)}: loss of the probe ${short(loss(frame), 4)}${other ? `; at step ${figure(other.step, 0)} it was ${short(loss(other), 4)}` : ""}.`;
    map.show({
      identity: `${n} ${last} ${name}`, rows: depth, cols: heads, values: place, hidden: place.map((one) => Number.isNaN(one)), signed: other !== undefined, most, palette: glass.look().palette,
      what: name, axes: ["layer", "head"], rowLabel: String, colLabel: String,
    });
    if (table.open) {
      table.replaceChildren(
        make("summary", {}, "As tables"),
        textTable(`Step ${frame.step}: ${name}`, ["layer", ...every.slice(0, heads).map((head) => `head ${head}`)], every.slice(0, depth).map((row) => [`${row}`, ...place.slice(row * heads, (row + 1) * heads).map((one) => short(one, 4))])),
        textTable("Step by step", ["step", "loss of the probe", `layer ${l}, head ${h}: ${name}`], frames.map((of) => [`${of.step}`, short(loss(of), 4), short(value(of, l * heads + h), 4)])),
      );
    }
    const token = (/** @type {string} */ text) => onOneLine(piece(text));
    const length = told.tokens.length;
    const from = lens.firstElementChild?.scrollTop ?? 0;
    lens.replaceChildren(textTable(
      "The lens: the likeliest next token after each layer (✓: the one that follows)", ["token", "loss of the next", "before the layers", ...every.slice(0, depth).map((row) => `after layer ${row}`)],
      told.tokens.map(([, text = ""], /** @type {number} */ p) => [`${p} ${token(text)}`, frame.values["loss"]?.[p] === null ? "" : short(frame.values["loss"]?.[p], 3), ...Array.from({ length: depth + 1 }, (_, stage) => {
        const cell = stage * length + p;
        return token(texts[`${frame.values["lens_top"]?.[cell]}`] ?? "") + (frame.values["lens_rank"]?.[cell] === 1 ? " ✓" : "");
      })]),
    ));
    lens.firstElementChild?.scrollTo(0, from);
    const prompt = told.tokens.slice(0, told.prompt).map((/** @type {[number, string]} */ [, text]) => text).join("");
    const picture = make("canvas", { "aria-hidden": "true" });
    numbers.replaceChildren(
      make("h2", {}, `Step ${figure(frame.step, 0)}`),
      make("p", { class: "said" }, make("span", { class: "dim" }, ...readable(prompt, true)), ...readable(frame.sample, true)),
      make("h2", {}, `Layer ${l}, head ${h}`), picture,
      factList(words.map((one) => [one.name, short(own(frame, l * heads + h, one.key), 3)])),
      make("h2", {}, `Layer ${l}, mean length of a vector`),
      factList(told.norms.map((/** @type {string} */ name, /** @type {number} */ i) => [name, short(frame.values["norms"]?.[told.norms.length * l + i], 3)])),
    );
    const sheet = frame.pictures && sheetOf(frame.pictures, null, l, glass.look());
    sizeCanvas(picture, 192, sheet ? 192 : 0);
    const context = sheet && emptyCanvas(picture);
    if (context) drawHead(context, sheet, frame.pictures.side, h, { x: 0, y: 0, size: 192 });
    clearTimeout(resting);
    if (playing < 0 && frame.pictures === undefined) resting = setTimeout(() => look(frame), CALMED);
  }
  read();

  return {
    element,
    numbers,
    update: show,
    close() {
      closed = true;
      clearInterval(clock);
      clearTimeout(polling);
      clearTimeout(resting);
      [map, track, course].forEach((one) => one.close());
    },
  };
}
