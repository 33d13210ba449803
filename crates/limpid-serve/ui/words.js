// Words of the field that the page uses, each explained where it stands, to whoever points at it.
import { make } from "./dom.js";
import { readable } from "./text.js";

/** @type {Record<string, string>} */
const GLOSSARY = {
  logit:
    "The score that the model gives a token; the exponentials of all logits, divided by their sum, are the " +
    "probabilities.",
  logits: "The scores that the model gives all tokens; their exponentials, divided by the sum, are the probabilities.",
  nats:
    "The unit of surprise: minus the natural logarithm of a probability. " +
    "0 is certain; 0.69 is one in two, 2.3 one in ten.",
  head: "A part of attention: it looks at some of the tokens so far and copies something from there.",
  heads: "Parts of attention: each looks at some of the tokens so far and copies something from there.",
  MLP:
    "The feed-forward network of a block: units that respond to what the stream holds at one token, and write to it.",
  stream: "The residual stream: one vector for each token, to which every part of the model adds.",
  embedding: "The vector that the model has learned for a token: where its stream begins.",
  lens: "The logit lens: what the unembedding would predict if the stream of an earlier block were the last.",
  perplexity: "The exponential of the mean surprise: among so many equally likely tokens the model seems to choose.",
  unit: "One element inside an MLP, with one weight vector that it responds to and one that it writes.",
  units: "The elements inside an MLP: each has one weight vector that it responds to and one that it writes.",
  attention: "How a token's vector takes in those of earlier ones: a weighted mean, whose weights add up to 1.",
  induction: "Looking at what came after an earlier token of the same kind as this one.",
  entropy: "How spread out a distribution is: 0 where one thing has all of it.",
};

/** A term, with up to one letter that is no part of a word on each side. */
const TERMS = new RegExp(`(?<![\\p{L}_-])(${Object.keys(GLOSSARY).join("|")})(?![\\p{L}_-])`, "gu");

/**
 * A sentence in which the terms of the field explain themselves, each the first time that it occurs.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function glossed(text) {
  /** @type {(Node | string)[]} */
  const parts = [];
  const told = new Set();
  let from = 0;
  for (const found of text.matchAll(TERMS)) {
    const term = found[1] ?? "";
    if (told.has(term)) continue;
    told.add(term);
    parts.push(...readable(text.slice(from, found.index), false), make("abbr", { title: GLOSSARY[term] ?? "" }, term));
    from = found.index + term.length;
  }
  return [...parts, ...readable(text.slice(from), false)];
}
