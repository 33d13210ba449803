// Any tensor as a table: every number exact, asked for as far as it is in sight. And the whole of it to take away.
import { button, figure, make, say, short } from "./dom.js";
import { loader, troubleNote } from "./answer.js";
import { cellNumbers } from "./numbers.js";
import { seedTable } from "./seed-table.js";
import { Trouble, asTrouble } from "./source.js";

/** @typedef {import("./glass.js").Glass} Glass */

/** @type {import("./glass.js").View} */
export const viewOfTable = { id: "table", title: "Table", about: "What are the numbers of a tensor?", open: tableView,
  needs: ({ n }) => (n ? [`tensors/${encodeURIComponent(n)}`] : []),
};

/** Sizes of a cell, of the labels, and of what is asked for at once. */
const SIZES = { row: 24, column: 88, label: 104, head: 26, rows: 32, cols: 16 };

/** Names in the list at most. */
const NAMES = 40;

/** The word of the state that holds a place on an axis. @type {Record<string, "q" | "k" | "h">} */
const SHARED = { pos: "q", query_pos: "q", key_pos: "k", head_index: "h", head: "h" };

/** @param {Glass} glass @returns {import("./glass.js").Shown} */
function tableView(glass) {
  const search = make("input", { type: "search", id: "tensor-name", placeholder: "Find a tensor", autocomplete: "off", spellcheck: "false", role: "combobox", "aria-expanded": "false", "aria-controls": "tensor-names", "aria-label": "Tensor" });
  const names = make("ul", { id: "tensor-names", class: "names", hidden: "", "aria-label": "Tensors" });
  const leading = make("div", { class: "leading" });
  const about = make("p", { class: "note" });
  const scroller = make("div", { class: "cells", tabindex: "-1" });
  const space = make("div", { class: "space" });
  const head = make("div", { class: "row headings", role: "row" });
  const body = make("div", { role: "rowgroup" });
  const notice = make("div", {});
  const numbers = make("div", { class: "stack" });
  const grid = make("div", { role: "grid", class: "sheet" }, make("div", { role: "rowgroup", class: "top" }, head), body, space);
  scroller.append(grid);
  const formats = ["csv", "npy", "safetensors"].map((format) => {
    const anchor = make("a", { href: "#", class: "file" }, format);
    anchor.addEventListener("click", (event) => {
      event.preventDefault();
      glass.save(`tensors/${encodeURIComponent(entry?.name ?? "")}?at=${part("*", "*")}&format=${format}`, `${entry?.name}.${format}`).catch(tell);
    });
    return anchor;
  });
  const copy = button("Copy as table", copyTable, { class: "quiet", hidden: navigator.clipboard ? null : "" });
  const element = make(
    "div", { class: "table" },
    make("div", { class: "tools" }, make("div", { class: "combo" }, search, names), leading),
    about, notice, scroller, make("p", { class: "files" }, "Save as ", ...formats, copy),
  );
  /** @type {any[]} */
  let listing = [];
  /** @type {any} */
  let entry = null;
  let [identity, drawing, busy, pick] = ["", 0, false, -1];
  /** Blocks of numbers. @type {Map<string, (number | string)[]>} */
  const blocks = new Map();
  const wanted = () => glass.state().n || (glass.run().depth ? "blocks.0.hook_resid_pre" : "");
  const axes = () => /** @type {string[]} */ (entry?.axes ?? entry?.shape.map(() => "") ?? []);
  const shape = () => /** @type {number[]} */ (entry?.shape ?? []);
  const rank = () => shape().length;
  const rows = () => (rank() > 1 ? (shape()[rank() - 2] ?? 1) : rank() === 1 ? (shape()[0] ?? 1) : 1);
  const cols = () => (rank() > 1 ? (shape()[rank() - 1] ?? 1) : 1);

  /** The chosen place, one number an axis: what the page knows by another name comes first. @returns {number[]} */
  function at() {
    const said = glass.state().at.split(",").map(Number);
    const seen = new Set();
    return shape().map((size, n) => {
      const word = SHARED[axes()[n] ?? ""];
      const own = word && !seen.has(word) ? (word === "q" ? glass.q() : glass.state()[word]) : null;
      if (word) seen.add(word);
      const place = own ?? said[n] ?? 0;
      return Math.min(size - 1, Math.max(0, Number.isInteger(place) ? place : 0));
    });
  }

  /** @param {number[]} place */
  function choose(place) {
    /** @type {Partial<import("./address.js").State>} */
    const changes = { at: place.join() };
    const seen = new Set();
    axes().forEach((axis, n) => {
      const word = SHARED[axis];
      if (word && !seen.has(word)) changes[word] = place[n] ?? 0;
      if (word) seen.add(word);
    });
    glass.go({ ...changes, n: entry.name });
  }

  /** @param {number} row @param {number} col */
  const cellOf = (row, col) => [...at().slice(0, Math.max(0, rank() - 2)), ...(rank() > 1 ? [row, col] : rank() === 1 ? [row] : [])];

  /** @param {string} row @param {string} col */
  function part(row, col) {
    return [...at().slice(0, Math.max(0, rank() - 2)), ...(rank() > 1 ? [row, col] : rank() === 1 ? [row] : [])].join();
  }

  const chosen = () => {
    const place = at();
    return rank() > 1 ? [place[rank() - 2] ?? 0, place[rank() - 1] ?? 0] : [place[0] ?? 0, 0];
  };

  /** @param {unknown} fault */
  function tell(fault) {
    const trouble = asTrouble(fault);
    // the server names the nearest, in quotes
    const near = trouble.code === "unknown_tensor" ? /(?:mean|nearest)[^`]*`([^`]+)`/i.exec(trouble.message)?.[1] : null;
    notice.replaceChildren(troubleNote(trouble, near ? null : listing.length > 0 ? draw : load, ...(near ? [make("a", { href: glass.link({ n: near, at: "" }) }, near)] : [])));
  }

  /** The nearest name, by what two names have in common. @param {string} name */
  function nearest(name) {
    const pairs = (/** @type {string} */ text) => new Set([...text.slice(1)].map((c, n) => text[n] + c));
    const own = pairs(name);
    const like = (/** @type {string} */ other) => {
      const theirs = pairs(other);
      return (2 * [...own].filter((pair) => theirs.has(pair)).length) / (own.size + theirs.size + 1e-9);
    };
    return listing.map((one) => one.name).reduce((best, one) => (like(one) > like(best) ? one : best), listing[0]?.name ?? "");
  }

  const load = loader(notice, glass.listing, ({ tensors, params }) => {
    listing = [...tensors, ...params];
    if (search === document.activeElement) offer();
    else search.value = wanted();
    glass.go({}); // there is a tensor now
  }, tell);

  /** @param {number} n */
  const rowLabel = (n) => {
    const axis = axes()[Math.max(0, rank() - 2)];
    return axis === "pos" || axis === "query_pos" || axis === "key_pos" ? `${n} ${glass.label(n)}` : `${n}`;
  };
  /** @param {number} n */
  const colLabel = (n) => (axes()[rank() - 1] === "key_pos" ? `${n} ${glass.label(n)}` : `${n}`);

  function draw() {
    drawing = 0;
    if (listing.length === 0) return;
    const name = wanted();
    const found = listing.find((one) => one.name === name) ?? (/^cos\(.+\)$/.test(name) ? cosine(name) : null);
    if (!found) {
      const near = nearest(name);
      entry = null;
      body.replaceChildren();
      head.replaceChildren();
      numbers.replaceChildren();
      about.textContent = "";
      leading.replaceChildren();
      notice.replaceChildren(troubleNote(new Trouble(`There is no tensor “${name}”.`), null, make("span", {}, "The nearest: ", make("a", { href: glass.link({ n: near, at: "" }) }, near))));
      search.value = name;
      return;
    }
    const fresh = entry?.name !== name;
    entry = found;
    const mine = `${glass.run().id} ${glass.other()?.id ?? ""} ${name} ${part("*", "*")}`;
    if (mine !== identity) {
      identity = mine;
      blocks.clear();
      busy = false;
      notice.replaceChildren();
      if (fresh) {
        scroller.scrollTo(0, 0);
        if (search !== document.activeElement) search.value = name;
      }
      describe();
      intoView();
    }
    lay();
    ask();
    figures();
  }

  /** @param {string} name */
  function cosine(name) {
    const inner = listing.find((one) => `cos(${one.name})` === name);
    if (!inner) return null;
    const count = inner.shape.length > 1 ? inner.shape[inner.shape.length - 2] : 1;
    const axis = inner.axes?.[inner.shape.length - 2] ?? "row";
    return { name, shape: [count, count], axes: [axis, axis], about: `Cosine of the angle between every two rows of ${inner.name}`, formula: "x·y / (|x| |y|)" };
  }

  function describe() {
    about.replaceChildren(
      ...(entry.about ? [`${entry.about} · `] : []), entry.letters ? `${entry.letters} = ` : "", shape().map((size) => figure(size, 0)).join(" × "),
      entry.symbol ? ` · ${entry.symbol}` : "", entry.formula ? " · " : "", entry.formula ? make("code", {}, entry.formula) : "",
    );
    leading.replaceChildren(...shape().slice(0, Math.max(0, rank() - 2)).map((size, n) => {
      if (size === 1) return "";
      const input = make("input", { type: "number", min: "0", max: `${size - 1}`, "aria-label": axes()[n] ?? `axis ${n}` });
      input.value = `${at()[n]}`;
      input.addEventListener("change", () => choose(at().map((place, m) => (m === n ? Math.min(size - 1, Math.max(0, Math.trunc(Number(input.value) || 0))) : place))));
      return make("label", {}, `${axes()[n]?.replace("_index", "") || `axis ${n}`} `, input);
    }));
    grid.setAttribute("aria-label", entry.name);
    grid.setAttribute("aria-rowcount", `${rows() + 1}`);
    grid.setAttribute("aria-colcount", `${cols() + 1}`);
    space.style.setProperty("width", `${SIZES.label + cols() * SIZES.column}px`);
    space.style.setProperty("height", `${SIZES.head + rows() * SIZES.row}px`);
    scroller.style.setProperty("height", `${SIZES.head + rows() * SIZES.row + 14}px`);
  }

  /** The rows and columns in sight. */
  function sight() {
    const r0 = Math.min(rows() - 1, Math.max(0, Math.floor(scroller.scrollTop / SIZES.row)));
    const c0 = Math.min(cols() - 1, Math.max(0, Math.floor(scroller.scrollLeft / SIZES.column)));
    const r1 = Math.min(rows(), r0 + Math.ceil((scroller.clientHeight - SIZES.head) / SIZES.row) + 1);
    const c1 = Math.min(cols(), c0 + Math.ceil((scroller.clientWidth - SIZES.label) / SIZES.column) + 1);
    return { r0, c0, r1: Math.max(r0 + 1, r1), c1: Math.max(c0 + 1, c1) };
  }

  /** @param {number} row @param {number} col */
  const number = (row, col) => {
    const block = blocks.get(`${Math.floor(row / SIZES.rows)} ${Math.floor(col / SIZES.cols)}`);
    const wide = Math.min(SIZES.cols, cols() - Math.floor(col / SIZES.cols) * SIZES.cols);
    return block?.[(row % SIZES.rows) * wide + (col % SIZES.cols)];
  };

  function lay() {
    if (!entry) return;
    const { r0, c0, r1, c1 } = sight();
    const [row, col] = chosen();
    const focused = body.contains(document.activeElement);
    const across = Array.from({ length: c1 - c0 }, (_, n) => c0 + n);
    grid.style.setProperty("--x", `${c0 * SIZES.column}px`);
    head.setAttribute("aria-rowindex", "1");
    head.replaceChildren(
      make("div", { role: "columnheader", class: "corner", "aria-colindex": "1" }, `${axes()[rank() - 2] ?? ""} \\ ${axes()[rank() - 1] ?? ""}`),
      ...across.map((c) => make("div", { role: "columnheader", "aria-colindex": `${c + 2}`, class: c === col ? "on" : null }, colLabel(c))),
    );
    const made = [];
    for (let r = r0; r < r1; r++) {
      const line = make("div", { role: "row", class: "row", "aria-rowindex": `${r + 2}` }, make("div", { role: "rowheader", "aria-colindex": "1", class: r === row ? "on" : null }, rowLabel(r)));
      for (const c of across) {
        const value = number(r, c);
        const here = r === row && c === col;
        const text = value === undefined ? "…" : typeof value === "string" ? inWord(value) : six(value);
        const cell = make("div", { role: "gridcell", "aria-colindex": `${c + 2}`, tabindex: here ? "0" : "-1", "aria-selected": here ? "true" : null, "data-at": `${r},${c}`, class: typeof value === "string" ? "odd" : null }, text);
        line.append(cell);
      }
      line.style.setProperty("top", `${SIZES.head + r * SIZES.row}px`);
      made.push(line);
    }
    body.replaceChildren(...made);
    // the grid is one stop of the tab key, in sight or not
    const own = body.querySelector("[tabindex='0']") ?? body.querySelector("[role='gridcell']");
    own?.setAttribute("tabindex", "0");
    if (focused && own instanceof HTMLElement) own.focus({ preventScroll: true });
  }

  async function ask() {
    if (!entry || busy) return;
    const { r0, c0, r1, c1 } = sight();
    const missing = [];
    for (let r = Math.floor(r0 / SIZES.rows); r * SIZES.rows < r1; r++) {
      for (let c = Math.floor(c0 / SIZES.cols); c * SIZES.cols < c1; c++) if (!blocks.has(`${r} ${c}`)) missing.push([r, c]);
    }
    if (missing.length === 0) return;
    const [b0, b1] = [missing.map(([r = 0]) => r), missing.map(([, c = 0]) => c)];
    const span = (/** @type {number[]} */ all, /** @type {number} */ size, /** @type {number} */ most) => [Math.min(...all) * size, Math.min(most, (Math.max(...all) + 1) * size)];
    const [y0 = 0, y1 = 0] = span(b0, SIZES.rows, rows());
    const [x0 = 0, x1 = 0] = span(b1, SIZES.cols, cols());
    const mine = identity;
    busy = true;
    try {
      const { values } = await glass.tensor(entry.name, part(`${y0}:${y1}`, `${x0}:${x1}`), glass.other() !== null);
      if (mine !== identity) return;
      for (let y = y0; y < y1; y += SIZES.rows) {
        for (let x = x0; x < x1; x += SIZES.cols) {
          const block = [];
          for (let r = y; r < Math.min(y1, y + SIZES.rows); r++) block.push(...values.slice((r - y0) * (x1 - x0) + x - x0, (r - y0) * (x1 - x0) + Math.min(x1, x + SIZES.cols) - x0));
          blocks.set(`${y / SIZES.rows} ${x / SIZES.cols}`, block);
        }
      }
      busy = false;
      lay();
      figures();
      ask();
    } catch (fault) {
      if (mine === identity) tell(fault);
    } finally {
      if (mine === identity) busy = false;
    }
  }

  function figures() {
    if (!entry) return;
    const [row = 0, col = 0] = chosen();
    const value = number(row, col);
    numbers.replaceChildren(cellNumbers(glass, entry, at(), value === undefined ? null : typeof value === "string" ? inWord(value) : short(value, 8)));
  }

  function intoView() {
    const [row = 0, col = 0] = chosen();
    const [y, x] = [row * SIZES.row, col * SIZES.column];
    const [high, wide] = [scroller.clientHeight - SIZES.head - SIZES.row, scroller.clientWidth - SIZES.label - SIZES.column];
    if (y < scroller.scrollTop) scroller.scrollTop = y;
    else if (y > scroller.scrollTop + high) scroller.scrollTop = y - high;
    if (x < scroller.scrollLeft) scroller.scrollLeft = x;
    else if (x > scroller.scrollLeft + wide) scroller.scrollLeft = x - wide;
  }

  function copyTable() {
    const ask = async (/** @type {[number, number]} */ [r0, r1], /** @type {[number, number]} */ [c0, c1]) => (await glass.tensor(entry.name, part(`${r0}:${r1}`, `${c0}:${c1}`), glass.other() !== null)).values;
    seedTable(rows(), cols(), ask).then((text) => navigator.clipboard.writeText(text)).then(() => say("copied"), tell);
  }

  scroller.addEventListener("scroll", () => {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      lay();
      ask();
    });
  }, { passive: true });
  body.addEventListener("click", (event) => {
    const place = event.target instanceof HTMLElement ? event.target.dataset["at"]?.split(",").map(Number) : undefined;
    if (!place) return;
    choose(cellOf(place[0] ?? 0, place[1] ?? 0));
    lay();
    body.querySelector("[tabindex='0']") instanceof HTMLElement && /** @type {HTMLElement} */ (body.querySelector("[tabindex='0']")).focus({ preventScroll: true });
  });
  body.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !entry) return;
    const [row = 0, col = 0] = chosen();
    const step = event.shiftKey ? 16 : 1;
    /** @type {Record<string, [number, number]>} */
    const places = {
      ArrowLeft: [row, col - step], ArrowRight: [row, col + step], ArrowUp: [row - step, col], ArrowDown: [row + step, col],
      Home: [row, 0], End: [row, cols() - 1], PageUp: [row - 16, col], PageDown: [row + 16, col],
    };
    const to = places[event.key];
    if (!to) return;
    event.preventDefault();
    choose(cellOf(Math.min(rows() - 1, Math.max(0, to[0])), Math.min(cols() - 1, Math.max(0, to[1]))));
    intoView();
    lay();
    ask();
    const own = body.querySelector("[tabindex='0']");
    if (own instanceof HTMLElement) own.focus({ preventScroll: true });
  });

  /** The names that fit what is typed. */
  function offer() {
    const words = search.value.trim().toLowerCase().split(/\s+/);
    const fit = listing.filter((one) => words.every((word) => one.name.toLowerCase().includes(word) || (one.about ?? "").toLowerCase().includes(word)));
    const shown = fit.slice(0, NAMES);
    pick = -1;
    search.removeAttribute("aria-activedescendant");
    names.setAttribute("role", shown.length ? "listbox" : "presentation");
    names.replaceChildren(...shown.map((one, n) => {
      const item = make("li", { role: "option", id: `tensor-${n}`, "aria-selected": "false", "data-name": one.name }, make("code", {}, one.name), make("span", { class: "dim" }, ` ${one.shape.join(" × ")}`));
      return item;
    }), ...(fit.length > shown.length ? [make("li", { class: "dim", role: "presentation" }, `and ${fit.length - shown.length} more`)] : fit.length === 0 ? [make("li", { class: "dim", role: "presentation" }, "No tensor has that name")] : []));
    names.hidden = false;
    search.setAttribute("aria-expanded", "true");
  }
  function shut() {
    names.hidden = true;
    search.setAttribute("aria-expanded", "false");
  }
  /** @param {string} name */
  function take(name) {
    shut();
    glass.go({ n: name, at: "" }, "new");
  }
  search.addEventListener("focus", () => {
    search.select();
    offer();
  });
  search.addEventListener("input", offer);
  search.addEventListener("blur", () => {
    shut();
    search.value = wanted();
  });
  names.addEventListener("mousedown", (event) => {
    event.preventDefault();
    const name = event.target instanceof Element ? event.target.closest("li")?.getAttribute("data-name") : null;
    if (!name) return;
    take(name);
    search.blur();
  });
  search.addEventListener("keydown", (event) => {
    const options = [...names.querySelectorAll("[role='option']")];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      options[pick]?.setAttribute("aria-selected", "false");
      pick = (pick + (event.key === "ArrowDown" ? 1 : -1) + options.length) % Math.max(1, options.length);
      options[pick]?.setAttribute("aria-selected", "true");
      options[pick]?.scrollIntoView({ block: "nearest" });
      search.setAttribute("aria-activedescendant", `tensor-${pick}`);
    } else if (event.key === "Enter") {
      const exact = listing.some((one) => one.name === search.value.trim());
      take(options[pick]?.getAttribute("data-name") ?? (exact ? search.value.trim() : (options[0]?.getAttribute("data-name") ?? search.value.trim())));
      search.blur();
    } else if (event.key === "Escape") {
      event.preventDefault();
      search.blur();
    }
  });
  const watcher = new ResizeObserver(() => {
    lay();
    ask();
  });
  watcher.observe(scroller);

  return {
    element,
    numbers,
    update() {
      if (listing.length > 0) draw();
      else if (glass.run().done) load();
    },
    close: () => watcher.disconnect(),
    tensor: () => (entry ? { name: entry.name, at: at() } : null),
  };
}

/** @param {number | string} value */
function six(value) {
  const number = Number(value);
  const size = Math.abs(number);
  return (size !== 0 && (size < 1e-5 || size >= 1e6) ? number.toExponential(3).replace("e+", "e") : number.toFixed(6)).replaceAll("-", "−");
}

/** @param {number | string} value */
function inWord(value) {
  return value === "inf" ? "∞" : value === "-inf" ? "−∞" : `${value}`;
}
