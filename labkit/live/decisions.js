// What was decided lately, and why: the newest first. Text of schedulers is shown as text.

export default {
  render({ model, el }) {
    const box = document.createElement("div");
    box.className = "labkit-decisions";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Decisions");
    el.append(box);
    const cell = (row, text, name) => {
      const made = document.createElement("td");
      made.textContent = text;
      if (name) made.className = name;
      row.append(made);
    };
    const show = () => {
      const told = model.get("decisions");
      const table = document.createElement("table");
      for (const [time, about, what, why] of told) {
        const row = table.insertRow();
        cell(row, time, "when");
        cell(row, about);
        cell(row, what);
        cell(row, why, "why");
      }
      if (!told.length) cell(table.insertRow(), "no decision has changed a job yet", "why");
      box.replaceChildren(table);
    };
    model.on("change:decisions", show);
    show();
    return () => model.off("change:decisions", show);
  },
};
