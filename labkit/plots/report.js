// Puts a live chart in the place of each static one, when it comes into view; what fails to load stays static.
(function () {
  const options = { renderer: "canvas", actions: { export: true, source: false, compiled: false, editor: false } };
  function enliven(figure) {
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    const box = document.createElement("div");
    const still = figure.querySelector("svg");
    box.style.display = "none";
    figure.appendChild(box);
    vegaEmbed(box, spec, options).then(function () {
      still.remove();
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
})();
