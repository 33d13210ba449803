// What is asked for beside the picture: the text, the text or the model that it is compared with, and the steps that
// change the run.
import { hashOf } from "./address.js";
import { inspectCommand } from "./command.js";
import { byId, fill, isFocused, make, on, onEnter, onSubmit } from "./dom.js";
import { Trouble } from "./source.js";

/** What the server says of steps that it does not take. */
const OF_STEPS = ["invalid_json", "invalid_value", "interventions_disabled", "out_of_time", "too_large"];

/**
 * Steps as they stand in the address or the field; null: none.
 * @param {string} text @returns {{steps: any, fault: Trouble | null}}
 */
function stepsIn(text) {
  if (text === "") return { steps: null, fault: null };
  try {
    return { steps: JSON.parse(text), fault: null };
  } catch (fault) {
    const message = `The steps are not JSON: ${fault instanceof Error ? fault.message : fault}`;
    return { steps: null, fault: new Trouble(message, { code: "invalid_json" }) };
  }
}

/** Whether something is not unfolded yet. @param {HTMLButtonElement} toggle */
const isFolded = (toggle) => toggle.ariaExpanded !== "true";

export class GlassForm {
  form = byId("glass-form", HTMLFormElement);
  field = byId("glass-prompt", HTMLTextAreaElement);
  runButton = byId("glass-run", HTMLButtonElement);
  second = byId("glass-other", HTMLElement);
  otherField = byId("glass-other-prompt", HTMLTextAreaElement);
  otherModel = byId("glass-other-model", HTMLSelectElement);
  compareButton = byId("glass-compare", HTMLButtonElement);
  change = byId("glass-change", HTMLElement);
  json = byId("glass-json", HTMLDetailsElement);
  changeButton = byId("glass-intervene", HTMLButtonElement);
  stepsField = byId("glass-steps", HTMLTextAreaElement);
  stepsFault = byId("glass-steps-fault", HTMLElement);
  stepsLine = byId("glass-steps-line", HTMLElement);

  /** @param {import("./glass.js").Glass} glass @param {() => void} again runs what was run once more */
  constructor(glass, again) {
    this.glass = glass;
    this.again = again;
    onSubmit(this.form, () => this.submit());
    for (const area of [this.field, this.otherField, this.stepsField]) {
      onEnter(area, () => this.submit());
    }
    on(this.changeButton, "click", () => this.intervene());
    on(this.compareButton, "click", () => this.compare());
  }

  /** The text that is asked for: the model's example where the address has none. */
  get prompt() {
    return this.glass.state.p ?? this.glass.model?.example;
  }

  /** Runs what the state asks for, where that is not what was run. */
  follow() {
    const { glass, field, stepsField, otherField } = this;
    const { i, c, cm, last } = glass.state;
    const prompt = this.prompt ?? "";
    const cut = last ? { last } : {};
    const { steps, fault } = stepsIn(i);
    const body = { prompt, ...cut, ...(steps === null ? {} : { interventions: steps }) };
    if (glass.first.asksElse(body)) {
      if (!isFocused(field) || field.value.trim() === "") field.value = prompt;
      if (!isFocused(stepsField)) stepsField.value = i;
      if (i !== "" || !this.json.open) this.unfoldSteps(i !== "");
      glass.trouble = fault;
      glass.first.begin(fault ? null : body);
    }
    const plain = steps === null || fault || glass.model.saved ? null : { prompt, ...cut };
    if (glass.plain.asksElse(plain)) glass.plain.begin(plain);
    const other = c !== null || cm !== "" ? { prompt: c ?? prompt, ...cut, ...(cm ? { model: cm } : {}) } : null;
    if (glass.second.asksElse(other)) {
      if (other) otherField.value = other.prompt;
      this.otherModel.value = cm;
      glass.second.begin(other);
    }
  }

  /** Takes what the fields say. */
  submit() {
    const { glass, field, otherField } = this;
    const { state, first } = glass;
    const steps = this.change.hidden ? "" : this.stepsField.value.trim();
    const { fault } = stepsIn(steps);
    if (fault) {
      this.tellFault(fault);
      return this.stepsField.focus();
    }
    const isSameText = field.value === this.prompt;
    if (first.running && first.run && first.run.tokens.length > 0 && isSameText) {
      first.stop();
      return glass.go({});
    }
    // the same text by the same model is another one only where this one is changed
    const c = otherField.value === "" || (steps === "" && otherField.value === field.value) ? null : otherField.value;
    const compared = this.second.hidden ? {} : { c, cm: this.otherModel.value };
    const changes = { p: field.value, last: false, i: steps, ...compared };
    const isSame = isSameText && hashOf({ ...state, ...changes }) === hashOf({ ...state, p: field.value, last: false });
    if (isSame && (glass.trouble || !first.run?.done)) return this.again();
    const fresh = field.value === state.p ? {} : { q: null, k: null, more: { ...state.more, why: "" } };
    glass.go({ ...changes, ...fresh }, "new");
  }

  /** Unfolds the second text, or takes it away. */
  compare() {
    const unfolds = isFolded(this.compareButton);
    this.unfoldSecond(unfolds);
    const { c, cm, i } = this.glass.state;
    if (unfolds) {
      this.otherField.value ||= this.field.value;
      this.otherField.focus();
      // where the run is changed, the same text without the change is what it is compared with at first
      if (i !== "") this.glass.go({ c: this.otherField.value }, "new");
    } else if (c !== null || cm !== "") this.glass.go({ c: null, cm: "" }, "new");
  }

  /** Unfolds the steps, or takes them away. */
  intervene() {
    const unfolds = isFolded(this.changeButton);
    this.unfoldSteps(unfolds);
    this.json.open = unfolds;
    if (unfolds) this.stepsField.focus();
    else if (this.glass.state.i !== "") this.glass.go({ i: "" }, "new");
  }

  /** @param {boolean} unfolds */
  unfoldSecond(unfolds) {
    this.compareButton.ariaExpanded = `${unfolds}`;
    this.compareButton.textContent = unfolds ? "Stop comparing" : "Compare";
    this.second.hidden = !unfolds;
  }

  /** @param {boolean} unfolds */
  unfoldSteps(unfolds) {
    this.changeButton.ariaExpanded = `${unfolds}`;
    this.changeButton.textContent = unfolds ? "Undo the change" : "Change";
    this.change.hidden = !unfolds;
  }

  /** @param {Trouble | null} fault of the steps */
  tellFault(fault) {
    this.stepsFault.textContent = fault?.message ?? "";
    this.stepsField.ariaInvalid = `${fault !== null}`;
  }

  /**
   * What is wrong with the steps, and a line that makes them in a terminal.
   * @returns {boolean} whether something is wrong with them
   */
  tellSteps() {
    const { model, state, trouble, run } = this.glass;
    const fault = state.i !== "" && trouble && OF_STEPS.includes(trouble.code ?? "") ? trouble : null;
    this.tellFault(fault);
    const asked =
      { prompt: this.prompt, ids: run?.tokens.map(({ id }) => id) ?? [], last: state.last || model.last === true };
    const line = ["In a terminal: ", make("code", inspectCommand(model, asked, state.i))];
    fill(this.stepsLine, ...(state.i === "" || fault ? [] : line));
    return fault !== null;
  }

  /** The models that can be compared with. @param {string[]} names the first is this one */
  offerModels(names) {
    fill(this.otherModel, ...names.map((name, n) => make("option", { value: n === 0 ? "" : name }, name)));
    byId("glass-models", HTMLElement).hidden = names.length < 2;
  }
}
