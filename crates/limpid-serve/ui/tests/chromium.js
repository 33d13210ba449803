// Where the browser is: the one in CHROMIUM, or the first on the path. As a program, it tells whether there is one.
import { accessSync, constants } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/** @param {string} file */
function runs(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export function chromium() {
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  const found = process.env.CHROMIUM || folders.flatMap((folder) => NAMES.map((name) => path.join(folder, name)))
    .find(runs);
  if (!found) throw new Error(`no Chromium on the path (${NAMES.join(", ")}): install one, or name one in CHROMIUM`);
  return found;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(chromium());
