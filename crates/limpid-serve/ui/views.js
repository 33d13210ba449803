// All views, by the ways to look that they belong to.
import { viewOfDirections } from "./view-directions.js";
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

/**
 * The ways to look, in the order of their tabs, named for what they answer. One of several views leads to the first
 * that there is.
 * @type {{title: string, views: import("./view.js").View[]}[]}
 */
export const LOOKS = [
  { title: "Overview", views: [viewOfMap] },
  { title: "Why this word", views: [viewOfPath] },
  { title: "Surprise", views: [viewOfText] },
  { title: "Attention", views: [viewOfHeads, viewOfHead] },
  { title: "Units", views: [viewOfMlp] },
  { title: "Layers", views: [viewOfLens] },
  { title: "What matters", views: [viewOfSweep, viewOfGradients, viewOfDirections] },
  { title: "Training", views: [viewOfTraining, viewOfTimelapse] },
  { title: "Numbers", views: [viewOfTable, viewOfWhy, viewOfEmbed, viewOfNotation] },
  { title: "Learn", views: [viewOfTour, viewOfWalks] },
];

/** @type {import("./view.js").View[]} */
export const VIEWS = LOOKS.flatMap(({ views }) => views);
