// What scrolls can be reached with the keyboard: wide tables, and outputs of notebooks.
document$.subscribe(() => requestAnimationFrame(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .jp-OutputArea-output")) box.tabIndex = 0;
}));
