// All views, in the groups and in the order of their tabs.
import { viewOfEmbed } from "./view-embed.js";
import { viewOfGradients } from "./view-gradients.js";
import { viewOfHead } from "./view-head.js";
import { viewOfHeads } from "./view-heads.js";
import { viewOfLens } from "./view-lens.js";
import { viewOfMap } from "./view-map.js";
import { viewOfMlp } from "./view-mlp.js";
import { viewOfNotation } from "./view-notation.js";
import { viewOfPath } from "./view-path.js";
import { viewOfSweep } from "./view-sweep.js";
import { viewOfTable } from "./view-table.js";
import { viewOfText } from "./view-text.js";
import { viewOfTimelapse } from "./view-timelapse.js";
import { viewOfTraining } from "./view-training.js";
import { viewOfTour } from "./tour.js";
import { viewOfWalks } from "./view-walks.js";
import { viewOfWhy } from "./view-why.js";

/** @type {{title: string, views: import("./view.js").View[]}[]} */
export const GROUPS = [
  { title: "Look", views: [viewOfMap, viewOfPath, viewOfText, viewOfHeads, viewOfHead, viewOfMlp, viewOfLens] },
  { title: "Training", views: [viewOfTraining, viewOfTimelapse] },
  { title: "Reach in", views: [viewOfSweep, viewOfGradients] },
  { title: "Numbers", views: [viewOfTable, viewOfWhy, viewOfEmbed, viewOfNotation] },
  { title: "Learn", views: [viewOfTour, viewOfWalks] },
];

/** @type {import("./view.js").View[]} */
export const VIEWS = GROUPS.flatMap(({ views }) => views);
