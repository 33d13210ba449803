// A live page in Firefox, from the disk and without a network.
import { expect, test } from "@playwright/test";
import { Firefox, firefox } from "./firefox.js";
import { PROMPT, asked, compare, file, save } from "./live-page.js";

/** Waits for the run of a text; gives its id and what the head of the page says. It runs in the page. */
async function shown(old) {
  for (;;) {
    const id = document.getElementById("glass")?.dataset.trace;
    const facts = document.getElementById("glass-facts")?.textContent ?? "";
    const notice = document.getElementById("notice")?.textContent;
    if (notice) throw new Error(notice);
    if (id && id !== old && /tokens? through 4 layers/.test(facts)) {
      return { id, model: document.getElementById("model").textContent, online: navigator.onLine };
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Asks about another text. It runs in the page. */
async function type(text) {
  const prompt = document.getElementById("glass-prompt");
  prompt.value = text;
  prompt.dispatchEvent(new Event("input", { bubbles: true }));
  document.getElementById("glass-form").requestSubmit();
}

test("Firefox runs a live page from the disk without a network, with a server's bytes", async () => {
  test.skip(!firefox(), "there is no Firefox: install one, or name one in FIREFOX");
  save("firefox", "--prompt", PROMPT);
  const browser = await Firefox.start();
  try {
    await browser.open(`file://${file("firefox")}`);
    const { id, model, online } = await browser.run(shown, "");
    console.log(`Firefox: ${model}`);
    expect(online).toBe(false);
    expect(model).toContain("runs in this page, offline");
    await compare((all) => browser.run(asked, all), id);
    await browser.run(type, "Tom lost a ball. He");
    await browser.run(shown, id);
  } finally {
    await browser.end();
  }
});
