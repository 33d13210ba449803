// A curve, such as an activation function with what goes into it: a dot for one number, bars for many.
import { div, emptyCanvas, inks, make, short, sizeCanvas } from "./dom.js";

/**
 * @typedef {object} Curved
 * @property {number[]} x
 * @property {number[]} y
 * @property {{x: number, y: number} | null} dot
 * @property {{edges: number[], counts: number[], all: number[]} | null} bars `all`: of all tokens, as an outline in the
 *   same proportion
 * @property {number | null} [level] a number that y is held against, as a dashed line
 * @property {[string, string]} [axes] what x and y are; of an activation function if it is not said
 * @property {(x: number) => string} [tick] an end of the x axis, where it is not the number itself
 * @property {string} words what it is, for those who do not see it
 */

/**
 * A dashed line, along one axis.
 * @param {CanvasRenderingContext2D} context @param {string} ink @param {number} x @param {number} y
 * @param {number} wide @param {number} high
 */
function dashed(context, ink, x, y, wide, high) {
  context.strokeStyle = ink;
  context.setLineDash([3, 3]);
  context.strokeRect(x, y, wide, high);
  context.setLineDash([]);
}

/** @param {number} [high] its height */
export function curveChart(high = 230) {
  const canvas = make("canvas", { role: "img", "aria-label": "Curves are loading" });
  const element = div("chart", canvas);
  /** @type {Curved | null} */
  let shown = null;

  function draw() {
    const wide = element.clientWidth;
    if (!wide || !shown) return;
    const { x, y, dot, bars, level, axes = ["what goes in", "what comes out"], tick, words } = shown;
    sizeCanvas(canvas, wide, high);
    const context = emptyCanvas(canvas);
    if (!context) return;
    canvas.ariaLabel = words;
    const ink = inks(element);
    const [x0, x1] = [x[0] ?? 0, x.at(-1) ?? 1];
    const [y0, y1] = [Math.min(0, ...y), Math.max(1e-9, ...y)];
    // the name of the curve stands above it
    const [left, right, head, foot] = [58, 10, 20, high - 22];
    const px = (/** @type {number} */ value) => left + ((value - x0) / (x1 - x0 || 1)) * (wide - left - right);
    const py = (/** @type {number} */ value) => head + (foot - head) * (1 - (value - y0) / (y1 - y0 || 1));
    if (bars) {
      const sum = (/** @type {number[]} */ counts) => Math.max(1, counts.reduce((all, n) => all + n, 0));
      const [own, every] = [bars.counts.map((n) => n / sum(bars.counts)), bars.all.map((n) => n / sum(bars.all))];
      const most = Math.max(...own, ...every);
      const edge = (/** @type {number} */ n) => px(bars.edges[n] ?? 0);
      const top = (/** @type {number} */ share) => foot - 0.75 * (foot - head) * (share / most);
      context.fillStyle = ink("bar");
      own.forEach((share, n) =>
        context.fillRect(edge(n), top(share), Math.max(1, edge(n + 1) - edge(n) - 1), foot - top(share)));
      context.strokeStyle = ink("dim");
      context.beginPath();
      every.forEach((share, n) => {
        context.lineTo(edge(n), top(share));
        context.lineTo(edge(n + 1), top(share));
      });
      context.stroke();
    }
    context.fillStyle = ink("line");
    context.fillRect(left, py(0), wide - left - right, 1);
    if (x0 < 0 && x1 > 0) context.fillRect(px(0), head, 1, foot - head);
    context.fillStyle = ink("dim");
    context.textAlign = "right";
    for (const value of [y0, 0, y1]) {
      if (value === 0 || Math.abs(py(value) - py(0)) > 12) context.fillText(short(value, 3), left - 6, py(value));
    }
    context.textAlign = "center";
    for (const value of [x0, 0, x1]) {
      if (value === 0 ? x0 < 0 && x1 > 0 && Math.min(px(0) - left, wide - right - px(0)) > 30 : true) {
        context.fillText(tick?.(value) ?? short(value, 3), Math.min(wide - 24, px(value)), foot + 12);
      }
    }
    context.textAlign = "left";
    context.fillText(axes[1], left + 4, 6);
    context.fillText(axes[0], left + 0.2 * (wide - left - right), foot + 12);
    context.strokeStyle = ink("mlp");
    context.lineWidth = 2;
    context.beginPath();
    x.forEach((value, n) => context.lineTo(px(value), py(y[n] ?? 0)));
    context.stroke();
    context.lineWidth = 1;
    if (level != null) dashed(context, ink("dim"), left, py(level), wide - left - right, 0);
    if (dot) {
      dashed(context, ink("accent"), px(dot.x), py(dot.y), 0, foot - py(dot.y));
      context.fillStyle = ink("accent");
      context.beginPath();
      context.arc(px(dot.x), py(dot.y), 5, 0, 7);
      context.fill();
    }
  }
  const watcher = new ResizeObserver(draw);
  watcher.observe(element);
  return {
    element,
    /** @param {Curved} next */
    show(next) {
      shown = next;
      draw();
    },
    close: () => watcher.disconnect(),
  };
}
