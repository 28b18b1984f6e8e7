// How full each machine is: over time, and its GPUs now. Follows timeline.js.

const CELL = 12;

class HeatMap {
  constructor(el) {
    this.machines = [];
    this.line = new Timeline(el, this, { left: 72, right: 18, label: "Live cluster heat-map", rowsAre: "Machine" });
  }

  take(content, buffers) {
    if (content.kind === "all") this.begin(content);
    const rows = floats(buffers[0]);
    for (let i = 0; i < rows.length; i += 3) {
      this.machines[rows[i]].changes.push({ time: rows[i + 1], gpus: rows[i + 2] });
      this.live.add(rows[i]);
    }
    for (const [group, gpus, says] of content.groups) this.fill(group, gpus, says);
    if (content.kind === "all") {
      this.line.now = content.now;
      this.line.until = Math.max(content.over ? content.now : content.until, content.now, 1);
      this.line.repaint();
    } else {
      this.line.moveTo(content.now, { over: content.over });
      this.cells();
    }
  }

  begin(content) {
    this.content = content;
    this.live = new Set();
    this.machines = content.machines.map(([name, built]) => ({ name, built, groups: [], changes: [], at: 0, painted: 0 }));
    this.group = content.owners.map(([machine, built], number) => {
      const group = { machine, built, gpus: 0, says: "" };
      this.machines[machine].groups.push(number);
      return group;
    });
    this.line.stage.style.height = `${Math.max(160, Math.min(460, this.machines.length * 40)) + BOTTOM}px`;
    this.line.title.textContent = content.title;
    this.line.right = this.cellsWidth() + 18;
    this.stale = new Set(this.machines.keys());
    this.line.dress();
  }

  keys() {
    const heat = `linear-gradient(90deg,${this.line.look.heat.join(",")})`;
    this.line.swatch(`no … all ${this.content.unit} held`, { width: "40px", background: heat });
  }

  fill(group, gpus, says) {
    Object.assign(this.group[group], { gpus, says });
    this.stale.add(this.group[group].machine);
  }

  colour(machine, gpus) {
    const { look } = this.line;
    if (gpus < 0) return look.down;
    return ramp(look.heat, machine.built ? gpus / machine.built : 0);
  }

  // --- the GPUs of each machine now, at the right edge

  cellsWidth() {
    const widths = this.machines.map(({ groups }) => groups.reduce((sum, g) => sum + this.group[g].built * (CELL + 2) + 5, 0));
    const widest = Math.max(...widths, 0);
    return widest <= 240 && this.machines.length <= 30 ? Math.max(widest, 56) + 14 : 0;
  }

  cells() {
    if (!this.line.ink || !this.cellsWidth()) return;
    for (const row of this.stale) this.cellsOf(row);
    this.stale.clear();
  }

  cellsOf(row) {
    const { ink, ratio, x1 } = this.line;
    const [top, bottom] = [this.line.y(row), this.line.y(row + 1)];
    const side = Math.round(CELL * ratio);
    const y = Math.round((top + bottom - side) / 2);
    let x = x1 + Math.round(16 * ratio);
    ink.fillStyle = this.line.look.paper;
    ink.fillRect(x, top, this.line.canvas.width - x, bottom - top);
    for (const number of this.machines[row].groups) {
      const { built, gpus } = this.group[number];
      for (let i = 0; i < built; i++) {
        ink.fillStyle = gpus < 0 ? this.line.look.down : ramp(this.line.look.heat, Math.min(1, gpus - i) * 0.8);
        ink.fillRect(x, y, side, side);
        x += side + Math.round(2 * ratio);
      }
      x += Math.round(5 * ratio);
    }
  }

  // --- what the timeline asks for

  rows() { return this.machines.length; }
  rowLabel(row) { return this.machines[row].name; }

  repaint() {
    this.live = new Set(this.machines.keys());
    for (const machine of this.machines) [machine.at, machine.painted] = [0, 0];
    this.stale = new Set(this.machines.keys());
    this.cells();
    if (!this.cellsWidth()) return;
    const { ink, ratio, x1, y1, look } = this.line;
    ink.font = `500 ${12 * ratio}px ${look.font}`;
    ink.textAlign = "left";
    ink.textBaseline = "top";
    ink.fillStyle = look.ink;
    ink.fillText(`${this.content.unit} now`, x1 + 16 * ratio, y1 + 22 * ratio);
  }

  advance(now) {
    for (const row of this.live) this.bring(this.machines[row], row, now);
  }

  bring(machine, row, now) {
    for (; ; machine.at++) {
      const change = machine.at ? machine.changes[machine.at - 1] : { time: 0, gpus: 0 };
      const next = machine.changes[machine.at];
      const end = next ? next.time : now;
      const from = Math.max(change.time, machine.painted);
      if (end > from) this.line.strip(row, from, end, this.colour(machine, change.gpus), { inset: 0.1 });
      machine.painted = Math.max(end, from);
      if (!next) return;
    }
  }

  tip(row, time) {
    const machine = this.machines[row];
    if (time > this.line.until) return this.now(machine);
    if (time > this.line.now) return "";
    const at = machine.changes.findLast((change) => change.time <= time) || { gpus: 0 };
    if (at.gpus < 0) return `${machine.name} · gone`;
    return `${machine.name} · ${humanTime(time)} · ${Number(at.gpus.toPrecision(4))} of ${machine.built} ${this.content.unit} held`;
  }

  now(machine) {
    const said = machine.groups.map((number) => this.group[number].says).filter(Boolean);
    return `${machine.name} · ${said.length ? said.join("; ") : "free"}`;
  }
}

export default {
  render({ model, el }) {
    return connect(model, new HeatMap(el));
  },
};
