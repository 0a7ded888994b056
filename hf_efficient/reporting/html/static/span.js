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
