// When each job runs: a row per job, a bar while it holds tasks. Follows timeline.js.

const [WAITS, TRAINS, HOLDS, DONE] = [0, 1, 2, 3];

class Gantt {
  constructor(el) {
    this.jobs = [];
    this.live = new Set();
    this.line = new Timeline(el, this, { left: 72, right: 18, label: "Live Gantt chart", rowsAre: "Job, by arrival" });
  }

  take(content, buffers) {
    const rescaled = content.most !== this.most;
    this.most = content.most;
    if (content.kind === "all") this.begin(content);
    const rows = floats(buffers[0]);
    const changed = [];
    for (let i = 0; i < rows.length; i += 4) changed.push([rows[i], rows[i + 1], rows[i + 2], rows[i + 3]]);
    for (const change of changed) this.note(change);
    if (content.kind === "all") {
      this.line.now = content.now;
      this.line.until = Math.max(content.over ? content.now : content.until, content.now, 1);
      this.line.repaint();
    } else {
      if (rescaled) this.line.dress();
      this.line.moveTo(content.now, { over: content.over });
    }
  }

  begin(content) {
    this.content = content;
    this.jobs = content.jobs.map(([id, model]) => ({ id, model, changes: [], at: 0, painted: 0 }));
    this.line.stage.style.height = `${Math.max(160, Math.min(460, this.jobs.length * 14)) + BOTTOM}px`;
    this.line.left = Math.max(72, Math.min(150, 34 + 6 * Math.max(...this.jobs.map(({ id }) => id.length))));
    this.line.title.textContent = content.title;
    this.line.dress();
  }

  keys() {
    const { ghosts, unit, held } = this.content;
    const { look } = this.line;
    const stops = held.map((colour) => bright(look, colour)).join(",");
    this.line.swatch(`holds 0 … ${Number(this.most.toPrecision(4))} ${unit}`, { width: "40px", background: `linear-gradient(90deg,${stops})` });
    this.line.swatch("waits", { height: "2px", background: look.line });
    for (const ghost of ghosts) {
      this.line.swatch(`completed under ${ghost.name}`, { width: "3px", background: bright(look, ghost.colour) });
    }
    this.keyed = new Set();
  }

  key(text, colour) {
    // a colour that stands in the legend as soon as something has it
    if (!this.keyed.has(text)) this.line.swatch(text, { background: colour });
    this.keyed.add(text);
    return colour;
  }

  note([row, time, doing, gpus]) {
    this.jobs[row].changes.push({ time, doing, gpus });
    this.live.add(row);
  }

  shade(gpus) {
    // as plots/gantt.py: the colours in even steps from nothing to the most that a job has held
    const { held, none, unit } = this.content;
    const { look } = this.line;
    if (!(gpus > 0)) return this.key(`holds tasks, no ${unit}`, bright(look, none));
    return bright(look, ramp(held, gpus / this.most));
  }

  unready() {
    // the colour of tasks that make no progress
    return this.key("starts or moves", mix(this.line.look.paper, this.content.held.at(-1), 0.18));
  }

  // --- what the timeline asks for

  rows() { return this.jobs.length; }
  rowLabel(row) { return this.jobs[row].id; }

  repaint() {
    this.live = new Set(this.jobs.keys());
    for (const job of this.jobs) [job.at, job.painted] = [0, 0];
    this.ghosts();
  }

  ghosts() {
    const { ink, ratio } = this.line;
    for (const ghost of this.content.ghosts) {
      ink.fillStyle = bright(this.line.look, ghost.colour);
      ghost.done_s.forEach((time, row) => {
        if (time === null || time > this.line.until) return;
        const [top, bottom] = [this.line.y(row), this.line.y(row + 1)];
        ink.fillRect(this.line.x(time), top, Math.max(1, Math.round(1.5 * ratio)), Math.max(1, bottom - top));
      });
    }
  }

  advance(now) {
    for (const row of this.live) if (this.bring(row, now)) this.live.delete(row);
  }

  bring(row, now) {
    // paint a job from where it was painted to, up to now; tell whether nothing more will come
    const job = this.jobs[row];
    for (; job.at < job.changes.length; job.at++) {
      const change = job.changes[job.at];
      const next = job.changes[job.at + 1];
      const end = next ? next.time : now;
      this.stretch(row, change, Math.max(change.time, job.painted), end);
      job.painted = end;
      if (!next) return change.doing === DONE;
    }
    return false;
  }

  stretch(row, { time, doing, gpus }, from, to) {
    if (doing === DONE || to <= from) return;
    if (doing === WAITS) return this.line.strip(row, from, to, this.line.look.line, { inset: 0.42 });
    const colour = doing === HOLDS ? this.unready() : this.shade(gpus);
    this.line.strip(row, from, to, colour, { least: from === time ? Math.ceil(this.line.ratio) : 0 });
  }

  tip(row, time) {
    const job = this.jobs[row];
    const at = job.changes.findLast((change) => change.time <= time);
    if (!at || time > this.line.now) return "";
    const held = `${Number(at.gpus.toPrecision(4))} ${this.content.unit}`;
    const said = { [WAITS]: "waits", [DONE]: "done", [HOLDS]: `starts on ${held}`, [TRAINS]: `trains on ${held}` };
    return `job ${job.id} · ${job.model} · ${said[at.doing]} since ${humanTime(at.time)}`;
  }
}

export default {
  render({ model, el }) {
    return connect(model, new Gantt(el));
  },
};
