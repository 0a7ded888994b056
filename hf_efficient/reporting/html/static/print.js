// On paper: plots as wide as the page, everything unfolded.
(() => {
  'use strict';
  const WIDTH = 680; // CSS pixels between the margins of A4 and of letter paper
  let folded = [];
  window.addEventListener('beforeprint', () => {
    folded = [...document.querySelectorAll('details:not([open])')];
    for (const each of folded) each.open = true;
    for (const { gd } of hfReport.drawn.values()) Plotly.relayout(gd, { width: WIDTH });
  });
  window.addEventListener('afterprint', () => {
    for (const each of folded) each.open = false;
    for (const { gd } of hfReport.drawn.values()) Plotly.relayout(gd, { width: null, autosize: true });
  });
})();
