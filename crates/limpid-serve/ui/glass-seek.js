// The field that finds a token by its text or its place, a head, or a tensor.
import { byId, on, onSubmit } from "./dom.js";

export class GlassSeek {
  field = byId("glass-seek", HTMLInputElement);

  /** @param {import("./glass.js").Glass} glass */
  constructor(glass) {
    this.glass = glass;
    onSubmit(byId("glass-seek-form", HTMLFormElement), () => this.find());
    on(this.field, "input", () => this.field.setCustomValidity(""));
  }

  async find() {
    const { glass } = this;
    const { run } = glass;
    const wish = this.field.value.trim();
    if (!run || wish === "") return;
    if (/^\d+$/.test(wish)) return glass.go({ q: Math.min(run.tokens.length - 1, Number(wish)) });
    const head = /[lh.]/i.test(wish) && /^l?(\d+)[\s.,]*h?[\s.,]*(\d+)$/i.exec(wish);
    if (head) {
      const [l, h] = [Number(head[1]), Number(head[2])];
      if (l < run.depth && h < run.heads) return glass.go({ v: "head", l, h }, "new");
      const there = `this model has layers 0 to ${run.depth - 1} with heads 0 to ${run.heads - 1}`;
      return this.refuse(`There is no head L${l}H${h}: ${there}.`);
    }
    const from = glass.state.q ?? -1;
    for (let n = 1; n <= run.tokens.length; n++) {
      const q = (from + n) % run.tokens.length;
      if (run.tokens[q]?.piece.text?.toLowerCase().includes(wish.toLowerCase())) return glass.go({ q });
    }
    const { tensors, params } = await glass.listing().catch(() => ({ tensors: [], params: [] }));
    const names = [...tensors, ...params].map(({ name }) => name);
    const found = names.find((name) => name === wish) ?? names.find((name) => name.includes(wish));
    if (found) return glass.go({ v: "table", n: found, at: "" }, "new");
    this.refuse(`No token contains “${wish}”, and no tensor has that name.`);
  }

  /** @param {string} why */
  refuse(why) {
    this.field.setCustomValidity(why);
    this.field.reportValidity();
  }
}
