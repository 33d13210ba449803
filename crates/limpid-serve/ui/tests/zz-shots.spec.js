import { at, expect, test } from "./page.js";
const [CLEAN, CORRUPT] = ["Once upon a time, there was a girl", "Once upon a time, there was a boy"];
for (const scheme of ["light", "dark"]) for (const width of [400, 1200, 1900]) test(`${scheme} ${width}`, async ({ page }) => {
  await page.emulateMedia({ colorScheme: scheme });
  await page.setViewportSize({ width, height: 1000 });
  await page.goto(`${at("TWIN")}/#${new URLSearchParams({ v: "sweep", p: CORRUPT, clean: CLEAN, ...(width === 1900 ? { site: "z", by: "position" } : {}) })}`);
  await page.getByLabel("Clean text").press("Enter");
  await expect(page.locator(".sweep li button").first()).toBeVisible();
  await page.waitForTimeout(800);
  await page.screenshot({ path: `/tmp/hpshots/sweep-${scheme}-${width}.png`, fullPage: true });
  await page.goto(`${at("BASE")}/#${new URLSearchParams({ v: "gradients", p: CORRUPT })}`);
  await expect(page.locator(".live-grid")).toHaveCount(2);
  await page.waitForTimeout(1500);
  await page.screenshot({ path: `/tmp/hpshots/grad-${scheme}-${width}.png`, fullPage: true });
});
