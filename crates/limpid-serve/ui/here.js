// A page without a model: it trains one, or opens one, and then shows its inside. All of that happens in this page.
import { App } from "./app.js";
import { byId, button, div, figure, fill, make, on, onSubmit, plural, remark, say } from "./dom.js";
import { chosenFiles, droppedFiles, giveFile, modelOf, pageWith, zipOf } from "./here-files.js";
import { HereRun, doJob } from "./here-run.js";
import { forgetRun, keptRun } from "./here-store.js";

/** @typedef {import("./live-worker.js").ToOpen} ToOpen */
/**
 * @typedef {object} HereTools
 * @property {Uint8Array} module
 * @property {Uint8Array} script of a worker
 * @property {() => Worker} work makes a worker
 * @property {(load: () => Promise<ToOpen>) => any} open makes a model of a worker
 */

/** The presets that suit a page, with what they are. */
const PRESETS = [
  ["nano", "nano: byte pairs, 2 layers, 0.5 million parameters"],
  ["nano-llama", "nano-llama: the same, built as Llama is"],
  ["nanogpt-cpu", "nanogpt-cpu: characters, 4 layers, 0.8 million parameters"],
  ["baby", "baby: characters, 6 layers, 10.7 million parameters; takes hours"],
];
/** Milliseconds after the last change of the form until its training is estimated. */
const SETTLED = 500;

/** Seconds in words. @param {number} seconds */
function lasting(seconds) {
  if (seconds < 90) return plural(Math.max(1, Math.round(seconds)), "second");
  return seconds < 5400 ? plural(Math.round(seconds / 60), "minute") : `${figure(seconds / 3600, 1)} hours`;
}

/** A labelled control. @param {string} text @param {HTMLElement} control @param {string} id */
function fieldWith(text, control, id) {
  control.id = id;
  return div("field", make("label", { for: id }, text), control);
}

/** A whole number, or nothing. @param {string} id @param {string} usual */
const numberField = (id, usual) => make("input", {
  id, inputmode: "numeric", pattern: "\\d{1,15}", placeholder: usual, autocomplete: "off", title: "a whole number",
});

/** The page before there is a model, and the bar over it afterwards. */
export class HerePage {
  preset = make("select");
  steps = numberField("here-steps", "the preset’s");
  seed = numberField("here-seed", "1337");
  text = make("textarea", { rows: "4", dir: "auto", placeholder: "The built-in stories, if this stays empty" });
  textFile = make("input", { type: "file", accept: ".txt,.md,.json,.jsonl,text/*" });
  isKept = make("input", { type: "checkbox", id: "here-keep" });
  estimate = make("p", { class: "note", role: "status", id: "here-estimate" });
  start = make("button", { type: "submit", id: "here-start" }, "Train here");
  notice = make("div", { id: "here-notice", role: "alert" });
  keptNote = div("here-kept");
  files = make("input", { type: "file", multiple: "" });
  folder = make("input", { type: "file", webkitdirectory: "" });
  bar = div("here-bar actions");
  status = make("span", { class: "note", id: "here-status", role: "status" });
  stop = button("Stop", () => this.run?.stop(), { id: "here-stop" });
  goOn = button("Go on", () => this.train(), { id: "here-go-on" });
  keepBox = make("input", { type: "checkbox" });
  /** The text that is trained on, if it is a file. @type {File | null} */
  own = null;
  clock = 0;
  /** Ends what the page waits for. */
  waiting = new AbortController();
  /** @type {HereRun | null} */
  run = null;
  /** @type {{name: string, files: [string, Uint8Array][]} | null} */
  opened = null;
  /** @type {any} */
  model = null;
  /** @type {App | null} */
  app = null;

  /** @param {HereTools} tools */
  constructor(tools) {
    this.tools = tools;
    const saved = byId("saved", HTMLScriptElement);
    // the page as it came, for a page with the model
    saved.textContent = "";
    this.html = `<!doctype html>\n<html lang="en">${document.documentElement.getHTML()}</html>\n`;
    this.element = make("main", { id: "here" });
    byId("notice", HTMLElement).before(this.element);
    byId("model", HTMLElement).textContent = "in this page, offline";
    this.show();
    this.followDrops();
    on(window, "pagehide", () => this.run?.isKept && this.run.keep());
    on(document, "visibilitychange", () => document.hidden && this.run?.isKept && this.run.keep());
  }

  /** Shows the form, filled in as the address says. */
  show() {
    const words = new URLSearchParams(location.hash.slice(1));
    this.preset.append(...PRESETS.map(([value = "", text = ""]) => make("option", { value }, text)));
    const asked = words.get("preset");
    if (asked && PRESETS.some(([name]) => name === asked)) this.preset.value = asked;
    [this.steps.value, this.seed.value] = [words.get("steps") ?? "", words.get("seed") ?? ""];
    const form = make("form", { id: "here-form" },
      make("h2", "Train a GPT in this page"),
      remark("It is trained by this computer, in this tab, and nothing leaves it: the page has no connection to " +
        "anything. The weights have the same bits as those of the command limpid train."),
      fieldWith("Model", this.preset, "here-preset"),
      div("here-pair", fieldWith("Steps", this.steps, "here-steps"), fieldWith("Seed", this.seed, "here-seed")),
      fieldWith("Text to learn: paste it, drop a file, or choose one", this.text, "here-text"),
      fieldWith("A file with the text", this.textFile, "here-file"),
      make("label", this.isKept, "Keep the run in this browser, so that it goes on after a reload"),
      this.estimate, div("actions", this.start, button("Copy a link to these settings", () => this.copyLink(), {
        class: "quiet", hidden: navigator.clipboard ? null : "",
      })),
    );
    const open = div("stack",
      make("h2", "Open a model"),
      remark("A folder of limpid’s or HuggingFace’s, or a GGUF file: drop it anywhere, or choose it."),
      fieldWith("Files", this.files, "here-files"), fieldWith("A folder", this.folder, "here-folder"));
    fill(this.element, this.keptNote, this.notice, div("here-columns", form, open));
    on(form, "input", () => this.changed());
    on(this.textFile, "change", () => this.takeText(this.textFile.files?.[0] ?? null));
    for (const field of [this.files, this.folder]) on(field, "change", () => this.open(chosenFiles(field.files)));
    onSubmit(form, () => this.begin());
    this.changed();
    this.showKept();
  }

  /** @param {unknown} fault */
  tell(fault) {
    const words = fault instanceof Error ? fault.message : `${fault}`;
    fill(this.notice, make("p", { class: "trouble", dir: "auto" }, words));
  }

  /** What is asked for, by the names of the command's flags. @returns {Record<string, string>} */
  get settings() {
    const settings = { preset: this.preset.value, steps: this.steps.value.trim(), seed: this.seed.value.trim() };
    const given = Object.entries({ ...settings, data: this.textName }).filter(([, value]) => value !== "");
    return { ...Object.fromEntries(given), probe: "true" };
  }

  /** The file of the text in the page; empty for the built-in stories. */
  get textName() {
    if (this.own) return this.own.name.replace(/[^\w.-]+/g, "_").replace(/^[.-]+/, "");
    return this.text.value.trim() === "" ? "" : "text.txt";
  }

  /** The text, if it is not the built-in one. @returns {Promise<[string, Uint8Array][]>} */
  async textFiles() {
    const { own, text, textName } = this;
    if (textName === "") return [];
    const bytes = own ? new Uint8Array(await own.arrayBuffer()) : new TextEncoder().encode(text.value);
    return [[textName, bytes]];
  }

  /** @param {File | null} file */
  takeText(file) {
    this.own = file;
    this.text.disabled = file !== null;
    this.text.placeholder = file ? file.name : "The built-in stories, if this stays empty";
    this.changed();
  }

  /** Says, when the form has settled, what its training would take. */
  changed() {
    clearTimeout(this.clock);
    this.waiting.abort();
    const words = new URLSearchParams(Object.entries(this.settings).filter(([name]) => name !== "probe"));
    words.delete("data");
    history.replaceState(null, "", `#${words}`);
    this.estimate.textContent = "Trying a few steps …";
    this.clock = setTimeout(() => this.guess(), SETTLED);
  }

  async guess() {
    const waiting = new AbortController();
    this.waiting = waiting;
    const { settings, tools: { module, work } } = this;
    try {
      const asked = { module, files: await this.textFiles(), job: /** @type {const} */ ("plan"), input: {
        ...settings, threads: "1", out: settings["preset"] } };
      const { value, memory = 0 } = await doJob(work, asked, () => {}, waiting.signal);
      const { parameters, steps, tokens, floor, seconds } = value;
      // the run's files lie in the page too, and one more copy of them while they are kept
      const bytes = memory + 40 * parameters;
      const least = floor === null ? "" :
        ` No model can get below a loss of ${figure(floor, 4)} on this text.`;
      this.estimate.textContent = `${plural(parameters, "parameter")}, ${plural(steps, "step")}, ` +
        `${plural(tokens, "token")} of text: about ${lasting(seconds)} on this computer, and ` +
        `${figure(Math.ceil(bytes / 1e6), 0)} MB of memory.${least}`;
      this.estimate.dataset["seconds"] = `${seconds}`;
    } catch (fault) {
      if (waiting.signal.aborted) return;
      this.estimate.textContent = `This cannot be trained: ${fault instanceof Error ? fault.message : fault}`;
    }
  }

  async copyLink() {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
  }

  /** Offers to go on with the run that this browser keeps. */
  async showKept() {
    const kept = await keptRun();
    if (!kept || this.run) return;
    const { name, settings, place, files } = kept;
    const go = async (/** @type {boolean} */ goesOn) => {
      const run = new HereRun(this.tools.work, this.tools.module, name, settings, files);
      this.take(run);
      run.place = place;
      await run.setKept(true);
      this.look();
      if (goesOn) this.train();
    };
    const forget = async () => {
      await forgetRun().catch((fault) => this.tell(fault));
      fill(this.keptNote);
    };
    const isOver = Boolean(place.summary);
    fill(this.keptNote, make("p", `This browser keeps a run of ${name}: step ${figure(place.step, 0)} of ` +
      `${figure(place.steps, 0)}.`), div("actions",
      isOver ? "" : button("Go on", () => go(true), { id: "here-resume" }),
      button("Look inside", () => go(false), { id: "here-look" }),
      button("Forget it", forget, { class: "quiet" })));
  }

  /** @param {HereRun} run */
  take(run) {
    this.run = run;
    run.told = () => this.showBar();
  }

  /** Begins the training that the form asks for. */
  async begin() {
    this.waiting.abort();
    clearTimeout(this.clock);
    const { settings, tools: { work, module } } = this;
    const name = settings["preset"] ?? "nano";
    const run = new HereRun(work, module, name, settings, new Map(await this.textFiles()));
    this.take(run);
    this.start.disabled = true;
    this.estimate.textContent = "The training begins …";
    await run.setKept(this.isKept.checked);
    await this.train();
  }

  /** Trains on, and shows what comes of it. */
  async train() {
    const { run } = this;
    if (!run) return;
    const done = run.train((changed) => {
      if (!this.model && run.files.has(`${run.name}/model.safetensors`)) this.look();
      else this.follow(changed);
      this.showBar();
    });
    this.showBar();
    await done;
    // what is shown is of an earlier checkpoint
    this.app?.load();
    this.app?.glass.again();
    if (this.model) return;
    this.start.disabled = false;
    this.estimate.textContent = "";
    this.tell(run.fault);
  }

  /** What is known of the training, for the model's own protocol; nothing if it does not run. */
  get training() {
    const { run } = this;
    return run?.running && run.place ? { training: { steps: run.place.steps, floor: run.place.floor } } : {};
  }

  /** Gives the model's worker what has changed. @param {[string, Uint8Array][]} changed */
  follow(changed) {
    const { run, model } = this;
    if (!run || !model) return;
    const shown = new Set(run.shown.map(([path]) => path));
    model.follow({ files: changed.filter(([path]) => shown.has(path)), name: run.name, ...this.training });
  }

  /** Shows the model of the run. */
  look() {
    const { run, tools: { module } } = this;
    if (!run) return;
    this.begun(async () => ({ module, files: run.shown, name: run.name, ...this.training }), "v=training");
  }

  /** @param {() => Promise<ToOpen>} load @param {string} start the address to begin at */
  begun(load, start) {
    this.waiting.abort();
    clearTimeout(this.clock);
    this.model = this.tools.open(load);
    history.replaceState(null, "", `#${start}`);
    this.element.replaceWith(
      make("section", { id: "here", class: "begun", "aria-label": "This model" }, this.bar, this.notice));
    this.app = new App(this.ask);
    this.showBar();
  }

  /** @type {import("./source.js").Ask} */
  ask = async (path, body, signal = null) => {
    if (path !== "/inspect/v1/training" || body === null) return this.model.ask(path, body, signal);
    this.run?.stop();
    return new Response("{}");
  };

  /** Opens a model of files. @param {import("./here-files.js").PickedFile[]} picked */
  async open(picked) {
    if (picked.length === 0 || this.model || this.run) return;
    try {
      const opened = await modelOf(picked);
      const { module } = this.tools;
      const model = this.tools.open(async () => ({ module, ...opened }));
      const cancel = button("Cancel", () => model.end(), { id: "here-cancel" });
      fill(this.notice, div("actions", make("p", `Opening ${opened.name} …`), cancel));
      model.start();
      await model.opened.promise;
      model.end();
      this.opened = opened;
      fill(this.notice);
      this.begun(async () => ({ module, ...opened }), "v=map&tour=1");
    } catch (fault) {
      this.tell(fault);
    }
  }

  /** Takes what is dropped anywhere: a text into the form, else a model. */
  followDrops() {
    on(document, "dragover", (event) => event.preventDefault());
    on(document, "drop", async (event) => {
      event.preventDefault();
      if (!event.dataTransfer || this.model || this.run) return;
      const picked = await droppedFiles(event.dataTransfer).catch((fault) => this.tell(fault));
      const [first] = picked ?? [];
      const isText = picked?.length === 1 && first && /\.(txt|md|jsonl)$/.test(first.path);
      if (isText) this.takeText(first.file);
      else if (picked) this.open(picked);
    });
  }

  /** The bar over a model: how far it is, and what can be done with it. */
  showBar() {
    const { run } = this;
    const parts = [button("Page with the model", () => this.give(() => this.givePage()), { id: "here-page" }),
      button("GGUF", () => this.give(() => this.giveGguf()), { id: "here-gguf" })];
    if (run) {
      const { place, running, fault, note, unkept, isKept, keptAt } = run;
      this.status.textContent = [
        place && `step ${figure(place.step, 0)} of ${figure(place.steps, 0)}`,
        running ? running.signal.aborted ? "stopping" : "training" : run.isOver ? "trained" : "stopped",
        place?.summary?.val_loss && `validation loss ${figure(place.summary.val_loss, 4)}`,
        note, isKept && !unkept && keptAt > 0 && "kept in this browser", unkept && `not kept: ${unkept}`, fault,
      ].filter((part) => part).join(" · ");
      this.stop.hidden = !running;
      this.goOn.hidden = Boolean(running) || run.isOver;
      parts.unshift(button("Folder (safetensors)", () => this.giveFolder(), { id: "here-folder-zip" }));
      parts.push(button("Settings", () => this.giveSettings(), { id: "here-toml" }));
    } else {
      this.status.textContent = this.opened?.name ?? "";
    }
    if (this.bar.childElementCount > 0) return;
    parts.forEach((part) => part.classList.add("quiet"));
    this.keepBox.checked = run?.isKept ?? false;
    on(this.keepBox, "change", async () => {
      await run?.setKept(this.keepBox.checked);
      this.showBar();
    });
    const keep = run ? [make("label", this.keepBox, "Keep it in this browser")] : [];
    this.bar.append(this.status, ...(run ? [this.stop, this.goOn] : []), make("span", { class: "note" }, "Download:"),
      ...parts, ...keep, button("Another model", () => this.leave(), { class: "quiet" }));
  }

  leave() {
    history.replaceState(null, "", location.pathname + location.search);
    location.reload();
  }

  /** The model's name and its files. */
  get held() {
    const { run, opened } = this;
    return run ? { name: run.name, files: run.shown } : opened ?? { name: "", files: [] };
  }

  /** @param {() => Promise<void>} make */
  async give(make) {
    try {
      fill(this.notice);
      await make();
    } catch (fault) {
      this.tell(fault);
    }
  }

  giveFolder() {
    if (this.run) giveFile(`${this.run.name}.zip`, zipOf(this.run.folder));
  }

  giveSettings() {
    const [, bytes] = this.run?.folder.find(([path]) => path.endsWith("/limpid.toml")) ?? [];
    if (bytes) giveFile("limpid.toml", new Blob([/** @type {any} */ (bytes)]));
  }

  async giveGguf() {
    const { held: { name, files }, tools: { work, module } } = this;
    const stem = name.replace(/\.gguf$/, "");
    const file = "converted.gguf";
    const said = await doJob(work, { module, files, job: "convert", input: [name, file] });
    const [, bytes] = said.files?.find(([path]) => path === file) ?? [];
    if (bytes) giveFile(`${stem}.gguf`, new Blob([/** @type {any} */ (bytes)]));
  }

  async givePage() {
    const { held: { name, files }, tools: { script, module }, html } = this;
    const about = new TextEncoder().encode(JSON.stringify({ name, start: "v=map&tour=1" }));
    const inside = files.map(([path, bytes]) => /** @type {[string, Uint8Array]} */ ([`file ${path}`, bytes]));
    const page = await pageWith(html, [["live", about], ["worker", script], ["module", module], ...inside]);
    giveFile(`${name.replace(/\.gguf$/, "")}.html`, page);
  }
}
