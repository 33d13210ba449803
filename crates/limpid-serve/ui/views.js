// All views, in the order of their tabs.
import { viewOfAttribution } from "./view-attribution.js";
import { viewOfEmbed } from "./view-embed.js";
import { viewOfHead } from "./view-head.js";
import { viewOfHeads } from "./view-heads.js";
import { viewOfLens } from "./view-lens.js";
import { viewOfLessons } from "./view-lessons.js";
import { viewOfMap } from "./view-map.js";
import { viewOfMlp } from "./view-mlp.js";
import { viewOfNotation } from "./view-notation.js";
import { viewOfTable } from "./view-table.js";
import { viewOfText } from "./view-text.js";
import { viewOfWhy } from "./view-why.js";

/** @type {import("./glass.js").View[]} */
export const VIEWS = [
  viewOfMap, viewOfText, viewOfHeads, viewOfHead, viewOfMlp, viewOfLens, viewOfAttribution, viewOfEmbed, viewOfTable, viewOfWhy, viewOfNotation, viewOfLessons,
];
