"use strict";
// Draws the heat maps from the data in the page. No library, no request.
const VIEWS = {
  steady: { table: 3, diverging: true },
  apart: { table: 2, diverging: true },
  own: { table: 0, diverging: false },
  waited: { table: 1, diverging: false },
};
// Told apart by people who see no red or no green: from blue over grey to orange; dark blue to yellow (cividis).
const DIVERGING = {
  light: [[5, 75, 150], [130, 175, 215], [240, 240, 240], [245, 160, 70], [160, 60, 0]],
  dark: [[120, 190, 255], [50, 95, 150], [40, 44, 52], [190, 100, 20], [255, 190, 90]],
};
const SEQUENTIAL = [[0, 32, 77], [31, 57, 110], [87, 92, 109], [124, 123, 120], [165, 155, 115], [209, 190, 98], [255, 234, 70]];
const UNSEEN = { light: [205, 205, 210], dark: [70, 74, 82] };
const ENDED = { light: [0, 0, 0], dark: [255, 255, 255] };
const TABLES = 4, UNFINISHED_PX = 22, LABEL_PX = 74, MARK_PX = 96, AXIS_PX = 34;
const dark = matchMedia("(prefers-color-scheme: dark)");
let view = "steady", printing = false;
const maps = [];

function scheme() { return dark.matches && !printing ? "dark" : "light"; }

function mix(anchors, share) {
  const at = Math.min(1, Math.max(0, share)) * (anchors.length - 1);
  const left = Math.min(Math.floor(at), anchors.length - 2), part = at - left;
  return anchors[left].map((value, i) => Math.round(value + (anchors[left + 1][i] - value) * part));
}

// Where one stands for a minute, roots (span[2]): the rank that is a tenth late is to be seen as well.
function colour(value, span) {
  if (Number.isNaN(value)) return UNSEEN[scheme()];
  if (!Number.isFinite(value)) return ENDED[scheme()];
  if (VIEWS[view].diverging) {
    return mix(DIVERGING[scheme()], 0.5 + 0.5 * Math.sign(value) * Math.min(1, Math.abs(value) / span[1]) ** span[2]);
  }
  return mix(SEQUENTIAL, (Math.max(0, value - span[0]) / (span[1] - span[0])) ** span[2]);
}

function words(seconds) {
  if (Number.isNaN(seconds)) return "not seen";
  if (!Number.isFinite(seconds)) return "had ended";
  const size = Math.abs(seconds);
  if (size >= 120) return (seconds / 60).toPrecision(3) + " min";
  if (size >= 1 || size === 0) return seconds.toPrecision(3) + " s";
  return (seconds * 1000).toPrecision(3) + " ms";
}

async function unpack(text, cells) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const numbers = TABLES * cells, turned = new Uint8Array(4 * numbers);
  for (let plane = 0; plane < 4; plane++) {
    for (let i = 0; i < numbers; i++) turned[4 * i + plane] = bytes[plane * numbers + i];
  }
  const floats = new Float32Array(turned.buffer);
  const who = new Uint16Array(bytes.slice(4 * numbers).buffer);
  return [...Array(TABLES).keys()].map((t) => ({
    values: floats.subarray(t * cells, (t + 1) * cells),
    who: who.subarray(t * cells, (t + 1) * cells),
  }));
}

class HeatMap {
  constructor(figure, head, tables) {
    this.head = head;
    this.tables = tables;
    this.canvas = figure.querySelector("canvas");
    this.rows = head.firsts.length;
    const normal = head.columns.filter((column) => !column[4]).length;
    const room = 1100 - UNFINISHED_PX * (head.columns.length - normal);
    this.wide = normal ? Math.max(1, Math.min(36, Math.floor(room / normal))) : 1;
    this.high = Math.max(1, Math.min(36, Math.floor(512 / this.rows)));
    if (this.rows <= 40) this.high = Math.max(14, Math.min(36, this.high));
    this.edges = [0];
    for (const column of head.columns) {
      this.edges.push(this.edges[this.edges.length - 1] + (column[4] ? Math.max(UNFINISHED_PX, this.wide) : this.wide));
    }
    const out = figure.querySelector("output");
    const tell = (event) => { out.textContent = this.at(event) || "Point at a cell, or tap it."; };
    this.canvas.addEventListener("pointermove", tell);
    this.canvas.addEventListener("pointerdown", tell);
  }

  ranksOf(row) {
    const first = this.head.firsts[row];
    const last = Math.min(first + this.head.size - 1, this.head.last);
    return first === last ? `rank ${first}` : `ranks ${first}-${last}`;
  }

  stepOf(column) {
    const [attempt, first, last, begin, unfinished] = this.head.columns[column];
    const many = this.head.columns[this.head.columns.length - 1][0] > 0;
    const step = first === last ? `step ${first}` : `steps ${first}-${last}`;
    const time = new Date(1000 * begin).toISOString().slice(11, 19);
    return `${many ? `attempt ${attempt + 1}, ` : ""}${step}${unfinished ? ", not finished" : ""}, ${time} UTC`;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) * this.canvas.width) / box.width - LABEL_PX;
    const y = ((event.clientY - box.top) * this.canvas.height) / box.height;
    const column = this.edges.findIndex((edge) => edge > x) - 1, row = Math.floor(y / this.high);
    if (x < 0 || column < 0 || row < 0 || row >= this.rows) return "";
    const cell = row * this.head.columns.length + column;
    const shown = this.tables[VIEWS[view].table];
    const rank = this.head.firsts[row] + shown.who[cell];
    const [own, waited, apart, steady] = this.tables.map((table) => words(table.values[cell]));
    const within = this.head.size > 1 ? `${this.ranksOf(row)}, most apart: rank ${rank}` : `rank ${rank}`;
    return `${within} | ${this.stepOf(column)} | self ${own}, waited ${waited}, self against the others ${apart} (over 9 steps ${steady})`;
  }

  draw() {
    const { columns, scales, marked } = this.head, count = columns.length;
    const width = this.edges[count], height = this.rows * this.high;
    this.canvas.width = LABEL_PX + width + MARK_PX;
    this.canvas.height = height + AXIS_PX;
    const context = this.canvas.getContext("2d"), image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer), values = this.tables[VIEWS[view].table].values;
    for (let row = 0; row < this.rows; row++) {
      const begin = row * this.high * width;
      for (let column = 0; column < count; column++) {
        const [r, g, b] = colour(values[row * count + column], scales[view]);
        pixels.fill((255 << 24) | (b << 16) | (g << 8) | r, begin + this.edges[column], begin + this.edges[column + 1]);
      }
      for (let line = 1; line < this.high; line++) pixels.copyWithin(begin + line * width, begin, begin + width);
    }
    context.putImageData(image, LABEL_PX, 0);
    const style = getComputedStyle(document.documentElement);
    const ink = printing ? "#111" : style.getPropertyValue("--ink"), alarm = printing ? "#b00" : style.getPropertyValue("--alarm");
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.labels(context, ink, height);
    this.axis(context, ink, height, width);
    context.fillStyle = alarm;
    context.textAlign = "left";
    let below = -Infinity;
    for (const rank of marked) {
      const row = this.head.firsts.findLastIndex((first) => first <= rank), y = (row + 0.5) * this.high;
      context.beginPath();
      context.moveTo(LABEL_PX + width + 2, y);
      context.lineTo(LABEL_PX + width + 12, y - 6);
      context.lineTo(LABEL_PX + width + 12, y + 6);
      context.fill();
      if (y - below < 14) continue;
      context.fillText(`rank ${rank}`, LABEL_PX + width + 16, Math.max(7, y));
      below = y;
    }
  }

  labels(context, ink, height) {
    context.fillStyle = ink;
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(16 / this.high), Math.ceil(this.rows / 20));
    for (let row = 0; row < this.rows; row += every) {
      const y = Math.min(height - 6, Math.max(7, (row + 0.5) * this.high));
      context.fillText(`${this.head.size > 1 ? "" : "rank "}${this.head.firsts[row]}`, LABEL_PX - 6, y);
    }
    if (this.head.size > 1) context.fillText("from rank", LABEL_PX - 6, height + 10);
  }

  axis(context, ink, height, width) {
    const columns = this.head.columns;
    context.fillStyle = ink;
    context.textAlign = "left";
    let free = -Infinity;
    const unfinished = columns.length && columns[columns.length - 1][4] ? width - UNFINISHED_PX : Infinity;
    for (let column = 0; column < columns.length; column++) {
      const x = this.edges[column], isNew = column > 0 && columns[column][0] !== columns[column - 1][0];
      if (isNew) {
        context.fillRect(LABEL_PX + x - 1, 0, 2, height + 6);
        context.fillText(`attempt ${columns[column][0] + 1}`, LABEL_PX + x + 2, height + 26);
      }
      const text = columns[column][4] ? `${columns[column][1]}, not finished` : `${columns[column][1]}`;
      const long = context.measureText(text).width;
      if (columns[column][4] || (x > free + 40 && x + long + 12 < unfinished)) {
        context.fillRect(LABEL_PX + x, height, 1, 5);
        context.fillText(text, LABEL_PX + x + 2, height + 12);
        free = x + long;
      }
    }
    context.textAlign = "right";
    context.fillText("step", LABEL_PX - 6, height + 26);
  }
}

function legend() {
  const canvas = document.getElementById("scale"), context = canvas.getContext("2d");
  const span = maps[0].head.scales[view], diverging = VIEWS[view].diverging;
  for (let x = 0; x < canvas.width; x++) {
    const share = x / (canvas.width - 1), away = 2 * share - 1;
    const value = diverging
      ? Math.sign(away) * Math.abs(away) ** (1 / span[2]) * span[1]
      : span[0] + share ** (1 / span[2]) * (span[1] - span[0]);
    context.fillStyle = `rgb(${colour(value, span)})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
  const ends = document.querySelectorAll("#ends span");
  const middle = diverging ? 0 : span[0] + 0.5 ** (1 / span[2]) * (span[1] - span[0]);
  [diverging ? -span[1] : span[0], middle, span[1]].forEach((value, i) => {
    ends[i].textContent = diverging && i === 2 ? `+${words(value)}` : words(value);
  });
  if (diverging) ends[1].textContent = "as the others";
  document.getElementById("unseen").style.background = `rgb(${UNSEEN[scheme()]})`;
  document.getElementById("ended").style.background = `rgb(${ENDED[scheme()]})`;
}

function drawAll() {
  maps.forEach((map) => map.draw());
  legend();
  document.querySelectorAll("[data-view]").forEach((text) => { text.hidden = text.dataset.view !== view; });
}

async function begin() {
  const data = JSON.parse(document.getElementById("heat-map-data").textContent);
  const figures = document.querySelectorAll("figure.heat-map");
  for (let i = 0; i < data.length; i++) {
    const cells = data[i].head.firsts.length * data[i].head.columns.length;
    maps.push(new HeatMap(figures[i], data[i].head, await unpack(data[i].body, cells)));
  }
  if (!maps.length) return;
  document.querySelectorAll("input[name=view]").forEach((input) => {
    input.addEventListener("change", () => { view = input.value; drawAll(); });
  });
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { printing = true; drawAll(); });
  addEventListener("afterprint", () => { printing = false; drawAll(); });
  drawAll();
  document.documentElement.dataset.drawn = "yes";
}
begin();
