// The read-out under the pointer; the page is whole without it.
for (const svg of document.querySelectorAll("svg.plot")) {
  const [xs, ys, [left, right, top, bottom]] = ["x", "y", "box"].map(k => svg.dataset[k].split(" ").map(Number));
  const log = svg.dataset.log === "true";
  const scaled = v => log ? Math.log10(v) : v;
  const step = px => xs[0] + (px - left) / (right - left) * (xs[1] - xs[0]);
  const value = py => {
    const v = scaled(ys[0]) + (bottom - py) / (bottom - top) * (scaled(ys[1]) - scaled(ys[0]));
    return log ? 10 ** v : v;
  };
  const curves = [...svg.querySelectorAll("polyline:not(.faint)")].map(line => ({
    label: line.dataset.label, colour: line.style.stroke, points: [...line.points].map(p => [p.x, p.y]),
  }));
  const rule = document.createElementNS(svg.namespaceURI, "path");
  rule.setAttribute("class", "rule");
  const tip = document.createElement("div");
  tip.className = "tip";
  const hide = () => { rule.remove(); tip.remove(); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (at.x < left - 4 || at.x > right + 4) return hide();
    let near = curves.filter(c => c.points.length).map(c => {
      const p = c.points.reduce((a, b) => Math.abs(b[0] - at.x) < Math.abs(a[0] - at.x) ? b : a);
      return { ...c, p };
    });
    near = near.sort((a, b) => Math.abs(a.p[1] - at.y) - Math.abs(b.p[1] - at.y)).slice(0, 10);
    near.sort((a, b) => a.p[1] - b.p[1]);
    const closest = near.reduce((a, b) => Math.abs(b.p[0] - at.x) < Math.abs(a.p[0] - at.x) ? b : a);
    rule.setAttribute("d", `M${closest.p[0]} ${top}V${bottom}`);
    svg.append(rule);
    tip.replaceChildren(`step ${Math.round(step(closest.p[0])).toLocaleString("en")}`);
    for (const c of near) {
      const mark = document.createElement("i");
      mark.style.borderColor = c.colour;
      tip.append("\n", mark, `${c.label} ${Number(value(c.p[1]).toPrecision(4))}`);
    }
    const figure = svg.parentElement;
    figure.append(tip);
    const box = figure.getBoundingClientRect();
    const x = event.clientX - box.left;
    tip.style.top = `${event.clientY - box.top + 12}px`;
    tip.style.left = `${x + 14 + tip.offsetWidth > box.width ? Math.max(0, x - 14 - tip.offsetWidth) : x + 14}px`;
  });
}
