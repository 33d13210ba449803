// What needs no page: how streams and tokens are read.
import { expect, test } from "@playwright/test";
import { events, written } from "../source.js";
import { joiner, piece } from "../text.js";

const encode = (text) => new TextEncoder().encode(text);

async function read(pieces) {
  async function* stream() {
    yield* pieces;
  }
  const all = [];
  for await (const data of events(stream())) all.push(data);
  return all;
}

test("a stream is the same wherever the network cuts it", async () => {
  const bytes = encode('data: {"a":"é☃"}\r\n\r\n: ping\n\ndata:two\r\ndata: lines\r\n\r\n'
    + 'event: x\rdata: 3\r\rdata: [DONE]\n\ndata: lost');
  const whole = ['{"a":"é☃"}', "two\nlines", "3", "[DONE]"];
  expect(await read([bytes])).toEqual(whole);
  for (let cut = 0; cut <= bytes.length; cut++) {
    expect(await read([bytes.slice(0, cut), bytes.slice(cut)]), `cut at ${cut}`).toEqual(whole);
  }
  expect(await read([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual(whole);
});

test("numbers are sent as they were typed", () => {
  const typed = { seed: "9223372036854775807", temperature: " 0.50 ", top_p: "", max_tokens: "ten", n: "01", m: "1e2" };
  expect(written({ a: 1 }, typed))
    .toBe('{"a":1,"seed":9223372036854775807,"temperature":0.50,"max_tokens":"ten","n":"01","m":1e2}');
  expect(written({ a: 1 }, { max_tokens: '1,"x":2' })).toBe('{"a":1,"max_tokens":"1,\\"x\\":2"}');
});

test("tokens are text or bytes, and together they are the text", () => {
  const snowman = [piece("bytes:\\xe2\\x98"), piece("", [0x83]), piece("!")];
  expect(snowman.map(({ text }) => text)).toEqual([null, null, "!"]);
  const join = joiner();
  expect(snowman.map(join)).toEqual(["", "☃", "!"]);
  expect(joiner()(piece("\uFEFF"))).toBe("\uFEFF");
  expect(piece("<|end|>", []).text).toBe("<|end|>");
  expect(piece("\uFEFF").text).toBe("\uFEFF");
  expect(piece("", [0xef, 0xbb, 0xbf]).text).toBe("\uFEFF");
});
