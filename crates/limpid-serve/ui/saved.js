// A saved page: the answers that stand in it, instead of a server. What it does not hold it says, with the command that
// shows it.
import { Archive } from "./archive.js";
import { lines } from "./glass-source.js";
import { localHeat } from "./local-heat.js";
import { inspectCommand } from "./command.js";
import { Trouble, chunks } from "./source.js";
import { frames } from "./tiles.js";

/** @typedef {import("./glass-source.js").GlassSource} GlassSource */

/**
 * Part of a tensor; null where it is not here.
 * @param {Archive} archive
 * @param {string} name
 * @param {URLSearchParams} words
 */
async function partOf(archive, name, words) {
  const listing = await archive.json("listing");
  const inner = /^cos\((.+)\)$/.exec(name)?.[1];
  const found = [...listing.tensors, ...listing.params].find((tensor) => tensor.name === (inner ?? name));
  // cosines are of every two rows
  const square = inner && found && { same_as: null, shape: [...found.shape.slice(0, -1), found.shape.at(-2)] };
  const about = found && { ...found, ...square };
  const stored = archive.open(`tensor ${about?.same_as ?? name}`);
  if (!about || !stored || words.has("other")) return null;
  const numbers = new Float32Array(await new Response(stored).arrayBuffer());
  /** @type {number[]} */
  const shape = about.shape;
  const asked = words.get("at")?.split(",") ?? [];
  const index = shape.map((length, axis) => {
    const [from = "*", to] = (asked[axis] ?? "*").split(":");
    if (from === "*") return [0, length];
    return [Number(from), to === undefined ? Number(from) + 1 : Math.min(length, Number(to || length))];
  });
  let places = [0];
  for (const [axis, [from = 0, to = 1]] of index.entries()) {
    const along = Array.from({ length: to - from }, (_, n) => from + n);
    places = places.flatMap((place) => along.map((n) => place * (shape[axis] ?? 1) + n));
  }
  const values = places.map((place) => inJson(numbers[place] ?? NaN));
  return { name, axes: about.axes, shape, index, values, stats: null };
}

/** Under which name an answer is kept. @param {string} place @param {URLSearchParams} words */
function keyOf(place, words) {
  words.sort();
  // all frames of a time-lapse are one answer
  return words.has("from") ? place : `${decodeURIComponent(place)}?${decodeURIComponent(`${words}`)}`;
}

/**
 * The answers in this document by what was asked, or null where it is served.
 * @returns {GlassSource | null}
 */
export function savedGlass() {
  const found = Archive.ofPage();
  if (!found?.has("model")) return null;
  const archive = found;
  let command = "";
  /** Under which name a tensor is kept. @type {Map<string, string>} */
  let kept = new Map();

  /** @param {string} what */
  const missing = (what) => new Trouble(`This file does not hold ${what}. The command that shows it: ${command}`);

  /** @param {string} name @param {URLSearchParams} words */
  async function part(name, words) {
    const found = await partOf(archive, name, words);
    if (!found) throw missing(name);
    return found;
  }

  return {
    holds(question) {
      const [place = "", query = ""] = question.split("?");
      const [kind, name = ""] = place.split("/");
      if (kind === "tiles") return archive.has(`tile ${name}`);
      const tensor = decodeURIComponent(name);
      if (kind === "tensors") return archive.has(`tensor ${kept.get(tensor) ?? tensor}`);
      return archive.has(query ? keyOf(place, new URLSearchParams(query)) : place);
    },
    async ask(path) {
      const [place = "", query = ""] = path.split("?");
      if (place === "model") {
        const [model, { tensors, params }] = await Promise.all([archive.json("model"), archive.json("listing")]);
        kept = new Map([...tensors, ...params].map(({ name, same_as: same }) => [name, same ?? name]));
        // what was run as ids has no text for the page to begin with
        const { example, tokens, last, steps } = model;
        const asked = { prompt: example, ids: tokens, last };
        command =
          inspectCommand(model, asked, steps ? JSON.stringify(steps) : "", ...(example === null ? [] : ["--open"]));
        return model;
      }
      const question = place.replace(/^traces\/[^/]+\//, "");
      if (question === "tensors") return archive.json("listing");
      const words = new URLSearchParams(query);
      if (question.startsWith("tensors/")) return part(decodeURIComponent(question.slice(8)), words);
      const answer = await archive.json(keyOf(question, words));
      if (answer === null) {
        throw missing(question === "path" ? "this step of the path" : `the answer to \`${question}\` here`);
      }
      return answer;
    },
    async file() {
      throw missing("files");
    },
    async tiles(_, wanted, onTile, signal) {
      for (const [n, asked] of wanted.entries()) {
        const { name, index, code, tile, level } = asked;
        const tell = (/** @type {import("./tiles.js").Tile} */ found) => onTile({ ...found, index: n });
        const found = archive.open(`tile ${name} ${index.join(",")} ${code}`);
        if (!found) {
          const heat = pictureOf(await part(name, new URLSearchParams({ at: [...index, "*", "*"].join() })));
          await heat.tiles(/** @type {any} */ (null), [asked], tell, signal);
          continue;
        }
        for await (const frame of frames(chunks(found))) {
          if (signal.aborted) return;
          if (frame.level === level && tile.every((place) => place === 0)) tell(frame);
        }
      }
    },
    async stream(path, body, onEvent) {
      if (path === "walks") throw missing("the walks");
      const { example, steps, sweep } = await archive.json("model");
      const asked = /** @type {any} */ ({ by: "head", ...body });
      const isSweep = path === "sweeps";
      const found = archive.open(isSweep ? "sweep" : "run");
      const isSameText = !("prompt" in body) || body.prompt === (example ?? "");
      const isSame = isSweep
        ? ["clean", "site", "by"].every((name) => asked[name] === sweep?.[name])
        : isSameText && JSON.stringify(asked.interventions) === JSON.stringify(steps ?? undefined);
      const other = isSweep ? "any other sweep" : "a run of any other prompt";
      if (!found || !isSame) throw missing(isSweep && !found ? "a model to run a sweep with" : other);
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

/** A picture of numbers that are all here. @param {Awaited<ReturnType<typeof partOf>> & {}} part */
function pictureOf({ name, values, index }) {
  const [rows = 1, cols = 1] = index.slice(-2).map(([from = 0, to = 0]) => to - from);
  const finite = values.filter((value) => typeof value === "number");
  const low = finite.reduce((a, b) => Math.min(a, b), Infinity);
  const high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  return localHeat({ identity: name, rows, cols, values, hidden: [], low, high }, () => false);
}
