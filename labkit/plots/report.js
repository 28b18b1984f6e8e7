// Puts a live chart in the place of each static one, when it comes into view; what fails to load stays static.
(function () {
  const dark = window.matchMedia("screen and (prefers-color-scheme: dark)").matches;
  const actions = { export: true, source: false, compiled: false, editor: false };
  const options = { renderer: "svg", ast: true, tooltip: { theme: dark ? "dark" : "light" }, actions };
  function enliven(figure) {
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    const box = document.createElement("div");
    const still = figure.querySelector("svg");
    box.style.display = "none";
    figure.appendChild(box);
    vegaEmbed(box, spec, options).then(function () {
      box.querySelector("svg.marks").style.maxWidth = still.style.maxWidth;
      still.remove();
      const menu = box.querySelector("summary");
      if (menu) menu.setAttribute("aria-label", "Save this figure");
      box.style.display = "";
      figure.classList.add("live");
    }).catch(function (error) {
      box.remove();
      console.warn("a figure stays static:", error);
    });
  }
  const seen = new IntersectionObserver(function (entries) {
    entries.filter((entry) => entry.isIntersecting).forEach(function (entry) {
      seen.unobserve(entry.target);
      enliven(entry.target);
    });
  }, { rootMargin: "600px" });
  document.querySelectorAll("figure").forEach((figure) => seen.observe(figure));
  // On paper everything is open, and closes again afterwards.
  let opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])")).filter((each) => each.closest("section"));
    opened = opened.filter((each) => !each.closest(".vega-embed"));
    opened.forEach((each) => { each.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((each) => { each.open = false; }));
})();
