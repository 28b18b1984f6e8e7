// A run as code: text that can be selected, and a button that copies it.

export default {
  render({ model, el }) {
    const box = document.createElement("div");
    box.className = "labkit-code";
    el.append(box);
    const panes = ["python", "shell"].map((name) => pane(model, box, name));
    const show = () => panes.forEach(([name, text]) => {
      text.value = model.get(name);
      text.rows = text.value.split("\n").length;
    });
    model.on("change:python change:shell", show);
    show();
    return () => model.off("change:python change:shell", show);
  },
};

function pane(model, box, name) {
  const part = document.createElement("div");
  const head = document.createElement("div");
  head.className = "labkit-code-head";
  const title = document.createElement("span");
  title.textContent = { python: "Python", shell: "Command line" }[name];
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${title.textContent}`);
  const text = document.createElement("textarea");
  text.readOnly = true;
  text.spellcheck = false;
  text.wrap = "off";
  text.setAttribute("aria-label", title.textContent);
  button.onclick = () => copy(text).then((done) => {
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  head.append(title, button);
  part.append(head, text);
  box.append(part);
  return [name, text];
}

async function copy(text) {
  text.focus();
  text.select();
  try {
    await navigator.clipboard.writeText(text.value);
    return true;
  } catch {
    return document.execCommand("copy"); // pages without the clipboard interface
  }
}
