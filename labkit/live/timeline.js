// A canvas whose x axis is time: what the live Gantt and the live heat-map share.
// It is painted on as time passes; only when the axis grows, or the size changes, is all of it painted again.

const UNITS = [[1, "s", 300], [60, "min", 7200], [3600, "h", 864000], [86400, "days", Infinity]];
const ROOM = 1.3; // how much the axis grows by when time runs out of it
const TOP = 6;
const BOTTOM = 40;

function timeUnit(seconds) {
  return UNITS.find(([, , limit]) => seconds <= limit);
}

function humanTime(seconds) {
  const [scale, unit] = timeUnit(Math.abs(seconds));
  return `${(seconds / scale).toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 })} ${unit}`;
}

function ticks(until, most) {
  const rough = until / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const found = [];
  for (let i = 0; i * step <= until * (1 + 1e-9); i++) found.push(i * step);
  return found;
}

function mix(from, to, share) {
  const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  const blend = (at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share);
  return `#${[1, 3, 5].map((at) => blend(at).toString(16).padStart(2, "0")).join("")}`;
}

function ramp(stops, share) {
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return mix(stops[low], stops[low + 1], at - low);
}

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function floats(view) {
  // a buffer that comes over the wire need not begin at a multiple of four bytes
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

const LOOKS = ["ink", "muted", "line", "faint", "paper", "axis", "down", "free", "full"];

function lookOf(el) {
  // the colours of the style sheet, which knows light and dark
  const style = getComputedStyle(el);
  const look = Object.fromEntries(LOOKS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  look.font = style.fontFamily;
  look.heat = [look.free, style.getPropertyValue("--half").trim(), look.full];
  return look;
}

function bright(look, colour) {
  // on dark paper a colour is lighter, so that it stands out as much as on white
  return parseInt(look.paper.slice(1, 3), 16) < 128 ? mix(colour, "#ffffff", 0.35) : colour;
}

function onTheme(act) {
  // call when JupyterLab's theme or the reader's own changes; returns what ends that
  const asked = window.matchMedia("(prefers-color-scheme: dark)");
  const watcher = new MutationObserver(act);
  watcher.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  asked.addEventListener("change", act);
  return () => {
    watcher.disconnect();
    asked.removeEventListener("change", act);
  };
}

class Timeline {
  // `owner` has: rows(), rowLabel(row), keys(), repaint(), advance(now), tip(row, time)
  constructor(el, owner, { left, right, label, rowsAre }) {
    this.rowsAre = rowsAre;
    this.owner = owner;
    this.left = left;
    this.right = right;
    this.now = 0;
    this.until = 1;
    this.box = element("div", "labkit-live");
    this.head = element("div", "labkit-live-head");
    this.title = element("span", "labkit-live-title");
    this.legend = element("span", "labkit-live-legend");
    this.head.append(this.title, this.legend);
    this.stage = element("div", "labkit-live-stage");
    this.canvas = element("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", label);
    this.line = element("div", "labkit-live-now");
    this.bubble = element("div", "labkit-live-tip");
    this.stage.append(this.canvas, this.line, this.bubble);
    this.box.append(this.head, this.stage);
    el.append(this.box);
    this.stage.addEventListener("mousemove", (event) => this.point(event));
    this.stage.addEventListener("mouseleave", () => (this.bubble.style.display = "none"));
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.stage);
    this.unwatch = onTheme(() => this.look && this.dress());
  }

  dress() {
    // take the colours of the style sheet, and paint all with them
    this.look = lookOf(this.box);
    this.legend.replaceChildren();
    this.owner.keys();
    this.repaint();
  }

  // --- geometry, in device pixels

  fit() {
    const width = this.stage.clientWidth;
    if (!width) return; // in a tab that is not shown
    const height = this.stage.clientHeight;
    this.ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * this.ratio), Math.round(height * this.ratio)];
    if (this.canvas.width === w && this.canvas.height === h && this.ink) return;
    this.canvas.width = w;
    this.canvas.height = h;
    this.ink = this.canvas.getContext("2d", { alpha: false });
    if (this.look) return this.repaint();
    this.ink.fillStyle = lookOf(this.box).paper; // it is black until something is painted
    this.ink.fillRect(0, 0, w, h);
  }

  get x0() { return Math.round(this.left * this.ratio); }
  get x1() { return this.canvas.width - Math.round(this.right * this.ratio); }
  get y0() { return Math.round(TOP * this.ratio); }
  get y1() { return this.canvas.height - Math.round(BOTTOM * this.ratio); }
  x(time) { return this.x0 + Math.round(((this.x1 - this.x0) * time) / this.until); }
  y(row) { return this.y0 + Math.round(((this.y1 - this.y0) * row) / Math.max(this.owner.rows(), 1)); }

  strip(row, from, to, colour, { inset = 0.14, least = 0 } = {}) {
    // paint one row from one time to another
    const [top, bottom] = [this.y(row), this.y(row + 1)];
    const gap = bottom - top >= 4 * this.ratio ? Math.max(1, Math.round((bottom - top) * inset)) : 0;
    const start = this.x(from);
    const width = Math.max(this.x(to) - start, least);
    if (width <= 0) return;
    this.ink.fillStyle = colour;
    this.ink.fillRect(start, top + gap, width, Math.max(1, bottom - top - 2 * gap));
  }

  // --- time

  moveTo(now, { over = false } = {}) {
    this.now = now;
    if (now > this.until) {
      this.until = Math.max(now * (over ? 1 : ROOM), 1e-9);
      return this.repaint();
    }
    if (over && this.until > now && now > 0 && this.until / now > 1.02) {
      this.until = now;
      return this.repaint();
    }
    if (this.ink) this.owner.advance(now);
    this.place();
  }

  place() {
    if (!this.ink) return;
    this.line.style.left = `${this.x(this.now) / this.ratio}px`;
    this.line.style.top = `${this.y0 / this.ratio}px`;
    this.line.style.height = `${(this.y1 - this.y0) / this.ratio}px`;
    this.line.style.display = this.now > 0 && this.now < this.until * 0.999 ? "block" : "none";
  }

  // --- ink

  repaint() {
    if (!this.ink) return this.fit(); // which comes back here
    this.ink.fillStyle = this.look.paper;
    this.ink.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.axis();
    this.labels();
    this.owner.repaint();
    this.owner.advance(this.now);
    this.place();
  }

  axis() {
    const { ink, ratio } = this;
    const [scale, unit] = timeUnit(this.until);
    const width = (this.x1 - this.x0) / ratio;
    ink.font = `${11 * ratio}px ${this.look.font}`;
    ink.textBaseline = "top";
    ink.textAlign = "center";
    for (const tick of ticks(this.until / scale, Math.max(2, Math.min(10, width / 70)))) {
      const x = this.x(tick * scale);
      ink.fillStyle = this.look.faint;
      ink.fillRect(x, 0, Math.max(1, Math.round(ratio)), this.y1);
      ink.fillStyle = this.look.muted;
      ink.fillText(tick.toLocaleString("en"), x, this.y1 + 6 * ratio);
    }
    ink.fillStyle = this.look.axis;
    ink.fillRect(this.x0, this.y1, this.x1 - this.x0, Math.max(1, Math.round(ratio)));
    ink.fillStyle = this.look.ink;
    ink.font = `500 ${12 * ratio}px ${this.look.font}`;
    ink.fillText(`Time (${unit})`, (this.x0 + this.x1) / 2, this.y1 + 22 * ratio);
  }

  labels() {
    const { ink, ratio } = this;
    const n = this.owner.rows();
    const least = Math.max(1, (n * 13 * ratio) / this.y1);
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((step) => step >= least) || n;
    ink.font = `${10 * ratio}px ${this.look.font}`;
    ink.textBaseline = "middle";
    ink.textAlign = "right";
    ink.fillStyle = this.look.muted;
    for (let row = 0; row < n; row += every) {
      ink.fillText(this.short(this.owner.rowLabel(row)), this.x0 - 8 * ratio, (this.y(row) + this.y(row + 1)) / 2);
    }
    ink.save();
    ink.translate(8 * ratio, (this.y0 + this.y1) / 2);
    ink.rotate(-Math.PI / 2);
    ink.font = `500 ${12 * ratio}px ${this.look.font}`;
    ink.textAlign = "center";
    ink.fillStyle = this.look.ink;
    ink.fillText(this.rowsAre, 0, 0);
    ink.restore();
  }

  short(text) {
    const room = Math.floor((this.left - 28) / 5.6);
    return text.length > room ? `${text.slice(0, room - 1)}…` : text;
  }

  // --- what is under the mouse

  point(event) {
    if (!this.ink) return;
    const place = this.stage.getBoundingClientRect();
    const [left, top] = [event.clientX - place.left, event.clientY - place.top];
    const row = Math.floor(((top * this.ratio - this.y0) * this.owner.rows()) / (this.y1 - this.y0));
    const time = ((left * this.ratio - this.x0) / (this.x1 - this.x0)) * this.until;
    const said = row >= 0 && row < this.owner.rows() && time >= 0 ? this.owner.tip(row, time) : "";
    this.bubble.style.display = said ? "block" : "none";
    if (!said) return;
    this.bubble.textContent = said;
    const room = place.width - this.bubble.offsetWidth - 4;
    this.bubble.style.left = `${Math.max(0, Math.min(left + 14, room))}px`;
    this.bubble.style.top = `${top + 16}px`;
  }

  swatch(text, style) {
    const item = element("span", "labkit-live-key", text);
    const mark = element("span", "labkit-live-swatch");
    Object.assign(mark.style, style);
    item.prepend(mark);
    this.legend.append(item);
    return item;
  }

  close() {
    this.watcher.disconnect();
    this.unwatch();
  }
}

function connect(model, view) {
  // Ask for everything once, then paint what comes, at most once a frame.
  const queue = [];
  let due = 0;
  const paint = () => {
    due = 0;
    for (const [content, buffers] of queue.splice(0)) view.take(content, buffers);
  };
  const hear = (content, buffers) => {
    queue.push([content, buffers]);
    due = due || (document.hidden ? setTimeout(paint, 200) : requestAnimationFrame(paint));
  };
  model.on("msg:custom", hear);
  model.send({ kind: "hello" });
  return () => {
    model.off("msg:custom", hear);
    view.line.close();
  };
}
