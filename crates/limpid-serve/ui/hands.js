// Hands on the parts of the model: each head, unit, MLP, word and edge has the same four things that can be done to it.
// What is done stands in the address as steps (docs/interventions.md).
import { button, div, fill, make, on, onSubmit, remark } from "./dom.js";

/** @typedef {import("./glass.js").Glass} Glass */

/**
 * A part that can be changed: its name, its tensor, and which of the tensor's numbers are its own. `more` is what the
 * address says for it to stay in sight.
 * @typedef {{name: string, site: string, where: Record<string, any>, more?: Record<string, string>}} Part
 */

/** @param {number} l @param {number} h @returns {Part} */
export const headPart = (l, h) => ({ name: `L${l}H${h}`, site: `blocks.${l}.attn.hook_z`, where: { head: h } });

/** @param {number} l @param {number} u @returns {Part} */
export const unitPart = (l, u) =>
  ({ name: `L${l}U${u}`, site: `blocks.${l}.mlp.hook_post`, where: { unit: u }, more: { neuron: `${u}` } });

/** @param {number} l @returns {Part} */
export const mlpPart = (l) => ({ name: `L${l} MLP`, site: `blocks.${l}.hook_mlp_out`, where: {} });

/** @param {number} q @returns {Part} */
export const wordPart = (q) => ({ name: `word ${q}`, site: "blocks.0.hook_resid_pre", where: { pos: q } });

/** The weight with which a head looks from a token at another. @param {number[]} place @returns {Part} */
export const edgePart = ([l = 0, h = 0, q = 0, k = 0]) =>
  ({ name: `L${l}H${h}, ${q} → ${k}`, site: `blocks.${l}.attn.hook_pattern`, where: { head: h, pos: q, key: k } });

/** What can be done to a part. `from` takes the values of a run of another text, `key` is of `scale` alone. */
const DEEDS = [
  {
    id: "silence", title: "Silence", about: "set it to zero",
    step: (/** @type {Part} */ { site, where }) =>
      ("key" in where ? { scale: site, by: 0, ...where } : { ablate: site, ...where }),
  },
  {
    id: "halve", title: "Halve", about: "multiply it by a half",
    step: (/** @type {Part} */ { site, where }) => ({ scale: site, by: 0.5, ...where }),
  },
  {
    id: "take", title: "Take …", about: "take it from the run of another text of as many tokens",
    step: patched,
  },
  {
    id: "freeze", title: "Freeze", about: "keep it as it is in this text, whatever else you change",
    step: patched,
  },
];

/**
 * The button that was pressed last: what stands around it is made anew while the run comes in, and it keeps the focus
 * until somebody goes elsewhere.
 */
let pressed = "";

/** From now on, whoever goes elsewhere takes the focus along. */
export function watchFocus() {
  on(document, "pointerdown", () => (pressed = ""), { capture: true });
  on(document, "keydown", (event) => event.key === "Tab" && (pressed = ""), { capture: true });
}

/** @param {string} key @param {HTMLElement} made */
function keepFocus(key, made) {
  if (key !== pressed) return;
  requestAnimationFrame(() => {
    if (document.activeElement === document.body && made.isConnected) made.focus({ preventScroll: true });
  });
}

/** @param {Part} part @param {string} prompt */
function patched({ site, where }, prompt) {
  const { key, ...rest } = where; // attention weights are taken row by row
  return { patch: site, ...rest, from: { prompt } };
}

/** The steps of the address; none where they are not JSON. @param {string} i @returns {any[]} */
export function stepsOf(i) {
  try {
    const given = JSON.parse(i || "[]");
    const steps = Array.isArray(given) ? given : given.do;
    return Array.isArray(steps) ? steps : [];
  } catch {
    return [];
  }
}

/** The fields of a step that say which numbers of its tensor it changes. @param {any} step */
const fieldsOf = ({ head, unit, pos, key }) => JSON.stringify([head, unit, pos, key].map((one) => one ?? null));

/** @param {any} step */
const siteOf = (step) => step.ablate ?? step.scale ?? step.patch ?? step.steer ?? step.set ?? step.project_out ?? "";

/** What a step does, in words. @param {any} step @param {string} prompt the text that is changed @returns {string} */
export function stepInWords(step, prompt) {
  const site = siteOf(step);
  const [, l, rest = ""] = /^blocks\.(\d+)\.(.+)$/.exec(site) ?? [];
  /** @type {Record<string, string>} */
  const names = {
    "attn.hook_z": `L${l}H${step.head}`, "mlp.hook_post": `L${l}U${step.unit}`, hook_mlp_out: `L${l} MLP`,
    hook_attn_out: `L${l} attention`, hook_resid_pre: `the stream before layer ${l}`,
    hook_resid_post: `the stream after layer ${l}`,
    "attn.hook_pattern": `L${l}H${step.head}, ${step.pos} → ${step.key ?? "all"}`,
  };
  const isWord = l === "0" && rest === "hook_resid_pre" && Number.isInteger(step.pos);
  const isNamed = !/undefined/.test(names[rest] ?? "undefined");
  const part = isWord ? `word ${step.pos}` : isNamed ? `${names[rest]}` : site;
  const text = step.from?.prompt;
  const isOther = text !== undefined && text !== prompt;
  if (step.ablate) return `${part} silenced`;
  if (step.patch) return isOther ? `${part} taken from “${text}”` : `${part} frozen`;
  if (step.project_out) return `a direction projected out of ${part}`;
  if (step.steer) return `a direction added to ${part}, times ${step.by ?? 1}`;
  if (step.set) return `${part} set`;
  if (!step.scale) return JSON.stringify(step);
  return step.by === 0 ? `${part} silenced` : step.by === 0.5 ? `${part} halved` : `${part} times ${step.by}`;
}

/** The address without one of its steps. @param {Glass} glass @param {number} n */
export function undo(glass, n) {
  const steps = stepsOf(glass.state.i).filter((_, place) => place !== n);
  glass.go({ i: steps.length > 0 ? JSON.stringify(steps) : "" }, "new");
}

/**
 * What can be done to a part, as buttons; one that is pressed is undone by pressing it again.
 * @param {Glass} glass @param {Part} part
 */
export function handsOn(glass, part) {
  if (glass.model.saved) return "";
  if (glass.model.interventions === false) {
    // said once, at heads
    const isHead = part.site.endsWith(".hook_z");
    return isHead ? remark("To change the run, serve the model with --allow-interventions.") : "";
  }
  const prompt = glass.state.p ?? glass.model.example ?? "";
  const steps = stepsOf(glass.state.i);
  // one deed at a time; what was steered or set by hand stays beside it
  const now = steps.findIndex((step) =>
    (step.ablate ?? step.scale ?? step.patch) === part.site && isOf(step, part));
  const box = div("hands");
  const menu = make("div", { class: "segments", role: "group", "aria-label": `Change ${part.name}` });
  const doneAs = (/** @type {string} */ id) => now >= 0 && deedOf(steps[now], prompt) === id;
  /** @param {any} step */
  const put = (step) => {
    const others = steps.filter((_, n) => n !== now);
    glass.go({ i: JSON.stringify([...others, step]), more: { ...glass.state.more, ...part.more } }, "new");
  };
  for (const { id, title, about, step } of DEEDS) {
    const isDone = doneAs(id);
    const key = `${part.name} ${id}`;
    const made = button(title, () => {
      pressed = key;
      if (isDone) undo(glass, now);
      else if (id === "take") fill(box, menu, otherText(glass, part, (text) => put(step(part, text))));
      else put(step(part, prompt));
    }, { "aria-pressed": `${isDone}`, title: `${title}: ${about}`, "data-deed": id });
    menu.append(made);
    keepFocus(key, made);
  }
  box.append(menu);
  return box;
}

/** Whether a step is about this part. @param {any} step @param {Part} part */
function isOf(step, part) {
  const { key, ...row } = part.where;
  return fieldsOf(step) === fieldsOf(part.where) || (step.patch !== undefined && fieldsOf(step) === fieldsOf(row));
}

/** @param {any} step @param {string} prompt */
function deedOf(step, prompt) {
  if (step.ablate || step.by === 0) return "silence";
  if (step.scale) return step.by === 0.5 ? "halve" : "";
  return step.from?.prompt === prompt ? "freeze" : "take";
}

/**
 * A field for the text that a part is taken from.
 * @param {Glass} glass @param {Part} part @param {(text: string) => void} take
 */
function otherText(glass, part, take) {
  const field = make("input", {
    type: "text", "aria-label": `Text that ${part.name} is taken from`, autocomplete: "off", spellcheck: "false",
  });
  field.value = glass.state.c ?? glass.state.p ?? glass.model.example ?? "";
  const form = make("form", { class: "take" }, field, make("button", { type: "submit" }, "Take"));
  onSubmit(form, () => field.value !== "" && take(field.value));
  on(field, "keydown", (event) => event.key === "Escape" && form.remove());
  requestAnimationFrame(() => field.select());
  return form;
}
