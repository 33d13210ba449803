// Every command that the page prints is run as it stands, in the folder where the page's own command was typed.
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { expect, test } from "./page.js";
import { BINARY, UI, served } from "./servers.js";

const STEPS = [{ ablate: "blocks.0.attn.hook_z", head: 1 }];
const PROMPTS = ["The cat sat on the mat", "it's \"quoted\" and 'more'", "$HOME `id` \\n \\\\ !x", "-5 degrees",
  "@home", "-", "two\nlines\n", " blanks  ", "🙂 é", "#a;b&c|d>e*?[f]", "--prompt"];

/** A folder with runs under names of several kinds, and a shell that knows limpid. */
function place() {
  const folder = mkdtempSync(path.join(tmpdir(), "limpid-commands-"));
  for (const name of ["runs/one", "runs/it's two"]) {
    mkdirSync(path.join(folder, "runs"), { recursive: true });
    cpSync(process.env.LIMPID_FOLDER, path.join(folder, name), { recursive: true });
  }
  mkdirSync(path.join(folder, "bin"));
  symlinkSync(BINARY, path.join(folder, "bin", "limpid"));
  const run = (words) => spawnSync("sh", ["-c", words],
    { cwd: folder, encoding: "utf8",
      env: { ...process.env, PATH: `${path.join(folder, "bin")}:${process.env.PATH}` } });
  return { folder, run };
}

/** A command runs; one that opens a page runs without opening it. */
function works({ run }, command) {
  const { status, stderr, stdout } = run(command.replace(/ --open$/, ""));
  expect(status, `${command}\n${stderr}`).toBe(0);
  return stdout;
}

test("the command beside a change runs as it is printed", async ({ page }) => {
  const here = place();
  for (const name of ["runs/one", "runs/it's two"]) {
    const cwd = process.cwd();
    process.chdir(here.folder);
    const { server, address } = await served(["serve", "--model", name, "--port", "0", "--threads", "1",
      "--allow-interventions", "--ui-dir", UI]);
    process.chdir(cwd);
    process.env.LIMPID_OWN = address;
    try {
      for (const prompt of name === "runs/one" ? PROMPTS : PROMPTS.slice(0, 2)) {
        await page.goto("about:blank");
        await page.goto(`${address}/#${new URLSearchParams({ v: "map", i: JSON.stringify(STEPS), p: prompt })}`);
        const line = page.locator("#glass-steps-line code");
        await expect(line).toBeVisible();
        await expect(page.locator("#glass-facts")).toContainText(/tokens? through/);
        const command = await line.textContent();
        works(here, command);
        // it is the same text, to the token
        const { tokens } = JSON.parse(works(here, `${command.replace(/ --intervene .*$/s, "")} --table --json`));
        expect(tokens.length, command)
          .toBe(Number(/^([\d,]+) token/.exec(await page.locator("#glass-facts").textContent())[1]));
      }
    } finally {
      server.kill();
    }
  }
  rmSync(here.folder, { recursive: true });
});

test("the command of a saved page shows what the page shows", async ({ page, context }) => {
  const here = place();
  await context.setOffline(true);
  const asked = [
    [], ["--prompt", "it's \"quoted\""], ["--prompt=-5 degrees"], ["--tokens", "5,6,7,8"], ["--prompt",
    "The cat sat on the mat", "--intervene", JSON.stringify(STEPS)],
    ["--last", "--prompt", "The cat sat on the mat. ".repeat(20)],
  ];
  for (const [n, flags] of asked.entries()) {
    const { status, stderr } = spawnSync(BINARY,
      ["inspect", "--model", "runs/one", "--threads", "1", ...flags, "--still", "--html", `page${n}.html`], { cwd: here.folder,
        encoding: "utf8" });
    expect(status, stderr).toBe(0);
    const saved = pathToFileURL(path.join(here.folder, `page${n}.html`));
    await page.goto(`${saved}#v=why&n=blocks.1.hook_attn_out&at=0,1,1`);
    const said = await page.locator(".why .trouble p").first().textContent();
    const command = /The command that shows it: (.*)$/s.exec(said)[1];
    expect(command.startsWith("limpid inspect --model runs/one "), command).toBe(true);
    works(here, command);
    const plain = command.replace(/ --open$/, "").replace(/ --intervene .*$/s, "");
    const { tokens } = JSON.parse(works(here, `${plain} --table --json`));
    expect(tokens.length, command).toBe(await page.locator("#glass-chips .token").count());
  }
  rmSync(here.folder, { recursive: true });
});

test("a saved page dims the links to what it does not hold, and no others", async ({ page, context }) => {
  const here = place();
  // without a prompt it takes the usual one
  const { status, stderr } = spawnSync(BINARY,
    ["inspect", "--model", "runs/one", "--threads", "1", "--still", "--html", "page.html"], { cwd: here.folder,
      encoding: "utf8" });
  expect(status, stderr).toBe(0);
  expect(stderr).toContain('the prompt is "Once upon a time, there was a little"');
  await context.setOffline(true);
  const file = pathToFileURL(path.join(here.folder, "page.html")).href;
  const lacks = page.locator("#glass-view .trouble, #glass-view > .hint");
  const arrived = async (hash) => {
    await page.evaluate((hash) => (location.hash = hash), hash);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60))));
    await expect(page.locator("#glass-view .hint", { hasText: "…" })).toHaveCount(0);
  };
  let [held, absent] = [0, 0];
  for (const view of ["map", "path", "text", "heads&l=1&h=1", "mlp&l=1", "lens", "notation"]) {
    await page.goto("about:blank");
    await page.goto(`${file}#v=${view}`);
    await expect(page.locator("#glass-facts")).toContainText(/tokens? through/);
    await arrived(`v=${view}`);
    const links = await page.locator('#glass a[href^="#"]')
      .evaluateAll((all) => all.map((link) => [link.getAttribute("href").slice(1), link.classList.contains("absent"),
        link.getAttribute("aria-disabled") === "true"]));
    for (const [hash, dimmed, disabled] of links) expect(disabled, hash).toBe(dimmed);
    const some = (dimmed) => [...new Map(links.filter(([, is]) => is === dimmed).map((link) => [link[0], link]))
      .values()].filter((_, n, all) => n % Math.ceil(all.length / 6) === 0);
    for (const [hash, dimmed] of [...some(true), ...some(false)]) {
      await arrived(hash);
      const says = (await lacks.allTextContents()).join(" ");
      expect(/does not hold|need a server|needs a server|no time-lapse/.test(says), `${view}: ${hash}: ${says}`)
        .toBe(dimmed);
      if (dimmed) absent++;
      else held++;
    }
  }
  expect(Math.min(held, absent), `${held} held, ${absent} not`).toBeGreaterThan(20);
  rmSync(here.folder, { recursive: true });
});
