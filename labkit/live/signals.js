// How a run does over time: panels one below the other, with one time axis. Follows timeline.js.

const PANEL = 74; // height of a panel with its title, in CSS pixels
const HUES = ["#2563d8", "#e59a2b", "#0f9d9a", "#9254d6", "#d4345f", "#2b9f5c", "#c4571b", "#7b8798"];

class Signals {
  constructor(el) {
    this.lines = new Map();
    this.line = new Timeline(el, this, { left: 58, right: 18, label: "Signals of the run over time", rowsAre: "" });
  }

  take(content, buffers) {
    if (content.kind === "all") this.begin(content);
    Object.assign(this, { said: content.said, latest: content.latest, since: content.since });
    const rows = floats(buffers[0]);
    for (let i = 0; i < rows.length; i += 3) this.note(rows[i], rows[i + 1], rows[i + 2]);
    this.line.now = content.now;
    if (content.kind === "all" || content.now > this.line.until || content.over) {
      this.line.until = Math.max(content.over ? content.now : Math.max(content.until ?? 0, content.now * ROOM), 1);
    }
    this.fit();
    this.line.repaint();
  }

  begin(content) {
    this.content = content;
    this.lines.clear();
    this.line.title.textContent = content.title;
    this.shown = [];
    this.line.dress();
  }

  keys() {}

  note(number, time, value) {
    if (!this.lines.has(number)) this.lines.set(number, { times: [], values: [] });
    const line = this.lines.get(number);
    line.times.push(time);
    line.values.push(value);
  }

  fit() {
    // only what a run has is shown
    this.shown = this.content.panels.map((panel) => ({ ...panel, drawn: this.drawn(panel) })).filter(({ drawn }) => drawn.length);
    const height = `${Math.max(1, this.shown.length) * PANEL + BOTTOM}px`;
    if (this.line.stage.style.height !== height) this.line.stage.style.height = height;
    this.line.fit();
  }

  drawn(panel) {
    const own = panel.losses === undefined
      ? panel.lines
      : [...this.lines.keys()].filter((n) => n >= panel.losses).sort((a, b) => a - b).map((n) => [n, `job ${this.content.jobs[n - panel.losses]}`]);
    return own.filter(([number]) => this.lines.has(number)).map(([number, name], i) => ({ number, name, hue: bright(this.line.look, HUES[i % HUES.length]) }));
  }

  // --- what the timeline asks for

  rows() { return this.shown.length; }
  rowLabel() { return ""; }
  advance() {}
  repaint() { this.shown.forEach((panel, row) => this.panel(panel, row)); }

  panel(panel, row) {
    const { line } = this;
    const { ink, ratio, look } = line;
    const [top, bottom] = [line.y(row) + 18 * ratio, line.y(row + 1) - 6 * ratio];
    const most = this.most(panel);
    const y = (value) => bottom - ((bottom - top) * Math.min(value, most)) / most;
    ink.fillStyle = look.faint;
    ink.fillRect(line.x0, Math.round(bottom), line.x1 - line.x0, Math.max(1, Math.round(ratio)));
    ink.fillRect(line.x0, Math.round(top), line.x1 - line.x0, Math.max(1, Math.round(ratio)));
    ink.font = `${10 * ratio}px ${look.font}`;
    ink.textAlign = "right";
    ink.fillStyle = look.muted;
    ink.textBaseline = "middle";
    ink.fillText(this.short(0, panel), line.x0 - 6 * ratio, bottom);
    ink.fillText(this.short(most, panel), line.x0 - 6 * ratio, top);
    for (const each of panel.drawn) this.curve(each, y, panel);
    this.heading(panel, line.y(row) + 8 * ratio);
  }

  heading(panel, middle) {
    const { ink, ratio, look, x0 } = this.line;
    ink.textAlign = "left";
    ink.textBaseline = "middle";
    ink.font = `500 ${12 * ratio}px ${look.font}`;
    ink.fillStyle = look.ink;
    ink.fillText(panel.title, x0, middle);
    let x = x0 + ink.measureText(panel.title).width + 14 * ratio;
    ink.font = `${11 * ratio}px ${look.font}`;
    for (const { number, name, hue } of panel.drawn.slice(0, 8)) {
      const said = this.said[number] ?? this.lines.get(number).values.at(-1).toPrecision(4);
      const text = panel.drawn.length > 1 || panel.losses !== undefined ? `${name} ${said}` : said;
      ink.fillStyle = hue;
      ink.fillRect(x, middle - 4 * ratio, 8 * ratio, 8 * ratio);
      ink.fillStyle = look.muted;
      ink.fillText(text, x + 12 * ratio, middle);
      x += 12 * ratio + ink.measureText(text).width + 14 * ratio;
    }
  }

  most(panel) {
    if (panel.share) return Math.max(1, ...panel.drawn.map(({ number }) => this.largest(number)));
    const largest = Math.max(...panel.drawn.map(({ number }) => this.largest(number)), 1e-9);
    const power = 10 ** Math.floor(Math.log10(largest));
    return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((f) => f * power).find((top) => top >= largest * 0.999) ?? largest;
  }

  largest(number) {
    const line = this.lines.get(number);
    for (let i = line.looked ?? 0; i < line.values.length; i++) line.largest = Math.max(line.largest ?? 0, line.values[i]);
    line.looked = line.values.length;
    return line.largest;
  }

  short(value, panel) {
    if (panel.share) return `${Math.round(value * 100)}%`;
    return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
  }

  curve({ number, hue }, y, panel) {
    // a signal keeps its value until it changes; losses are points of a curve
    const { ink, ratio } = this.line;
    const { times, values } = this.lines.get(number);
    ink.beginPath();
    ink.strokeStyle = hue;
    ink.lineWidth = 1.4 * ratio;
    ink.lineJoin = "round";
    let before = null;
    times.forEach((time, i) => {
      const [x, at] = [this.line.x(time), y(values[i])];
      if (before === null) ink.moveTo(x, at);
      else {
        if (panel.losses === undefined) ink.lineTo(x, before);
        ink.lineTo(x, at);
      }
      before = at;
    });
    if (before !== null && panel.losses === undefined) {
      const newest = y(this.latest[number] ?? values.at(-1));
      for (const [time, at] of [[this.since, before], [this.since, newest], [this.line.now, newest]]) ink.lineTo(this.line.x(time), at);
    }
    ink.stroke();
  }

  tip(row, time) {
    const panel = this.shown[row];
    if (time > this.line.now) return "";
    const said = panel.drawn.map(({ number, name }) => {
      const { times, values } = this.lines.get(number);
      const at = times.findLastIndex((t) => t <= time);
      const value = panel.losses === undefined && time >= this.since ? this.latest[number] : values[at];
      return at < 0 ? "" : `${name} ${this.value(value, panel)}`;
    });
    return [humanTime(time), ...said.filter(Boolean).slice(0, 6)].join(" · ");
  }

  value(value, panel) {
    if (panel.share) return `${(value * 100).toFixed(0)}%`;
    return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  }
}

export default {
  render({ model, el }) {
    return connect(model, new Signals(el));
  },
};
