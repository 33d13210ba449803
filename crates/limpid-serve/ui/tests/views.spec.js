// The views of what is inside, one by one: what they show against numbers that were computed another way.
import { spawnSync } from "node:child_process";
import { statSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { placeOf } from "../colours.js";
import { at, expect, paletteOf, test } from "./page.js";
import { BINARY } from "./servers.js";

const PROMPT = "p=The+cat+sat+on+the+mat";

/** Opens a view, and waits until the run is complete. */
async function look(page, hash, server = "BASE") {
  await page.goto(`${at(server)}/#${hash}`);
  await complete(page);
}

const complete = (page) => expect(page.locator("#glass-facts"))
  .toContainText(/^[\d,]+ tokens? through \d+ layers?(, [\d.]+ nats a token)?$/, { timeout: 120_000 });

/** Another address in the same page. */
const turnTo = (page, hash) => page.evaluate((hash) => (location.hash = hash), hash);

/** The state that the address tells. */
const state = async (page) => {
  await page.waitForTimeout(200); // it is written a moment later
  return page.evaluate(() => Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
};

/** Asks the server about the trace that is shown, without the page. */
async function ask(page, question) {
  const id = await page.locator("#glass").getAttribute("data-trace");
  return page.evaluate(async (path) => (await fetch(path)).json(), `/inspect/v1/traces/${id}/${question}`);
}

const json = (page, path) => page.evaluate(async (path) => (await fetch(`/inspect/v1/${path}`)).json(), path);

/** A number as it was written. */
const number = (text) => Number(text.replace("−", "-").replace("∞", "Infinity").replace(/[^-\d.eInfity]/g, ""));

/** Texts of elements, without what is drawn. */
const texts = (locator) => locator.evaluateAll((all) => all.map((one) => one.textContent));

for (const walk of ["s0", "s1", "s2", "s3", "s4"]) {
  test(`the walk ${walk} shows all that the terminal shows, step by step`, async ({ page }) => {
    test.setTimeout(400_000);
    const run = (...options) => spawnSync(BINARY, ["walk", walk, ...options],
      { encoding: "utf8", maxBuffer: 2 ** 26 }).stdout;
    const { steps } = JSON.parse(run("--json"));
    // the terminal's tables, by their rows of numbers
    const rows = new Set(run("--all", "--width", "65535").split("\n").map((line) => line.trim().split(/\s+/))
      .flatMap((cells) => cells.map((_, n) => cells.slice(n).join(" "))));
    await look(page, `v=walks&w=${walk}`);
    await expect(page.locator(".contents li")).toHaveCount(steps.length);
    // indices stand below and above
    const plain = (text) => text.replace(/[_^{}]/g, "");
    const seen = (text) => plain(text).replaceAll("−", "-").replaceAll("∞", "inf").replaceAll(/\s+/g, " ").trim();
    for (const [n, { step, figures, checks, shapes, notes }] of steps.entries()) {
      await turnTo(page, `v=walks&w=${walk}&step=${step.id}`);
      await expect(page.locator(".steps span")).toHaveText(`${n + 1} of ${steps.length}`);
      const lesson = page.locator(".lesson");
      await expect.poll(async () => seen(await lesson.locator("h3").textContent()), { timeout: 120_000 })
        .toBe(seen(step.section));
      const whole = await lesson.evaluate((element) => element.innerText
        + [...element.querySelectorAll("details")].map((one) => one.textContent).join("\n"));
      if (step.formula) expect(plain(await lesson.locator(".formula").textContent())).toBe(plain(step.formula));
      const held = seen(await lesson.evaluate((element) => element.textContent));
      const said = [step.title, step.see, ...notes, ...step.errata.map(({ note }) => note),
        ...checks.map(({ text }) => text), ...step.try, ...step.refused, ...shapes.map(({ symbol }) => symbol)];
      for (const text of said) expect(held.replace(/U\+00[01]\w/g, ""), `${step.id}: ${text}`).toContain(seen(text));
      expect(whole.length).toBeGreaterThan(20);
      const shown = lesson.locator("figure");
      await expect(shown).toHaveCount(figures.length);
      for (const [i, { view, heat, decimals, picture }] of figures.entries()) {
        const figure = shown.nth(i);
        // what the command that is named draws stands there, drawn
        const pictures = picture ? picture.command.split(view.kind === "sentence" ? /--diagram|--plot /
          : "--diagram").length - 1 : 0;
        const wide = await figure.locator("img").evaluateAll((all) => Promise.all(all.map(async (image) => {
          await image.decode();
          return image.naturalWidth;
        })));
        expect([wide.length, wide.every((pixels) => pixels > 300)], `${step.id}, figure ${i}`)
          .toEqual([pictures, true]);
        if (view.kind === "sentence") {
          expect(seen(await figure.locator(".sentence").textContent())).toContain(seen(view.text));
          if (view.holds !== null) await expect(figure.locator(`.${view.holds ? "holds" : "fails"}`)).toHaveCount(1);
        } else if (view.kind === "grid") {
          expect((await texts(figure.locator("tbody td"))).map(seen)).toEqual(view.rows.flat().map(seen));
        } else {
          const lines = await figure.locator("tbody tr")
            .evaluateAll((all) => all.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)));
          const [height, width] = view.size;
          expect(lines.length).toBe(height > 60 ? 11 : height);
          if (!heat) {
            for (const line of lines) expect(rows.has(seen(line.join(" "))),
              `${step.id}, figure ${i}: ${line.join(" ")}`).toBe(true);
          } else {
            await expect(figure.locator(".heat")).toHaveAttribute("data-painted", "1");
            lines.slice(0, 5).forEach((line, r) => line.slice(0, 10).forEach((text, c) => {
              const value = view.values[r * width + c];
              expect(typeof value === "string" ? text : Math.abs(number(text) - value) <= 0.5 * 10 ** -decimals + 1e-9,
                `${step.id}: ${text}, ${value}`).toBe(typeof value === "number" ? true : value.replace("-inf", "−∞"));
            }));
          }
        }
      }
    }
  });
}

test("a lesson has an address and keys, its pictures say their numbers, and it goes on another model",
  async ({ page }) => {
  await look(page, "v=walks&w=s0&step=general-attention");
  await expect(page.locator(".lesson h3")).toHaveText("Attention Notations: General Attention Mechanism");
  const heat = page.locator(".heat").nth(1);
  await expect(heat).toHaveAttribute("data-painted", "1");
  // what the mask hides is paper; the diagonal's colour is its number's
  const pixel = (r, c) => heat.evaluate((frame, [r, c]) => {
    const [x, y, cw, ch] = frame.dataset.cells.split(" ").map(Number);
    const ratio = devicePixelRatio;
    return [...frame.querySelector("canvas").getContext("2d").getImageData(Math.round((x + (c + 0.12) * cw) * ratio),
      Math.round((y + (r + 0.12) * ch) * ratio), 1, 1).data].slice(0, 3);
  }, [r, c]);
  const cells = page.locator("figure").nth(1).locator("tbody td");
  const colours = await paletteOf(page, "viridis");
  for (const [r, c] of [[1, 0], [1, 1], [2, 2]]) {
    const value = number(await cells.nth(3 * r + c).textContent());
    const place = 3 * Math.round(255 * placeOf(Math.round(253 * value) / 253,
      { spread: "linear", low: 0, high: 1, signed: false }));
    const own = await pixel(r, c);
    for (let n = 0; n < 3; n++) expect(Math.abs(own[n] - colours[place + n])).toBeLessThanOrEqual(4);
  }
  expect(await pixel(0, 2)).toEqual([255, 255, 255]);
  await heat.locator(".live-cell").focus();
  await page.keyboard.press("ArrowRight");
  await expect(page.locator("#spoken")).toContainText("cat, eat: hidden by the mask");
  await page.locator("h1").click();
  await page.keyboard.press("n");
  expect(await state(page)).toMatchObject({ v: "walks", w: "s0", step: "multi-head" });
  await page.keyboard.press("b");
  await expect(page.locator(".lesson h3")).toHaveText("Attention Notations: General Attention Mechanism");
  await page.goBack();
  await expect(page.locator(".contents [aria-current]")).toContainText("Multi-Head Attention");
  await page.locator("#walks-own").check();
  expect(await state(page)).toMatchObject({ own: "1" });
  await expect(page.locator(".lesson")).toContainText("their numbers and words are not those of your model",
    { timeout: 120_000 });
  await page.locator("h1").click();
  await page.keyboard.press("b");
  await expect(page.locator("figure:has(.heat)")).toHaveCount(2);
  await expect(page.locator("figure").first()).toContainText("blocks.0.attn.hook_pattern [batch 0, head 0]");
  await page.locator("figcaption a").first().click();
  await expect(page.locator(".sheet")).toHaveAttribute("aria-label", "blocks.0.attn.hook_pattern");
});

test("a walk begins with its first step, whatever was looked at before", async ({ page }) => {
  await look(page, `v=head&${PROMPT}&s=weights`);
  await page.locator("#glass-tabs a", { hasText: "Learn" }).click();
  await page.locator("#glass-within a", { hasText: "Walks" }).click();
  await expect(page.locator(".steps span")).toHaveText(/^1 of \d+$/, { timeout: 120_000 });
  // and its list leads to the others
  await page.locator(".contents a").nth(2).click();
  await expect(page.locator(".steps span")).toHaveText(/^3 of \d+$/);
  expect(await state(page)).toMatchObject({ v: "walks" });
});

test("notation: names lead to tables, and the strip of parameters is in true proportion", async ({ page }) => {
  await look(page, "v=notation&l=1");
  const model = await json(page, "model");
  const rows = page.locator("[aria-label='Symbols'] tbody tr");
  await expect(rows).toHaveCount(model.notation.length);
  const { tensors, params, ops } = await ask(page, "tensors");
  const shapes = new Map([...tensors, ...params].map(({ name, shape }) => [name, shape.join(" × ")]));
  for (const [n, { name, meaning }] of model.notation.entries()) {
    const own = name.replace("blocks.0.", "blocks.1.");
    await expect(rows.nth(n)).toContainText(meaning);
    await expect(rows.nth(n).locator("code")).toHaveAttribute("title", own);
    await expect(rows.nth(n)).toContainText(shapes.get(own));
  }
  const lines = page.locator("[aria-label='Operations'] tbody tr");
  const numbers = (await texts(lines.locator("th"))).map(Number);
  expect(numbers[0]).toBe(1);
  expect(numbers.at(-1)).toBe(ops.length);
  for (const [i, n] of numbers.entries()) await expect(lines.nth(i)).toContainText(ops[n - 1].shape.join(" × "));
  expect(await texts(page.locator("#glass-numbers .bars td:last-child")))
    .toEqual(model.groups.map(({ count }) => count.toLocaleString("en")));
  await expect(page.locator("#glass-numbers .sum"))
    .toHaveText(`sum ${params
      .reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b), 0).toLocaleString("en")}`);
  // a point of the strip is in the parameter that lies there
  const size = model.params.map(({ shape }) => shape.reduce((a, b) => a * b));
  const total = size.reduce((a, b) => a + b);
  const box = await page.locator(".strip-of").boundingBox();
  for (const share of [0.01, 0.3, 0.55, 0.8, 0.97]) {
    await page.mouse.move(box.x + share * box.width, box.y + 20);
    let from = 0;
    const owner = model.params.find((_, n) => (from += size[n]) > share * total);
    await expect(page.locator(".notation .cell-line")).toContainText(`${owner.name} [`);
  }
  await page.locator(".live-cell").focus();
  await page.keyboard.press("End");
  await expect(page.locator("#spoken")).toContainText(model.params.at(-1).name);
  await page.keyboard.press("Enter");
  await expect(page.locator(".sheet")).toHaveAttribute("aria-label", model.params.at(-1).name);
  await turnTo(page, "v=notation&l=0");
  await page.locator("[aria-label='Symbols'] a", { hasText: "attn.hook_pattern" }).click();
  await expect(page.locator(".sheet")).toHaveAttribute("aria-label", "blocks.0.attn.hook_pattern");
});

test("embeddings: positions in viridis, curves, and how alike tokens are", async ({ page }) => {
  await look(page, `v=embed&${PROMPT}&q=2&k=1&d=3,5`);
  const heat = page.locator(".heat");
  await expect.poll(() => heat.evaluate((frame) => Number(frame.dataset.painted ?? 0))).toBeGreaterThan(0);
  const { values, shape } = await ask(page, "tensors/pos_embed.weight");
  await expect(page.locator(".cell-line"))
    .toContainText(`position 2, dimension 3: ${
      `${Number(values[2 * shape[1] + 3].toPrecision(6))}`.replace("-", "−")}`);
  const most = Math.max(...values.map(Math.abs));
  const [level, cells] = [Number(await heat.getAttribute("data-level")),
    [[0, 0], [5, 7], [9, 40], [20, 21], [33, 3], [60, 66]]];
  expect(level).toBe(0);
  const pixels = await heat.evaluate((frame, cells) => {
    const [x, y, cw, ch] = frame.dataset.cells.split(" ").map(Number);
    const context = frame.querySelector("canvas").getContext("2d");
    return cells.map(([r, c]) =>
      [...context.getImageData(Math.round((x + (c + 0.5) * cw) * devicePixelRatio),
        Math.round((y + (r + 0.5) * ch) * devicePixelRatio), 1, 1).data].slice(0, 3));
  }, cells);
  const colours = await paletteOf(page, "viridis");
  cells.forEach(([r, c], n) => {
    const place = 3 * Math.round(255 * placeOf(values[r * shape[1] + c],
      { spread: "linear", low: -most, high: most, signed: true }));
    for (let i = 0; i < 3; i++) expect(Math.abs(pixels[n][i] - colours[place + i]), `${r}, ${c}`)
      .toBeLessThanOrEqual(6);
  });
  const three = values.filter((_, n) => n % shape[1] === 3);
  await expect(page.locator(".curves canvas")).toHaveAttribute("aria-label",
    new RegExp(`Dimension 3: from ${
      `${Number(Math.min(...three).toPrecision(3))}`.replace("-", "−")} to .* at position 2`));
  await page.getByRole("textbox", { name: "Dimensions of the curves" }).fill("7");
  await page.keyboard.press("Enter");
  await expect(page.locator(".curves canvas")).toHaveAttribute("aria-label", /Dimension 7: from/);
  // likeness, against the cosine of the vectors themselves
  await page.getByRole("button", { name: "Likeness" }).click();
  for (const name of ["hook_embed", "blocks.1.hook_resid_post"]) {
    await page.getByLabel("Of which vectors").selectOption(name);
    const { values: rows, shape: size } = await ask(page, `tensors/${name}`);
    const [a, b] = [2, 1].map((n) => rows.slice(n * size[2], (n + 1) * size[2]));
    const dot = (x, y) => x.reduce((sum, value, n) => sum + value * y[n], 0);
    const cosine = dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    await expect.poll(async () =>
      Math.abs(number((await page.locator(".cell-line").textContent()).split("cosine ")[1] ?? "9") - cosine))
        .toBeLessThan(1e-5);
  }
  expect(await state(page)).toMatchObject({ s: "likeness", of: "blocks.1.hook_resid_post", d: "7" });
});

test("lens: the last stage is what the model says, and a line stands where it settles", async ({ page }) => {
  await look(page, `v=lens&${PROMPT}&q=2`);
  const cells = page.locator(".lens-table tbody tr");
  const count = await page.locator("#glass-chips .token").count();
  await expect(cells).toHaveCount(count);
  const { n_layer: depth } = await json(page, "model");
  await expect(cells.first().locator("td")).toHaveCount(depth + 1);
  const { top } = await ask(page, "predictions?position=2&k=5");
  // the chosen stage is the last one
  expect(await texts(page.locator("#glass-numbers table").first().locator("th")))
    .toEqual(top.map(([, text]) => text.replaceAll(" ", "␣").replaceAll("\n", "↵")));
  await expect(page.locator("#glass-numbers")).toContainText("KL from it to the last0 nats");
  const answer = await ask(page, `lens?positions=0:${count}&k=5`);
  for (const [n, { cells: own, settled }] of answer.positions.entries()) {
    const line = await cells.nth(n).locator("td")
      .evaluateAll((all) => all.map((cell) => [cell.classList.contains("ring"), cell.classList.contains("settled")]));
    expect(line).toEqual(own.map(({ rank }, at) => [rank === 1, at === settled]));
    const likeliest = own.map(({ top }) => top[0][0]);
    expect(likeliest.slice(settled).every((id) => id === likeliest.at(-1))
      && (settled === 0 || likeliest[settled - 1] !== likeliest.at(-1))).toBe(true);
  }
  // a ring is drawn where the token that follows is the likeliest
  const shadows = await page.locator(".lens-table td")
    .evaluateAll((all) => all.map((cell) => [cell.classList.contains("ring"),
      getComputedStyle(cell).boxShadow.includes("2px inset")]));
  for (const [ring, drawn] of shadows) expect(drawn).toBe(ring);
  expect(shadows.some(([ring]) => ring)).toBe(true);
  await cells.nth(2).locator("td").last().focus();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowLeft");
  expect(await state(page)).toMatchObject({ q: "1", stage: `${depth - 1}` });
  await expect(page.locator(".lens-table [aria-selected]")).toBeFocused();
  await expect(page.locator(".lens-table [aria-selected]")).toHaveAttribute("aria-label",
    new RegExp(`^1 .*after layer ${depth - 2}: .*%`));
  await expect(page.locator(".lens")).toContainText(answer.note);
  await page.keyboard.press("e");
  await expect(page.locator(".why h2").first()).toContainText(`blocks.${depth - 2}.hook_resid_post [0, 1, 0]`);
});

test("why: the sum behind a number is the number, and its operands lead on", async ({ page }) => {
  for (const [name, place] of [["blocks.1.hook_attn_out", "0,3,5"], ["blocks.0.ln1.hook_out", "0,3,5"],
    ["blocks.1.attn.hook_pattern", "0,1,3,1"], ["blocks.1.mlp.hook_post", "0,2,9"], ["logits",
      "0,3,17"], ["embed.weight", "17,3"]]) {
    await look(page, `v=why&${PROMPT}&n=${name}&at=${place}`);
    const { values } = await ask(page, `tensors/${name}?at=${place}`);
    const value = `${Number(values[0].toPrecision(6))}`.replace("-", "−");
    await expect(page.locator(".why h2").first(), name).toContainText(value.includes("e") ? value.slice(0, 5) : value);
    await expect(page.locator(".sums > :last-child dd")).toHaveText(value);
    // parts, and what is not shown, add up to the sum
    const terms = (await texts(page.locator(".terms tr td:nth-child(4)"))).map(number);
    if (terms.length > 0) {
      const line = async (word) =>
        number((await texts(page.locator(".sums > div", { hasText: word }).locator("dd")))[0] ?? "0");
      const rest = (await page.locator(".sums > div", { hasText: "not shown" }).count()) ? await line("not shown") : 0;
      const sum = number((await page.locator(".sums > div").filter({ has: page.locator("dt", { hasText: /^sum$/ }) })
        .locator("dd").textContent()));
      expect(Math.abs(terms.reduce((all, term) => all + term, rest) - sum), name)
        .toBeLessThan(1e-4 * Math.max(1, Math.abs(sum)));
    }
  }
  await look(page, `v=why&${PROMPT}&n=blocks.1.mlp.hook_post&at=0,2,9`);
  await expect(page.locator(".why canvas")).toHaveAttribute("aria-label", /becomes/);
  expect(await state(page)).toMatchObject({ q: "2" });
  await page.locator(".terms a").first().click();
  await expect(page.locator(".why h2").first()).toContainText("blocks.1.mlp.hook_pre [0, 2, 9]");
  await page.locator(".terms a").first().click();
  await expect(page.locator(".why h2").first()).toContainText("blocks.1.ln2.hook_out [0, 2,");
  await page.goBack();
  await expect(page.locator(".why h2").first()).toContainText("blocks.1.mlp.hook_pre [0, 2, 9]");
  // the chosen token moves the place
  await page.locator("#glass-chips .token").nth(1).click();
  await expect(page.locator(".why h2").first()).toContainText("blocks.1.mlp.hook_pre [0, 1, 9]");
  await page.getByRole("spinbutton", { name: "d_ff" }).fill("11");
  await page.keyboard.press("Enter");
  await expect(page.locator(".why h2").first()).toContainText("blocks.1.mlp.hook_pre [0, 1, 11]");
});

test("why is one key away from every view", async ({ page }) => {
  for (const [view, name] of [["map", "blocks.1.attn.hook_pattern [0, 1,"],
    ["heads", "blocks.1.attn.hook_pattern [0, 1,"], ["head", "blocks.1.attn.hook_pattern [0, 1, 3, 1]"], ["text",
      "logits [0, 3,"], ["mlp", "blocks.1.mlp.hook_post [0, 3,"], ["path", "logits [0, 3,"],
      ["embed", "pos_embed.weight [3,"], 
      ["table&n=blocks.1.hook_mlp_out", "blocks.1.hook_mlp_out [0, 3,"]]) {
    await look(page, `v=${view}&${PROMPT}&l=1&h=1&q=3&k=1`);
    // beside numbers it stands among their tabs
    const way = /^(embed|table)/.test(view) ? page.locator("#glass-within a", { hasText: "Arithmetic" })
      : page.locator("#glass-why");
    await expect(way).toBeVisible();
    await expect(page.locator("#glass-view .trouble")).toHaveCount(0);
    await page.keyboard.press("e");
    await expect(page.locator(".why h2").first(), view).toContainText(name);
    await expect(page.locator(".sums")).toBeVisible();
  }
  await look(page, `v=head&${PROMPT}&l=1&h=1&q=3&k=1`);
  await page.locator("#glass-why").click();
  await expect(page.locator(".why h2").first()).toContainText("blocks.1.attn.hook_pattern [0, 1, 3, 1]");
});

test("why: what cannot be explained says so in place", async ({ page, expected }) => {
  expected.push("404", "400");
  await look(page, `v=why&${PROMPT}&n=blocks.1.hook_resid_pots&at=0,1,2`);
  await expect(page.locator(".why .trouble")).toContainText("blocks.1.hook_resid_pots");
});

test("MLP: its units are those of the tensor, the largest write first", async ({ page }) => {
  await look(page, `v=mlp&${PROMPT}&l=1&q=2`);
  await expect(page.locator(".mlp h2").first()).toContainText("L1 MLP at");
  const [{ values: pre }, { values: post }] = [await ask(page, "tensors/blocks.1.mlp.hook_pre?at=0,2,*"),
    await ask(page, "tensors/blocks.1.mlp.hook_post?at=0,2,*")];
  const { values: out, shape } = await ask(page, "tensors/blocks.1.mlp.out.weight");
  const [width, inside] = shape;
  const length = (unit) => Math.abs(post[unit]) * Math.hypot(...Array.from({ length: width }, (_, n) =>
    out[n * inside + unit]));
  const order = post.map((_, unit) => unit).sort((a, b) => length(b) - length(a));
  const rows = page.locator(".mlp tbody tr");
  await expect(rows.first().locator("th")).toHaveText(`${order[0]}`);
  const four = (value) => `${Number(value.toPrecision(4))}`.replace("-", "−");
  for (const n of [0, 1, 2]) {
    expect((await texts(rows.nth(n).locator("th, td.number"))).slice(0, 3))
      .toEqual([`${order[n]}`, four(pre[order[n]]), four(post[order[n]])]);
    expect(Math.abs(number(await rows.nth(n).locator("td.number").nth(2).textContent()) - length(order[n])))
      .toBeLessThan(1e-3);
  }
  const answer = await ask(page, "mlp?layer=1&position=2");
  expect(answer.counts.reduce((a, b) => a + b)).toBe(inside);
  await expect(page.locator(".mlp canvas")).toHaveAttribute("aria-label", /512 pre-activations/);
  await rows.nth(1).locator("a").click();
  await expect(page.locator("#glass-numbers")).toContainText(`L1U${order[1]}`);
  await page.keyboard.press("]");
  await expect(page.locator(".mlp h2").first()).toContainText("L2 MLP at");
  await page.getByRole("button", { name: "Previous layer" }).click();
  await expect(page.locator(".mlp h2").first()).toContainText("L1 MLP at");
});

test("two texts: lens, arithmetic, path and MLP show the other beside this one", async ({ page }) => {
  const both = `${PROMPT}&c=The+dog+sat+on+the+mat&q=3&l=1`;
  await look(page, `v=lens&${both}`);
  await expect(page.locator("#glass-numbers")).toContainText("The other");
  for (const [view, place, words] of [["why&n=blocks.1.hook_attn_out&at=0,3,5", "#glass-numbers", "the other’s"],
    ["path", ".parts", "("], ["mlp", ".mlp", "the other text"], ["embed&s=likeness", ".embed",
      "difference of the cosines"]]) {
    await turnTo(page, `v=${view}&${both}`);
    await expect(page.locator(place), view).toContainText(words);
  }
});

test("a question that fails says so in its view, and can be asked again", async ({ page, expected }) => {
  expected.push("ERR_FAILED");
  for (const [view, question, there] of [["lens", "lens", ".lens-table tbody tr"], ["why", "explain", ".sums"],
    ["path", "path", ".parts tbody tr"], ["mlp", "mlp", ".mlp tbody tr"], ["notation", "tensors",
      "[aria-label='Symbols'] tbody tr"], ["embed", "tensors", ".embed .heat"], ["walks", "walks", ".lesson h3"]]) {
    const pattern = new RegExp(`/inspect/v1/.*\\b${question}\\b`);
    await page.route(pattern, (route) => route.abort());
    await page.goto("about:blank");
    await look(page, `v=${view}&${PROMPT}`);
    await expect(page.locator("#glass-view .trouble"), view).toContainText("The server does not answer.");
    await page.unroute(pattern);
    await page.locator("#glass-view .trouble button").first().click();
    await expect(page.locator(there).first(), view).toBeVisible();
    await expect(page.locator("#glass-view .trouble")).toHaveCount(0);
  }
});

test("without a head for tokens, the views that need one say so", async ({ page }) => {
  await page.route("**/inspect/v1/model", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), lm_head: false } });
  });
  for (const view of ["lens", "path"]) {
    await look(page, `v=${view}`);
    await expect(page.locator("#glass-view")).toContainText("This model has no unembedding");
  }
});

test("a saved page shows every view without a server or a network, in two megabytes", async ({ page, context }, info) =>
  {
  const file = info.outputPath("saved.html");
  const { status, stderr } = spawnSync(BINARY,
    ["inspect", "--model", process.env.LIMPID_FOLDER, "--prompt", "The cat sat on the mat", "--still", "--html",
      file], { encoding: "utf8" });
  expect(status, stderr).toBe(0);
  expect(statSync(file).size).toBeLessThanOrEqual(2e6);
  await context.setOffline(true);
  const views = { map: ".reading", text: ".bars", heads: ".mosaic", head: ".heat[data-painted='1']", mlp: "tbody tr",
    lens: ".lens-table tbody tr", path: ".parts tbody tr", embed: ".curves canvas[aria-label*=Dimension]", "embed&s=likeness": ".heat[data-painted='1']", table: ".sheet [role='gridcell']", why: ".sums", notation: ".notation tbody tr" };
  for (const [view, there] of Object.entries(views)) {
    await page.goto("about:blank");
    await page.goto(`${pathToFileURL(file)}#v=${view}`);
    await expect(page.locator("#glass-view").locator(there).first(), view).toBeVisible();
    await expect(page.locator("#glass .trouble"), view).toHaveCount(0);
  }
  // what it does not hold, it says, with the command that shows it
  await page.goto(`${pathToFileURL(file)}#v=why&n=blocks.1.hook_attn_out&at=0,1,1`);
  await expect(page.locator(".why .trouble")).toContainText("The command that shows it: limpid inspect");
  await page.goto(`${pathToFileURL(file)}#v=walks`);
  await expect(page.locator("#glass-view")).toContainText("The walks need a server");
});
