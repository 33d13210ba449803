// How answers are drawn. Fields stay as they were typed: what is no number is marked, what is out of range the server
// says.
import { div, keep, kept, make, on, remark } from "./dom.js";

/** @typedef {import("./source.js").Typed} Typed */

const DECIMAL = { pattern: String.raw`\s*\d+(\.\d+)?([eE][\-+]?\d+)?\s*`, title: "A number, like 0.7" };
const WHOLE = { pattern: String.raw`\s*\d+\s*`, title: "A whole number, like 20" };

/** The fields, by their names in the protocol. */
const FIELDS = [
  { name: "temperature", label: "Temperature", empty: "1", form: DECIMAL },
  { name: "top_p", label: "Top-p", empty: "1", form: DECIMAL },
  { name: "top_k", label: "Top-k", empty: "all", form: WHOLE },
  { name: "max_tokens", label: "Max tokens", empty: "what fits", form: WHOLE },
  { name: "seed", label: "Seed", empty: "a new one", form: WHOLE },
];

/**
 * Puts the fields into a form.
 * @param {HTMLFormElement} form
 * @returns {() => Typed}
 */
export function settingsForm(form) {
  const inputs = FIELDS.map(({ name, label, empty, form: number }) => {
    const input = make("input", {
      id: name, name, placeholder: empty, inputmode: "decimal", autocomplete: "off", spellcheck: "false", ...number,
    });
    input.value = kept(name);
    form.append(div("field", make("label", { for: name }, label), input));
    return input;
  });
  form.append(
    remark("At temperature 0 the likeliest token is taken. The same seed gives the same answer, byte for byte."),
  );
  form.append(make("button", { type: "reset", class: "quiet" }, "Clear the fields"));
  on(form, "input", () => inputs.forEach(({ name, value }) => keep(name, value)));
  on(form, "reset", () => inputs.forEach(({ name }) => keep(name, "")));
  on(form, "submit", (event) => event.preventDefault());
  return () => Object.fromEntries(inputs.map(({ name, value }) => [name, value]));
}
