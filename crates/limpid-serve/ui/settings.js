// How answers are drawn. Fields stay as they were typed: what is wrong with them, the server says.
import { keep, kept, make } from "./dom.js";

/** @typedef {import("./source.js").Typed} Typed */

/** The fields, by their names in the protocol. */
const FIELDS = [
  { name: "temperature", label: "Temperature", empty: "1" },
  { name: "top_p", label: "Top-p", empty: "1" },
  { name: "max_tokens", label: "Max tokens", empty: "what fits" },
  { name: "seed", label: "Seed", empty: "a new one" },
];

/**
 * Puts the fields into a form.
 * @param {HTMLFormElement} form
 * @returns {() => Typed}
 */
export function settingsForm(form) {
  const inputs = FIELDS.map(({ name, label, empty }) => {
    const input = make("input", {
      id: name, name, placeholder: empty, inputmode: "decimal", autocomplete: "off", spellcheck: "false",
    });
    input.value = kept(name);
    form.append(make("div", { class: "field" }, make("label", { for: name }, label), input));
    return input;
  });
  form.append(make("p", { class: "note" }, "At temperature 0 the likeliest token is taken. The same seed gives the same answer, byte for byte."));
  form.append(make("button", { type: "reset", class: "quiet" }, "Empty the fields"));
  form.addEventListener("input", () => inputs.forEach(({ name, value }) => keep(name, value)));
  form.addEventListener("reset", () => inputs.forEach(({ name }) => keep(name, "")));
  form.addEventListener("submit", (event) => event.preventDefault());
  return () => Object.fromEntries(inputs.map(({ name, value }) => [name, value]));
}
