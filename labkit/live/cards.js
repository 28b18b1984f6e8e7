// Metric cards: a few numbers, each with its name.

export default {
  render({ model, el }) {
    const box = document.createElement("div");
    box.className = "labkit-cards";
    el.append(box);
    const made = new Map();
    const card = (name) => {
      const made = document.createElement("div");
      made.className = "labkit-card";
      const [value, label] = [document.createElement("b"), document.createElement("span")];
      label.textContent = name;
      made.append(value, label);
      box.append(made);
      return value;
    };
    const show = () => {
      for (const [name, text] of model.get("cards")) {
        if (!made.has(name)) made.set(name, card(name));
        const value = made.get(name);
        if (value.textContent !== text) value.textContent = text;
      }
    };
    model.on("change:cards", show);
    show();
    return () => model.off("change:cards", show);
  },
};
