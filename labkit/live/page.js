// The page of a run: the notebook's views, fed by the server that reads the run's folder instead of by a kernel.

import cards from "./cards.js";
import decisions from "./decisions.js";
import gantt from "./gantt.js";
import heatMap from "./heat_map.js";
import signals from "./signals.js";
import status from "./status.js";

const VIEWS = { status, cards, signals, gantt, heat_map: heatMap, decisions };

class Model {
  // what a widget knows as its model: traits, and messages with rows of numbers
  constructor() {
    this.traits = { status: ["connecting", ""], cards: [], decisions: [] };
    this.heard = new Map();
  }

  get(name) { return this.traits[name]; }
  on(name, act) { this.heard.set(name, act); }
  off(name) { this.heard.delete(name); }
  send() {} // the server tells everything when the page connects

  set(name, value) {
    this.traits[name] = value;
    this.heard.get(`change:${name}`)?.();
  }

  hear(content, rows) {
    const bytes = Uint8Array.from(atob(rows), (letter) => letter.charCodeAt(0));
    this.heard.get("msg:custom")?.(content, [new DataView(bytes.buffer)]);
  }
}

const models = Object.fromEntries(Object.keys(VIEWS).map((name) => [name, new Model()]));
for (const [name, view] of Object.entries(VIEWS)) view.render({ model: models[name], el: document.getElementById(name) });

function note(lines) {
  document.getElementById("noted").hidden = !lines.length;
  document.getElementById("notes").replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}

const events = new EventSource("events");
events.onmessage = ({ data }) => {
  const { view, content, rows, value } = JSON.parse(data);
  if (view === "notes") note(value);
  else if (value !== undefined) models[view].set(view, value);
  else models[view].hear(content, rows);
};
events.onerror = () => models.status.set("status", ["unreachable", "labkit watch has ended or cannot be reached; what is shown is the last that it told"]);
