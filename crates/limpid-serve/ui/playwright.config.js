// Tests of the page in Debian's Chromium, or whichever is there, against the real server.
import { defineConfig } from "@playwright/test";
import { chromium } from "./tests/chromium.js";

export default defineConfig({
  testDir: "tests",
  globalSetup: "./tests/servers.js",
  fullyParallel: true,
  workers: 2,
  forbidOnly: Boolean(process.env.CI),
  reporter: "list",
  // far more than is needed: a busy machine fails no test
  timeout: 180_000,
  expect: { timeout: 30_000 },
  use: {
    // without background traffic, of which a machine may have none
    launchOptions: {
      executablePath: chromium(),
      args: ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
    },
    viewport: { width: 1100, height: 800 },
  },
});
