// Looking inside: pictures against exact numbers, addresses, keys, budgets, and what goes wrong.
import { spawnSync } from "node:child_process";
import { colourOfCodes, placeOf, reversed, valueAt } from "../colours.js";
import { frames, tileCache, valuesOfCodes } from "../tiles.js";
import { hashOf, stateIn } from "../address.js";
import { at, barriers, expect, paletteOf, test } from "./page.js";
import { BINARY } from "./servers.js";

/** Every view, and what is there when it has drawn what it shows. */
const READY = {
  map: ".ladder", text: ".text .bars", heads: ".mosaic", head: ".heat[data-painted='1']", mlp: ".mlp tbody tr", lens: ".lens-table tbody tr", path: ".parts tbody tr", embed: ".curves canvas[aria-label*=Dimension]",
  sweep: ".sweep-form button", gradients: ".gradients h2, .gradients .hint",
  timelapse: ".timelapse tbody tr, #glass-view .hint",
  training: ".training .lead:text(\"loss\"), #glass-view .hint",
  table: ".sheet [role='gridcell']", why: ".sums", notation: "[aria-label='Symbols'] tbody tr", tour: ".stops button", walks: ".lesson h3",
};
const VIEWS = Object.keys(READY);

/** Opens a view, and waits until the run is complete. */
async function look(page, hash = "v=map", server = "BASE") {
  await page.goto(`${at(server)}/#${hash}`);
  await complete(page);
}

async function complete(page) {
  await expect(page.locator("#glass-facts"))
    .toContainText(/^[\d,]+ tokens? through \d+ layers?(, [\d.]+ nats a token)?$/, { timeout: 120_000 });
}

/** Waits until every tile in sight is painted. */
async function painted(page) {
  const heat = page.locator(".heat");
  await expect(heat).not.toHaveAttribute("aria-busy", "true");
  await expect.poll(() => heat.evaluate((frame) => Number(frame.dataset.painted ?? 0))).toBeGreaterThan(0);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** The state that the address tells. */
const state = async (page) => {
  await page.waitForTimeout(200); // it is written a moment later
  return page.evaluate(() => Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
};

/** Asks the server without the page. */
const json = (page, path) => page.evaluate(async (path) => (await fetch(`/inspect/v1/${path}`)).json(), path);

/** The trace that is shown. */
const trace = (page) => page.locator("#glass").getAttribute("data-trace");

/** Pseudo-random numbers from 0 to 1. */
function* chance(seed) {
  for (let x = seed; ; ) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    yield x / 2 ** 32;
  }
}

test("what the address says is read as it was written", () => {
  const state = { ...stateIn(""), v: "head", l: 5, h: 1, q: 17, p: "a b&c=d#é\n", last: true, more: { lens: "x" } };
  expect(stateIn(`#${hashOf(state)}`)).toEqual(state);
  expect(stateIn("#v=head&l=-1&h=x&q=1e9&last=yes"))
    .toMatchObject({ v: "head", l: null, h: null, q: null, last: false });
  expect(hashOf(stateIn(""))).toBe("");
});

test("tiles are read wherever the network cuts them", async () => {
  const frame = (index, rows, cols, code, low, high) => {
    const bytes = new Uint8Array(64 + Math.ceil((rows * cols) / 8) * 8);
    const view = new DataView(bytes.buffer);
    bytes.set(new TextEncoder().encode("LTL1"));
    [[4, bytes.length], [8, index], [16, rows], [20, cols], [32, rows], [36, cols]].forEach(([at, value]) =>
      view.setUint32(at, value, true));
    bytes[12] = code;
    bytes[14] = 4;
    view.setFloat32(40, low, true);
    view.setFloat32(44, high, true);
    for (let n = 0; n < rows * cols; n++) bytes[64 + n] = n;
    return bytes;
  };
  const both = new Uint8Array([...frame(0, 3, 5, 3, 0, 1), ...frame(1, 2, 2, 2, -1, 1)]);
  const read = async (parts) => {
    const all = [];
    for await (const tile of frames((async function* () { yield* parts; })())) all.push(tile);
    return all;
  };
  const whole = await read([both]);
  expect(whole.map(({ rows, cols, code, masked, low, high }) => [rows, cols, code, masked, low, high]))
    .toEqual([[3, 5, 3, true, 0, 1], [2, 2, 2, true, -1, 1]]);
  expect([...whole[0].data]).toEqual([...Array(15).keys()]);
  for (let cut = 0; cut <= both.length; cut += 7) expect(await read([both.slice(0, cut), both.slice(cut)]),
    `cut at ${cut}`).toEqual(whole);
  await expect(read([both.slice(0, 100)])).rejects.toThrow("cut");
  await expect(read([new Uint8Array(64)])).rejects.toThrow("not a tile");
});

test("codes are numbers as the server means them", () => {
  const [linear, logarithm, sign] = [valuesOfCodes(2, -2, 6), valuesOfCodes(3, 0, 1), valuesOfCodes(4, -8, 8)];
  expect([linear[1], linear[254], linear[0], linear[255]]).toEqual([-2, 6, NaN, Infinity]);
  expect([logarithm[254], logarithm[238], logarithm[1]]).toEqual([1, 0.5, 0]);
  expect([sign[1], sign[254], sign[9], sign[246], sign[127], sign[128]]).toEqual([-8, 8, -4, 4, 0, 0]);
});

test("colours say where a number lies, what is masked and what is not finite", async ({ page }) => {
  for (const scale of [{ spread: "root", low: 0, high: 1, signed: false },
    { spread: "log", low: 0, high: 1, signed: false }, { spread: "linear", low: -3, high: 5,
      signed: false }, { spread: "linear", low: -4, high: 4, signed: true }]) {
    for (const place of [0, 0.25, 0.5, 0.75, 1]) expect(placeOf(valueAt(place, scale), scale), JSON.stringify(scale))
      .toBeCloseTo(place, 9);
    expect(placeOf(scale.high * 2, scale)).toBe(1);
  }
  await page.goto(at("BASE"));
  const colours = await paletteOf(page, "diverging");
  const codes = colourOfCodes(valuesOfCodes(2, -1, 1), { spread: "linear", low: -1, high: 1, signed: true }, colours);
  expect([...codes.slice(0, 4)], "masked: paper").toEqual([0, 0, 0, 0]);
  expect([...codes.slice(4 * 255)], "not finite: a colour of no palette").toEqual([214, 0, 160, 255]);
  expect([...codes.slice(4, 7), ...codes.slice(4 * 254, 4 * 254 + 3)])
    .toEqual([...colours.slice(0, 3), ...colours.slice(-3)]);
  for (const name of ["viridis", "cividis", "ink", "diverging"]) expect((await paletteOf(page, name)).length).toBe(768);
  const ink = await paletteOf(page, "ink");
  expect([...reversed(ink).slice(0, 3)]).toEqual([...ink.slice(-3)]);
});

test("tiles that were not used for longest are forgotten first", () => {
  const tile = { rows: 10, cols: 10, data: new Uint8Array(100) };
  const cache = tileCache(1600);
  ["a", "b", "c"].forEach((key) => cache.put(key, tile));
  cache.get("a");
  cache.put("d", tile);
  expect([cache.get("a"), cache.get("b"), cache.get("d")]).toEqual([tile, undefined, tile]);
  expect(cache.bytes()).toBeLessThanOrEqual(1600);
});

test("the first screen tells what the model does with its example, without a click", async ({ page }) => {
  await page.goto(at("BASE"));
  await page.locator("#to-glass").click();
  await complete(page);
  const model = await json(page, "model");
  await expect(page.locator("#glass-prompt")).toHaveValue(model.example);
  await expect(page.locator(".reading")).toContainText(/it expects .* %/);
  await expect(page.locator(".reading")).toContainText(/nats a token, perplexity [\d.]+; least expected: /);
  const tokens = page.locator("#glass-chips .token");
  expect(await tokens.count()).toBeGreaterThan(3);
  // all heads are painted: every small picture has colours that are not the paper's
  const colours = await page.locator(".ladder canvas").evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(Array.from({ length: data.length / 4 }, (_, n) => data.slice(4 * n, 4 * n + 3).join())).size;
  });
  expect(colours).toBeGreaterThan(20);
  expect(await page.evaluate(() => document.documentElement.scrollHeight), "one screen").toBeLessThanOrEqual(1000);
});

for (const [stage, spread] of [["weights", { spread: "root", signed: false }],
  ["scores", { spread: "linear", signed: true }], ["mask", { spread: "linear", signed: true }]]) {
  test(`a pixel says its number: ${stage}`, async ({ page }) => {
    await look(page, `v=head&l=1&h=1&s=${stage}`);
    await painted(page);
    const id = await trace(page);
    const count = await page.locator("#glass-chips .token").count();
    const names = { weights: "hook_pattern", scores: "hook_raw_scores", mask: "hook_attn_scores" };
    const name = `blocks.1.attn.${names[stage]}`;
    const { values } = await json(page, `traces/${id}/tensors/${name}?at=0,1,*,*`);
    const numbers = values.map((value) => (typeof value === "string" ? Number(value.replace("inf", "Infinity"))
      : value));
    const finite = numbers.filter((value) => Number.isFinite(value));
    const most = spread.signed ? Math.max(...finite.map(Math.abs)) : 1;
    const scale = { ...spread, low: 0, high: most };
    const draws = chance(7);
    const cells = Array.from({ length: 200 }, () =>
      [Math.floor(draws.next().value * count), Math.floor(draws.next().value * count)]);
    const pixels = await page.locator(".heat").evaluate((frame, cells) => {
      const canvas = frame.querySelector("canvas");
      const [x, y, cw, ch] = frame.dataset.cells.split(" ").map(Number);
      const context = canvas.getContext("2d");
      // a corner of the cell: its middle may have a number written on it
      return cells.map(([r, c]) =>
        [...context.getImageData(Math.round((x + (c + 0.12) * cw) * devicePixelRatio),
          Math.round((y + (r + 0.12) * ch) * devicePixelRatio), 1, 1).data].slice(0, 3));
    }, cells);
    const paper = await page.evaluate(() => {
      const pixel = document.createElement("canvas").getContext("2d");
      pixel.fillStyle = getComputedStyle(document.querySelector(".heat")).getPropertyValue("--panel");
      pixel.fillRect(0, 0, 1, 1);
      return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
    });
    const colours = await paletteOf(page, spread.signed ? "diverging" : "viridis");
    cells.forEach(([r, c], n) => {
      const what = `row ${r}, column ${c}: ${numbers[r * count + c]} is ${pixels[n]}`;
      if (stage !== "scores" && c > r) return expect(pixels[n], what).toEqual(paper);
      let index = -1;
      for (let k = 0; k < 256; k++) if ([0, 1, 2].every((b) => colours[3 * k + b] === pixels[n][b])) index = k;
      expect(index, what).toBeGreaterThanOrEqual(0);
      // the code's error: half a step of 254, or of a sixteenth of an octave
      const value = numbers[r * count + c];
      const span = spread.signed ? 2 * most : 1;
      const [low, high] = spread.signed ? [value - span / 253, value + span / 253] : [value * 2 ** (-1 / 16),
        Math.max(value * 2 ** (1 / 16), 2e-5)];
      const half = 0.5 / 255 + 1e-6;
      expect(index / 255, what).toBeGreaterThanOrEqual(placeOf(low, scale) - half);
      expect(index / 255, what).toBeLessThanOrEqual(placeOf(high, scale) + half);
    });
  });
}

test("numbers that are written are the server's own", async ({ page }) => {
  await look(page, "v=head&l=2&h=3&q=5&k=2");
  await painted(page);
  const id = await trace(page);
  const exact = async (tensor) =>
    (await json(page, `traces/${id}/tensors/blocks.2.attn.${tensor}?at=0,3,5,2`)).values[0];
  const weight = await exact("hook_pattern");
  await expect(page.locator(".cell-line")).toContainText(`: ${Number(weight.toPrecision(6))}`.replaceAll("-", "−"));
  const facts = page.locator("#glass-numbers .facts-list").first();
  await expect(facts).toContainText(`${Number((await exact("hook_raw_scores")).toPrecision(6))}`.replaceAll("-", "−"));
  await expect(page.locator("#glass-numbers .sum")).toHaveText(/sum (1\.0000|0\.9999|1\.0001)/);
  // under the pointer, too
  const box = await page.locator(".heat").boundingBox();
  const [x, y, cw, ch] = (await page.locator(".heat").getAttribute("data-cells")).split(" ").map(Number);
  await page.mouse.move(box.x + x + 1.5 * cw, box.y + y + 3.5 * ch);
  const [other] = (await json(page, `traces/${id}/tensors/blocks.2.attn.hook_pattern?at=0,3,3,1`)).values;
  await expect(page.locator(".cell-line")).toContainText(`${Number(other.toPrecision(6))}`.replaceAll("-", "−"));
});

test("a selection holds everywhere, and the address holds all of it", async ({ page }) => {
  await look(page);
  await page.locator("#glass-prompt").fill("The cat sat on the mat");
  await page.keyboard.press("Enter");
  await expect(page.locator("#glass-chips .token").first()).toHaveText("The");
  await complete(page);
  await page.locator("#glass-chips .token").nth(2).click();
  await expect(page.locator("#glass-chips .token").nth(2)).toHaveAttribute("aria-selected", "true");
  await page.locator("#glass-tabs a", { hasText: "Surprise" }).click();
  await expect(page.locator(".chart")).toBeVisible();
  await expect(page.locator("#glass-numbers h2")).toContainText("Token 2");
  await page.locator("#glass-tabs a", { hasText: "Attention" }).click();
  await page.locator("#glass-within a", { hasText: "One head" }).click();
  await painted(page);
  await page.keyboard.press("]");
  await page.keyboard.press("}");
  await page.keyboard.press("m");
  const before = await state(page);
  expect(before).toMatchObject({ v: "head", l: "1", h: "1", q: "2", s: "scores", p: "The cat sat on the mat" });
  await page.keyboard.press("t");
  await expect(page.locator(".sheet [aria-selected='true']")).toBeVisible();
  expect(await state(page)).toMatchObject({ v: "table", n: "blocks.1.attn.hook_raw_scores", h: "1", q: "2" });
  await page.goBack();
  await expect(page.locator(".heat")).toBeVisible();
  expect(await state(page)).toEqual(before);
  await page.reload();
  await complete(page);
  await expect(page.locator(".segments [aria-pressed='true']")).toHaveText("Scores");
  await expect(page.locator("#glass-chips .token[aria-selected='true']"))
    .toHaveText(await page.locator("#glass-chips .token").nth(2).textContent());
  expect(await state(page)).toEqual(before);
});

test("what was chosen a moment before does not write over an address that is gone to", async ({ page }) => {
  await look(page, "v=head&l=1&h=1&q=3&k=1");
  await painted(page);
  // the choice is written a moment later: here, after the address has changed and before the page is told
  await page.evaluate(() => {
    const later = window.setTimeout;
    window.held = [];
    window.setTimeout = (done, after, ...rest) => (after === 120 ? window.held.push(done)
      : later(done, after, ...rest));
  });
  await page.keyboard.press("]");
  expect(await page.evaluate(() => window.held.length)).toBe(1);
  await page.evaluate(() => {
    location.hash = "v=text&q=1";
    window.held.forEach((done) => done());
  });
  await expect(page.locator(".chart")).toBeVisible();
  expect(await state(page)).toMatchObject({ v: "text", q: "1" });
});

test("every view goes by keyboard alone", async ({ page }) => {
  await look(page, "v=head&q=4&k=1");
  await painted(page);
  const cell = page.locator(".live-cell");
  await cell.focus();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowRight");
  expect(await state(page)).toMatchObject({ q: "3", k: "2" });
  await expect(page.locator("#spoken")).toContainText(/^3 .* → 2 .*: [\d.e−]+, /);
  await expect(cell).toHaveAttribute("aria-label", /^3 .* → 2 /);
  await expect(page.locator(".live-grid [role='row']")).toHaveAttribute("aria-rowindex", "4");
  await page.keyboard.press("Home");
  await page.keyboard.press("Shift+ArrowUp");
  expect(await state(page)).toMatchObject({ q: "0", k: "0" });
  await page.keyboard.press("+");
  await expect.poll(() => page.locator(".heat").getAttribute("data-cells").then((cells) => Number(cells.split(" ")[2])))
    .toBeGreaterThan(20);
  await page.keyboard.press("0");
  await page.keyboard.press("f");
  await expect(page.locator("#glass-numbers")).toBeHidden();
  await page.keyboard.press("Escape");
  await expect(page.locator("#glass-numbers")).toBeVisible();
  // find a token, go to a head
  await page.keyboard.press("/");
  await expect(page.locator("#glass-seek")).toBeFocused();
  await page.keyboard.type("3");
  await page.keyboard.press("Enter");
  expect(await state(page)).toMatchObject({ q: "3" });
  await page.locator("#glass-seek").fill("L2H1");
  await page.keyboard.press("Enter");
  expect(await state(page)).toMatchObject({ v: "head", l: "2", h: "1" });
  // one that is not there is said, and nothing moves
  await page.locator("#glass-seek").fill("L9H9");
  await page.keyboard.press("Enter");
  expect(await page.locator("#glass-seek").evaluate((field) => field.validationMessage))
    .toMatch(/There is no head L9H9: this model has layers 0 to \d+/);
  expect(await state(page)).toMatchObject({ v: "head", l: "2", h: "1" });
  await page.keyboard.press("Escape");
  await page.locator("#glass-chips .token[tabindex='0']").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Shift+ArrowRight");
  expect(await state(page)).toMatchObject({ q: "4" });
  // the map and the heads
  for (const view of ["map", "heads"]) {
    await page.evaluate((view) => (location.hash = `v=${view}&l=0&h=0`), view);
    await expect(page.locator(`#glass[data-view="${view}"]`)).toBeVisible();
    await complete(page);
    await cell.focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowRight");
    await expect(page.locator("#spoken")).toContainText("L1H1");
    await page.keyboard.press("Enter");
    await expect(page.locator(".head h2").first()).toContainText("L1H1");
  }
  // the table: its cells, and its search
  await page.evaluate(() => (location.hash = "v=table"));
  await page.locator("#tensor-name").focus();
  await page.keyboard.type("blocks.1.hook_resid_mid");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await expect(page.locator(".sheet")).toHaveAttribute("aria-label", "blocks.1.hook_resid_mid");
  const chosen = page.locator(".sheet [role='gridcell'][tabindex='0']");
  await chosen.focus();
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowUp");
  await expect(chosen).toBeFocused();
  const columns = Number(await page.locator(".sheet").getAttribute("aria-colcount")) - 1;
  await expect(chosen).toHaveAttribute("aria-colindex", `${columns + 1}`);
  await expect(chosen).toHaveText(/^−?\d\.\d{6}$/);
});

test("a table has every number exactly, and gives the whole of it away", async ({ page }) => {
  await look(page, "v=table&n=blocks.1.hook_resid_post&q=0");
  const id = await trace(page);
  const { values, shape } = await json(page, `traces/${id}/tensors/blocks.1.hook_resid_post`);
  const six = (value) => value.toFixed(6).replace("-", "−");
  for (const [r, c] of [[0, 0], [2, 3]]) await expect(page.locator(`.sheet [data-at="${r},${c}"]`))
    .toHaveText(six(values[r * shape[2] + c]));
  await page.locator(".cells").evaluate((box) => box.scrollTo(box.scrollWidth, 0));
  await expect(page.locator(`.sheet [data-at="1,${shape[2] - 1}"]`)).toHaveText(six(values[2 * shape[2] - 1]));
  const download = page.waitForEvent("download");
  await page.locator(".files a", { hasText: "csv" }).click();
  expect((await download).suggestedFilename()).toBe("blocks.1.hook_resid_post.csv");
});

test("a table is copied as the terminal prints it", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await look(page, "v=table&n=blocks.1.hook_resid_post&p=The+cat+sat");
  await expect(page.locator(".sheet [role='gridcell']").first()).toHaveText(/\d/);
  await page.getByRole("button", { name: "Copy as table" }).click();
  await expect(page.locator("#spoken")).toHaveText("copied");
  const options = ["--prompt", "The cat sat", "--tensor", "blocks.1.hook_resid_post", "--labels", "false", "--view",
    "table", "--width", "65535"];
  const { stdout } = spawnSync(BINARY, ["inspect", "--model", process.env.LIMPID_FOLDER, ...options],
    { encoding: "utf8" });
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(stdout.split("\n").slice(1).join("\n"));
});

test("two texts are compared everywhere, by their difference", async ({ page }) => {
  await look(page, "v=head&l=1&h=1&q=4&k=1&p=The+cat+sat+on+the+mat");
  const id = await trace(page);
  await page.keyboard.press("c");
  await page.locator("#glass-other-prompt").fill("The dog sat on the mat");
  await page.keyboard.press("Enter");
  await expect(page.locator("#glass-notice")).toContainText("this run minus the other text");
  expect(await state(page)).toMatchObject({ c: "The dog sat on the mat" });
  await painted(page);
  const other = await page.locator("#glass").getAttribute("data-other");
  const { values } = await json(page, `traces/${id}/tensors/blocks.1.attn.hook_pattern?at=0,1,4,1&other=${other}`);
  await expect(page.locator(".cell-line"))
    .toContainText(`${Number(values[0].toPrecision(6))}`.replaceAll("-", "−").slice(0, 6));
  await page.evaluate(() => (location.hash = location.hash.replace("v=head", "v=map")));
  await expect(page.locator(".reading")).toContainText("Surprise differs most at");
  await page.getByRole("button", { name: "Stop comparing" }).click();
  await expect(page.locator("#glass-notice")).toHaveText("");
  // texts of another length: said, and nothing is lost
  await page.evaluate(() => (location.hash = "v=map&p=The+cat+sat&c=The+cat+sat+on+the+mat"));
  await expect(page.locator("#glass-notice")).toContainText("Differences need texts of equal length");
});

test("two models are compared everywhere, by their difference", async ({ page }) => {
  const text = "Once upon a time, there was";
  await look(page, `v=head&l=1&h=1&q=4&k=1&p=${encodeURIComponent(text)}`, "TWIN");
  const id = await trace(page);
  await page.getByRole("button", { name: "Compare" }).click();
  await page.locator("#glass-other-model").selectOption("twin");
  await page.locator("#glass-run").click();
  await expect(page.locator("#glass-notice")).toContainText("the same text by twin");
  expect(await state(page)).toMatchObject({ cm: "twin" });
  await painted(page);
  // the number that is shown is the one that two runs apart from the page have
  const weight = (model) => page.evaluate(async ([prompt, model]) => {
    const headers = { "content-type": "application/json" };
    const run = await fetch("/inspect/v1/traces", { method: "POST", headers, body: JSON.stringify({ prompt, model }) });
    const { id, fingerprint } = JSON.parse((await run.text()).split("\n")[0]);
    const { values } = await (await fetch(`/inspect/v1/traces/${id}/tensors/blocks.1.attn.hook_pattern?at=0,1,4,1`))
      .json();
    return { id, fingerprint, value: values[0] };
  }, [text, model]);
  const [own, theirs] = [await weight("base"), await weight("twin")];
  expect([own.id === id, own.fingerprint === theirs.fingerprint]).toEqual([true, false]);
  const less = Math.fround(own.value - theirs.value);
  expect(less).not.toBe(0);
  await expect(page.locator(".cell-line"))
    .toContainText(`${Number(less.toPrecision(6))}`.replaceAll("-", "−").slice(0, 6));
  for (const view of VIEWS) {
    await page.evaluate((hash) => (location.hash = hash),
      `v=${view}&l=1&h=1&q=4&p=${encodeURIComponent(text)}&cm=twin`);
    await expect(page.locator(READY[view]).first(), view).toBeVisible({ timeout: 60_000 });
    await expect(page.locator("#glass-view .trouble"), view).toHaveCount(0);
    await expect(page.locator("#glass-notice"), view).toContainText("by twin");
  }
  // a model of another kind has nothing to take away: it is said, and this one's numbers stay
  await page.evaluate((hash) => (location.hash = hash), `v=map&p=${encodeURIComponent(text)}&cm=chat`);
  await expect(page.locator("#glass-notice")).toContainText(/by chat|Differences need/);
  await expect(page.locator(READY.map).first()).toBeVisible();
});

test("steps change the run in every view, and what is wrong with them is said beside them",
  async ({ page, expected }) => {
  expected.push("400", "403");
  const text = "Once upon a time, there's was";
  await look(page, `v=map&p=${encodeURIComponent(text)}`, "TWIN");
  const plain = await trace(page);
  await page.keyboard.press("i");
  const [steps, fault, run] = [page.getByLabel("Steps that change the run"), page.locator("#glass-steps-fault"),
    page.locator("#glass-run")];
  await expect(steps).toBeFocused();
  for (const [given, said] of [["[{", "not JSON"], ['[{"ablate": "blocks.0.hook_mlp_uot"}]', "did you mean"],
    ['[{"ablate": "blocks.0.hook_resid_pre", "pos": 99}]', "there is no position 99"]]) {
    await steps.fill(given);
    await run.click();
    await expect(fault).toContainText(said);
    await expect(steps).toHaveAttribute("aria-invalid", "true");
    await expect(page.locator("#glass-notice .trouble")).toHaveCount(0);
  }
  const zero = '[{"ablate": "blocks.0.hook_mlp_out", "pos": 3}]';
  await steps.fill(zero);
  await run.click();
  await complete(page);
  await expect(fault).toBeEmpty();
  expect(await state(page)).toMatchObject({ i: zero });
  const changed = await trace(page);
  expect(changed).not.toBe(plain);
  await expect(page.locator("#glass-steps-line code"))
    .toHaveText(`limpid inspect --model ${process.env.LIMPID_FOLDER} `
      + `--prompt 'Once upon a time, there'\\''s was' --intervene '${zero}'`);
  // beside the same text without the change: what is before the place is the same
  await page.getByRole("button", { name: "Compare" }).click();
  await expect(page.locator("#glass-notice")).toContainText("this run minus the same text without the change");
  const less = await json(page, `traces/${changed}/tensors/blocks.1.hook_resid_pre?other=${plain}`);
  const rows = [2, 3].map((row) => less.values.slice(row * less.shape[2], (row + 1) * less.shape[2])
    .some((value) => value !== 0));
  expect(rows).toEqual([false, true]);
  for (const view of VIEWS) {
    await page.evaluate((hash) => (location.hash = hash),
      `v=${view}&l=1&h=1&q=4&i=${encodeURIComponent(zero)}`
      + `&c=${encodeURIComponent(text)}&p=${encodeURIComponent(text)}`);
    await expect(page.locator(READY[view]).first(), view).toBeVisible({ timeout: 60_000 });
    await expect(page.locator("#glass-view .trouble"), view).toHaveCount(0);
  }
  expect(await trace(page)).toBe(changed);
  await page.getByRole("button", { name: "Undo the change" }).click();
  await expect.poll(() => trace(page)).toBe(plain);
  // a server that does not allow it
  await page.goto(`${at("BASE")}/#v=map&i=${encodeURIComponent(zero)}&p=${encodeURIComponent(text)}`);
  await expect(fault).toContainText("--allow-interventions");
});

test("an encoder fills in what is hidden, and says so in every view", async ({ page }) => {
  await look(page, `v=map&q=3&p=${encodeURIComponent("Once upon a [MASK]")}`, "BERT");
  const id = await trace(page);
  await expect(page.locator(".reading .lead")).toContainText(/^In place of .*\[MASK\].* it expects/);
  await expect(page.locator(".of-token")).toContainText("What it expects here");
  // nothing is known of what is hidden; a token in sight is told by the prediction at its own place
  await expect(page.locator(".of-token dt")).toHaveText(["id"]);
  await page.locator(".chips .token").nth(1).click();
  const { logprob } = await json(page, `traces/${id}/predictions?position=1`);
  await expect(page.locator(".of-token")).toContainText(`${(-logprob).toFixed(3)} nats`);
  await expect(page.locator(".chips").first()).toHaveClass(/apart/);
  for (const view of VIEWS) {
    await page.evaluate((hash) => (location.hash = hash),
      `v=${view}&l=1&h=1&q=1&p=${encodeURIComponent("Once upon a [MASK]")}`);
    await expect(page.locator(READY[view]).first(), view).toBeVisible({ timeout: 60_000 });
    await expect(page.locator("#glass-view .trouble"), view).toHaveCount(0);
    // the walks are of documents on models that continue a text
    if (view !== "walks") expect(await page.locator("#glass-view").textContent(),
      view).not.toMatch(/follows|expects? next/);
  }
});

test("a prompt that is too long says by how much, and its end can be kept", async ({ page, expected }) => {
  expected.push("400");
  await look(page);
  await page.locator("#glass-prompt").fill("the cat sat on a mat ".repeat(80));
  await page.locator("#glass-run").click();
  const { context_length: most } = await json(page, "model");
  await expect(page.locator("#glass-notice"))
    .toContainText(/more than the context of \d+: shorten it, or keep its end\./);
  await expect(page.locator("#glass-notice")).not.toContainText('"last"');
  await page.getByRole("button", { name: `Keep the last ${most} tokens` }).click();
  await complete(page);
  await expect(page.locator("#glass-chips .token")).toHaveCount(most);
  await expect(page.locator("#glass-notice")).toContainText(/The first \d+ tokens are left out/);
  expect(await state(page)).toMatchObject({ last: "1" });
});

test("no text at all leads to the example", async ({ page, expected }) => {
  expected.push("400");
  await page.goto(`${at("BASE")}/#v=text&p=`);
  await expect(page.locator("#glass-notice")).toContainText("empty_prompt");
  await page.getByRole("button", { name: "Use the example" }).click();
  await complete(page);
  await expect(page.locator("#glass-notice")).toHaveText("");
});

test("a tensor that does not exist leads to the nearest", async ({ page }) => {
  await look(page, "v=table&n=blocks.1.hook_resid_pots");
  await expect(page.locator(".table .trouble")).toContainText("There is no tensor “blocks.1.hook_resid_pots”");
  await page.locator(".table .trouble a").click();
  await expect(page.locator(".sheet")).toHaveAttribute("aria-label", "blocks.1.hook_resid_post");
});

test("a trace that the server forgot is asked for again, without a word", async ({ page, expected }) => {
  expected.push("404");
  await look(page, "v=head&l=0&h=0&p=A+text+that+no+other+test+looks+at");
  await painted(page);
  const id = await trace(page);
  await page.evaluate((id) => fetch(`/inspect/v1/traces/${id}`, { method: "DELETE" }), id);
  await page.keyboard.press("]");
  await painted(page);
  await expect(page.locator(".head h2").first()).toContainText("L1H0");
  await expect(page.locator("#glass-numbers .sum")).toHaveText(/sum (1\.0000|0\.9999|1\.0001)/);
  await expect(page.locator("#glass .trouble")).toHaveCount(0);
});

test("a server that is gone says so, and can be tried again", async ({ page, expected }) => {
  expected.push("ERR_FAILED");
  await look(page, "v=head&l=0&h=0");
  await painted(page);
  await page.route("**/inspect/**", (route) => route.abort());
  await page.keyboard.press("]");
  await expect(page.locator(".heat-view .trouble")).toContainText("The server does not answer.");
  await page.unroute("**/inspect/**");
  await page.locator(".heat-view .trouble button").click();
  await painted(page);
  await expect(page.locator(".heat-view .trouble")).toHaveCount(0);
});

test("a model that has changed meanwhile is said, and can be run", async ({ page }) => {
  await page.clock.install();
  await look(page);
  const model = await json(page, "model");
  await page.route("**/inspect/v1/model", (route) =>
    route.fulfill({ json: { ...model, fingerprint: "another", step: 999 } }));
  await page.clock.fastForward(60_000);
  await page.evaluate(() => dispatchEvent(new Event("focus")));
  await expect(page.locator("#glass-notice")).toContainText("The model has changed since this prompt was run");
  await page.getByRole("button", { name: "Run it again" }).click();
  await expect(page.locator("#glass-notice")).toHaveText("");
});

test("a model without a head for tokens has all but the text's surprise", async ({ page }) => {
  await page.route("**/inspect/v1/model", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), lm_head: false } });
  });
  await look(page, "v=text");
  await expect(page.locator("#glass-view")).toContainText("it is an encoder");
});

test("text that means harm is only shown", async ({ page }) => {
  await look(page, `v=map&p=${encodeURIComponent("</script><img src=x onerror=alert(1)>\u202E\u200B")}`);
  expect(await page.locator("#glass img, #glass script").count()).toBe(0);
  const marks = page.locator("#glass-chips .mark");
  expect(await marks.count()).toBeGreaterThan(0);
  for (const view of VIEWS) {
    await page.evaluate((view) => (location.hash = location.hash.replace(/v=\w+/, `v=${view}`)), view);
    await expect(page.locator("#glass-tabs [aria-current=page]")).toHaveCount(1);
    expect(await page.locator("#glass img, #glass script").count(), view).toBe(0);
  }
});

for (const [width, colorScheme, forcedColors] of [[1200, "light", "none"], [1900, "dark", "none"],
  [400, "light", "none"], [400, "dark", "none"], [1200, "dark", "active"]]) {
  test(`nobody is shut out of any view, ${width} wide, ${colorScheme}, forced colours ${forcedColors}`,
    async ({ page }) => {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme, forcedColors });
    for (const view of VIEWS) {
      await look(page, `v=${view}&l=1&h=1`);
      await expect(page.locator(READY[view]).first()).toBeVisible();
      if (view === "table") await expect(page.locator(".sheet [role='gridcell']").first()).toHaveText(/\d/);
      expect(await barriers(page), view).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth), view).toBeLessThanOrEqual(width);
    }
  });
}

test("nobody is shut out of any view of two texts", async ({ page }) => {
  for (const view of VIEWS) {
    await look(page, `v=${view}&l=1&h=1&p=The+cat+sat&c=The+dog+sat`);
    await expect(page.locator("#glass-notice")).toContainText("difference");
    expect(await barriers(page), view).toEqual([]);
  }
});

test("a long prompt through many layers stays within its budgets", async ({ page, expected }) => {
  // gradients keep the whole run, which is more than the server has room for
  expected.push("status of 400");
  const words = "the cat sat on a mat and then it ran to the big old house where a dog was ".repeat(60);
  let [thumbnails, tiles, tileBytes, atOnce, most] = [0, 0, 0, 0, 0];
  const ofTiles = (request) => request.url().endsWith("/tiles");
  page.on("request", (request) => ofTiles(request) && (most = Math.max(most, ++atOnce)));
  page.on("requestfailed", (request) => ofTiles(request) && atOnce--);
  page.on("requestfinished", async (request) => {
    if (ofTiles(request)) {
      atOnce--;
      tiles += request.postDataJSON().tiles.length;
      tileBytes += (await request.sizes()).responseBodySize;
    } else if (request.url().endsWith("/traces") && request.method() === "POST") {
      const lines = (await (await request.response()).text()).split("\n").filter(Boolean)
        .map((line) => JSON.parse(line));
      thumbnails = lines.reduce((sum, line) => sum + (line.thumbnails?.length ?? 0), 0);
    }
  });
  await look(page, `v=map&last=1&p=${encodeURIComponent(words)}`, "DEEP");
  await expect.poll(() => thumbnails).toBeGreaterThan(0);
  expect(thumbnails).toBeLessThanOrEqual(1e6);
  // the model was trained without a probe
  for (const view of VIEWS.filter((view) => view !== "timelapse")) {
    await page.evaluate((view) => (location.hash = location.hash.replace(/v=\w+/, `v=${view}`)), view);
    await expect(page.locator(`#glass[data-view="${view}"]`)).toBeVisible();
    if (view === "head") {
      await painted(page);
      await expect.poll(() => tileBytes).toBeGreaterThan(0);
      expect([tiles, tileBytes].map((n, i) => n <= [4, 300_000][i]), `${tiles} tiles, ${tileBytes} bytes`)
        .toEqual([true, true]);
    }
    if (view === "gradients") await expect(page.locator(".gradients")).toContainText("the memory of traces: it needs");
    else await expect(page.locator(READY[view]).first()).toBeAttached();
    expect(await page.locator("*").count(), view).toBeLessThanOrEqual(3000);
  }
  // zoom: only one request at a time, of what is in sight
  await page.evaluate(() => (location.hash = location.hash.replace(/v=\w+/, "v=head")));
  await painted(page);
  await page.locator(".heat").evaluate((frame) => frame.scrollIntoView());
  const box = await page.locator(".heat").boundingBox();
  await page.mouse.move(box.x + 200, box.y + 320);
  for (let n = 0; n < 6; n++) await page.mouse.wheel(0, -300);
  await painted(page);
  expect(most).toBe(1);
  await expect(page.locator(".heat")).toHaveAttribute("data-level", "0");
});

test("nothing moves, and one picture is one stop of the tab key", async ({ page }) => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await look(page, "v=head");
  await painted(page);
  expect(await page.evaluate(() => document.getAnimations().length)).toBe(0);
  expect(await page.locator(".heat [tabindex='0']").count()).toBe(1);
});

test.describe("a phone", () => {
  test.use({ viewport: { width: 400, height: 800 }, hasTouch: true, isMobile: true });

  test("a tap chooses, a long press looks, two fingers make it larger", async ({ page }) => {
    await look(page, "v=head&l=1&h=1&q=3&k=1");
    await painted(page);
    await page.locator(".heat").scrollIntoViewIfNeeded();
    const box = await page.locator(".heat").boundingBox();
    const [x, y, cw, ch] = (await page.locator(".heat").getAttribute("data-cells")).split(" ").map(Number);
    await page.touchscreen.tap(box.x + x + 0.5 * cw, box.y + y + 2.5 * ch);
    expect(await state(page)).toMatchObject({ q: "2", k: "0" });
    const client = await page.context().newCDPSession(page);
    const touch = (type, ...points) => client.send("Input.dispatchTouchEvent",
      { type, touchPoints: points.map(([x, y], id) => ({ x, y, id })) });
    const middle = [box.x + x + 3.5 * cw, box.y + y + 5.5 * ch];
    await touch("touchStart", [middle[0] - 10, middle[1]]);
    await expect(page.locator(".cell-line")).not.toContainText(/^2 /);
    await touch("touchEnd");
    expect(await state(page)).toMatchObject({ q: "2", k: "0" });
    await touch("touchStart", [middle[0] - 10, middle[1]], [middle[0] + 10, middle[1]]);
    for (const far of [12, 20, 30, 40]) await touch("touchMove", [middle[0] - far, middle[1]],
      [middle[0] + far, middle[1]]);
    await touch("touchEnd");
    await expect.poll(async () => Number((await page.locator(".heat").getAttribute("data-cells")).split(" ")[2]))
      .toBeGreaterThan(1.5 * cw);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(400);
    for (const target of await page.locator("#glass button:visible, #glass nav a:visible").all()) {
      expect((await target.boundingBox()).height, await target.innerText()).toBeGreaterThanOrEqual(44);
    }
  });
});
