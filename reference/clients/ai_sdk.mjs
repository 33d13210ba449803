// Vercel's AI SDK against a running `limpid serve`, in a folder where `npm install ai @ai-sdk/openai-compatible` was run:
//     node --input-type=module - http://127.0.0.1:8080/v1 < reference/clients/ai_sdk.mjs
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, streamText } from "ai";

const baseURL = process.argv.at(-1);
const root = baseURL.replace(/\/v1$/, "");
let checks = 0;
const check = (condition, what) => (assert(condition, what), (checks += 1));
const { id } = (await (await fetch(`${baseURL}/models`)).json()).data[0];
const limpid = createOpenAICompatible({ name: "limpid", baseURL, apiKey: "none", includeUsage: true });
const quiet = { maxRetries: 0, temperature: 0, maxOutputTokens: 8 };

const whole = await generateText({ ...quiet, model: limpid.completionModel(id), prompt: "Once" });
check(whole.usage.outputTokens > 0, whole);
const { embeddings } = await embedMany({ model: limpid.textEmbeddingModel(id), values: ["Once", "There"], maxRetries: 0 });
check(embeddings.length === 2);

if ((await (await fetch(`${root}/tokenizer_info`)).json()).chat_template) {
  const model = limpid.chatModel(id);
  const asked = { ...quiet, model, system: "Be brief.", messages: [{ role: "user", content: "Once" }] };
  const answer = await generateText(asked);
  const stream = streamText(asked);
  let pieces = "";
  for await (const piece of stream.textStream) pieces += piece;
  check(pieces === answer.text, "pieces are the whole");
  check((await stream.usage).outputTokens === answer.usage.outputTokens);
  // five turns, of a model that answers with special tokens if it can be made to; its own messages go back
  const messages = [];
  const ids = async (prompt) => {
    const headers = { "Content-Type": "application/json" };
    return (await (await fetch(`${root}/tokenize`, { method: "POST", headers, body: JSON.stringify({ prompt }) })).json()).tokens;
  };
  const [[special, ...more], [letter]] = [await ids("<|user|>"), await ids("e")];
  const logit_bias = more.length === 0 ? { [special]: 100, [letter]: 100 } : undefined;
  const providerOptions = { limpid: { logit_bias } };
  for (let turn = 0; turn < 5; turn += 1) {
    messages.push({ role: "user", content: "and <|user|> then" });
    const { text, response } = await generateText({ ...quiet, model, temperature: 1, seed: turn, messages, providerOptions });
    check(!text.includes("<|"), text);
    messages.push(...response.messages);
  }
}
const { version } = JSON.parse(await readFile("node_modules/@ai-sdk/openai-compatible/package.json", "utf8"));
console.log(`${checks} checks pass with @ai-sdk/openai-compatible ${version}`);
