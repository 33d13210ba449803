// What is looked at: one prompt, run once, at the place that the address says. Views (view.js) read it here, and change
// it by `go`, which changes it for all of them.
import { hashOf, stateIn, writeHash } from "./address.js";
import { SEQUENTIAL, SPREADS } from "./colours.js";
import { div, figure, make, on, say } from "./dom.js";
import { LiveRun } from "./glass-runs.js";
import { tileCache } from "./tiles.js";
import { VIEWS } from "./views.js";

/** @typedef {import("./address.js").State} State */
/** @typedef {import("./runs.js").Run} Run */
/** @typedef {import("./source.js").Trouble} Trouble */

/** Tokens of a long text. */
const LONG = 200;

/** Memory for tiles. */
const TILES = 64 * 2 ** 20;

/** Milliseconds after which the server may be asked again whether the model is still the same. */
const STALE = 10_000;

/** Milliseconds between changes of the address: browsers bear only so many. */
const WRITTEN_EVERY = 120;

export class Glass {
  /** What `GET model` says. @type {any} */
  model = null;
  state = stateIn(location.hash);
  /** Whether the page shows it. */
  visible = false;
  /** @type {Trouble | null} */
  trouble = null;
  /** How the model has changed since the prompt was run. */
  outdated = "";
  /** When the model was last asked for. */
  modelAsked = 0;
  /**
   * The address that was last read or written: any other was just gone to, and `show` of the page is about to be told.
   */
  address = location.hash;
  writing = 0;
  darkness = matchMedia("(prefers-color-scheme: dark)");
  /** By trace. @type {Map<string, Promise<any>>} */
  listings = new Map();

  /**
   * @param {import("./glass-source.js").GlassSource} source
   * @param {object} page
   * @param {() => void} page.changed
   * @param {() => void} page.moved
   * @param {(trouble: Trouble) => void} page.refused
   * @param {(run: Run) => string} page.reading
   */
  constructor(source, page) {
    this.source = source;
    this.page = page;
    const told = {
      changed: page.changed,
      ended: (/** @type {Run} */ run) => {
        if (run.trouble) this.refuse(run.trouble);
        else if (run === this.run) say(page.reading(run));
      },
      outdated: () => this.tellOutdated(""),
    };
    this.second = new LiveRun(source, "The other prompt", told);
    /** The same prompt without what changes the run. */
    this.plain = new LiveRun(source, "The prompt without the change", { ...told, ended: () => {} });
    this.first = new LiveRun(source, "The prompt", told, this.second);
  }

  /** The run; there is one while a view is open. */
  get run() {
    return /** @type {Run} */ (this.first.run);
  }

  /** The run that this one is compared with. */
  get other() {
    return this.second.run;
  }

  /** The chosen token. */
  get q() {
    return Math.min(this.state.q ?? Infinity, this.last);
  }

  /** The compared token. */
  get k() {
    return Math.min(this.state.k ?? 0, this.last);
  }

  /** The last token. */
  get last() {
    return Math.max(0, (this.run?.tokens.length ?? 1) - 1);
  }

  get layer() {
    return Math.min(this.state.l ?? 0, this.run.depth - 1);
  }

  get head() {
    return Math.min(this.state.h ?? 0, this.run.heads - 1);
  }

  /** Which runs a picture or an answer is of, where the second is only asked once it is done. */
  get runs() {
    return `${this.run.id} ${this.other?.done ? this.other.id : ""}`;
  }

  /** A token, on one line. @param {number} position */
  label = (position) => this.run?.tokens[position]?.text ?? `${position}`;

  /**
   * @param {Partial<State>} changes @param {"new" | "same"} how `new`: the back button comes back to what was before
   */
  go(changes, how = "same") {
    const before = hashOf(this.state);
    this.state = { ...this.state, ...changes };
    const hash = hashOf(this.state);
    if (hash === before) return this.page.changed();
    clearTimeout(this.writing);
    if (how === "new") {
      // what was not written yet is where the back button leads
      this.write("replaceState", before);
      this.write("pushState", hash);
    } else {
      this.writing = setTimeout(() => this.visible && this.write("replaceState", hashOf(this.state)), WRITTEN_EVERY);
    }
    this.page.moved();
  }

  /**
   * Writes the address, unless it is one that was just gone to.
   * @param {"replaceState" | "pushState"} how @param {string} hash
   */
  write(how, hash) {
    if (location.hash !== this.address) return;
    writeHash(how, hash);
    this.address = location.hash;
  }

  /** Takes what the address says. */
  read() {
    clearTimeout(this.writing);
    this.state = stateIn(this.address);
  }

  /** An address for a link. @param {Partial<State>} changes */
  link(changes) {
    return `#${hashOf({ ...this.state, ...changes })}`;
  }

  /** Goes to a layer or a head near the chosen one. @param {"l" | "h"} which @param {number} by */
  turn(which, by) {
    const [now, count] = which === "l" ? [this.layer, this.run.depth] : [this.head, this.run.heads];
    this.go({ [which]: (now + by + count) % count });
  }

  /** Whether there is a view of this name. @param {string} id */
  has(id) {
    return VIEWS.some((view) => view.id === id);
  }

  /** Whether there is something to see there: a saved page holds some of it. @param {Partial<State>} changes */
  holds(changes) {
    const state = { ...this.state, ...changes };
    const view = VIEWS.find(({ id }) => id === state.v);
    const { holds } = this.source;
    if (!view || !holds || !this.run?.done) return true;
    return (view.missing?.(this.model) ?? null) === null && (view.needs?.(state, this) ?? []).every(holds);
  }

  /** Asks about this trace: `tensors`, `lens?positions=0:9`. @param {string} rest @returns {Promise<any>} */
  ask(rest) {
    return this.first.use((id) => this.source.ask(`traces/${id}/${rest}`));
  }

  /** Asks about the other trace; null where it has no answer. @param {string} rest @returns {Promise<any>} */
  askOther(rest) {
    return this.second.use((id) => this.source.ask(`traces/${id}/${rest}`)).catch(() => null);
  }

  /** Asks about both traces; null for one that there is not. @param {string} rest @returns {Promise<[any, any]>} */
  askBoth(rest) {
    return Promise.all([this.ask(rest), this.other?.done ? this.askOther(rest) : null]);
  }

  /**
   * A part of a tensor; where there is another run, less the same part of that one.
   * @param {string} name @param {string} place
   */
  tensor(name, place) {
    const words = [place && `at=${place}`, this.other?.id && `other=${this.other.id}`].filter((word) => word);
    return this.ask(`tensors/${encodeURIComponent(name)}?${words.join("&")}`);
  }

  /** Every tensor of this trace. @returns {Promise<{tensors: any[], params: any[]}>} */
  listing = () => {
    const id = this.run?.id ?? "";
    let listing = this.listings.get(id);
    if (!listing) {
      listing = this.ask("tensors");
      this.listings.set(id, listing);
      listing.catch(() => this.listings.delete(id));
    }
    return listing;
  };

  /** Saves a file of this trace. @param {string} rest @param {string} file */
  async save(rest, file) {
    const url = URL.createObjectURL(await this.first.use((id) => this.source.file(`traces/${id}/${rest}`)));
    make("a", { href: url, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  /** Asks whether the model is still the one that was run (`limpid serve --follow`). */
  watchModel = async () => {
    if (!this.model || !this.visible || Date.now() - this.modelAsked < STALE) return;
    this.modelAsked = Date.now();
    const now = await this.source.ask("model").catch(() => null);
    if (!now || !this.model || now.fingerprint === this.model.fingerprint) return;
    const { step } = this.model;
    this.tellOutdated(
      now.step !== null && step !== null ? `: step ${figure(step, 0)} became ${figure(now.step, 0)}` : "",
    );
  };

  /** @param {string} how */
  tellOutdated(how) {
    this.outdated = `The model has changed since this prompt was run${how}.`;
    this.page.changed();
  }

  /** @param {Trouble} trouble */
  refuse(trouble) {
    this.trouble = trouble;
    this.page.refused(trouble);
  }

  /** Forgets everything that the server said. */
  reset() {
    [this.first.asked, this.second.asked, this.outdated, this.model] = ["", "", "", null];
    this.listings.clear();
  }

  dark = () => {
    const theme = document.documentElement.dataset["theme"];
    return theme ? theme === "dark" : this.darkness.matches;
  };

  /** What pictures of this trace's tensors ask the page. @type {import("./heat.js").HeatHost} */
  heat = {
    cache: tileCache(TILES),
    dark: this.dark,
    identity: ({ name, index, code, pool }) =>
      `${this.run?.id} ${this.other?.id ?? ""} ${name} ${index} ${code} ${pool}`,
    tiles: (_picture, wanted, onTile, signal) => {
      const { other } = this;
      const tiles = other?.id ? wanted.map((tile) => ({ ...tile, other: other.id })) : wanted;
      return this.first.use((id) => this.source.tiles(id, tiles, onTile, signal));
    },
    exact: async ({ name, index }, rows, cols) =>
      (await this.tensor(name, [...index, rows.join(":"), cols.join(":")].join())).values,
  };

  /** How weights are coloured: the longer a text, the smaller most of them are. */
  look() {
    const spread = this.run?.tokens.length > LONG ? "log" : "root";
    return { palette: this.state.pal || "viridis", spread: this.state.sc || spread, dark: this.dark() };
  }

  /** Fields for palette and spread. @param {"sequential" | "all"} what */
  lookTools(what) {
    /** @param {string} label @param {string[]} words @param {"pal" | "sc"} name @param {string} now */
    const choice = (label, words, name, now) => {
      const select =
        make("select", { "aria-label": label, title: label }, ...words.map((word) => make("option", word)));
      select.value = now;
      on(select, "change", () => this.go({ [name]: select.value }));
      return select;
    };
    const tools = div("look", choice("Colours", SEQUENTIAL, "pal", this.look().palette));
    if (what === "all") tools.append(choice("Spread of the colours", SPREADS, "sc", this.look().spread));
    return tools;
  }
}
