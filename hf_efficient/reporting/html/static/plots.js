// Draws the figures, and what their buttons and legends do. Colours of text and lines are the style sheet's.
(() => {
  'use strict';
  const { figures } = JSON.parse(document.getElementById('figures').textContent);
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: 'reset', showTips: false };
  const touch = window.matchMedia('(pointer: coarse)').matches;
  const drawn = new Map();
  let linking = false;

  const base = (figure) => ({
    autosize: true,
    height: figure.height,
    margin: { l: 8, r: 14, t: 10, b: 8 },
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    showlegend: false,
    dragmode: figure.zoomable && !touch ? 'zoom' : false, // a finger that drags scrolls the page, until a button says more
    selectdirection: 'h',
    hoverdistance: 40,
    hoverlabel: { align: 'left', font: { size: 12 } },
    newselection: { mode: 'immediate', line: { width: 1, dash: 'solid' } },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12 },
  });

  // The library reads a few HTML tags in texts; a name that holds some is only a name.
  const plain = (text) => (typeof text === 'string' ? text.replaceAll('&', '&amp;').replaceAll('<', '&lt;') : text);
  const tracesOf = (figure) => figure.traces.map((trace) => ({
    ...trace,
    name: plain(trace.name ?? ''),
    ...(trace.customdata && { customdata: trace.customdata.map(plain) }),
  }));

  function layoutOf(figure) {
    const layout = { ...base(figure), ...structuredClone(figure.layout) };
    for (const [name, axis] of Object.entries(layout)) {
      if (/^[xy]axis/.test(name) && axis.title) axis.title.font = { size: 12 };
      if (/^yaxis/.test(name) && figure.x) axis.fixedrange = true; // time and steps are what is zoomed
      if (/^[xy]axis/.test(name) && !figure.zoomable) axis.fixedrange = true;
    }
    return layout;
  }

  function setTool(id, tool) {
    const { gd, box } = drawn.get(id);
    for (const button of box.querySelectorAll('[data-tool][aria-pressed]')) {
      button.setAttribute('aria-pressed', String(button.dataset.tool === tool));
    }
    if (tool !== 'select') document.dispatchEvent(new CustomEvent('span:close'));
    return Plotly.relayout(gd, { dragmode: tool });
  }

  function whole(id) {
    const { gd, figure } = drawn.get(id);
    document.dispatchEvent(new CustomEvent('span:close'));
    const update = {};
    for (const [name, axis] of Object.entries(figure.layout)) {
      if (/^xaxis/.test(name)) update[name + '.range'] = axis.range ? axis.range.slice() : null;
      if (/^xaxis/.test(name) && !axis.range) update[name + '.autorange'] = true;
      if (/^yaxis/.test(name) && !axis.fixedrange) update[name + '.autorange'] = true;
    }
    return Plotly.relayout(gd, update);
  }

  // Plots over the same axis show the same stretch of it.
  function follow(id, event) {
    if (linking || !('xaxis.range[0]' in event || 'xaxis.range' in event)) return;
    const { gd, figure } = drawn.get(id);
    linking = true;
    const range = gd.layout.xaxis.range.slice();
    const others = [...drawn.entries()].filter(([other, one]) => other !== id && figure.x && one.figure.x === figure.x);
    Promise.all(others.map(([, one]) => Plotly.relayout(one.gd, { 'xaxis.range': range.slice() })))
      .finally(() => { linking = false; });
  }

  function wire(id) {
    const { gd, box, figure } = drawn.get(id);
    for (const button of box.querySelectorAll('[data-tool]')) {
      button.addEventListener('click', () => {
        if (button.dataset.tool === 'whole') { whole(id); return; }
        setTool(id, button.dataset.tool);
        if (button.dataset.tool === 'select') document.dispatchEvent(new CustomEvent('span:open', { detail: { id } }));
      });
      if (button.dataset.tool === gd.layout.dragmode) button.setAttribute('aria-pressed', 'true');
    }
    for (const button of box.querySelectorAll('.legend button')) {
      button.addEventListener('click', () => {
        const shown = button.getAttribute('aria-pressed') !== 'true';
        button.setAttribute('aria-pressed', String(shown));
        Plotly.restyle(gd, { visible: shown }, button.dataset.traces.split(',').map(Number));
      });
    }
    gd.on('plotly_relayout', (event) => follow(id, event));
    gd.on('plotly_selected', (event) => {
      if (!event || !event.range || !figure.x) return;
      document.dispatchEvent(new CustomEvent('span:selected', { detail: { id, x: figure.x, range: event.range.x } }));
    });
  }

  async function draw() {
    for (const [id, figure] of Object.entries(figures)) {
      const box = document.getElementById(id);
      const gd = box.querySelector('.plot');
      await Plotly.newPlot(gd, tracesOf(figure), layoutOf(figure), CONFIG);
      drawn.set(id, { gd, box, figure });
      wire(id);
    }
    document.documentElement.dataset.plots = 'drawn';
  }

  window.hfReport = { drawn, setTool, whole };
  draw();
})();
