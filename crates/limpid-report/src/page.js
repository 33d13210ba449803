// What a page can do where it is read: show the values of every curve at a step, in all charts at once, and zoom into
// steps. Without it the page is whole. Numbers are those of the curves themselves; nothing is estimated between them.
const SVG = "http://www.w3.org/2000/svg";
const make = (name, classes, parent) => {
  const made = document.createElementNS(SVG, name);
  made.setAttribute("class", classes);
  return parent.appendChild(made);
};
const numbers = text => text.split(" ").map(Number);
const count = step => Math.round(step).toLocaleString("en");
const said = v => v === 0 ? "0" : Math.abs(v) >= 1e-3 ? Number(v.toPrecision(5))
  .toLocaleString("en", {maximumFractionDigits: 9}) : v.toExponential(3);

/** The point nearest to a step, of points in the order of their steps. */
const nearest = (points, step) => {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1; else high = middle;
  }
  const before = points[Math.max(0, low - 1)];
  return step - before[0] < points[low][0] - step ? before : points[low];
};

/** Round numbers from `low` to `high`; of logarithms, powers of ten and what lies between. */
const ticks = (low, high, log) => {
  const multiples = (from, to, step) => {
    const found = [];
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9 * step; i++)
      found.push(Number((i * step).toPrecision(12)));
    return found;
  };
  const plain = (from, to) => {
    const rough = (to - from) / 5, power = 10 ** Math.floor(Math.log10(rough));
    return multiples(from, to, power * [1, 2, 5, 10].find(m => m * power >= 0.999 * rough));
  };
  if (!log) return plain(low, high);
  const decades = multiples(Math.floor(low), Math.ceil(high), Math.max(1, Math.floor((high - low) / 6)));
  for (const digits of [[1], [1, 3], [1, 2, 5]]) {
    const found = decades.flatMap(e => digits.map(d => Math.log10(d) + e)).filter(v => v >= low && v <= high);
    if (found.length >= 3) return found;
  }
  return plain(10 ** low, 10 ** high).map(Math.log10);
};
const label = (v, greatest) => {
  const a = Math.abs(v), trim = v => String(Number(v.toFixed(4)));
  return a === 0 ? "0" : a >= 1e9 ? trim(v / 1e9) + "G" : a >= 1e6 ? trim(v / 1e6) + "M"
    : a >= 1e4 ? trim(v / 1e3) + "k"
    : greatest >= 1e-2 ? trim(v) : Number(v.toPrecision(4)).toExponential().replace("e+", "e");
};

/** Charts with what was drawn in them. */
const charts = [...document.querySelectorAll(".plot")].map(svg => {
  const [left, right, top, bottom] = numbers(svg.dataset.box), log = svg.dataset.log === "true";
  const scaled = numbers(svg.dataset.y).map(v => log ? Math.log10(v) : v);
  const figure = svg.closest("figure"), values = [...figure.querySelectorAll(".legend b")];
  const marks = [...svg.querySelectorAll(".mark")], lines = [...svg.querySelectorAll("polyline")];
  const points = line => line.getAttribute("points").split(" ").filter(Boolean).map(p => p.split(",").map(Number));
  const curves = lines.filter(line => !line.classList.contains("faint")).map((line, i) => ({
    points: points(line), label: line.dataset.label, value: values[i], mark: marks[i], dot: null,
  }));
  return {svg, left, right, top, bottom, log, whole: scaled, y: scaled, curves,
    raw: lines.filter(line => line.classList.contains("faint")).map(points),
    data: svg.querySelector(".data"), ticks: svg.querySelector(".ticks"), rule: null, now: null};
}).filter(chart => chart.curves.some(curve => curve.points.length));
/** Lets charts that go across the same be looked at together: `word` is what they go across. */
const together = (word, charts) => {
  const whole = numbers(charts[0].svg.dataset.x);
  let [from, to] = whole, at = null;

  const placeX = (c, step) => c.left + (step - from) / (to - from) * (c.right - c.left);
  const placeY = (c, v) => c.bottom - (v - c.y[0]) / (c.y[1] - c.y[0]) * (c.bottom - c.top);

  /** The chart again, from the first to the last step in sight. */
  const draw = c => {
    const inside = points => points.filter(p => p[0] >= from && p[0] <= to);
    c.y = c.whole;
    if (from > whole[0] || to < whole[1]) {
      const seen = [...c.curves.map(curve => curve.points), ...c.raw].flatMap(inside).map(p => p[1]);
      const low = Math.min(...seen), high = Math.max(...seen), room = 0.04 * (high - low) || 0.1 * Math.abs(low)
        || 1e-9;
      if (seen.length) c.y = [low - room, high + room];
    }
    const sx = (c.right - c.left) / (to - from), sy = (c.top - c.bottom) / (c.y[1] - c.y[0]);
    c.data.setAttribute("transform", `matrix(${sx} 0 0 ${sy} ${c.left - from * sx} ${c.bottom - c.y[0] * sy})`);
    c.ticks.replaceChildren();
    const write = (name, x, y, text) => {
      const words = make("text", name, c.ticks);
      words.setAttribute("x", x);
      words.setAttribute("y", y);
      words.textContent = text;
    };
    const rows = ticks(...c.y, c.log), value = v => c.log ? 10 ** v : v;
    const greatest = Math.max(...rows.map(v => Math.abs(value(v))));
    for (const v of rows) {
      make("path", "grid", c.ticks).setAttribute("d", `M${c.left} ${placeY(c, v)}H${c.right}`);
      write("y", c.left - 6, placeY(c, v) + 4, label(value(v), c.log ? value(v) : greatest));
    }
    for (const v of ticks(from, to, false).filter(Number.isInteger))
      write("x", placeX(c, v), c.bottom + 17, label(v, to));
    c.curves.forEach((curve, i) => {
      const shape = curve.mark.dataset.shape;
      let seen = inside(curve.points).map(p => [placeX(c, p[0]), placeY(c, p[1])])
        .filter(p => p[1] >= c.top - 1 && p[1] <= c.bottom + 1);
      if (seen.length > 40) {
        const part = (c.right - c.left) / 9, first = c.left + part * (0.15 + 0.25 * (i % 4));
        seen = [...Array(9).keys()].map(k => nearest(seen, first + part * k));
      }
      curve.mark.setAttribute("d", shape ? seen.map(p => `M${p[0].toFixed(1)} ${p[1].toFixed(1)}${shape}`).join("")
        : "");
    });
  };

  /** The step that is looked at, in every chart: a rule, dots, and values beside the names. */
  const mark = c => {
    const seen = at !== null && at >= from && at <= to;
    c.rule ??= make("path", "rule", c.svg);
    c.now ??= make("text", "now", c.svg);
    c.rule.setAttribute("d", seen ? `M${placeX(c, at)} ${c.top}V${c.bottom}` : "");
    c.now.textContent = seen ? `${word} ${count(at)}` : "";
    c.now.setAttribute("x", Math.min(Math.max(placeX(c, at ?? from), c.left + 20), c.right - 20));
    c.now.setAttribute("y", c.top - 1);
    const told = [];
    for (const curve of c.curves) {
      curve.dot ??= make("circle", "now dot", c.svg);
      const [step, v] = curve.points.length && at !== null ? nearest(curve.points, at) : [NaN, NaN];
      const y = placeY(c, v), shown = seen && y >= c.top - 1 && y <= c.bottom + 1 && step >= from && step <= to
        && curve.mark.dataset.shape;
      curve.dot.setAttribute("r", shown ? 3 : 0);
      curve.dot.setAttribute("cx", shown ? placeX(c, step) : 0);
      curve.dot.setAttribute("cy", shown ? y : 0);
      const far = Math.abs(step - at) > 0.01 * (to - from) && curve.mark.dataset.shape;
      const value = Number.isNaN(v) ? "" : said(c.log ? 10 ** v : v) + (far ? ` (${word} ${count(step)})` : "");
      curve.value.textContent = value;
      if (value) told.push(`${curve.label} ${value}`.trim());
    }
    c.svg.setAttribute("aria-valuenow", Math.round(at ?? from));
    c.svg.setAttribute("aria-valuetext", at === null ? `no ${word} chosen`
      : `${word} ${count(at)}: ${told.join(", ")}`);
  };
  const look = step => {
    at = step;
    charts.forEach(mark);
  };
  /** The steps of a chart that can be looked at: those of its curve with the most. */
  const steps = c => c.curves.reduce((a, b) => b.points.length > a.points.length ? b : a).points;

  const seen = document.createElement("output"), buttons = {};
  const zoom = (a, b) => {
    const least = Math.min(4, whole[1] - whole[0]), middle = (a + b) / 2, half = Math.max(b - a, least) / 2;
    [from, to] = [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)];
    seen.textContent = `Steps ${count(from)} to ${count(to)}`;
    for (const key of ["out", "all"]) if (buttons[key]) buttons[key].disabled = from === whole[0] && to === whole[1];
    charts.forEach(draw);
    charts.forEach(mark);
  };
  const closer = by => {
    const middle = at !== null && at >= from && at <= to ? at : (from + to) / 2;
    const share = (middle - from) / (to - from), width = (to - from) * by;
    zoom(middle - width * share, middle + width * (1 - share));
  };
  if (word === "step") {
    const tools = document.createElement("div");
    tools.className = "tools";
    for (const [key, text, act] of [["in", "Zoom in", () => closer(0.5)], ["out", "Zoom out", () => closer(2)],
      ["all", "Whole run", () => zoom(...whole)]]) {
      buttons[key] = Object.assign(document.createElement("button"), {type: "button", textContent: text, onclick: act});
    }
    tools.append(seen, ...Object.values(buttons), " Drag over a chart to zoom; arrow keys go from step to step.");
    document.getElementById("bar").append(tools);
  }

  for (const c of charts) {
    const {svg} = c;
    for (const [key, value] of Object.entries({role: "slider", tabindex: 0, "aria-valuemin": Math.round(whole[0]),
      "aria-valuemax": Math.round(whole[1])}))
      svg.setAttribute(key, value);
    let began = null, band = null;
    const pointed = event => {
      const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
      return from + (Math.min(Math.max(x, c.left), c.right) - c.left) / (c.right - c.left) * (to - from);
    };
    svg.addEventListener("pointermove", event => {
      const step = pointed(event);
      look(nearest(steps(c), step)[0]);
      if (began === null) return;
      band ??= make("rect", "band", svg);
      const [a, b] = [began, step].map(s => placeX(c, s)).sort((p, q) => p - q);
      for (const [key, value] of Object.entries({x: a, width: b - a, y: c.top,
        height: c.bottom - c.top}))
        band.setAttribute(key, value);
    });
    svg.addEventListener("pointerdown", event => {
      look(nearest(steps(c), pointed(event))[0]);
      if (event.pointerType !== "mouse" || event.button) return;
      began = pointed(event);
      svg.setPointerCapture(event.pointerId);
      event.preventDefault();
      svg.focus({preventScroll: true});
    });
    const end = event => {
      const [a, b] = [began, event.type === "pointerup" ? pointed(event) : began].sort((p, q) => p - q);
      if (began !== null && b - a > 0.02 * (to - from)) zoom(a, b);
      began = null;
      band?.remove();
      band = null;
    };
    svg.addEventListener("pointerup", end);
    svg.addEventListener("pointercancel", end);
    svg.addEventListener("pointerleave", event => event.pointerType === "mouse" && began === null && look(null));
    svg.addEventListener("dblclick", () => zoom(...whole));
    svg.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const all = steps(c), far = event.shiftKey ? 10 : 1;
      const go = by => {
        const now = at === null ? (by > 0 ? -1 : all.length) : all.indexOf(nearest(all, at));
        look(all[Math.min(Math.max(now + by, 0), all.length - 1)][0]);
      };
      const acts = {
        ArrowRight: () => go(far), ArrowUp: () => go(far), ArrowLeft: () => go(-far), ArrowDown: () => go(-far),
        PageUp: () => go(10), PageDown: () => go(-10), Home: () => look(all[0][0]),
        End: () => look(all[all.length - 1][0]),
        "+": () => closer(0.5), "=": () => closer(0.5), "-": () => closer(2), 0: () => zoom(...whole),
        Escape: () => at === null ? zoom(...whole) : look(null),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
  }
  zoom(...whole);
};
for (const word of ["step", "layer"]) {
  const sharing = charts.filter(chart => chart.svg.dataset.across === word);
  if (sharing.length) together(word, sharing);
}

// The heads: the weight under the pointer or under the arrow keys, and one head larger than the others.
const heads = document.getElementById("heads");
if (heads) {
  const images = [...heads.querySelectorAll(".head img")], tokens = [...heads.querySelectorAll(".tokens span")];
  const pixels = image => {
    const canvas = Object.assign(document.createElement("canvas"),
      {width: image.naturalWidth, height: image.naturalHeight});
    const context = canvas.getContext("2d", {willReadFrequently: true});
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, canvas.width, canvas.height).data;
  };
  const colour = (data, i) => data[4 * i + 3] ? (data[4 * i] << 16) + (data[4 * i + 1] << 8) + data[4 * i + 2] : -1;
  const read = new Map();
  let entries = null, [query, key] = [tokens.length - 1, 0];
  const line = Object.assign(document.createElement("output"), {className: "read"});
  line.textContent = "Point at a weight, or go to a head and use the arrow keys; Enter or a click makes a head larger.";
  heads.querySelector(".tokens").after(line);
  const tell = (image, q, k) => {
    [query, key] = [q, k];
    if (!entries) {
      const data = pixels(heads.querySelector(".scale"));
      entries = new Map([...Array(256).keys()].map(i => [colour(data, i), i]));
    }
    if (!read.has(image)) read.set(image, pixels(image));
    const weight = entries.get(colour(read.get(image), q * tokens.length + k));
    const [from, to] = [q, k].map(i => `${i} “${tokens[i].textContent}”`);
    const where = image.alt.slice(0, image.alt.indexOf(":"));
    line.textContent = `${where}: ${from} looks at ${to}: ${
      weight === undefined ? "hidden by the mask" : ((weight / 255) ** 2).toFixed(2)}`;
    tokens.forEach((token, i) => token.className = i === q ? "query" : i === k ? "key" : "");
  };
  const cell = (image, event) => {
    const box = image.getBoundingClientRect(), n = tokens.length;
    const index = (part, size) => Math.min(n - 1, Math.max(0, Math.floor(part / size * n)));
    return [index(event.clientY - box.top, box.height), index(event.clientX - box.left, box.width)];
  };
  images.forEach((image, i) => {
    Object.assign(image, {tabIndex: i ? -1 : 0, draggable: false});
    image.setAttribute("role", "button");
    image.setAttribute("aria-pressed", "false");
    const large = () => image.setAttribute("aria-pressed", String(image.parentElement.classList.toggle("large")));
    const go = by => {
      const next = images[Math.min(Math.max(i + by, 0), images.length - 1)];
      image.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      tell(next, query, key);
    };
    image.addEventListener("pointermove", event => tell(image, ...cell(image, event)));
    image.addEventListener("click", event => { tell(image, ...cell(image, event)); large(); });
    image.addEventListener("keydown", event => {
      const step = event.shiftKey ? 8 : 1, last = tokens.length - 1;
      const move = (q, k) => tell(image, Math.min(Math.max(query + q, 0), last), Math.min(Math.max(key + k, 0), last));
      const acts = {
        ArrowDown: () => move(step, 0), ArrowUp: () => move(-step, 0), ArrowRight: () => move(0, step),
        ArrowLeft: () => move(0, -step),
        PageDown: () => go(1), PageUp: () => go(-1), Enter: large, " ": large,
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
  });
}
// in the frame of a notebook, the page is as high as what it shows
if (frameElement) new ResizeObserver(() => {
  frameElement.style.height = `${Math.ceil(document.documentElement.offsetHeight)}px`;
}).observe(document.documentElement);
