// OpenAI's npm package against a running `limpid serve`, in a folder where `npm install openai` was run:
//     node --input-type=module - http://127.0.0.1:8080/v1 < reference/clients/openai_node.mjs
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import OpenAI from "openai";

const baseURL = process.argv.at(-1);
const root = baseURL.replace(/\/v1$/, "");
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
let checks = 0;
const check = (condition, what) => (assert(condition, what), (checks += 1));
const post = async (path, body) => {
  const headers = { "Content-Type": "application/json" };
  return (await fetch(root + path, { method: "POST", headers, body: JSON.stringify(body) })).json();
};

const model = (await client.models.list()).data[0].id;
const text = { model, prompt: "Once", max_tokens: 8, temperature: 0 };
const whole = (await client.completions.create(text)).choices[0].text;
let pieces = "";
for await (const chunk of await client.completions.create({ ...text, stream: true })) pieces += chunk.choices[0].text;
check(pieces === whole, "pieces are the whole");
const vectors = await client.embeddings.create({ model, input: ["Once", "There"] });
check(vectors.data.length === 2 && Math.abs(Math.hypot(...vectors.data[0].embedding) - 1) < 1e-5);
const refused = await client.completions.create({ ...text, suffix: "end" }).catch((error) => error);
check(refused instanceof OpenAI.BadRequestError && refused.code === "unsupported_parameter", refused);

if ((await (await fetch(`${root}/tokenizer_info`)).json()).chat_template) {
  const chat = { model, max_completion_tokens: 8, temperature: 0 };
  const messages = [{ role: "developer", content: "Be brief." }, { role: "user", content: [{ type: "text", text: "Once" }] }];
  const answer = await client.chat.completions.create({ ...chat, messages });
  const stream = client.chat.completions.stream({ ...chat, messages, stream_options: { include_usage: true } });
  const last = await stream.finalChatCompletion();
  const said = last.choices[0].message.content ?? "";
  check(said === answer.choices[0].message.content, "pieces are the whole");
  check((await stream.totalUsage()).completion_tokens === answer.usage.completion_tokens);
  const special = "<|user|>";
  const [id, ...more] = (await post("/tokenize", { prompt: special })).tokens;
  if (more.length === 0) {
    // five turns of a model that answers with special tokens; each answer goes back as it came
    const letter = (await post("/tokenize", { prompt: "e" })).tokens[0];
    const logit_bias = { [id]: 100, [letter]: 100 };
    const turns = [];
    for (let turn = 0; turn < 5; turn += 1) {
      turns.push({ role: "user", content: `and ${special} then` });
      const asked = { model, messages: turns, max_tokens: 6, seed: turn, logit_bias };
      const { message } = (await client.chat.completions.create(asked)).choices[0];
      check(!message.content.includes(special), message.content);
      turns.push(message);
    }
    check(turns.some(({ role, content }) => role === "assistant" && content.includes("e")));
  }
}
const { version } = JSON.parse(await readFile("node_modules/openai/package.json", "utf8"));
console.log(`${checks} checks pass with openai (npm) ${version}`);
