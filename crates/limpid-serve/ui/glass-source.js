// Where the inside of a model comes from. The views ask a GlassSource, so that a saved file can take the server's
// place.
import { Trouble, chunks, refusal } from "./source.js";
import { frames } from "./tiles.js";

/** @typedef {import("./tiles.js").Tile} Tile */
/** @typedef {"traces" | "walks" | "sweeps" | "reasons" | "units" | "directions"} Streamed */
/**
 * @typedef {{name: string, index: number[], tile: [number, number], level: number, pool: string, code: string,
 *   other?: string}} TileWanted
 */

/**
 * @typedef {object} GlassSource
 * @property {(path: string) => Promise<any>} ask what stands at a path, like `model` or `traces/ID/tensors`
 * @property {(question: string) => boolean} [holds] whether it has the answer to a question about the trace, where it
 *   has only some
 * @property {(path: string) => Promise<Blob>} file the same, to be kept
 * @property {(id: string, wanted: TileWanted[], onTile: (tile: Tile) => void, signal: AbortSignal) => Promise<void>}
 *   tiles of a trace, in order
 * @property {(path: "training", body: object) => Promise<any>} [send] tells the server something
 * @property {(prompt: string, tokens: number) => Promise<string>} [sample] what the model writes after a text
 * @property {(path: Streamed, body: object, onEvent: (event: any) => void, signal: AbortSignal) => Promise<void>}
 *   stream runs a prompt, walks a document, sweeps, or looks for a reason
 */

/** The words of this protocol on this server. */
const INSIDE = "/inspect/v1/";

/**
 * @param {import("./source.js").Ask} ask
 * @param {boolean} isLive whether the model is in this page
 * @returns {GlassSource}
 */
export function networkGlass(ask, isLive) {
  return {
    async ask(path) {
      const answer = await (await ask(INSIDE + path, null)).json();
      return path === "model" && isLive ? { ...answer, live: true } : answer;
    },
    file: async (path) => (await ask(INSIDE + path, null)).blob(),
    send: async (path, body) => (await ask(INSIDE + path, JSON.stringify(body))).json(),
    async sample(prompt, tokens) {
      const { data } = await (await ask("/v1/models", null)).json();
      const { count, max_model_len: room } =
        await (await ask("/tokenize", JSON.stringify({ prompt, add_special_tokens: true }))).json();
      const body = {
        model: data[0].id, prompt, max_tokens: Math.max(1, Math.min(tokens, room - count)), temperature: 0.8, seed: 1,
      };
      return (await (await ask("/v1/completions", JSON.stringify(body))).json()).choices[0].text;
    },
    async tiles(id, wanted, onTile, signal) {
      const response = await ask(`${INSIDE}traces/${id}/tiles`, JSON.stringify({ tiles: wanted }), signal);
      for await (const tile of frames(chunks(response.body))) onTile(tile);
    },
    async stream(path, body, onEvent, signal) {
      const response = await ask(INSIDE + path, JSON.stringify(body), signal);
      let ended = false;
      for await (const line of lines(chunks(response.body))) {
        const event = JSON.parse(line);
        if (event.event === "error") throw refusal(JSON.stringify(event), null, response.headers.get("x-request-id"));
        ended ||= event.event === "done";
        onEvent(event);
      }
      if (!ended) throw new Trouble("The run ended before it was complete: the server closed the connection.");
    },
  };
}

/**
 * Lines of text, wherever the network cut them.
 * @param {AsyncIterable<Uint8Array>} bytes
 * @returns {AsyncGenerator<string>}
 */
export async function* lines(bytes) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of bytes) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    yield* parts.filter((line) => line.trim() !== "");
  }
  if (rest.trim()) yield rest;
}
