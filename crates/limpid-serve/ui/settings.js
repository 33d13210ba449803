// How answers are drawn. Fields stay as they were typed: what is wrong with them, the server says.
import { keep, kept, make } from "./dom.js";

/** @typedef {import("./source.js").Typed} Typed */

/** The fields, by their names in the protocol. */
const FIELDS = [
  { name: "temperature", label: "Temperature", empty: "1", note: "0 takes the likeliest token always" },
  { name: "top_p", label: "Top p", empty: "1", note: "Only the likeliest tokens that make up this share" },
  { name: "max_tokens", label: "Most tokens", empty: "what fits", note: "Of an answer" },
  { name: "seed", label: "Seed", empty: "new each time", note: "The same seed gives the same answer, to the byte" },
];

/**
 * Puts the fields into a form.
 * @param {HTMLFormElement} form
 * @returns {() => Typed}
 */
export function settingsForm(form) {
  const inputs = FIELDS.map(({ name, label, empty, note }) => {
    const input = make("input", {
      id: name, name, placeholder: empty, inputmode: "decimal", autocomplete: "off", spellcheck: "false",
      "aria-describedby": `${name}-note`,
    });
    input.value = kept(name);
    const parts = [make("label", { for: name }, label), input, make("p", { id: `${name}-note`, class: "note" }, note)];
    form.append(make("div", { class: "field" }, ...parts));
    return input;
  });
  form.append(make("button", { type: "reset", class: "quiet" }, "Empty all fields"));
  form.addEventListener("input", () => inputs.forEach(({ name, value }) => keep(name, value)));
  form.addEventListener("reset", () => inputs.forEach(({ name }) => keep(name, "")));
  form.addEventListener("submit", (event) => event.preventDefault());
  return () => Object.fromEntries(inputs.map(({ name, value }) => [name, value]));
}
