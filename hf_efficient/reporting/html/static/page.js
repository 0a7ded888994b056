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
    dragmode: !touch ? 'zoom' : false, // a finger that drags scrolls the page, until a button says more
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
// The figures of a span of steps or of time, selected in a plot or typed: sums over the buckets whose middle lies in it.
(() => {
  'use strict';
  const { span, figures } = JSON.parse(document.getElementById('figures').textContent);
  const panel = document.getElementById('span');
  if (!span) return;
  let shown = null; // { id, x, range }

  const middle = (place, x) => (x === 'time' ? span.at[place] + span.wall[place] / 2 : (span.start[place] + span.end[place]) / 2);
  const sum = (column, places) => places.reduce((total, place) => total + column[place], 0);
  const known = (column, places) => places.every((place) => column[place] !== null);
  const number = (value, digits) => value.toLocaleString('en-US', { maximumSignificantDigits: digits });
  const whole = (value) => Math.round(value).toLocaleString('en-US');

  function seconds(value) {
    if (value < 1e-3) return `${number(value * 1e6, 3)} µs`;
    if (value < 1) return `${number(value * 1e3, 3)} ms`;
    if (value < 60) return `${number(value, 3)} s`;
    const all = Math.round(value);
    const two = (part) => String(part).padStart(2, '0');
    if (all < 3600) return `${Math.floor(all / 60)} min ${two(all % 60)} s`;
    return `${Math.floor(all / 3600)} h ${two(Math.round((all % 3600) / 60) % 60)} min`;
  }

  function figuresOf(places) {
    const steps = sum(span.steps, places);
    const wall = sum(span.wall, places);
    const training = sum(span.training, places);
    const found = [['steps', whole(steps)], ['wall time', seconds(wall)], ['per step, training', seconds(training / steps)]];
    if (known(span.tokens, places)) {
      const tokens = sum(span.tokens, places);
      found.push(['tokens/s without padding', training > 0 ? whole(tokens / training) : 'n/a']);
      if (known(span.processed, places)) {
        const processed = sum(span.processed, places);
        if (processed > 0) found.push(['padding', `${number(100 * (1 - tokens / processed), 3)}%`]);
      }
    }
    const losses = places.map((place) => span.loss[place]).filter((loss) => loss !== null);
    if (losses.length) found.push(['loss, first → last', `${number(losses[0], 4)} → ${number(losses[losses.length - 1], 4)}`]);
    return found;
  }

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === 'style') made.style.cssText = value; else if (key in made && key !== 'form') made[key] = value; else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function form(x, from, to) {
    const name = x === 'time' ? 'time' : 'step';
    const input = (label, value) => element('input', { type: 'number', step: 'any', value: String(+value.toPrecision(7)), ariaLabel: label });
    const first = input(`from ${name}`, from);
    const last = input(`to ${name}`, to);
    const made = element('form', {}, 'from', first, 'to', last, element('button', { type: 'submit', textContent: 'Show' }));
    made.addEventListener('submit', (event) => {
      event.preventDefault();
      const ends = [Number(first.value), Number(last.value)].sort((a, b) => a - b);
      const range = x === 'step' ? [ends[0] - 0.5, ends[1] + 0.5] : ends;
      select(shown.id, x, range);
      mark(shown.id, range);
    });
    return made;
  }

  // A typed span is drawn as if it had been dragged.
  function mark(id, range) {
    const { gd } = hfReport.drawn.get(id);
    const selection = { type: 'rect', xref: 'x', yref: 'y', x0: range[0], x1: range[1], line: { width: 1, dash: 'solid' } };
    const [y0, y1] = gd._fullLayout.yaxis.range;
    Plotly.relayout(gd, { selections: [{ ...selection, y0, y1 }] });
  }

  function shares(places) {
    const wall = sum(span.wall, places);
    const parts = span.phases
      .map((phase) => ({ ...phase, share: wall > 0 ? sum(phase.seconds, places) / wall : 0 }))
      .filter((phase) => phase.share > 0);
    const bar = element('div', { className: 'span-bar', ariaHidden: 'true' },
      ...parts.map((phase) => element('span', { style: `width:${100 * phase.share}%;background:${phase.color}` })));
    const list = element('ul', { className: 'span-phases' },
      ...parts.map((phase) => element('li', {}, element('span', { className: 'swatch', style: `background:${phase.color}` }),
        `${phase.label} ${number(100 * phase.share, 3)}%`)));
    return [bar, list];
  }

  function title(places, x, range) {
    const first = Math.min(...places.map((place) => span.first[place]));
    const last = Math.max(...places.map((place) => span.last[place]));
    return first === last ? `Step ${whole(first)}` : `Steps ${whole(first)} to ${whole(last)}`;
  }

  function select(id, x, range) {
    const unit = x === 'time' ? figures[id].x_per_second : 1;
    const [low, high] = [range[0] / unit, range[1] / unit].sort((a, b) => a - b);
    const places = span.steps.map((_, place) => place).filter((place) => middle(place, x) >= low && middle(place, x) <= high);
    shown = { id, x, range };
    const close = element('button', { type: 'button', className: 'close', textContent: 'Close' });
    close.addEventListener('click', () => { hide(); });
    const zoom = element('button', { type: 'button', textContent: 'Zoom to it' });
    zoom.addEventListener('click', () => {
      clear(id);
      Plotly.relayout(hfReport.drawn.get(id).gd, { 'xaxis.range': range.slice() });
    });
    const ends = x === 'step' ? [Math.ceil(range[0]), Math.floor(range[1])] : range;
    const head = element('div', { className: 'span-head' },
      element('h2', { textContent: places.length ? title(places, x, range) : 'No whole step in this span' }),
      form(x, ends[0], ends[1]), zoom, close);
    const inside = element('div', { className: 'span-inside' }, head);
    if (places.length) {
      const list = element('dl', { ariaLive: 'polite' }, ...figuresOf(places).map(([label, value]) =>
        element('div', {}, element('dt', { textContent: label }), element('dd', { textContent: value }))));
      inside.append(list, ...shares(places));
    }
    panel.replaceChildren(inside);
    panel.hidden = false;
  }

  function clear(id) {
    const { gd } = hfReport.drawn.get(id);
    return Plotly.update(gd, { selectedpoints: null }, { selections: [] });
  }

  function hide() {
    panel.hidden = true;
    if (!shown) return;
    clear(shown.id);
    shown = null;
  }

  document.addEventListener('span:selected', ({ detail }) => {
    if (shown && shown.id !== detail.id) clear(shown.id); // one span at a time
    select(detail.id, detail.x, detail.range);
  });
  document.addEventListener('span:open', ({ detail }) => {
    const figure = figures[detail.id];
    select(detail.id, figure.x, hfReport.drawn.get(detail.id).gd.layout.xaxis.range.slice());
  });
  document.addEventListener('span:close', hide);
  document.addEventListener('keydown', (event) => { if (event.key === 'Escape' && !panel.hidden) hide(); });
})();
// Buttons that copy the lines beside them; where the browser does not let them, the lines are selected.
(() => {
  'use strict';
  const SHOWN_FOR_MS = 1600;

  function select(code) {
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  async function copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      select(code);
      try { return document.execCommand('copy'); } catch { return false; }
    }
  }

  for (const button of document.querySelectorAll('[data-copy]')) {
    button.hidden = false;
    button.addEventListener('click', async () => {
      const done = await copy(button.parentElement.querySelector('code'));
      button.textContent = done ? 'Copied' : 'Selected';
      setTimeout(() => { button.textContent = 'Copy'; }, SHOWN_FOR_MS);
    });
  }
})();
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
