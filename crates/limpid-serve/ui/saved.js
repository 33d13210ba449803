// A saved page: the answers that stand in it, instead of a server. What it does not hold it says, with the command that shows it.
import { lines } from "./glass-source.js";
import { localHeat } from "./local-heat.js";
import { inspectCommand } from "./command.js";
import { Trouble, chunks } from "./source.js";
import { frames } from "./tiles.js";

/** @typedef {import("./glass-source.js").GlassSource} GlassSource */

/**
 * The answers in this document by what was asked, or null where it is served.
 * @returns {GlassSource | null}
 */
export function savedGlass() {
  const text = document.getElementById("saved")?.textContent?.trim();
  if (!text) return null;
  const all = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const size = new DataView(all.buffer).getUint32(0, true);
  /** @type {Record<string, [number, number]>} */
  const index = JSON.parse(new TextDecoder().decode(all.subarray(4, 4 + size)));
  let command = "";
  /** Under which name a tensor is kept. @type {Map<string, string>} */
  let kept = new Map();

  /**
   * @param {string} key
   * @returns {ReadableStream<Uint8Array> | null}
   */
  function opened(key) {
    const place = Object.hasOwn(index, key) ? index[key] : undefined;
    if (!place) return null;
    const start = 4 + size + place[0];
    const stored = new Blob([all.slice(start, start + place[1])]);
    return stored.stream().pipeThrough(new DecompressionStream("deflate-raw"));
  }

  /** @param {string} key */
  async function json(key) {
    const found = opened(key);
    return found ? new Response(found).json() : null;
  }

  /** @param {string} what */
  const missing = (what) => new Trouble(`This file does not hold ${what}. The command that shows it: ${command}`);

  /**
   * Part of a tensor.
   * @param {string} name
   * @param {URLSearchParams} words
   */
  async function part(name, words) {
    const listing = await json("listing");
    const inner = /^cos\((.+)\)$/.exec(name)?.[1];
    const found = [...listing.tensors, ...listing.params].find((tensor) => tensor.name === (inner ?? name));
    // cosines are of every two rows
    const about = inner && found ? { ...found, same_as: null, shape: [...found.shape.slice(0, -1), found.shape.at(-2)] } : found;
    const stored = opened(`tensor ${about?.same_as ?? name}`);
    if (!about || !stored || words.has("other")) throw missing(name);
    const numbers = new Float32Array(await new Response(stored).arrayBuffer());
    /** @type {number[]} */
    const shape = about.shape;
    const asked = words.get("at")?.split(",") ?? [];
    const index = shape.map((length, axis) => {
      const [from = "*", to] = (asked[axis] ?? "*").split(":");
      if (from === "*") return [0, length];
      return [Number(from), to === undefined ? Number(from) + 1 : Math.min(length, Number(to || length))];
    });
    /** @type {(number | string)[]} */
    const values = [];
    /** @param {number} axis @param {number} at */
    function walk(axis, at) {
      const [from = 0, to = 1] = index[axis] ?? [];
      for (let i = from; i < to; i++) {
        const place = at * (shape[axis] ?? 1) + i;
        if (axis + 1 < shape.length) walk(axis + 1, place);
        else values.push(inJson(numbers[place] ?? NaN));
      }
    }
    walk(0, 0);
    return { name, axes: about.axes, shape, index, values, stats: null };
  }

  /** Under which name an answer is kept. @param {string} place @param {URLSearchParams} words */
  function keyOf(place, words) {
    words.sort();
    // all frames of a time-lapse are one answer
    return words.has("from") ? place : `${decodeURIComponent(place)}?${decodeURIComponent(`${words}`)}`;
  }

  return {
    holds(question) {
      const [place = "", query = ""] = question.split("?");
      const [kind, name = ""] = place.split("/");
      const key = kind === "tiles" ? `tile ${name}` : kind === "tensors" ? `tensor ${kept.get(decodeURIComponent(name)) ?? decodeURIComponent(name)}` : query ? keyOf(place, new URLSearchParams(query)) : place;
      return Object.hasOwn(index, key);
    },
    async ask(path) {
      const [place = "", query = ""] = path.split("?");
      if (place === "model") {
        const [model, { tensors, params }] = await Promise.all([json("model"), json("listing")]);
        kept = new Map([...tensors, ...params].map(({ name, same_as: same }) => [name, same ?? name]));
        // what was run as ids has no text for the page to begin with
        command = inspectCommand(model, { prompt: model.example, ids: model.tokens, last: model.last }, model.steps ? JSON.stringify(model.steps) : "", ...(model.example === null ? [] : ["--open"]));
        return model;
      }
      const question = place.replace(/^traces\/[^/]+\//, "");
      if (question === "tensors") return json("listing");
      const words = new URLSearchParams(query);
      if (question.startsWith("tensors/")) return part(decodeURIComponent(question.slice(8)), words);
      const answer = await json(keyOf(question, words));
      if (answer === null) throw missing(question === "path" ? "this step of the path" : `the answer to \`${question}\` here`);
      return answer;
    },
    async file() {
      throw missing("files");
    },
    async tiles(_, wanted, onTile, signal) {
      for (const [i, one] of wanted.entries()) {
        const { name, index: at, code, tile, level } = one;
        const found = opened(`tile ${name} ${at.join(",")} ${code}`);
        if (!found) {
          // a picture of numbers that are all here
          const { values, index } = await part(name, new URLSearchParams({ at: [...at, "*", "*"].join() }));
          const [rows = 1, cols = 1] = index.slice(-2).map(([from = 0, to = 0]) => to - from);
          const finite = values.filter((value) => typeof value === "number");
          const span = { low: finite.reduce((a, b) => Math.min(a, b), Infinity), high: finite.reduce((a, b) => Math.max(a, b), -Infinity) };
          await localHeat({ identity: name, rows, cols, values, hidden: [], ...span }, () => false).tiles(/** @type {any} */ (null), [one], (tile) => onTile({ ...tile, index: i }), signal);
          continue;
        }
        for await (const one of frames(chunks(found))) {
          if (signal.aborted) return;
          if (one.level === level && tile.every((n) => n === 0)) onTile({ ...one, index: i });
        }
      }
    },
    async stream(path, body, onEvent) {
      if (path === "walks") throw missing("the walks");
      const { example, steps, sweep } = await json("model");
      if (path === "sweeps") {
        const [kept, asked] = [opened("sweep"), /** @type {any} */ ({ by: "head", ...body })];
        if (!kept || ["clean", "site", "by"].some((name) => asked[name] !== sweep[name])) throw missing(kept ? "any other sweep" : "a model to run a sweep with");
        for await (const line of lines(chunks(kept))) onEvent(JSON.parse(line));
        return;
      }
      const found = opened("run");
      if (!found || ("prompt" in body && body.prompt !== (example ?? "")) || JSON.stringify(/** @type {any} */ (body).interventions) !== JSON.stringify(steps ?? undefined)) throw missing("a run of any other prompt");
      for await (const line of lines(chunks(found))) onEvent(JSON.parse(line));
    },
  };
}

/**
 * A number as the server writes it.
 * @param {number} value
 */
function inJson(value) {
  if (Number.isFinite(value)) return value;
  return Number.isNaN(value) ? "NaN" : value > 0 ? "inf" : "-inf";
}
