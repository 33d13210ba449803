// Pointers over a picture: a mouse drags it and turns its wheel, two fingers pinch it, a click or a tap chooses a cell.
import { on } from "./dom.js";

/** Milliseconds after which a finger that rests looks at a cell. */
const PRESS = 500;

/** Pixels from which a mouse that is held drags. */
const DRAG = 4;

export class HeatPointer {
  /** What is held down. @type {{x: number, y: number, isMoved: boolean, isTouch: boolean} | null} */
  held = null;
  /** Two fingers. @type {{apart: number, x: number, y: number} | null} */
  pinch = null;
  pressing = 0;

  /** @param {import("./heat.js").HeatMap} heat */
  constructor(heat) {
    this.heat = heat;
    const { frame } = heat;
    on(frame, "pointerdown", (event) => this.press(event));
    on(frame, "pointermove", (event) => this.move(event));
    on(frame, "pointerup", (event) => this.release(event));
    on(frame, "pointercancel", () => this.letGo());
    on(frame, "pointerleave", (event) => {
      this.letGo();
      if (event.pointerType !== "touch" && heat.hovered) heat.hover(null);
    });
    on(frame, "wheel", (event) => this.wheel(event), { passive: false });
    on(frame, "touchstart", () => (this.pinch = null), { passive: true });
    on(frame, "touchmove", (event) => this.touch(event), { passive: false });
  }

  /** What is under the pointer. @param {{clientX: number, clientY: number}} event */
  under(event) {
    const { canvas, sight } = this.heat;
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const { row, col } = sight.cellAt(x, y);
    const cell = { row: Math.floor(row), col: Math.floor(col) };
    return { x, y, isInPlot: isIn(sight.plot, x, y), isInMap: sight.isZoomed && isIn(sight.map, x, y), cell };
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    this.held = { x: event.clientX, y: event.clientY, isMoved: false, isTouch: event.pointerType === "touch" };
    const { isInPlot, cell } = this.under(event);
    if (!this.held.isTouch || !isInPlot) return;
    this.pressing = setTimeout(() => {
      if (this.held) this.held.isMoved = true; // looked at, not chosen
      this.heat.hover(cell);
    }, PRESS);
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { heat, held } = this;
    const { picture } = heat.sight;
    if (!picture) return;
    if (held && !held.isTouch && (held.isMoved || Math.hypot(event.clientX - held.x, event.clientY - held.y) > DRAG)) {
      held.isMoved = true;
      heat.sight.pan(event.clientX - held.x, event.clientY - held.y);
      [held.x, held.y] = [event.clientX, event.clientY];
      return heat.redraw();
    }
    if (event.pointerType === "touch") return;
    const { isInPlot, isInMap, cell } = this.under(event);
    const next = isInPlot && !isInMap && cell.row < picture.rows && cell.col < picture.cols ? cell : null;
    if (next?.row !== heat.hovered?.row || next?.col !== heat.hovered?.col) heat.hover(next);
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { heat, held } = this;
    const { sight } = heat;
    this.letGo();
    if (!sight.picture || !held || held.isMoved) return;
    const { isInPlot, isInMap, x, y, cell } = this.under(event);
    if (isInMap) {
      sight.goTo(x, y);
      return heat.redraw();
    }
    if (!isInPlot || cell.row >= sight.picture.rows || cell.col >= sight.picture.cols) return;
    if (held.isTouch) heat.hovered = null;
    heat.cells.choose(cell.row, cell.col);
    heat.grid.cell.focus({ preventScroll: true });
    heat.cells.open?.();
  }

  letGo() {
    clearTimeout(this.pressing);
    this.held = null;
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const { heat } = this;
    const { isInPlot, x, y } = this.under(event);
    // a page that could scroll does so where there is nothing to make larger or smaller
    if (!isInPlot || (heat.sight.zoom <= 1 && event.deltaY > 0)) return;
    event.preventDefault();
    heat.zoom(Math.exp(-event.deltaY / 300), x, y);
  }

  /** @param {TouchEvent} event */
  touch(event) {
    const { heat, pinch } = this;
    const [first, second] = event.touches;
    if (!first || !second) return clearTimeout(this.pressing);
    event.preventDefault();
    this.letGo();
    const box = heat.canvas.getBoundingClientRect();
    const apart = Math.hypot(first.clientX - second.clientX, first.clientY - second.clientY);
    const x = (first.clientX + second.clientX) / 2 - box.left;
    const y = (first.clientY + second.clientY) / 2 - box.top;
    if (pinch) {
      heat.sight.pan(x - pinch.x, y - pinch.y);
      heat.zoom(apart / pinch.apart, x, y);
    }
    this.pinch = { apart, x, y };
  }
}

/** @param {{x: number, y: number, w: number, h: number}} box @param {number} x @param {number} y */
const isIn = (box, x, y) => x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h;
