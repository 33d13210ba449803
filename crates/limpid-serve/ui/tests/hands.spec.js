// Hands on the parts of the model: each can be silenced, halved, taken from another text or frozen, and the answer
// before and after stands beside it at once.
import { at, barriers, expect, open, test } from "./page.js";

const TEXT = "Once upon a time, there was a boy";

const steps = (page) => page.evaluate(() =>
  JSON.parse(new URLSearchParams(location.hash.slice(1)).get("i") || "[]"));

/** What is expected after the text, without changes and with them, as the server says it. */
async function expectations(page, interventions) {
  return page.evaluate(async ([prompt, changes]) => {
    const after = async (body) => {
      const answer = await fetch("/inspect/v1/traces", {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
      });
      const events = (await answer.text()).trim().split("\n").map((line) => JSON.parse(line));
      return events.findLast(({ event }) => event === "predictions").rows.at(-1).top;
    };
    return [await after({ prompt }), await after({ prompt, interventions: changes })];
  }, [TEXT, interventions]);
}

test("a head is silenced in two clicks, and the answer stands before and after beside it", async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 900 });
  await open(page, "TWIN", `#${new URLSearchParams({ v: "map", p: TEXT })}`);
  await expect(page.locator("#glass-facts")).toContainText("nats a token");
  await expect(page.locator("#glass-before")).toBeHidden();
  const ladder = page.locator(".ladder canvas");
  const box = await ladder.boundingBox();
  await page.mouse.click(box.x + 70, box.y + 50); // the first head
  await page.getByRole("group", { name: "Change L0H0", exact: true }).getByRole("button", { name: "Silence" }).click();
  const before = page.getByRole("region", { name: "Before and after the change" });
  await expect(before).toContainText("L0H0 silenced");
  await expect(before.locator("tbody tr").first()).toBeVisible();
  await expect.poll(() => steps(page)).toEqual([{ ablate: "blocks.0.attn.hook_z", head: 0 }]);
  const [plain, changed] = await expectations(page, [{ ablate: "blocks.0.attn.hook_z", head: 0 }]);
  const share = (p) => `${(100 * p).toFixed(100 * p < 9.995 ? 2 : 1)} %`;
  const first = before.locator("tbody tr").first().locator("td");
  await expect(first.first()).toHaveText(share(plain[0][2]));
  const now = changed.find(([id]) => id === plain[0][0]);
  await expect(first.last()).toHaveText(now ? share(now[2]) : /^< /);
  expect(await barriers(page)).toEqual([]);
  // pressed again it is undone
  await page.getByRole("group", { name: "Change L0H0", exact: true }).getByRole("button", { name: "Silence" }).click();
  await expect(before).toBeHidden();
  await expect.poll(() => steps(page)).toEqual([]);
});

test("units, MLPs, words and edges have the same menu, by keyboard too", async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 1100 });
  const go = (state) => open(page, "TWIN", `#${new URLSearchParams({ p: TEXT, ...state })}`);
  const menu = (name) => page.getByRole("group", { name: `Change ${name}`, exact: true });
  await go({ v: "mlp", l: "1", neuron: "3" });
  await menu("L1 MLP").getByRole("button", { name: "Halve" }).click();
  await expect.poll(() => steps(page)).toEqual([{ scale: "blocks.1.hook_mlp_out", by: 0.5 }]);
  const unit = page.locator('[aria-label^="Change L1U"] [data-deed=silence]');
  await unit.focus();
  await page.keyboard.press("Enter");
  await expect.poll(async () => (await steps(page)).length).toBe(2);
  await expect(unit).toBeFocused();
  await expect(page.locator("#glass-before li")).toHaveCount(2);
  await page.getByRole("button", { name: "Undo: L1 MLP halved" }).click();
  await expect(page.locator("#glass-before li")).toHaveCount(1);
  expect(await barriers(page)).toEqual([]);
  // an edge of the attention of a head
  await go({ v: "head", l: "1", h: "2", q: "5", k: "3" });
  await menu("L1H2, 5 → 3").getByRole("button", { name: "Silence" }).click();
  await expect.poll(() => steps(page))
    .toEqual([{ scale: "blocks.1.attn.hook_pattern", by: 0, head: 2, pos: 5, key: 3 }]);
  await expect(page.locator("#glass-before")).toContainText("L1H2, 5 → 3 silenced");
  // a word that is taken from another text
  await go({ v: "map", q: "3" });
  await menu("word 3").getByRole("button", { name: "Take …" }).click();
  const field = page.getByLabel("Text that word 3 is taken from");
  await field.fill(TEXT.replace("boy", "girl"));
  await field.press("Enter");
  await expect(page.locator("#glass-before")).toContainText("word 3 taken from “");
  // frozen alone nothing changes
  await go({ v: "head", l: "0", h: "1" });
  await menu("L0H1").getByRole("button", { name: "Freeze" }).click();
  await expect(page.locator("#glass-before")).toContainText("L0H1 frozen");
  const cells = page.locator("#glass-before tbody tr").first().locator("td");
  await expect(cells.first()).toHaveText(/%/);
  expect(await cells.first().textContent()).toBe(await cells.last().textContent());
});

test("a server that changes no run says so, and a comparison needs no second press", async ({ page }) => {
  await open(page, "BASE", `#${new URLSearchParams({ v: "head", p: TEXT })}`);
  await expect(page.locator("#glass-numbers")).toContainText("serve the model with --allow-interventions");
  const i = JSON.stringify([{ ablate: "blocks.0.attn.hook_z", head: 1 }]);
  await open(page, "TWIN", `#${new URLSearchParams({ v: "map", p: TEXT, i })}`);
  await expect(page.locator("#glass-before")).toContainText("L0H1 silenced");
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await expect(page.locator("#glass-notice")).toContainText("minus the same text without the change");
});

test("units have words", async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 1100 });
  await open(page, "TWIN", `#${new URLSearchParams({ v: "mlp", l: "0", p: TEXT })}`);
  await expect(page.locator(".unit-words h2")).toHaveText(/^L0U\d+ responds to$/);
  await expect(page.locator(".unit-words .note").first()).toContainText("tokens of stories that no training has seen");
  expect(await page.locator(".places li").count()).toBe(8);
  await expect(page.locator(".terms tbody tr").first().locator("td").last()).not.toBeEmpty();
  await page.getByText("Look in another text").click();
  await page.getByLabel("Text to look in").fill("the boy and the girl and the boy");
  await page.getByRole("button", { name: "Look there" }).click();
  await expect(page.locator(".unit-words .note").first()).toContainText("the text that you gave");
  expect(await barriers(page)).toEqual([]);
});

test("the ways to look stand in one line", async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 900 });
  await open(page, "BASE", "#v=table");
  await expect(page.locator("#glass-facts")).toContainText("nats a token");
  const tops = await page.locator("#glass-tabs a")
    .evaluateAll((all) => all.map((tab) => tab.getBoundingClientRect().top));
  expect(new Set(tops).size).toBe(1);
  expect(tops.length).toBeLessThanOrEqual(10);
  const bar = await page.locator(".bar-of-tabs").boundingBox();
  expect(bar.height).toBeLessThan(40);
});

test("a direction is found, tested and tried", async ({ page }) => {
  await open(page, "TWIN", `#${new URLSearchParams({ v: "directions", p: TEXT })}`);
  await page.getByLabel("More like these, a text a line").fill("the boy was\na boy and\nhis boy was\nthat boy");
  await page.getByLabel("than like these").fill("the girl was\na girl and\nhis girl was\nthat girl");
  await page.getByRole("button", { name: "Find the direction" }).click();
  await expect(page.locator(".directions caption").first())
    .toHaveText("From 3 pairs, tested on 1 other; chance is 50 %.");
  await expect(page.locator(".directions table").nth(1).locator("th[scope=row]"))
    .toHaveText(["as it is", "by 0.5", "by 1", "by 2", "projected out"]);
  await page.getByRole("button", { name: "Change the run: projected out" }).click();
  await expect(page.locator("#glass-before")).toContainText(/a direction projected out of the stream after layer \d/);
  await expect.poll(async () => Object.keys((await steps(page))[0])).toContain("direction");
  expect(await barriers(page)).toEqual([]);
});
