// Makes a page of fedalloy interactive: sortable tables, CSV files, charts that can be switched, hovered and zoomed, and
// a dark and a light page. It reads everything from the page, requests nothing, and a page is complete without it.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  function make(tag, { text, on, ...attributes } = {}, ...children) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    for (const [event, act] of Object.entries(on ?? {})) element.addEventListener(event, act);
    element.append(...children);
    return element;
  }

  const button = (text, act, attributes = {}) => make("button", { type: "button", text, on: { click: act }, ...attributes });
  const tools = (name, ...children) => make("div", { class: `tools ${name}`, role: "group", "aria-label": name }, ...children);

  // --- files ---------------------------------------------------------------------------------------------------------

  // A spreadsheet takes a text that begins like this for a formula, unless it is a number, a mean or an interval.
  const FORMULA = /^[=@+\-]/;
  const NUMBER = /^[+\-]?[\d.]+(e[+\-]?\d+)?( \u00b1 [\d.]+| to [+\-]?[\d.]+)?$/;

  function cell(text) {
    const safe = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text === "\u2013" ? "" : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function download(title, rows) {
    const csv = rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
    const address = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "table";
    const link = make("a", { href: address, download: `${name}.csv` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  const texts = (row) => [...row.cells].map((each) => each.textContent.trim());
  const contents = (table) => [...table.rows].map(texts);

  // --- tables --------------------------------------------------------------------------------------------------------

  const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, min: 60, h: 3600 };

  // The number that a text begins with, in its basic unit; NaN for words and for a missing value.
  function number(text) {
    const found = /^[<>]?\s*([+\-\u2212]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(kB|MB|GB|TB|min|h)?/.exec(text);
    if (!found) return NaN;
    return Number(found[1].replaceAll(",", "").replace("\u2212", "-")) * (UNITS[found[2]] ?? 1);
  }

  function compare(a, b) {
    const [x, y] = [number(a), number(b)];
    if (!isNaN(x) && !isNaN(y)) return x - y;
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
    return a.localeCompare(b);
  }

  function sort(table, heading) {
    const column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const missing = (text) => text === "\u2013" || text === "";
    const rows = [...table.tBodies[0].rows].map((row) => [row.cells[column].textContent.trim(), row]);
    rows.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : (down ? -1 : 1) * compare(a, b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  for (const table of all("table[data-title]")) {
    if (table.tBodies[0].rows.length > 1) {
      for (const heading of all("thead th", table)) {
        const sorter = button("", () => sort(table, heading));
        sorter.append(...heading.childNodes);
        heading.append(sorter);
      }
    }
    if (table.rows.length > 30) table.parentElement.classList.add("tall");
    const csv = button("CSV", () => download(table.dataset.title, contents(table)));
    csv.setAttribute("aria-label", `Download as CSV: ${table.dataset.title}`);
    table.parentElement.after(tools("below", csv));
  }

  // --- light and dark ------------------------------------------------------------------------------------------------

  const themes = ["auto", "light", "dark"].map((theme) => button(theme[0].toUpperCase() + theme.slice(1), (event) => {
    document.documentElement.dataset.theme = theme;
    for (const other of themes) other.setAttribute("aria-pressed", other === event.target);
  }, { "aria-pressed": theme === "auto" }));
  document.querySelector("header").prepend(tools("themes", ...themes));

  // --- series --------------------------------------------------------------------------------------------------------

  const off = new Set(); // the keys of the series that are switched off, in all charts

  function show() {
    for (const element of all("[data-series]")) {
      const hidden = off.has(element.dataset.series);
      element.toggleAttribute("data-off", hidden);
      const switcher = element.querySelector(":scope > button");
      if (switcher) switcher.setAttribute("aria-pressed", !hidden);
    }
    for (const panel of all(".panel")) panel.hidden = all("use[data-series]", panel).every((use) => off.has(use.dataset.series));
  }

  function legend(list) {
    const keys = all("li[data-series]", list).map((item) => item.dataset.series);
    if (keys.length < 2) return;
    const flip = (key) => (off.has(key) ? off.delete(key) : off.add(key));
    const alone = (key) => keys.forEach((other) => (other === key ? off.delete(other) : off.add(other)));
    for (const item of all("li[data-series]", list)) {
      const key = item.dataset.series;
      const act = (event) => { event.shiftKey ? alone(key) : flip(key); show(); };
      const switcher = button("", act, { "aria-pressed": "true", title: "Show or hide; with Shift, show this one alone" });
      switcher.append(...item.childNodes);
      item.append(switcher);
    }
    const every = button("All", () => { keys.forEach((key) => off.delete(key)); show(); });
    const none = button("None", () => { keys.forEach((key) => off.add(key)); show(); });
    list.append(make("li", { class: "tools" }, every, none));
  }
  all(".legend").forEach(legend);

  // --- axes ----------------------------------------------------------------------------------------------------------

  const LOG = new Set(["bytes", "flops", "seconds"]);

  function human(value, units, step) {
    let unit = 0;
    while (unit < units.length - 1 && value >= step[unit] * 0.9995) value /= step[unit++];
    return `${Number(value.toPrecision(3))} ${units[unit]}`;
  }

  // What a coordinate stands for, with `digits` if it is no cost.
  function meaning(kind, place, digits) {
    if (!LOG.has(kind)) return place.toFixed(digits).replace("-", "\u2212");
    const value = 10 ** place;
    if (kind === "bytes") return human(value, ["B", "kB", "MB", "GB", "TB"], [1e3, 1e3, 1e3, 1e3]);
    if (kind === "seconds") return human(value, ["s", "min", "h"], [60, 60]);
    return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  }

  function ticks(kind, low, high, most) {
    if (LOG.has(kind)) {
      const places = [];
      for (let power = Math.floor(low); power <= high; power++) {
        for (const digit of [1, 2, 5]) places.push(power + Math.log10(digit));
      }
      const inside = places.filter((place) => place >= low && place <= high);
      const step = Math.ceil(inside.length / most);
      if (inside.length > 1) return inside.filter((_, i) => i % step === 0).map((place) => [place, meaning(kind, place)]);
    }
    const raw = (high - low) / most;
    const unit = 10 ** Math.floor(Math.log10(raw));
    let step = [1, 2, 5, 10].map((digit) => digit * unit).find((one) => one >= raw * 0.999);
    if (kind === "count") step = Math.max(1, step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
      found.push([k * step, meaning(kind, k * step, digits)]);
    }
    return found;
  }

  // --- charts --------------------------------------------------------------------------------------------------------

  const numbers = (path) => (path.getAttribute("d").match(/-?\d+\.?\d*(?:e[+-]?\d+)?/g) ?? []).map(Number);

  // The points of a path: pairs for a line, and pairs with the 0 of "h0" behind them for dots.
  function points(path) {
    const found = [];
    for (const part of path.getAttribute("d").split("M").slice(1)) {
      const values = part.replace(/h0.*$/, "").trim().split(" ").map(Number);
      for (let i = 0; i + 1 < values.length; i += 2) found.push([values[i], values[i + 1]]);
    }
    return found;
  }

  // The half height of the band at each of its points.
  function deviations(path) {
    const values = path ? numbers(path) : [];
    const count = values.length / 4;
    return Array.from({ length: count }, (_, i) => (values[2 * i + 1] - values[values.length - 1 - 2 * i]) / 2);
  }

  // The series of a field: those of its own, or in a panel those that it uses.
  function layers(field) {
    const groups = all("g[data-name]", field);
    const used = all("use[data-series]", field).map((use) => document.querySelector(use.getAttribute("href")));
    return (groups.length ? groups : used).filter((group) => !off.has(group.dataset.series)).map((group) => {
      const path = group.querySelector("path.line, path.dots");
      const read = path ? points(path) : [];
      return {
        group, points: read, name: group.dataset.name, line: path?.classList.contains("line"),
        of: path?.dataset.of?.split(" "), deviations: deviations(group.querySelector("path.band")),
      };
    });
  }

  const tip = make("div", { class: "tip", role: "status", hidden: "" });
  document.body.append(tip);

  function say(x, y, title, text) {
    tip.replaceChildren(make("b", { text: title }), text);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above < 4 ? y + 18 : above) + scrollY}px`;
  }

  const charts = all(".chart").map((figure) => {
    const table = figure.dataset.table ? document.getElementById(figure.dataset.table) : null;
    const rows = table ? contents(table) : []; // before anybody sorts it
    return { figure, rows, clients: JSON.parse(figure.dataset.clients ?? "[]") };
  });

  function enliven(field, { figure, rows, clients }) {
    const svg = field.querySelector("svg");
    const { what, kind } = field.dataset;
    const whole = svg.getAttribute("viewBox").split(" ").map(Number);
    const title = figure.querySelector("h3").textContent;
    const zooms = what === "lines" && !field.closest(".panel");
    const plain = what === "lines" ? 2 : 1;
    const spot = make("i", { class: "spot", hidden: "" });
    field.append(spot);
    let view = whole, near = null, from = null;

    const at = (x, y) => { // a place in the field, in pixels
      const { width, height } = field.getBoundingClientRect();
      return [(x - view[0]) / view[2] * width, (-y - view[1]) / view[3] * height];
    };

    function leave() {
      tip.hidden = spot.hidden = true;
      svg.querySelector(".marks")?.classList.remove("dim");
      near?.layer.group.classList.remove("near");
      near = null;
    }

    function point(layer, index) {
      leave();
      near = { layer, index };
      const [x, y] = layer.points[index];
      const [left, top] = at(x, y);
      const box = field.getBoundingClientRect();
      layer.group.classList.add("near");
      if (what === "lines") svg.querySelector(".marks")?.classList.add("dim");
      spot.style.left = `${left}px`;
      spot.style.top = `${top}px`;
      spot.style.color = getComputedStyle(layer.group).color;
      spot.hidden = false;
      const deviation = layer.deviations[index] ? ` \u00b1 ${layer.deviations[index].toFixed(2)}` : "";
      const where = field.closest(".axis").dataset.x;
      if (layer.line) {
        const value = Math.abs(y) < 0.1 && y !== 0 ? y.toPrecision(3) : y.toFixed(2);
        say(box.left + left, box.top + top, layer.name, `${where}: ${meaning(kind, x, 0)}. ${title}: ${value}${deviation}`);
      } else {
        const client = layer.of ? clients[layer.of[index]] ?? `client ${layer.of[index]}` : "";
        say(box.left + left, box.top + top, layer.name, `${client}: ${x.toFixed(plain)}`);
      }
    }

    function nearest(x, y) {
      let best = null, least = 60 ** 2;
      for (const layer of layers(field)) {
        layer.points.forEach(([a, b], index) => {
          const [left, top] = at(a, b);
          const distance = (left - x) ** 2 + (top - y) ** 2;
          if (distance < least) [best, least] = [{ layer, index }, distance];
        });
      }
      return best;
    }

    function hover(event) {
      const box = field.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const across = whole[0] + (x / box.width) * whole[2];
      const row = rows[1 + Math.min(Math.max(0, Math.floor((y / box.height) * whole[3])), Math.round(whole[3]) - 1)];
      if (what === "rows" && row) return say(event.clientX, event.clientY, row[0], row.slice(1).map((text, i) => `${rows[0][i + 1]}: ${text}`).join("; "));
      if (what === "cells" && row) {
        const column = Math.round(across) + 1;
        return say(event.clientX, event.clientY, `${rows[0][0]} ${row[0]}, ${rows[0][column]}`, row[column]);
      }
      const found = nearest(x, y);
      if (found) point(found.layer, found.index);
      else leave();
    }

    function redraw() {
      svg.setAttribute("viewBox", view.join(" "));
      const [left, top, width, height] = view;
      all("span.x, span.y", field).forEach((label) => label.remove());
      const across = ticks(kind, left, left + width, field.clientWidth < 500 ? 4 : 8);
      const up = ticks("number", -top - height, -top, 6);
      svg.querySelector(".grid").setAttribute("d", [
        ...up.map(([y]) => `M${left} ${-y}H${left + width}`), ...across.map(([x]) => `M${x} ${top}V${top + height}`),
      ].join(""));
      field.append(
        ...across.map(([x, text]) => make("span", { class: "x", text, style: `left:${(100 * (x - left)) / width}%` })),
        ...up.map(([y, text]) => make("span", { class: "y", text, style: `bottom:${(100 * (y + top + height)) / height}%` })),
      );
    }

    function zoom(next) {
      leave();
      const width = Math.min(Math.max(next[2], whole[2] / 200), whole[2]);
      const height = Math.min(Math.max(next[3], whole[3] / 200), whole[3]);
      const left = Math.min(Math.max(next[0], whole[0]), whole[0] + whole[2] - width);
      const top = Math.min(Math.max(next[1], whole[1]), whole[1] + whole[3] - height);
      view = [left, top, width, height];
      redraw();
    }

    const scaled = (factor) => {
      const [left, top, width, height] = view;
      zoom([left + (width * (1 - factor)) / 2, top + (height * (1 - factor)) / 2, width * factor, height * factor]);
    };
    const moved = (x, y) => zoom([view[0] + x * view[2], view[1] - y * view[3], view[2], view[3]]);

    // Left and right go along a series, up and down to the next one; with Shift they move a zoomed chart.
    function press(event) {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (event.key === "Escape") leave();
      else if (zooms && ["+", "="].includes(event.key)) scaled(1 / 1.5);
      else if (zooms && event.key === "-") scaled(1.5);
      else if (zooms && event.key === "0") zoom(whole);
      else if (step && event.shiftKey && zooms) moved(step[0] / 4, step[1] / 4);
      else if (step) {
        const shown = layers(field).filter((layer) => layer.points.length);
        if (!shown.length) return;
        const now = near ? Math.max(0, shown.findIndex((layer) => layer.group === near.layer.group)) : 0;
        const layer = shown[(now + (near ? -step[1] : 0) + shown.length) % shown.length];
        const index = near ? near.index + step[0] : 0;
        point(layer, Math.min(Math.max(0, index), layer.points.length - 1));
      } else return;
      event.preventDefault();
    }

    const place = (event) => {
      const box = field.getBoundingClientRect();
      return [Math.min(Math.max(0, event.clientX - box.left), box.width), Math.min(Math.max(0, event.clientY - box.top), box.height)];
    };
    const frame = make("i", { class: "select", hidden: "" });
    field.append(frame);

    function drag(event) {
      const [x, y] = place(event);
      const [left, top, width, height] = [Math.min(x, from[0]), Math.min(y, from[1]), Math.abs(x - from[0]), Math.abs(y - from[1])];
      Object.assign(frame.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
      frame.hidden = width < 6 || height < 6;
      return [left, top, width, height];
    }

    field.addEventListener("pointermove", (event) => (from ? drag(event) : hover(event)));
    field.addEventListener("pointerdown", (event) => event.pointerType === "touch" && hover(event));
    field.addEventListener("pointerleave", () => from || leave());
    field.addEventListener("blur", leave);
    if (what === "lines" || what === "dots") {
      field.tabIndex = 0;
      field.setAttribute("role", "group");
      field.setAttribute("aria-label", `${title}: arrow keys show values${zooms ? "; plus, minus and 0 zoom" : ""}`);
      field.addEventListener("keydown", press);
    }
    if (!zooms) return null;
    field.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      from = place(event);
      field.setPointerCapture(event.pointerId);
      leave();
    });
    field.addEventListener("pointerup", (event) => {
      if (!from) return;
      const [left, top, width, height] = drag(event);
      const box = field.getBoundingClientRect();
      from = null;
      if (!frame.hidden) {
        zoom([view[0] + (left / box.width) * view[2], view[1] + (top / box.height) * view[3], (width / box.width) * view[2], (height / box.height) * view[3]]);
      }
      frame.hidden = true;
    });
    field.addEventListener("dblclick", () => zoom(whole));
    return { near: () => scaled(1 / 1.5), far: () => scaled(1.5), reset: () => zoom(whole) };
  }

  for (const chart of charts) {
    const { figure } = chart;
    const controls = [];
    const zooms = new Map();
    for (const field of all(".field", figure)) {
      const found = enliven(field, chart);
      if (found) zooms.set(field.closest(".axis"), found);
    }
    const axes = all(".axis", figure);
    let chosen = axes[0];
    const choices = zooms.size > 1;
    const title = figure.querySelector("h3").textContent;
    if (choices) {
      const choose = () => axes.forEach((axis, i) => { axis.hidden = i !== select.selectedIndex; if (!axis.hidden) chosen = axis; });
      const select = make("select", { "aria-label": `Horizontal axis of ${title}`, on: { change: choose } });
      select.append(...axes.map((axis) => make("option", { text: axis.dataset.x })));
      choose();
      controls.push(select);
    }
    if (figure.querySelector(".many")) {
      const flip = (event) => {
        const one = event.target.getAttribute("aria-pressed") !== "true";
        event.target.setAttribute("aria-pressed", one);
        all(".one", figure).forEach((each) => { each.hidden = !one; });
        all(".many", figure).forEach((each) => { each.hidden = one; });
      };
      controls.push(button("One chart", flip, { "aria-pressed": "false" }));
    }
    if (zooms.size) {
      for (const [text, name, act] of [["+", "Zoom in", "near"], ["\u2212", "Zoom out", "far"], ["Reset", "Reset the zoom", "reset"]]) {
        controls.push(button(text, () => zooms.get(chosen)[act](), { "aria-label": `${name}: ${title}`, title: `${name}; or drag over the chart` }));
      }
      controls.push(button("CSV", () => {
        const field = chosen.querySelector(".one .field");
        const lines = layers(field).flatMap((layer) => layer.points.map(([x, y], i) => [
          layer.name, String(LOG.has(field.dataset.kind) ? Number((10 ** x).toPrecision(5)) : x), String(y), layer.deviations[i] ? layer.deviations[i].toPrecision(4) : "",
        ]));
        download(`${title} by ${chosen.dataset.x}`, [["Series", chosen.dataset.x, title, "Standard deviation"], ...lines]);
      }, { "aria-label": `Download the curves as CSV: ${title}` }));
    }
    if (controls.length) figure.querySelector(".head").append(tools("chart tools", ...controls));
  }
})();
