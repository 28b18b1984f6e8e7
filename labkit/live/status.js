// How a run is doing: a dot, a word and a sentence.

export default {
  render({ model, el }) {
    const box = document.createElement("div");
    box.className = "labkit-state";
    box.setAttribute("role", "status");
    const [dot, word, text] = ["i", "b", "span"].map((kind) => document.createElement(kind));
    box.append(dot, word, text);
    el.append(box);
    const show = () => {
      const [state, said] = model.get("status");
      box.dataset.state = state;
      word.textContent = state;
      text.textContent = said;
    };
    model.on("change:status", show);
    show();
    return () => model.off("change:status", show);
  },
};
