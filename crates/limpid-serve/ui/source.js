// Where answers come from. Everything else asks a Source, so that another one (a saved file) can take its place.
import { piece } from "./text.js";

/** @typedef {import("./text.js").Piece} Piece */

/**
 * A token of a text. Probabilities are natural logarithms, before temperature, penalties and cuts; `logProb` is null
 * for the first token of a text. `top` has the likeliest tokens at this place, the likeliest first.
 * @typedef {{piece: Piece, logProb: number | null, top: {piece: Piece, logProb: number}[]}} Token
 */

/**
 * A part of an answer: its text, its tokens (not always in step: what may be a stop text is held back); from the last
 * part that knows it, why it ended, which weights it is of, and the seed of its draws.
 * @typedef {{text: string, tokens: Token[], finish: string | null, fingerprint: string | null,
 *   seed: string | null}} Part
 */

/** @typedef {{role: "system" | "user" | "assistant", content: string}} Message */

/**
 * What the model is. `chat` is false if it has no chat template.
 * @typedef {{
 *   id: string, step: number | null, parameters: number | null, context: number | null, vocabulary: number | null,
 *   chat: boolean,
 *   continues: boolean,
 *   trains: boolean,
 * }} Model
 */

/**
 * Settings of a request as they were typed, by their names in OpenAI's protocol. Numbers stay as they were typed,
 * whatever their size; the server says what is wrong with them.
 * @typedef {Record<string, string>} Typed
 */

/**
 * @typedef {object} Source
 * @property {() => Promise<Model>} model
 * @property {(prompt: string) => Promise<{count: number, context: number}>} count the tokens of a prompt
 * @property {(messages: Message[]) => Promise<string>} written the text that the model is given for them, up to where
 *   its answer begins
 * @property {(messages: Message[]) => Promise<Trouble | null>} unfit why messages cannot be said, if they cannot
 * @property {(messages: Message[], typed: Typed, signal: AbortSignal) => AsyncGenerator<Part>} chat
 * @property {(prompt: string, echo: boolean, typed: Typed, signal: AbortSignal) => AsyncGenerator<Part>} complete
 */

/** How many of the likeliest tokens are asked for. */
const TOP = 5;

/** What went wrong, in the server's words where it is the server that says so. */
export class Trouble extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, param?: string, request?: string}} [about]
   */
  constructor(message, about = {}) {
    super(message);
    this.status = about.status ?? null;
    this.code = about.code ?? null;
    this.param = about.param ?? null;
    this.request = about.request ?? null;
  }
}

/**
 * Whatever was thrown, as something to tell.
 * @param {unknown} fault
 */
export function asTrouble(fault) {
  return fault instanceof Trouble ? fault : new Trouble(`The page failed: ${fault}`);
}

/** @typedef {(path: string, body: string | null, signal?: AbortSignal | null) => Promise<Response>} Ask */

/**
 * The server that this page came from.
 * @param {() => string} key the API key; empty if there is none
 * @returns {Ask}
 */
export function network(key) {
  return async (path, body, signal = null) => {
    /** @type {Record<string, string>} */
    const headers = {};
    if (key()) headers["authorization"] = `Bearer ${key()}`;
    if (body !== null) headers["content-type"] = "application/json";
    let response;
    try {
      response =
        await fetch(path, { method: body === null ? "GET" : "POST", headers, body, signal, cache: "no-store" });
    } catch (fault) {
      throw unreachable(fault);
    }
    if (response.status === 401 && key()) {
      throw new Trouble("That key was not accepted.", { status: 401, code: "invalid_api_key" });
    }
    return checked(response);
  };
}

/** An answer that is none is what was refused. @param {Response} response */
export async function checked(response) {
  if (response.ok) return response;
  throw refusal(await response.text(), response.status, response.headers.get("x-request-id"));
}

/**
 * @param {Ask} ask
 * @returns {Source}
 */
export function networkSource(ask) {
  let id = "";

  /** @param {string} path @param {string | null} [body] */
  const json = async (path, body = null) => (await ask(path, body)).json();

  /**
   * @param {string} path
   * @param {string} body
   * @param {AbortSignal} signal
   * @param {(choice: any) => {text: string, tokens: Token[]}} read
   * @returns {AsyncGenerator<Part>}
   */
  async function* stream(path, body, signal, read) {
    const response = await ask(path, body, signal);
    let ended = false;
    for await (const data of events(chunks(response.body))) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw refusal(data, null, response.headers.get("x-request-id"));
      const choice = chunk.choices?.[0];
      yield {
        ...(choice ? read(choice) : { text: "", tokens: [] }),
        finish: choice?.finish_reason ?? null,
        fingerprint: chunk.system_fingerprint ?? null,
        seed: seedIn(data),
      };
    }
    if (!ended) throw new Trouble("The answer ended before it was complete: the server closed the connection.");
  }

  return {
    async model() {
      const model = (await json("/v1/models")).data[0];
      const continues = model.limpid?.continues !== false;
      const tokenizer = continues ? await json("/tokenizer_info") : {};
      id = model.id;
      return {
        id,
        step: model.limpid?.step ?? null,
        parameters: model.limpid?.parameters ?? null,
        context: model.limpid?.context_length ?? null,
        vocabulary: model.limpid?.vocab_size ?? null,
        chat: typeof tokenizer.chat_template === "string",
        continues,
        trains: model.limpid?.trains === true,
      };
    },
    async count(prompt) {
      const { count, max_model_len } = await json("/tokenize", JSON.stringify({ prompt, add_special_tokens: true }));
      return { count, context: max_model_len };
    },
    async written(messages) {
      return (await json("/apply-template", JSON.stringify({ messages }))).prompt;
    },
    async unfit(messages) {
      const fault = await json("/tokenize", JSON.stringify({ messages })).then(() => null, (fault) => fault);
      return fault instanceof Trouble && fault.status === 400 ? fault : null;
    },
    chat(messages, typed, signal) {
      const fields = { model: id, messages, logprobs: true, top_logprobs: TOP, ...STREAMED };
      return stream("/v1/chat/completions", written(fields, typed), signal, ofChat);
    },
    complete(prompt, echo, typed, signal) {
      const fields = { model: id, prompt, echo, logprobs: TOP, ...STREAMED };
      return stream("/v1/completions", written(fields, typed), signal, ofCompletion);
    },
  };
}

const STREAMED = { stream: true };

/** A number in JSON. */
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/**
 * A request's JSON. What was typed as a number goes in as it was typed: a seed may have more digits than JavaScript's
 * numbers. What was left empty is left out.
 * @param {object} fields
 * @param {Typed} typed
 */
export function written(fields, typed) {
  const members = Object.entries(typed)
    .map(([name, value]) => [name, value.trim()])
    .filter(([, value]) => value !== "")
    .map(([name, value]) => `${JSON.stringify(name)}:${NUMBER.test(value ?? "") ? value : JSON.stringify(value)}`);
  return [JSON.stringify(fields).slice(0, -1), ...members].join(",") + "}";
}

/**
 * The seed that a chunk tells, as it is written there, for the same reason.
 * @param {string} data
 */
function seedIn(data) {
  return /"limpid":\{(?:[^{}]*,)?"seed":(-?\d+)/.exec(data)?.[1] ?? null;
}

/** @param {any} choice of /v1/chat/completions */
function ofChat(choice) {
  const tokens = (choice.logprobs?.content ?? []).map(
    /** @param {any} token */ (token) => ({
      piece: piece(token.token, token.bytes),
      logProb: token.logprob,
      top: token.top_logprobs.map(
        /** @param {any} other */ (other) => ({ piece: piece(other.token, other.bytes), logProb: other.logprob }),
      ),
    }),
  );
  return { text: choice.delta?.content ?? "", tokens };
}

/** @param {any} choice of /v1/completions */
function ofCompletion(choice) {
  const logprobs = choice.logprobs;
  const tokens = (logprobs?.tokens ?? []).map(
    /** @param {string} token @param {number} n */ (token, n) => ({
      piece: piece(token),
      logProb: logprobs.token_logprobs[n],
      top: Object.entries(logprobs.top_logprobs?.[n] ?? {})
        .map(([other, logProb]) => ({ piece: piece(other), logProb }))
        .sort((a, b) => b.logProb - a.logProb)
        .slice(0, TOP),
    }),
  );
  return { text: choice.text ?? "", tokens };
}

/**
 * The bytes of a response. (A stream can be iterated itself, but not in every browser.)
 * @param {ReadableStream<Uint8Array> | null} body
 * @returns {AsyncGenerator<Uint8Array>}
 */
export async function* chunks(body) {
  if (!body) return;
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (fault) {
    throw unreachable(fault);
  } finally {
    reader.cancel().catch(() => {}); // there is nothing left to cancel
  }
}

/**
 * The data of server-sent events, wherever the network cut them.
 * @param {AsyncIterable<Uint8Array>} bytes
 * @returns {AsyncGenerator<string>}
 */
export async function* events(bytes) {
  const decoder = new TextDecoder();
  let rest = "";
  /** @type {string[]} */
  let data = [];
  for await (const chunk of bytes) {
    rest += decoder.decode(chunk, { stream: true });
    // a \r at the end may be half of \r\n
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (data.length > 0) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

/**
 * What the server refuses, as it says it.
 * @param {string} body
 * @param {number | null} status null inside of a stream
 * @param {string | null} request its id
 */
export function refusal(body, status, request) {
  const about = { ...(status === null ? {} : { status }), ...(request === null ? {} : { request }) };
  try {
    const { message, code, param } = JSON.parse(body).error;
    return new Trouble(message, { ...about, ...(code ? { code } : {}), ...(param ? { param } : {}) });
  } catch {
    return new Trouble(body || "The server gave no reason.", about);
  }
}

/**
 * A request that never arrived; stopping one on purpose is no trouble.
 * @param {unknown} fault
 */
function unreachable(fault) {
  if (fault instanceof Trouble || fault instanceof DOMException && fault.name === "AbortError") return fault;
  return new Trouble("The server does not answer. Is `limpid serve` still running?");
}
